"""What a recipe must have. TRL, vLLM and the loading itself check the rest, and name the key."""

from typing import Any

from r1_recipes.common.errors import RecipeError, require, unknown_name
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import Recipe, namespace_value
from r1_recipes.rewards import REWARDS
from r1_recipes.rewards.tasks import check_task_rewards

# TRL checks these keys only after it has sampled the first completions, or loaded the model.
_CHOICES = {
    "loss_type": "bnpo cispo dapo dr_grpo grpo luspo sapo vespo",
    "scale_rewards": "batch group none",
    "importance_sampling_level": "sequence token",
    "multi_objective_aggregation": "normalize_then_sum sum_then_normalize",
    "vllm_importance_sampling_mode": "sequence_mask sequence_truncate token_mask token_truncate",
    "vllm_mode": "colocate server",
}


def check(recipe: Recipe) -> None:
    """Raise RecipeError for the first rule that a recipe breaks. Nothing is loaded."""
    script, model, method = recipe.script, recipe.model, recipe.method
    name, fix = script.dataset_name, "a hub dataset, a local path, 'sums' or 'countdown:3-4'"
    one = bool(name) != bool(script.dataset_mixture)
    require(one, "dataset_name", "set, or dataset_mixture, and not both", name, fix)
    if method != "evaluate":
        name = model.model_name_or_path
        require(name, "model_name_or_path", "set", name, "a hub id or a local checkpoint folder")
    if model.use_peft and script.unfrozen_parameters and method not in ("generate", "evaluate"):
        raise RecipeError(
            "unfrozen_parameters: cannot be combined with use_peft: true, because no checkpoint "
            "would keep the weights that are not adapters. Fix: lora_target_modules"
        )
    for key in ("load_in_4bit", "load_in_8bit", "lora_target_parameters"):
        sent = getattr(model, key) and model.use_peft and namespace_value(recipe, "use_vllm")
        what = "off with use_vllm: true, as TRL cannot merge such adapters and send them"
        require(not sent, key, what, getattr(model, key), "use_vllm: false")
    if method == "grpo":
        _check_grpo(recipe)
    elif method == "distill" and script.distill_with != "server":
        teacher, fix = recipe.training.teacher_model_name_or_path, "the model to learn from"
        require(teacher, "teacher_model_name_or_path", "set", teacher, fix)
    elif method == "evaluate":
        samples, fix = script.num_samples, "sampled completions per row, 0 or more"
        require(samples is not None, "num_samples", "set", samples, fix)
    if method in ("grpo", "generate", "evaluate"):
        _check_rewards(recipe)


def _check_grpo(recipe: Recipe) -> None:
    script, training = recipe.script, recipe.training
    for key, names in _CHOICES.items():
        value = getattr(training, key)
        if value not in names.split():
            raise RecipeError(f"{key}: {unknown_name('value', value, names.split())}")
    if not script.reward_funcs and (not script.environment or _scores_nothing(script.environment)):
        fix = f"name at least one of {', '.join(sorted(REWARDS))}"
        fix += ", or give the environment a method get_reward(self)" * bool(script.environment)
        raise RecipeError(f"reward_funcs: missing. Fix: {fix}")
    by_best = training.load_best_model_at_end or training.save_strategy == "best"
    if by_best and training.metric_for_best_model in (None, "loss", "eval_loss"):
        # GRPO's loss is near 0 for any policy.
        training.metric_for_best_model, training.greater_is_better = "eval_reward", True
    rounds = script.dynamic_sampling
    if rounds is not None:
        usable = rounds.keys() <= {"max_rounds", "reward"} and rounds.get("max_rounds") in range(
            2, 99
        )
        usable &= rounds.get("reward") in (None, *script.reward_funcs)
        allowed = f"{{max_rounds: 2 or more, and maybe reward: one of {script.reward_funcs}}}"
        require(usable, "dynamic_sampling", allowed, rounds)


def _scores_nothing(environment: Any) -> bool:
    from r1_recipes.extras.agents.build import who_scores

    return not any(who_scores(environment))


def _check_rewards(recipe: Recipe) -> None:
    """Refuse weights and tasks that do not fit the rewards, and warn of a prompt that does not.

    Such a prompt does not ask for what the rewards read as the answer.
    """
    script = recipe.script
    names, weights = script.reward_funcs, getattr(recipe.training, "reward_weights", None)
    if weights is not None and len(weights) != len(names):
        raise RecipeError(
            f"reward_weights has {len(weights)} entries for {len(names)} reward_funcs {names}. "
            "Fix: one weight per reward"
        )
    for name in script.reward_models or ():
        require(name in names, f"reward_models: {name!r}", "named in reward_funcs", names)
    if getattr(script, "task_rewards", None) is not None:
        check_task_rewards(script.task_rewards, names)
    elif getattr(script, "task_column", None) is not None:
        raise RecipeError("task_column has no effect without task_rewards. Fix: remove it")
    if getattr(script, "keep", None):
        from r1_recipes.extras.selection import check_keep

        check_keep(recipe)
    fmt = get_response_format(script.response_format)
    mark = fmt.answer_tags[0].strip() if fmt.answer_tags else "boxed" if fmt.boxed else ""
    prompt = script.system_prompt
    around = f"{script.prompt_template} {script.prefill} {script.mapper_config} {script.few_shot}"
    if prompt and mark not in prompt + around:
        recipe.warnings.append(
            f"system_prompt does not name {mark}, which response_format {fmt.name} reads as the "
            "answer"
        )


def longest_sequence(recipe: Recipe) -> int | None:
    """Return the most tokens of a prompt and its completion in a training run.

    Return None if no key limits the prompts. TRL's ``max_completion_length`` counts all assistant
    turns of an episode and all tool results. Two things come on top. The text of an environment's
    ``reset`` adds at most ``tool_output_chars``. With ``vllm_mode: server``, the last message can
    add a full completion, because TRL cuts it only after it has been generated.
    """
    script, training = recipe.script, recipe.training
    prompt, completion = script.max_prompt_tokens, getattr(training, "max_completion_length", None)
    # With distill_with: gold, max_length limits the engine.
    if not prompt or not completion or namespace_value(recipe, "distill_with") == "gold":
        return None
    reset = script.tool_output_chars if script.environment else 0
    turns = training.vllm_mode == "server" and (script.tools or script.environment)
    return int(prompt + reset + completion * (2 if turns else 1))
