"""A training run, from recipe to saved model."""
