"""What models did on rows: strict and lenient accuracy, maj@n, pass@n, means with 95 % intervals,
and their Markdown tables.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import transcript, without_surrogates
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

# Each of Scores' lists that a difference is taken of, and what it is called.
COMPARED = {
    "greedy": "greedy",
    "sampled": "sampled",
    "greedy_lenient": "lenient greedy",
    "sampled_lenient": "lenient sampled",
}
_KEPT = "completions kept"
_LAST_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


@dataclass
class Scores:
    """What one model did on the held-out rows.

    ``greedy…`` is of the one greedy completion per row, ``sampled…`` and ``majority`` of its
    ``num_samples`` (empty or ``None`` if there are none); everything from ``language`` on is of the
    samples, or of the greedy completions if none were sampled.
    """

    model: str
    greedy: list[float]  # per row, 1.0 if right (strictly)
    sampled: list[float]  # per row, the share that is right
    greedy_lenient: list[float]
    sampled_lenient: list[float]
    majority: list[
        float
    ]  # per row, 1.0 if the answer that most samples give is right (maj@n; strict)
    num_samples: int
    greedy_format: float  # share of completions in the recipe's format
    sampled_format: float | None
    language: (
        float | None
    )  # mean language consistency of the reasoning, 0..1; None if none could be judged
    mean_tokens: float
    truncated: float  # share that reached the length limit
    rewards: dict[str, list[float | None]] = field(
        default_factory=dict
    )  # by name, per row on average; None if not judged
    examples: list[dict[str, str]] = field(
        default_factory=list
    )  # a few greedy completions, for people
    judged_on: str = ""  # which rows these are, and whether they were held out, in words

    def pass_at(self, k: int) -> list[float]:
        """Per row, the unbiased estimate of pass@k from n samples, k at most n (Chen et al.,
        arXiv:2107.03374).
        """
        n = self.num_samples
        return [1 - math.comb(n - round(share * n), k) / math.comb(n, k) for share in self.sampled]


def compares_with_gold(judge: Callable) -> bool:
    """Whether a reward compares the format's answer with a gold, so that it can be asked about an
    answer found elsewhere.
    """
    return isinstance(getattr(judge, "reward", judge), AnswerReward)


def verdicts(
    fmt: ResponseFormat,
    judges: dict[str, Callable],
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    known: Mapping[str, Sequence[float | None]] | None = None,
    environment: Sequence[float | None] = (),
) -> tuple[list[bool], list[bool]]:
    """Whether each completion is right, strictly and leniently.

    Strictly: the environment, or the first of ``judges`` that judges the row, gives it full marks.
    Leniently right is also what such a judge would accept, if it compares with a gold, in the place
    that the format asks for: what follows the reasoning (or the whole text, if none is closed) and
    ends in a box, in "the answer is", or in a last line; and, as lm-eval's flexible extraction has
    it, its last number. ``known`` has the values of rewards that have scored these completions
    already, ``environment`` those of the environment.
    """
    count, known = len(texts), known or {}
    strict = {i: value >= 1 for i, value in enumerate(environment) if value is not None}
    lenient = dict(strict)
    for name, judge in judges.items():
        if len(strict) == count:
            break
        values = known[name] if name in known else score(name, judge, rows, texts, None)
        right = {
            i: value >= 1 for i, value in enumerate(values) if value is not None and i not in strict
        }
        strict |= right
        if compares_with_gold(judge):
            for pick in (final_answer, _last_number):
                candidates = {i: _moved_answer(fmt, texts[i], pick) for i in right if not right[i]}
                moved = {i: text for i, text in candidates.items() if text}
                values = (
                    score(name, judge, [rows[i] for i in moved], list(moved.values()), None)
                    if moved
                    else []
                )
                right |= {
                    i: value >= 1
                    for i, value in zip(moved, values, strict=True)
                    if value is not None
                }
        lenient |= right
    if len(strict) < count:
        logger.warning(
            "%d of %d completions are judged by none of %s and count as wrong",
            count - len(strict),
            count,
            [*judges],
        )
    return [strict.get(i, False) for i in range(count)], [
        lenient.get(i, False) for i in range(count)
    ]


def _moved_answer(fmt: ResponseFormat, text: str, pick: Callable[[str], str | None]) -> str | None:
    """A completion whose answer, picked out of ``text``, is in the place that the format asks for;
    ``None`` if there is no answer.
    """
    text = fmt.full_text(text)
    if fmt.reasoning_tags:
        text = text.rpartition(fmt.reasoning_tags[1])[2]  # all of it, if no reasoning is closed
    answer = pick(text)
    with contextlib.suppress(ValueError):  # what the format cannot hold
        return fmt.render_completion("Let me see.", answer) if answer else None
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
    """Judge each row's group of completions, the greedy one first; give the scores, and a table
    with a line per completion.
    """
    from pandas import DataFrame, Series

    copies = len(groups[0])
    each_row = [row for row in rows for _ in range(copies)]
    flat = [completion for group in groups for completion in group]
    texts = [without_surrogates(completion.text) for completion in flat]
    tokens = [completion.tokens for completion in flat]
    values: dict[str, Sequence[float | None]] = {}
    for reward, function in rewards.items():
        try:
            values[reward] = score(reward, function, each_row, texts, tokenizer, tokens)
        except (
            RecipeError
        ) as error:  # the completions have cost too much to lose them over one column of the table
            logger.warning("%s; its column is left out", error)
    environment = [completion.reward for completion in flat]
    strict, lenient = verdicts(fmt, judges, each_row, texts, values, environment)
    if any(value is not None for value in environment):
        values = {"environment": environment, **values}
    columns: dict[str, Any] = {
        "index": [index for index in range(len(groups)) for _ in range(copies)],
        "sample": [*range(-1, copies - 1)] * len(groups),  # -1: greedy
        "question": [row["prompt"][-1]["content"] for row in each_row],
        "solution": [str(row.get("solution", "")) for row in each_row],
        "completion": texts,
    }
    if any(completion.turns for completion in flat):
        columns["turns"] = [transcript(completion.turns or ()) for completion in flat]
    shape, language = get_reward_funcs(["format", "language_consistency"], fmt)
    seen = {
        "prompts" if key == "prompt" else key: [row[key] for row in each_row]
        for key in rows.column_names
    }
    columns |= {
        "answer": [parsed_answer(fmt, text) for text in texts],
        "correct": strict,
        "lenient": lenient,
        "format": [bool(value) for value in shape(completions=texts)],
        "language": Series(language(completions=texts, **seen), dtype=float),
        **{f"reward {reward}": Series(column, dtype=float) for reward, column in values.items()},
        "tokens": tokens,
        "finish_reason": [completion.finish_reason for completion in flat],
    }
    table = DataFrame(columns)
    return _summary(name, table, copies - 1, list(values)), table


def _summary(name: str, table: DataFrame, num_samples: int, rewards: Sequence[str]) -> Scores:
    """The scores of a table with a line per completion."""
    greedy, sampled = table[table["sample"] < 0], table[table["sample"] >= 0]
    shown = greedy if sampled.empty else sampled
    return Scores(
        model=name,
        greedy=_per_row(greedy, "correct"),
        sampled=_per_row(sampled, "correct"),
        greedy_lenient=_per_row(greedy, "lenient"),
        sampled_lenient=_per_row(sampled, "lenient"),
        majority=[
            _majority(group["answer"], group["correct"]) for _, group in sampled.groupby("index")
        ],
        num_samples=num_samples,
        greedy_format=greedy["format"].mean(),
        sampled_format=_none_if_nan(sampled["format"].mean()),
        language=_none_if_nan(shown["language"].mean()),
        mean_tokens=shown["tokens"].mean(),
        truncated=(shown["finish_reason"] == "length").mean(),
        rewards={
            reward: [_none_if_nan(value) for value in _per_row(shown, f"reward {reward}")]
            for reward in rewards
        },
        examples=greedy[["question", "completion", "solution"]].head(3).to_dict("records"),
    )


def _per_row(lines: DataFrame, column: str) -> list[float]:
    return lines.groupby("index")[column].mean().tolist()


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def _majority(answers: Iterable[str | None], right: Iterable[bool]) -> float:
    """1.0 if the most frequent answer (of equally frequent ones the first) is right; 0.0 if there
    is no answer.
    """
    votes: dict[str, list[bool]] = {}
    for answer, correct in zip(answers, right, strict=True):
        if isinstance(answer, str):  # pandas has NaN for None
            # Case, white space, commas and a full stop do not make another answer.
            votes.setdefault(
                "".join(answer.split()).replace(",", "").rstrip(".。").casefold(), []
            ).append(correct)
    return float(max(votes.values(), key=len)[0]) if votes else 0.0
