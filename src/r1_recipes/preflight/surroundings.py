"""The recipe, read as its run will read it, and what it needs of the machine."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from r1_recipes.common.errors import BatchError, RecipeError, install_hint
from r1_recipes.common.masking import masked_text
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.load import Recipe
from r1_recipes.recipe.text import read_yaml
from r1_recipes.runs import run_dir
from r1_recipes.training import checks, trackers

_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
_OTHER_METHODS = {"teacher_model_name_or_path": "distill", "num_samples": "evaluate", "backend": "generate", "keep": "generate"}


def guess_method(argv: Sequence[str]) -> str:
    """Return ``"grpo"`` if the recipe or the command line names rewards, or the file cannot be read; else ``"sft"``.

    Raises:
        RecipeError: it is a recipe for something else than training with GRPO or SFT.
    """
    if any(word.partition("=")[0] == "--reward_funcs" for word in argv):
        return "grpo"
    try:
        keys = read_yaml(Path(argv[0])).keys()
    except RecipeError:
        return "grpo"
    for key, other in _OTHER_METHODS.items():
        if key in keys:
            raise RecipeError(f"{argv[0]}: preflight reads recipes for grpo and sft; this one is for {other} (it has {key})")
    return "grpo" if "reward_funcs" in keys else "sft"


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Hide the launcher's variables from libraries, which would wait for the other processes."""
    hidden = {name: os.environ.pop(name) for name in _LAUNCHER if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def read_recipe(report: Report, argv: Sequence[str], method: str, processes: int) -> Recipe | None:
    """Read the recipe with the batches of so many processes; ``None`` if it cannot be used, which is then in the report."""
    from transformers import TrainingArguments

    try:
        with mock.patch.object(TrainingArguments, "world_size", processes):
            recipe = load_recipe(argv, method, checks.check_files, smoke_overrides, processes)
    except RecipeError as error:
        report.add(ERROR, "fit.batch" if isinstance(error, BatchError) else "recipe.unusable", masked_text(str(error)))
        return None
    report.add(OK, "recipe.read", f"{recipe.path} is a {method} recipe of {len(recipe.settings)} keys, and all of them are known")
    for warning in dict.fromkeys(recipe.warnings):
        report.add(WARNING, "recipe.translated", warning)
    report.facts["recipe"] = {"path": str(recipe.path), "method": method, "settings": recipe.settings}
    return recipe


def check_surroundings(report: Report, recipe: Recipe) -> None:
    """Check what rewards need of the machine, trackers, and the run directory."""
    with report.refusals("recipe.needs"):
        checks.check_rewards(recipe)
    with report.refusals("recipe.tracker"):
        trackers.check_trackers(recipe)
    with report.refusals("recipe.output_dir"):
        run_dir.check(recipe, Path(recipe.training.output_dir))


def check_batch(report: Report, recipe: Recipe, processes: int) -> None:
    """Say how many groups a batch has; reading the recipe refuses one that groups do not fill."""
    batch, group = recipe.training.generation_batch_size, recipe.training.num_generations
    report.add(OK, "fit.batch", f"{batch} completions a batch over {processes} processes are {batch // group} groups of {group}")
    share = batch // processes
    if "reward_model" in recipe.script.reward_funcs and share % group:
        report.add(
            WARNING,
            "fit.groups",
            f"each of {processes} processes has {share} completions, no multiple of {group}, so groups are torn, and reward_model compares "
            f"parts of them; make per_device_train_batch_size x steps a multiple of {group}",
        )


def check_generation(report: Report, recipe: Recipe) -> None:
    """Check sampling, and vLLM if the recipe uses it."""
    with report.refusals("fit.vllm"):
        checks.check_generation_backend(recipe)
        if getattr(recipe.training, "use_vllm", False):
            check_vllm(report)


def check_vllm(report: Report) -> None:
    """Show what TRL says of the installed vLLM."""
    from trl.import_utils import is_vllm_available

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_vllm_available()
    refused = [str(warning.message) for warning in caught if warning.category is UserWarning]
    if refused:
        report.add(ERROR, "fit.vllm", f"{refused[0]} Install the tested one: {install_hint('vllm')}")
    else:
        report.add(OK, "fit.vllm", "the installed vLLM is in the range that this TRL supports")
