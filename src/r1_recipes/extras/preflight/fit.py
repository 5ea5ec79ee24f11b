"""Check what a run takes: bytes on each device."""

import os
from typing import Any

from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.models.load import auto_class, from_pretrained
from r1_recipes.recipe import Recipe
from r1_recipes.training.train import freeze_parameters

# The usable share of a device's memory. Activations, which are not counted, need the rest.
_FULL = 0.85


def build_model(recipe: Recipe) -> Any:
    """Return the recipe's model without weights, with its adapters and frozen parameters."""
    import torch
    from peft import get_peft_model
    from trl import get_peft_config

    config, dtype = from_pretrained("AutoConfig", recipe), recipe.model.dtype
    if dtype in (None, "auto"):
        dtype = config.dtype
    with torch.device("meta"):
        model = auto_class(config).from_config(
            config, dtype=dtype, trust_remote_code=recipe.training.trust_remote_code
        )
    if adapters := get_peft_config(recipe.model):
        model = get_peft_model(model, adapters)
    elif recipe.script.unfrozen_parameters:
        freeze_parameters(model, recipe.script.unfrozen_parameters)
    return model


def training_state(recipe: Recipe, model: Any, shards: int) -> dict[str, float]:
    """Return the bytes of weights, gradients and optimizer states, over all shards."""
    training, parameters = recipe.training, [*model.parameters()]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    count, trainable = (sum(one.numel() for one in part) for part in (parameters, trained))
    weights: float = sum(parameter.nbytes for parameter in parameters)
    if recipe.model.load_in_4bit or recipe.model.load_in_8bit:
        weights = count * (0.5 if recipe.model.load_in_4bit else 1)
    gradients = moment = sum(parameter.nbytes for parameter in trained)
    optimizer = 0
    if shards > 1 and (training.bf16 or training.fp16):  # ZeRO and FSDP train a copy in fp32.
        weights = min(weights, 2 * count)
        gradients = 2 * trainable
        optimizer = moment = 4 * trainable
    if "8bit" in training.optim:
        moment = trainable
    if "adam" in training.optim:
        optimizer += 2 * moment
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer}


def device_memory(recipe: Recipe) -> int | None:
    """Return the bytes of the GPU, or of main memory with ``use_cpu``. None without a GPU."""
    import psutil
    import torch

    if recipe.training.use_cpu:
        return psutil.virtual_memory().total
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


def check_memory(report: Report, recipe: Recipe, state: dict[str, float], shards: int) -> None:
    """Compare the memory needed on each device with the memory that vLLM leaves."""
    training, state = recipe.training, dict(state)
    if getattr(training, "beta", 0) and not recipe.model.use_peft:
        state["reference"] = state["weights"]
    if "paged" in training.optim:
        state["optimizer"] = 0  # It is in main memory.
    # What every device has of its own at ZeRO-1 and ZeRO-2
    whole = {"1": ("weights", "reference", "gradients"), "2": ("weights", "reference")}.get(
        os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", ""), ()
    )
    needed = sum(size / (1 if key in whole else shards) for key, size in state.items())
    available = device_memory(recipe)
    message = (
        f"training takes {needed / 1e9:.2f} GB on each device for {', '.join(state)}, without "
        "activations"
    )
    if available is None:
        report.add(OK, "fit.memory", f"{message}; this machine has no GPU to compare with")
        return
    beside = getattr(training, "use_vllm", False) and training.vllm_mode == "colocate"
    share = training.vllm_gpu_memory_utilization if beside else 0
    message += f"; the device has {available / 1e9:.1f} GB, {share:.0%} of it for vLLM"
    level = OK
    if needed > _FULL * (1 - share) * available:
        # Shards may be offloaded, and the vLLM engine may sleep.
        level = ERROR if needed > available and shards == 1 else WARNING
        message += (
            ". Fix: use_peft: true, a smaller model, or ZeRO-3 or FSDP over several devices "
            "(for their figures, start preflight with that accelerate launch --config_file)"
        )
    report.add(level, "fit.memory", message)
