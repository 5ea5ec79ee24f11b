"""Rules that a recipe must keep, checked before anything is loaded.

Each rule is a function that raises ValueError and changes nothing. ``RULES`` lists the rules of
each method.
"""

import math
from collections.abc import Callable
from typing import Any

from r1_recipes.common.errors import RecipeError, require, unknown_name
from r1_recipes.data import get_mapper
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.prompt_rule import prompt_fits_format
from r1_recipes.recipe.types import (
    DistillRecipe,
    EvaluateRecipe,
    GenerateRecipe,
    GRPORecipe,
    Recipe,
    namespace_value,
)
from r1_recipes.rewards import REWARDS, get_reward_funcs
from r1_recipes.rewards.routing import check_task_rewards

# TRL checks these keys only after it has sampled the first completions.
_CHOICES = {
    "loss_type": "bnpo cispo dapo dr_grpo grpo luspo sapo vespo",
    "scale_rewards": "batch group none",
    "importance_sampling_level": "sequence token",
    "multi_objective_aggregation": "normalize_then_sum sum_then_normalize",
    "vllm_importance_sampling_mode": "sequence_mask sequence_truncate token_mask token_truncate",
}
# Columns of the completions table.
_TABLE_COLUMNS = "prompt completion step advantage answer_parsed solution refused turns"
_TRAINING_KEYS = ("use_peft", "load_in_4bit", "load_in_8bit", "unfrozen_parameters")


# Every method


def model_is_named(recipe: Recipe) -> None:
    """Refuse a recipe without a model.

    A benchmark gets its models on the command line.
    """
    if not recipe.model.model_name_or_path:
        raise RecipeError("model_name_or_path: missing. Fix: a hub id or a local checkpoint folder")


def data_are_named(recipe: Recipe) -> None:
    """Refuse a recipe without data, or with both a dataset and a mixture."""
    name = recipe.script.dataset_name
    mixture = recipe.script.dataset_mixture
    if name and mixture:
        raise RecipeError("dataset_name and dataset_mixture are both set. Fix: remove one of them")
    if not name and not mixture:
        examples = "a hub dataset, a local path, 'sums' or 'countdown:3-4'"
        raise RecipeError(f"dataset_name: missing. Fix: {examples} (or set dataset_mixture)")


def mapper_is_known(recipe: Recipe) -> None:
    """Refuse a mapper that is not registered, or that does not accept ``mapper_config``."""
    if recipe.script.mapper != "auto":
        config = recipe.script.mapper_config or {}
        named = all(isinstance(key, str) for key in config)
        require(named, "mapper_config", "a mapping with names as keys", config)
        get_mapper(recipe.script.mapper, **config)


def output_is_named(recipe: Recipe) -> None:
    """Refuse a run without an output folder."""
    if not recipe.training.output_dir:
        raise RecipeError(
            "output_dir: must be the folder that the run writes to, got "
            f"{recipe.training.output_dir!r}"
        )


# Distillation


def teacher_is_named(recipe: DistillRecipe) -> None:
    """Refuse distillation without a teacher, unless a server has the teacher."""
    if recipe.script.distill_with != "server" and not recipe.training.teacher_model_name_or_path:
        raise RecipeError(
            "teacher_model_name_or_path: missing. Fix: the model whose distribution the student "
            "learns"
        )


def gold_keeps_the_vocabulary(recipe: DistillRecipe) -> None:
    """Refuse ``distill_with: gold`` without ``use_uld_loss``."""
    require(
        recipe.script.distill_with != "gold" or recipe.training.use_uld_loss,
        "use_uld_loss",
        "true for distill_with: gold, which would cut the teacher's vocabulary to the student's",
        False,
    )


def adapters_reach_vllm(recipe: GRPORecipe | DistillRecipe) -> None:
    """Refuse adapters whose merged weights cannot be sent to vLLM."""
    if not (recipe.training.use_vllm and recipe.model.use_peft):
        return
    for key in ("load_in_4bit", "load_in_8bit", "lora_target_parameters"):
        value = getattr(recipe.model, key)
        if value:
            raise RecipeError(
                f"{key}: TRL cannot merge these adapters and send them to vLLM, got "
                f"{value} with use_vllm: true. "
                "Fix: remove it, or set use_vllm: false"
            )


# Generation and evaluation


def samples_are_counted(recipe: EvaluateRecipe) -> None:
    """Refuse a benchmark that does not set ``num_samples``."""
    if recipe.script.num_samples is None:
        raise RecipeError(
            "num_samples: missing. Fix: sampled completions per row, 0 (greedy only) or more"
        )


def top_k_counts_tokens(recipe: GenerateRecipe | EvaluateRecipe) -> None:
    """Refuse a negative ``top_k``, which TRL's trainers accept for vLLM."""
    require(recipe.training.top_k >= 0, "top_k", "0 (all tokens) or more", recipe.training.top_k)


def completions_differ(recipe: Recipe) -> None:
    """Refuse several completions per prompt at temperature 0."""
    if recipe.method == "evaluate":
        count, fix = recipe.script.num_samples, "num_samples: 0"
    else:
        count, fix = recipe.training.num_generations, "num_generations: 1"
    if recipe.training.temperature == 0 and count > 1:
        raise RecipeError(
            f"temperature: 0 gives {count} identical completions per prompt. Fix: {fix}, or a "
            "temperature above 0"
        )


