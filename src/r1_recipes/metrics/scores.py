"""What models did on rows: strict and lenient accuracy, maj@n, pass@n."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards import AnswerReward, get_reward_funcs
from r1_recipes.rewards.accuracy import parsed_answer
from r1_recipes.rewards.call import score
from r1_recipes.verification import final_answer

if TYPE_CHECKING:
    from datasets import Dataset

    from r1_recipes.completions.types import Completion

logger = logging.getLogger(__name__)

_LAST_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


@dataclass
class Scores:
    """What one model did on the held-out rows.

    Attributes:
        model: path or id.
        greedy: per row, 1.0 if the greedy completion is right (strict).
        sampled: per row, the share of its sampled completions that is right (strict). This and the other lists of samples are empty if
            none were sampled.
        greedy_lenient, sampled_lenient: the same, by the lenient verdict of :func:`verdicts`.
        majority: per row, 1.0 if the answer that most samples give is right (maj@n; strict).
        num_samples: sampled completions per row, n.
        greedy_format, sampled_format: share of completions in the recipe's format; ``None`` if there are none.
        language: mean language consistency of the reasoning, 0..1; ``None`` if none could be judged. This and the following are of the
            sampled completions, or of the greedy ones if none were sampled.
        mean_tokens: mean length.
        truncated: share that reached the length limit.
        rewards: by name, what the recipe's own rewards give each row on average; ``None`` for a row that the reward does not judge.
        examples: a few greedy completions, for people.
        judged_on: which rows these are, and whether they were held out, in words.
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
        """Per row, the unbiased estimate of pass@k from n samples: ``1 - C(n - c, k) / C(n, k)`` (Chen et al., arXiv:2107.03374).

        Raises:
            ValueError: ``k`` is over the number of samples.
        """
        n = self.num_samples
        if not 1 <= k <= n:
            raise ValueError(f"pass@{k} needs {k} samples or more, there are {n}")
        return [1 - math.comb(n - round(share * n), k) / math.comb(n, k) for share in self.sampled]


def compares_with_gold(judge: Callable) -> bool:
    """Whether a reward compares the format's answer with a gold, so that it can be asked about an answer found elsewhere."""
    return isinstance(getattr(judge, "reward", judge), AnswerReward)


def verdicts(
    fmt: ResponseFormat,
    judges: dict[str, Callable],
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    given: Mapping[str, Sequence[float | None]] | None = None,
) -> tuple[list[bool], list[bool]]:
    """Whether each completion is right, strictly and leniently.

    Strictly: the first of ``judges`` that judges the row gives it full marks. Leniently right is also what such a judge would accept, if
    it compares with a gold, in the place that the format asks for: what follows the reasoning (or the whole text, if none is closed) and
    ends in a box, in "the answer is", or in a last line; and, as lm-eval's flexible extraction has it, its last number.

    Args:
        rows: the row of each completion.
        given: by name, what rewards are known to give these completions.
    """
    strict: dict[int, bool] = {}
    lenient: dict[int, bool] = {}
    for name, judge in judges.items():
        unjudged = {i: text for i, text in enumerate(texts) if i not in strict}
        if given and name in given:
            found = {i: value >= 1 for i in unjudged if (value := given[name][i]) is not None}
        else:
            found = _full_marks(name, judge, rows, unjudged)
        strict |= found
        for pick in (final_answer, _last_number) if compares_with_gold(judge) else ():
            moved = {i: _moved_answer(fmt, texts[i], pick) for i in found if not found[i]}
            found |= _full_marks(name, judge, rows, {i: text for i, text in moved.items() if text is not None})
        lenient |= found
    if len(strict) < len(texts):
        counts = len(texts) - len(strict), len(texts)
        logger.warning("%d of %d completions are judged by none of %s and count as wrong", *counts, [*judges])
    return [strict.get(i, False) for i in range(len(texts))], [lenient.get(i, False) for i in range(len(texts))]


def _full_marks(name: str, judge: Callable, rows: Sequence[dict[str, Any]], texts: dict[int, str]) -> dict[int, bool]:
    """Whether each text gets full marks, by the index of its row; texts that are not judged are left out."""
    values = score(name, judge, [rows[i] for i in texts], [*texts.values()], None) if texts else []
    return {i: value >= 1 for i, value in zip(texts, values, strict=True) if value is not None}


