"""Models: tokenizers, weights, and tiny models for ``--smoke``."""
