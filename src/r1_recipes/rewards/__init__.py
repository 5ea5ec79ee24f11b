"""Rewards by name.

``get_reward_funcs(["accuracy", "format"])`` returns what ``trl.GRPOTrainer`` takes. Importing this
imports no torch.
"""

# Importing a family registers its rewards.
from r1_recipes.rewards import accuracy, language, length, text  # noqa: F401
from r1_recipes.rewards.build import get_reward_funcs
from r1_recipes.rewards.registry import (
    REWARDS,
    AnswerReward,
    Reward,
    answer_rewards,
    register_reward,
    reward_parameters,
)

__all__ = [
    "REWARDS",
    "AnswerReward",
    "Reward",
    "answer_rewards",
    "get_reward_funcs",
    "register_reward",
    "reward_parameters",
]
