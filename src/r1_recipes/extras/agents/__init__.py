"""Tools that a model may call, and environments that it plays in, in the format of TRL.

Importing this package does not import torch.
"""

PLUGIN = {
    "part": {
        "agents": "r1_recipes.extras.agents.build",
    },
    "environment": {
        "alphabet_sort": "r1_recipes.extras.agents.alphabet:AlphabetSort",
        "guess_number": "r1_recipes.extras.agents.guess:GuessNumber",
        "wordle": "r1_recipes.extras.agents.wordle:Wordle",
    },
    "mapper": {
        "environment": "r1_recipes.extras.agents.mapper:EnvironmentRow",
    },
    "dataset": {
        "environment": "r1_recipes.extras.agents.rows:environment_rows",
    },
}
