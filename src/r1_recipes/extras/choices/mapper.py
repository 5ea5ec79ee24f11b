"""Map multiple-choice questions."""

from collections.abc import Collection
from string import ascii_uppercase
from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import Mapper, SkipRow, register_mapper, required_text

_LETTERS = ascii_uppercase[:10]  # the letters that the reward choice_match reads


@register_mapper("multiple_choice")
class MultipleChoice(Mapper):
    """A question with two to ten options. The reference answer is a letter, for ``choice_match``.

    The question ends with a line per option: ``A) …``. Reads ARC, CommonsenseQA, OpenBookQA, MMLU,
    MMLU-Pro, MedQA-USMLE and MedMCQA. The options are a list, a dictionary by letter, a dictionary
    of ``text`` and ``label``, or ``option_columns``. The right one is its label, its position, or
    its text. Positions count from ``first``.
    """

    question_column: str = "question"
    options_column: str = "choices"
    answer_column: str = "answerKey"
    option_columns: tuple[str, ...] = ("opa", "opb", "opc", "opd")
    first: int = 0
    needs = (
        ("question", "question_stem"),
        ("choices", "options"),
        ("answerKey", "answer_idx", "cop", "answer"),
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        if set(self.option_columns) <= set(columns):
            columns = [*columns, self.options_column]
        return super().missing(columns)

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        labels, texts = self._options(row)
        if not 2 <= len(texts) <= len(_LETTERS) or not all(text.strip() for text in texts):
            raise SkipRow(f"not two to {len(_LETTERS)} options with a text")
        question = required_text(row, _first_of(row, self.question_column, "question_stem"))
        lines = [f"{letter}) {text.strip()}" for letter, text in zip(_LETTERS, texts, strict=False)]
        answer = row[_first_of(row, self.answer_column, "answer_idx", "cop", "answer")]
        right = self._position(answer, labels, texts)
        return {"question": "\n".join([question, *lines]), "solution": _LETTERS[right]}

    def _options(self, row: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return the labels and the texts of the options."""
        options = row.get(_first_of(row, self.options_column, "options"))
        if options is None:
            options = [row[column] for column in self.option_columns if column in row]
        if isinstance(options, dict) and "text" in options:
            return [str(label) for label in options["label"]], list(map(str, options["text"]))
        if isinstance(options, dict):
            # A column of a Parquet file has every key of any row.
            given = {str(key): str(text) for key, text in options.items() if text is not None}
            return list(given), list(given.values())
        if not isinstance(options, list):
            raise SkipRow("options that are neither a list nor a dictionary")
        return list(_LETTERS[: len(options)]), [str(text or "") for text in options]

    def _position(self, answer: Any, labels: list[str], texts: list[str]) -> int:
        """Return the index of the right option."""
        if isinstance(answer, int):
            found = {answer - self.first} & set(range(len(texts)))
        elif (label := str(answer).strip().strip("()")) in labels:
            found = {labels.index(label)}
        else:
            found = {index for index, text in enumerate(texts) if text.strip() == str(answer)}
            if label.isdecimal() and 0 <= int(label) - self.first < len(texts):
                found.add(int(label) - self.first)
        if len(found) != 1:
            raise SkipRow(f"the answer {answer!r:.40} names not one of the options")
        return found.pop()


def _first_of(row: dict[str, Any], *columns: str) -> str:
    """Return the first of these columns that a row has, or the first one if it has none."""
    return next((column for column in columns if column in row), columns[0])
