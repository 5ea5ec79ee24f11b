"""Tasks with rows, checker and reward of their own."""
