"""What :mod:`r1_recipes.preflight` looks at: the recipe, its data, the contract of prompt and rewards, the signal, and the fit."""