def sampling_has_a_seed(recipe: GenerateRecipe | EvaluateRecipe) -> None:
    """Refuse ``seed: null``, unless a server samples the completions of a dataset."""
    served = recipe.method == "generate" and recipe.script.backend == "openai"
    if recipe.training.seed is None and not served:
        raise RecipeError(
            "seed: has no value. Fix: a whole number (only generation with backend: openai works "
            "without a seed)"
        )


def nothing_is_trained(recipe: GenerateRecipe | EvaluateRecipe) -> None:
    """Refuse keys that only training reads."""
    idle = [key for key in _TRAINING_KEYS if namespace_value(recipe, key)]
    if idle:
        raise RecipeError(f"{', '.join(idle)}: no effect on generation. Fix: remove")


def keep_fits(recipe: GenerateRecipe) -> None:
    """Refuse a ``keep`` that the extra ``selection`` rejects."""
    if recipe.script.keep:
        from r1_recipes.extras.selection import check_keep

        check_keep(recipe)


def server_has_the_tokenizer(recipe: GenerateRecipe) -> None:
    """Refuse keys that need the model's tokenizer with ``backend: openai``."""
    script = recipe.script
    if script.backend == "openai" and (
        script.max_prompt_tokens or script.max_solution_tokens or script.chat_template
    ):
        raise RecipeError(
            "backend openai: max_prompt_tokens, max_solution_tokens and chat_template need "
            "the model's tokenizer, which only the server has. Fix: remove them"
        )


# Rewards


def choices_are_known(recipe: GRPORecipe) -> None:
    """Refuse names of losses and other choices that TRL does not have."""
    for key, names in _CHOICES.items():
        value, choices = namespace_value(recipe, key), names.split()
        if hasattr(recipe.training, key) and value not in choices:
            raise RecipeError(
                f"{key}: {unknown_name('value', value, choices)} docs/losses.md explains them"
            )


def something_is_rewarded(recipe: GRPORecipe) -> None:
    """Refuse GRPO without a reward. An environment's own reward counts."""
    environment = recipe.script.environment
    methods = ""
    if environment:
        from r1_recipes.extras.agents.registry import without_reward

        silent = without_reward(environment)
        if not silent:
            return
        for environment_class in silent:
            name = environment_class.__name__
            methods += f"give environment {name} a method get_reward(self), or "
    if not recipe.script.reward_funcs:
        raise RecipeError(
            f"reward_funcs: missing. Fix: {methods}name at least one of "
            f"{', '.join(sorted(REWARDS))}"
        )


def rewards_differ(recipe: Recipe) -> None:
    """Refuse a reward that is listed twice."""
    names = recipe.script.reward_funcs
    if len(set(names)) < len(names):
        raise RecipeError(
            f"reward_funcs: lists a reward twice, got {names}. Fix: list it once and give it "
            "reward_weights 2.0"
        )


def weights_are_numbers(recipe: GRPORecipe | GenerateRecipe) -> None:
    """Refuse weights that are not finite, or that are all 0."""
    weights = recipe.training.reward_weights
    usable = not weights or (any(weights) and all(map(math.isfinite, weights)))
    allowed = "finite numbers that are not all 0"
    require(usable, "reward_weights", allowed, weights, "remove it to use 1.0 for each")


def weights_fit_rewards(recipe: GRPORecipe | GenerateRecipe) -> None:
    """Refuse more or fewer weights than rewards."""
    names, weights = recipe.script.reward_funcs, recipe.training.reward_weights
    if weights is None or len(weights) == len(names):
        return
    fix = "one weight per reward"
    if len(weights) == 2 * len(names):
        fix += ", with a decimal point, [1.0, 0.5], because a comma starts the next entry"
    raise RecipeError(
        f"reward_weights has {len(weights)} entries for {len(names)} reward_funcs {names}. "
        f"Fix: {fix}"
    )


def reward_models_are_used(recipe: Recipe) -> None:
    """Refuse a reward model that ``reward_funcs`` does not list, or whose name is a logged
    column.
    """
    for name in recipe.script.reward_models or ():
        key, names = f"reward_models: {name!r}", recipe.script.reward_funcs
        require(name in names, key, "named in reward_funcs", names)
        if name in _TABLE_COLUMNS.split():
            raise RecipeError(
                f"{key}: must not be the name of a column in the completions table. Fix: another "
                "name"
            )


def rewards_can_be_built(recipe: Recipe) -> None:
    """Refuse what a reward rejects: its name, its parameters, its ``reward_models`` entry."""
    fmt = get_response_format(recipe.script.response_format)
    get_reward_funcs(recipe.script.reward_funcs, fmt, **recipe.reward_params)


def tasks_name_rewards(recipe: GRPORecipe | EvaluateRecipe) -> None:
    """Refuse task rewards that are not listed, and a task column that nothing reads."""
    script = recipe.script
    if script.task_rewards is not None:
        check_task_rewards(script.task_rewards, script.reward_funcs)
    elif script.task_column is not None:
        raise RecipeError("task_column has no effect without task_rewards. Fix: remove it")


