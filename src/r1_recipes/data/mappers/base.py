"""What every mapper is, and the registry of their names."""

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


class SkipRow(Exception):
    """This row cannot be used; the text says why, and is counted."""


@dataclass(frozen=True)
class Mapper:
    """Base of the mappers. Fields are the keys of ``mapper_config``; one called ``…_column`` names
    a column, by default as in ``examples``.

    Calling one with a row (a dict of the source's columns) returns a
    :class:`~r1_recipes.data.mapped_row.MappedRow`. It raises :class:`SkipRow` for a row without
    what is needed.
    """

    name: ClassVar[str]  # registry name, or the name of a class that is not registered
    columns: ClassVar[tuple[str, ...]] = ()  # by which ``auto`` knows the source
    needs: ClassVar[
        tuple[str | tuple[str, ...], ...]
    ] = ()  # that must be there, if not ``columns``; a tuple: one of several
    # Invented rows with all columns of the source, for tests, documentation, ``auto`` and
    # ``--smoke``.
    examples: ClassVar[tuple[dict[str, Any], ...]] = ()
    images: ClassVar[bool] = (
        False  # whether rows come with a picture, ``image``, for a vision-language model
    )

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

    @classmethod
    def fit(cls, columns: Collection[str]) -> int:
        """How many of ``columns`` this mapper knows; 0 if one of its own is missing."""
        if not cls.columns or not set(cls.columns) <= set(columns):
            return 0
        return len({*cls.columns, *chain(*cls.examples)} & set(columns))

    def missing(self, columns: Collection[str]) -> list[str]:
        names, absent = self._names(), []
        for need in self.needs or self.columns:
            first, *others = [need] if isinstance(need, str) else need
            wanted = [names.get(column, column) for column in (first, *others)]
            if wanted[0] != first:  # a column that the recipe names has no substitute
                wanted = wanted[:1]
            if not set(wanted) & set(columns):
                absent.append(wanted[0] + "".join(f" (or {other})" for other in wanted[1:]))
        return absent

    @classmethod
    def place(cls) -> str:
        """Its name and, if its ``__call__`` is the user's own, that method's file and line."""
        return f"mapper {cls.name!r}{defined_at(cls.__call__)}"

    def example_rows(self) -> list[dict[str, Any]]:
        """The ``examples`` that this mapper can read, columns named as it reads them."""
        names = self._names()
        rows = [
            {names.get(column, column): value for column, value in row.items()}
            for row in self.examples
        ]
        return [row for row in rows if not self.missing(row)]

    def _names(self) -> dict[str, str]:
        """Column in ``examples`` -> column that this mapper reads."""
        fields = [
            field
            for field in dataclasses.fields(self)
            if field.name.endswith("_column") and getattr(self, field.name)
        ]
        return {
            str(field.default or field.name.removesuffix("_column")): getattr(self, field.name)
            for field in fields
        }

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        """Take ``columns`` for question, gold and, if there are three, worked solution."""
        names = [self._names().get(column, column) for column in self.columns]
        fields = zip(("question", "solution", "reasoning"), names, strict=False)
        return cast(MappedRow, {key: required_text(row, name) for key, name in fields})


@dataclass_transform(frozen_default=True)
def register_mapper(name: str) -> Callable[[type[Mapper]], type[Mapper]]:
    """Class decorator that makes a :class:`Mapper` available to recipes as ``name``, with the rows
    of ``examples/NAME.jsonl`` beside it.
    """

    def decorate(mapper: type[Mapper]) -> type[Mapper]:
        if "__dataclass_params__" not in vars(mapper):
            mapper = dataclass(frozen=True)(mapper)
        MAPPERS.register(name, mapper)
        path = Path(inspect.getfile(mapper)).parent / "examples" / f"{name}.jsonl"
        if path.exists():
            mapper.examples = tuple(
                json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()
            )
        return mapper

    return decorate


def get_mapper(name: str, columns: Collection[str] = (), **config: Any) -> Mapper:
    """Build a mapper from its fields (``None``: not set); ``"auto"`` is the first registered one
    that fits these columns best.
    """
    config = {key: value for key, value in config.items() if value is not None}
    if name == "auto" and "prompt_column" in config:
        name = "prompt_solution"
    elif name == "auto":
        name = max(MAPPERS, key=lambda key: MAPPERS[key].fit(columns))
        if not MAPPERS[name].fit(columns):
            fix = f"name one of {', '.join(MAPPERS)}, or set prompt_column and solution_column"
            raise RecipeError(f"mapper: auto: none fits the columns {sorted(columns)}. Fix: {fix}")
    mapper = MAPPERS.resolve(name)
    if not (isinstance(mapper, type) and issubclass(mapper, Mapper)):
        fix = "class NAME(Mapper), whose __call__(self, row) returns {'question': …, 'solution': …}"
        raise RecipeError(
            f"mapper {name!r}: must be a subclass of r1_recipes.data.Mapper, got "
            f"{mapper!r:.80}. Fix: {fix}"
        )
    fields = {f.name for f in dataclasses.fields(mapper)}
    if strange := [key for key in config if key not in fields]:
        raise RecipeError(unknown_name(f"key of mapper {name!r}", strange[0], fields))
    with own_code(
        f"mapper {name!r}", mapper, fix="a default for each field; mapper_config sets them"
    ):
        return mapper(**config)


def check_choice(key: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise RecipeError("mapper_config: " + unknown_name(key, value, choices))


def check_template(template: str | None, *slots: str) -> None:
    if template is not None and not all(slot in template for slot in slots):
        raise RecipeError(
            f"mapper_config: template: must hold {' and '.join(slots)}, got {template!r}"
        )


def as_text(value: Any, column: str) -> str:
    """A cell as text, stripped; ``""`` if it is null, NaN (pandas' missing value) or a
    spreadsheet's error (``#N/A``).
    """
    if isinstance(value, list | dict):
        raise SkipRow(f"column {column!r} holds a {type(value).__name__}, not a text")
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise SkipRow(f"column {column!r} holds bytes that are not UTF-8") from None
    text = (
        "" if value is None or value != value else str(value).strip()
    )  # a gold may be the number 0
    return "" if re.fullmatch(r"#(N/A|[A-Z]+(/0)?[!?])", text) else text


def optional_text(row: dict[str, Any], column: str) -> str:
    return as_text(row.get(column), column)


def required_text(row: dict[str, Any], column: str) -> str:
    if not (text := as_text(row.get(column), column)):
        raise SkipRow(f"column {column!r} is empty")
    return text


def last_boxed(text: str) -> str:
    r"""What the last balanced ``\boxed{…}`` of ``text`` holds, stripped; ``""`` if there
    is none.
    """
    text = one_spelling_of_boxes(text)
    boxes = [text[start:end].strip() for start, end in boxed_spans(text)]
    return boxes[-1] if boxes else ""
