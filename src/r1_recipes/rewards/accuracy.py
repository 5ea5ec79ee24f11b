"""Rewards for a correct answer.

:mod:`r1_recipes.verification` compares mathematics, once per batch for all rewards.
:mod:`r1_recipes.extras.countdown.puzzle` checks puzzles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from r1_recipes import verification
from r1_recipes.common.messages import completion_texts, last_user_text
from r1_recipes.prompts.formats import ParsedResponse, ResponseFormat
from r1_recipes.rewards.registry import (
    AnswerReward,
    Column,
    Log,
    Reward,
    Values,
    ignore,
    register_reward,
)
from r1_recipes.verification import Refusal, Verdict
from r1_recipes.verification.numbers import PRECISION
from r1_recipes.verification.spelling import LOCALES


@dataclass(frozen=True, kw_only=True)
class MathReward(Reward):
    """Base class of the rewards that compare an answer with its reference answer as mathematics."""

    reads_gold = True
    number_locale: str = "en"  # "de" reads 1.250,5 as 1250.5, in reference answers and answers.
    precision: int = PRECISION  # Decimal places to compare.
    # With the question, an answer that only repeats it is wrong, and lists follow the order that it
    # requires.
    reads_question: bool = True

    def __post_init__(self) -> None:
        self.require(self.number_locale in LOCALES, "number_locale", f"one of {', '.join(LOCALES)}")
        self.require(0 <= self.precision <= 15, "precision", "a number of places from 0 to 15")


def parsed_answer(
    fmt: ResponseFormat, completion: str, parsed: ParsedResponse | None = None
) -> str | None:
    r"""Return the final answer of a completion, or ``None`` if it is missing or contradictory.

    In a format with tags or delimiters, only the text between them counts. In other formats and in
    prose, :func:`r1_recipes.verification.final_answer` searches the text.
    """
    answer = (parsed or fmt.parse(completion)).answer
    if (
        answer is None
        and fmt.reasoning_tags is None
        and fmt.answer_tags is None
        and not fmt.delimited
    ):
        return verification.final_answer(fmt.full_text(completion))
    return verification.final_answer(answer) if answer is not None and fmt.prose else answer


def _answer(fmt: ResponseFormat, completion: str) -> tuple[str | None, Refusal | None]:
    """Return the answer to compare with the reference answer, or the reason why there is none.

    Several boxes are returned together, so that they can be compared with each other too.
    """
    parsed = fmt.parse(completion)
    if len(parsed.boxes) > 1 or any("box" in box for box in parsed.boxes):
        return ", ".join(rf"\boxed{{{box}}}" for box in parsed.boxes), None
    if (answer := parsed_answer(fmt, completion, parsed)) is not None:
        return answer, None
    misplaced = fmt.reasoning_tags is not None and any(
        tag in completion for tag in (*(fmt.answer_tags or ()), "\\boxed")
    )
    return None, Refusal.INSIDE if misplaced and parsed.answer is None else Refusal.NO_ANSWER


def correctness(
    reward: MathReward,
    completions: Column,
    solution: Column | None = None,
    scorer: Sequence[str | None] | None = None,
    prompts: Column | None = None,
    log_metric: Log = ignore,
    log_extra: Log = ignore,
    **columns: Any,
) -> tuple[Sequence[str | None], Sequence[Verdict]]:
    """Return the final answer of each completion, and its verdict.

    If a row has a ``scorer`` (JSON ``{"reasoning_gym": task, "entry": {…}}``), the scorer of that
    task decides instead of ``solution``. Slow answers of a batch may leave no time for another
    answer. Such an answer is wrong if another answer to the same reference answer was wrong, so
    that a slow answer never scores better than a wrong one. Otherwise it has no verdict.

    Logs the metrics ``verification/timeouts``, ``…/seconds`` and ``…/cache_hits`` once per batch,
    from the first reward that compares it. Writes ``refused`` to the completions table: the reason
    why an answer scored 0.
    """
    scorers = (None,) * len(completions) if scorer is None else tuple(scorer)
    solutions = (
        (None,) * len(completions)
        if solution is None and scorer and all(scorer)
        else tuple(reward.golds(solution, columns))
    )
    before = replace(verification.STATS)
    questions = tuple(map(last_user_text, prompts)) if reward.reads_question and prompts else None
    settings = (reward.number_locale, reward.precision, questions)
    answers, verdicts = _correctness(
        reward.response_format, tuple(completion_texts(completions)), solutions, scorers, settings
    )
    if verification.STATS.seconds > before.seconds:
        for name in ("timeouts", "seconds", "cache_hits"):
            log_metric(
                f"verification/{name}",
                float(getattr(verification.STATS, name) - getattr(before, name)),
            )
    log_extra("refused", [str(verdict.refusal or "") for verdict in verdicts])
    # Selection keeps rows without a verdict, so running out of time must count as wrong there.
    selects = columns.get("trainer_state", True) is None
    keys = list(zip(solutions, scorers, strict=True))
    found_wrong = {
        key for key, verdict in zip(keys, verdicts, strict=True) if verdict.right is False
    }
    verdicts = tuple(
        replace(verdict, right=False)
        if verdict.refusal is Refusal.HURRIED and (selects or key in found_wrong)
        else verdict
        for key, verdict in zip(keys, verdicts, strict=True)
    )
    return answers, verdicts


@lru_cache(maxsize=1)  # All rewards of a step compare the same batch.
def _correctness(
    fmt: ResponseFormat,
    texts: tuple[str, ...],
    solutions: tuple[str | None, ...],
    scorers: tuple[str | None, ...],
    settings: tuple[str, int, tuple[str, ...] | None],
) -> tuple[Sequence[str | None], Sequence[Verdict]]:
    answers, refusals = (
        zip(*(_answer(fmt, text) for text in texts), strict=True) if texts else ((), ())
    )
    verdicts = verification.judge(
        [None if spec else solution for spec, solution in zip(scorers, solutions, strict=True)],
        answers,
        *settings,
    )
    verdicts = [
        Verdict(verdict.right, refusal if refusal and verdict.right is False else verdict.refusal)
        for verdict, refusal in zip(verdicts, refusals, strict=True)
    ]
    scored = {row: spec for row, spec in enumerate(scorers) if spec}
    if scored:
        rights = verification.score([*scored.values()], [answers[row] for row in scored])
        for row, right in zip(scored, rights, strict=True):
            wrong = Refusal.HURRIED if right is None else refusals[row] or Refusal.DIFFERENT
            verdicts[row] = Verdict(right, None if right else wrong)
    return tuple(answers), tuple(verdicts)


@register_reward("accuracy")
class AccuracyReward(MathReward, AnswerReward):
    """Return 1.0 if the final answer equals the reference answer in ``solution``, else 0.0.

    Range: {0, 1}. Return ``None`` if the reference answer is empty or prose, or if slow answers of
    the batch left no time to compare and no other answer to it was wrong. Only the answer in the
    response format counts. An answer inside the reasoning, several answers, or a chain of equations
    get 0.0. math-verify compares; with a column ``scorer``, reasoning-gym does. Source: the
    accuracy reward of DeepSeek-R1 (arXiv:2501.12948, section 2.2.2).
    """

    def __call__(
        self,
        completions: Column,
        *,
        solution: Column | None = None,
        log_extra: Log = ignore,
        **columns: Any,
    ) -> Values:
        answers, verdicts = correctness(self, completions, solution, log_extra=log_extra, **columns)
        self.log_answers(
            log_extra, answers, [None] * len(completions) if solution is None else solution
        )
        return [None if verdict.right is None else float(verdict.right) for verdict in verdicts]


@register_reward("answer_contains")
class AnswerContainsReward(AnswerReward):
    """Return 1.0 if the reference answer is a substring of the parsed answer, else 0.0.

    Range: {0, 1}. Return ``None`` without a reference answer. This reward is naive on purpose
    (``172`` contains ``72``), like its source: qwen2.5-0.5b-grpo, after grpo_demo.
    """

    def answer(self, text: str) -> str | None:
        return parsed_answer(self.response_format, text)

    def score(self, answer: str | None, gold: str) -> float | None:
        gold = gold.strip()
        return float(answer is not None and gold in answer) if gold else None
