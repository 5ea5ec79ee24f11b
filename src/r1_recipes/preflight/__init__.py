"""Examine a recipe before its run: recipe, data, contract of prompt and rewards, signal, and fit."""
