"""The recipe, read as its run will read it, and what it needs of the machine."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.text import read_yaml
from r1_recipes.runs import run_dir
from r1_recipes.training import checks

_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")


def guess_method(argv: Sequence[str]) -> str:
    """Return ``"grpo"`` if the recipe or the command line names rewards, or the file cannot be read; else ``"sft"``."""
    if any(word.partition("=")[0] == "--reward_funcs" for word in argv):
        return "grpo"
    try:
        keys = read_yaml(Path(argv[0])).keys()
    except RecipeError:
        return "grpo"
    return "grpo" if "reward_funcs" in keys else "sft"


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Hide the launcher's variables from libraries, which would wait for the other processes."""
    hidden = {name: os.environ.pop(name) for name in _LAUNCHER if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def read_recipe(report: Report, argv: Sequence[str], method: str, processes: int) -> Recipe:
    """Read the recipe with the batches of so many processes."""
    from transformers import TrainingArguments

    with report.refusals("recipe.unusable", essential=True), mock.patch.object(TrainingArguments, "world_size", processes):
        recipe = load_recipe(argv, method, checks.check_files, smoke_overrides, processes)
    report.add(OK, "recipe.read", f"{recipe.path} is a {method} recipe of {len(recipe.settings)} keys, and all of them are known")
    for warning in dict.fromkeys(recipe.warnings):
        report.add(WARNING, "recipe.translated", warning)
    report.facts["recipe"] = {"path": str(recipe.path), "method": method, "settings": recipe.settings}
    return recipe


def check_surroundings(report: Report, recipe: Recipe, processes: int) -> None:
    """Check what rewards need of the machine, trackers, the run directory, sampling, and vLLM if the recipe uses it."""
    with report.refusals("recipe.needs"):
        checks.check_rewards(recipe)
    with report.refusals("recipe.tracker"):
        checks.check_trackers(recipe)
    with report.refusals("recipe.output_dir"):
        run_dir.check(recipe, Path(recipe.training.output_dir))
    with report.refusals("fit.vllm"):
        checks.check_generation_backend(recipe)
        if getattr(recipe.training, "use_vllm", False):
            check_vllm(report)
    if recipe.method == "grpo":  # reading the recipe refuses a batch that groups do not fill
        batch, group = recipe.training.generation_batch_size, recipe.training.num_generations
        report.add(OK, "fit.batch", f"{batch} completions a batch over {processes} processes are {batch // group} groups of {group}")


def check_vllm(report: Report) -> None:
    """Show what TRL says of the installed vLLM."""
    from trl.import_utils import is_vllm_available

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_vllm_available()
    refused = [f"{warning.message} Install the tested one: {install_hint('vllm')}" for warning in caught if warning.category is UserWarning]
    said = refused[0] if refused else "the installed vLLM is in the range that this TRL supports"
    report.add(ERROR if refused else OK, "fit.vllm", said)
