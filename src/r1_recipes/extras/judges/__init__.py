"""Reward models, judge models behind a server, and rubrics (the key ``reward_models``)."""
