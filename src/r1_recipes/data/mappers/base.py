"""Define the base class of the mappers and the registry of their names."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, cast, dataclass_transform

from r1_recipes.common.errors import RecipeError, defined_at, own_code, unknown_name
from r1_recipes.common.plugins import Registry
from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.prompts.formats import boxed_spans, one_spelling_of_boxes

MAPPERS: Registry[Any] = Registry("mapper")
THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")


class SkipRow(Exception):
    """Raise this for a row that cannot be used; the text says why, and is counted."""


@dataclass(frozen=True)
class Mapper:
    """Base class of the mappers.

    A mapper turns a row of a source into a question and a reference answer. The fields of a
    subclass are the keys of ``mapper_config``. A field called ``…_column`` names a column, by
    default as in ``examples``.

    Attributes:
        name: The name in a recipe, or the name of a class that is not registered.
        columns: The columns by which ``mapper: auto`` recognises the source.
        needs: The columns that must be there, if they are not ``columns``. A tuple inside means any
            one of several.
        examples: Invented rows with all columns of the source, for ``--smoke``, ``auto`` and tests.
        images: Whether rows come with a picture for a vision-language model.

    Example:
        >>> class Quiz(Mapper):
        ...     columns = ("frage", "antwort")
        ...
        ...     def __call__(self, row):
        ...         return {"question": row["frage"], "solution": row["antwort"]}
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str | tuple[str, ...], ...]] = ()
    examples: ClassVar[tuple[dict[str, Any], ...]] = ()
    images: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Name the class after itself, until it is registered."""
        cls.name = cls.__name__

    @classmethod
    def fit(cls, columns: Collection[str]) -> int:
        """Return how many of these columns the mapper knows, or 0 if one of its own is missing."""
        present = set(columns)
        if not cls.columns or not present.issuperset(cls.columns):
            return 0
        return len(present & {*cls.columns, *chain(*cls.examples)})

    def missing(self, columns: Collection[str]) -> list[str]:
        """Return the columns that the mapper needs and that are not there."""
        names = self._names()
        absent = []
        for need in self.needs or self.columns:
            needed = [need] if isinstance(need, str) else need
            first, *others = [names.get(column, column) for column in needed]
            if first != needed[0]:  # A column that the recipe names has no substitute.
                others = []
            if not {first, *others} & set(columns):
                absent.append(first + "".join(f" (or {other})" for other in others))
        return absent

    @classmethod
    def place(cls) -> str:
        """Return the mapper's name and, for your own class, the file and line of ``__call__``."""
        return f"mapper {cls.name!r}{defined_at(cls.__call__)}"

    def example_rows(self) -> list[dict[str, Any]]:
        """Return the ``examples`` that this mapper can read, with its own column names."""
        names = self._names()
        rows = []
        for example in self.examples:
            row = {names.get(column, column): value for column, value in example.items()}
            if not self.missing(row):
                rows.append(row)
        return rows

    def _names(self) -> dict[str, str]:
        """Return the column that this mapper reads, for each column name in ``examples``."""
        names = {}
        for field in dataclasses.fields(self):
            if field.name.endswith("_column") and getattr(self, field.name):
                example = field.default or field.name.removesuffix("_column")
                names[str(example)] = getattr(self, field.name)
        return names

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        """Map one row.

        The base class takes ``columns`` as question, reference answer and, if there are three,
        worked solution.

        Args:
            row: The source's columns by name.

        Returns:
            A :class:`MappedRow`.

        Raises:
            SkipRow: The row lacks what is needed.
        """
        names = self._names()
        mapped: dict[str, str] = {}
        for key, column in zip(("question", "solution", "reasoning"), self.columns, strict=False):
            mapped[key] = required_text(row, names.get(column, column))
        return cast(MappedRow, mapped)


@dataclass_transform(frozen_default=True)
def register_mapper(name: str) -> Callable[[type[Mapper]], type[Mapper]]:
    """Return a class decorator that makes a :class:`Mapper` available to recipes.

    The rows of ``examples/NAME.jsonl`` beside the class's file become its ``examples``.

    Args:
        name: The name that ``mapper`` takes in a recipe.
    """

    def decorate(mapper: type[Mapper]) -> type[Mapper]:
        if "__dataclass_params__" not in vars(mapper):
            mapper = dataclass(frozen=True)(mapper)
        MAPPERS.register(name, mapper)
        path = Path(inspect.getfile(mapper)).parent / "examples" / f"{name}.jsonl"
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            mapper.examples = tuple(map(json.loads, lines))
        return mapper

    return decorate


