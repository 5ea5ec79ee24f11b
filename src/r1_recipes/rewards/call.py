"""Call a reward as TRL does, outside a trainer, and say plainly what is wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.prompts.formats import ResponseFormat, boxed_spans
from r1_recipes.rewards.registry import Values

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

# Rows among which two of a reward's tasks are looked for.
_TRIED_FROM = 256


def score(
    name: str,
    function: Callable,
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: Sequence[int] | None = None,
) -> Values:
    """Judge one completion per row; ``None`` (or NaN, as in TRL) if the reward does not judge it.

    Args:
        name: for the message.
        function: the reward.
        rows: each text's own, repeated if a row has several.
        texts: completions.
        tokenizer: ``None``: characters stand for tokens.
        tokens: how many tokens were generated for each; ``None``: as many as the text has.

    Raises:
        RecipeError: the reward fails, or does not return one number or ``None`` per completion.
    """
    from transformers import TrainerState

    label = f"reward {name!r}"
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in ("prompt", "completion", "completion_ids")}
    try:
        result = function(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            completion_ids=_token_ids(texts, tokenizer, tokens),
            trainer_state=TrainerState(epoch=0.0, max_steps=1, num_train_epochs=1),  # no zero to divide by
            log_extra=lambda *_: None,
            log_metric=lambda *_: None,
            **columns,
        )
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except RecipeError:
        raise
    except Exception as error:
        hint = ""
        if "unexpected keyword" in str(error):
            hint = ". Fix: end its parameters with **columns, since every column is passed by name"
        raise RecipeError(f"{label} fails: {first_line(error)[:-1]} ({_place(function, error)}){hint}") from error
    try:
        values = list(result)
        if any(isinstance(value, str) for value in values):  # float() would read "1"
            raise TypeError
        scores = [None if value is None else float(value) for value in values]
        if len(scores) != len(texts) or any(value is not None and math.isinf(value) for value in scores):
            raise ValueError
    except (TypeError, ValueError):
        wanted = f"Fix: return a list with one finite number (or None) per completion, here {len(texts)}"
        raise RecipeError(f"{label} ({_place(function)}) returned {str(result)[:80]}. {wanted}") from None
    return [None if value is None or math.isnan(value) else value for value in scores]


def _token_ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase | None, tokens: Sequence[int] | None) -> list[list[int]]:
    if tokenizer is None:
        return [[*map(ord, text)] or [0] for text in texts]
    # The token that ends an empty completion is one, too.
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] or [tokenizer.pad_token_id] for text in texts]
    if tokens is None:
        return ids
    # What ended the turn, and special tokens, are not in the text; their number counts.
    return [(one + [tokenizer.pad_token_id] * count)[:count] for one, count in zip(ids, tokens, strict=True)]


def right_answer(solution: Any) -> str | None:
    r"""The answer that a gold asks for: what its last ``\boxed{…}`` holds, or follows its last ``####``, or all of it."""
    gold = "" if solution is None else str(solution)
    boxes = [gold[start:end] for start, end in boxed_spans(gold)]
    return (boxes[-1] if boxes else gold.rpartition("####")[2]).strip() or None


def judged_rows(reward: Callable, rows: Dataset) -> Sequence[int]:
    """The rows that a reward sees: those of its tasks if ``task_rewards`` gives it some, else all."""
    judged = getattr(reward, "judged", None)
    return range(len(rows)) if judged is None else judged({key: rows[key] for key in rows.column_names})


def readable_golds(name: str, reward: Callable, rows: Dataset) -> dict[int, bool]:
    """Whether a reward that compares with a gold can read each row's, by index; rows of other tasks are left out."""
    mine = judged_rows(reward, rows)
    if not mine:
        return {}
    # Golds and tasks are text; pictures would be decoded.
    listed = rows.select(mine).select_columns([key for key in rows.column_names if key != "image"]).to_list()
    verdicts = score(name, reward, listed, [""] * len(listed), None)
    return {index: verdict is not None for index, verdict in zip(mine, verdicts, strict=True)}


def try_own_rewards(
    names: Sequence[str],
    rewards: Sequence[Callable],
    rows: Dataset,
    fmt: ResponseFormat,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Call each reward from outside this package on two rows, before the model is loaded: a mistake in it costs seconds."""
    for name, reward in zip(names, rewards, strict=True):
        inner = _unrouted(reward)
        if getattr(inner, "__module__", "").startswith("r1_recipes."):
            continue
        mine = [rows[index] for index in judged_rows(reward, rows.select(range(min(len(rows), _TRIED_FROM))))[:2]]
        tried = [(row, text) for row in mine for text in (_written(fmt, right_answer(row.get("solution"))), "")]
        if tried:
            score(name, inner, [row for row, _ in tried], [text for _, text in tried], tokenizer)


def _written(fmt: ResponseFormat, answer: str | None) -> str:
    with contextlib.suppress(ValueError):  # a gold that this format cannot hold
        return fmt.render_completion("Let me see.", answer or "1")
    return answer or "1"


def _unrouted(reward: Callable) -> Callable:
    return getattr(reward, "reward", reward)


def _place(function: Callable, error: Exception | None = None) -> str:
    """File and line of the reward, or of the place in its own code that raised."""
    inner = inspect.unwrap(_unrouted(function))
    if isinstance(inner, functools.partial):
        inner = inner.func
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return str(inner)
    for frame in reversed(traceback.extract_tb(error.__traceback__) if error else []):
        if Path(frame.filename).parent == Path(code.co_filename).parent:
            return f"{frame.filename}:{frame.lineno}"
    return f"{code.co_filename}:{code.co_firstlineno}"


async def _awaited(result: Awaitable) -> Any:
    return await result
