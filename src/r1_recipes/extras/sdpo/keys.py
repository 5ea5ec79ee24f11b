"""What a recipe with ``train_with: sdpo`` may say."""

from typing import Any

from r1_recipes.common.errors import RecipeError, require
from r1_recipes.models.tokenizer import recipe_format
from r1_recipes.recipe.types import GRPORecipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.registry import declared

# TRL's SDPO has no such feature.
_ONLY_GRPO = (
    "beta",
    "trim_padding",
    "dynamic_sampling",
    "curriculum",
    "tools",
    "environment",
    "eval_temperature",
    "eval_max_completion_length",
    "load_in_4bit",
    "load_in_8bit",
)
# Keys of the policy gradient, which has a weight of 1 - distillation_weight.
_POLICY = ("loss_type", "epsilon", "epsilon_high", "importance_sampling_level", "scale_rewards")
_CHOICES = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo"),
    "distillation_mode": ("sampled_token", "full_logits", "topk_logits"),
    "teacher_model_kind": ("ema", "base", "live"),
}


def trainer_class() -> Any:
    """Return the trainer, a class that imports torch and TRL."""
    from r1_recipes.extras.sdpo.trainer import RecipeSDPOTrainer  # heavy

    return RecipeSDPOTrainer


def check_recipe(recipe: GRPORecipe) -> None:
    """Refuse what SDPO would ignore, what fails after the first completions, and a threshold that
    wrong answers reach.

    Raises:
        RecipeError: The message names the key.
    """
    _check_choices(recipe.training)
    _check_ignored(recipe)
    if recipe.model.use_peft and recipe.training.teacher_model_kind == "ema":
        # TRL averages an adapter's two matrices apart, from 0 on, and keeps them in no checkpoint.
        allowed = "live or base with use_peft: true"
        require(False, "teacher_model_kind", allowed, recipe.training.teacher_model_kind)
    _check_threshold(recipe, recipe.training)


def _check_choices(training: Any) -> None:
    for key, choices in _CHOICES.items():
        value = getattr(training, key)
        require(value in choices, key, f"one of {', '.join(choices)} for train_with: sdpo", value)
    mode = training.distillation_mode
    if (mode == "topk_logits") != (training.distillation_topk is not None):
        allowed = "a number of tokens for distillation_mode: topk_logits, and unset for the others"
        require(False, "distillation_topk", allowed, training.distillation_topk)


def _check_ignored(recipe: GRPORecipe) -> None:
    training: Any = recipe.training
    for key in _ONLY_GRPO:
        if recipe.settings.get(key):
            _refuse(key, recipe.settings[key], "has no effect with train_with: sdpo")
    if training.distillation_weight == 1:
        for key in _POLICY:
            if key in recipe.settings:
                _refuse(key, recipe.settings[key], "has no effect with distillation_weight: 1.0")
    prefill = recipe_format(recipe).prefill
    if prefill:
        _refuse("prefill", prefill, "SDPO needs the question as the last message")


def _refuse(key: str, value: object, cause: str) -> None:
    raise RecipeError(f"{key}: {cause}, got {value!r}. Fix: remove it")


def _check_threshold(recipe: GRPORecipe, training: Any) -> None:
    """Refuse a threshold that the style of an answer reaches, or that no right answer reaches.

    The rewards that compare with the reference answer say what is right. A reward of unknown full
    marks cannot be checked.
    """
    if not training.use_successful_as_teacher:
        return
    names = recipe.script.reward_funcs
    rewards = get_reward_funcs(names, recipe_format(recipe), **recipe.reward_params)
    marks = [declared(reward, "full_marks") for reward in rewards]
    if None in marks:
        return
    right = wrong = 0.0
    for weight, mark, reward in zip(
        training.reward_weights or [1.0] * len(marks), marks, rewards, strict=True
    ):
        right += max(0.0, weight * mark)
        if declared(reward, "judges") != "answer":
            wrong += max(0.0, weight * mark)
    threshold = training.success_reward_threshold
    require(
        wrong < threshold <= right,
        "success_reward_threshold",
        f"over {wrong:g}, which a wrong answer can reach with {', '.join(names)}, and at most "
        f"{right:g}, the reward of a right one",
        threshold,
    )
