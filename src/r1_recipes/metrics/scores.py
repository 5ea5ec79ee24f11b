"""What models did on rows: strict and lenient accuracy, maj@n, pass@n."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards import AnswerReward, get_reward_funcs
from r1_recipes.rewards.accuracy import parsed_answers
from r1_recipes.rewards.call import score
from r1_recipes.verification import final_answer

if TYPE_CHECKING:
    from datasets import Dataset

    from r1_recipes.completions.backends import Completion

logger = logging.getLogger(__name__)

_LAST_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


@dataclass
class Scores:
    """What one model did on the held-out rows.

    Attributes:
        model: path or id.
        greedy: per row, 1.0 where the greedy completion is right (strict).
        sampled: per row, the share of its sampled completions that is right (strict); empty where none were sampled, as the next ones.
        greedy_lenient: as ``greedy``, by :func:`verdicts`.
        sampled_lenient: as ``sampled``, by the same.
        majority: per row, 1.0 where the answer that most samples give is right (maj@n; strict).
        num_samples: sampled completions a row, n.
        greedy_format: share of greedy completions in the recipe's format.
        sampled_format: the same of sampled ones; ``None`` where there are none.
        language: mean language consistency of the sampled completions' reasoning, 0..1, by the reward of that name; ``None`` where it
            can judge none. Where none were sampled this and the following are of greedy completions.
        mean_tokens: mean length of sampled completions.
        truncated: share of sampled completions that reached the length limit.
        rewards: by name, what the recipe's own rewards give the sampled completions of each row on average; ``None`` for a row that the
            reward does not judge.
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
    each_row: Sequence[dict[str, Any]],
    texts: Sequence[str],
    given: Mapping[str, Sequence[float | None]] | None = None,
) -> tuple[list[bool], list[bool]]:
    """Whether each completion is right, strictly and leniently.

    Strictly: the first of ``judges`` that judges the row gives it full marks. Leniently right is also what such a judge would accept, if
    it compares with a gold, where it stood in the format: what follows the reasoning (or the whole text, where none is closed) and ends
    in a box, in "the answer is", or in a last line; and, as lm-eval's flexible extraction has it, its last number.

    Args:
        fmt: reads the completions.
        judges: rewards by name.
        each_row: the row of each completion.
        texts: completions.
        given: what rewards gave these completions, by name, if it is known already.
    """

    strict: list[bool | None] = [None] * len(texts)
    lenient: list[bool] = [False] * len(texts)
    closing = fmt.reasoning_tags[1] if fmt.reasoning_tags else None
    for name, judge in judges.items():
        mine = [index for index, verdict in enumerate(strict) if verdict is None]
        if not mine:
            break
        if given and name in given:
            scores = [given[name][index] for index in mine]
        else:
            scores = score(name, judge, [each_row[index] for index in mine], [texts[index] for index in mine], None)
        for index, value in zip(mine, scores, strict=True):
            strict[index], lenient[index] = None if value is None else value >= 1, (value or 0) >= 1
        for pick in (final_answer, _last_number) if compares_with_gold(judge) else ():
            written = {}
            for index in (index for index in mine if strict[index] is not None and not lenient[index]):
                text = fmt.full_text(texts[index])
                answer = pick(text.rpartition(closing)[2] if closing and closing in text else text)
                if answer:
                    with contextlib.suppress(ValueError):  # what the format cannot hold
                        written[index] = fmt.render_completion("Let me see.", answer)
            scores = score(name, judge, [each_row[index] for index in written], [*written.values()], None) if written else []
            for index, value in zip(written, scores, strict=True):
                lenient[index] = (value or 0) >= 1
    if None in strict:
        logger.warning("%d of %d completions are judged by none of %s and count as wrong", strict.count(None), len(texts), [*judges])
    return list(map(bool, strict)), lenient


def _last_number(text: str) -> str | None:
    *_, number = [None, *_LAST_NUMBER.findall(text)]
    return None if number is None else number.replace("$", "").rstrip(",")


