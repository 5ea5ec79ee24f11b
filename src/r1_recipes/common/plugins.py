"""Look up classes and functions by name.

A name is registered by the package or by an extra, or is the user's ``my_module:my_name`` or
``my_file.py:my_name``, which needs no entry here.
"""

import importlib
import os
import pkgutil
import sys
from collections import UserDict
from pathlib import Path
from typing import Any, TypeVar

from r1_recipes.common.errors import RecipeError, own_code, unknown_name

T = TypeVar("T")

# Every name of an extra that a recipe or a command line may use, and where it is defined: a
# ``module:attribute`` below ``r1_recipes.extras``, imported when it is used.
NAMES: dict[str, dict[str, str]] = {
    "reward": {
        "answer_contains": "tutorials:answer_contains",
        "answer_match": "choices:answer_match",
        "binary_code": "code:binary_code",
        "choice_match": "choices:choice_match",
        "code": "code:code",
        "code_format": "code:code_format",
        "countdown": "countdown:countdown",
        "exact_match": "choices:exact_match",
        "format_partial": "tutorials:format_partial",
        "integer_answer": "tutorials:integer_answer",
        "xml_count": "tutorials:xml_count",
        "xml_soft_format": "tutorials:xml_soft_format",
        "xml_strict_format": "tutorials:xml_strict_format",
    },
    "mapper": {
        "countdown": "countdown:countdown_row",
        "environment": "agents.rows:environment_row",
        "image_question": "images:image_question",
        "multiple_choice": "choices:multiple_choice",
        "openthoughts": "datasets:openthoughts",
        "r1_distill_sft": "datasets:r1_distill_sft",
        "safe_rlhf": "datasets:safe_rlhf",
        "sums": "sums:sums",
        "verifiable_code": "code:verifiable_code",
        "verl": "datasets:verl",
    },
    "tool": {
        "calculator": "tools:calculator",
        "python": "tools:python",
    },
    "environment": {},
    # The first part of dataset_name, and what makes its rows: (rest, split, task_config) -> Dataset
    "dataset": {
        "countdown": "countdown:countdown_rows",
        "environment": "agents.rows:environment_rows",
        "sums": "sums:sums_rows",
    },
    # A model_name_or_path, and what returns its folder
    "model": {"embedded:SmolLM2-135M-Instruct": "demo:smollm2_checkpoint"},
}


def load(kind: str, name: str) -> Any:
    return pkgutil.resolve_name(f"r1_recipes.extras.{NAMES[kind][name]}")


# Where files and modules of the user are looked for: the working directory, and the folder of the
# recipe that was read last.
_recipe_folder: list[Path] = []


class Registry(UserDict[str, T]):
    """Map names of one kind to classes or functions.

    What an extra has under its name is imported when it is looked up.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(dict.fromkeys(NAMES[kind]))  # type: ignore[arg-type]
        self.kind = kind

    def __getitem__(self, name: str) -> T:
        if self.data[name] is None:
            self.data[name] = load(self.kind, name)
        return self.data[name]

    def resolve(self, name: str) -> T:
        """Return what a name stands for: a registered name, or the user's own object.

        The user's object is written ``my_module:my_name`` or ``my_file.py:my_name``. Raise
        RecipeError if the name is unknown.
        """
        if name in self:
            return self.data[name] or self[name]
        if ":" in name:
            return import_object(name, self.kind)
        fix = f"{name}:NAME" if name.endswith(".py") else f"my_module:my_{self.kind}"
        unknown = unknown_name(self.kind, name, self)
        raise RecipeError(f"{unknown} To name your own {self.kind}, write a colon: {fix}.")


def look_beside(recipe: Path) -> None:
    """Search the recipe's folder for files and modules of the user, after the working directory."""
    _recipe_folder[:] = [recipe.parent.resolve()]


def import_object(path: str, kind: str) -> Any:
    """Import ``my_module:my_name`` or ``my_file.py:my_name``.

    Search the Python path, the working directory and the recipe's folder. Raise RecipeError if the
    module, the file or the name is missing, or if the import fails. The message names the line.
    """
    name, _, attribute = path.rpartition(":")
    where, folders, file = f"{kind} {path!r}", [Path.cwd(), *_recipe_folder], None
    searched = " or ".join(map(str, folders))
    if name.endswith(".py") or "/" in name:
        own = os.path.expanduser(name.removesuffix(".py") + ".py")
        file = next((folder / own for folder in folders if (folder / own).is_file()), None)
        if file is None:
            raise RecipeError(f"{where}: no file {own!r} in {searched}")
        name, folders = file.stem, [file.parent.resolve()]
    # The folders come last, so that a json.py or trl.py in them does not hide a library. They are
    # on the path because worker processes import the module by its name.
    sys.path += [str(folder) for folder in folders if str(folder) not in sys.path]
    importlib.invalidate_caches()
    with own_code(f"{where}: the import", f"correct it, or name a module in {searched}"):
        module = importlib.import_module(name)
    found = getattr(module, "__file__", None) or "Python"
    if file is not None and Path(found).resolve() != file.resolve():
        raise RecipeError(f"{where}: {found} has the same name. Fix: another name for {file}")
    if not hasattr(module, attribute):
        names = (each for each in vars(module) if not each.startswith("_"))
        raise RecipeError(f"{where}: {unknown_name(f'name in {found}', attribute, names)}")
    return getattr(module, attribute)
