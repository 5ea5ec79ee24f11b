"""Run any command: ``r1-recipes COMMAND …``, or ``python -m r1_recipes COMMAND …``."""

import runpy
import sys
from collections.abc import Sequence

import r1_recipes
from r1_recipes.common import console, extras
from r1_recipes.common.errors import RecipeError, nearest

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
    """Run a command, or list the commands.

    Exit with 2 if the command does not exist.
    """
    name = sys.argv[1] if sys.argv[1:] else "--help"
    with console.reported_errors():
        available = commands()
    if name in available:
        del sys.argv[1]
        runpy.run_module(available[name][0], run_name="__main__", alter_sys=True)
        return
    with console.reported_errors():
        if name == "--version":
            console.say(f"r1-recipes {r1_recipes.__version__}")
        elif name in ("-h", "--help"):
            console.say(_usage())
        else:
            close = nearest(name.lower(), available)
            if name.endswith((".yaml", ".yml")):
                close = [f"grpo {name}"]
            elif name.lower() in _SYNONYMS:
                close = [_SYNONYMS[name.lower()]]
            hint = f" Did you mean r1-recipes {close[0]}?" if close else ""
            raise RecipeError(
                f"unknown command {name!r}.{hint} Available: {', '.join(available)}. For help: "
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
    lines = [f"  {command:<15}{meaning}" for command, (_, meaning) in commands().items()]
    return "\n".join(
        [
            "usage: r1-recipes COMMAND RECIPE [--key value ...]      "
            "or: python -m r1_recipes COMMAND\n",
            *lines,
            "\nEvery command explains itself with --help. docs/recipes.md has every key.",
        ]
    )


if __name__ == "__main__":
    main()
