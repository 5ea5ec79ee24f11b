"""The table of task-specific checkers, which judge rows that have a ``scorer`` column instead of a gold.

A task registers itself when its module is imported. Data names a key of this table; it cannot name a module.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import NamedTuple


class Compare(NamedTuple):
    """Leave the verdict to ``grade``, with this gold."""

    gold: str


class Run(NamedTuple):
    """Leave the verdict to a worker: its code is trusted, its input is not.

    Attributes:
        function: ``module:function``, returning a bool, or a text that says what is wrong with the scorer.
        arguments: JSON values.
    """

    function: str
    arguments: tuple


Scorer = Callable[[str, str | None], bool | Compare | Run]
"""Judge an answer (``None``: there is none) by a row's scorer column. Raise ``ValueError`` if the column is wrong, whatever the answer."""

SCORERS: dict[str, Scorer] = {}


def register_scorer(key: str) -> Callable[[Scorer], Scorer]:
    """Register the checker of scorer columns ``{"key": …}``."""

    def register(scorer: Scorer) -> Scorer:
        SCORERS[key] = scorer
        return scorer

    return register


@functools.lru_cache(4096)
def scorer_of(spec: str) -> Scorer:
    """Return the checker that a scorer column names.

    Raises:
        ValueError: the column is no JSON object, or names none.
    """
    try:
        parsed = json.loads(spec)
    except (ValueError, TypeError, RecursionError):
        parsed = None
    key = next((key for key in SCORERS if key in parsed), None) if isinstance(parsed, dict) else None
    if key is None:
        raise ValueError(f"scorer: a scorer must be JSON {{one of {sorted(SCORERS)}: …}}, got {spec[:80]!r}")
    return SCORERS[key]
