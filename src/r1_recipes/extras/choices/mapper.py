"""Map multiple-choice questions."""

from string import ascii_uppercase
from typing import Any

from r1_recipes.common.errors import require
from r1_recipes.data.mappers.base import MappedRow, SkipRow, register_mapper, text
from r1_recipes.extras.choices.rewards import choice, words

LETTERS = ascii_uppercase[:10]  # those that the reward choice_match reads
_COLUMNS = ("question|question_stem", "choices|options|opa", "answerKey|answer_idx|cop|answer")


@register_mapper("multiple_choice", *_COLUMNS)
def multiple_choice(
    row: dict[str, Any],
    question_column: str = "question",
    options_column: str = "choices",
    answer_column: str = "answerKey",
    option_columns: tuple[str, ...] = ("opa", "opb", "opc", "opd"),
    answer_is: str = "label",
    first: int | None = None,
) -> MappedRow:
    """Map a question with two to ten options. The reference answer is a letter, for choice_match.

    The question ends with a line per option: ``A) …``. Reads ARC, CommonsenseQA, MMLU, MMLU-Pro,
    MedQA-USMLE, MedMCQA, RACE and the like. A column ``article``, ``passage`` or ``context``
    precedes the question. The options are a list, a dictionary by letter, a dictionary of ``text``
    and ``label``, or have a column each.

    Args:
        row: The row.
        question_column: The question.
        options_column: The options.
        answer_column: The right option.
        option_columns: The columns of the options, if each has its own.
        answer_is: What the answer names: the ``label`` of an option, or its ``text``.
        first: The position of the first option, 0 (MMLU, MedMCQA) or 1, if the answer is a
            position.
    """
    require(answer_is in ("label", "text"), "mapper_config: answer_is", "label or text", answer_is)
    labels, texts = _options(row, options_column, option_columns)
    answer = text(row, _first(row, answer_column, *_COLUMNS[2].split("|")))
    if first is not None:
        index = int(answer) - first if answer.isdecimal() else -1
        found = [index] if 0 <= index < len(texts) else []
    else:
        names, named = (labels, answer.strip("().: ")) if answer_is == "label" else (texts, answer)
        found = [n for n, name in enumerate(names) if name.casefold() == named.casefold()]
    if len(found) != 1:
        which = "several" if found else "none"
        raise SkipRow(
            f"the answer {answer!r:.40} names {which} of the options. Fix: mapper_config: "
            "answer_is: text, or first: 0 (or 1) for a position"
        )
    right = found[0]
    lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, texts, strict=False)]
    solution = lines[right]
    if choice(solution) != (LETTERS[right], words(texts[right])):
        solution = LETTERS[right]  # "B) hepatitis A" would name two options
    context = text(row, _first(row, "article", "passage", "context"), needed=False)
    question = text(row, _first(row, question_column, "question_stem"))
    intro = [f"{context}\n"] if context else []
    return {"question": "\n".join([*intro, question, *lines]), "solution": solution}


def _options(
    row: dict[str, Any], column: str, columns: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Return the labels and the texts of a row's options, in order."""
    options = row.get(_first(row, column, "options"))
    if options is None:
        options = [row.get(name) for name in columns]
    if isinstance(options, list) and all(isinstance(option, dict) for option in options):
        options = {key: [option.get(key) for option in options] for key in ("label", "text")}
    if isinstance(options, list):
        options = dict(zip(LETTERS, options, strict=False))
    elif isinstance(options, dict) and "text" in options:
        options = dict(zip(options["label"], options["text"], strict=True))
    if not isinstance(options, dict):
        raise SkipRow("options that are neither a list nor a dictionary")
    # A column of a Parquet file has every letter of any row.
    texts = {str(label): text(options, label, needed=False) for label in options}
    given = {label: option for label, option in texts.items() if option}
    if not 2 <= len(given) <= len(LETTERS):
        raise SkipRow(f"not two to {len(LETTERS)} options with a text")
    return list(given), list(given.values())


def _first(row: dict[str, Any], *columns: str) -> str:
    """Return the first of these columns in which a row has something, or the first one."""
    return next((column for column in columns if row.get(column) is not None), columns[0])
