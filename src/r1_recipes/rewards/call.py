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
from r1_recipes.common.messages import last_user_text
from r1_recipes.prompts.formats import ResponseFormat, boxed_spans

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

# Rows among which two of a reward's tasks are looked for.
_TRIED_FROM = 256
_WANTED = "Fix: return a list with one number (or None) per completion"


def score(
    name: str,
    function: Callable,
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: Sequence[int] | None = None,
    *,
    where: str = "",
    finite: bool = False,
) -> list[float | None]:
    """Judge one completion per row; ``None`` if the reward does not judge it.

    Args:
        name: for the message, with ``where`` after it.
        function: the reward.
        rows: each text's own, repeated if a row has several.
        texts: completions.
        tokenizer: ``None``: characters stand for tokens.
        tokens: how many tokens were generated for each; ``None``: as many as the text has.
        finite: refuse infinity, and NaN, which else becomes ``None`` as in TRL.

    Raises:
        RecipeError: the reward fails, or does not return one number or ``None`` per completion.
    """
    from transformers import TrainerState

    label = f"reward {name!r}{where}"
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
        hint = (
            ". Fix: end its parameters with **columns, since every column is passed by name" if "unexpected keyword" in str(error) else ""
        )
        raise RecipeError(f"{label} fails: {first_line(error)[:-1]} ({_place(function, error)}){hint}") from error
    label += f" ({_place(function)}) returned"
    try:
        result = list(result)
        if any(isinstance(value, str) for value in result):  # float() would read "1"
            raise TypeError
        scores = [None if value is None else float(value) for value in result]
    except (TypeError, ValueError):
        found = str(result)[:80] if isinstance(result, list) else type(result).__name__
        raise RecipeError(f"{label} {found}. {_WANTED}") from None
    if len(scores) != len(texts):
        raise RecipeError(f"{label} {len(scores)} scores for {len(texts)} completions. {_WANTED}")
    for row, value in zip(rows, scores, strict=True):
        if finite and value is not None and not math.isfinite(value):
            fix = "Fix: return a finite number, or None for a row that it does not judge"
            raise RecipeError(f"{label} {value} for the row {_question(row)!r}. {fix}")
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


def try_own_rewards(
    names: Sequence[str],
    rewards: Sequence[Callable],
    rows: Dataset,
    fmt: ResponseFormat,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Call each reward from outside this package on two rows, before the model is loaded: a mistake in it costs seconds.

    Raises:
        RecipeError: it fails, or returns something else than finite numbers and ``None``.
    """
    for name, reward in zip(names, rewards, strict=True):
        inner = getattr(reward, "reward", reward)  # within a routed one
        if getattr(inner, "__module__", "").startswith("r1_recipes."):
            continue
        mine = [rows[index] for index in range(min(len(rows), 2 if inner is reward else _TRIED_FROM))]
        if inner is not reward:
            mine = [mine[index] for index in reward.judged({key: [row[key] for row in mine] for key in mine[0]})]
        tried = [(row, text) for row in mine[:2] for text in (_written(fmt, right_answer(row.get("solution"))), "")]
        if not tried:
            continue
        try:
            score(name, inner, *zip(*tried, strict=True), tokenizer, finite=True)
        except RecipeError:
            for row, text in tried:  # which one it is
                score(name, inner, [row], [text], tokenizer, where=f", row {_question(row)!r}, completion {text[:80]!r},", finite=True)
            raise


def _written(fmt: ResponseFormat, answer: str | None) -> str:
    with contextlib.suppress(ValueError):  # a gold that this format cannot hold
        return fmt.render_completion("Let me see.", answer or "1")
    return answer or "1"


def _place(function: Callable, error: Exception | None = None) -> str:
    """File, line and function of the reward, or of the place in its own code that raised."""
    inner = getattr(function, "reward", function)  # within a routed one
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return str(inner)
    for frame in reversed(traceback.extract_tb(error.__traceback__) if error else []):
        if Path(frame.filename).parent == Path(code.co_filename).parent:
            return f"{frame.filename}:{frame.lineno}, in {frame.name}"
    return f"{code.co_filename}:{code.co_firstlineno}, {code.co_name}"


def _question(row: dict[str, Any]) -> str:
    return last_user_text(row["prompt"])[:80]


async def _awaited(result: Awaitable) -> Any:
    return await result
