"""Run ``python -m r1_recipes.init``."""

from r1_recipes.extras.init.__main__ import main

if __name__ == "__main__":
    main()