def judge(
    name: str,
    fmt: ResponseFormat,
    rows: Dataset,
    groups: list[list[Completion]],
    num_samples: int,
    judges: dict[str, Callable],
    rewards: dict[str, Callable],
    tokenizer: Any,
) -> tuple[Scores, list[dict[str, Any]]]:
    """Scores, and one record a completion: the first of a row's is the greedy one."""

    shape, language = get_reward_funcs(["format", "language_consistency"], fmt)
    copies = 1 + num_samples
    flat = [completion for group in groups for completion in group]
    texts = [completion.text for completion in flat]
    columns = {column: [value for value in rows[column] for _ in range(copies)] for column in rows.column_names}
    columns["prompts"] = columns.pop("prompt")
    each_row = [row for row in rows for _ in range(copies)]
    given = _own_scores(rewards, each_row, flat, tokenizer)
    strict, lenient = verdicts(fmt, judges, each_row, texts, given)
    formed = shape(completions=texts)
    spoken = language(completions=texts, **columns)
    answers = parsed_answers(fmt, texts)
    table = [
        {
            "index": position // copies,
            "sample": position % copies - 1,  # -1: greedy
            "question": rows[position // copies]["prompt"][-1]["content"],
            "solution": str(columns["solution"][position]) if "solution" in columns else "",
            "completion": completion.text,
            "answer": answers[position],
            "correct": strict[position],
            "lenient": lenient[position],
            "format": bool(formed[position]),
            **{f"reward {reward}": values[position] for reward, values in given.items()},
            "tokens": completion.tokens,
            "finish_reason": completion.finish_reason,
        }
        for position, completion in enumerate(flat)
    ]

    def shares(values: Sequence[float]) -> tuple[list[float], list[float]]:
        """Greedy values a row, and the mean of the samples' a row."""
        by_row = [values[i : i + copies] for i in range(0, len(values), copies)]
        return [float(row[0]) for row in by_row], [sum(row[1:]) / num_samples for row in by_row if num_samples]

    greedy, sampled = shares(strict)
    greedy_lenient, sampled_lenient = shares(lenient)
    greedy_format, sampled_format = (sum(values) / len(values) if values else None for values in shares(formed))
    # What is looked at beside accuracy: the samples, or the greedy completions where there are none.
    shown = [position for position, record in enumerate(table) if record["sample"] >= 0 or not num_samples]
    heard = [spoken[position] for position in shown if spoken[position] is not None]
    by_row: list[list[int]] = [[] for _ in groups]
    for position in shown:
        by_row[position // copies].append(position)
    return Scores(
        model=name,
        greedy=greedy,
        sampled=sampled,
        greedy_lenient=greedy_lenient,
        sampled_lenient=sampled_lenient,
        majority=[_majority(table[i + 1 : i + copies]) for i in range(0, len(table), copies) if num_samples],
        num_samples=num_samples,
        greedy_format=greedy_format,
        sampled_format=sampled_format,
        language=sum(heard) / len(heard) if heard else None,
        mean_tokens=sum(flat[position].tokens for position in shown) / len(shown),
        truncated=sum(flat[position].finish_reason == "length" for position in shown) / len(shown),
        rewards={reward: [_mean_of_judged(values[p] for p in row) for row in by_row] for reward, values in given.items()},
        examples=[
            {"question": record["question"], "completion": record["completion"], "solution": record["solution"]}
            for record in table[: 3 * copies : copies]
        ],
    ), table


def _own_scores(
    rewards: dict[str, Callable], each_row: list[dict[str, Any]], completions: list[Completion], tokenizer: Any
) -> dict[str, list[float | None]]:
    """What each of the recipe's rewards gives each completion, called as TRL would; one that fails is named, and left out."""

    texts, tokens = [completion.text for completion in completions], [completion.tokens for completion in completions]
    given = {}
    for name, reward in rewards.items():
        try:
            given[name] = score(name, reward, each_row, texts, tokenizer, tokens)
        except RecipeError as error:  # the completions have cost too much to lose them over one column of the table
            logger.warning("%s; its column is left out", error)
    return given


def _mean_of_judged(values: Iterable[float | None]) -> float | None:
    judged = [value for value in values if value is not None]
    return sum(judged) / len(judged) if judged else None


def _majority(samples: list[dict[str, Any]]) -> float:
    """1.0 where the answer that most samples give is right; of equally frequent ones the first given counts, and no answer is none."""
    votes = Counter(_vote(record["answer"]) for record in samples if record["answer"] is not None)
    if not votes:
        return 0.0
    winner = votes.most_common(1)[0][0]
    chosen = next(r for r in samples if r["answer"] is not None and _vote(r["answer"]) == winner)
    return float(chosen["correct"])


def _vote(answer: str) -> str:
    """An answer as votes are counted: case, white space, commas and a full stop do not make another one."""
    return "".join(answer.split()).replace(",", "").rstrip(".。").casefold()
