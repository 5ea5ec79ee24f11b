"""Measure models: accuracy with confidence intervals, and tables."""
