"""One mapper per dataset family: a source row -> question, solution and, where the source has one, worked reasoning or a whole response.

A mapper reads columns and nothing else; the response format turns what it returns into prompts and targets.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.countdown import Verdict, check, read_puzzle, search, steps
from r1_recipes.errors import RecipeError, unknown_name
from r1_recipes.formats import FORMATS, boxed_spans
from r1_recipes.rewards.registry import import_object

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
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[tuple[dict[str, Any], ...]] = ()

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


@register_mapper("openr1_math")
@dataclass(frozen=True)
class OpenR1Math(Mapper):
    """open-r1/OpenR1-Math-220k: the first of a problem's ``generations`` that is complete and correct is the response.

    Correct is what ``correctness_math_verify`` says, or ``correctness_llama`` where the former is null. A row without such a generation
    still has question and gold, for GRPO. The set's own choice among its generations is its ``messages``: mapper ``conversations``.
    """

    columns: ClassVar[tuple[str, ...]] = ("problem", "answer", "generations", "correctness_math_verify")
    optional: ClassVar[tuple[str, ...]] = ("solution", "is_reasoning_complete", "correctness_llama")
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "problem": "Find $2+2$.",
            "solution": "Two and two is $\\boxed{4}$.",
            "answer": "4",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "olympiads",
            "uuid": "u1",
            "is_reasoning_complete": [False, True],
            "generations": ["<think>\nTwo and two", "<think>\nTwo and two is four.\n</think>\n\nThe sum is $\\boxed{4}$."],
            "correctness_math_verify": [False, True],
            "correctness_llama": None,
            "finish_reasons": None,
            "correctness_count": 1,
            "messages": [
                {"role": "user", "content": "Find $2+2$."},
                {"role": "assistant", "content": "<think>\nTwo and two is four.\n</think>\n\nThe sum is $\\boxed{4}$."},
            ],
        },
        {
            "problem": "Find $\\sqrt{81}$.",
            "solution": "It is 9.",
            "answer": "9",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "cn_contest",
            "uuid": "u2",
            "is_reasoning_complete": [True],
            "generations": ["<think>\n9 times 9 is 81.\n</think>\n\\boxed{9}"],
            "correctness_math_verify": None,
            "correctness_llama": [True],
            "finish_reasons": ["stop"],
            "correctness_count": 1,
            "messages": [
                {"role": "user", "content": "Find $\\sqrt{81}$."},
                {"role": "assistant", "content": "<think>\n9 times 9 is 81.\n</think>\n\\boxed{9}"},
            ],
        },
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = Math()(row)
        return {"question": mapped["question"], "solution": mapped["solution"], "response": _first_correct(row)}


def _first_correct(row: dict[str, Any]) -> str:
    texts = row["generations"] if isinstance(row["generations"], list) else []
    complete, verified, judged = (
        _padded(row.get(column), len(texts)) for column in ("is_reasoning_complete", "correctness_math_verify", "correctness_llama")
    )
    for text, whole, right, second in zip(texts, complete, verified, judged, strict=True):
        if isinstance(text, str) and text.strip() and whole is True and (right if right is not None else second) is True:
            return text
    return ""


def _padded(values: Any, length: int) -> list[Any]:
    """A list that should be parallel to another one and may be null, or of another length."""
    values = values if isinstance(values, list) else []
    return (values + [None] * length)[:length]


@register_mapper("reasoning_columns")
@dataclass(frozen=True)
class ReasoningColumns(Mapper):
    """Question, reasoning and answer in columns of their own; the response format joins them. The answer is the gold, too.

    Attributes:
        question_column: column of the question; the defaults are those of FreedomIntelligence/medical-o1-reasoning-SFT.
        reasoning_column: column of the reasoning.
        answer_column: column of the answer.
    """

    question_column: str = "Question"
    reasoning_column: str = "Complex_CoT"
    answer_column: str = "Response"
    columns: ClassVar[tuple[str, ...]] = ("Question", "Complex_CoT", "Response")
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "Question": "Which vitamin deficiency causes scurvy?",
            "Complex_CoT": "Bleeding gums point to weak collagen. Its synthesis needs vitamin C.",
            "Response": "Vitamin C.",
        },
        {
            "Question": "Which organ makes insulin?",
            "Complex_CoT": "Insulin comes from the islets of Langerhans.\nThose lie in the pancreas.",
            "Response": "The pancreas.",
        },
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        return [c for c in (self.question_column, self.reasoning_column, self.answer_column) if c not in columns]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "question": _text(row, self.question_column),
            "reasoning": _text(row, self.reasoning_column),
            "solution": _text(row, self.answer_column),
        }


_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
_THOUGHT = ("<|begin_of_thought|>", "<|end_of_thought|>")
_SOLUTION = ("<|begin_of_solution|>", "<|end_of_solution|>")


@register_mapper("conversations")
@dataclass(frozen=True)
class Conversations(Mapper):
    """Chats: ``messages`` (role, content) or ``conversations`` (from, value), with an optional column ``system``.

    The last assistant's turn is the response, the turns before it are its history, what follows it is left out. ``human`` is ``user``,
    ``gpt`` is ``assistant``; after an optional system message the two must alternate. The wrappers of Sky-T1, OpenThoughts and
    Bespoke-Stratos (``<|begin_of_thought|>…<|begin_of_solution|>…``) become ``<think>``, and a system message that asks for them goes.

    Attributes:
        well_formed: the response must be one reasoning block and one answer in the recipe's response format; false: general chat data.
        messages_column: column of the turns; ``None``: ``messages`` where it is there and filled, else ``conversations``.
    """

    well_formed: bool = True
    messages_column: str | None = None
    columns: ClassVar[tuple[str, ...]] = ("messages",)
    optional: ClassVar[tuple[str, ...]] = ("conversations", "system")
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "messages": [
                {"role": "user", "content": "What is 6*7?"},
                {"role": "assistant", "content": "<think>\n6*7 is 42.\n</think>\n\nIt is $\\boxed{42}$."},
            ],
            "num_tokens": 24,
            "source": "demo",
        },
        {
            "system": "Reason, then answer.",
            "conversations": [
                {"from": "user", "value": "What is 8*9?"},
                {
                    "from": "assistant",
                    "value": "<|begin_of_thought|>\n\n8*9 is 72.\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\nIt is \\boxed{72}."
                    "\n\n<|end_of_solution|>",
                },
            ],
        },
        {
            "conversations": [
                {"from": "human", "value": "What is 2+3?"},
                {"from": "gpt", "value": "<think>\n2+3 is 5.\n</think>\n<answer>\n5\n</answer>"},
                {"from": "human", "value": "And twice that?"},
                {"from": "gpt", "value": "<think>\nTwice 5 is 10.\n</think>\n<answer>\n10\n</answer>"},
            ],
        },
    )

    @classmethod
    def fit(cls, columns: Collection[str]) -> int:
        # One, however many: NuminaMath has messages too, and a mapper that knows a set's other columns knows more of it.
        return int("messages" in columns or "conversations" in columns)

    def missing(self, columns: Collection[str]) -> list[str]:
        if self.messages_column:
            return [] if self.messages_column in columns else [self.messages_column]
        return [] if self.fit(columns) else ["messages (or conversations)"]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        names = [self.messages_column] if self.messages_column else [name for name in ("messages", "conversations") if name in row]
        column = next((name for name in names if row[name]), names[0])
        return {**read_conversation(read_turns(row[column], column), row.get("system")), "well_formed": self.well_formed}


def read_turns(value: Any, column: str) -> list[dict[str, str]]:
    """A column's turns as ``{"role": "system" | "user" | "assistant", "content": text}``.

    Args:
        value: a list of mappings with role and content, or from and value; or one mapping of such lists, as Arrow may hold it.
        column: named in the reason.

    Raises:
        SkipRow: it is empty, or not that.
    """
    if isinstance(value, dict):
        lists = {key: items for key, items in value.items() if isinstance(items, list)}
        if len({len(items) for items in lists.values()}) > 1:
            raise SkipRow(f"column {column!r} holds roles and contents of different number")
        value = [dict(zip(lists, items, strict=True)) for items in zip(*lists.values(), strict=True)]
    if value is None or value == []:
        raise SkipRow(f"column {column!r} is empty")
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise SkipRow(f"column {column!r} is no list of turns")
    turns = []
    for turn in value:
        role = turn.get("from") if turn.get("role") is None else turn["role"]
        content = turn.get("value") if turn.get("content") is None else turn["content"]
        role = _ROLES.get(role.strip().lower()) if isinstance(role, str) else None
        if role is None:
            raise SkipRow("a turn's role is none of system, user (human), assistant (gpt)")
        if not isinstance(content, str):
            raise SkipRow("a turn's content is not text")
        turns.append({"role": role, "content": content})
    return turns


def read_conversation(turns: list[dict[str, str]], system: Any = None) -> dict[str, Any]:
    """``question``, ``response`` and ``messages`` of a conversation whose last assistant's turn is the response.

    Args:
        turns: as :func:`read_turns` gives them.
        system: the system message, where the turns have none of their own.

    Raises:
        SkipRow: no assistant's turn, an empty turn, or turns that do not alternate.
    """
    if turns[0]["role"] == "system":
        system, turns = turns[0]["content"], turns[1:]
    answers = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not answers:
        raise SkipRow("no assistant's turn")
    turns = turns[: answers[-1] + 1]
    if not all(turn["content"].strip() for turn in turns):
        raise SkipRow("a turn is empty")
    roles = [turn["role"] for turn in turns]
    if roles != ["user", "assistant"] * (len(turns) // 2):
        raise SkipRow("the turns do not alternate between user and assistant")
    messages = [{**turn, "content": _with_think_tags(turn["content"])} for turn in turns]
    response = messages.pop()["content"]
    question = messages[-1]["content"].strip()
    # What asks for wrappers that are no longer there would contradict the response.
    if isinstance(system, str) and system.strip() and _THOUGHT[0] not in system:
        messages.insert(0, {"role": "system", "content": system})
    return {"question": question, "response": response, "messages": messages}


def _with_think_tags(text: str) -> str:
    """Thought and solution wrappers as ``<think>``; any other text, broken wrappers among them, as it is."""
    before, opened, rest = text.partition(_THOUGHT[0])
    thought, closed, rest = rest.partition(_THOUGHT[1])
    between, _, solution = rest.rpartition(_SOLUTION[0])
    solution, _, after = solution.partition(_SOLUTION[1])
    if not (opened and closed) or before.strip() or between.strip() or after.strip():
        return text
    return f"<think>\n{thought.strip()}\n</think>\n{solution.strip()}"


@register_mapper("generated")
@dataclass(frozen=True)
class Generated(Mapper):
    """What ``r1_recipes.generate`` writes: ``question``, ``response`` (not in prompt-only data), ``solution``, ``pass_rate`` and more.

    ``scorer`` and ``task`` go on to the rewards; ``pass_rate``, ``tokens`` and ``scores`` are there for people and filters.

    Attributes:
        well_formed: the response must be one reasoning block and one answer in the recipe's response format.
    """

    well_formed: bool = True
    columns: ClassVar[tuple[str, ...]] = ("question", "pass_rate")
    optional: ClassVar[tuple[str, ...]] = ("response", "solution", "scorer", "task", "tokens", "scores")
    # A generation recipe writes responses in its own format, whichever that is.
    examples: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {
            "question": f"What is {number}+{number}?",
            "response": fmt.render(f"{number} and {number} is {2 * number}.", str(2 * number)),
            "solution": str(2 * number),
            "pass_rate": 0.5,
            "tokens": 20,
            "scores": {"accuracy": 1.0, "format": 1.0},
        }
        for number, fmt in enumerate(FORMATS.values(), start=2)
    )

    def missing(self, columns: Collection[str]) -> list[str]:
        return [] if "question" in columns else ["question"]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        mapped = {"question": _text(row, "question"), "solution": _optional_text(row, "solution"), "well_formed": self.well_formed}
        if "response" in row:
            mapped["response"] = row["response"] if isinstance(row["response"], str) else ""
        return mapped | {column: _optional_text(row, column) for column in ("scorer", "task") if column in row}


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


_COUNTDOWN_TEMPLATES = {
    "en": "Make {target} out of the numbers {numbers}. Use each of them exactly once, with +, -, *, / and brackets as needed. "
    "Answer with the expression alone.",
    "zh": "请用 {numbers} 中的每个数各一次，借助 +、-、*、/ 和括号，算出 {target}。答案只写算式。",
}


@register_mapper("countdown")
@dataclass(frozen=True)
class Countdown(Mapper):
    """Jiayi-Pan/Countdown-Tasks-3to4 and the source ``countdown:``: ``nums``, ``target`` and, in the latter, a solution, ``expression``.

    The row's ``scorer`` judges by :func:`r1_recipes.countdown.check`; ``task`` is ``countdown``. Where there is a solution, it is an SFT
    target's answer, and the reasoning is made from it.

    Attributes:
        template: the question, with ``{numbers}`` (filled in as ``[7, 4, 3]``) and ``{target}``; ``None``: a wording of ours.
        language: of that wording: ``en`` or ``zh``.
        reasoning: ``steps``: the solution's operations, one a line, as if it had been known; ``search``: tries, wrong ones rejected, up to
            the solution (:func:`r1_recipes.countdown.search`), which a model can carry over to puzzles that it has not seen. A search of
            three numbers may take a hundred lines, of four many more.
        worked_share: share of rows (0..1, by row, the same every time) with that reasoning. The others guess an
            expression of the numbers and answer that, as a hasty teacher would; it is usually wrong. See :class:`Arithmetic`.

    Raises:
        RecipeError: the template lacks a slot, or there is no such language or reasoning.
    """

    template: str | None = None
    language: str = "en"
    reasoning: str = "steps"
    worked_share: float = 1.0
    columns: ClassVar[tuple[str, ...]] = ("nums", "target")
    optional: ClassVar[tuple[str, ...]] = ("expression",)
    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {"target": 31, "nums": [7, 4, 3], "expression": "7 * 4 + 3"},
        {"target": 24, "nums": [8, 2, 4], "expression": "(8 - 2) * 4"},
        {"target": 98, "nums": [44, 19, 35]},
    )

    def __post_init__(self) -> None:
        if self.language not in _COUNTDOWN_TEMPLATES:
            raise RecipeError("mapper_config: " + unknown_name("language", self.language, _COUNTDOWN_TEMPLATES))
        if self.reasoning not in ("steps", "search"):
            raise RecipeError("mapper_config: " + unknown_name("reasoning", self.reasoning, ("steps", "search")))
        if self.template is not None and not all(slot in self.template for slot in ("{numbers}", "{target}")):
            raise RecipeError(f"mapper_config: template: needs {{numbers}} and {{target}} where they go; found {self.template!r}")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        puzzle = read_puzzle(row.get("nums"), row.get("target"))
        if puzzle is None:
            raise SkipRow("columns 'nums' and 'target' hold no whole numbers from 0 and a whole target")
        numbers, expression = list(puzzle.numbers), _optional_text(row, "expression")
        question = self.template or _COUNTDOWN_TEMPLATES[self.language]
        question = question.replace("{numbers}", str(numbers)).replace("{target}", str(puzzle.target))
        mapped = {"question": question, "solution": expression, "scorer": puzzle.scorer, "task": "countdown"}
        if not expression:
            return mapped
        if check(expression, *puzzle) is not Verdict.RIGHT:
            raise SkipRow("column 'expression' does not make the target out of 'nums'")
        drawn = zlib.crc32(mapped["scorer"].encode())
        if drawn < self.worked_share * 2**32:
            if self.reasoning == "steps":
                return {**mapped, "reasoning": "\n".join(steps(expression))}
            found = search(*puzzle)
            if found is None:
                raise SkipRow("no steps in whole numbers from 0 make the target")
            return {**mapped, "reasoning": "\n".join(found[0]), "answer": found[1]}
        guess = str(numbers[0])
        for position, number in enumerate(numbers[1:]):
            guess += f" {'+-*'[(drawn >> 4 * position) % 3]} {number}"
        return {**mapped, "reasoning": f"Perhaps {guess} is {puzzle.target}.", "answer": guess}


@register_mapper("verl")
@dataclass(frozen=True)
class Verl(Mapper):
    """veRL's preprocessed Parquet, TinyZero's among it: ``data_source``, ``prompt``, ``reward_model`` (with ``ground_truth``).

    The question is the last turn of the prompt, which must be the user's, verbatim: it may be a whole template that ends in an open
    ``<think>``. Earlier turns, a system message among them, go before it. ``data_source`` becomes the ``task``. A ground truth with
    ``numbers`` and ``target`` is a Countdown puzzle (column ``scorer``); a number or a text is the ``solution``.
    """

    columns: ClassVar[tuple[str, ...]] = ("data_source", "prompt", "reward_model")
    optional: ClassVar[tuple[str, ...]] = ("ability", "extra_info")
    # One column holds one type: ground truths of other kinds are in the tests.
    examples: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {
            "target": target,
            "nums": numbers,
            "data_source": "countdown",
            "prompt": [{"role": "user", "content": f"User: Make {target} of {numbers}.\nAssistant: Step by step.\n<think>"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": {"target": target, "numbers": numbers}},
            "extra_info": {"split": "train", "index": index},
        }
        for index, (target, numbers) in enumerate(((31, [7, 4, 3]), (24, [8, 2, 4])))
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        prompt = row["prompt"]
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else read_turns(prompt, "prompt")
        if turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
            raise SkipRow("column 'prompt' does not end in a turn of the user's")
        mapped = {"question": turns[-1]["content"], "task": _text(row, "data_source"), **_ground_truth(row["reward_model"])}
        return {**mapped, "messages": turns} if len(turns) > 1 else mapped


def _ground_truth(rule: Any) -> dict[str, str]:
    """``solution`` and, of a Countdown puzzle, ``scorer``."""
    truth = rule.get("ground_truth") if isinstance(rule, dict) else None
    if isinstance(truth, dict):
        puzzle = read_puzzle(truth.get("numbers"), truth.get("target"))
        if puzzle is not None:
            return {"solution": "", "scorer": puzzle.scorer}
    elif isinstance(truth, str | int | float) and not isinstance(truth, bool) and str(truth).strip():
        return {"solution": str(truth).strip()}
    raise SkipRow("column 'reward_model' has no ground_truth that is a number, a text, or numbers and a target")
