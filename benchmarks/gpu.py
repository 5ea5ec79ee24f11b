"""GRPO on one GPU, measured: where a step's seconds go, tokens a second, peak memory, rewards, and
accuracy on held-out rows.

``python benchmarks/gpu.py --model DIR_OR_ID --train ROWS.jsonl --test ROWS.jsonl [--recipe FILE]
[--steps N] [--short N] [--rows N] [--seconds N] [--output DIR] [-- --key value …]`` ``python
benchmarks/gpu.py --tiny`` does all of it on a CPU in a minute, on a random model and invented sums;
its figures mean nothing.

It first takes three steps that check the set-up: KL of the first step (0, because the model is its
own reference), the difference between the log-probabilities of vLLM and of training, seconds and
memory. Then it trains the recipe (``recipes/gsm8k_qwen05b.yaml``) once with Transformers' generation
(``--short`` steps, for the time) and once with vLLM colocated (``--steps``), and judges the model
before and after on ``--rows``; 0 leaves that part out. Where vLLM, or a GPU for it, is missing, Transformers
trains all the steps, and the table says what was left out.

A machine may only allow short commands. ``--seconds 540`` stops this command after that time; so
does SIGTERM. Training then saves a checkpoint, and the exit status is 75. Call it again with the
same words: it goes on from there, and what is done is not done again. Each table is printed, and
added to DIR/results.md, as soon as it is there; runs, completions and log.txt stay in DIR (default:
outputs/gpu_benchmark). Words after ``--`` override the recipe. Needs this package and what it
depends on: ``make install``, and ``make install EXTRAS=vllm`` for vLLM.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RECIPE = str(REPOSITORY / "recipes" / "gsm8k_qwen05b.yaml")
# Steps that only show how fast Transformers generates, and steps at a run's start that load and
# compile.
SHORT, WARM_UP = 8, 2
CHECKED = 3  # steps of the first check
SAVE_STEPS = 8  # a killed command loses no more than these
STOPPED = 75  # EX_TEMPFAIL: call again
_TINY = {
    "max_completion_length": 8,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "system_prompt": "",
}
_ON_CPU = {"use_cpu": "true", "bf16": "false"}
# Runs a module as `python -m` does and leaves the peak of the GPU's memory, which PyTorch counts
# for its own process alone.
_MEASURED = """
import json, runpy, sys
target, module, sys.argv = sys.argv[1], sys.argv[2], sys.argv[2:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
import torch
peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
open(target, "w").write(json.dumps(peak))
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the tables; see the module's first lines.

    Raises:
        SystemExit: 2 where something is missing that nothing can be measured without, 1 where a run
            fails, 75 where it was stopped and can go on.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", help="a checkpoint of Qwen2.5-0.5B-Instruct's class")
    parser.add_argument("--train", help="GSM8K's training rows (JSONL: question, answer)")
    parser.add_argument("--test", help="held-out rows in the same schema")
    parser.add_argument("--recipe", default=RECIPE, help="a GRPO recipe on rows of GSM8K")
    parser.add_argument(
        "--short", type=int, default=SHORT, help="optimizer steps with Transformers' generation"
    )
    parser.add_argument(
        "--steps", type=int, default=120, help="optimizer steps of the run that is judged"
    )
    parser.add_argument("--rows", type=int, default=200, help="held-out rows that are judged")
    parser.add_argument(
        "--seconds", type=float, help="stop after this time, and save; the next call goes on"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("outputs/gpu_benchmark"),
        help="where runs and figures are kept",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="a random model on a CPU: does the script work?"
    )
    options = parser.parse_args(words[:cut])
    missing = [
        name for name in ("torch", "trl", "r1_recipes") if importlib.util.find_spec(name) is None
    ]
    if missing:
        parser.error(
            f"{', '.join(missing)}: not installed; run make install in {REPOSITORY} and take "
            f".venv/bin/python"
        )
    if not options.tiny and not (options.model and options.train and options.test):
        parser.error("--model, --train and --test are needed, or --tiny")
    from kept import hold_settings

    if gone := [
        name for name in (options.train, options.test) if name and not Path(name).is_file()
    ]:
        parser.error(f"{', '.join(gone)}: no such file")
    output = options.output.resolve()
    deadline = time.monotonic() + options.seconds if options.seconds else None
    kept = {
        key: str(value) for key, value in vars(options).items() if key not in ("output", "seconds")
    }
    hold_settings(parser, output, {**kept, "own": words[cut + 1 :]})
    if options.tiny:
        _make_tiny(output, options)
    with (output / "results.md").open("w", encoding="utf-8") as kept:
        # Hours of a GPU stand behind the first of them when the last fails.
        for part in _measure(options, output, words[cut + 1 :], deadline):
            for stream in (sys.stdout, kept):
                stream.write(part + "\n\n")
                stream.flush()


def _make_tiny(output: Path, options: argparse.Namespace) -> None:
    from r1_recipes.models.smoke import build_tiny_model

    for name, second in (("train", (4, 6)), ("test", (5,))):
        sums = [(a, b) for a in (2, 3, 7, 9) for b in second]
        rows = [
            {"question": f"{a}+{b}?", "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"}
            for a, b in sums
        ]
        path = output / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        setattr(options, name, str(path))
    options.model, options.steps, options.rows = (
        str(build_tiny_model(output / "model", {})),
        WARM_UP + 1,
        4,
    )


def _measure(
    options: argparse.Namespace, output: Path, overrides: list[str], deadline: float | None
) -> Iterator[str]:
    """The tables, each when it is measured."""
    from kept import rows_folder

    # In a process of its own: asking takes some of the GPU's memory until it ends.
    asked = [
        sys.executable,
        "-c",
        "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')",
    ]
    found = (
        ""
        if options.tiny
        else subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    )
    gpu = found or None
    skipped = []
    if gpu is None:
        skipped.append("the GPU: none was used, so nothing here says how fast one is")
    has_vllm = importlib.util.find_spec("vllm") is not None
    if not (gpu and has_vllm):
        skipped.append(
            "generation with vLLM: " + ("no GPU was used" if has_vllm else "vLLM is not installed")
        )
    engines = (
        [("Transformers", options.short), ("vLLM, colocated", options.steps)]
        if gpu and has_vllm
        else [("Transformers", options.steps)]
    )
    rows = rows_folder(options.train, options.test, output)
    common: dict[str, Any] = {
        "model_name_or_path": options.model,
        "dataset_name": rows,
        "dataset_config": "none",
    }
    common |= (_TINY if options.tiny else {}) | ({} if gpu else _ON_CPU)
    revision = subprocess.run(
        ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    versions = ", ".join(
        f"{name} {_version(name)}" for name in ("torch", "transformers", "trl", "vllm")
    )
    lines = [
        f"{gpu or platform.processor() or platform.machine()}; {versions}; revision "
        f"{revision or 'unknown'}; {time.strftime('%Y-%m-%d')}"
    ]
    lines += [
        f"recipe {Path(options.recipe).stem}; model {options.model}; the first {WARM_UP} steps of each run are not timed"
    ]
    lines += [f"left out: {what}" for what in skipped]
    if options.tiny:
        lines.append("--tiny: a random model on invented sums; the figures mean nothing")
    yield "\n".join(lines)

    def train(folder: str, changes: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
        return _train(options.recipe, output / folder, common | changes, overrides, deadline)

    checked = {
        "use_vllm": str(bool(gpu and has_vllm)).lower(),
        "max_steps": CHECKED,
        "learning_rate": 1e-6,
        "beta": 0.04,
    }
    yield table(check(*train("check", checked)))
    head = [
        [
            "generation by",
            "steps timed",
            "s a step",
            "generation",
            "rewards",
            "training",
            "tokens/s",
            "peak memory, GB",
        ],
        ["---"] * 8,
    ]
    run, history = output, []
    for name, steps in (engine for engine in engines if engine[1]):
        run = output / name.split(",")[0].lower()
        history, peak = train(
            run.name,
            {
                "use_vllm": str(name.startswith("vLLM")).lower(),
                "max_steps": max(steps, WARM_UP + 1),
            },
        )
        yield table([*head, [name, *_phases(history[:SHORT], run), peak]])
    if history:
        yield table(curve(history))
    if history and options.rows:
        yield table(
            _judge(options, output, run, common, overrides, deadline, vllm=bool(gpu and has_vllm))
        )


def _train(
    recipe: str, run: Path, changes: dict[str, Any], overrides: list[str], deadline: float | None
) -> tuple[list[dict[str, Any]], str]:
    """The metrics of each step, and the peak of the GPU's memory in GB, ``""`` where it is not
    known. A finished run is not trained again, and one that was stopped goes on.
    """
    from r1_recipes.runs.run_dir import is_finished

    changes = changes | {
        "save_strategy": "steps",
        "save_steps": SAVE_STEPS,
        "save_total_limit": 1,
        "output_dir": run,
        "report_to": "none",
    }
    measured = run.with_suffix(".json")
    if not is_finished(run):
        words = [recipe, *as_words(changes), *overrides]
        _run("r1_recipes.grpo", words, run.parent / "log.txt", measured, deadline)
    try:
        peak = json.loads(measured.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # stopped between the run's end and this
        peak = None
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    history = [entry for entry in map(json.loads, lines) if "loss" in entry]
    return history, "" if peak is None else f"{peak / 1e9:.1f}"


def check(history: list[dict[str, Any]], peak: str) -> list[list[str]]:
    """What has to be right before hours are spent: per step KL, which starts at 0, and how far
    vLLM's log-probabilities are from training's.
    """
    keys = {
        "kl": "KL from the start",
        "sampling/sampling_logp_difference/mean": "|log p of vLLM - of training|, mean",
        "sampling/sampling_logp_difference/max": "largest",
        "grad_norm": "norm of the gradient",
        "step_time": "s a step",
        "time/generation": "generation",
    }
    keys = {key: name for key, name in keys.items() if key in history[0]}
    rows = [["check, step", *keys.values(), "peak memory, GB"], ["---"] * (len(keys) + 2)]
    for number, entry in enumerate(history, 1):
        rows.append([str(number), *(f"{entry[key]:.4g}" for key in keys), peak])
    return rows


def _run(module: str, words: list[str], log: Path, peak: Path, deadline: float | None) -> None:
    """A module in a process of its own, whose memory ends with it; ``peak`` gets that of the GPU's
    in bytes, ``null`` without one. SIGTERM, and the deadline, are passed on to it.
    """
    from r1_recipes.common import processes

    stopped = False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True
        process.terminate()

    command = [sys.executable, "-c", _MEASURED, str(peak), module, *words]
    with log.open("a", encoding="utf-8") as sink:
        process = processes.start_child(command, stdout=sink, stderr=sink)
        with processes.handled_by(stop):
            try:
                process.wait(deadline and max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                stop()
            code = process.wait()
    if stopped:
        sys.stderr.write(f"stopped during {module}. Call it again with the same words.\n")
        sys.exit(STOPPED)
    if code:
        tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        sys.exit(f"{tail}\nerror: {module} ended with status {code}")


def as_words(changes: dict[str, Any]) -> list[str]:
    words = []
    for key, value in changes.items():
        words += [
            f"--{key}",
            *(
                map(str, value)
                if isinstance(value, list)
                else ["null" if value is None else str(value)]
            ),
        ]
    return words


def _phases(history: list[dict[str, Any]], run: Path) -> list[str]:
    """Of the first steps after the warm-up: how many, medians of seconds (TRL's step_time, without
    the optimizer) and tokens a second.
    """
    import yaml

    timed = [
        entry | {"rest": entry["step_time"] - entry["time/generation"] - entry["time/rewards"]}
        for entry in history[WARM_UP:] or history
    ]
    middle = [
        statistics.median(entry[key] for entry in timed)
        for key in ("step_time", "time/generation", "time/rewards", "rest")
    ]
    settings = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    completions = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    speed = statistics.median(
        completions * entry["completions/mean_length"] / entry["time/generation"] for entry in timed
    )
    return [str(len(timed)), *(f"{value:.2f}" for value in middle), f"{speed:,.0f}"]


def curve(history: list[dict[str, Any]]) -> list[list[str]]:
    """Means over up to six equal parts of the run."""
    keys = {
        "reward": "reward",
        "rewards/accuracy/mean": "accuracy",
        "rewards/format/mean": "format",
        "completions/mean_length": "tokens",
    }
    keys = {
        key: name for key, name in keys.items() if key in history[0]
    }  # a recipe's own rewards have other names
    size = -(-len(history) // 6)
    rows = [["steps", *keys.values()], ["---"] * (len(keys) + 1)]
    for begin in range(0, len(history), size):
        part = history[begin : begin + size]
        rows.append(
            [
                f"{begin + 1} to {begin + len(part)}",
                *(f"{statistics.mean(entry[key] for entry in part):.3f}" for key in keys),
            ]
        )
    return rows


def _judge(
    options: argparse.Namespace,
    output: Path,
    run: Path,
    common: dict[str, Any],
    overrides: list[str],
    deadline: float | None,
    *,
    vllm: bool,
) -> list[list[str]]:
    """Accuracy before and after on the same rows: greedy and one sampled answer each, strict and
    lenient.
    """
    from kept import is_judged

    folder = output / "judged"
    changes = {key: value for key, value in common.items() if key != "model_name_or_path"}
    changes |= {
        "max_eval_samples": options.rows,
        "dtype": "bfloat16",
    }  # as training samples; the recipe's float32 is for its optimizer
    models = [
        "--model",
        options.model,
        "--model",
        str(run),
        "--num_samples",
        "1",
        "--output",
        str(folder),
    ]
    models += ["--backend", "vllm" if vllm else "transformers"]
    results = folder / "results.json"
    if not is_judged(results, run):
        _run(
            "r1_recipes.evaluate",
            [options.recipe, *models, *as_words(changes), *overrides],
            output / "log.txt",
            output / "judge.json",
            deadline,
        )
    lines = [
        [
            "model",
            "rows",
            "greedy, strict",
            "greedy, lenient",
            "sampled, strict",
            "sampled, lenient",
        ],
        ["---"] * 6,
    ]
    for name, scores in zip(
        ("before", "after"), json.loads(results.read_text(encoding="utf-8")), strict=True
    ):
        columns = (
            scores[key] for key in ("greedy", "greedy_lenient", "sampled", "sampled_lenient")
        )
        lines.append(
            [
                name,
                str(len(scores["greedy"])),
                *(f"{100 * statistics.mean(column):.1f} %" for column in columns),
            ]
        )
    return lines


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def table(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
