"""The flagship recipe on two CPU cores: real weights, GSM8K's own rows, and sizes that fit; judged
before and after on held-out rows.

Run:  python benchmarks/gsm8k_cpu.py [--model DIR_OR_ID] [--train ROWS] [--test ROWS] [--steps 30]
[--rows 200] [-- --key value …]

DeepSeek-R1's cold start in small: the model answers 64 training questions, shown how by four worked
ones, and learns (SFT) from its own right answers, so that it needs to be shown no more. Then
``recipes/gsm8k_qwen05b.yaml`` on other rows, with 3 prompts of 8 completions a step and 160 tokens
each. Before GRPO, preflight says what it expects; a checkpoint is kept every five steps; at the end
the raw model (also shown the worked ones), the cold start and the result answer the test rows,
greedily. Call it again after an interruption, with the same words: what is done is not done again.
Everything stays in DIR (default: outputs/gsm8k_cpu), the tables in DIR/results.md. Words after
``--`` are keys of the recipe and of the judge, not of the cold start. ``--cold_start 0`` leaves
that out: so short, the raw model unlearns to reason for the sake of an ending; and GSM8K's own
solutions in place of the model's teach it to reason worse (docs/results/gsm8k_cpu.md). Both train
the upper third of the layers, as ``recipes/cpu/demo_2_grpo.yaml`` does: all of them fill 24 GB. ``--bf16
false`` is faster on CPUs without bf16 instructions (``lscpu``: avx512_bf16, amx_bf16). Where vLLM's
build for CPUs is installed, ``--backend vllm`` samples and judges faster.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from gpu import RECIPE, as_words, curve, table
from kept import hold_settings, in_points, is_judged, rows_folder, run_logged

from r1_recipes.common.files import write_whole
from r1_recipes.metrics.intervals import mean_interval, paired_difference
from r1_recipes.metrics.scores import COMPARED
from r1_recipes.runs.run_dir import is_finished

UPPER_THIRD = ["layers[.](1[6-9]|2[0-9])[.]", "model[.]norm[.]"]  # of 24 layers
SIZES = {
    "use_cpu": "true",
    "use_vllm": "false",
    "max_completion_length": 160,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 3,
    "gradient_checkpointing": "false",
    # Five times the recipe's, which has 934 steps to get somewhere, and all layers; ten times, and
    # its own weights, lost 5 points.
    "learning_rate": 5e-6,
    "reward_weights": [1.0, 0.1, 0.1],
    "beta": 0,  # no reference model: 2.5 GB and a fifth of the time
    "save_steps": 5,
    "save_total_limit": 1,
}
# Our own, as brief as an answer has to be.
WORKED = [
    {
        "question": "A baker fills 4 trays with 6 rolls each and "
        "sells 9 of them. How many rolls are "
        "left?",
        "reasoning": "There are 4 * 6 = 24 rolls.\nAfter 9 are sold, 24 - 9 = 15 rolls are left.",
        "answer": "15",
    },
    {
        "question": "Lena reads 12 pages a day for 5 days. Her book "
        "has 100 pages. How many pages are "
        "left to read?",
        "reasoning": "In 5 days she reads 12 * 5 = 60 pages.\nSo 100 - 60 = 40 pages are left.",
        "answer": "40",
    },
    {
        "question": "A shirt costs $30 and is sold at a discount of "
        "20%. How many dollars do 3 such "
        "shirts cost?",
        "reasoning": "The discount is 30 * 20 / 100 = 6 dollars.\nA "
        "shirt costs 30 - 6 = 24 dollars.\n3 "
        "shirts cost 3 * 24 = 72 dollars.",
        "answer": "72",
    },
    {
        "question": "Ben has 5 marbles. Ann has 8 more than Ben, and "
        "Tom has twice as many as Ann. How "
        "many do the three have together?",
        "reasoning": "Ann has 5 + 8 = 13 marbles.\nTom has 2 * 13 = 26 "
        "marbles.\nTogether they have 5 + "
        "13 + 26 = 44 marbles.",
        "answer": "44",
    },
]
SAMPLES = {
    "mapper": "gsm8k",
    "response_format": "think_answer",
    "few_shot": WORKED,
    "num_generations": 4,
    "max_completion_length": SIZES["max_completion_length"],
    "temperature": 0.7,
    "generation_batch_size": 64,
    "vllm_max_model_length": 2048,
    "reward_funcs": ["accuracy"],
    "keep": {
        "best_of": 2,
        "correct": True,
        "filters": {"malformed": True, "truncated": True},
        "deduplicate": {"exact": True},
    },
    "use_cpu": True,
}
COLD_START = {
    "dtype": "float32",
    "mapper": "generated",
    "response_format": "think_answer",
    "per_device_train_batch_size": 4,
    "learning_rate": 2e-5,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "num_train_epochs": 4,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "logging_steps": 4,
    "save_strategy": "steps",
    "save_steps": 16,
    "save_total_limit": 1,
    "report_to": "none",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Train and judge what has not been, and print the tables.

    Raises:
        SystemExit: 1 where a command fails; its last lines are shown.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--model",
        default="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        help="checkpoint of the 0.5B class (default %(default)s)",
    )
    parser.add_argument(
        "--train",
        default="openai/gsm8k",
        help="the hub's data set, or a file of rows (JSON lines: question, answer; default "
        "%(default)s)",
    )
    parser.add_argument("--test", help="a file of held-out rows, where --train is a file")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps of GRPO")
    parser.add_argument(
        "--cold_start",
        type=int,
        default=64,
        metavar="ROWS",
        help="questions of the cold start; 0: none",
    )
    parser.add_argument(
        "--unfrozen",
        nargs="+",
        default=UPPER_THIRD,
        metavar="REGEX",
        help="weights to train (default: %(default)s)",
    )
    parser.add_argument(
        "--bf16",
        default="true",
        choices=["true", "false"],
        help="autocast, as the recipe does (default %(default)s)",
    )
    parser.add_argument(
        "--backend",
        default="transformers",
        help="what answers outside of training: transformers or vllm",
    )
    parser.add_argument("--rows", type=int, default=200, help="held-out rows that are judged")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/gsm8k_cpu"), help="where everything is kept"
    )
    options, own = parser.parse_args(given[:cut]), given[cut + 1 :]
    data: dict[str, Any] = {"dataset_name": options.train, "dataset_config": "main"}
    files = [name for name in (options.train, options.test) if name and Path(name).is_file()]
    if len(files) == 1 or (options.test and not files):
        parser.error(
            f"--train {options.train} and --test {options.test}: name two files of rows, or "
            f"neither; files are {files}"
        )
    kept = {key: str(value) for key, value in vars(options).items() if key != "output"}
    hold_settings(parser, options.output, {**kept, "own": own})
    run, cold, start = options.output / "run", options.output / "cold_start", options.model
    if files:
        data = {"dataset_name": rows_folder(*files, options.output), "dataset_config": None}
    # As autocast computes in training.
    answers = {"dtype": "bfloat16" if options.bf16 == "true" else "float32"}
    trained = {"bf16": options.bf16 == "true", "unfrozen_parameters": options.unfrozen}
    split = {}
    if options.cold_start:
        # No row is in both.
        start, shown = str(cold), f"train[:{options.cold_start}]"
        split = {"dataset_train_split": f"train[{options.cold_start}:]"}
        samples, asked = (
            options.output / "samples",
            {**data, "dataset_train_split": shown, "backend": options.backend},
        )
        keys = {
            "model_name_or_path": options.model,
            **answers,
            **SAMPLES,
            **asked,
            "output_dir": str(samples),
        }
        _call("generate", keys, options.output, done=(samples / "dataset").exists())
        keys = {
            "model_name_or_path": options.model,
            **COLD_START,
            **trained,
            "dataset_name": str(samples / "dataset"),
            "output_dir": start,
        }
        _call("sft", keys, options.output, done=is_finished(cold))
    train = as_words(
        {
            "model_name_or_path": start,
            **data,
            **trained,
            **split,
            **SIZES,
            "max_steps": options.steps,
            "output_dir": run,
        }
    )
    forecast = options.output / "preflight.txt"
    if not forecast.exists():
        # Its advice is kept, and compared with what came; it is not followed.
        words = [
            "-m",
            "r1_recipes.preflight",
            RECIPE,
            *train,
            *own,
            "--groups",
            "4",
            "--seconds",
            "300",
        ]
        text = run_logged(words, options.output, may_fail=True)
        if not re.search("^(Ready|Do not start)", text, re.MULTILINE):
            sys.exit(f"error: preflight came to no end: see {options.output / 'log.txt'}")
        write_whole(forecast, text)
    if not is_finished(run):
        run_logged(["-m", "r1_recipes.grpo", RECIPE, *train, *own], options.output)
    shown = options.output / "shown.yaml"  # what prompting alone would have done
    shown.write_text(
        yaml.safe_dump(
            {**yaml.safe_load(Path(RECIPE).read_text(encoding="utf-8")), "few_shot": WORKED}
        ),
        encoding="utf-8",
    )
    trials = {
        "judged": (RECIPE, [options.model, start, str(run)]),
        "shown": (str(shown), [options.model]),
    }
    for name, (recipe, models) in trials.items():
        if not is_judged(options.output / name / "results.json", *map(Path, models)):
            words = [word for model in dict.fromkeys(models) for word in ("--model", model)]
            words += [
                "--num_samples",
                "0",
                "--backend",
                options.backend,
                "--output",
                str(options.output / name),
            ]
            words += [
                *as_words(
                    {**SIZES, **data, **trained, **answers, "max_eval_samples": options.rows}
                ),
                *own,
            ]
            run_logged(["-m", "r1_recipes.evaluate", recipe, *words], options.output)
    history = [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    history = [entry for entry in history if "loss" in entry]
    judged, prompted = (
        json.loads((options.output / name / "results.json").read_text(encoding="utf-8"))
        for name in trials
    )
    judged[1:1] = prompted

    def middle(key: str) -> float:
        return statistics.median(entry[key] for entry in history)

    said = re.findall(
        r"^  ((?:error +|(?:ok|warning) +(?:signal|fit)).*)",
        forecast.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    text = "\n\n".join(
        [
            table(curve(history)),
            table(_judged(judged)),
            f"{len(history)} steps in {sum(entry['step_time'] for entry in history) / 60:.0f} min; "
            f"{middle('step_time'):.0f} s a step in the middle, "
            f"{middle('time/generation'):.0f} s of them generation. "
            "(TRL's step_time: the optimizer and checkpoints come on top.)",
            f"Judged on {judged[0]['judged_on']}.",
            "Preflight had said:\n\n" + "\n".join(f"- {line}" for line in said),
        ]
    )
    (options.output / "results.md").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{text}\n\npage: {run / 'report.html'}\n")


def _call(method: str, keys: dict[str, Any], folder: Path, *, done: bool) -> None:
    """Run one method on a recipe of these keys, unless it is done."""
    if not done:
        recipe = folder / f"{method}.yaml"
        recipe.write_text(yaml.safe_dump(keys, sort_keys=False, width=150), encoding="utf-8")
        run_logged(["-m", f"r1_recipes.{method}", str(recipe)], folder)


def _judged(scores: list[dict[str, Any]]) -> list[list[str]]:
    """Accuracy of the raw model without and with worked examples, the cold start and the result on
    the same rows, with 95 % intervals.
    """
    names = [
        "raw model",
        f"raw model, shown {len(WORKED)}",
        *(["after the cold start"] if len(scores) > 3 else []),
        "after GRPO",
    ]
    over = {
        "GRPO over what it began with": scores[-2 if len(scores) > 3 else 0],
        "over the raw model, shown": scores[1],
    }
    rows = [["accuracy, strict if not said otherwise", *names, *over], ["---"] * (len(names) + 3)]
    for key in (
        "greedy",
        "greedy_lenient",
    ):  # nothing is sampled: judging is a third of the time as it is
        gains = (in_points(paired_difference(one[key], scores[-1][key])) for one in over.values())
        rows.append([COMPARED[key], *(_percent(mean_interval(one[key])) for one in scores), *gains])
    return [
        *rows,
        ["in the format", *(f"{100 * one['greedy_format']:.0f} %" for one in scores), "", ""],
    ]


def _percent(interval: tuple[float, float, float]) -> str:
    mean, low, high = (100 * bound for bound in interval)
    return f"{mean:.1f} % ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
