"""The recipe, read as its run will read it, and what it needs of the machine."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from r1_recipes.common.errors import BatchError, RecipeError, install_hint
from r1_recipes.common.masking import masked_text
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.preflight.findings import Report, listed
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.keys import argument_types
from r1_recipes.recipe.load import Recipe
from r1_recipes.recipe.text import read_yaml
from r1_recipes.runs import run_dir
from r1_recipes.training import checks

_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
_OTHER_METHODS = {"teacher_model_name_or_path": "distill", "num_samples": "evaluate", "backend": "generate", "keep": "generate"}


def guess_method(argv: Sequence[str]) -> str:
    """``"grpo"`` if the recipe or the command line names rewards, else ``"sft"``; of a file that cannot be read, ``"grpo"``.

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
            recipe = load_recipe(argv, method, smoke=smoke_overrides, world_size=processes)
    except RecipeError as error:
        report.error("fit.batch" if isinstance(error, BatchError) else "recipe.unusable", masked_text(str(error)))
        return None
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
    """Check recipes that have to run first, trackers, and the run directory."""
    with report.refusals("recipe.needs"):
        checks.check_rewards(recipe)
    with report.refusals("recipe.tracker"):
        checks.check_trackers(recipe)
    with report.refusals("recipe.output_dir"):
        run_dir.check(recipe, Path(recipe.training.output_dir))


def check_versions(report: Report, recipe: Recipe) -> None:
    """Compare installed packages with what this package supports, and with the tested set in ``constraints.txt``."""
    supported: dict[str, Any] = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # it runs from a folder without being installed
        supported = _requirements(importlib.metadata.requires("r1-recipes") or [])
    installed = {name: _version(name) for name in [*supported, "vllm"]}
    report.facts["versions"] = {name: version for name, version in installed.items() if version}
    outside = _outside(installed, supported, "supported")
    if outside:
        report.error("fit.versions", f"{len(outside)} packages are not as supported: {listed(outside)}; {install_hint('dev')}")
    folders = [Path.cwd(), *recipe.path.resolve().parents]
    path = next((folder / "constraints.txt" for folder in folders if (folder / "constraints.txt").is_file()), None)
    pins = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1].isalnum()] if path else []
    tested = {name: pin for name, pin in _requirements(pins).items() if installed.get(name)}
    if other := _outside(installed, tested, "tested"):
        report.warn("fit.constraints", f"{len(other)} versions are not those of {path}, with which the tests ran: {listed(other)}")
    if not outside and not other:
        shown = [f"{name} {version}" for name, version in report.facts["versions"].items()]
        report.ok("fit.versions", f"{listed(shown, 20)}: as {'tested' if tested else 'supported'}")
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
        report.error("fit.vllm", f"{refused[0]} Install the tested one: {install_hint('vllm')}")
    else:
        report.ok("fit.vllm", f"vLLM {_version('vllm')} is in the range that this TRL supports")


def _requirements(lines: Iterable[str]) -> dict[str, Any]:
    """Version specifiers by package, of the requirements that apply on this machine."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    read = map(Requirement, lines)
    return {canonicalize_name(r.name): r.specifier for r in read if r.marker is None or r.marker.evaluate({"extra": ""})}


def _outside(installed: dict[str, str | None], wanted: dict[str, Any], kind: str) -> list[str]:
    from packaging.version import Version

    return [
        f"{name} {installed[name] or 'is missing'} ({kind}: {specifier})"
        for name, specifier in wanted.items()
        # A local build such as 2.13.0+cu130 is that version.
        if installed[name] is None or not specifier.contains(Version(installed[name]).public, prereleases=True)
    ]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
