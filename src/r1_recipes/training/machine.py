"""Check, before anything is loaded, that this machine and its packages can do what a recipe
asks.
"""

from __future__ import annotations

import codecs
import importlib.util
import locale
import logging
import os
from pathlib import Path

from r1_recipes.common import gpu, processes
from r1_recipes.common.errors import RecipeError, install_hint, unknown_name
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import namespace_value
from r1_recipes.rewards import get_reward_funcs

logger = logging.getLogger(__name__)


def check_rewards(recipe: Recipe) -> None:
    """Call ``check_start()`` of every reward that has it.

    A smoke run skips it, because its rewards score nothing real.
    """
    script = recipe.script
    if script.smoke or not getattr(script, "reward_funcs", None):
        return
    for reward in get_reward_funcs(
        script.reward_funcs, script.response_format, **recipe.reward_params
    ):
        try:
            if hasattr(reward, "check_start"):
                reward.check_start()
        except RecipeError as error:
            raise RecipeError(f"{recipe.path}: {error}") from error


def check_generation_backend(recipe: Recipe) -> None:
    """Refuse temperature 0, and ``use_vllm: true`` without vLLM or, colocated, without a GPU."""
    training = recipe.training
    path = recipe.path
    if recipe.method in ("grpo", "distill") and training.temperature == 0:
        raise RecipeError(
            f"{path}: temperature: must be above 0 for training, got 0, because all completions "
            f"of a prompt would be identical. Fix: temperature: 1.0"
        )
    has_vllm = importlib.util.find_spec("vllm") is not None
    from_server = namespace_value(recipe, "distill_with") == "server"
    if from_server and not (recipe.script.smoke or has_vllm):
        raise RecipeError(
            f"{path}: distill_with: server: TRL's client needs vLLM, which is not installed. "
            f"Fix: {install_hint('vllm')}"
        )
    if not namespace_value(recipe, "use_vllm"):
        return
    gpu.quiet_vllm()
    import torch  # heavy

    without = "--use_vllm false (Transformers then generates the completions, slower)"
    if training.vllm_mode == "colocate" and (
        training.use_cpu or not torch.accelerator.is_available()
    ):
        raise RecipeError(f"{path}: use_vllm: this process sees no GPU. Fix: {without}")
    if not has_vllm:
        raise RecipeError(
            f"{path}: use_vllm: vLLM is not installed. Fix: {install_hint('vllm')}, or {without}"
        )


def check_encoding(recipe: Recipe) -> None:
    """Refuse a locale or an output_dir that is not UTF-8.

    Hugging Face's libraries would fail when they write tokenizer and model card, after the last
    step.
    """
    encoding = locale.getpreferredencoding(False)
    if codecs.lookup(encoding).name != "utf-8":
        raise RecipeError(
            f"{recipe.path}: Python must read files as UTF-8, but reads them as {encoding} here "
            f"(LC_ALL, LANG). Fix: export PYTHONUTF8=1"
        )
    folder = recipe.training.output_dir
    if not folder.isprintable():
        raise RecipeError(
            f"{recipe.path}: output_dir: must be printable text in UTF-8, got {folder}. Fix: "
            f"--output_dir outputs/run"
        )


def check_precision(recipe: Recipe) -> None:
    """Refuse bf16 on a GPU that only emulates it, which is many times slower."""
    keys = ["bf16"] if recipe.training.bf16 else []
    if recipe.model.dtype == "bfloat16":
        keys.append("dtype")
    if keys and not recipe.training.use_cpu and gpu.lacks_bf16():
        raise RecipeError(
            f"{recipe.path}: {', '.join(keys)}: this GPU does not support bf16, which needs "
            f"compute capability 8.0. "
            "Fix: --fp16 true --bf16 false --dtype float32"
        )


def check_push(recipe: Recipe) -> None:
    """Refuse ``push_to_hub`` if the hub is switched off or has no token."""
    import huggingface_hub  # heavy

    token = recipe.training.hub_token or huggingface_hub.get_token()
    if recipe.training.push_to_hub and (huggingface_hub.constants.HF_HUB_OFFLINE or not token):
        problem = "HF_HUB_OFFLINE is set" if token else "no token for the hub"
        raise RecipeError(
            f"{recipe.path}: push_to_hub: {problem}. Fix: hf auth login, HF_TOKEN, unset "
            f"HF_HUB_OFFLINE, or --push_to_hub false"
        )


