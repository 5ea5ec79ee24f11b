"""Extras: each folder is one, plugs into the core by its ``PLUGIN``
(:mod:`r1_recipes.common.extras`), and can be deleted.
"""
