"""List the shipped recipes, and print one of them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import SHIPPED, find_yaml
from r1_recipes.common.yaml_text import read_yaml


def main(argv: Sequence[str] | None = None) -> None:
    """List the shipped files by name, each with its first line.

    Exit with 2 if no line has the words.
    """
    parser = argparse.ArgumentParser(
        prog="r1-recipes recipes",
        description="List the shipped recipes, Accelerate configurations and pipelines.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="list only lines that have every WORD"
    )
    with console.reported_errors():
        words = parser.parse_args(argv).words
        files = sorted(SHIPPED.glob("*/**/*.yaml"), key=lambda path: (len(path.parts), path))
        names = [_name(path) for path in files]
        width = max(map(len, names))
        lines = [
            f"{name:<{width}}  {path.open(encoding='utf-8').readline().strip('# ').rstrip()}"
            for name, path in zip(names, files, strict=True)
        ]
        found = [line for line in lines if all(word.lower() in line.lower() for word in words)]
        if not found:
            raise RecipeError(
                f"recipes: no line has {' and '.join(map(repr, words))}. Fix: use fewer words, or "
                "none"
            )
        console.say("\n".join(found))


def _name(path: Path) -> str:
    """Return the name by which every command finds a shipped file."""
    return str(path.relative_to(SHIPPED).with_suffix("")).removeprefix("recipes/")


def show(argv: Sequence[str] | None = None) -> None:
    """Print a shipped recipe. Exit with 2 if there is no such recipe."""
    parser = argparse.ArgumentParser(
        prog="r1-recipes show",
        description="Print a recipe, an Accelerate configuration or a pipeline.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "name", type=Path, help="a name that r1-recipes recipes lists, or a file of your own"
    )
    with console.reported_errors():
        name = parser.parse_args(argv).name
        read_yaml(name)  # raises if there is none
        console.say(find_yaml(name).read_text(encoding="utf-8").rstrip("\n"))
