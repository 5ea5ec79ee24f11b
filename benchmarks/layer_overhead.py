"""What the recipe layer costs: the same training run by a bare TRL script and by a recipe, in turn,
with the same seed.

Run:  python benchmarks/layer_overhead.py [--pairs 3] [--steps 12] [--model PATH]

The bare script is :func:`bare` below, everything written out: data set, prompts, tokenizer,
``GRPOConfig``, ``GRPOTrainer``. The recipe says the same in YAML and runs as users run it, with
metrics file, log, report and checks. Both call the same reward functions; one of them only notes
the time, so a step is measured from one call to the next, and the time to the first step from the
start of the process to the first call. Losses, rewards and gradient norms have to be the same
numbers. Without ``--model``: SmolLM2-135M-Instruct from the package registry
(r1_recipes.models.weights).
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

STAMPS = "R1_LAYER_STAMPS"
REWARDS = ["accuracy", "format"]
COMPARED = ("loss", "reward", "grad_norm", "entropy", "completions/mean_length")
CONFIG = {
    "reward_weights": [1.0, 0.2, 0.0],
    "num_generations": 8,
    "max_completion_length": 32,
    "per_device_train_batch_size": 16,
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


def stamp(completions: list, **columns: Any) -> list[float]:
    """A reward of 0.0 that notes when it was asked."""
    with open(os.environ[STAMPS], "a", encoding="utf-8") as sink:
        sink.write(f"{time.time()}\n")
    return [0.0] * len(completions)


def bare(folder: Path) -> None:
    """The training run without the layer; ``folder`` holds rows.jsonl and settings.json."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from r1_recipes.prompts import FORMATS
    from r1_recipes.rewards import get_reward_funcs

    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    model = settings.pop("model")
    system = FORMATS["think_answer"].system_prompt
    rows = [
        json.loads(line)
        for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    dataset = Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": row["question"]},
                ],
                "solution": row["answer"].rpartition("#### ")[2],
            }
            for row in rows
        ]
    )
    config = GRPOConfig(
        output_dir=str(folder / "bare"), model_init_kwargs={"dtype": "float32"}, **settings
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=[*get_reward_funcs(REWARDS, "think_answer"), stamp],
    )
    trainer.train()
    trainer.save_model()
    (folder / "history.json").write_text(json.dumps(trainer.state.log_history), encoding="utf-8")


def prepare(folder: Path, model: str, steps: int) -> None:
    """Write the rows, the bare script's settings and the recipe."""
    rng = Random(1)
    sums = [(rng.randint(2, 99), rng.randint(2, 99)) for _ in range(200)]
    rows = [
        {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
        for a, b in sums
    ]
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    settings = {**CONFIG, "max_steps": steps}
    (folder / "settings.json").write_text(
        json.dumps({**settings, "model": model}), encoding="utf-8"
    )
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


def run_once(kind: str, model: str, steps: int) -> dict[str, Any]:
    """One run in a process of its own: seconds of each step and to the first, and what
    was logged.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, model, steps)
        bare_command, recipe_command = (
            [__file__, "--bare", name],
            ["-m", "r1_recipes.grpo", str(folder / "recipe.yaml")],
        )
        stamps = folder / "stamps"
        started = time.time()
        done = subprocess.run(
            [sys.executable, *(bare_command if kind == "bare" else recipe_command)],
            env={
                **os.environ,
                STAMPS: str(stamps),
                "PYTHONPATH": str(Path(__file__).resolve().parent),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(
                f"{done.stderr[-3000:]}\nerror: the {kind} run ended with status {done.returncode}"
            )
        # The layer tries a reward of one's own once before it loads the model: that is no step.
        times = [float(line) for line in stamps.read_text(encoding="utf-8").split()][-steps:]
        if kind == "bare":
            history = json.loads((folder / "history.json").read_text(encoding="utf-8"))
        else:
            history = [
                json.loads(line)
                for line in (folder / "recipe" / "metrics.jsonl")
                .read_text(encoding="utf-8")
                .splitlines()
            ]
    logged = [{key: entry.get(key) for key in COMPARED} for entry in history if "loss" in entry]
    steps_taken = [after - before for before, after in itertools.pairwise(times)]
    return {"step_seconds": steps_taken, "first_step_seconds": times[0] - started, "logged": logged}


def run(model: str, pairs: int, steps: int) -> dict[str, Any]:
    """Pairs of runs, one after the other, and what they say together."""
    runs: dict[str, list[dict[str, Any]]] = {"bare": [], "recipe": []}
    for pair in range(pairs):
        for kind in list(runs)[:: -1 if pair % 2 else 1]:  # who goes first pays for a cold disk
            runs[kind].append(run_once(kind, model, steps))
    medians = {
        # With one step, only the time to the first is known.
        kind: [statistics.median(each["step_seconds"] or [math.nan]) for each in done]
        for kind, done in runs.items()
    }
    first = {kind: [each["first_step_seconds"] for each in done] for kind, done in runs.items()}
    return {
        "model": Path(model).name,
        "steps": steps,
        "step_seconds": medians,
        "step_ratios": [
            recipe / plain for recipe, plain in zip(medians["recipe"], medians["bare"], strict=True)
        ],
        "first_step_seconds": first,
        "first_step_differences": [
            recipe - plain for recipe, plain in zip(first["recipe"], first["bare"], strict=True)
        ],
        "logged_equal": all(
            each["logged"] == runs["bare"][0]["logged"] for done in runs.values() for each in done
        ),
        "logged": runs["bare"][0]["logged"],
    }


def table(found: dict[str, Any]) -> str:
    """The measurements for a terminal."""
    ratios, differences = found["step_ratios"], found["first_step_differences"]
    return "\n".join(
        [
            f"layer overhead: {found['model']}, {found['steps']} steps, {len(ratios)} pairs "
            f"of runs",
            "step, s (bare):    "
            + "  ".join(f"{value:.3f}" for value in found["step_seconds"]["bare"]),
            "step, s (recipe):  "
            + "  ".join(f"{value:.3f}" for value in found["step_seconds"]["recipe"]),
            f"ratio of step time: median {statistics.median(ratios):.4f}  "
            f"({'  '.join(f'{ratio:.4f}' for ratio in ratios)})",
            f"time to first step: median {statistics.median(differences):+.2f} s  "
            f"({'  '.join(f'{value:+.2f}' for value in differences)}), "
            f"bare {statistics.median(found['first_step_seconds']['bare']):.2f} s",
            f"loss, reward, gradient norm, entropy and length of every step: "
            f"{'equal' if found['logged_equal'] else 'DIFFERENT'}",
        ]
    )


def default_model() -> str:
    # In a process of its own: a child's peak of memory begins with its parent's.
    code = "from r1_recipes.extras.demo.weights import smollm2_checkpoint as made; print(made())"
    return subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs (default 3)")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps a run (default 12)")
    parser.add_argument(
        "--model",
        help="checkpoint folder or hub name (default: SmolLM2-135M-Instruct from the package "
        "registry)",
    )
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare(options.bare)
    else:
        sys.stdout.write(
            table(run(options.model or default_model(), options.pairs, options.steps)) + "\n"
        )


if __name__ == "__main__":
    main()
