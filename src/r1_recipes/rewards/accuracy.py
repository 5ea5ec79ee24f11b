"""Rewards for a correct answer. :mod:`r1_recipes.verification` compares mathematics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from r1_recipes import verification
from r1_recipes.common import names
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
from r1_recipes.verification.spelling import LOCALES

Texts = tuple[str | None, ...]  # one entry per completion


@dataclass(frozen=True, kw_only=True)
class MathReward(Reward):
    """Base class of the rewards that compare an answer with its reference answer as mathematics."""

    reads_gold = True
    number_locale: str = "en"  # "de" reads 1.250,5 as 1250.5, in reference answers and answers.

    def __post_init__(self) -> None:
        self.require(self.number_locale in LOCALES, "number_locale", f"one of {', '.join(LOCALES)}")


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
    nums: Column | None = None,
    target: Column | None = None,
    prompts: Column | None = None,
    log_metric: Log = ignore,
    log_extra: Log = ignore,
    **columns: Any,
) -> tuple[Texts, Sequence[Verdict]]:
    """Return the final answer of each completion, and its verdict.

    A row with ``nums`` and ``target`` is a Countdown puzzle: an expression that makes the target is
    right, and ``solution`` does not count. With the question, an answer that only repeats it is
    wrong, and lists follow the order that it requires.

    Logs the metrics ``verification/timeouts`` and ``verification/seconds`` once per batch, from the
    first reward that compares it. Writes ``refused`` to the completions table: the reason why an
    answer scored 0.
    """
    puzzles = [False] * len(completions)
    if nums is not None and target is not None:
        puzzles = [
            number is not None and goal is not None
            for number, goal in zip(nums, target, strict=True)
        ]
        solution = [None] * len(completions) if all(puzzles) else solution
    golds = reward.golds(solution, columns)
    questions = tuple(map(last_user_text, prompts)) if prompts else None
    before = replace(verification.STATS)
    answers, verdicts = _correctness(
        reward.response_format,
        tuple(completion_texts(completions)),
        tuple(None if puzzle else gold for puzzle, gold in zip(puzzles, golds, strict=True)),
        questions,
        reward.number_locale,
    )
    if verification.STATS.seconds > before.seconds:
        for name in ("timeouts", "seconds"):
            added = getattr(verification.STATS, name) - getattr(before, name)
            log_metric(f"verification/{name}", float(added))
    if nums is not None and target is not None and any(puzzles):
        solves = names.load("checker", "countdown")
        rights = map(solves, answers, nums, target)
        verdicts = [
            Verdict(right, None if right else Refusal.DIFFERENT) if puzzle else verdict
            for puzzle, right, verdict in zip(puzzles, rights, verdicts, strict=True)
        ]
    log_extra("refused", [str(verdict.refusal or "") for verdict in verdicts])
    return answers, verdicts


@lru_cache(maxsize=1)  # All rewards of a step compare the same batch.
def _correctness(
    fmt: ResponseFormat,
    texts: tuple[str, ...],
    golds: Texts,
    questions: tuple[str, ...] | None,
    locale: str,
) -> tuple[Texts, Sequence[Verdict]]:
    parsed = [_answer(fmt, text) for text in texts]
    answers = tuple(answer for answer, _ in parsed)
    verdicts = verification.judge(golds, answers, locale, questions)
    for row, (_, refusal) in enumerate(parsed):
        if refusal and verdicts[row].right is False:
            verdicts[row] = Verdict(False, refusal)
    return answers, verdicts


@register_reward("accuracy")
class AccuracyReward(MathReward, AnswerReward):
    """Return 1.0 if the final answer equals the reference answer in ``solution``, else 0.0.

    Range: {0, 1}. Return ``None`` if the reference answer is empty or prose. Only the answer in the
    response format counts. An answer inside the reasoning, several answers, or a chain of equations
    get 0.0. math-verify compares. Source: the accuracy reward of DeepSeek-R1 (arXiv:2501.12948,
    section 2.2.2).
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