def adapters_are_trained_alone(recipe: Recipe) -> None:
    """Refuse to choose weights beside adapters: checkpoints keep the adapters only."""
    if recipe.model.use_peft and recipe.script.unfrozen_parameters:
        raise RecipeError(
            "unfrozen_parameters: cannot be combined with use_peft: true, because no checkpoint "
            "would keep the weights that are not adapters. Fix: unfrozen_parameters: null; "
            "lora_target_modules chooses where adapters are"
        )


# GRPO's training


def dynamic_sampling_is_bounded(recipe: GRPORecipe) -> None:
    """Refuse rounds without effect, and an unknown reward."""
    settings = recipe.script.dynamic_sampling
    if settings is None:
        return
    keys = ("max_rounds", "reward")
    for key in settings:
        if key not in keys:
            raise RecipeError("dynamic_sampling: " + unknown_name("key", key, keys))
    rounds, reward = settings.get("max_rounds"), settings.get("reward")
    usable = type(rounds) is int and rounds >= 2
    require(usable, "dynamic_sampling: max_rounds", "a whole number of at least 2", rounds)
    names = recipe.script.reward_funcs
    usable = reward is None or reward in names
    require(usable, "dynamic_sampling: reward", f"one of {names}", reward)


def weights_keep_their_precision(recipe: GRPORecipe) -> None:
    """Refuse TRL's continuous batching where it casts the trained weights."""
    training, model = recipe.training, recipe.model
    batches = namespace_value(recipe, "use_transformers_continuous_batching")
    precision = "bfloat16" if training.bf16 else "float16"
    casts = batches and (training.bf16 or training.fp16)
    if casts and (model.use_peft or model.dtype != precision):
        raise RecipeError(
            f"use_transformers_continuous_batching: TRL casts all weights to {precision} for "
            f"generation, so they also train in {precision}, "
            f"got dtype: {model.dtype}, use_peft: {str(model.use_peft).lower()}. Fix: "
            f"remove it; use_vllm: true is faster"
        )


def greedy_evaluation_samples_once(recipe: GRPORecipe) -> None:
    """Refuse several greedy samples of a prompt from vLLM's server, which accepts only one."""
    training = recipe.training
    served = training.use_vllm and training.vllm_mode == "server"
    greedy = recipe.script.eval_temperature == 0 and training.eval_strategy != "no"
    copies = training.num_generations_eval or training.num_generations
    allowed = "1 for eval_temperature: 0 with vllm_mode: server"
    require(not (served and greedy) or copies == 1, "num_generations_eval", allowed, copies)


def best_is_by_reward(recipe: GRPORecipe) -> None:
    """Refuse a best checkpoint or a learning rate chosen by GRPO's loss.

    The loss is always near 0.
    """
    training, names = recipe.training, recipe.script.reward_funcs
    scheduled = training.lr_scheduler_type == "reduce_lr_on_plateau"
    chosen = training.load_best_model_at_end or training.save_strategy == "best" or scheduled
    metric = training.metric_for_best_model
    if not chosen or (metric or "loss").removeprefix("eval_") != "loss":
        return
    reward = f"eval_rewards/{names[0].rpartition(':')[2]}/mean" if names else "eval_reward"
    raise RecipeError(
        f"metric_for_best_model: must be a reward, got {metric!r}, because GRPO's loss is near 0 "
        f"for any policy. "
        f"Fix: metric_for_best_model: {reward} and greater_is_better: true"
    )


Rule = Callable[[Any], None]
_DATA = (data_are_named, mapper_is_known)
_RUN = (model_is_named, *_DATA, output_is_named)
_TRAINS = (*_RUN, adapters_are_trained_alone)
_SAMPLING = (top_k_counts_tokens, completions_differ, sampling_has_a_seed, nothing_is_trained)
_WEIGHTS = (rewards_differ, weights_are_numbers, weights_fit_rewards)
_REWARDS = (reward_models_are_used, rewards_can_be_built, prompt_fits_format)
# The first broken rule is reported.
RULES: dict[str, tuple[Rule, ...]] = {
    "sft": _TRAINS,
    "reward": _TRAINS,
    "distill": (*_TRAINS, teacher_is_named, gold_keeps_the_vocabulary, adapters_reach_vllm),
    "grpo": (
        *_TRAINS,
        adapters_reach_vllm,
        choices_are_known,
        something_is_rewarded,
        *_WEIGHTS,
        *_REWARDS,
        tasks_name_rewards,
        weights_keep_their_precision,
        dynamic_sampling_is_bounded,
        best_is_by_reward,
        greedy_evaluation_samples_once,
    ),
    "generate": (
        *_RUN,
        *_SAMPLING,
        keep_fits,
        server_has_the_tokenizer,
        *_WEIGHTS,
        *_REWARDS,
    ),
    "evaluate": (
        *_DATA,
        samples_are_counted,
        *_SAMPLING,
        rewards_differ,
        *_REWARDS,
        tasks_name_rewards,
    ),
}
