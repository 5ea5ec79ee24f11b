"""What a model must at least have of a device's memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from r1_recipes.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.preflight.shape import Shape
from r1_recipes.recipe.load import Recipe

_TIGHT = 0.85
_MEASURED = "the one run that was measured peaked at 5.8 times its estimate, docs/preflight.md"
_LASTING = ("weights", "reference", "gradients", "optimizer")


@dataclass(frozen=True)
class Parallelism:
    """How a launch spreads a model over processes; without ``zero`` (a stage) and ``fsdp`` each has the whole."""

    processes: int = 1
    zero: int = 0
    fsdp: bool = False
    offloaded: frozenset[str] = frozenset()  # parts of the estimate that main memory has instead of the device

    def share(self, stage: int) -> int:
        """How many processes share what ZeRO shards from this stage: optimizer 1, gradients 2, weights 3."""
        return self.processes if self.fsdp or self.zero >= stage else 1

    def __str__(self) -> str:
        return f"{'FSDP' if self.fsdp else f'ZeRO-{self.zero}' if self.zero else 'ddp'} over {self.processes} processes"


def parallelism(processes: int | None = None) -> Parallelism:
    """Return what ``accelerate launch`` or ``torchrun`` exported, as accelerate's own plugins read it."""
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin, parse_flag_from_env

    processes = processes or max(1, int(os.environ.get("WORLD_SIZE", 1)))
    offloaded: set[str] = set()
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        deepspeed = DeepSpeedPlugin()
        if deepspeed.offload_optimizer_device not in (None, "none"):
            offloaded |= {"optimizer", "gradients"} if deepspeed.zero_stage >= 2 else {"optimizer"}
        if deepspeed.offload_param_device not in (None, "none"):
            offloaded |= {"weights", "reference"}
        return Parallelism(processes, zero=deepspeed.zero_stage, offloaded=frozenset(offloaded))
    if parse_flag_from_env("ACCELERATE_USE_FSDP"):
        offload = FullyShardedDataParallelPlugin().cpu_offload
        # FSDP 1 has a flag where FSDP2 has a class.
        if getattr(offload, "offload_params", type(offload).__name__ == "CPUOffloadPolicy"):
            offloaded = set(_LASTING)
        return Parallelism(processes, fsdp=True, offloaded=frozenset(offloaded))
    return Parallelism(processes)


def memory(recipe: Recipe, shape: Shape, tokens: int, spread: Parallelism) -> dict[str, float]:
    """Return the bytes that one process's device must at least have; docs/preflight.md has the formula of each part.

    Args:
        tokens: of the longest prompt (GRPO) or the longest example (SFT).
    """
    training, grpo = recipe.training, recipe.method == "grpo"
    weights, gradients = shape.weight_bytes, float(shape.trained_bytes)
    reference = weights if getattr(training, "beta", 0) and not recipe.model.use_peft else 0
    optim = str(getattr(training.optim, "value", training.optim))
    mixed = training.bf16 or training.fp16
    sharded = mixed and (spread.zero or spread.fsdp)  # what is trained is then kept in 32 bits, and computed with in 16
    state = 1 if "8bit" in optim else 4 if sharded else shape.trained_bytes / max(1, shape.trainable)
    optimizer = 2 * state * shape.trainable * ("adam" in optim)
    if sharded:
        weights, reference = min(weights, 2 * shape.parameters), min(reference, 2 * shape.parameters)
        gradients = 2 * shape.trainable
        optimizer += 4 * shape.trainable
    batch, width = training.per_device_train_batch_size, 2 if mixed else shape.width
    completion = training.max_completion_length if grpo else tokens
    at_once = batch * training.steps_per_generation if grpo and not training.use_vllm else 0
    parts = {
        "weights": weights / spread.share(3),
        "reference": reference / spread.share(3),
        "gradients": gradients / spread.share(2),
        "optimizer": optimizer / spread.share(1),
        "logits": batch * completion * shape.vocabulary * width,
        "kv_cache": at_once * (tokens + completion) * shape.cache * width,
    }
    return parts | dict.fromkeys(spread.offloaded, 0)


def check_memory(report: Report, recipe: Recipe, shape: Shape, tokens: int, spread: Parallelism) -> None:
    """Compare what stays for the whole run, and that with its largest guest, with the memory of the device."""
    training, parts = recipe.training, memory(recipe, shape, tokens, spread)
    name, available, here = _device(training.use_cpu)
    lasting, guest = sum(parts[key] for key in _LASTING), max(parts["logits"], parts["kv_cache"])
    if here and getattr(training, "use_vllm", False) and training.vllm_mode == "colocate":
        parts["vllm"] = training.vllm_gpu_memory_utilization * available
        if training.vllm_enable_sleep_mode:
            guest = max(guest, parts["vllm"])
        else:
            lasting += parts["vllm"]
    total = lasting + guest
    report.facts["memory"] = {"estimate_bytes": parts | {"total": total}, "parallelism": str(spread), "device": name, "bytes": available}
    report.facts["model"] = {"parameters": shape.parameters, "trainable": shape.trainable}
    shown = ", ".join(f"{key.replace('_', ' ')} {value / 1e9:.2f}" for key, value in parts.items() if value)
    said = (
        f"at least {total / 1e9:.2f} GB a process, {spread} ({shown}; {_MEASURED}), "
        f"{shape.trainable:,} of {shape.parameters:,} parameters trained; {name} has {available / 1e9:.1f} GB"
    )
    if total <= _TIGHT * available:
        report.add(OK, "fit.memory", said)
    else:
        level = ERROR if here and lasting > available else WARNING
        report.add(level, "fit.memory", f"{said}; try use_peft: true, ZeRO-3 or FSDP over several devices, a smaller batch or model")


def _device(use_cpu: bool) -> tuple[str, int, bool]:
    """Its name, its bytes, and whether it is where the recipe means to run."""
    import psutil
    import torch

    if not use_cpu and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return properties.name, properties.total_memory, True
    name = "this computer's main memory"
    return name if use_cpu else f"no CUDA device is here; {name}", psutil.virtual_memory().total, use_cpu
