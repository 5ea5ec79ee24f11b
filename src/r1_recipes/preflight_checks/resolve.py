"""The recipe itself: it can be read, what it changes, and that nothing it needs beforehand is missing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.masking import masked_text
from r1_recipes.preflight_checks.findings import Report
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.keys import argument_types
from r1_recipes.recipe.text import read_yaml
from r1_recipes.runs import run_dir
from r1_recipes.training import checks

_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
_BATCH_KEYS = ("generation_batch_size", "steps_per_generation", "per_device_eval_batch_size")
# TRL's own refusals of a batch, and the overrides with which the rest of the recipe can still be read.
_GROUPS = re.compile(r"generation_batch_size \((\d+)\) must be divisible by num_generations \((\d+)\)")
_GLOBAL = re.compile(r"generation_batch_size \((\d+)\) must be divisible by the global batch size \((\d+)\)")
_EVAL = re.compile(r"eval batch size \((\d+) \* \d+\) must be divisible by the number of generations used for evaluation \((\d+)\)")


def guess_method(argv: Sequence[str]) -> str:
    """``"grpo"`` where the recipe or the command line names rewards, else ``"sft"``; of a file that cannot be read, ``"grpo"``.

    Raises:
        RecipeError: it is a recipe for something else than training with GRPO or SFT.
    """
    if any(word.partition("=")[0] == "--reward_funcs" for word in argv):
        return "grpo"
    try:
        keys = read_yaml(Path(argv[0])).keys()
    except RecipeError:
        return "grpo"
    others = {"teacher_model_name_or_path": "distill", "num_samples": "evaluate", "backend": "generate", "keep": "generate"}
    for key, other in others.items():
        if key in keys:
            raise RecipeError(f"{argv[0]}: preflight reads recipes for grpo and sft; this one is for {other} (it has {key})")
    return "grpo" if "reward_funcs" in keys else "sft"


@contextlib.contextmanager
def one_process() -> Iterator[int]:
    """Yield the number of processes that a launcher announces (1 without), and check in this one alone: libraries would wait for them."""
    announced = {name: os.environ.pop(name) for name in _LAUNCHER if name in os.environ}
    try:
        yield max(1, int(announced.get("WORLD_SIZE", 1)))
    finally:
        os.environ.update(announced)


def read_recipe(report: Report, argv: Sequence[str], method: str) -> Recipe | None:
    """The recipe, resolved, also where TRL refuses its batch: :func:`r1_recipes.preflight_checks.fit.check_batch` says that with numbers.

    Returns:
        ``None`` where nothing further can be checked; the report says why.
    """
    extra: list[str] = []
    batch = held_out = None
    for _ in range(4):
        try:
            recipe = load_recipe([*argv, *extra], method)
            break
        except RecipeError as error:
            if found := _GROUPS.search(str(error)) or _GLOBAL.search(str(error)):
                batch = batch or int(found[1])  # the first is the recipe's own
                extra += ["--generation_batch_size", "none"]
                extra += ["--steps_per_generation", found[2]] if _GROUPS.search(str(error)) else []
            elif found := _EVAL.search(str(error)):
                held_out = int(found[1])
                extra += ["--per_device_eval_batch_size", found[2]]
            else:
                report.error("recipe.unusable", masked_text(str(error)))
                return None
    else:
        report.error(
            "recipe.unusable", f"{argv[0]}: the batch sizes contradict each other in several ways; set per_device_train_batch_size"
        )
        return None
    _restore(recipe, argv, batch, held_out)
    report.ok("recipe.read", f"{recipe.path} is a {method} recipe of {len(recipe.settings)} keys, and all of them are known")
    for warning in dict.fromkeys(recipe.warnings):
        report.warn("recipe.translated", warning)
    report.facts["recipe"] = {
        "path": str(recipe.path),
        "method": method,
        "settings": recipe.settings,
        "changed_defaults": changed_defaults(recipe),
    }
    return recipe


def _restore(recipe: Recipe, argv: Sequence[str], batch: int | None, held_out: int | None) -> None:
    """Give the recipe its own batch sizes back, which TRL did not take."""
    training = recipe.training
    if batch is not None:
        training.generation_batch_size = batch
        training.steps_per_generation = max(1, batch // training.per_device_train_batch_size)
    if held_out is not None:
        training.per_device_eval_batch_size = held_out
    named = {*read_yaml(recipe.path), *(word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--"))}
    for key in _BATCH_KEYS:
        if key in recipe.settings and key not in named:
            del recipe.settings[key]
        elif key in recipe.settings:
            recipe.settings[key] = getattr(training, key)


def changed_defaults(recipe: Recipe) -> list[dict[str, Any]]:
    """Every key whose value is not its default: ``key``, ``default`` and ``value``, in the recipe's order."""
    from r1_recipes.rewards import reward_parameters

    fields = {f.name: f for kind in argument_types(recipe.method) for f in dataclasses.fields(kind)}
    fields |= reward_parameters(getattr(recipe.script, "reward_funcs", ()))
    changed = []
    for key, value in recipe.settings.items():
        if key not in fields:  # a reward's parameter that none of these rewards has
            continue
        field = fields[key]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = None if default is dataclasses.MISSING else getattr(default, "value", default)
        if value != default and (default, value) != ("none", []):  # report_to: the one as it is written, the other as it is resolved
            changed.append({"key": key, "default": default, "value": value})
    return changed


def check_surroundings(report: Report, recipe: Recipe) -> None:
    """Trackers, the run directory, vLLM, and recipes that have to run first."""
    with report.refusals("recipe.needs"):
        checks.check_starts(recipe)
    with report.refusals("recipe.tracker"):
        checks.check_trackers(recipe)
    with report.refusals("recipe.output_dir"):
        run_dir.check(recipe, Path(recipe.training.output_dir))
