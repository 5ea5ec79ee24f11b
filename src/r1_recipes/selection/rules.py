"""The recipe's ``keep:``, one dataclass per mapping; docs/recipes.md describes each rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from r1_recipes.common.errors import nearest, unknown_name
from r1_recipes.common.settings import from_mapping, must
from r1_recipes.rewards.judge import Judge
from r1_recipes.rewards.language import LANGUAGES, language_code

SLOTS = ("question", "solution", "reasoning", "answer", "completion")
"""What a judge's prompt may name in braces. A missing solution or answer is empty; a missing reasoning is the whole text."""


def _count(default: Any = MISSING) -> Any:
    return must("a whole number of 1 or more", lambda value: value >= 1, default)


def _share() -> Any:
    return must("a share from 0 to 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True)
class Overlong:
    """Drop what has more than ``max_tokens``."""

    max_tokens: int = _count()


@dataclass(frozen=True)
class Repetitive:
    """Drop what repeats more than ``max_share`` (0..1) of its n-grams; units as in ``repetition_penalty``."""

    max_share: float = _share()
    n_grams: int = _count(3)


@dataclass(frozen=True)
class MixedLanguage:
    """Drop if a smaller share of the reasoning (0..1) is in the target language.

    Without ``target`` that is the row's column ``language``, else the question's language; if that cannot be told, nothing is dropped.
    """

    min_consistency: float = _share()
    target: str | None = None

    def __post_init__(self) -> None:
        if self.target is not None and language_code(self.target) is None:
            raise ValueError("target: " + unknown_name("language", self.target, LANGUAGES))


@dataclass(frozen=True)
class Filters:
    """A completion that one of them finds is dropped."""

    malformed: bool = False
    truncated: bool = False  # finish_reason "length"
    overlong: Overlong | None = None
    mixed_language: MixedLanguage | None = None
    repetitive: Repetitive | None = None
    code: bool = False  # program text in the reasoning


@dataclass(frozen=True)
class Deduplicate:
    """Drop repeated questions; see :class:`~r1_recipes.selection.duplicates.Deduplicator`."""

    exact: bool = True
    near: float | None = must("a similarity over 0 and at most 1", lambda value: 0 < value <= 1, None)
    n_grams: int = _count(5)

    def __post_init__(self) -> None:
        if not self.exact and self.near is None:
            raise ValueError("exact is false and near is not set, so that nothing would be looked for")


@dataclass(frozen=True)
class EvaluationSet:
    """An evaluation set that training questions must not come from."""

    id: str  # as dataset_name takes it
    split: str = "test"
    config: str | None = None
    column: str | None = None  # text, or a conversation, whose user messages count
    revision: str | None = None


@dataclass(frozen=True)
class Decontaminate:
    """Drop prompts that overlap with evaluation sets; see :class:`~r1_recipes.selection.duplicates.Decontaminator`."""

    datasets: tuple[EvaluationSet, ...]
    n_grams: int = _count(8)


@dataclass(frozen=True)
class JudgeRule:
    """A served model rates completions (:mod:`r1_recipes.rewards.judge`); what scores less than ``min_score`` is dropped."""

    model: str
    prompt: str
    min_score: float
    max_tokens: int | None = _count(None)
    temperature: float | None = must("0 or more", lambda value: value >= 0, None)
    max_concurrency: int = _count(16)

    def __post_init__(self) -> None:
        slots = set(re.findall(r"\{([A-Za-z_]+)\}", self.prompt))
        for slot in sorted(slots.difference(SLOTS)):
            if nearest(slot, SLOTS):  # other braces may be LaTeX
                raise ValueError("prompt: " + unknown_name("slot", slot, SLOTS))
        if slots.isdisjoint(("reasoning", "answer", "completion")):
            raise ValueError(f"prompt: must be a text with {{completion}}, {{reasoning}} or {{answer}}, got {self.prompt!r}")

    @property
    def judge(self) -> Judge:
        return Judge(self.model, self.prompt, self.max_concurrency, self.max_tokens, self.temperature)


@dataclass(frozen=True)
class KeepRules:
    """Which completions become the dataset; without any rule all do.

    What cannot be judged (a first reward of ``None``) passes ``correct`` and is left out of ``pass_rate``; a prompt of which nothing
    can be judged does not pass that.
    """

    best_of: int | None = _count(None)
    correct: bool = False
    filters: Filters = Filters()
    pass_rate: tuple[float, float] | None = must(
        "two shares from 0 to 1, the smaller first, such as [0.1, 0.9]",
        lambda value: len(value) == 2 and all(type(share) in (int, float) for share in value) and 0 <= value[0] <= value[1] <= 1,
        None,
    )
    output: str = must("'completions' or 'prompts'", lambda value: value in ("completions", "prompts"), "completions")
    deduplicate: Deduplicate | None = None
    decontaminate: Decontaminate | None = None
    judge: JudgeRule | None = None

    def __post_init__(self) -> None:
        if self.output == "prompts" and self.best_of is not None:
            raise ValueError("best_of: output 'prompts' writes no completions; remove one of the two")

    @classmethod
    def parse(cls, mapping: Mapping[str, Any] | None) -> KeepRules:
        """Read the recipe's ``keep``; ``None`` is no rule.

        Raises:
            RecipeError: as :func:`~r1_recipes.common.settings.from_mapping`.
        """
        return from_mapping(cls, mapping or {}, "keep")
