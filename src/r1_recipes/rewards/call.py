"""Call rewards: as TRL does, outside a trainer; and each on the rows of its tasks, as a recipe's
``task_rewards`` says.

TRL's ``GRPOTrainer`` sums rewards with ``nansum``, so ``None`` adds nothing, and a row that every
reward leaves out gets advantage 0.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import (
    USER_ERRORS,
    RecipeError,
    defined_at,
    first_line,
    user_code_place,
)
from r1_recipes.common.messages import clip
from r1_recipes.data.mappers.base import last_boxed
from r1_recipes.rewards.registry import Values, ignore
from r1_recipes.verification.gold import read_gold
from r1_recipes.verification.reading import read_answer, settle

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

warn_once = functools.cache(logger.warning)  # once per task


def score(
    name: str,
    function: Callable,
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: Sequence[int] | None = None,
) -> Values:
    """Judge one completion per row; ``None`` if the reward does not judge it.

    ``rows`` are each text's own, repeated if a row has several. Without a tokenizer, characters
    stand for tokens. ``tokens`` says how many were generated for each, if not as many as the text
    has. A reward that fails, or returns anything else, is a RecipeError.
    """
    from transformers import TrainerState

    columns = {
        key: [row[key] for row in rows]
        for key in rows[0]
        if key not in ("prompt", "completion", "completion_ids")
    }
    if "environments" in inspect.signature(function).parameters:  # which TRL's trainer alone has
        return [None] * len(texts)
    try:
        result = function(
            prompts=[row["prompt"] for row in rows],
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            completion_ids=_token_ids(texts, tokenizer, tokens),
            trainer_state=TrainerState(
                epoch=0.0, max_steps=1, num_train_epochs=1
            ),  # no zero to divide by
            log_extra=ignore,
            log_metric=ignore,
            **columns,
        )
        result = asyncio.run(result) if inspect.iscoroutine(result) else result
    except USER_ERRORS as error:
        raise _failure(name, error, columns) from error
    return _numbers(name, function, result, len(texts))


def _failure(name: str, error: BaseException, columns: Mapping[str, Any]) -> RecipeError:
    """Return the error of a reward as one line, with the reward's own place, not that of a library
    it calls.
    """
    if isinstance(error, RecipeError):
        return error
    place = user_code_place(error)
    if "unexpected keyword" in str(error):
        place += ". Fix: end its parameters with **columns, since every column is passed by name"
    absent = (
        isinstance(error, KeyError)
        and isinstance(error.args[0], str)
        and error.args[0] not in columns
    )
    if absent or re.search("missing .* required (positional|keyword-only) argument", str(error)):
        place += (
            f". It gets the columns {', '.join(columns)}; keep_columns in the recipe says which "
            f"of the data's others stay"
        )
    return RecipeError(f"reward {name!r} fails: {first_line(error)[:-1]}{place}")


def _numbers(name: str, function: Callable, result: Any, count: int) -> Values:
    try:
        values = list(result)
        if len(values) != count or not all(
            value is None or math.isfinite(value) for value in values
        ):
            raise ValueError
        return [None if value is None else float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        place = defined_at(getattr(function, "reward", function))  # of one for some tasks alone
        wanted = f"Fix: return a list with one finite number (or None) per completion, here {count}"
        raise RecipeError(f"reward {name!r} returned {str(result)[:80]}{place}. {wanted}") from None


def guarded(name: str, reward: Callable, note: Callable[[RecipeError], Any]) -> Callable[..., Any]:
    """Wrap a reward so that ``note`` gets its failure, and the batch is judged to its end; the
    other processes would wait forever.
    """

    def judge(**columns: Any) -> Values:
        try:
            return _numbers(name, reward, reward(**columns), len(columns["completions"]))
        except USER_ERRORS as error:
            note(_failure(name, error, columns))
            return [0.0] * len(columns["completions"])

    async def judge_later(**columns: Any) -> Values:
        try:
            return _numbers(name, reward, await reward(**columns), len(columns["completions"]))
        except USER_ERRORS as error:
            note(_failure(name, error, columns))
            return [0.0] * len(columns["completions"])

    return judge_later if is_async(reward) else judge


def is_async(reward: Callable) -> bool:
    return any(map(inspect.iscoroutinefunction, (reward, type(reward).__call__)))


def _token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase | None, tokens: Sequence[int] | None
) -> list[list[int]]:
    if tokenizer is None:
        return [[*map(ord, text)] or [0] for text in texts]
    # The token that ends an empty completion is one, too.
    ids = [
        tokenizer(text, add_special_tokens=False)["input_ids"] or [tokenizer.pad_token_id]
        for text in texts
    ]
    if tokens is None:
        return ids
    # What ended the turn, and special tokens, are not in the text; their number counts.
    return [
        (one + [tokenizer.pad_token_id] * count)[:count]
        for one, count in zip(ids, tokens, strict=True)
    ]


def right_answer(solution: Any) -> str | None:
    r"""The answer that a gold asks for: what its last ``\boxed{…}`` holds, or follows its last
    ``####``, or all of it.
    """
    gold = "" if solution is None else str(solution)
    return last_boxed(gold) or gold.rpartition("####")[2].strip() or None


def several_golds(questions: Iterable[str], golds: Iterable[Any]) -> str:
    """Say how many questions come again with a gold that says something else, and what the first
    has; ``""``: none does.
    """
    first: dict[str, str | None] = {}
    found: dict[str, str] = {}
    for question, gold in zip(questions, map(right_answer, golds), strict=True):
        known = first.setdefault(question, gold)
        if (
            known
            and gold
            and known != gold
            and (read := read_gold(known))
            and not settle(read, read_answer(gold, read))
        ):
            found.setdefault(
                question, f"{clip(question, 120)!r} has {known!r:.80} and {gold!r:.80}"
            )
    return (
        f"{len(found)} of {len(first)} questions come again with another gold: "
        f"{next(iter(found.values()))}"
        if found
        else ""
    )
