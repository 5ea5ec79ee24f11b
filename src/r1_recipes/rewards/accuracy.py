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

Texts = tuple[str | None, ...]  # one entry per completion


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
    if answer is not None:
        return verification.final_answer(answer) if fmt.prose else answer
    if fmt.reasoning_tags or fmt.answer_tags:
        return None
    return verification.final_answer(fmt.full_text(completion))


def _answer(fmt: ResponseFormat, completion: str) -> tuple[str | None, Refusal | None]:
    """Return the answer to compare with the reference answer, or the reason why there is none."""
    parsed = fmt.parse(completion)
    answer = parsed_answer(fmt, completion, parsed)
    if answer is not None:
        return answer, None
    if fmt.reasoning_tags and parsed.answer is None:
        marks = (*(fmt.answer_tags or ()), "\\boxed")
        if any(mark in completion for mark in marks):
            return None, Refusal.INSIDE
    return None, Refusal.NO_ANSWER


def correctness(
    reward: MathReward,
    completions: Column,
    solution: Column | None = None,
    scorer: Sequence[str | None] | None = None,
    prompts: Column | None = None,
    log_metric: Log = ignore,
    log_extra: Log = ignore,
    **columns: Any,
) -> tuple[Texts, Sequence[Verdict]]:
    """Return the final answer of each completion, and its verdict.

    If a row has a ``scorer`` (JSON ``{"countdown": {"numbers": …, "target": n}}``), the checker of
    that task decides instead of ``solution``. Slow answers of a batch may leave no time for another
    answer. Such an answer is wrong if another answer to the same reference answer was wrong, so
    that a slow answer never scores better than a wrong one. Otherwise it has no verdict.

    Logs the metrics ``verification/timeouts``, ``…/seconds`` and ``…/cache_hits`` once per batch,
    from the first reward that compares it. Writes ``refused`` to the completions table: the reason
    why an answer scored 0.
    """
    nothing = [None] * len(completions)
    if solution is None and scorer and all(scorer):
        solution = nothing
    solutions = tuple(reward.golds(solution, columns))
    scorers = tuple(nothing if scorer is None else scorer)
    questions = None
    if reward.reads_question and prompts:
        questions = tuple(map(last_user_text, prompts))
    settings = (reward.number_locale, reward.precision, questions)
    texts = tuple(completion_texts(completions))
    before = replace(verification.STATS)
    answers, verdicts = _correctness(reward.response_format, texts, solutions, scorers, settings)
    if verification.STATS.seconds > before.seconds:
        for name in ("timeouts", "seconds", "cache_hits"):
            added = getattr(verification.STATS, name) - getattr(before, name)
            log_metric(f"verification/{name}", float(added))
    log_extra("refused", [str(verdict.refusal or "") for verdict in verdicts])
    # Selection keeps rows without a verdict, so running out of time must count as wrong there.
    selects = columns.get("trainer_state", True) is None
    keys = list(zip(solutions, scorers, strict=True))
    found_wrong = {keys[row] for row, verdict in enumerate(verdicts) if verdict.right is False}
    settled = []
    for key, verdict in zip(keys, verdicts, strict=True):
        if verdict.refusal is Refusal.HURRIED and (selects or key in found_wrong):
            verdict = replace(verdict, right=False)
        settled.append(verdict)
    return answers, tuple(settled)


_SCORER_REFUSALS = {True: None, False: Refusal.DIFFERENT, None: Refusal.HURRIED}


@lru_cache(maxsize=1)  # All rewards of a step compare the same batch.
def _correctness(
    fmt: ResponseFormat,
    texts: tuple[str, ...],
    solutions: Texts,
    scorers: Texts,
    settings: tuple[str, int, tuple[str, ...] | None],
) -> tuple[Texts, Sequence[Verdict]]:
    parsed = [_answer(fmt, text) for text in texts]
    answers = tuple(answer for answer, _ in parsed)
    golds = [None if spec else gold for spec, gold in zip(scorers, solutions, strict=True)]
    verdicts = verification.judge(golds, answers, *settings)
    scored = {row: spec for row, spec in enumerate(scorers) if spec}
    if scored:
        rights = verification.score([*scored.values()], [answers[row] for row in scored])
        for row, right in zip(scored, rights, strict=True):
            verdicts[row] = Verdict(right, _SCORER_REFUSALS[right])
    for row, (_, refusal) in enumerate(parsed):
        if refusal and verdicts[row].right is False:
            verdicts[row] = Verdict(False, refusal)
    return answers, verdicts


@register_reward("accuracy")
class AccuracyReward(MathReward, AnswerReward):
    """Return 1.0 if the final answer equals the reference answer in ``solution``, else 0.0.

    Range: {0, 1}. Return ``None`` if the reference answer is empty or prose, or if slow answers of
    the batch left no time to compare and no other answer to it was wrong. Only the answer in the
    response format counts. An answer inside the reasoning, several answers, or a chain of equations
    get 0.0. math-verify compares. Source: the
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
        golds = [None] * len(answers) if solution is None else solution
        self.log_answers(log_extra, answers, golds)
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
        if not gold:
            return None
        return float(answer is not None and gold in answer)
