"""One self-contained HTML page about one run, or several overlaid."""

from r1_recipes.report.page import refresh, write

__all__ = ["refresh", "write"]
