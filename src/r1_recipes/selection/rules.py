"""The recipe's ``keep:``: a dataclass a mapping, whose fields say what a value must be."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from r1_recipes.common.errors import RecipeError, nearest, unknown_name
from r1_recipes.rewards.judge import Judge
from r1_recipes.rewards.language import LANGUAGES, language_code

Read = Callable[[str, Any], Any]
"""Checks and converts a value; called with its key, for the error."""


def _refuse(where: str, wanted: str, value: Any) -> RecipeError:
    return RecipeError(f"{where}: must be {wanted}, got {value!r}")


def _value(wanted: str, accepts: Callable[[Any], bool]) -> Read:
    def read(where: str, value: Any) -> Any:
        if not accepts(value):
            raise _refuse(where, wanted, value)
        return value

    return read


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_FLAG = _value("true or false", lambda value: isinstance(value, bool))
_WHOLE = _value("a whole number of 1 or more", lambda value: type(value) is int and value >= 1)
_NUMBER = _value("a number", _is_number)
_SHARE = _value("a share from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
_TEXT = _value("some text", lambda value: isinstance(value, str) and value.strip() != "")


def _language(where: str, value: Any) -> str:
    if language_code(_TEXT(where, value)) is None:
        raise RecipeError(f"{where}: " + unknown_name("language", value, LANGUAGES))
    return value


def _shares(where: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(_is_number, value)) or not 0 <= value[0] <= value[1] <= 1:
        raise _refuse(where, "two shares from 0 to 1, the smaller first, such as [0.1, 0.9]", value)
    return (value[0], value[1])


def _rule(read: Read, default: Any = dataclasses.MISSING) -> Any:
    """A field that is read by ``read``; needed if there is no default."""
    return dataclasses.field(default=default, metadata={"read": read})


@dataclass(frozen=True)
class Rules:
    """Base of the mappings; every field is made by :func:`_rule`."""

    @classmethod
    def read(cls, where: str, mapping: Any) -> Self:
        """Check a mapping of the recipe and convert it; ``None`` for a key is as good as no key.

        Raises:
            RecipeError: no mapping, an unknown or missing key, or a value that is not of its kind.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if not isinstance(mapping, Mapping):
            raise _refuse(where, f"a mapping of {', '.join(fields)}", mapping)
        for key in mapping:
            if key not in fields:
                raise RecipeError(f"{where}: " + unknown_name("key", key, fields))
        given = {key: value for key, value in mapping.items() if value is not None}
        for name, field in fields.items():
            if name not in given and field.default is dataclasses.MISSING:
                raise RecipeError(f"{where}: {name}: missing")
        return cls(**{key: fields[key].metadata["read"](f"{where}: {key}", value) for key, value in given.items()})


@dataclass(frozen=True)
class Overlong(Rules):
    """Drop what has more than ``max_tokens``."""

    max_tokens: int = _rule(_WHOLE)


@dataclass(frozen=True)
class Repetitive(Rules):
    """Drop where more than ``max_share`` (0..1) of the n-grams is a repeat; units as in ``repetition_penalty``."""

    max_share: float = _rule(_SHARE)
    n_grams: int = _rule(_WHOLE, 3)


@dataclass(frozen=True)
class MixedLanguage(Rules):
    """Drop where a smaller share of the reasoning (0..1) is in the target language; stays if its language cannot be told.

    ``target`` is the row's ``language`` column if ``None``, else the question's language.
    """

    min_consistency: float = _rule(_SHARE)
    target: str | None = _rule(_language, None)


@dataclass(frozen=True)
class Filters(Rules):
    """A completion that one of them finds is dropped."""

    malformed: bool = _rule(_FLAG, False)
    truncated: bool = _rule(_FLAG, False)  # finish_reason "length"
    overlong: Overlong | None = _rule(Overlong.read, None)
    mixed_language: MixedLanguage | None = _rule(MixedLanguage.read, None)
    repetitive: Repetitive | None = _rule(Repetitive.read, None)
    code: bool = _rule(_FLAG, False)  # program text in the reasoning


