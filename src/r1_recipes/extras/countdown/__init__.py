"""Countdown puzzles: rows, mapper, checker and reward."""
