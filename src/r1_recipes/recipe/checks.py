"""What can be known to be wrong with a recipe before anything is loaded."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r1_recipes.common import extras
from r1_recipes.common.errors import BatchError, RecipeError, unknown_name
from r1_recipes.data import get_mapper
from r1_recipes.prompts import FORMATS, ResponseFormat, fitting_format, get_response_format, named_marks
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards import REWARDS, get_reward_funcs
from r1_recipes.rewards.call import check_task_rewards
from r1_recipes.rewards.registry import declared

# Methods whose recipes name rewards.
REWARDED = ("grpo", "generate", "evaluate")
# What a prompt does not ask for, to the end of the sentence.
_NEGATED = re.compile(
    r"(\b(not|never|without|cannot)\b|n['’]t\b|不要|无需|(?<![分个特区])别)((?![.!?;](\s|$)|[。！？；]).)*", re.IGNORECASE
)
# What TRL finds out only when the first completions have been sampled.
_CHOICES = {
    "loss_type": "bnpo cispo dapo dr_grpo grpo luspo sapo vespo",
    "scale_rewards": "batch group none",
    "importance_sampling_level": "sequence token",
    "multi_objective_aggregation": "normalize_then_sum sum_then_normalize",
    "vllm_importance_sampling_mode": "sequence_mask sequence_truncate token_mask token_truncate",
}
_IDLE = ("use_peft", "load_in_4bit", "load_in_8bit", "unfrozen_parameters")


def check(recipe: Recipe, chosen_params: dict[str, Any], used: set[str]) -> None:
    """Refuse a recipe that cannot work, and warn of keys without effect: of ``chosen_params``, those that no reward of its own has."""
    path, script, training = recipe.path, recipe.script, recipe.training
    if 0 < getattr(training, "max_steps", 0) <= getattr(training, "warmup_steps", 0) and not script.smoke:
        recipe.warnings.append(
            f"{path}: warmup_steps {training.warmup_steps:g} of max_steps {training.max_steps}: learning_rate is reached late or never"
        )
    if recipe.method == "reward":
        idle = [key for key in ("system_prompt", "few_shot") if getattr(script, key)]
        recipe.warnings += [f"{path}: {key} is ignored: pairs are taken as they are" for key in idle]
    for key in sorted(set(chosen_params) - used):
        recipe.warnings.append(f"{path}: {key} is ignored: none of reward_funcs {getattr(script, 'reward_funcs', [])} has it")
    try:
        problem = next(_problems(recipe), None)
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error
    if problem:
        raise RecipeError(f"{path}: {problem}")


def _problems(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong; names that are in no registry are a ValueError."""
    script, training, model, method = recipe.script, recipe.training, recipe.model, recipe.method
    if not model.model_name_or_path and method != "evaluate":  # a benchmark is told which models
        yield "model_name_or_path: missing; a hub id or a local checkpoint folder"
    if script.dataset_name and script.dataset_mixture:
        yield "dataset_name and dataset_mixture are both set; keep the one that is meant"
    if not (script.dataset_name or script.dataset_mixture):
        yield "dataset_name: missing; name a hub dataset, a local path, 'reasoning_gym:TASK' or 'countdown:3-4' (or set dataset_mixture)"
    if not getattr(script, "tool_timeout", 1.0) > 0 or getattr(script, "tool_output_chars", 2) < 2:
        yield f"tool_timeout, tool_output_chars: must be above 0 and at least 2, got {script.tool_timeout} and {script.tool_output_chars}"
    fmt = get_response_format(script.response_format)
    if script.mapper != "auto":
        get_mapper(script.mapper, **(script.mapper_config or {}))
    if hasattr(training, "output_dir") and not training.output_dir:
        yield f"output_dir: found {training.output_dir!r}; the folder that the run is written to"
    if method == "distill" and script.distill_with != "server" and not training.teacher_model_name_or_path:
        yield "teacher_model_name_or_path: missing; the model whose distribution the student learns"
    if method == "distill" and script.distill_with == "gold" and not training.use_uld_loss:
        yield "use_uld_loss: must be true for distill_with: gold, which else cuts the teacher's vocabulary to the student's, got false"
    if getattr(training, "use_vllm", False) and model.use_peft:
        yield from _sync_problems(model)
    if method in ("generate", "evaluate"):
        yield from _sampling_problems(recipe)
    if method == "generate":
        if script.keep:
            yield from extras.needed("selection", "keep").problems(recipe)
        if script.backend == "openai" and (script.max_prompt_tokens or script.max_solution_tokens or script.chat_template):
            yield (
                "backend openai: max_prompt_tokens, max_solution_tokens and chat_template need the model's tokenizer, which the server "
                "keeps; leave them out"
            )
    if method not in REWARDED:
        return
    for key, choices in _CHOICES.items() if method == "grpo" else ():
        if getattr(training, key) not in choices.split():
            yield f"{key}: {unknown_name('value', getattr(training, key), choices.split())} docs/losses.md says which is which"
    names, weights = script.reward_funcs, getattr(training, "reward_weights", None)
    if not names and method == "grpo":
        silent = extras.needed("agents", "environment").without_reward(script.environment) if script.environment else []
        if silent or not script.environment:
            own = "".join(f"give environment {kind.__name__} a method get_reward(self), or " for kind in silent)
            yield f"reward_funcs: missing; {own}name at least one of {', '.join(sorted(REWARDS))}"
    if len(set(names)) < len(names):
        yield f"reward_funcs: must differ, got {names}. Fix: give one that counts twice the reward_weights entry 2.0"
    if weights and (not any(weights) or not all(map(math.isfinite, weights))):
        yield f"reward_weights: must be finite, and one not 0, got {weights}. Fix: leave it out for 1 each"
    if weights is not None and len(weights) != len(names):
        commas = ". Fix: decimals with a point, [1.0, 0.5]: a comma begins the next entry" if len(weights) == 2 * len(names) else ""
        yield f"reward_weights has {len(weights)} entries for {len(names)} reward_funcs {names}{commas}"
    for name in recipe.reward_params.get("reward_models", ()):
        if name not in names:
            yield f"reward_models: {name!r}: must be named in reward_funcs, got {names}"
        if name in ("prompt", "completion", "step", "advantage", "answer_parsed", "solution", "refused", "turns"):
            yield f"reward_models: {name!r}: must be a name of its own, got a column of the table of completions"
    get_reward_funcs(names, fmt, **recipe.reward_params)
    if any(name in REWARDS and declared(REWARDS[name], "judges") != "style" for name in names or ["accuracy"]):
        yield from _shape_problems(script)
    if getattr(script, "task_rewards", None) is not None:
        check_task_rewards(script.task_rewards, names)
    elif getattr(script, "task_column", None) is not None and not getattr(script, "curriculum", None):
        yield "task_column has no meaning without task_rewards or curriculum"
    if method == "grpo" and script.curriculum is not None and not script.smoke:
        if len(set(script.curriculum)) < max(2, len(script.curriculum)):
            yield f"curriculum: must be two or more tasks that differ, easiest first, got {script.curriculum}"
        if training.eval_strategy != "steps" or training.load_best_model_at_end or training.save_strategy == "best":
            yield f"curriculum: must have eval_strategy: steps, got {training.eval_strategy.value}, and no best checkpoint (the easiest's)"
    if method == "grpo":
        yield from _training_problems(training, model, names)


