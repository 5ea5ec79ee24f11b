"""Run the extra ``report``: ``python -m r1_recipes.report``."""

from r1_recipes.__main__ import run_extra

if __name__ == "__main__":
    run_extra("report")
