"""Models: tokenizers, weights, and small ones for tests."""
