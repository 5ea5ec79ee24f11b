"""The recipe's ``keep:``, one dataclass per mapping; docs/recipes.md describes each rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    max_tokens: int = _count()


@dataclass(frozen=True)
class Repetitive:
    """Drop what repeats more than ``max_share`` (0..1) of its n-grams; units as in
    ``repetition_penalty``.
    """

    max_share: float = _share()
    n_grams: int = _count(3)


@dataclass(frozen=True)
class MixedLanguage:
    """Drop if a smaller share of the reasoning is in the target language; the target is that of
    ``language_consistency``.
    """

    min_consistency: float = _share()
    target: str | None = None

    def __post_init__(self) -> None:
        if self.target is not None and language_code(self.target) is None:
            raise ValueError("target: " + unknown_name("language", self.target, LANGUAGES))


@dataclass(frozen=True)
class Filters:
    malformed: bool = False
    truncated: bool = False  # finish_reason "length"
    overlong: Overlong | None = None
    mixed_language: MixedLanguage | None = None
    repetitive: Repetitive | None = None
    code: bool = False  # a block of program text in the reasoning


@dataclass(frozen=True)
class Deduplicate:
    exact: bool = True
    near: float | None = limited(
        lambda value: 0 < value <= 1, "a similarity over 0 and at most 1", None
    )
    n_grams: int = _count(5)


@dataclass(frozen=True)
class EvaluationSet:
    id: str  # as dataset_name takes it
    split: str = "test"
    config: str | None = None
    column: str = "question"  # text, or a conversation, whose last user message counts
    revision: str | None = None


@dataclass(frozen=True)
class Decontaminate:
    datasets: tuple[EvaluationSet, ...]
    n_grams: int = _count(8)


@dataclass(frozen=True)
class KeepRules:
    """Which completions become the dataset; what cannot be judged (a first reward of ``None``)
    passes ``correct``, not ``pass_rate``.
    """

    best_of: int | None = _count(None)
    correct: bool = False
    # By reward, such as a judge of reward_models; no score is too little.
    at_least: dict[str, float] | None = limited(
        lambda of: all(type(one) in (int, float) and math.isfinite(one) for one in of.values()),
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
        lambda value: value in ("completions", "prompts", "pairs"),
        "'completions', 'prompts' or 'pairs'",
        "completions",
    )
    margin: float = limited(
        lambda value: value >= 0, "0 or more", 0.0
    )  # a pair's summed rewards differ by more
    deduplicate: Deduplicate | None = None
    decontaminate: Decontaminate | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, Any] | None) -> KeepRules:
        """Read the recipe's ``keep``; ``None`` is no rule."""
        return from_mapping(cls, mapping or {}, "keep")


def check_keep(recipe: GenerateRecipe) -> None:
    """Refuse a ``keep`` that does not fit the recipe's other keys."""
    script = recipe.script
    rules, names = KeepRules.parse(script.keep), script.reward_funcs
    if script.tools or script.environment:
        raise RecipeError(
            "keep: episodes with tools make no dataset: an answer without its calls would be "
            "trained on. Fix: leave it out"
        )
    if (rules.correct or rules.pass_rate) and not names:
        raise RecipeError(
            "keep: correct and pass_rate need reward_funcs; the first one says what is correct"
        )
    if rules.output != "pairs":
        return
    if not names or recipe.training.num_generations < 2 or rules.best_of:
        reason = "a pair is the best and the worst of a prompt"
        raise RecipeError(
            f"keep: output: pairs needs reward_funcs, num_generations of 2 or more, and no "
            f"best_of: {reason}"
        )
    if rules.correct and len(names) < 2:
        raise RecipeError(
            "keep: correct: must be false for output: pairs of one reward, got true: the "
            "rejected one is mostly wrong"
        )
