"""Map the names of rewards in a recipe to callables that ``trl.GRPOTrainer`` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform

from r1_recipes.common.errors import RecipeError, require
from r1_recipes.common.messages import completion_texts
from r1_recipes.common.plugins import Registry
from r1_recipes.prompts import ResponseFormat

Column = Sequence[Any]  # one entry per completion
Values = list[float | None]
Log = Callable[[str, Any], None]  # TRL's log_extra and log_metric

REWARDS: Registry[Any] = Registry("reward")


def ignore(name: str, value: Any) -> None:
    """Log nothing."""


@dataclass(frozen=True)
class Reward:
    """Base class of the rewards here: a picklable callable with a name.

    A subclass declares its parameters as dataclass fields with defaults, and their names become
    recipe keys. It defines :meth:`score_text`, or ``__call__`` if it needs a column.

    Attributes:
        response_format: The format that completions are read with.
        name: The name in a recipe; :func:`register_reward` sets it.
        judges: What full marks mean. ``"answer"``: the answer is right. ``"shape"``: the format's
            tags are right. ``"style"``: length, repetition, language or steps. ``""``: anything
            else.
        full_marks: The score of a right answer in the format, or ``None`` if it varies.
        reads_gold: Whether the reward compares with the column ``solution``.
        graded: Whether a partly right answer scores between 0 and full marks.
        ranks_group: Whether the reward compares the completions of one prompt with each other.
    """

    response_format: ResponseFormat
    name: ClassVar[str]
    judges: ClassVar[str] = ""
    full_marks: ClassVar[float | None] = None
    reads_gold: ClassVar[bool] = False
    graded: ClassVar[bool] = False
    ranks_group: ClassVar[bool] = False

    @property
    def __name__(self) -> str:
        """Return the name that TRL logs the reward under: of the class, if it has no other."""
        return getattr(self, "name", type(self).__qualname__)

    def __call__(self, completions: Column, **columns: Any) -> Values:
        """Score a batch of completions.

        Args:
            completions: Texts, or lists of messages.
            **columns: What TRL passes by name: ``prompts``, ``completion_ids``, and every column of
                the data.

        Returns:
            One number per completion, or ``None`` for a completion that this reward does not judge.
        """
        return [self.score_text(text) for text in completion_texts(completions)]

    def score_text(self, text: str) -> float | None:
        """Score one completion by its text alone.

        Args:
            text: The completion, without its prefill.

        Returns:
            A number, or ``None`` if this reward does not judge the completion.
        """
        raise NotImplementedError

    def require(self, condition: object, key: str, allowed: str) -> None:
        """Refuse a parameter's value unless a condition holds.

        Args:
            condition: Whether the value is allowed.
            key: The parameter.
            allowed: What is allowed, in words.

        Raises:
            RecipeError: The condition does not hold.
        """
        require(condition, key, allowed, getattr(self, key))

    def missing(self, needed: str, columns: Mapping[str, Any]) -> RecipeError:
        """Return the error for a data set without the columns that this reward needs.

        Args:
            needed: The missing columns, in words.
            columns: The columns that are there.
        """
        made = ("prompts", "completions", "completion_ids")
        found = sorted(
            key
            for key, value in columns.items()
            if isinstance(value, list | tuple) and key not in made
        )
        held = f"the dataset's columns here are: {', '.join(found) or 'none'}"
        return RecipeError(
            f"reward {self.__name__!r} needs {needed}; {held}. Fix: name a mapper in the recipe "
            f"that writes them"
        )

    def golds(self, solution: Column | None, columns: Mapping[str, Any]) -> list[str | None]:
        """Return the reference answers as text.

        Args:
            solution: The column ``solution``.
            columns: The other columns, which an error message lists.

        Raises:
            RecipeError: There is no column ``solution``.
        """
        if solution is None:
            raise self.missing("a column 'solution' with the reference answers", columns)
        return [None if gold is None else str(gold) for gold in solution]


class AnswerReward(Reward):
    """Base class of the rewards that compare an answer with the reference answer.

    A subclass defines :meth:`score`. A score of 1.0 means that the answer is right.
    """

    judges = "answer"
    full_marks = 1.0
    reads_gold = True

    def __call__(
        self,
        completions: Column,
        *,
        solution: Column | None = None,
        log_extra: Log = ignore,
        **columns: Any,
    ) -> Values:
        """Score each completion's answer against the column ``solution``.

        Args:
            completions: Texts, or lists of messages.
            solution: The reference answers; ``None`` leaves a row unjudged.
            log_extra: TRL's function that adds a column to the table of completions.
            **columns: The other columns of the data.

        Returns:
            One number per completion, or ``None`` for a completion that this reward does not judge.
        """
        golds = self.golds(solution, columns)
        answers = [self.answer(text) for text in completion_texts(completions)]
        self.log_answers(log_extra, answers, golds)
        return [
            None if gold is None else self.score(answer, gold)
            for answer, gold in zip(answers, golds, strict=True)
        ]

    def score(self, answer: str | None, gold: str) -> float | None:
        """Score one answer.

        Args:
            answer: The answer, or ``None`` if the completion has none.
            gold: The reference answer.

        Returns:
            A number, or ``None`` if the reference answer cannot be compared with.
        """
        raise NotImplementedError

    def answer(self, text: str) -> str | None:
        """Return the answer in a completion, or ``None`` if there is none."""
        return self.response_format.parse(text).answer

    @staticmethod
    def log_answers(log_extra: Log, answers: Sequence[str | None], golds: Sequence[Any]) -> None:
        """Add the columns ``answer_parsed`` and ``solution`` to the table of completions.

        Args:
            log_extra: TRL's function that adds a column.
            answers: The answers as they were read.
            golds: The reference answers.
        """
        for column, texts in (("answer_parsed", answers), ("solution", golds)):
            log_extra(column, ["" if text is None else str(text) for text in texts])


def declared(reward: Any, fact: str) -> Any:
    """Return what a reward's class declares.

    Args:
        reward: A reward. A function declares what :class:`Reward` does.
        fact: The attribute, for example ``judges``.
    """
    return getattr(getattr(reward, "reward", reward), fact, getattr(Reward, fact))


def answer_rewards(names: Iterable[str]) -> list[str]:
    """Return the rewards whose full marks mean a right answer.

    Args:
        names: The rewards of a recipe.

    Returns:
        ``accuracy`` first, then the others in order. ``["accuracy"]`` if no reward judges answers.
    """
    judging = []
    for name in names:
        reward = REWARDS.get(name)
        ours = isinstance(reward, type) and reward.__module__.startswith("r1_recipes.")
        if not ours or declared(reward, "judges") == "answer":
            judging.append(name)
    return sorted(judging, key=lambda name: name != "accuracy") or ["accuracy"]


@dataclass_transform(frozen_default=True)
def register_reward(name: str) -> Callable:
    """Return a decorator that makes a reward available to recipes.

    A :class:`Reward` subclass is created with the recipe's format and its parameters. A function or
    another class is used as it is.

    Args:
        name: The name in ``reward_funcs``.
    """

    def decorate(reward: Any) -> Any:
        derived = isinstance(reward, type) and issubclass(reward, Reward)
        if derived and not {"__dataclass_params__", "__init__"} & vars(reward).keys():
            reward = dataclass(frozen=True)(reward)
        return REWARDS.register(name, reward)

    return decorate


def reward_parameters(names: Iterable[str]) -> dict[str, dataclasses.Field]:
    """Return the parameters of rewards, which are recipe keys.

    Args:
        names: The rewards.

    Returns:
        The dataclass fields by name.
    """
    parameters = {}
    for name in names:
        reward = REWARDS.resolve(name)
        if dataclasses.is_dataclass(reward):
            parameters.update({f.name: f for f in dataclasses.fields(reward)})
    parameters.pop("response_format", None)
    return parameters