def _moved_answer(fmt: ResponseFormat, text: str, pick: Callable[[str], str | None]) -> str | None:
    """A completion whose answer, picked out of ``text``, is in the place that the format asks for; ``None`` if there is no answer."""
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
    num_samples: int,
    judges: dict[str, Callable],
    rewards: dict[str, Callable],
    tokenizer: Any,
) -> tuple[Scores, dict[str, list[Any]]]:
    """Judge each row's group of completions, the greedy one first.

    Returns:
        The scores, and a table (by column) with a line per completion.
    """
    copies = 1 + num_samples
    each_row = [row for row in rows for _ in range(copies)]
    flat = [completion for group in groups for completion in group]
    texts, tokens = [completion.text for completion in flat], [completion.tokens for completion in flat]
    given = {}
    for reward, function in rewards.items():
        try:
            given[reward] = score(reward, function, each_row, texts, tokenizer, tokens)
        except RecipeError as error:  # the completions have cost too much to lose them over one column of the table
            logger.warning("%s; its column is left out", error)
    strict, lenient = verdicts(fmt, judges, each_row, texts, given)
    shape, language = get_reward_funcs(["format", "language_consistency"], fmt)
    formed = shape(completions=texts)
    columns = {"prompts" if key == "prompt" else key: [row[key] for row in each_row] for key in rows.column_names}
    spoken = language(completions=texts, **columns)
    answers = [parsed_answer(fmt, text) for text in texts]
    table = {
        "index": [index for index in range(len(groups)) for _ in range(copies)],
        "sample": [*range(-1, num_samples)] * len(groups),  # -1: greedy
        "question": [row["prompt"][-1]["content"] for row in each_row],
        "solution": [str(row.get("solution", "")) for row in each_row],
        "completion": texts,
        "answer": answers,
        "correct": strict,
        "lenient": lenient,
        "format": [bool(value) for value in formed],
        **{f"reward {reward}": values for reward, values in given.items()},
        "tokens": tokens,
        "finish_reason": [completion.finish_reason for completion in flat],
    }

    def samples(values: Sequence[Any]) -> list[Sequence[Any]]:
        return [values[i + 1 : i + copies] for i in range(0, len(values), copies)] if num_samples else []

    def shown(values: Sequence[Any]) -> list[Sequence[Any]]:
        """Of each row, the samples, or the greedy completion if there are none."""
        return samples(values) or [[value] for value in values]

    shown_completions = [completion for row in shown(flat) for completion in row]
    shares = [sum(row) / num_samples for row in samples(formed)]
    examples = {key: table[key][: 3 * copies : copies] for key in ("question", "completion", "solution")}
    scores = Scores(
        model=name,
        greedy=[float(value) for value in strict[::copies]],
        sampled=[sum(row) / num_samples for row in samples(strict)],
        greedy_lenient=[float(value) for value in lenient[::copies]],
        sampled_lenient=[sum(row) / num_samples for row in samples(lenient)],
        majority=[_majority(*row) for row in zip(samples(answers), samples(strict), strict=True)],
        num_samples=num_samples,
        greedy_format=_mean(formed[::copies]) or 0.0,
        sampled_format=_mean(shares),
        language=_mean([value for row in shown(spoken) for value in row]),
        mean_tokens=sum(completion.tokens for completion in shown_completions) / len(shown_completions),
        truncated=sum(completion.finish_reason == "length" for completion in shown_completions) / len(shown_completions),
        rewards={reward: [_mean(row) for row in shown(values)] for reward, values in given.items()},
        examples=[dict(zip(examples, example, strict=True)) for example in zip(*examples.values(), strict=True)],
    )
    return scores, table


def _mean(values: Sequence[float | None]) -> float | None:
    judged = [value for value in values if value is not None]
    return sum(judged) / len(judged) if judged else None


def _majority(answers: Sequence[str | None], right: Sequence[bool]) -> float:
    """1.0 if the most frequent answer (of equally frequent ones the first) is right; 0.0 if there is no answer."""
    votes: dict[str, list[bool]] = {}
    for answer, correct in zip(answers, right, strict=True):
        if answer is not None:
            # Case, white space, commas and a full stop do not make another answer.
            votes.setdefault("".join(answer.split()).replace(",", "").rstrip(".。").casefold(), []).append(correct)
    return float(max(votes.values(), key=len)[0]) if votes else 0.0
