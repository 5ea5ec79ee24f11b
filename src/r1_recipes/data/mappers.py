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
from r1_recipes.common.plugins import NAMES, Registry
from r1_recipes.data.messages import SkipRow, as_prompt, exchange, read_messages, with_earlier
from r1_recipes.prompts.formats import boxes

# What a mapper returns: ``question``, and what else the source has. Every row has the same keys,
# and "" means none. Any other key becomes a column, which the rewards see.
#   solution     the reference answer; rewards compare with it
#   messages     the whole prompt, if it is more than the question, which the user's last message
#                holds; for SFT, calls of tools and their results may follow it
#   reasoning    with ``answer`` (default: the solution) the SFT target, written in the format
#   response     the SFT target as it is, or the better of two; ``rejected`` is the worse
#   tool_calls   what the response calls, if the SFT target ends in calls of tools
#   well_formed  whether the response must be in the recipe's response format
#   turns        a whole conversation for SFT, in place of a question
#   image        a picture, for a vision-language model
MappedRow = dict[str, Any]
Mapper = Callable[[dict[str, Any]], MappedRow]

MAPPERS: Registry[Any] = Registry("mapper")
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")


def register_mapper(name: str, *columns: str) -> Callable[[Any], Any]:
    """Return a decorator that makes a mapper available to recipes.

    Args:
        name: The name that ``mapper`` takes in a recipe.
        *columns: The columns that the mapper needs; ``a|b`` is either. ``mapper: auto`` takes the
            mapper for a source that has them.
    """

    def decorate(function: Any) -> Any:
        function.columns, MAPPERS[name] = columns, function
        return function

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
    parameters = dict([*inspect.signature(function).parameters.items()][1:])
    for key, column in config.items():
        if key not in parameters:
            raise RecipeError(unknown_name(f"key of mapper {name!r}", key, parameters))
        if columns and key.endswith("_column") and column and column not in columns:
            raise RecipeError(f"{key}: {unknown_name('column', column, columns)}")
    needed = getattr(function, "columns", ())
    lacking = [group for group in needed if not {*columns} & {*group.split("|")}]
    # A column that the recipe names stands in for those that the mapper would look for.
    if columns and lacking and not any("_column" in key for key in config):
        names = ", ".join(f"'{group}'" for group in lacking).replace("|", "' or '")
        raise RecipeError(
            f"mapper {name!r} needs column {names}; the source has {', '.join(columns)}"
        )
    return functools.partial(function, **config)


def fits(name: str, columns: Collection[str]) -> bool:
    """Return whether a registered mapper can be told by its columns, and misses none of them."""
    groups = MAPPERS[name].columns
    return bool(groups) and all({*group.split("|")} & {*columns} for group in groups)


def _fitting(columns: Collection[str]) -> str:
    fitting = [name for name in MAPPERS if fits(name, columns)]
    if not fitting:
        raise RecipeError(
            f"mapper: auto: no mapper fits the columns {', '.join(columns)}. "
            f"Fix: name one of {', '.join(MAPPERS)}, or set prompt_column and solution_column"
        )
    # The one that knows the most of the columns, and this package's before those of extras.
    return max(fitting, key=lambda name: (len(MAPPERS[name].columns), name not in NAMES["mapper"]))


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
    if isinstance(value, list | dict | bytes) and value:
        raise SkipRow(
            f"column {column!r} holds a {type(value).__name__} instead of one text. Fix: a mapper "
            f"of your own that chooses: def mine(row): return {{'question': …, 'solution': "
            f"row[{column!r}][…]}}"
        )
    if isinstance(value, float) and value.is_integer():
        if abs(value) < 2**53:
            value = int(value)  # 72 in a column with decimals, or with an empty cell
        elif float(f"{value:.15g}") != value:  # 1e+23 and 20! are what they say
            raise SkipRow(f"column {column!r} has more digits than a float keeps. Fix: a text")
    # Do not test for truth: a reference answer may be the number 0. NaN is not equal to itself.
    empty = value in (None, [], {}, b"", "#N/A", "#DIV/0!") or value != value
    cell = "" if empty else str(value).strip()
    if needed and not cell:
        raise SkipRow(f"column {column!r} is empty")
    return cell


# Rows with separate columns for question, reasoning and answer


@register_mapper("prompt_solution", "prompt")
def prompt_solution(
    row: dict[str, Any],
    prompt_column: str = "prompt",
    solution_column: str = "solution",
    reasoning_column: str = "",
    whole: bool = False,
) -> MappedRow:
    """Map any dataset: the recipe names the columns.

    The prompt is a text or messages, all of which reach the model. The answer may be missing if no
    reward compares with it. ``whole``: the answer is the target of SFT as it is.
    """
    mapped = as_prompt(row, read_messages(row, prompt_column, "user"))
    if solution_column in row or whole:
        mapped["solution"] = text(row, solution_column, needed=whole)
    if whole:
        return {**mapped, "response": mapped["solution"], "well_formed": False}
    if reasoning_column:  # a row without it still has a question for GRPO
        mapped["reasoning"] = text(row, reasoning_column, needed=False)
    return mapped


@register_mapper("alpaca", "instruction|query", "output|response")
def alpaca(row: dict[str, Any]) -> MappedRow:
    """Map Alpaca's rows: the task in ``instruction``, what it is about in ``input``, ``output``.

    Dolly's ``context`` and ``response``, and ms-swift's ``query``, are the same by other names.
    Columns ``system`` and ``history`` come before the question. The output is the reference
    answer, and the target of SFT as it is.
    """
    names = (("instruction", "query"), ("input", "context"), ("output", "response"))
    task, about, output = (
        text(row, first if first in row else other, needed=first == "instruction")
        for first, other in names
    )
    question = f"{task}\n\n{about}" if about else task
    mapped = as_prompt(row, [{"role": "user", "content": question}])
    return {**mapped, "solution": output, "response": output, "well_formed": False}


