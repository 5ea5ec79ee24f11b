"""Checkers of rows that have a ``scorer`` column instead of a gold, by the key that the column
names.

Data names a key; it cannot name a module. An answer is hostile to a checker, and so is a row of a
file.
"""

import functools
import json
from collections.abc import Callable

from r1_recipes.common.plugins import Registry
from r1_recipes.verification.pool import Task

Scorer = Callable[[str, str | None], bool | Task]
"""Judge an answer (``None``: there is none) by a row's scorer column, or name the function that
judges it in a worker.

Raise ``ValueError`` if the column is wrong, whatever the answer; such a function returns a text for
it.
"""

SCORERS: Registry[Scorer] = Registry("scorer")


def register_scorer(key: str) -> Callable[[Scorer], Scorer]:
    """Return a decorator that registers the checker of scorer columns ``{"key": …}``.

    Args:
        key: The key that the column names.
    """
    return functools.partial(SCORERS.register, key)


@functools.lru_cache(4096)
def scorer_of(spec: str) -> Scorer:
    """Return the checker that a scorer column names; ``ValueError``: it is no JSON object, or names
    none.
    """
    try:
        parsed = json.loads(spec)
    except (ValueError, TypeError, RecursionError):
        parsed = None
    key = (
        next((key for key in SCORERS if key in parsed), None) if isinstance(parsed, dict) else None
    )
    if key is None:
        raise ValueError(
            f"scorer: a scorer must be JSON {{one of {sorted(SCORERS)}: …}}, got {spec[:80]!r}"
        )
    return SCORERS[key]
