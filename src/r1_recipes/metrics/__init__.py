"""Scores of models: accuracy with intervals, tables."""
