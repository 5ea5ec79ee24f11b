"""Run the extra ``report``: ``python -m r1_recipes.report``."""

from collections.abc import Sequence

from r1_recipes.__main__ import run_extra


def main(argv: Sequence[str] | None = None) -> None:
    run_extra("report", argv)


if __name__ == "__main__":
    main()
