"""Each reward as a function of this module, for programs that want a dotted path.

``trl grpo --reward_funcs r1_recipes.rewards.functions.accuracy``

The functions read the response format ``think_answer``. For another format or other parameters,
call :func:`r1_recipes.rewards.get_reward_funcs`.
"""

from typing import Any

from r1_recipes.rewards import REWARDS, get_reward_funcs


def __getattr__(name: str) -> Any:
    """Return the reward of that name.

    Raise RecipeError if a parameter of the reward has no default.
    """
    if name not in REWARDS:
        raise AttributeError(f"no reward {name!r}; there are {', '.join(sorted(REWARDS))}")
    return get_reward_funcs([name])[0]


def __dir__() -> list[str]:
    return sorted(REWARDS)
