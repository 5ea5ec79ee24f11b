"""Call rewards outside a trainer, in the same way as TRL does, and try them before a run.

TRL's ``GRPOTrainer`` sums rewards with ``nansum``, so ``None`` adds nothing. A row without any
reward gets advantage 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import (
    USER_ERRORS,
    RecipeError,
    first_line,
    user_code_place,
)
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards.answers import Values, ignore
from r1_recipes.verification.reading import reference_answer

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

# One event loop for all calls of asynchronous rewards: a client that one keeps belongs to the loop
# of its first request.
RUNNER = asyncio.Runner()


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
        return [None] * len(texts)  # Only the trainer of TRL has environments.
    made = ("prompt", "completion", "completion_ids")
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in made}
    try:
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
        raise failure(name, error, columns) from error


def _messages(text: str, turns: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the completion as TRL passes it: all messages of the model and its tools.

    A last message that was cut has an empty text here.
    """
    *earlier, last = turns or [{"role": "assistant"}]
    if last["role"] == "assistant":
        last = {**last, "content": text}
    return [*earlier, last]


def failure(name: str, error: BaseException, columns: Mapping[str, Any]) -> RecipeError:
    """Return the error of a reward as one line, with the file and line of the reward's code."""
    if isinstance(error, RecipeError):
        return error
    place = user_code_place(error)
    if isinstance(error, KeyError) or re.search("(unexpected|missing) .*argument", str(error)):
        place += (
            f". It gets the columns {', '.join(columns)}. Fix: end its parameters with **columns; "
            "for another column, a mapper that writes it, or add the data's own to keep_columns"
        )
    return RecipeError(f"reward {name!r} fails: {first_line(error)[:-1]}{place}")


def numbers(name: str, function: Callable, result: Any, count: int) -> Values:
    """Return what a reward returned, awaited if need be. Raise if it is not one number per text."""
    if inspect.iscoroutine(result):
        result = RUNNER.run(result)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        values = [None if value is None else float(value) for value in result]
        if len(values) == count and all(value is None or math.isfinite(value) for value in values):
            return values
    fix = f"Fix: return a list with one finite number (or None) per completion, here {count}"
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    raise RecipeError(f"reward {name!r} returned {str(result)[:80]}{place}. {fix}")


def _token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase | None, tokens: Sequence[int] | None
) -> list[list[int]]:
    if tokenizer is None and tokens is not None:  # a server has the tokenizer, and counts
        return [[0] * max(1, count) for count in tokens]
    if tokenizer is None:
        return [[*map(ord, text)] or [0] for text in texts]
    end = [tokenizer.pad_token_id]  # An empty completion has one token, which ends it.
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] or [*end] for text in texts]
    # The text lacks special tokens, but rewards for length must count them.
    counts = map(len, ids) if tokens is None else tokens
    return [(one + end * count)[:count] for one, count in zip(ids, counts, strict=True)]


def right_answer(solution: Any) -> str | None:
    """Return the reference answer in a solution, or ``None`` if it is empty."""
    return reference_answer("" if solution is None else str(solution)) or None


def judged_rows(reward: Callable, rows: Dataset) -> Sequence[int]:
    """Return the rows that a reward scores: all, or those of its tasks in ``task_rewards``."""
    if not hasattr(reward, "rows_of"):
        return range(len(rows))
    return list(reward.rows_of({key: rows[key] for key in rows.column_names}))


def try_own_rewards(
    names: Sequence[str],
    rewards: Sequence[Callable],
    rows: Dataset,
    fmt: ResponseFormat,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Call each reward from outside this package on two rows, with a right and an empty completion.

    So a mistake in it is found in seconds, before the model is loaded. With ``task_rewards``, a
    task without a reward is found, too.
    """
    for name, reward in zip(names, rewards, strict=True):
        first_two = judged_rows(reward, rows)[:2]
        if getattr(reward, "__module__", "").startswith("r1_recipes."):
            continue
        samples, texts = [], []
        for index in first_two:
            right = right_answer(rows[index].get("solution")) or "1"
            with contextlib.suppress(ValueError):  # This format cannot contain the answer.
                right = fmt.render_completion("Let me see.", right)
            samples += [rows[index]] * 2
            texts += [right, ""]
        if samples:
            score(name, reward, samples, texts, tokenizer)
