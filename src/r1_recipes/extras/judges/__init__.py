"""Reward models, judge models behind a server, and rubrics (the key ``reward_models``)."""

PLUGIN = {
    "part": {
        "judges": "r1_recipes.extras.judges.model",
    },
}
