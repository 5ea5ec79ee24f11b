"""Run any command: ``r1-recipes COMMAND …``, or ``python -m r1_recipes COMMAND …``."""

import itertools
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import r1_recipes
from r1_recipes.common import console, extras
from r1_recipes.common.errors import RecipeError, nearest
from r1_recipes.common.files import SHIPPED, find_yaml
from r1_recipes.common.yaml_text import read_yaml

_CORE = {
    "grpo": "train with rewards",
    "sft": "train on worked answers",
    "distill": "train on a teacher's distribution",
    "reward": "train a reward model on pairs of answers",
    "generate": "make a data set from a model's answers",
    "evaluate": "measure the accuracy of models on held-out rows",
    "pipeline": "run several recipes in a row and print one table",
    "adapters": "merge a run's adapters into its model",
    "vllm_server": "serve a recipe's model for GRPO",
}


def commands() -> dict[str, tuple[str, str]]:
    """Return every command with the module that runs it and what it does."""
    core = {name: (f"r1_recipes.{name}", meaning) for name, meaning in _CORE.items()}
    return core | extras.installed()["command"]


_SYNONYMS = {
    "train": "grpo",
    "finetune": "sft",
    "eval": "evaluate",
    "merge": "adapters",
    "serve": "vllm_server",
    "list": "recipes",
}


def main() -> None:
    """Run a command, list the commands, or list and print shipped recipes.

    Exit with 2 if the command does not exist.
    """
    name, *words = sys.argv[1:] or ["--help"]
    with console.reported_errors():
        available = commands()
    if name in available:
        del sys.argv[1]
        runpy.run_module(available[name][0], run_name="__main__", alter_sys=True)
        return
    with console.reported_errors():
        if name == "--version":
            console.say(f"r1-recipes {r1_recipes.__version__}")
        elif name == "recipes" and "--help" not in words:
            console.say(_recipes(*map(Path, words[:1])))
        elif name in ("-h", "--help", "recipes"):
            console.say(_usage())
        else:
            names = [*available, "recipes"]
            suggestion: str | None
            if name.endswith((".yaml", ".yml")):
                suggestion = f"grpo {name}"
            else:
                suggestion = _SYNONYMS.get(name.lower()) or next(
                    iter(nearest(name.lower(), names)), None
                )
            hint = f" Did you mean r1-recipes {suggestion}?" if suggestion else ""
            raise RecipeError(
                f"unknown command {name!r}.{hint} Available: {', '.join(names)}. For help: "
                f"r1-recipes --help"
            )


def run_extra(name: str, argv: Sequence[str] | None = None) -> None:
    """Run the command of an extra, for ``python -m r1_recipes.NAME``."""
    with console.reported_errors():
        command = extras.installed()["command"].get(name)
        if command is None:
            raise RecipeError(
                f"{name}: needs the extra {name!r}, which is not installed. Fix: install all of "
                "r1-recipes"
            )
    extras.load(f"{command[0]}.__main__").main(argv)


def _usage() -> str:
    lines = "\n".join(f"  {command:<15}{meaning}" for command, (_, meaning) in commands().items())
    usage = (
        "usage: r1-recipes COMMAND RECIPE [--key value ...]      or: python -m r1_recipes.COMMAND"
    )
    more = "  recipes        list the shipped recipes; recipes NAME prints one of them"
    return (
        f"{usage}\n\n{lines}\n{more}\n\nEvery command explains itself with --help. "
        "docs/recipes.md has every key."
    )


def _recipes(name: Path | None = None) -> str:
    if name:
        read_yaml(name)  # raises if there is none
        return find_yaml(name).read_text(encoding="utf-8").rstrip("\n")
    files = {
        path: str(path.relative_to(SHIPPED).with_suffix("")).removeprefix("recipes/")
        for path in sorted(SHIPPED.glob("*/**/*.yaml"))
    }
    return "\n".join(f"{name:<44} {_title(path)}" for path, name in files.items())


def _title(path: Path) -> str:
    """Return the first sentence of a file's header, which may span several lines."""
    lines = [line.strip("# ") for line in path.read_text(encoding="utf-8").splitlines()]
    header = " ".join(itertools.takewhile(bool, lines))
    return re.split(r"(?<=[.])(?<!\bDr[.])\s+(?=[A-Z])", header)[0]


if __name__ == "__main__":
    main()
