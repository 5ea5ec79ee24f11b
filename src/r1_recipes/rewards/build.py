"""Build reward functions from names in a recipe."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from r1_recipes.common.errors import RecipeError, own_code, unknown_name
from r1_recipes.prompts import ResponseFormat, get_response_format
from r1_recipes.rewards.registry import REWARDS, Values, reward_parameters


def get_reward_funcs(
    names: Iterable[str],
    response_format: str | Mapping[str, Any] | ResponseFormat = "think_answer",
    reward_models: Mapping[str, Any] | None = None,
    **params: Any,
) -> list[Callable[..., Values]]:
    """Build the reward functions of a recipe.

    Args:
        names: Registered rewards, entries of ``reward_models``, or ``my_module:my_reward``.
        response_format: A name, a format's keys or a :class:`ResponseFormat`, as
            :func:`get_response_format` takes it.
        reward_models: Reward models and judges by name.
        **params: Parameters of the rewards, for example ``cosine_max_len=512``. A parameter that
            several rewards share goes to each of them.

    Returns:
        Picklable callables with a ``__name__``, in the order of ``names``. ``trl.GRPOTrainer``
        takes them as ``reward_funcs``.

    Raises:
        RecipeError: A name or a parameter is unknown, or a reward cannot be built.
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
    funcs: list[Callable[..., Values]] = []
    for name in names:
        reward = models.get(name) or REWARDS.resolve(name)
        if isinstance(reward, type):
            given = {key: params[key] for key in reward_parameters([name]) if key in params}
            fix = "class NAME(Reward), or an __init__ that takes response_format"
            with own_code(f"reward {name!r}", reward, fix):
                reward = reward(response_format=fmt, **given)
        if not callable(reward):
            raise RecipeError(
                f"reward {name!r}: must be a function, or a class with __call__, got "
                f"{reward!r:.80}. Fix: def NAME(completions, **columns), which returns a number "
                "per completion"
            )
        funcs.append(reward)
    return funcs
