"""Rewards by name. ``get_reward_funcs(["accuracy", "format"])`` gives what ``trl.GRPOTrainer`` takes; imports no torch."""

# Importing a family registers its rewards.
from r1_recipes.common.messages import completion_texts
from r1_recipes.rewards import accuracy as _accuracy  # noqa: F401
from r1_recipes.rewards import code as _code  # noqa: F401
from r1_recipes.rewards import countdown as _countdown  # noqa: F401
from r1_recipes.rewards import format as _format  # noqa: F401
from r1_recipes.rewards import language as _language  # noqa: F401
from r1_recipes.rewards import length as _length  # noqa: F401
from r1_recipes.rewards import match as _match  # noqa: F401
from r1_recipes.rewards import model as _model  # noqa: F401
from r1_recipes.rewards import summary as _summary  # noqa: F401
from r1_recipes.rewards import text as _text  # noqa: F401
from r1_recipes.rewards.registry import (
    REWARDS,
    AnswerReward,
    Reward,
    answer_rewards,
    get_reward_funcs,
    register_reward,
    resolve_reward,
    reward_parameters,
)
from r1_recipes.rewards.routing import check_task_rewards, route

__all__ = [
    "REWARDS",
    "AnswerReward",
    "Reward",
    "answer_rewards",
    "check_task_rewards",
    "completion_texts",
    "get_reward_funcs",
    "register_reward",
    "resolve_reward",
    "reward_parameters",
    "route",
]
