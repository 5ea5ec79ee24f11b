"""What every mapper is, and the registry of their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.plugins import import_object

MAPPERS: dict[str, type[Mapper]] = {}


class SkipRow(Exception):
    """This row cannot be used; the text says why, and is counted."""


@dataclass(frozen=True)
class Mapper:
    """Base of the mappers.

    Calling one with a row (a dict of the source's columns) returns ``question`` (str) and, as far as the source has them:

    - ``solution`` (str): the gold answer, what ``accuracy`` compares with;
    - ``reasoning`` (str): worked solution, and ``answer`` (str): what goes with it, where that is not the gold; the response format
      writes the SFT target of both;
    - ``response`` (str): a whole assistant's turn, the SFT target as it is (``""``: this row has none), and ``well_formed`` (bool,
      default true): whether it must be in the response format;
    - ``messages``: the turns before that response, the last one the user's, possibly after a system message;
    - further task columns, which reach the rewards.

    It raises :class:`SkipRow` for a row without what is needed.

    Class attributes:
        name: registry name; the class's own name where it is not registered.
        columns: columns that must be there.
        optional: columns that are read where they are there.
        examples: invented rows in the source's true schema, for tests, documentation and ``--smoke``.
        named_by: of the columns in ``examples`` that a recipe may call otherwise: the field that holds the name.
        images: whether rows come with a picture, ``image``, for a vision-language model.
        hub: published sets in this schema, as (id, configuration): what ``R1_TEST_HUB=1 pytest tests/data/test_hub.py`` compares with.
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[tuple[dict[str, Any], ...]] = ()
    named_by: ClassVar[dict[str, str]] = {}
    images: ClassVar[bool] = False
    hub: ClassVar[tuple[tuple[str, str | None], ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

    @classmethod
    def fit(cls, columns: Collection[str]) -> int:
        """How many of ``columns`` this mapper knows, or 0 where one that it needs is not among them; ``auto`` takes the highest."""
        if not cls.columns or not set(cls.columns) <= set(columns):
            return 0
        return len(set(cls.columns + cls.optional) & set(columns))

    def missing(self, columns: Collection[str]) -> list[str]:
        """The needed columns that are not among ``columns``."""
        return [column for column in map(self._named, self.columns) if column not in columns]

    def example_rows(self) -> list[dict[str, Any]]:
        """``examples`` with the columns as this mapper reads them."""
        return [{self._named(column): value for column, value in row.items()} for row in self.examples]

    def _named(self, column: str) -> str:
        return (getattr(self, self.named_by[column]) if column in self.named_by else None) or column

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


def register_mapper(name: str) -> Callable[[type[Mapper]], type[Mapper]]:
    """Class decorator that makes a :class:`Mapper` available to recipes as ``name``.

    Raises:
        ValueError: the name is taken by another class.
    """

    def decorate(mapper: type[Mapper]) -> type[Mapper]:
        known = MAPPERS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (mapper.__module__, mapper.__qualname__):
            raise ValueError(f"mapper name {name!r} is taken by {known.__module__}:{known.__qualname__}")
        mapper.name = name
        MAPPERS[name] = mapper
        return mapper

    return decorate


def get_mapper(name: str, columns: Collection[str] = (), **config: Any) -> Mapper:
    """Build a mapper.

    Args:
        name: a registered name, ``my_module:my_mapper``, or ``"auto"``: of the registered ones whose columns are all there, the one
            that knows the most of ``columns`` (see :meth:`Mapper.fit`), of equals the one registered first.
        columns: the dataset's columns, for ``"auto"``.
        **config: the mapper's own fields; ``None`` means not set.

    Raises:
        RecipeError: unknown name or field, or no mapper fits the columns.
    """
    config = {key: value for key, value in config.items() if value is not None}
    if name == "auto":
        if "prompt_column" in config:
            name = "prompt_solution"
        else:
            # reasoning_gym's columns are gsm8k's and one more.
            name = max(MAPPERS, key=lambda key: MAPPERS[key].fit(columns))
            if not MAPPERS[name].fit(columns):
                raise RecipeError(
                    f"mapper: auto: none fits the columns {sorted(columns)}; name one of {', '.join(MAPPERS)}, or set prompt_column and "
                    "solution_column"
                )
    if ":" in name:
        try:
            mapper = import_object(name, "mapper")
        except ValueError as error:
            raise RecipeError(str(error)) from error
    elif name in MAPPERS:
        mapper = MAPPERS[name]
    else:
        raise RecipeError(unknown_name("mapper", name, [*MAPPERS, "auto"]))
    if not (isinstance(mapper, type) and issubclass(mapper, Mapper)):
        raise RecipeError(f"mapper {name!r} is not a subclass of r1_recipes.data.Mapper")
    fields = {f.name for f in dataclasses.fields(mapper)}
    for key in config:
        if key not in fields:
            raise RecipeError(unknown_name(f"key of mapper {name!r}", key, fields))
    return mapper(**config)


def as_text(value: Any, column: str) -> str:
    """A cell as text, stripped; ``""`` where it is null or not a number (pandas' missing value).

    Raises:
        SkipRow: it is no single value, or bytes that are not UTF-8.
    """
    if isinstance(value, list | dict):
        raise SkipRow(f"column {column!r} holds a {type(value).__name__}, not a text")
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise SkipRow(f"column {column!r} holds bytes that are not UTF-8") from None
    return "" if value is None or value != value else str(value).strip()  # a gold may be the number 0


def optional_text(row: dict[str, Any], column: str) -> str:
    """The column as :func:`as_text` has it; ``""`` where it is not there."""
    return as_text(row.get(column), column)


def required_text(row: dict[str, Any], column: str) -> str:
    """The column as text, stripped.

    Raises:
        SkipRow: it is null, blank, or not there; or as :func:`as_text`.
    """
    text = optional_text(row, column)
    if not text:
        raise SkipRow(f"column {column!r} is empty")
    return text
