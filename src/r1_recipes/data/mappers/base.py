"""The registry of mappers, and how they read cells.

A mapper is a function that turns a row of a source into a question, a reference answer and, if
present, reasoning or a response. Its keyword arguments are the keys of ``mapper_config``; those
called ``…_column`` name a column. Your own needs no entry here: ``mapper: my_file.py:quiz``.

    >>> def quiz(row, suffix=""):
    ...     return {"question": row["frage"] + suffix, "solution": row["antwort"]}
"""

import contextlib
import functools
import inspect
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.plugins import Registry
from r1_recipes.data.messages import SkipRow

# What a mapper returns: ``question``, and what else the source has. Every row has the same keys,
# and "" means none. Any other key becomes a column, which the rewards see.
#   solution     the reference answer; rewards compare with it
#   messages     the whole prompt, if it is more than the question, which its last message holds
#   reasoning    with ``answer`` (default: the solution) the SFT target, written in the format
#   response     the SFT target as it is, or the better of two; ``rejected`` is the worse
#   well_formed  whether the response must be in the recipe's response format
#   calls        calls of tools between the question and the SFT target: name, arguments, result
#   turns        a whole conversation for SFT, in place of a question
#   image        a picture, for a vision-language model
MappedRow = dict[str, Any]
Mapper = Callable[[dict[str, Any]], MappedRow]

MAPPERS: Registry[Any] = Registry("mapper")
THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")


def register_mapper(name: str, *columns: str) -> Callable[[Any], Any]:
    """Return a decorator that makes a mapper available to recipes.

    Args:
        name: The name that ``mapper`` takes in a recipe.
        *columns: The columns that the mapper needs; ``a|b`` is either. ``mapper: auto`` takes the
            mapper for a source that has them.
    """

    def decorate(function: Any) -> Any:
        function.columns = columns
        return MAPPERS.register(name, function)

    return decorate


def get_mapper(name: str, columns: Collection[str] = (), /, **config: Any) -> Mapper:
    """Return a mapper with its ``mapper_config``.

    Args:
        name: A registered mapper, ``my_module:my_mapper``, or ``"auto"`` for the registered one
            that knows the most of the columns.
        columns: The columns of the source, if they are known.
        **config: The mapper's keyword arguments; ``None`` means not set.

    Raises:
        RecipeError: No mapper has this name or fits these columns, or an argument is unknown.
    """
    config = {key: value for key, value in config.items() if value is not None}
    if name == "auto":
        name = "prompt_solution" if "prompt_column" in config else _fitting(columns)
    function = MAPPERS.resolve(name)
    if inspect.isclass(function) or not callable(function):
        fix = "def NAME(row, key=default): return {'question': …, 'solution': …}"
        raise RecipeError(f"mapper {name!r}: must be a function, got {function!r:.80}. Fix: {fix}")
    parameters = dict([*inspect.signature(function).parameters.items()][1:])
    for key, column in config.items():
        if key not in parameters:
            raise RecipeError(unknown_name(f"key of mapper {name!r}", key, parameters))
        if columns and key.endswith("_column") and column and column not in columns:
            raise RecipeError(f"{key}: {unknown_name('column', column, columns)}")
    found = {*columns, *(parameters[key].default for key in config if key.endswith("_column"))}
    needed: tuple[str, ...] = getattr(function, "columns", ())
    lacking = [group for group in needed if columns and not found & {*group.split("|")}]
    if lacking:
        names = ", ".join(f"'{group}'" for group in lacking).replace("|", "' or '")
        there = ", ".join(columns)
        raise RecipeError(f"mapper {name!r} needs column {names}; the source has {there}")
    return functools.partial(function, **config)


def _fitting(columns: Collection[str]) -> str:
    """Return the mapper that needs the most of these columns and misses none."""
    fitting = {}
    for name, function in MAPPERS.items():
        groups = [{*group.split("|")} for group in function.columns]
        if groups and all(group & {*columns} for group in groups):
            fitting[name] = len(groups)
    if not fitting:
        raise RecipeError(
            f"mapper: auto: no mapper fits the columns {', '.join(columns)}. "
            f"Fix: name one of {', '.join(MAPPERS)}, or set prompt_column and solution_column"
        )
    return max(fitting, key=lambda name: fitting[name])


def example_rows(name: str) -> list[dict[str, Any]]:
    """Return invented rows in the schema that a mapper reads: those of ``examples/NAME.jsonl``.

    A mapper of your own has them in its attribute ``examples``.
    """
    function = MAPPERS.resolve(name)
    path = Path(inspect.getfile(function)).parent / "examples" / f"{name}.jsonl"
    if path.is_file():
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list(getattr(function, "examples", ()))


def text(row: dict[str, Any], column: str, needed: bool = True) -> str:
    """Return a cell as stripped text, as its author wrote it, or ``""`` if it is empty or missing.

    A list of one is what it holds. An empty cell skips the row if the mapper needs it.
    """
    value = row.get(column)
    if isinstance(value, str) and value.startswith('["') and value.endswith('"]'):
        with contextlib.suppress(ValueError):  # a list in a text, as in Skywork-OR1
            value = json.loads(value)
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) and value:
        raise SkipRow(
            f"column {column!r} holds {len(value)} values instead of one text. Fix: a mapper of "
            f"your own that chooses one: def first(row): return {{'question': …, 'solution': "
            f"row[{column!r}][0]}}"
        )
    if isinstance(value, dict | bytes):
        raise SkipRow(f"column {column!r} holds a {type(value).__name__} instead of a text")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)  # 72 in a column with decimals, or with an empty cell
    # Do not test for truth: a reference answer may be the number 0. NaN is not equal to itself.
    cell = "" if value is None or value == [] or value != value else str(value).strip()
    if needed and not cell:
        raise SkipRow(f"column {column!r} is empty")
    return cell
