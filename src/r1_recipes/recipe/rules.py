"""What a recipe must have. TRL, vLLM and the loading itself check the rest, and name the key."""

import os
import shutil

from r1_recipes.common.errors import RecipeError, require, unknown_name
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import ON, Recipe, Settings, namespace_value
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
    require(
        bool(name) != bool(script.dataset_mixture),
        "dataset_name",
        "set, or dataset_mixture, and not both",
        name,
        fix,
    )
    get_response_format(script.response_format)  # raises for one that cannot read what it writes
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
        require(
            not sent,
            key,
            "off with use_vllm: true, as TRL cannot merge such adapters and send them",
            getattr(model, key),
            "use_vllm: false",
        )
    if method == "grpo":
        _check_grpo(recipe)
    elif method == "distill":
        teacher, fix = recipe.training.teacher_model_name_or_path, "the model to learn from"
        require(teacher, "teacher_model_name_or_path", "set", teacher, fix)
    if method in ("grpo", "generate", "evaluate"):
        _check_rewards(recipe)


def _check_grpo(recipe: Recipe) -> None:
    script, training = recipe.script, recipe.training
    for key, names in _CHOICES.items():
        value = getattr(training, key)
        if value not in names.split():
            raise RecipeError(f"{key}: {unknown_name('value', value, names.split())}")
    # TRL asks an environment for its get_reward.
    names, fix = script.reward_funcs, "accuracy, format or others (docs/rewards.md)"
    require(names or script.environment, "reward_funcs", "set", names, fix)
    rounds = script.dynamic_sampling
    if rounds is not None:
        fits = rounds.get("max_rounds") in range(2, 99) and rounds.get("reward") in (None, *names)
        fits = fits and rounds.keys() <= {"max_rounds", "reward"}
        require(
            fits,
            "dynamic_sampling",
            f"{{max_rounds: 2 or more, and maybe reward: one of {names}}}",
            rounds,
        )


def _check_rewards(recipe: Recipe) -> None:
    script = recipe.script
    names, weights = script.reward_funcs, getattr(recipe.training, "reward_weights", None)
    if weights is not None and len(weights) != len(names):
        raise RecipeError(
            f"reward_weights has {len(weights)} entries for {len(names)} reward_funcs {names}. "
            "Fix: one weight per reward"
        )
    # TRL logs them by the last part.
    require(
        len({name.rpartition(":")[2] for name in names}) == len(names),
        "reward_funcs",
        "of different names",
        names,
    )
    for name in script.reward_models or ():
        require(name in names, f"reward_models: {name!r}", "named in reward_funcs", names)
    if getattr(script, "task_rewards", None) is not None:
        check_task_rewards(script.task_rewards, names)
    if getattr(script, "keep", None):
        from r1_recipes.extras.selection import check_keep

        check_keep(recipe)


def follow_machine(method: str, given: Settings, typed: Settings, warnings: list[str]) -> None:
    """Set the keys that a machine without an accelerator needs, except typed keys."""
    import torch

    # The launcher sets this variable to the precision of its config file, and it wins over
    # ``bf16: false``.
    if "ACCELERATE_MIXED_PRECISION" in os.environ and {"bf16", "fp16"} & given.keys():
        on = [key for key in ("bf16", "fp16") if str(given.get(key)).lower() in ON]
        os.environ["ACCELERATE_MIXED_PRECISION"] = on[-1] if on else "no"
    use_cpu = str(given.get("use_cpu")).lower() in ON
    if not use_cpu and torch.accelerator.is_available():
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    driver = shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia/version")
    if driver and not (use_cpu or hidden or given.get("backend") == "openai"):
        # A build of torch without CUDA would train for days on the CPU.
        raise RecipeError(
            f"use_cpu: this machine has an NVIDIA GPU, and torch {torch.__version__}, built for "
            f"CUDA {torch.version.cuda}, cannot use it. Fix: a driver that is new enough (580 or "
            "newer for CUDA 13), a torch build for the CUDA of this driver "
            "(https://pytorch.org/get-started/previous-versions/), or train on the CPU, which is "
            "hundreds of times slower: --use_cpu true"
        )
    if method in ("generate", "evaluate"):
        return
    needed = {"use_vllm": False} if given.get("vllm_mode") in (None, "colocate") else {}
    if not use_cpu:  # with use_cpu: true, the recipe chooses the precision for a CPU
        needed |= {"use_cpu": True, "bf16": False, "fp16": False, "tf32": False}
    # TRL's defaults. A word that is neither true nor false is for the parser to refuse.
    current = {"use_cpu": False, "bf16": not given.get("fp16"), **given}
    changed = {  # what the recipe sets the other way
        key: value
        for key, value in needed.items()
        if key not in typed and str(current.get(key)).lower() == str(not value).lower()
    }
    given |= changed
    if "fp16" in changed:
        given.setdefault("bf16", False)  # if fp16 is off, TRL turns bf16 on
    if changed:
        why = "use_cpu is true" if use_cpu else "no accelerator is visible"
        now = ", ".join(f"{key}: {str(value).lower()}" for key, value in changed.items())
        warnings.append(
            f"{why}, so the run uses {now}. Expect it to be hundreds of times slower than on a "
            "GPU. --smoke checks a recipe in seconds"
        )


def longest_sequence(recipe: Recipe) -> int | None:
    """Return the most tokens of a prompt and its completion in a training run.

    Return None if no key limits the prompts. TRL's ``max_completion_length`` counts all assistant
    turns of an episode and all tool results. Two things come on top. The text of an environment's
    ``reset`` has at most ``tool_output_chars`` characters, mostly fewer tokens. With ``vllm_mode:
    server``, the last message can add a full completion, because TRL cuts it only after it has been
    generated.
    """
    script, training = recipe.script, recipe.training
    prompt, completion = script.max_prompt_tokens, getattr(training, "max_completion_length", None)
    if not prompt or not completion:
        return None
    reset = script.tool_output_chars if script.environment else 0
    turns = training.vllm_mode == "server" and (script.tools or script.environment)
    return int(prompt + reset + completion * (2 if turns else 1))
