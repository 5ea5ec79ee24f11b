"""Check what a run takes: bytes on each device and on the disk, steps, and time."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.models.tokenizer import from_pretrained
from r1_recipes.models.weights import auto_class
from r1_recipes.recipe import Recipe
from r1_recipes.training.train import freeze_parameters

# The usable share of a device's memory. Activations, which are not counted, need the rest.
_FULL = 0.85


@dataclass(frozen=True)
class Shape:
    """The size of a model. ``parameters`` and ``weight_bytes`` include adapters."""

    parameters: int
    window: int | None  # the model's longest context, in tokens
    trainable: int
    weight_bytes: float
    trained_bytes: int


def model_shape(report: Report, recipe: Recipe) -> Shape:
    """Return the size of the recipe's model, which is built without weights."""
    import torch
    from peft import get_peft_model
    from trl import get_peft_config

    with report.refusals("fit.model", essential=True):
        config = from_pretrained("AutoConfig", recipe)
        dtype = config.dtype
        if recipe.model.dtype not in (None, "auto"):
            dtype = getattr(torch, recipe.model.dtype)
        with torch.device("meta"):
            model = auto_class(config).from_config(
                config, dtype=dtype, trust_remote_code=recipe.training.trust_remote_code
            )
        if adapters := get_peft_config(recipe.model):
            model = get_peft_model(model, adapters)
        freeze_parameters(model, recipe.script.unfrozen_parameters)
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in parameters)
    weight_bytes: float = sum(parameter.nbytes for parameter in parameters)
    if recipe.model.load_in_4bit or recipe.model.load_in_8bit:
        weight_bytes = count * (0.5 if recipe.model.load_in_4bit else 1)
    return Shape(
        parameters=count,
        window=getattr(config.get_text_config(), "max_position_embeddings", None),
        trainable=sum(parameter.numel() for parameter in trained),
        weight_bytes=weight_bytes,
        trained_bytes=sum(parameter.nbytes for parameter in trained),
    )


def training_state(training: Any, shape: Shape, shards: int) -> dict[str, float]:
    """Return the bytes of weights, gradients and optimizer states, over all shards."""
    weights: float = shape.weight_bytes
    gradients = moment = shape.trained_bytes
    optimizer = 0
    if shards > 1 and (training.bf16 or training.fp16):  # ZeRO and FSDP train a copy in fp32.
        weights = min(weights, 2 * shape.parameters)
        gradients = 2 * shape.trainable
        optimizer = moment = 4 * shape.trainable
    if "8bit" in training.optim:
        moment = shape.trainable
    if "adam" in training.optim:
        optimizer += 2 * moment
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer}


def device_memory(recipe: Recipe) -> int | None:
    """Return the bytes of the GPU, or of main memory with ``use_cpu``. None without a GPU."""
    import psutil
    import torch

    if recipe.training.use_cpu:
        return psutil.virtual_memory().total
    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def check_memory(report: Report, recipe: Recipe, shape: Shape, shards: int) -> None:
    """Compare the memory needed on each device with the memory that vLLM leaves."""
    training = recipe.training
    state = training_state(training, shape, shards)
    if getattr(training, "beta", 0) and not recipe.model.use_peft:
        state["reference"] = state["weights"]
    if "paged" in training.optim:
        state["optimizer"] = 0  # It is in main memory.
    needed = sum(state.values()) / shards
    available = device_memory(recipe)
    message = (
        f"training {shape.trainable:,} of {shape.parameters:,} parameters takes "
        f"{needed / 1e9:.2f} GB on each device for {', '.join(state)}, without activations"
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


def check_disk(report: Report, recipe: Recipe, shape: Shape, steps: int, shards: int) -> None:
    """Compare the size of the checkpoints and the final model with the free space."""
    training = recipe.training
    state = training_state(training, shape, shards)
    saved = shape.trained_bytes if recipe.model.use_peft else state["weights"]
    whole = saved + (0 if training.save_only_model else state["optimizer"])
    every = training.save_steps if training.save_steps >= 1 else max(1, steps * training.save_steps)
    saves = {"no": 0, "steps": steps / every}.get(training.save_strategy, training.num_train_epochs)
    # The trainer deletes an old checkpoint only after it has written the new one.
    count = min(math.ceil(saves), (training.save_total_limit or math.inf) + 1)
    folder = Path(training.output_dir).absolute()
    free = shutil.disk_usage(next(path for path in folder.parents if path.exists())).free
    needed = count * whole + saved
    message = (
        f"output_dir: {count} checkpoints of {whole / 1e9:.2f} GB and the final model take "
        f"{needed / 1e9:.1f} GB; the disk of {folder} has {free / 1e9:.1f} GB free"
    )
    if needed > free:
        message += (
            ". Fix: another --output_dir, a lower save_total_limit, or save_only_model: true "
            "(a run cannot resume from such a checkpoint)"
        )
    report.add(WARNING if needed > free else OK, "fit.disk", message)


def check_cost(report: Report, recipe: Recipe, rows: int, processes: int) -> int:
    """Report steps, completions and tokens, and the time that sampling takes. Return the steps.

    The time is an estimate from the sampled groups.
    """
    training = recipe.training
    group = getattr(training, "num_generations", 1)
    size = training.per_device_train_batch_size * training.gradient_accumulation_steps * processes
    texts = size // getattr(training, "num_iterations", 1)
    epochs = rows * group / texts * training.num_train_epochs
    steps = training.max_steps if training.max_steps > 0 else math.ceil(epochs)
    longest = getattr(training, "max_completion_length", getattr(training, "max_length", None))
    message = f"about {steps:,} steps of {texts // group} prompts x {group}"
    message += f", at most {texts * steps * longest:,} tokens" if longest else ""
    if report.seconds:
        seconds = median(report.seconds) * texts * steps // group / processes
        message += (
            f"; sampling them takes about {timedelta(seconds=round(seconds))} (h:mm:ss), one group "
            "at a time, without training; larger batches and vLLM are faster"
        )
    report.add(OK, "fit.cost", message)
    return steps
