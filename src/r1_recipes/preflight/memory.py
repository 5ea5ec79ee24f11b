"""What a model must at least have of a device's memory; its shape comes from its configuration alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.recipe import Recipe
from r1_recipes.training.weights import freeze_parameters

_TIGHT = 0.85
_MEASURED = "the one run that was measured peaked at 5.8 times its estimate, docs/preflight.md"
# Bytes of a packed weight; bitsandbytes packs linear layers but for the output layer.
_PACKED = {"load_in_4bit": 0.5, "load_in_8bit": 1}
_LASTING = ("weights", "reference", "gradients", "optimizer")


@dataclass(frozen=True)
class Shape:
    """What of a model counts for memory; parameters and bytes include adapters."""

    parameters: int
    trainable: int
    weight_bytes: float
    trained_bytes: int
    width: int  # bytes of one value that is not packed
    vocabulary: int
    cache: int  # values of one token in the KV cache
    window: int | None  # tokens that the model was made for


def model_shape(report: Report, recipe: Recipe) -> Shape:
    """Count a model that is built without its weights; what fits nothing goes to the report."""
    import torch
    from peft import get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from trl import get_peft_config

    arguments, trusted = recipe.model, recipe.training.trust_remote_code
    name = arguments.model_name_or_path
    with report.refusals("fit.model", essential=True):
        try:
            config = AutoConfig.from_pretrained(name, revision=arguments.model_revision, trust_remote_code=trusted)
            pictures = (config.architectures or [""])[0].endswith("ForConditionalGeneration")
            kind = AutoModelForImageTextToText if pictures else AutoModelForCausalLM
            dtype = config.dtype if arguments.dtype in (None, "auto") else getattr(torch, arguments.dtype)
            with torch.device("meta"):
                model: Any = kind.from_config(config, dtype=dtype, trust_remote_code=trusted)
                width, output = next(model.parameters()).element_size(), model.get_output_embeddings()
                linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not output)
                if adapters := get_peft_config(arguments):
                    model = get_peft_model(model, adapters)
        except Exception as error:  # an adapter's folder, an unknown architecture, lora_target_modules: the library's own words
            keys = "model_name_or_path or lora_target_modules" if arguments.use_peft else "model_name_or_path"
            raise RecipeError(f"{recipe.path}: {keys}: {name!r} cannot be built without weights: {first_line(error)}") from error
    saved = linear * (width - next((size for key, size in _PACKED.items() if getattr(arguments, key)), width))
    with report.refusals("fit.unfrozen"):
        freeze_parameters(model, recipe.script.unfrozen_parameters)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    text = config.get_text_config()
    heads = text.num_attention_heads
    head_width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trainable=sum(parameter.numel() for parameter in trained),
        weight_bytes=sum(parameter.nbytes for parameter in model.parameters()) - saved,
        trained_bytes=sum(parameter.nbytes for parameter in trained),
        width=width,
        vocabulary=text.vocab_size,
        cache=2 * text.num_hidden_layers * (getattr(text, "num_key_value_heads", None) or heads) * head_width,
        window=getattr(text, "max_position_embeddings", None),
    )


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
    level = OK if total <= _TIGHT * available else ERROR if here and lasting > available else WARNING
    if level != OK:
        said += "; try use_peft: true, ZeRO-3 or FSDP over several devices, a smaller batch or model"
    report.add(level, "fit.memory", said)


def _device(use_cpu: bool) -> tuple[str, int, bool]:
    """Its name, its bytes, and whether it is where the recipe means to run."""
    import psutil
    import torch

    if not use_cpu and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return properties.name, properties.total_memory, True
    name = "this computer's main memory"
    return name if use_cpu else f"no CUDA device is here; {name}", psutil.virtual_memory().total, use_cpu
