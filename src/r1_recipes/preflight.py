"""Run the extra ``preflight``: ``python -m r1_recipes.preflight``."""

from collections.abc import Sequence

from r1_recipes.__main__ import run_extra


def main(argv: Sequence[str] | None = None) -> None:
    run_extra("preflight", argv)


if __name__ == "__main__":
    main()