def check_processes(recipe: Recipe) -> None:
    """Refuse to start if the processes are not connected.

    Each would train alone and overwrite the same folder.
    """
    started = processes.world_size()
    connected = recipe.training.world_size
    # The launchers in slurm/ set this variable.
    expected = int(os.environ.get("R1_RECIPES_PROCESSES", started))
    if not expected == started == connected:
        raise RecipeError(
            f"{recipe.path}: expected {expected} processes, but {started} started and this one "
            f"sees {connected}. Fix: use a multi-process accelerate config (ddp, zero2, zero3, "
            "fsdp2); "
            "on CPUs use torchrun --nproc-per-node N with use_cpu: true"
        )


def check_turns(recipe: Recipe) -> None:
    """Refuse tools on several processes that generate together.

    Each process asks for further turns until its own completions are done, so their numbers of
    calls differ (TRL 1.16: grpo_trainer.py, ``_tool_call_loop``). Where a call takes all processes,
    they would hang, or train on each other's completions (vllm_generation.py, ``generate``). An
    engine that sleeps gathers the sharded weights before each call.
    """
    if recipe.method != "grpo" or processes.world_size() == 1:
        return
    from accelerate.utils import parse_flag_from_env  # heavy

    training, plugin = recipe.training, recipe.training.deepspeed_plugin
    fsdp = parse_flag_from_env("ACCELERATE_USE_FSDP")
    sharded = fsdp or (plugin and plugin.zero_stage == 3)
    sleeps = training.use_vllm and training.vllm_enable_sleep_mode
    together = {
        "vllm_mode: server": training.use_vllm and training.vllm_mode == "server",
        "vllm_tensor_parallel_size above 1": training.use_vllm
        and training.vllm_tensor_parallel_size > 1,
        "FSDP or ZeRO-3 without vLLM": sharded and not training.use_vllm,
        "FSDP or ZeRO-3 and vllm_enable_sleep_mode": sharded and sleeps,
    }
    for key, holds in together.items():
        if holds and (recipe.script.tools or recipe.script.environment):
            raise RecipeError(
                f"{recipe.path}: tools, environment: cannot be used on {processes.world_size()} "
                f"processes with {key}, because their completions would be mixed up. Fix: "
                "use_vllm: true, vllm_mode: colocate, vllm_tensor_parallel_size: 1, "
                "vllm_enable_sleep_mode: false"
            )


def check_trackers(recipe: Recipe) -> None:
    """Refuse a tracker in ``report_to`` that is unknown to Transformers or not installed."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK  # heavy

    where = f"{recipe.path}: report_to:"
    for tracker in recipe.training.report_to:
        if tracker not in INTEGRATION_TO_CALLBACK:
            raise RecipeError(
                f"{where} {unknown_name('tracker', tracker, INTEGRATION_TO_CALLBACK)}"
            )
        needs_package = tracker in ("wandb", "tensorboard", "trackio")
        if needs_package and importlib.util.find_spec(tracker) is None:
            raise RecipeError(
                f"{where} {tracker} is not installed. Fix: {install_hint(tracker)}, or "
                "--report_to none"
            )


def prepare_trackers(recipe: Recipe) -> None:
    """Set the environment variables of W&B. Without an API key it logs offline."""
    environment = os.environ
    training = recipe.training
    for key in ("wandb_entity", "wandb_project", "wandb_run_group"):
        value = namespace_value(recipe, key)
        if value:
            environment[key.upper()] = value
    netrc = Path(environment.get("NETRC", Path.home() / ".netrc"))
    has_key = environment.get("WANDB_API_KEY") or (
        netrc.is_file() and "wandb" in netrc.read_text(errors="replace")
    )
    if "wandb" in training.report_to and "WANDB_MODE" not in environment and not has_key:
        environment["WANDB_MODE"] = "offline"
        logger.warning(
            "wandb has no API key, so this run is logged offline in ./wandb. Upload it later with "
            "wandb sync"
        )
