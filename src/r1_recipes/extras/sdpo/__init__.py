"""Self-distillation (SDPO): the model is its own teacher, once it is shown a right answer.

``train_with: sdpo`` in a recipe for ``grpo``. TRL's ``SDPOTrainer`` does the training.
"""

PLUGIN = {"part": {"sdpo": "r1_recipes.extras.sdpo.keys"}}
