"""What the recipe layer costs: the same training run by a bare TRL script and by a recipe, in turn.

Run:  python benchmarks/layer_overhead.py [--pairs 3] [--steps 12] [--model PATH]
                                          [--lengths gsm8k]

The bare script is :func:`bare` below, everything written out. The recipe says the same in YAML and
runs as users run it. Both call the same reward functions; one of them notes the time, so a step is
measured from one call to the next, and the time to the first step from the start of the process to
the first call. What both log has to be the same numbers.

``--lengths`` shows what ``trim_padding`` saves: micro-batches of 2, with completions that are cut,
or filled up, to the lengths of worked GSM8K solutions, or of a log-normal distribution. Training is
then timed apart from generation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import yaml

STAMPS, LENGTHS = "R1_LAYER_STAMPS", "R1_LAYER_LENGTHS"
REWARDS = ["accuracy", "format"]
COMPARED = ("loss", "reward", "grad_norm", "entropy", "completions/mean_length")
COMPLETIONS = 16
CONFIG = {
    "reward_weights": [1.0, 0.25, 0.0],  # exact in fp32: TRL trains on the rounding of others
    "num_generations": 8,
    "max_completion_length": 32,
    "per_device_train_batch_size": COMPLETIONS,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "temperature": 1.0,
    "beta": 0.0,
    "loss_type": "dapo",
    "bf16": False,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
    "use_cpu": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 1,
}
# Quantiles of the 7,473 worked solutions of openai/gsm8k's train split, in tokens of SmolLM2.
GSM8K = (
    *(50, 57, 62, 67, 71, 75, 79, 82, 86, 89, 93, 96, 100, 103, 107, 111),
    *(115, 120, 125, 129, 134, 139, 144, 151, 156, 164, 172, 182, 194, 210, 235, 276),
)


def lengths_of(name: str) -> list[int]:
    """Return the lengths of a batch's completions in a seeded order."""
    shares = [(index + 0.5) / COMPLETIONS for index in range(COMPLETIONS)]
    if name == "gsm8k":
        lengths = [GSM8K[int(share * len(GSM8K))] for share in shares]
    else:
        normal = statistics.NormalDist(math.log(60), 1)
        lengths = [min(512, round(math.exp(normal.inv_cdf(share)))) for share in shares]
    Random(1).shuffle(lengths)
    return lengths


def note(what: str) -> None:
    """Write down when this process began something."""
    with open(os.environ[STAMPS], "a", encoding="utf-8") as sink:
        sink.write(f"{what} {time.time()}\n")


def stamp(completions: list, **columns: Any) -> list[float]:
    """Return 0.0 for each completion, and note when it was asked."""
    note("reward")
    return [0.0] * len(completions)


