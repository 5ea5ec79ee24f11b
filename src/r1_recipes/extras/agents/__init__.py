"""Tools and environments by name, in TRL's own shape: what a model may call, and what it plays in.
Imports no torch.
"""

PLUGIN = {
    "part": {
        "agents": "r1_recipes.extras.agents.build",
    },
    "environment": {
        "guess_number": "r1_recipes.extras.agents.guess:GuessNumber",
    },
    "mapper": {
        "environment": "r1_recipes.extras.agents.mapper:EnvironmentRow",
    },
    "dataset": {
        "environment": "r1_recipes.extras.agents.rows:environment_rows",
    },
}
