"""The reward registry: names in a recipe -> callables that ``trl.GRPOTrainer`` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.common.errors import unknown_name
from r1_recipes.common.messages import completion_texts
from r1_recipes.common.plugins import import_object
from r1_recipes.prompts import ParsedResponse, ResponseFormat, get_response_format

REWARDS: dict[str, type[Reward] | Callable] = {}


@dataclass(frozen=True)
class Reward:
    """Base of the rewards here: a picklable callable with a name, reading completions through one :class:`ResponseFormat`.

    A subclass declares its parameters as dataclass fields with defaults; those names are keys in a recipe, and this is the only
    place where a default lives. TRL calls ``reward(prompts=…, completions=…, completion_ids=…, **columns)`` with one entry a
    completion in every list, and expects one ``float`` (or ``None``: not this reward's to judge) a completion back.
    """

    response_format: ResponseFormat
    name: ClassVar[str]

    @property
    def __name__(self) -> str:
        return self.name

    def parse(self, completions: Sequence[Any]) -> list[ParsedResponse]:
        """Every completion of the batch, read by the response format."""
        return [self.response_format.parse(text) for text in completion_texts(completions)]

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        raise NotImplementedError


@dataclass(frozen=True)
class AnswerReward(Reward):
    """Base of the rewards that compare the format's answer with a row's gold; 1.0 is a right one."""

    @staticmethod
    def log_answers(log_extra: Callable[[str, list], None] | None, answers: Sequence[str | None], golds: Sequence[Any]) -> None:
        """Send what was compared to the completions table, as the columns ``answer_parsed`` and ``solution``."""
        for column, texts in (("answer_parsed", answers), ("solution", golds)):
            if log_extra is not None:
                log_extra(column, ["" if text is None else str(text) for text in texts])


def answer_rewards(names: Iterable[str]) -> list[str]:
    """The rewards whose full marks (1.0 or more) mean a right answer: ``accuracy`` first, then in order; without any, ``accuracy``.

    Shape, length and the like are left out; every reward from outside this package counts.
    """
    found = [name for name in names if _judges_answers(REWARDS.get(name))]
    return sorted(found, key=lambda name: name != "accuracy") or ["accuracy"]


def _judges_answers(reward: type[Reward] | Callable | None) -> bool:
    if reward is None or not reward.__module__.startswith("r1_recipes."):
        return True
    return issubclass(reward, AnswerReward) or reward.name in ("code", "binary_code", "summary_facts")


def register_reward(name: str) -> Callable:
    """Class or function decorator that makes a reward available to recipes as ``name``.

    A :class:`Reward` subclass gets the recipe's response format and parameters; a plain function with TRL's signature is used as is.

    Raises:
        ValueError: the name is taken by something else.
    """

    def decorate(reward: type[Reward] | Callable) -> type[Reward] | Callable:
        known = REWARDS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (reward.__module__, reward.__qualname__):
            raise ValueError(f"reward name {name!r} is taken by {known.__module__}:{known.__qualname__}")
        if isinstance(reward, type):
            reward.name = name
        REWARDS[name] = reward
        return reward

    return decorate


def resolve_reward(name: str) -> type[Reward] | Callable:
    """The class or function that a recipe's reward name stands for; ``my_module:my_reward`` is imported.

    Raises:
        ValueError: no such reward.
    """
    if ":" in name:
        return import_object(name, "reward")
    if name not in REWARDS:
        raise ValueError(unknown_name("reward", name, REWARDS))
    return REWARDS[name]


def reward_parameters(names: Iterable[str]) -> dict[str, dataclasses.Field]:
    """The parameters of these rewards by name: what a recipe may set for them."""
    fields: dict[str, dataclasses.Field] = {}
    for name in names:
        reward = resolve_reward(name)
        if isinstance(reward, type) and dataclasses.is_dataclass(reward):
            fields.update((f.name, f) for f in dataclasses.fields(reward) if f.name != "response_format")
    return fields


def get_reward_funcs(
    names: Iterable[str], response_format: str | ResponseFormat = "think_answer", **params: Any
) -> list[Callable[..., list[float | None]]]:
    """Build the reward functions of a recipe.

    Args:
        names: registered names, or ``my_module:my_reward``.
        response_format: name or object; what the completions are read with.
        **params: parameters of the rewards (``cosine_max_len=512``, …); one that several rewards share goes to each.

    Returns:
        One picklable callable a name, in order, each with a ``__name__`` for TRL's metric ``rewards/<name>/mean``.

    Raises:
        ValueError: an unknown reward or format, or a parameter that none of these rewards has.
    """
    names = list(names)
    fmt = get_response_format(response_format)
    known = reward_parameters(names)
    for key in params:
        if key not in known:
            raise ValueError(unknown_name(f"parameter of the rewards {names}", key, known))
    funcs = []
    for name in names:
        reward = resolve_reward(name)
        if isinstance(reward, type):
            fields = {f.name for f in dataclasses.fields(reward)}
            funcs.append(reward(response_format=fmt, **{key: value for key, value in params.items() if key in fields}))
        else:
            funcs.append(reward)
    return funcs
