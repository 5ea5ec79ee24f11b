"""The registry of checkers for rows that have a ``scorer`` column instead of a reference answer.

The column names a key of the registry and never a module, because data files are not trusted.
Checkers must expect hostile answers and hostile rows.
"""

import functools
import json
from collections.abc import Callable

from r1_recipes.common.plugins import Registry
from r1_recipes.verification.pool import Task

Scorer = Callable[[str, str | None], bool | Task]
"""A function of a row's scorer column and an answer, or ``None`` if there is no answer.

It returns the verdict, or the task of a function that judges the answer in a worker. It raises
``ValueError`` if the column is not valid. A function in a worker returns an error text instead.
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
    """Return the checker that a scorer column names. Raise ``ValueError`` if the column is not a
    JSON object with a registered key.
    """
    try:
        parsed = json.loads(spec)
    except (ValueError, TypeError, RecursionError):
        parsed = None
    keys = parsed if isinstance(parsed, dict) else {}
    for key in SCORERS:
        if key in keys:
            return SCORERS[key]
    raise ValueError(
        f"scorer: a scorer must be JSON {{one of {sorted(SCORERS)}: …}}, got {spec[:80]!r}"
    )
