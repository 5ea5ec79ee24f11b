"""Rewards for a right answer. Correctness itself is decided in :mod:`r1_recipes.verification`, once for every reward that asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import AnswerReward, register_reward


def parsed_answers(fmt: ResponseFormat, completions: Sequence[Any]) -> list[str | None]:
    r"""The one final answer of each completion, or ``None`` where it gives none or contradicts itself.

    A format without any tags (``boxed``) is a prompt's wish more than a shape, so where its box is missing the whole completion is
    searched as :func:`r1_recipes.verification.final_answer` does; of an answer in prose the answer block is. With tags, and in a format
    that is ``delimited`` (``boxed_only``), only what they hold counts.
    """
    answers = []
    for text in completion_texts(completions):
        answer = fmt.parse(text).answer
        if answer is None and fmt.reasoning_tags is None and fmt.answer_tags is None and not fmt.delimited:
            answer = verification.final_answer(fmt.full_text(text))
        elif answer is not None and fmt.prose:
            answer = verification.final_answer(answer)
        answers.append(answer)
    return answers


def correctness(
    fmt: ResponseFormat,
    completions: Sequence[Any],
    solution: Sequence[Any] | None,
    scorer: Sequence[str | None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
) -> list[bool | None]:
    """Whether each completion's final answer is right. Several rewards may ask for the same batch: only the first has it judged.

    Args:
        fmt: reads the completions.
        completions: as TRL hands them over.
        solution: golds, one a completion; a number is taken as its text, ``None`` is nobody's to judge.
        scorer: the optional dataset column of that name. Where a row has a non-empty one (JSON ``{"reasoning_gym": task, "entry":
            {…}}``), that task's own scorer decides, and the row's ``solution`` is not looked at.
        log_metric: where this call has the batch judged, told what that cost: ``verification/timeouts`` (answers that took too long),
            ``verification/seconds``, ``verification/cache_hits`` (verdicts that were known or shared).

    Returns:
        One a completion; ``None`` where the gold cannot be judged by.

    Raises:
        ValueError: columns of differing lengths, or a scorer that is no such JSON. Never because of a completion.
    """
    return list(_judge(fmt, completions, solution, scorer, log_metric).verdicts)


@dataclass(frozen=True)
class _Judged:
    """A batch and its verdicts."""

    asked: tuple
    answers: list[str | None]
    verdicts: list[bool | None]


_last: _Judged | None = None  # The other rewards of a step ask for the batch that the first one asked for.


def _judge(
    fmt: ResponseFormat,
    completions: Sequence[Any],
    solution: Sequence[Any] | None,
    scorer: Sequence[str | None] | None,
    log_metric: Callable[[str, float], None] | None,
) -> _Judged:
    global _last
    texts = completion_texts(completions)
    golds = None if solution is None else _gold_texts(solution)
    asked = (fmt, texts, golds, None if scorer is None else list(scorer))
    last = _last
    if last is not None and last.asked == asked:
        return last
    before = verification.STATS.copy()
    answers = parsed_answers(fmt, texts)
    judged = _last = _Judged(asked, answers, _verdicts(answers, golds, scorer))
    if log_metric is not None:
        for name in ("timeouts", "seconds", "cache_hits"):
            log_metric(f"verification/{name}", float(getattr(verification.STATS, name) - getattr(before, name)))
    return judged


def _verdicts(answers: list[str | None], golds: list[str | None] | None, scorer: Sequence[str | None] | None) -> list[bool | None]:
    specs = list(scorer) if scorer is not None else [None] * len(answers)
    golds = golds if golds is not None else [None] * len(answers)
    for name, column in (("solution", golds), ("scorer", specs)):
        if len(column) != len(answers):
            raise ValueError(f"column {name!r} has {len(column)} entries for {len(answers)} completions")
    verdicts = verification.grade([None if spec else gold for spec, gold in zip(specs, golds, strict=True)], answers)
    rows = [index for index, spec in enumerate(specs) if spec]
    scores = verification.score([specs[index] for index in rows], [answers[index] for index in rows])
    for index, verdict in zip(rows, scores, strict=True):
        verdicts[index] = verdict
    return verdicts


def _gold_texts(solution: Sequence[Any]) -> list[str | None]:
    return [None if gold is None else str(gold) for gold in solution]


def require_solution(
    reward: str, solution: Sequence[Any] | None, columns: dict[str, Any], scorer: Sequence[str | None] | None = None
) -> None:
    """Refuse a dataset without golds, by name: that is the recipe's fault, not the model's.

    Raises:
        RecipeError: ``solution`` is ``None``, and some row has no ``scorer`` either.
    """
    # A row with a scorer of its own needs no gold.
    if solution is None and (scorer is None or not all(scorer)):
        found = sorted(key for key, value in columns.items() if isinstance(value, (list, tuple)))
        raise RecipeError(
            f"reward {reward!r} needs a column 'solution' with the gold answers; the dataset's columns here are: "
            f"{', '.join(found) or 'none'}. Name a mapper in the recipe that writes one."
        )


@register_reward("accuracy")
@dataclass(frozen=True)
class AccuracyReward(AnswerReward):
    """1.0 where the final answer equals the column ``solution``, else 0.0; ``None`` where that gold is not mathematics.

    Range: {0, 1}. Only the format's answer counts: not one inside the reasoning, not one among several, not a chain of equations.
    Sends ``answer_parsed`` and ``solution`` to the completions table, and the metrics of :func:`correctness`.
    Source: DeepSeek-R1's accuracy reward (arXiv:2501.12948, section 2.2.2), decided by Hugging Face's math-verify; with the column
    ``scorer``, by reasoning-gym.
    """

    def __call__(
        self,
        completions: Sequence[Any],
        solution: Sequence[Any] | None = None,
        scorer: Sequence[str | None] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        require_solution(self.name, solution, columns, scorer)
        judged = _judge(self.response_format, completions, solution, scorer, log_metric)
        self.log_answers(log_extra, judged.answers, [None] * len(completions) if solution is None else solution)
        return [None if verdict is None else float(verdict) for verdict in judged.verdicts]


@register_reward("answer_contains")
@dataclass(frozen=True)
class AnswerContainsReward(AnswerReward):
    """1.0 where the column ``solution`` is a substring of the parsed answer, else 0.0; ``None`` where there is no gold.

    Range: {0, 1}. Deliberately naive (``172`` contains ``72``), as in its source: the GSM8K GRPO demo for TRL (grpo_demo).
    """

    def __call__(
        self,
        completions: Sequence[Any],
        solution: Sequence[Any] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        require_solution(self.name, solution, columns)
        answers = parsed_answers(self.response_format, completions)
        self.log_answers(log_extra, answers, solution)
        return [
            None if gold is None or not gold.strip() else float(answer is not None and gold.strip() in answer)
            for gold, answer in zip(_gold_texts(solution), answers, strict=True)
        ]