@register_mapper("generated", "question", "pass_rate", "response|solution")
def generated(row: dict[str, Any], well_formed: bool = True) -> MappedRow:
    """Map the output of ``r1_recipes.generate``: ``question``, ``solution``, ``pass_rate``, ….

    The column ``response`` is absent in prompt-only data. ``earlier_messages`` are the turns before
    the question. ``well_formed``: whether the response must be in the recipe's response format.
    """
    mapped: MappedRow = {"question": text(row, "question")}
    if row.get("earlier_messages"):
        earlier = read_messages(row, "earlier_messages")
        mapped["messages"] = [*earlier, {"role": "user", "content": mapped["question"]}]
    mapped["solution"] = text(row, "solution", needed=False)
    if "task" in row:
        mapped["task"] = text(row, "task", needed=False)
    if "response" in row:
        mapped["response"] = row["response"] or ""
    return {**mapped, "well_formed": well_formed}


@register_mapper("gsm8k", "question", "answer")
def gsm8k(row: dict[str, Any]) -> MappedRow:
    """Map openai/gsm8k: ``question``, and ``answer`` with steps and ``#### 72``.

    The ``<<…>>`` of the calculator are removed from the steps.
    """
    steps, mark, solution = text(row, "answer").rpartition("####")
    # "1,5" is a decimal in some notations, and "(1,2)" is a pair.
    solution = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), solution.strip())
    if not mark or not solution:
        raise SkipRow(
            "no '#### NUMBER' in column 'answer'. Fix: prompt_column: question, and "
            "solution_column: answer"
        )
    return {
        "question": text(row, "question"),
        "solution": solution,
        "reasoning": re.sub(r"<<[^<>]*>>", "", steps).strip(),
    }


@register_mapper("math", "problem", "solution|answer")
def math(
    row: dict[str, Any],
    prompt_column: str = "problem",
    solution_column: str = "answer",
    reasoning_column: str = "solution",
) -> MappedRow:
    """Map MATH, MATH-500, AIME, NuminaMath and OpenR1-Math-220k: ``problem`` with ``answer``.

    Without ``answer``, the reference answer is the last box in ``solution``. The column of answers
    may hold a whole worked solution, too, with the reference answer in a box.
    """
    question = text(row, prompt_column)
    worked = text(row, reasoning_column, needed=False)
    answer = text(row, solution_column, needed=False)
    if answer.casefold() == "notfound":  # of NuminaMath-1.5
        answer = ""
    solution = next(filter(None, [*boxes(answer)[-1:], answer, *boxes(worked)[-1:]]), "")
    if solution.casefold() == "proof":
        raise SkipRow("a proof, which has no reference answer")
    if not solution:
        raise SkipRow(
            f"no reference answer in column {solution_column!r} and no \\boxed{{}} in "
            f"{reasoning_column!r}"
        )
    return {"question": question, "solution": solution, "reasoning": worked}


# Conversations whose last assistant message is the target, and preference pairs


@register_mapper("conversations", "messages|conversations")
def conversations(
    row: dict[str, Any],
    well_formed: bool = True,
    whole: bool = False,
) -> MappedRow:
    """Map chats: ``messages`` (role, content) or ``conversations`` (from, value).

    The last assistant message is the response, and the messages before it are the prompt. Columns
    ``system`` and ``history`` come first.

    Args:
        row: The row.
        well_formed: Whether the response must be in the recipe's response format. Set it to false
            for general chat data.
        whole: Keep every message as it is, as TRL does with ``messages``.
    """
    column = "messages" if row.get("messages") or "conversations" not in row else "conversations"
    messages = with_earlier(row, read_messages(row, column))
    return {"turns": messages} if whole else {**exchange(messages), "well_formed": well_formed}


@register_mapper("prompt_completion", "prompt", "completion")
def prompt_completion(
    row: dict[str, Any], well_formed: bool = False, whole: bool = False
) -> MappedRow:
    """Map TRL's ``prompt`` and ``completion``, texts or messages, joined into a conversation."""
    messages = read_messages(row, "prompt", "user") + read_messages(row, "completion", "assistant")
    messages = with_earlier(row, messages)
    return {"turns": messages} if whole else {**exchange(messages), "well_formed": well_formed}


@register_mapper("preference", "chosen", "rejected")
def preference(row: dict[str, Any]) -> MappedRow:
    """Map TRL's preference pairs: ``chosen`` and ``rejected``, texts or messages.

    Optional columns are ``prompt`` and ``system``. Both sides may hold the whole conversation.
    """
    prompt = read_messages(row, "prompt", "user") if row.get("prompt") else []
    pair = []
    for column in ("chosen", "rejected"):
        answer = read_messages(row, column, "assistant")
        # A whole conversation repeats the prompt, maybe without its system message.
        texts = [message["content"].strip() for message in answer[:-1]]
        asked = [message for message in prompt if message["content"].strip() not in texts]
        if texts and any(message["role"] != "system" for message in asked):
            raise SkipRow(f"column {column!r} does not start with column 'prompt'")
        pair.append(exchange(with_earlier(row, asked + answer)))
    chosen, rejected = pair
    same = chosen["messages"] == rejected["messages"]
    if not same or chosen["response"] == rejected["response"]:
        raise SkipRow("chosen and rejected must be different answers to the same conversation")
    return {**chosen, "rejected": rejected["response"]}
