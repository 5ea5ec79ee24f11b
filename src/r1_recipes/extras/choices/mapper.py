"""Map multiple-choice questions."""

import math
import re
from collections.abc import Collection
from string import ascii_uppercase
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    check_choice,
    register_mapper,
    required_text,
)
from r1_recipes.extras.choices.rewards import choice, words
from r1_recipes.prompts.formats import is_blank

LETTERS = ascii_uppercase[:10]  # those that the reward choice_match reads
_ANSWER_COLUMNS = ("answerKey", "answer_idx", "cop", "answer")
_CONTEXT_COLUMNS = ("article", "passage", "context")
_LABEL = re.compile(
    r"(?:(?:the )?(?:correct )?(?:answer|option|choice)(?: is)?:? *)?"
    r"[(\[]? *([a-j]|\d{1,3}) *[)\].:]?",
    re.IGNORECASE | re.ASCII,
)
_PREFIX = re.compile(r"\s*(?:\(([A-J]|\d\d?)\)\s*|([A-J]|\d\d?)(?:\)\s*|[.:]\s+))(?=\S)")


@register_mapper("multiple_choice")
class MultipleChoice(Mapper):
    """A question with two to ten options. The reference answer is a letter, for ``choice_match``.

    The question ends with a line per option: ``A) …``. Reads ARC, CommonsenseQA, MMLU, MMLU-Pro,
    MedQA-USMLE, MedMCQA, RACE and the like. The options are a list, a dictionary by letter, a
    dictionary of ``text`` and ``label``, or ``option_columns``. A row whose answer may mean two
    options is skipped, unless ``answer_is`` says how to read it.

    Attributes:
        question_column: The question. A column ``article``, ``passage`` or ``context`` precedes it.
        options_column: The options.
        answer_column: The right option.
        option_columns: The options, if each has its own column.
        answer_is: ``label`` (a letter, or a number if the row numbers its options), ``position``
            or ``text`` of the option, or ``auto``.
        first: The position of the first option, 0 (MMLU, MedMCQA) or 1. An answer that is a
            position needs it.
    """

    question_column: str = "question"
    options_column: str = "choices"
    answer_column: str = _ANSWER_COLUMNS[0]
    option_columns: tuple[str, ...] = ("opa", "opb", "opc", "opd")
    answer_is: str = "auto"
    first: int | None = None
    columns = ("question", "choices", "answerKey")
    needs = (("question", "question_stem"), ("choices", "options"), _ANSWER_COLUMNS)

    def __post_init__(self) -> None:
        check_choice("answer_is", self.answer_is, ("auto", "label", "position", "text"))
        if self.first not in (None, 0, 1):
            raise RecipeError(f"mapper_config: first: must be 0 or 1, got {self.first!r}")
        if self.answer_column in self.option_columns:
            raise RecipeError(
                f"mapper_config: option_columns: must not contain {self.answer_column!r}, because "
                f"the right option would have the same letter in every row. Fix: write a mapper "
                f"that shuffles the options"
            )

    def missing(self, columns: Collection[str]) -> list[str]:
        if set(self.option_columns) <= set(columns):
            columns = [*columns, self.options_column]
        return super().missing(columns)

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        labels, texts = self._options(row)
        right = self._right(row, labels, texts)
        plain = [text.casefold() for text in texts]
        if plain.count(plain[right]) > 1:
            raise SkipRow("two options have the text of the right one")
        question = required_text(row, _column(row, self.question_column, "question_stem"))
        context = row.get(_column(row, *_CONTEXT_COLUMNS))
        lines = [f"{letter}) {text}" for letter, text in zip(LETTERS, texts, strict=False)]
        solution = lines[right]
        if choice(solution) != (LETTERS[right], words(texts[right])):
            solution = LETTERS[right]  # "B) hepatitis A" would name two options
        intro = [f"{context.strip()}\n"] if isinstance(context, str) and context.strip() else []
        return {"question": "\n".join([*intro, question, *lines]), "solution": solution}

    def _options(self, row: dict[str, Any]) -> tuple[list[str] | None, list[str]]:
        """Return the labels that a row gives its options, if any, and the texts of the options."""
        options = row.get(_column(row, self.options_column, "options"))
        if options is None:
            options = [row.get(column) for column in self.option_columns]
        if isinstance(options, list) and all(isinstance(option, dict) for option in options):
            options = {key: [option.get(key) for option in options] for key in ("text", "label")}
        labels: list[Any] | None = None
        if isinstance(options, dict) and "text" in options:
            labels, options = options.get("label"), options["text"]
        elif isinstance(options, dict):
            labels, options = list(options), list(options.values())
        if not isinstance(options, list) or not isinstance(labels, list | None):
            raise SkipRow("options that are neither a list nor a dictionary")
        if labels is not None and len(labels) != len(options):
            raise SkipRow("as many labels as options are needed")
        return _checked(labels, options)

    def _right(self, row: dict[str, Any], labels: list[str] | None, texts: list[str]) -> int:
        """Return the index of the right option."""
        is_named = self.answer_column != _ANSWER_COLUMNS[0]
        answer = row.get(_column(row, *([self.answer_column] if is_named else _ANSWER_COLUMNS)))
        if isinstance(answer, list) and len(answer) == 1:
            (answer,) = answer
        typed = _typed(answer)
        if not typed:
            raise SkipRow("no answer")
        label = _LABEL.fullmatch(typed)
        named = label[1].upper() if label and not isinstance(answer, bool) else ""
        is_position = named.isdecimal() and labels is None
        readings: dict[str, set[int]] = {
            "label": {index for index, name in enumerate(labels or LETTERS) if name == named},
            "position": {int(named) - (self.first or 0)} if is_position else set(),
            "text": {
                index for index, text in enumerate(texts) if text.casefold() == typed.casefold()
            },
        }
        found = readings.get(self.answer_is, set.union(*readings.values()))
        # "2" is no position where the options are 1 m, 2 m and 3 m.
        has_digits = isinstance(answer, str) and re.search(r"\d", "".join(texts))
        if self.answer_is == "auto" and has_digits and found == readings["position"]:
            found = readings["text"]
        found = found & set(range(len(texts)))
        if len(found) > 1:
            raise SkipRow("the answer may mean two options (mapper_config: answer_is)")
        if not found:
            raise SkipRow("the answer names none of the options")
        if self.first is None and found == readings["position"] != readings["text"]:
            raise SkipRow("the answer is a position (mapper_config: first: 0 or 1)")
        return found.pop()


