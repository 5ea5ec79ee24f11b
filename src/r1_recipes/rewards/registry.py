"""The reward registry: names in a recipe -> callables that ``trl.GRPOTrainer`` takes."""

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
    """Base of the rewards here: a picklable callable with a name, reading completions through one
    :class:`ResponseFormat`.

    A subclass declares its parameters as dataclass fields with defaults; their names are keys in a
    recipe. It defines :meth:`score_text`, or ``__call__`` if it needs a column: TRL passes
    ``prompts``, ``completions``, ``completion_ids`` and every column of the data by name, and
    expects one ``float`` per completion, or ``None`` for a row that the reward does not judge.
    """

    response_format: ResponseFormat
    name: ClassVar[str]
    # "answer": full marks mean a right answer. "shape": it reads the format's marks alone. "style":
    # length, repetition, language or steps, whatever the format. "": anything else.
    judges: ClassVar[str] = ""
    full_marks: ClassVar[float | None] = (
        None  # what a right answer in the format's own words gets; None: it depends
    )
    reads_gold: ClassVar[bool] = False  # whether it compares with the column ``solution``
    ranks_group: ClassVar[bool] = (
        False  # whether it compares the completions of one prompt with each other
    )

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, completions: Column, **columns: Any) -> Values:
        return [self.score_text(text) for text in completion_texts(completions)]

    def score_text(self, text: str) -> float | None:
        """What one completion is worth, whatever its row holds."""
        raise NotImplementedError

    def require(self, condition: bool, key: str, allowed: str) -> None:
        """Refuse the value of the parameter ``key`` unless ``condition`` holds."""
        require(condition, key, allowed, getattr(self, key))

    def missing(self, needed: str, columns: Mapping[str, Any]) -> RecipeError:
        """The error for a data set without the columns that this reward needs."""
        made = ("prompts", "completions", "completion_ids")
        found = sorted(
            key
            for key, value in columns.items()
            if isinstance(value, list | tuple) and key not in made
        )
        held = f"the dataset's columns here are: {', '.join(found) or 'none'}"
        return RecipeError(
            f"reward {self.name!r} needs {needed}; {held}. Fix: name a mapper in the recipe "
            f"that writes them"
        )

    def golds(self, solution: Column | None, columns: Mapping[str, Any]) -> list[str | None]:
        """The column ``solution`` as text; it is an error if there is none. ``columns`` are the
        others.
        """
        if solution is None:
            raise self.missing("a column 'solution' with the gold answers", columns)
        return [None if gold is None else str(gold) for gold in solution]


class AnswerReward(Reward):
    """Base of the rewards that compare the format's answer with the column ``solution``, by
    :meth:`score`; 1.0 is a right answer.
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
        golds = self.golds(solution, columns)
        answers = [self.answer(text) for text in completion_texts(completions)]
        self.log_answers(log_extra, answers, golds)
        return [
            None if gold is None else self.score(answer, gold)
            for answer, gold in zip(answers, golds, strict=True)
        ]

    def score(self, answer: str | None, gold: str) -> float | None:
        """What one answer is worth; ``None`` if this reward cannot judge by the gold."""
        raise NotImplementedError

    def answer(self, text: str) -> str | None:
        return self.response_format.parse(text).answer

    @staticmethod
    def log_answers(log_extra: Log, answers: Sequence[str | None], golds: Sequence[Any]) -> None:
        """Send what was compared to the completions table, as the columns ``answer_parsed`` and
        ``solution``.
        """
        for column, texts in (("answer_parsed", answers), ("solution", golds)):
            log_extra(column, ["" if text is None else str(text) for text in texts])


def declared(reward: Any, fact: str) -> Any:
    """What a reward's class says of it, as ``judges``; a function says what
    :class:`Reward` does.
    """
    return getattr(getattr(reward, "reward", reward), fact, getattr(Reward, fact))


def answer_rewards(names: Iterable[str]) -> list[str]:
    """The rewards whose full marks (1.0 or more) mean a right answer: ``accuracy`` first, then in
    order; without any, ``accuracy``.
    """

    def judges_answers(name: str) -> bool:
        reward = REWARDS.get(name)
        if not isinstance(reward, type) or not reward.__module__.startswith("r1_recipes."):
            return True  # one of the user's own
        return declared(reward, "judges") == "answer"

    return sorted(filter(judges_answers, names), key=lambda name: name != "accuracy") or [
        "accuracy"
    ]


@dataclass_transform(frozen_default=True)
def register_reward(name: str) -> Callable:
    """Class or function decorator that makes a reward available to recipes as ``name``.

    A :class:`Reward` subclass gets the recipe's format, and parameters if it annotates some; a
    function or another class is used as is.
    """

    def decorate(reward: Any) -> Any:
        plain = (
            isinstance(reward, type)
            and not {"__dataclass_params__", "__init__"} & vars(reward).keys()
        )
        if plain and issubclass(reward, Reward):
            reward = dataclass(frozen=True)(reward)
        return REWARDS.register(name, reward)

    return decorate


def reward_parameters(names: Iterable[str]) -> dict[str, dataclasses.Field]:
    """The parameters of these rewards by name: what a recipe may set for them."""
    rewards = filter(dataclasses.is_dataclass, (REWARDS.resolve(name) for name in names))
    return {
        f.name: f
        for reward in rewards
        for f in dataclasses.fields(reward)
        if f.name != "response_format"
    }
