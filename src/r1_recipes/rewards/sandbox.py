"""Deprecated: use :mod:`r1_recipes.extras.code.sandbox`. Version 0.4 removes this module."""

import warnings
from typing import Any

from r1_recipes.common import extras


def __getattr__(name: str) -> Any:
    warnings.warn(
        "r1_recipes.rewards.sandbox has moved to r1_recipes.extras.code.sandbox",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(extras.load("r1_recipes.extras.code.sandbox"), name)