def get_mapper(name: str, columns: Collection[str] = (), /, **config: Any) -> Mapper:
    """Build a mapper.

    Args:
        name: A registered mapper, ``my_module:MyMapper``, or ``"auto"`` for the registered one that
            fits the columns best.
        columns: The columns of the source.
        **config: The mapper's fields; ``None`` means not set.

    Raises:
        RecipeError: No mapper has this name or fits these columns, or a field is unknown.
    """
    config = {key: value for key, value in config.items() if value is not None}
    if name == "auto" and "prompt_column" in config:
        name = "prompt_solution"
    elif name == "auto":
        name = max(MAPPERS, key=lambda key: MAPPERS[key].fit(columns))
        if not MAPPERS[name].fit(columns):
            fix = f"name one of {', '.join(MAPPERS)}, or set prompt_column and solution_column"
            cause = f"no mapper fits the columns {sorted(columns)}"
            raise RecipeError(f"mapper: auto: {cause}. Fix: {fix}")
    mapper = MAPPERS.resolve(name)
    if not (isinstance(mapper, type) and issubclass(mapper, Mapper)):
        fix = "class NAME(Mapper), whose __call__(self, row) returns {'question': …, 'solution': …}"
        raise RecipeError(
            f"mapper {name!r}: must be a subclass of r1_recipes.data.Mapper, got {mapper!r:.80}. "
            f"Fix: {fix}"
        )
    fields = [field.name for field in dataclasses.fields(mapper)]
    for key in config:
        if key not in fields:
            raise RecipeError(unknown_name(f"key of mapper {name!r}", key, fields))
    fix = "give each field a default, or set it in mapper_config"
    with own_code(f"mapper {name!r}", mapper, fix):
        return mapper(**config)


def check_choice(key: str, value: str, choices: Collection[str]) -> None:
    """Raise if a value of ``mapper_config`` is not one of the choices."""
    if value not in choices:
        raise RecipeError("mapper_config: " + unknown_name(key, value, choices))


def check_template(template: str | None, *slots: str) -> None:
    """Raise if a template of ``mapper_config`` lacks one of its slots."""
    if template is not None and not all(slot in template for slot in slots):
        raise RecipeError(
            f"mapper_config: template: must contain {' and '.join(slots)}, got {template!r}"
        )


def as_text(value: Any, column: str) -> str:
    """Return a cell as stripped text.

    Null, NaN (a missing value in pandas) and a spreadsheet's error (``#N/A``) give ``""``.

    Args:
        value: The cell.
        column: The cell's column, for the error message.

    Raises:
        SkipRow: The cell is a list, a dict, or bytes that are not UTF-8.
    """
    if isinstance(value, list | dict):
        raise SkipRow(f"column {column!r} holds a {type(value).__name__}, not text")
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise SkipRow(f"column {column!r} holds bytes that are not UTF-8") from None
    # Do not test for truth: a reference answer may be the number 0.
    if value is None or value != value:
        return ""
    text = str(value).strip()
    return "" if re.fullmatch(r"#(N/A|[A-Z]+(/0)?[!?])", text) else text


def optional_text(row: dict[str, Any], column: str) -> str:
    """Return a cell as text, or ``""`` if it is empty or missing."""
    return as_text(row.get(column), column)


def required_text(row: dict[str, Any], column: str) -> str:
    """Return a cell as text, or skip the row if it is empty or missing."""
    text = as_text(row.get(column), column)
    if not text:
        raise SkipRow(f"column {column!r} is empty")
    return text


def last_boxed(text: str) -> str:
    r"""Return what the last balanced ``\boxed{…}`` holds, stripped, or ``""`` if there is none."""
    text = one_spelling_of_boxes(text)
    content = ""
    for start, end in boxed_spans(text):
        content = text[start:end]
    return content.strip()
