"""List the shipped recipes: ``r1-recipes recipes [WORD ...]``."""

import argparse
from collections.abc import Sequence

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import SHIPPED
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.extras.catalog.header import hardware_of, header_of, status_of

_TITLES = ("NAME", "MODEL", "HARDWARE", "STATUS", "WHAT IT IS")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. Exit with 2 if no recipe has the words."""
    parser = argparse.ArgumentParser(
        prog="r1-recipes recipes",
        description="List the shipped recipes, Accelerate configurations and pipelines. measured: "
        "trained by this project; reported: by others; unmeasured: neither.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="list only lines that have every WORD"
    )
    with console.reported_errors():
        words = parser.parse_args(argv).words
        rows = [row for row in _rows() if _has(row, words)]
        if not rows:
            raise RecipeError(
                f"recipes: no line has {' and '.join(map(repr, words))}. Fix: use fewer words, or "
                "none"
            )
        console.say(_table([_TITLES, *rows]))


def _rows() -> list[tuple[str, ...]]:
    """Return a line per file: the recipes, then what else is shipped."""
    rows = []
    for path in sorted(SHIPPED.glob("*/**/*.yaml")):
        name = str(path.relative_to(SHIPPED).with_suffix("")).removeprefix("recipes/")
        header = header_of(path)
        model = str(read_yaml(path).get("model_name_or_path", "")).removeprefix("embedded:")
        if not model.startswith("outputs/"):  # the model of another recipe
            model = model.rpartition("/")[2]
        rows.append((name, model, hardware_of(header), status_of(header), header["title"]))
    return sorted(rows, key=lambda row: not row[3])


def _has(row: tuple[str, ...], words: Sequence[str]) -> bool:
    text = " ".join(row).lower()
    return all(word.lower() in text for word in words)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


if __name__ == "__main__":
    main()
