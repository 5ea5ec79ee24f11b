"""Print a shipped recipe: ``r1-recipes show NAME``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.files import find_yaml
from r1_recipes.common.yaml_text import read_yaml


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. Exit with 2 if there is no such recipe."""
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


if __name__ == "__main__":
    main()
