"""What a recipe with ``train_with: sdpo`` may say."""

from collections.abc import Sequence
from typing import Any

from r1_recipes.common.errors import RecipeError, require
from r1_recipes.models.tokenizer import recipe_format
from r1_recipes.recipe.types import GRPORecipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.registry import declared

# Where TRL's default differs from GRPO's, which a recipe has in mind. It would cut prompts to 512
# tokens; max_prompt_tokens leaves long ones out and counts them.
DEFAULTS = {"max_prompt_length": None, "learning_rate": 1e-6}
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
    "use_teacher_server",  # its engine would have no room for the teacher's longer prompts
)
# Keys of the policy gradient, which has a weight of 1 - distillation_weight.
_POLICY = ("loss_type", "epsilon", "epsilon_high", "importance_sampling_level", "scale_rewards")
_AVERAGE = ("teacher_update_rate", "teacher_sync_steps")
_CHOICES = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo"),
    "distillation_mode": ("sampled_token", "full_logits", "topk_logits"),
    "teacher_model_kind": ("ema", "base", "live"),
}
_TEMPLATES = {
    "reprompt_template": ("prompt", "solution", "feedback"),
    "solution_template": ("successful_previous_attempt",),
    "feedback_template": ("feedback_raw",),
}
_TEMPLATE_TOKENS = 64  # room for these texts between the question and the answer that is shown


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
    _check_teacher(recipe)
    _check_templates(recipe)
    if recipe.training.use_successful_as_teacher:
        _check_threshold(recipe, recipe.training.success_reward_threshold)
    else:
        allowed = "true without include_environment_feedback, or nothing is shown to the teacher"
        feedback = recipe.training.include_environment_feedback
        require(feedback, "use_successful_as_teacher", allowed, False)


def _refuse(key: str, value: object, cause: str) -> None:
    raise RecipeError(f"{key}: {cause}, got {value!r}. Fix: remove it")


def _check_choices(training: Any) -> None:
    for key, choices in _CHOICES.items():
        value = getattr(training, key)
        require(value in choices, key, f"one of {', '.join(choices)} for train_with: sdpo", value)
    if (training.distillation_mode == "topk_logits") != (training.distillation_topk is not None):
        allowed = "a number of tokens for distillation_mode: topk_logits, and unset for the others"
        require(False, "distillation_topk", allowed, training.distillation_topk)


def _check_ignored(recipe: GRPORecipe) -> None:
    training: Any = recipe.training
    for key in _ONLY_GRPO:
        if recipe.settings.get(key):
            _refuse(key, recipe.settings[key], "has no effect with train_with: sdpo")
    idle: dict[str, str] = {}
    if training.distillation_weight == 1:
        idle |= dict.fromkeys(_POLICY, "distillation_weight: 1.0")
    if training.teacher_model_kind != "ema":
        idle |= dict.fromkeys(_AVERAGE, f"teacher_model_kind: {training.teacher_model_kind}")
    for key, other in idle.items():
        if key in recipe.settings:
            _refuse(key, recipe.settings[key], f"has no effect with {other}")


def _check_teacher(recipe: GRPORecipe) -> None:
    """Refuse an average that does not move, or that no checkpoint keeps."""
    if recipe.training.teacher_model_kind != "ema":
        return
    if recipe.model.use_peft:
        # TRL averages an adapter's two matrices apart, from 0 on, and keeps them in no checkpoint.
        require(False, "teacher_model_kind", "live or base with use_peft: true", "ema")
    # A step moves a weight by less than bf16 can add.
    allowed = "float32 for teacher_model_kind: ema, because an average in bf16 hardly moves"
    require(recipe.model.dtype == "float32", "dtype", allowed, recipe.model.dtype)


def _check_templates(recipe: GRPORecipe) -> None:
    training: Any = recipe.training
    for key, names in _TEMPLATES.items():
        text = getattr(training, key)
        try:
            text.format(**dict.fromkeys(names, ""))
        except (KeyError, IndexError, ValueError) as error:
            fields = " ".join(f"{{{name}}}" for name in names)
            raise RecipeError(
                f"{key}: has a field that SDPO does not fill, got {text!r}. Fix: use {fields} "
                "alone, and write other braces twice"
            ) from error
    longest = (recipe.script.max_prompt_tokens or 0) + training.max_completion_length
    needed = longest + _TEMPLATE_TOKENS
    # TRL cuts the beginning, and so the question.
    allowed = f"at least {needed}, to hold a prompt and a right answer"
    require(
        training.max_reprompt_len >= needed, "max_reprompt_len", allowed, training.max_reprompt_len
    )
    fmt = recipe_format(recipe)
    if training.remove_thinking_from_demonstration and (
        fmt.reasoning_tags != ("<think>", "</think>") or fmt.prefill
    ):
        cause = f"finds no <think>…</think> in completions of response_format: {fmt.name}"
        _refuse("remove_thinking_from_demonstration", True, cause)


def _check_threshold(recipe: GRPORecipe, threshold: float) -> None:
    """Refuse a threshold that the style of an answer reaches, or that no right answer reaches.

    A reward of unknown full marks cannot be checked.
    """
    script = recipe.script
    names = script.reward_funcs
    rewards = get_reward_funcs(names, recipe_format(recipe), **recipe.reward_params)
    weights = recipe.training.reward_weights or [1.0] * len(names)
    marks = [declared(reward, "full_marks") for reward in rewards]
    parts = list(zip(names, weights, marks, rewards, strict=True))
    tasks = script.task_rewards or {"": []}
    of_a_task = {name for listed in tasks.values() for name in listed}
    for listed in tasks.values():
        of_a_row = [part for part in parts if part[0] in listed or part[0] not in of_a_task]
        if all(mark is not None for _, _, mark, _ in of_a_row):
            _check_task([(weight * mark, one) for _, weight, mark, one in of_a_row], threshold)


def _check_task(scored: Sequence[tuple[float, Any]], threshold: float) -> None:
    right = sum(max(0.0, marks) for marks, _ in scored)
    style = sum(max(0.0, marks) for marks, one in scored if declared(one, "judges") != "answer")
    graded = any(declared(reward, "graded") for _, reward in scored)
    usable = style < threshold <= right and not (graded and threshold < right)
    allowed = f"over {style:g}, which a wrong answer can reach, and at most {right:g}"
    if graded:
        allowed = f"{right:g}, because a partly right answer has nearly as much"
    require(usable, "success_reward_threshold", allowed, threshold)
