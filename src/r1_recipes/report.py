"""Run the extra ``report``: ``python -m r1_recipes.report``."""

from collections.abc import Sequence

from r1_recipes.common import extras
from r1_recipes.common.console import reported_errors


def main(argv: Sequence[str] | None = None) -> None:
    with reported_errors():
        extras.needed("report", "report").main(argv)


if __name__ == "__main__":
    main()
