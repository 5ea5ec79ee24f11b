# python -m r1_recipes.preflight
from r1_recipes.extras.preflight.__main__ import main

if __name__ == "__main__":
    main()
