"""Small models from the package registry, for machines without access to a model hub."""

PLUGIN = {
    "command": {
        "demo": ("r1_recipes.extras.demo", "train a small model on two CPU cores, in ten minutes"),
    },
    "model": {
        "embedded:SmolLM2-135M-Instruct": "r1_recipes.extras.demo.weights:smollm2_checkpoint",
        "embedded:gemma-3-270m": "r1_recipes.extras.demo.weights:gemma_checkpoint",
    },
}