@dataclass(frozen=True)
class Deduplicate(Rules):
    """Drop repeated questions; see :class:`~r1_recipes.selection.duplicates.Deduplicator`."""

    exact: bool = _rule(_FLAG, True)
    near: float | None = _rule(_value("a similarity over 0 and at most 1", lambda value: _is_number(value) and 0 < value <= 1), None)
    n_grams: int = _rule(_WHOLE, 5)

    @classmethod
    def read(cls, where: str, mapping: Any) -> Self:
        rules = super().read(where, mapping)
        if not rules.exact and rules.near is None:
            raise RecipeError(f"{where}: exact is false and near is not set, so that nothing would be looked for")
        return rules


@dataclass(frozen=True)
class EvaluationSet(Rules):
    """An evaluation set that training questions must not come from."""

    id: str = _rule(_TEXT)  # as dataset_name takes it
    split: str = _rule(_TEXT, "test")
    config: str | None = _rule(_TEXT, None)
    column: str | None = _rule(_TEXT, None)  # text, or a conversation, whose user messages count
    revision: str | None = _rule(_TEXT, None)


def _evaluation_sets(where: str, value: Any) -> tuple[EvaluationSet, ...]:
    if not isinstance(value, list) or not value:
        raise _refuse(where, "a list of mappings with id, and split, config, column, revision if needed", value)
    return tuple(EvaluationSet.read(f"{where.removesuffix('s')} {number}", entry) for number, entry in enumerate(value, start=1))


@dataclass(frozen=True)
class Decontaminate(Rules):
    """Drop prompts that overlap with evaluation sets; see :class:`~r1_recipes.selection.duplicates.Decontaminator`."""

    datasets: tuple[EvaluationSet, ...] = _rule(_evaluation_sets)
    n_grams: int = _rule(_WHOLE, 8)


SLOTS = ("question", "solution", "reasoning", "answer", "completion")
"""What a judge's prompt may name in braces: a solution or answer that is not there is empty, and the reasoning then the whole text."""


def _prompt(where: str, value: Any) -> str:
    slots = set(re.findall(r"\{([A-Za-z_]+)\}", _TEXT(where, value)))
    for slot in sorted(slots.difference(SLOTS)):
        if nearest(slot, SLOTS):  # other braces may be LaTeX
            raise RecipeError(f"{where}: " + unknown_name("slot", slot, SLOTS))
    if slots.isdisjoint(("reasoning", "answer", "completion")):
        raise _refuse(where, "a text with {completion}, or {reasoning} or {answer}, else the judge sees nothing of the completion", value)
    return value


@dataclass(frozen=True)
class JudgeRule(Rules):
    """A served model rates completions (:mod:`r1_recipes.rewards.judge`); what scores less than ``min_score`` is dropped."""

    model: str = _rule(_TEXT)
    prompt: str = _rule(_prompt)
    min_score: float = _rule(_NUMBER)
    max_tokens: int | None = _rule(_WHOLE, None)
    temperature: float | None = _rule(_value("0 or more", lambda value: _is_number(value) and value >= 0), None)
    max_concurrency: int = _rule(_WHOLE, 16)

    @property
    def judge(self) -> Judge:
        return Judge(self.model, self.max_concurrency, self.max_tokens, self.temperature)


@dataclass(frozen=True)
class KeepRules(Rules):
    """Which completions become the dataset; docs/recipes.md describes each rule. Without any rule all do.

    What cannot be judged (a first reward of ``None``) passes ``correct`` and is left out of ``pass_rate``; a prompt of which nothing
    can be judged does not pass that.
    """

    best_of: int | None = _rule(_WHOLE, None)
    correct: bool = _rule(_FLAG, False)
    filters: Filters = _rule(Filters.read, Filters())
    pass_rate: tuple[float, float] | None = _rule(_shares, None)
    output: str = _rule(_value("'completions' or 'prompts'", lambda value: value in ("completions", "prompts")), "completions")
    deduplicate: Deduplicate | None = _rule(Deduplicate.read, None)
    decontaminate: Decontaminate | None = _rule(Decontaminate.read, None)
    judge: JudgeRule | None = _rule(JudgeRule.read, None)

    @classmethod
    def parse(cls, mapping: Mapping[str, Any] | None) -> KeepRules:
        """Read the recipe's ``keep``; ``None`` is no rule.

        Raises:
            RecipeError: as :meth:`Rules.read`.
        """
        rules = cls.read("keep", mapping or {})
        if rules.output == "prompts" and rules.best_of is not None:
            raise RecipeError("keep: best_of: output 'prompts' writes no completions; remove one of the two")
        return rules
