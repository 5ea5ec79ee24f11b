"""Extras. Each folder is an extra that can be deleted.

An extra registers its names in ``PLUGIN``, which :mod:`r1_recipes.common.extras` reads.
"""
