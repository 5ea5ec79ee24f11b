"""One mapper per dataset family: a source row -> question, solution and, where the source has one, the worked reasoning.

A mapper reads columns and nothing else; the response format turns what it returns into prompts and targets.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.errors import RecipeError, unknown_name
from r1_recipes.formats import boxed_spans
from r1_recipes.rewards.registry import import_object

MAPPERS: dict[str, type[Mapper]] = {}


class SkipRow(Exception):
    """This row cannot be used; the text says why, and is counted."""


@dataclass(frozen=True)
class Mapper:
    """Base of the mappers.

    Calling one with a row (a dict of the source's columns) returns ``question`` (str), ``solution`` (str: the gold answer, what
    ``accuracy`` compares with), optionally ``reasoning`` (str: worked solution, for SFT) and ``answer`` (str: what the SFT target answers,
    where that is not the gold), and optionally further task columns.
    It raises :class:`SkipRow` for a row without what is needed.

    Class attributes:
        name: registry name; the class's own name where it is not registered.
        columns: columns that must be there.
        examples: invented rows in the source's true schema, for tests, documentation and ``--smoke``.
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[tuple[dict[str, Any], ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

    def missing(self, columns: Collection[str]) -> list[str]:
        """The needed columns that are not among ``columns``."""
        return [column for column in self.columns if column not in columns]

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
        name: a registered name, ``my_module:my_mapper``, or ``"auto"``: the registered one with the most columns that are all there.
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
            fits = [key for key, mapper in MAPPERS.items() if mapper.columns and set(mapper.columns) <= set(columns)]
            # reasoning_gym's columns are gsm8k's and one more.
            fits.sort(key=lambda key: -len(MAPPERS[key].columns))
            if not fits:
                raise RecipeError(
                    f"mapper: auto: none fits the columns {sorted(columns)}; name one of {', '.join(MAPPERS)}, or set prompt_column and "
                    "solution_column"
                )
            name = fits[0]
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


def last_boxed(text: str) -> str | None:
    r"""What the last balanced ``\boxed{…}`` of ``text`` holds, stripped; ``None`` where there is none."""
    content = None
    for start, end in boxed_spans(text):
        content = text[start:end].strip()
    return content or None


def _optional_text(row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    return "" if value is None else str(value).strip()  # a gold may be the number 0


def _text(row: dict[str, Any], column: str) -> str:
    text = _optional_text(row, column)
    if not text:
        raise SkipRow(f"column {column!r} is empty")
    return text


@register_mapper("gsm8k")
@dataclass(frozen=True)
class GSM8K(Mapper):
    """openai/gsm8k, modelscope/gsm8k: ``question``, ``answer`` (steps with ``<<…>>`` marks, then ``#### gold``).

    The gold loses its thousands commas; the reasoning loses the calculator marks.
    """

    columns: ClassVar[tuple[str, ...]] = ("question", "answer")
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {"question": "Ana has 3 boxes of 4 pens. How many pens does she have?", "answer": "3*4=<<3*4=12>>12 pens.\n#### 12"},
        {
            "question": "A shop sells 40 crates of 30 lamps. How many lamps is that?",
            "answer": "One crate holds 30 lamps.\n40*30=<<40*30=1200>>1200 lamps.\n#### 1,200",
        },
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        reasoning, mark, gold = _text(row, "answer").rpartition("####")
        gold = gold.strip().replace(",", "")
        if not mark or not gold:
            raise SkipRow("no '#### gold' in column 'answer'")
        reasoning = re.sub(r"<<[^<>]*>>", "", reasoning).strip()
        return {"question": _text(row, "question"), "solution": gold, "reasoning": reasoning}


@register_mapper("math")
@dataclass(frozen=True)
class Math(Mapper):
    r"""MATH, MATH-500, NuminaMath, OpenR1-Math-220k: ``problem`` with ``answer``, or with the gold boxed last in ``solution``.

    Attributes:
        prompt_column: column of the problem.
        solution_column: column of the gold; ``None``: ``answer`` where it is there and filled, else the last ``\boxed{}`` of ``solution``.
        reasoning_column: column of the worked solution.
    """

    prompt_column: str = "problem"
    solution_column: str | None = None
    reasoning_column: str = "solution"
    columns: ClassVar[tuple[str, ...]] = ("problem",)
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {"problem": "Solve $2x=6$.", "level": "Level 1", "type": "Algebra", "solution": "Divide by 2: $x=\\boxed{3}$."},
        {"problem": "Find $\\frac12+\\frac14$.", "solution": "Over 4: $\\boxed{\\frac{3}{4}}$", "answer": "\\frac{3}{4}"},
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        absent = [column for column in (self.prompt_column, self.solution_column) if column and column not in columns]
        if not self.solution_column and "answer" not in columns and self.reasoning_column not in columns:
            absent.append(f"answer (or {self.reasoning_column})")
        return absent

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        question = _text(row, self.prompt_column)
        reasoning = _optional_text(row, self.reasoning_column)
        gold = _optional_text(row, self.solution_column or "answer")
        # A gold column may hold the whole worked solution, with the answer boxed.
        gold = last_boxed(gold) or gold or last_boxed(reasoning) or ""
        if not gold:
            raise SkipRow(f"no gold in column {self.solution_column or 'answer'!r} and no \\boxed{{}} in {self.reasoning_column!r}")
        return {"question": question, "solution": gold, "reasoning": reasoning}


@register_mapper("prompt_solution")
@dataclass(frozen=True)
class PromptSolution(Mapper):
    """Any dataset: the recipe names the columns. A prompt that is a conversation contributes its last user message.

    Attributes:
        prompt_column: column of the question.
        solution_column: column of the gold.
        reasoning_column: column of the worked solution, for SFT.
    """

    prompt_column: str = "prompt"
    solution_column: str = "solution"
    reasoning_column: str | None = None
    columns: ClassVar[tuple[str, ...]] = ("prompt", "solution")
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {"prompt": "Find the least prime above 20.", "solution": "23", "reasoning": "21 and 22 are composite, 23 is prime."},
        {"prompt": [{"role": "user", "content": "What is 7 - 9?"}], "solution": "-2", "reasoning": "9 - 7 = 2, so 7 - 9 = -2."},
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        return [c for c in (self.prompt_column, self.solution_column, self.reasoning_column) if c and c not in columns]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        prompt = row.get(self.prompt_column)
        if isinstance(prompt, list):
            turns = [message.get("content") for message in prompt if message.get("role") in ("user", "human")]
            prompt = turns[-1] if turns else None
        if not str(prompt or "").strip():
            raise SkipRow(f"column {self.prompt_column!r} is empty")
        mapped = {"question": str(prompt).strip(), "solution": _text(row, self.solution_column)}
        if self.reasoning_column:
            mapped["reasoning"] = _text(row, self.reasoning_column)
        return mapped


@register_mapper("reasoning_gym")
@dataclass(frozen=True)
class ReasoningGym(Mapper):
    """A task of reasoning-gym: ``question``, ``answer``, ``metadata``; the task's own scorer judges (column ``scorer``)."""

    columns: ClassVar[tuple[str, ...]] = ("question", "answer", "metadata")
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "question": "State the final answer to the following arithmetic problem: 4 + 3 =",
            "answer": "7",
            "metadata": '{"source_dataset": "chain_sum", "source_index": 0, "expression": "4 + 3"}',
        },
        {
            "question": "State the final answer to the following arithmetic problem: 9 - 5 + 2 =",
            "answer": "6",
            "metadata": '{"source_dataset": "chain_sum", "source_index": 1, "expression": "9 - 5 + 2"}',
        },
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        metadata = json.loads(_text(row, "metadata"))
        gold = _optional_text(row, "answer")
        entry = {"question": _text(row, "question"), "answer": row.get("answer"), "metadata": metadata}
        return {
            "question": entry["question"],
            "solution": gold,
            "scorer": json.dumps({"reasoning_gym": metadata["source_dataset"], "entry": entry}),
        }


@register_mapper("arithmetic")
@dataclass(frozen=True)
class Arithmetic(Mapper):
    """reasoning-gym's chain_sum and basic_arithmetic (+, -, * without brackets), with reasoning written out: a cold start needs no teacher.

    Attributes:
        worked_share: share of rows (0..1, by row, the same every time) whose reasoning works the expression out, one operation a line.
            The others estimate to the nearest ten and answer that, as a hasty teacher would; they are usually wrong. A cold start on
            such a mixture shows the shape of an answer and leaves it to GRPO to find out that working it out pays.
    """

    worked_share: float = 1.0
    examples: ClassVar[tuple[dict[str, Any], ...]] = ReasoningGym.examples

    def missing(self, columns: Collection[str]) -> list[str]:
        return [column for column in ReasoningGym.columns if column not in columns]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = ReasoningGym()(row)
        metadata = json.loads(row["metadata"])
        expression = metadata["expression"]
        # Steps of the golden ratio: any run of rows holds close to this share of worked ones.
        if (metadata["source_index"] * 0.6180339887) % 1.0 < self.worked_share:
            return {**mapped, "reasoning": "\n".join(_operations(expression))}
        estimate = str(round(int(mapped["solution"]), -1))
        return {**mapped, "reasoning": f"{expression} is about {estimate}", "answer": estimate}


def _operations(expression: str) -> list[str]:
    """One line an operation, products first, then from the left."""
    terms = expression.split()
    lines = []
    while len(terms) > 1:
        at = next((index for index in range(1, len(terms), 2) if terms[index] == "*"), 1)
        left, sign, right = int(terms[at - 1]), terms[at], int(terms[at + 1])
        if sign not in ("+", "-", "*"):
            raise SkipRow(f"operation {sign!r} is not written out")
        result = left + right if sign == "+" else left - right if sign == "-" else left * right
        lines.append(f"{left} {sign} {right} = {result}")
        terms[at - 1 : at + 2] = [str(result)]
    return lines
