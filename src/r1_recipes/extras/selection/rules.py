"""The recipe key ``keep``, with a dataclass for each mapping. See docs/keys.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.settings import from_mapping, limited
from r1_recipes.recipe.types import GenerateRecipe
from r1_recipes.rewards.language import LANGUAGES, language_code


def _count(default: Any = MISSING) -> Any:
    return limited(lambda value: value >= 1, "a whole number of 1 or more", default)


def _share() -> Any:
    return limited(lambda value: 0 <= value <= 1, "a share from 0 to 1")


@dataclass(frozen=True)
class Overlong:
    """Drop completions with more than ``max_tokens`` tokens."""

    max_tokens: int = _count()


@dataclass(frozen=True)
class Repetitive:
    """Drop completions that repeat more than ``max_share`` (0..1) of their n-grams.

    The units are those of the reward ``repetition_penalty``.
    """

    max_share: float = _share()
    n_grams: int = _count(3)


@dataclass(frozen=True)
class MixedLanguage:
    """Drop completions with a smaller share of the reasoning in the target language.

    The target language is that of the reward ``language_consistency``.
    """

    min_consistency: float = _share()
    target: str | None = None

    def __post_init__(self) -> None:
        if self.target is not None and language_code(self.target) is None:
            raise ValueError("target: " + unknown_name("language", self.target, LANGUAGES))


@dataclass(frozen=True)
class Filters:
    """Drop single completions."""

    malformed: bool = False
    truncated: bool = False  # The finish_reason is "length".
    overlong: Overlong | None = None
    mixed_language: MixedLanguage | None = None
    repetitive: Repetitive | None = None
    code: bool = False  # The reasoning has a block of code.


@dataclass(frozen=True)
class Deduplicate:
    """Drop questions that repeat an earlier question."""

    exact: bool = True


@dataclass(frozen=True)
class EvaluationSet:
    """A data set whose questions must not be in the result."""

    id: str  # As in dataset_name.
    split: str = "test"
    config: str | None = None
    column: str = "question"  # Text, or a conversation whose last user message is the question.
    revision: str | None = None


@dataclass(frozen=True)
class Decontaminate:
    """Drop questions that overlap with evaluation sets."""

    datasets: tuple[EvaluationSet, ...]
    n_grams: int = _count(8)


@dataclass(frozen=True)
class KeepRules:
    """The rules that choose the completions of the dataset.

    A completion without a score of the first reward passes ``correct``, but not ``pass_rate``.
    """

    best_of: int | None = _count(None)
    correct: bool = False
    # The least score of each reward. A missing score is too low.
    at_least: dict[str, float] | None = limited(
        lambda scores: all(
            type(score) in (int, float) and math.isfinite(score) for score in scores.values()
        ),
        "a mapping of rewards to numbers",
        None,
    )
    filters: Filters = Filters()
    pass_rate: tuple[float, float] | None = limited(
        lambda value: (
            len(value) == 2
            and all(type(share) in (int, float) for share in value)
            and 0 <= value[0] <= value[1] <= 1
        ),
        "two shares from 0 to 1, the smaller first, such as [0.1, 0.9]",
        None,
    )
    output: str = limited(
        lambda value: value in ("completions", "prompts"),
        "'completions' or 'prompts'",
        "completions",
    )
    deduplicate: Deduplicate | None = None
    decontaminate: Decontaminate | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, Any] | None) -> KeepRules:
        """Return the rules of the recipe's ``keep``. ``None`` means no rule."""
        return from_mapping(cls, mapping or {}, "keep")


def check_keep(recipe: GenerateRecipe) -> None:
    """Raise if ``keep`` does not fit the recipe's other keys."""
    script = recipe.script
    rules, names = KeepRules.parse(script.keep), script.reward_funcs
    if script.tools or script.environment:
        raise RecipeError(
            "keep: does not work with tools or an environment, because the dataset would lose the "
            "tool calls. Fix: remove keep"
        )
    if (rules.correct or rules.pass_rate) and not names:
        raise RecipeError(
            "keep: correct and pass_rate need reward_funcs, because the first reward decides what "
            "is correct. Fix: reward_funcs: [accuracy]"
        )


def pass_rate(verdicts: Sequence[bool | None]) -> float | None:
    """Return the share of right verdicts among those that are not ``None``."""
    judged = [verdict for verdict in verdicts if verdict is not None]
    return sum(judged) / len(judged) if judged else None
