"""Write the report page of one run, or of several runs for comparison.

``python -m r1_recipes.report RUN_DIR [RUN_DIR …] [--output FILE.html]``
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common.console import reported_errors, say
from r1_recipes.extras.report.page import REPORT_FILE, write


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Exit with 2 if a run directory is missing or the page cannot be written."""
    parser = argparse.ArgumentParser(
        prog="python -m r1_recipes.report", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument(
        "run_dir", type=Path, nargs="+", help="output_dir of a run; name several to compare them"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help=f"file of the page (default: {REPORT_FILE} in the first run directory)",
    )
    with reported_errors():
        options = parser.parse_args(argv)
        path = write(options.run_dir, options.output)
        say(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
