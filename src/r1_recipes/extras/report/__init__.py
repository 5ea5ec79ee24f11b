"""Write the report page of a run."""

from r1_recipes.extras.report.page import REPORT_FILE, refresh

__all__ = ["REPORT_FILE", "refresh"]
