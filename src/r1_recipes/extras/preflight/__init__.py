"""Check a recipe before a run: can it learn, and does it fit?

The checks of tools and environments need the extra ``agents``.
"""