def _shape_problems(script: Any) -> Iterator[str]:
    """Yield what a prompt asks for in place of the format, which would never be paid; of one that asks for nothing, preflight tells."""
    parts = (script.dataset_mixture or {}).get("datasets") or [{}]
    for own in dict.fromkeys(part.get("system_prompt") for part in parts if isinstance(part, dict)):
        system_prompt = script.system_prompt if own is None else own
        yield from _shape_problem(script, get_response_format(script.response_format, system_prompt=system_prompt, prefill=script.prefill))


def _shape_problem(script: Any, fmt: ResponseFormat) -> Iterator[str]:
    prompt = "\n".join([fmt.system_prompt, getattr(script, "prompt_template", None) or ""])
    asked = _NEGATED.sub("", prompt)
    named = list(dict.fromkeys([*named_marks(asked), *(mark for group in fmt.marks for mark in group if mark in asked)]))
    other = {*named}.difference(*fmt.marks)
    openings = {known.reasoning_tags[0] for known in FORMATS.values() if known.reasoning_tags}
    # An answer is read without the reasoning's beginning, unless that is its end as well; reasoning models, or their chat templates, open
    # <think> unasked; and the data often ask for a box.
    opening, end = fmt.reasoning_tags or ("", "")
    shaped = any(declared(REWARDS.get(name), "judges") == "shape" for name in script.reward_funcs or [])
    free = {opening} if opening != end and not shaped else set()
    free |= {mark for mark, idle in (("<think>", other.isdisjoint(openings)), ("\\boxed", other <= openings)) if idle}.difference(named)
    lacking = [group[0] for group in fmt.lacking(prompt) if free.isdisjoint(group)]
    # Without tags the whole text is searched for an answer of any shape, but not inside another format's answer tags.
    searched = not (fmt.reasoning_tags or fmt.answer_tags or fmt.delimited)
    inside = [known.answer_tags[0] for known in FORMATS.values() if known.answer_tags and known.answer_tags[0] in other]
    lacking += ["no other answer block"] if inside and fmt.prose and not (fmt.answer_tags or lacking) else []
    if named and lacking and not script.few_shot and (inside or not searched):  # worked turns show the shape
        wanted, found = (" and ".join(marks) for marks in (lacking, named))
        key = "system_prompt" if fmt.system_prompt else "prompt_template"
        fix = f"Fix: {fitting_format(named, fmt)}, or leave {key} out"
        if odd := [mark for mark in named if mark in lacking]:
            found, fix = f"{found} in other characters", f"Fix: write {' and '.join(odd)}: a format is read exactly as it is written"
        yield f"{key}: must ask for {wanted}, which rewards read (response_format {fmt.name}), got one that asks for {found}. {fix}"


