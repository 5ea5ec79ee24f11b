# python -m r1_recipes.report
from r1_recipes.extras.report import main

if __name__ == "__main__":
    main()
