"""Call rewards outside a trainer, in the same way as TRL does.

TRL's ``GRPOTrainer`` sums rewards with ``nansum``, so ``None`` adds nothing. A row without any
reward gets advantage 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes import verification
from r1_recipes.common import processes
from r1_recipes.common.errors import (
    USER_ERRORS,
    RecipeError,
    defined_at,
    first_line,
    user_code_place,
)
from r1_recipes.common.messages import clip
from r1_recipes.prompts.formats import boxes
from r1_recipes.rewards.registry import Values, ignore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

warn_once = functools.cache(logger.warning)  # Logs each message only once.


def score(
    name: str,
    function: Callable,
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: Sequence[int] | None = None,
    turns: Sequence[list[dict[str, Any]] | None] | None = None,
) -> Values:
    """Return the reward of each text, ``None`` where the reward does not score it.

    Args:
        name: The name of the reward, for errors.
        function: The reward function.
        rows: The row of each text, repeated if a row has several texts.
        texts: The completions.
        tokenizer: Without one, each character counts as a token.
        tokens: The number of generated tokens of each text, if it differs from that of the text.
        turns: All messages of each episode, of which the text is the last.

    Raises:
        RecipeError: The reward fails, or does not return one number or ``None`` per text.
    """
    from transformers import TrainerState

    if "environments" in inspect.signature(function).parameters:
        # Only the trainer of TRL has environments.
        return [None] * len(texts)
    columns = {
        key: [row[key] for row in rows]
        for key in rows[0]
        if key not in ("prompt", "completion", "completion_ids")
    }
    try:
        with processes.alone():
            result = function(
                prompts=[row["prompt"] for row in rows],
                completions=list(map(_messages, texts, turns or [None] * len(texts))),
                completion_ids=_token_ids(texts, tokenizer, tokens),
                # A reward may divide by these, so they must not be 0.
                trainer_state=TrainerState(epoch=0.0, max_steps=1, num_train_epochs=1),
                log_extra=ignore,
                log_metric=ignore,
                **columns,
            )
            return numbers(name, function, result, len(texts))
    except USER_ERRORS as error:
        raise _failure(name, error, columns) from error


def _messages(text: str, turns: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the completion as TRL passes it: all messages of the model and its tools.

    A last message that was cut has an empty text here.
    """
    if not turns:
        return [{"role": "assistant", "content": text}]
    *earlier, last = turns
    return [*earlier, {**last, "content": text}] if last["role"] == "assistant" else turns


def _failure(name: str, error: BaseException, columns: Mapping[str, Any]) -> RecipeError:
    """Return the error of a reward as one line, with the file and line of the reward's code."""
    if isinstance(error, RecipeError):
        return error
    place = user_code_place(error)
    if "unexpected keyword" in str(error):
        place += ". Fix: end its parameters with **columns, because it gets every column by name"
    key = error.args[0] if isinstance(error, KeyError) else None
    absent = isinstance(key, str) and key not in columns
    if absent or re.search("missing .* required (positional|keyword-only) argument", str(error)):
        place += (
            f". It gets the columns {', '.join(columns)}. Fix: add further columns of the data to "
            f"keep_columns"
        )
    return RecipeError(f"reward {name!r} fails: {first_line(error)[:-1]}{place}")


def numbers(name: str, function: Callable, result: Any, count: int) -> Values:
    """Return what a reward returned, awaited if need be. Raise if it is not one number per text."""
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        values = list(result)
        if len(values) == count and all(value is None or math.isfinite(value) for value in values):
            return [None if value is None else float(value) for value in values]
    place = defined_at(getattr(function, "reward", function))  # Unwrap a RoutedReward.
    fix = f"Fix: return a list with one finite number (or None) per completion, here {count}"
    raise RecipeError(f"reward {name!r} returned {str(result)[:80]}{place}. {fix}")


def guarded(name: str, reward: Callable, note: Callable[[RecipeError], Any]) -> Callable[..., Any]:
    """Return a reward that calls ``note`` with its error and returns 0.0 instead of raising.

    If one process raised in the middle of a batch, the others would wait for it forever.
    """

    def guarded_reward(**columns: Any) -> Values:
        try:
            return numbers(name, reward, reward(**columns), len(columns["completions"]))
        except USER_ERRORS as error:
            note(_failure(name, error, columns))
            return [0.0] * len(columns["completions"])

    async def guarded_async_reward(**columns: Any) -> Values:
        try:
            return numbers(name, reward, await reward(**columns), len(columns["completions"]))
        except USER_ERRORS as error:
            note(_failure(name, error, columns))
            return [0.0] * len(columns["completions"])

    return guarded_async_reward if is_async(reward) else guarded_reward


def is_async(reward: Callable) -> bool:
    """Return whether calling a reward returns a coroutine."""
    return any(map(inspect.iscoroutinefunction, (reward, type(reward).__call__)))


def _token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase | None, tokens: Sequence[int] | None
) -> list[list[int]]:
    if tokenizer is None:
        return [[*map(ord, text)] or [0] for text in texts]
    end = [tokenizer.pad_token_id]  # An empty completion has one token, which ends it.
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] or [*end] for text in texts]
    if tokens is None:
        return ids
    # The text lacks special tokens, but rewards for length must count them.
    return [(one + end * count)[:count] for one, count in zip(ids, tokens, strict=True)]


def right_answer(solution: Any) -> str | None:
    r"""Return the reference answer in a solution, or ``None`` if it is empty.

    This is its last ``\boxed{…}``, the text after its last ``####``, or all of it.
    """
    text = "" if solution is None else str(solution)
    return next(filter(None, boxes(text)[::-1]), "") or text.rpartition("####")[2].strip() or None


def conflicting_solutions(questions: Iterable[str], solutions: Iterable[Any]) -> str:
    """Return a sentence about questions with several different reference answers, or ""."""
    first: dict[str, str | None] = {}
    conflicts: dict[str, str] = {}
    for question, solution in zip(questions, map(right_answer, solutions), strict=True):
        known = first.setdefault(question, solution)
        if not known or not solution or known == solution or question in conflicts:
            continue
        if verification.grade([known], [solution]) == [False]:
            conflicts[question] = f"{clip(question, 120)!r} has {known!r:.80} and {solution!r:.80}"
    if not conflicts:
        return ""
    example = next(iter(conflicts.values()))
    return f"{len(conflicts)} of {len(first)} questions have several reference answers: {example}"
