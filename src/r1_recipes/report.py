"""Run ``python -m r1_recipes.report``."""

from r1_recipes.extras.report.__main__ import main

if __name__ == "__main__":
    main()
