"""Rewards for a correct answer, and how the answer of a completion is read and judged."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError, require
from r1_recipes.common.messages import completion_texts, last_user_text
from r1_recipes.common.plugins import Registry
from r1_recipes.prompts import FORMATS, ResponseFormat
from r1_recipes.verification import Verdict
from r1_recipes.verification.spelling import LOCALES

Column = Sequence[Any]  # one entry per completion
Values = list[float | None]
Texts = tuple[str | None, ...]
Log = Callable[[str, Any], None]  # TRL's log_extra and log_metric
THINK_ANSWER = FORMATS["think_answer"]  # what a reward reads outside of a recipe
REWARDS: Registry[Callable[..., Values]] = Registry("reward")


def reward(function: Callable[..., Values]) -> Callable[..., Values]:
    """Make a reward available to recipes, by its own name."""
    REWARDS[function.__name__] = function
    return function


def ignore(name: str, value: Any) -> None:
    pass


@reward
def accuracy(
    completions: Column,
    solution: Column | None = None,
    log_extra: Log = ignore,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    number_locale: str = "en",
    **columns: Any,
) -> Values:
    """Return 1.0 if the final answer equals the reference answer in ``solution``, else 0.0.

    Range: {0, 1}. Return ``None`` if the reference answer is empty or prose. Only the answer in the
    response format counts. An answer inside the reasoning, several answers, or a chain of equations
    get 0.0. math-verify compares expressions. Writes ``answer_parsed``, ``solution`` and
    ``refused`` (why an answer scored 0) to the completions table. Source: the accuracy reward of
    DeepSeek-R1 (arXiv:2501.12948, section 2.2.2). TRL's ``accuracy_reward`` searches the whole
    completion for LaTeX, so it reads no plain 72 between tags.

    Args:
        completions: Texts, or lists of messages.
        solution: The reference answers.
        log_extra: TRL's function that adds a column to the completions table.
        fmt: The response format.
        number_locale: ``de`` reads 1.250,5 as 1250.5, in reference answers and answers.
        **columns: What :func:`judged` reads: the prompts.
    """
    answers, verdicts = judged(completions, fmt, number_locale, solution, **columns)
    log_extra("answer_parsed", [answer or "" for answer in answers])
    log_extra("solution", ["" if gold is None else str(gold) for gold in solution or ()])
    log_extra("refused", [str(verdict.refusal or "") for verdict in verdicts])
    return [None if verdict.right is None else float(verdict.right) for verdict in verdicts]


def parsed_answer(fmt: ResponseFormat, completion: str) -> str | None:
    r"""Return the final answer of a completion, or ``None`` if it is missing or contradictory.

    In a format with tags or delimiters, only the text between them counts. In other formats and in
    prose, :func:`r1_recipes.verification.final_answer` searches the text.
    """
    answer = fmt.parse(completion).answer
    if answer is not None:
        return verification.final_answer(answer) if fmt.prose else answer
    if fmt.reasoning_tags or fmt.answer_tags:
        return None
    return verification.final_answer(fmt.full_text(completion))


def judged(
    completions: Column,
    fmt: ResponseFormat,
    number_locale: str,
    solution: Column | None = None,
    prompts: Column | None = None,
    **columns: Any,
) -> tuple[Texts, list[Verdict]]:
    """Return the final answer of each completion, and its verdict.

    With the question, an answer that only repeats it is wrong, and lists follow the order that it
    requires.

    Raises:
        RecipeError: There is no column ``solution``.
    """
    require(
        number_locale in LOCALES, "number_locale", f"one of {', '.join(LOCALES)}", number_locale
    )
    if solution is None:
        raise RecipeError(
            "accuracy, cosine, length and answer_match need a column 'solution' with the reference "
            "answers. Fix: name a mapper that writes it"
        )
    return _judged_once(
        fmt,
        tuple(completion_texts(completions)),
        tuple(None if gold is None else str(gold) for gold in solution),
        tuple(map(last_user_text, prompts)) if prompts else None,
        number_locale,
    )


@lru_cache(maxsize=1)  # accuracy, cosine and length judge the same completions of a step.
def _judged_once(
    fmt: ResponseFormat,
    texts: tuple[str, ...],
    golds: Texts,
    questions: tuple[str, ...] | None,
    number_locale: str,
) -> tuple[Texts, list[Verdict]]:
    answers = tuple(parsed_answer(fmt, text) for text in texts)
    return answers, verification.judge(golds, answers, number_locale, questions)
