"""Run any command: ``r1-recipes COMMAND …``, or ``python -m r1_recipes COMMAND …``."""

import pkgutil
import sys

import r1_recipes
from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, unknown_name

# Name -> where it is defined, and what it does.
COMMANDS = {
    "grpo": ("grpo:main", "train with rewards"),
    "sft": ("sft:main", "train on worked answers"),
    "distill": ("distill:main", "train on a teacher's distribution"),
    "reward": ("reward:main", "train a reward model on pairs of answers"),
    "generate": ("generate:main", "make a data set from a model's answers"),
    "evaluate": ("evaluate:main", "measure the accuracy of models on held-out rows"),
    "adapters": ("adapters:main", "merge a run's adapters into its model"),
    "vllm_server": ("vllm_server:main", "serve a recipe's model for GRPO"),
    "demo": ("extras.demo:main", "train a small model on two CPU cores, in ten minutes"),
    "init": ("init:main", "read a data file, and write a recipe for it"),
    "preflight": ("preflight:main", "check a recipe before a run: can it learn, does it fit?"),
    "recipes": ("extras.catalog:main", "list the shipped recipes: all, or those with a word"),
    "report": ("report:main", "write the report page of a run"),
    "show": ("extras.catalog:show", "print a shipped recipe, to copy or to read"),
}
USAGE = """\
usage: r1-recipes COMMAND RECIPE [--key value ...]      or: python -m r1_recipes COMMAND

{}

Every command explains itself with --help. docs/keys.md has every key."""


def main() -> None:
    """Run a command, or list the commands. Exit with 2 if the command does not exist."""
    name = sys.argv[1] if sys.argv[1:] else "--help"
    with console.reported_errors():
        if name == "--version":
            console.say(f"r1-recipes {r1_recipes.__version__}")
        elif name in ("-h", "--help"):
            lines = [f"  {command:<15}{meaning}" for command, (_, meaning) in COMMANDS.items()]
            console.say(USAGE.format("\n".join(lines)))
        elif name not in COMMANDS:
            raise RecipeError(unknown_name("command", name, COMMANDS))
    if name in COMMANDS:
        del sys.argv[1]
        pkgutil.resolve_name(f"r1_recipes.{COMMANDS[name][0]}")()


if __name__ == "__main__":
    main()
