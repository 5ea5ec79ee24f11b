"""Train a run, from recipe to saved model."""
