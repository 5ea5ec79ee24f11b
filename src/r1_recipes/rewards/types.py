"""What the signatures of rewards share."""

from collections.abc import Callable, Sequence
from typing import Any

from r1_recipes.prompts import FORMATS

Column = Sequence[Any]  # one entry per completion
Values = list[float | None]
Log = Callable[[str, Any], None]  # TRL's log_extra and log_metric

THINK_ANSWER = FORMATS["think_answer"]  # what a reward reads outside of a recipe


def ignore(name: str, value: Any) -> None:
    pass
