"""Score the completions of a model: strict and lenient accuracy, maj@n, pass@n, rewards."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import transcript, without_surrogates
from r1_recipes.data.mappers.base import THOUSANDS
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards import AnswerReward, get_reward_funcs
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.call import score
from r1_recipes.verification import final_answer

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame
    from transformers import PreTrainedTokenizerBase

    from r1_recipes.completions.types import Completion

logger = logging.getLogger(__name__)

# The lists of Scores that two models are compared by, with their printed names.
COMPARED = {
    "greedy": "greedy",
    "sampled": "sampled",
    "greedy_lenient": "lenient greedy",
    "sampled_lenient": "lenient sampled",
}
_KEPT = "completions kept"
_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_LAST_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


@dataclass
class Scores:
    """The scores of a model on the held-out rows.

    ``greedy…`` describes the greedy completion of each row. ``sampled…`` and ``majority`` describe
    its ``num_samples`` samples; they are empty or ``None`` without samples. Everything from
    ``language`` on describes the samples, or the greedy completions without samples.

    Attributes:
        model: The name of the model.
        greedy: For each row, 1.0 if the greedy completion is correct (strict).
        sampled: For each row, the share of correct samples (strict).
        greedy_lenient: As ``greedy``, with the lenient verdict.
        sampled_lenient: As ``sampled``, with the lenient verdict.
        majority: For each row, 1.0 if the most frequent answer of the samples is correct (maj@n).
            Empty if no correct sample has an answer.
        num_samples: The number of samples per row.
        greedy_format: The share of greedy completions in the recipe's response format.
        sampled_format: The share of samples in the recipe's response format.
        language: The mean language consistency of the reasoning, 0..1. ``None`` if it is unknown.
        mean_tokens: The mean length in tokens.
        truncated: The share of completions that reached the length limit.
        rewards: For each reward, its mean in each row. ``None`` if the reward scored no completion.
        examples: A few greedy completions to read.
        judged_on: A description of the rows, and whether they were held out.
    """

    model: str
    greedy: list[float]
    sampled: list[float]
    greedy_lenient: list[float]
    sampled_lenient: list[float]
    majority: list[float]
    num_samples: int
    greedy_format: float
    sampled_format: float | None
    language: float | None
    mean_tokens: float
    truncated: float
    rewards: dict[str, list[float | None]] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)
    judged_on: str = ""

    def pass_at(self, k: int) -> list[float]:
        """Return the unbiased estimate of pass@k for each row (Chen et al., arXiv:2107.03374).

        ``k`` must be at most ``num_samples``.
        """
        n = self.num_samples
        return [1 - math.comb(n - round(share * n), k) / math.comb(n, k) for share in self.sampled]


def compares_with_gold(judge: Callable) -> bool:
    """Return whether a reward compares the parsed answer with the reference answer.

    Such a reward can also score an answer from another place of the completion.
    """
    return isinstance(getattr(judge, "reward", judge), AnswerReward)


def verdicts(
    fmt: ResponseFormat,
    judges: dict[str, Callable],
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    known: Mapping[str, Sequence[float | None]] | None = None,
    environment: Sequence[float | None] = (),
    turns: Sequence[Any] | None = None,
) -> tuple[list[bool], list[bool]]:
    """Return whether each completion is correct: the strict and the lenient verdicts.

    A completion is strictly correct if the environment, or the first reward in ``judges`` that
    scores the row, gives it full marks. For lenient verdicts, the answer may also be in another
    place. It is taken from the text after the reasoning, or from the whole text if no reasoning is
    closed: a box, "the answer is", the last line, or the last number (as in lm-eval's flexible
    extraction). A reward that compares with a reference answer then scores this answer as if it
    were in the response format.

    Args:
        fmt: The response format.
        judges: The rewards that decide, by name. The first that scores a row decides.
        rows: The row of each completion.
        texts: The completions.
        known: Scores of rewards that have already scored these completions.
        environment: The reward of the environment for each completion.
        turns: All messages of each completion, if it is an episode.
    """
    count = len(texts)
    known = known or {}
    strict = _full_marks(enumerate(environment))
    lenient = dict(strict)
    for name, judge in judges.items():
        if len(strict) == count:
            break
        values = known.get(name) or score(name, judge, rows, texts, None, turns=turns)
        right = _full_marks((i, value) for i, value in enumerate(values) if i not in strict)
        strict |= right
        if compares_with_gold(judge):
            for pick in (final_answer, _last_number):
                moved = {i: _moved_answer(fmt, texts[i], pick) for i in right if not right[i]}
                found = {i: text for i, text in moved.items() if text}
                if found:
                    values = score(name, judge, [rows[i] for i in found], [*found.values()], None)
                    right |= _full_marks(zip(found, values, strict=True))
        lenient |= right
    if len(strict) < count:
        logger.warning(
            "%d of %d completions get no score from any of %s, so they count as wrong",
            count - len(strict),
            count,
            [*judges],
        )
    is_strict = [strict.get(i, False) for i in range(count)]
    is_lenient = [lenient.get(i, False) for i in range(count)]
    return is_strict, is_lenient


def _full_marks(values: Iterable) -> dict[int, bool]:
    """Return for pairs of an index and a score whether the score, if there is one, is full."""
    return {i: value >= 1 for i, value in values if value is not None}


def _moved_answer(fmt: ResponseFormat, text: str, pick: Callable[[str], str | None]) -> str | None:
    """Return a completion in the response format, with the answer that ``pick`` finds in ``text``.

    Return ``None`` if there is no answer, or if the format cannot contain it.
    """
    text = fmt.full_text(text)
    if fmt.reasoning_tags:
        text = text.rpartition(fmt.reasoning_tags[1])[2]  # All of it if none is closed.
    answer = pick(text)
    if answer:
        with contextlib.suppress(ValueError):
            return fmt.render_completion("Let me see.", answer)
    return None


def _last_number(text: str) -> str | None:
    numbers = _LAST_NUMBER.findall(text)
    return numbers[-1].replace("$", "").rstrip(",") if numbers else None


def judge(
    name: str,
    fmt: ResponseFormat,
    rows: Dataset,
    groups: list[list[Completion]],
    judges: dict[str, Callable],
    rewards: dict[str, Callable],
    tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[Scores, DataFrame]:
    """Score the completions of each row, the greedy completion first.

    Returns:
        The scores of the model, and a table with a line per completion.
    """
    from pandas import DataFrame, Series

    copies = len(groups[0])
    each_row = [row for row in rows for _ in range(copies)]
    flat = [completion for group in groups for completion in group]
    texts = [without_surrogates(completion.text) for completion in flat]
    tokens = [completion.tokens for completion in flat]
    turns = [completion.turns for completion in flat]
    values: dict[str, Sequence[float | None]] = {}
    for reward, function in rewards.items():
        try:
            values[reward] = score(reward, function, each_row, texts, tokenizer, tokens, turns)
        except RecipeError as error:
            # The completions took long to generate: do not lose them because of a column.
            logger.warning("%s. The table has no column for this reward", error)
    environment = [completion.reward for completion in flat]
    strict, lenient = verdicts(fmt, judges, each_row, texts, values, environment, turns)
    if any(value is not None for value in environment):
        values = {"environment": environment, **values}
    samples = list(range(-1, copies - 1))  # -1 is greedy.
    columns: dict[str, Any] = {
        "index": [index for index in range(len(groups)) for _ in samples],
        "sample": samples * len(groups),
        "question": [row["prompt"][-1]["content"] for row in each_row],
        "solution": [str(row.get("solution", "")) for row in each_row],
        "completion": texts,
    }
    if any(turns):
        columns["turns"] = [transcript(messages or ()) for messages in turns]
    shape, consistency = get_reward_funcs(["format", "language_consistency"], fmt)
    language = score("language_consistency", consistency, each_row, texts, None)
    columns |= {
        "answer": [parsed_answer(fmt, text) for text in texts],
        "correct": strict,
        "lenient": lenient,
        "format": [bool(value) for value in shape(completions=texts)],
        "language": Series(language, dtype=float),
    }
    for reward, column in values.items():
        columns[f"reward {reward}"] = Series(column, dtype=float)
    columns["tokens"] = tokens
    columns["finish_reason"] = [completion.finish_reason for completion in flat]
    table = DataFrame(columns)
    return _summary(name, table, copies - 1, list(values)), table


def _summary(name: str, table: DataFrame, num_samples: int, rewards: Sequence[str]) -> Scores:
    """Return the scores from a table with a line per completion."""
    greedy = table[table["sample"] < 0]
    sampled = table[table["sample"] >= 0]
    shown = greedy if sampled.empty else sampled
    # Where correct samples have no answer, as in an environment, answers are not what is judged.
    right = sampled.loc[sampled["correct"], "answer"]
    voting = sampled if right.empty or right.notna().any() else sampled[:0]
    majority = [
        _majority(group["answer"], group["correct"]) for _, group in voting.groupby("index")
    ]
    reward_means = {
        reward: [_none_if_nan(mean) for mean in _per_row(shown, f"reward {reward}")]
        for reward in rewards
    }
    return Scores(
        model=name,
        greedy=_per_row(greedy, "correct"),
        sampled=_per_row(sampled, "correct"),
        greedy_lenient=_per_row(greedy, "lenient"),
        sampled_lenient=_per_row(sampled, "lenient"),
        majority=majority,
        num_samples=num_samples,
        greedy_format=greedy["format"].mean(),
        sampled_format=_none_if_nan(sampled["format"].mean()),
        language=_none_if_nan(shown["language"].mean()),
        mean_tokens=shown["tokens"].mean(),
        truncated=(shown["finish_reason"] == "length").mean(),
        rewards=reward_means,
        examples=greedy[["question", "completion", "solution"]].head(3).to_dict("records"),
    )


def _per_row(lines: DataFrame, column: str) -> list[float]:
    return lines.groupby("index")[column].mean().tolist()


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def _majority(answers: Iterable[str | None], right: Iterable[bool]) -> float:
    """Return 1.0 if the most frequent answer is correct, else 0.0. The first answer wins a tie."""
    votes: defaultdict[str, list[bool]] = defaultdict(list)
    for answer, correct in zip(answers, right, strict=True):
        if isinstance(answer, str):  # pandas turns None into NaN.
            # Ignore case, commas between thousands, a full stop, and white space except between
            # two digits, because 1 1/2 is not 11/2.
            plain = THOUSANDS.sub(lambda number: number[0].replace(",", ""), answer)
            plain = _SPACE.sub("", plain).rstrip(".。").casefold()
            votes[plain].append(correct)
    return float(max(votes.values(), key=len)[0]) if votes else 0.0
