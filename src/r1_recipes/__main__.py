"""``r1-recipes COMMAND …``, or ``python -m r1_recipes COMMAND …``: every command by its name."""

import runpy
import sys
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.files import SHIPPED, find_yaml
from r1_recipes.common.yaml_text import read_yaml

COMMANDS = {
    "init": "look at a data file, and write a recipe for it",
    "grpo": "train with rewards",
    "sft": "train on worked answers",
    "distill": "train on a teacher's distribution",
    "reward": "train a reward model on pairs of answers",
    "generate": "make a data set from a model's answers",
    "evaluate": "judge checkpoints on rows held out",
    "pipeline": "several recipes in a row, and one table",
    "preflight": "what a run would do, before it starts",
    "report": "a run as one page",
    "adapters": "merge a run's adapters into its model",
    "vllm_server": "serve a recipe's model for GRPO",
}


def main() -> None:
    """Run a command, list the commands or what is shipped; exit with 2 if there is none of that name."""
    name, *words = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(f"r1_recipes.{name}", run_name="__main__", alter_sys=True)
    elif name == "recipes":
        with console.reported_errors():
            console.say(_recipes(*map(Path, words[:1])))
    else:
        lines = "\n".join(f"  {command:<15}{meaning}" for command, meaning in COMMANDS.items())
        usage = "usage: r1-recipes COMMAND RECIPE [--key value ...]      or: python -m r1_recipes.COMMAND"
        more = "  recipes        list the recipes that are shipped; recipes NAME prints one"
        console.say(f"{usage}\n\n{lines}\n{more}\n\nEach says more with --help; docs/recipes.md has every key.")
        raise SystemExit(0 if name in ("-h", "--help") else 2)


def _recipes(name: Path | None = None) -> str:
    if name is not None:
        read_yaml(name)  # raises if there is none
        return find_yaml(name).read_text(encoding="utf-8").rstrip("\n")
    files = {path: str(path.relative_to(SHIPPED).with_suffix("")).removeprefix("recipes/") for path in sorted(SHIPPED.glob("*/**/*.yaml"))}
    return "\n".join(f"{name:<44} {path.read_text(encoding='utf-8').partition(chr(10))[0].strip('# ')}" for path, name in files.items())


if __name__ == "__main__":
    main()