def _training_problems(training: Any, model: Any, rewards: list[str]) -> Iterator[str]:
    """Yield what trains in silence, and not as it was meant."""
    half = "bfloat16" if training.bf16 else "float16" if training.fp16 else None
    if training.use_transformers_continuous_batching and half and (model.dtype != half or model.use_peft):
        found = f"dtype: {model.dtype}, use_peft: {str(model.use_peft).lower()}"
        yield (
            f"use_transformers_continuous_batching: TRL casts all weights to {half} in place to generate, so that they train in it, got "
            f"{found}. Fix: leave it out; use_vllm: true is faster"
        )
    chooses = training.load_best_model_at_end or training.save_strategy == "best" or training.lr_scheduler_type == "reduce_lr_on_plateau"
    if chooses and (training.metric_for_best_model or "loss").removeprefix("eval_") == "loss":
        reward = f"eval_rewards/{rewards[0].rpartition(':')[2]}/mean" if rewards else "eval_reward"
        yield (
            f"metric_for_best_model: must be a reward, got {training.metric_for_best_model!r}: GRPO's loss is near 0 for any policy. "
            f"Fix: metric_for_best_model: {reward} and greater_is_better: true"
        )


def _sync_problems(model: Any) -> Iterator[str]:
    """Yield adapters whose merged weights vLLM cannot be sent."""
    fix = "Fix: leave it out, or use_vllm: false"
    for key in ("load_in_4bit", "load_in_8bit", "lora_target_parameters"):
        if value := getattr(model, key):
            yield f"{key}: vLLM cannot be sent such adapters merged into the model, got {value} beside use_vllm: true. {fix}"


def _sampling_problems(recipe: Recipe) -> Iterator[str]:
    script, training, evaluates = recipe.script, recipe.training, recipe.method == "evaluate"
    if evaluates and script.num_samples is None:
        yield "num_samples: missing; sampled completions a row, 0 (greedy only) or more"
    if training.top_k < 0:  # TRL's own may be -1, for vLLM
        yield f"top_k: must be 0 (all tokens) or more, got {training.top_k}"
    count = script.num_samples if evaluates else training.num_generations
    if training.temperature == 0 and count > 1:
        fix = "num_samples: 0" if evaluates else "num_generations: 1"
        yield f"temperature: 0 gives {count} equal completions; set {fix}, or sample"
    if training.seed is None and (evaluates or script.backend != "openai"):
        yield "seed: found no value; a whole number (only generation with backend openai goes without)"
    if idle := [key for key in _IDLE if getattr(script, key, None) or getattr(recipe.model, key, None)]:
        yield f"{', '.join(idle)}: of no effect on generation; leave out"


def check_batch(path: Path, value: Callable[[str], Any], world_size: int) -> None:
    """Refuse GRPO's batches that groups of completions do not fill, with numbers that would fit; ``value`` knows defaults, too."""
    group, device = value("num_generations"), value("per_device_train_batch_size")
    if not group or not device:
        return
    if group < 2:
        raise RecipeError(f"{path}: num_generations: must be at least 2, got {group}: a group of one has no other to compare with. Fix: 8")
    if value("generation_batch_size") and value("steps_per_generation"):
        raise RecipeError(f"{path}: generation_batch_size, steps_per_generation: must be one of the two, got both. Fix: leave one out")
    step = device * world_size
    key = next((key for key in ("generation_batch_size", "steps_per_generation") if value(key)), "gradient_accumulation_steps")
    batch = value(key) if key == "generation_batch_size" else step * value(key)
    common = math.lcm(step, group)
    if batch % common:
        fits = -(-batch // common) * common
        sizes = [size for size in range(2, batch + 1) if batch % size == 0]
        other = f", or num_generations: {min(sizes, key=lambda size: abs(size - group))}" if sizes and batch % step == 0 else ""
        each = 0 if key == "generation_batch_size" else batch // world_size  # of one process
        counts = [count for count in range(1, max(9, world_size)) if (each * count or batch) % math.lcm(device * count, group) == 0]
        other += f", or {counts[-1]} processes (accelerate launch --num_processes {counts[-1]})" if counts else ""
        raise BatchError(
            f"{path}: {key}: must make the batch a multiple of {step} (per_device_train_batch_size {device} x {world_size} processes) "
            f"and of num_generations {group}, got {batch}. Fix: {key}: {fits if key == 'generation_batch_size' else fits // step}{other}"
        )
    evaluated, held_out = value("num_generations_eval") or group, value("per_device_eval_batch_size")
    if value("eval_strategy") != "no" and held_out * world_size % evaluated:
        multiple = evaluated // math.gcd(evaluated, world_size)
        raise BatchError(
            f"{path}: per_device_eval_batch_size: must make a multiple of {evaluated} completions over {world_size} processes, got "
            f"{held_out}. Fix: per_device_eval_batch_size: {-(-held_out // multiple) * multiple}, or num_generations_eval: 1"
        )
