"""A small model out of the package registry, for machines that reach no hub."""

PLUGIN = {
    "model": {
        "embedded:SmolLM2-135M-Instruct": "r1_recipes.extras.demo.weights:smollm2_checkpoint",
    },
}
