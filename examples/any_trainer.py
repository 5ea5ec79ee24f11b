"""A recipe's rows and rewards in any trainer of TRL, here its experimental SDPO.

python examples/any_trainer.py recipes/cpu/demo_2_grpo.yaml --output_dir outputs/demo/sdpo

The model's own right answers teach it. The run folder, resuming and the report page are those of
r1-recipes' own commands, and are not here.
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from r1_recipes.data import load_dataset
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs

SHARED = (
    "output_dir num_generations max_completion_length temperature per_device_train_batch_size "
    "gradient_accumulation_steps max_steps learning_rate lr_scheduler_type warmup_steps bf16 "
    "gradient_checkpointing use_cpu use_vllm seed logging_steps reward_weights"
)


def main(argv):
    recipe = load_recipe(argv, "grpo")
    script, model = recipe.script, recipe.model.model_name_or_path
    fmt = get_response_format(script.response_format, system_prompt=script.system_prompt)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows, _ = load_dataset(script, fmt, "grpo", tokenizer=tokenizer)
    trainer = SDPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        args=SDPOConfig(**{key: getattr(recipe.training, key) for key in SHARED.split()}),
        train_dataset=rows,
        reward_funcs=get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main(sys.argv[1:])
