"""Rewards: functions that TRL calls with the completions and every column of the data by name.

A reward returns one number per completion, or ``None`` for a completion that it does not score.
What follows ``*`` in its signature are keys of a recipe, except ``fmt``, the response format::

    def brevity(completions, completion_ids, *, brevity_tokens: int = 512, **columns):
        return [-min(1.0, len(ids) / brevity_tokens) for ids in completion_ids]

``get_reward_funcs(["accuracy", "my_module:brevity"])`` returns what ``trl.GRPOTrainer`` takes. With
the format think_answer, each reward is also an attribute of this module, for ``trl grpo
--reward_funcs r1_recipes.rewards.accuracy``. Importing it imports no torch.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.prompts import ResponseFormat, get_response_format
from r1_recipes.rewards import form, language  # noqa: F401 (importing them registers theirs)
from r1_recipes.rewards.answers import REWARDS, Values

# Rewards that compare the answer of a completion with the reference answer. 1.0 means right.
COMPARING = {
    "accuracy",
    "answer_contains",
    "answer_match",
    "choice_match",
    "countdown",
    "exact_match",
}
ANSWERS = COMPARING | {"binary_code", "code"}  # Rewards whose 1.0 means a right answer.
# Rewards that score no row without its reference answer in ``solution``.
READS_GOLD = COMPARING - {"countdown"} | {"cosine", "length"}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in REWARDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return REWARDS[name]


def get_reward_funcs(
    names: Iterable[str],
    response_format: str | Mapping[str, Any] | ResponseFormat = "think_answer",
    reward_models: Mapping[str, Any] | None = None,
    **params: Any,
) -> list[Callable[..., Values]]:
    """Return the rewards of a recipe, with its response format and parameters.

    Args:
        names: Names of rewards, entries of ``reward_models``, or ``my_module:my_reward``.
        response_format: A name, a format's keys or a :class:`ResponseFormat`, as
            :func:`get_response_format` takes it.
        reward_models: Reward models and judges by name.
        **params: Parameters of the rewards, for example ``cosine_max_len=512``. A parameter that
            several rewards share goes to each of them.

    Returns:
        Callables with a ``__name__``, in the order of ``names``. ``trl.GRPOTrainer``
        takes them as ``reward_funcs``.

    Raises:
        RecipeError: A name or a parameter is unknown, or a name does not stand for a function.
    """
    names = list(names)
    fmt = get_response_format(response_format)
    models: dict[str, Any] = {}
    if reward_models:
        from r1_recipes.extras.judges import read_reward_models

        models = read_reward_models(reward_models, fmt)
    known = reward_parameters(name for name in names if name not in models)
    for key in params:
        if key not in known:
            raise RecipeError(unknown_name(f"parameter of the rewards {names}", key, known))
    return [models.get(name) or _bound(_resolve(name), {**params, "fmt": fmt}) for name in names]


def reward_parameters(names: Iterable[str]) -> dict[str, inspect.Parameter]:
    """Return the recipe keys of rewards: what follows ``*`` in a signature, except ``fmt``."""
    return {key: p for name in names for key, p in _keys(_resolve(name)).items() if key != "fmt"}


def answer_rewards(names: Iterable[str]) -> list[str]:
    """Return the rewards whose 1.0 means a right answer, a user's own among them.

    ``accuracy`` comes first, then the others in order. ``["accuracy"]`` if none judges answers.
    """
    judging = [name for name in names if name in ANSWERS or name not in REWARDS]
    return sorted(judging, key=lambda name: name != "accuracy") or ["accuracy"]


def _resolve(name: str) -> Callable[..., Values]:
    reward = REWARDS.resolve(name)
    if isinstance(reward, type) or not callable(reward):
        fix = (
            "Fix: def my_reward(completions, *, my_key: float = 1.0, **columns), which returns a "
            "number per completion. What follows * are recipe keys; fmt is the response format"
        )
        raise RecipeError(f"reward {name!r}: must be a function, got {reward!r:.80}. {fix}")
    return reward


def _keys(function: Callable) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def _bound(function: Callable, options: Mapping[str, Any]) -> Callable:
    """Return a function with those options that it takes, and the name of the function.

    ``check_start``, which training calls before it loads the model, gets the same options.
    """
    own = {name: options[name] for name in _keys(function) if name in options}
    # They win over columns of that name.
    bound = update_wrapper(lambda *args, **columns: function(*args, **columns | own), function)
    if hasattr(function, "check_start"):
        bound.check_start = _bound(function.check_start, options)  # type: ignore[attr-defined]
    return bound
