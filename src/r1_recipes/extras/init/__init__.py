"""Write a recipe for your data file. Uses helpers of the extra ``preflight``."""
