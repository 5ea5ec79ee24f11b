"""Countdown puzzles: rows, mapper, checker and reward.

The tool ``calculator`` needs the extra ``agents``.
"""
