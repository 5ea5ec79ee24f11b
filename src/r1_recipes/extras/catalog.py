"""List the shipped recipes, and print one of them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.files import SHIPPED, find_yaml


def main(argv: Sequence[str] | None = None) -> None:
    """List the shipped recipes, Accelerate configurations and pipelines."""
    parser = argparse.ArgumentParser("r1-recipes recipes", description=main.__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="list only lines with every WORD")
    with console.reported_errors():
        words = parser.parse_args(argv).words
        files = [*SHIPPED.glob("*/**/*.yaml"), *SHIPPED.glob("*/**/*.sh")]
        lines = []
        for path in sorted(files, key=lambda path: (len(path.parts), path)):
            # The name by which every command finds the file
            name = str(path.relative_to(SHIPPED)).removeprefix("recipes/").removesuffix(".yaml")
            comment = path.read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]
            lines.append(f"{name:<40}  {comment}")
        found = (line for line in lines if all(word.lower() in line.lower() for word in words))
        console.say("\n".join(found))


def show(argv: Sequence[str] | None = None) -> None:
    """Print a recipe, an Accelerate configuration or a pipeline."""
    parser = argparse.ArgumentParser("r1-recipes show", description=show.__doc__)
    parser.add_argument("name", type=Path, help="what r1-recipes recipes lists, or your own file")
    with console.reported_errors():
        path = find_yaml(parser.parse_args(argv).name)
        console.say(path.read_text(encoding="utf-8").rstrip("\n"))
