"""Reward models, and judge models behind a server (the key ``reward_models``)."""
