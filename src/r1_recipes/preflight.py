"""Run the extra ``preflight``: ``python -m r1_recipes.preflight``."""

from r1_recipes.__main__ import run_extra

if __name__ == "__main__":
    run_extra("preflight")