def _checked(labels: list[Any] | None, options: list[Any]) -> tuple[list[str] | None, list[str]]:
    """Return labels and texts without padding, in the order of the labels."""
    texts = [_typed(option) for option in options]
    names = None if labels is None else [_typed(label) for label in labels]
    if names is None:
        while texts and is_blank(texts[-1]):
            texts.pop()
        matches = [match for text in texts if (match := _PREFIX.match(text))]
        if len(matches) == len(texts):  # "(A) the liver"
            names = [match[1] or match[2] for match in matches]
            texts = [match.string[match.end() :] for match in matches]
    if names is not None:
        names, texts = _in_order(names, texts)
    if not 2 <= len(texts) <= len(LETTERS) or any(map(is_blank, texts)):
        raise SkipRow(f"not two to {len(LETTERS)} options with a text")
    return names, texts


def _in_order(names: list[str], texts: list[str]) -> tuple[list[str], list[str]]:
    """Return labels and texts in the order of the labels, without options that are blank."""
    # A column of a Parquet file has every key of any row.
    given = [(name, text) for name, text in zip(names, texts, strict=True) if not is_blank(text)]
    found = [(_LABEL.fullmatch(name), text) for name, text in given]
    kept = sorted((_number(label[1]), label[1].upper(), text) for label, text in found if label)
    numbers = [number for number, *_ in kept]
    usual = [[first + index for index in range(len(given))] for first in (0, 1, ord("A"))]
    if numbers not in usual:
        raise SkipRow("labels that are not A, B, C … or 1, 2, 3 …")
    return [name for _, name, _ in kept], [text for *_, text in kept]


def _number(label: str) -> int:
    return int(label) if label.isdecimal() else ord(label.upper())


def _typed(value: Any) -> str:
    """Return a cell as text: a float of an integer without its decimals, nothing for none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise SkipRow("an option or an answer that is neither a text nor a number")
    return " ".join(str(value).split())


def _column(row: dict[str, Any], *columns: str) -> str:
    """Return the first of these columns in which a row has something, or the first one."""
    return next((column for column in columns if row.get(column) is not None), columns[0])
