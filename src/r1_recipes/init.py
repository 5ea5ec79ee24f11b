# python -m r1_recipes.init
from r1_recipes.extras.init import main

if __name__ == "__main__":
    main()
