"""A small model from the package registry, for machines without access to a model hub."""

PLUGIN = {
    "model": {
        "embedded:SmolLM2-135M-Instruct": "r1_recipes.extras.demo.weights:smollm2_checkpoint",
    },
}
