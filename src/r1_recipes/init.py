"""Run the extra ``init``: ``python -m r1_recipes.init``."""

from r1_recipes.__main__ import run_extra

if __name__ == "__main__":
    run_extra("init")
