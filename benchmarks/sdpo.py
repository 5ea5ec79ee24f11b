"""SDPO beside GRPO on the sums of the demo: the model's own right answers as its teacher.

Run:  python benchmarks/sdpo.py [--seeds 3] [--problems 200] [--output outputs/sdpo]

TRL's ``SDPOTrainer`` (``trl.experimental.sdpo``) shows the model a right answer of the same group,
and the answer that it would then give is what it learns. Both runs of a seed start from one cold
start, and take this layer's prompts, rewards (accuracy, and the format at a weight of 0.2), batch,
rate and steps. The rest of SDPO is TRL's default: the teacher is an average of the model's weights,
and a rollout with a reward of 1 or more is shown. What is done is not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kept import by_problem, hold_settings, in_points, run_logged
from peers import (
    GRPO,
    add_run_options,
    cold_start,
    held_settings,
    judged,
    mapped_rows,
    mark_run,
    run_keys,
    settings,
    share_cells,
    train,
    write_yaml,
)

from r1_recipes.metrics.intervals import paired_difference
from r1_recipes.metrics.scores import COMPARED
from r1_recipes.runs.run_dir import is_finished

SHAPE = "tags"
RUNS = ("cold start", "grpo", "sdpo")
# What a recipe of GRPO has and SDPO takes under the same name.
SHARED = [
    "output_dir",
    "seed",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "num_generations",
    "max_completion_length",
    "temperature",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "beta",
    "reward_weights",
    "bf16",
    "use_cpu",
    "gradient_checkpointing",
    "dataloader_pin_memory",
    "logging_steps",
]


def sdpo(recipe_path: str) -> None:
    """Train one model with TRL's SDPO, on a recipe's rows and rewards. Runs in a process of its
    own.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    from r1_recipes.recipe import load_recipe
    from r1_recipes.rewards import get_reward_funcs

    recipe = load_recipe([recipe_path], "grpo")
    script, name = recipe.script, recipe.model.model_name_or_path
    rows, fmt = mapped_rows(script)
    keys = {key: getattr(recipe.training, key) for key in SHARED}
    trainer = SDPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(name),
        args=SDPOConfig(**keys, save_strategy="no", report_to=[]),
        reward_funcs=get_reward_funcs(script.reward_funcs, fmt),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(name),
    )
    trainer.train()
    trainer.save_model()
    history = "".join(json.dumps(entry) + "\n" for entry in trainer.state.log_history)
    mark_run(Path(recipe.training.output_dir), history, recipe_path)


def run(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Train and judge what has not been, and return each run's verdicts by seed."""
    scores: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    for seed in range(1, options.seeds + 1):
        sys.stderr.write(f"seed {seed} of {options.seeds}\n")
        folders = {name: options.output / name / str(seed) for name in RUNS}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        cold = cold_start(folders["cold start"], SHAPE, seed, options.model)
        models = {"cold start": cold, **{name: folders[name] / "model" for name in RUNS[1:]}}
        if not is_finished(models["grpo"]):
            train("r1-recipes, tags", models["grpo"], cold, seed, options)
        if not is_finished(models["sdpo"]):
            keys = run_keys(cold, models["sdpo"], seed, options)
            path = write_yaml(folders["sdpo"] / "recipe.yaml", settings(GRPO, SHAPE, **keys))
            run_logged([__file__, "--child", path], folders["sdpo"])
        for name, model in models.items():
            scores[name] += judged([model], SHAPE, folders[name], options.problems, 1, seed)
    return scores


def table(scores: dict[str, list[dict[str, Any]]]) -> str:
    """Accuracy of each run, by seed, and what it is over the cold start and over GRPO."""
    lines = [
        "| run | accuracy | over seeds | by seed | over the cold start | over grpo |",
        "|---" * 6 + "|",
    ]
    for kind, title in COMPARED.items():
        for name, found in scores.items():
            over = [
                in_points(paired_difference(by_problem(scores[of], kind), by_problem(found, kind)))
                for of in RUNS[:2]
            ]
            cells = [name, title, *share_cells(found, kind), *over]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "95 % intervals, over problems and not over seeds."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add_run_options(parser)
    parser.add_argument("--output", type=Path, default=Path("outputs/sdpo"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return sdpo(options.child)
    hold_settings(parser, options.output, held_settings(options))
    sys.stdout.write(table(run(options)) + "\n")


if __name__ == "__main__":
    main()
