"""Tasks with rows and a checker of their own."""