def cut_completions() -> None:
    """Make TRL's trainer cut or fill up completions to the lengths that were asked for."""
    from trl import GRPOTrainer

    generate = GRPOTrainer._generate
    lengths = lengths_of(os.environ[LENGTHS])

    def generate_cut(self: Any, prompts: list) -> tuple:
        note("generation")
        prompt_ids, completion_ids, *rest = generate(self, prompts)
        pairs = zip(completion_ids, lengths, strict=True)
        # What is filled up is trained on, not read.
        cut = [(ids * (length // len(ids) + 1))[:length] for ids, length in pairs]
        return prompt_ids, cut, *rest

    GRPOTrainer._generate = generate_cut


if LENGTHS in os.environ:  # a recipe's process imports this file for its reward
    cut_completions()


def bare(folder: Path) -> None:
    """Train without the layer; ``folder`` holds rows.jsonl and settings.json."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from r1_recipes.prompts import get_response_format
    from r1_recipes.rewards import get_reward_funcs

    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    model = settings.pop("model")
    system = {"role": "system", "content": get_response_format("think_answer").system_prompt}
    rows = []
    for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompt = [system, {"role": "user", "content": row["question"]}]
        rows.append({"prompt": prompt, "solution": row["answer"].rpartition("#### ")[2]})
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir=str(folder / "bare"), model_init_kwargs={"dtype": "float32"}, **settings
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=[*get_reward_funcs(REWARDS, "think_answer"), stamp],
    )
    trainer.train()
    trainer.save_model()
    lines = [json.dumps(entry) for entry in trainer.state.log_history]
    (folder / "bare" / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")


def prepare(folder: Path, model: str, steps: int, lengths: str | None) -> None:
    """Write the rows, the bare script's settings and the recipe."""
    rng = Random(1)
    sums = [(rng.randint(2, 99), rng.randint(2, 99)) for _ in range(200)]
    rows = [
        {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
        for a, b in sums
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    settings = {**CONFIG, "max_steps": steps}
    if lengths:
        settings |= {
            "max_completion_length": max(lengths_of(lengths)),
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": COMPLETIONS // 2,
        }
    text = json.dumps({**settings, "model": model})
    (folder / "settings.json").write_text(text, encoding="utf-8")
    recipe = {
        "model_name_or_path": model,
        "dtype": "float32",
        "dataset_name": str(folder / "rows.jsonl"),
        "mapper": "gsm8k",
        "response_format": "think_answer",
        "reward_funcs": [*REWARDS, "layer_overhead:stamp"],
        "output_dir": str(folder / "recipe"),
        **settings,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")


def run_once(kind: str, model: str, steps: int, lengths: str | None) -> dict[str, Any]:
    """Train in a process of its own; return medians of seconds, and what was logged."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, model, steps, lengths)
        command = {
            "bare": [__file__, "--bare", name],
            "recipe": ["-m", "r1_recipes.grpo", str(folder / "recipe.yaml")],
        }[kind]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        own = {STAMPS: str(folder / "stamps"), "PYTHONPATH": path}
        if lengths:
            own[LENGTHS] = lengths
        started = time.time()
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **own},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{done.stderr[-3000:]}\nerror: the {kind} run ended with {done.returncode}")
        stamps = [line.split() for line in (folder / "stamps").read_text("utf-8").splitlines()]
        metrics = (folder / kind / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    # The layer tries a reward of one's own once before it loads the model: that is no step.
    rewards = [float(when) for what, when in stamps if what == "reward"][-steps:]
    begun = [float(when) for what, when in stamps if what == "generation"]
    history = [entry for entry in map(json.loads, metrics) if "loss" in entry]
    found = {
        "step": statistics.median(after - before for before, after in itertools.pairwise(rewards)),
        "first step": rewards[0] - started,
        "logged": [entry[key] for entry in history for key in COMPARED],
    }
    if begun:
        pairs = zip(rewards, begun[1:], strict=False)
        found["training"] = statistics.median(after - before for before, after in pairs)
    return found


def table(bare_runs: list[dict[str, Any]], recipe_runs: list[dict[str, Any]]) -> str:
    """Return the seconds of each run, and how far the logged numbers differ."""
    lines = ["| what | bare TRL, s | recipe, s | ratio or difference |", "|---|---|---|---|"]
    for what in [key for key in bare_runs[0] if key != "logged"]:
        plain, ours = ([run[what] for run in runs] for runs in (bare_runs, recipe_runs))
        cells = [", ".join(f"{value:.2f}" for value in values) for values in (plain, ours)]
        pairs = list(zip(plain, ours, strict=True))
        if what == "first step":
            cells.append(", ".join(f"{after - before:+.2f} s" for before, after in pairs))
        else:
            cells.append(", ".join(f"{after / before:.3f}" for before, after in pairs))
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    logged = bare_runs[0]["logged"]
    gap = max(
        abs(value - expected) / max(abs(expected), 1e-6)
        for run in [*bare_runs, *recipe_runs]
        for value, expected in zip(run["logged"], logged, strict=True)
    )
    lines.append(f"\n{', '.join(COMPARED)} of every step: largest relative difference {gap:.1e}")
    return "\n".join(lines)


def main() -> None:
    """Run the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs (3)")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps a run (12)")
    parser.add_argument("--model", help="checkpoint (SmolLM2-135M-Instruct of the registry)")
    parser.add_argument("--lengths", choices=["gsm8k", "log-normal"], help="of completions")
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        return bare(options.bare)
    if not options.model:
        from r1_recipes.extras.demo import smollm2_checkpoint

        options.model = str(smollm2_checkpoint())
    runs: dict[str, list[dict[str, Any]]] = {"bare": [], "recipe": []}
    for pair in range(options.pairs):
        for kind in list(runs)[:: -1 if pair % 2 else 1]:  # who goes first pays for a cold disk
            runs[kind].append(run_once(kind, options.model, options.steps, options.lengths))
    sys.stdout.write(table(runs["bare"], runs["recipe"]) + "\n")


if __name__ == "__main__":
    main()
