"""The fit: batches over processes, memory against the devices there are, and versions against the tested ones."""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line, install_hint
from r1_recipes.preflight_checks.findings import Report, listed
from r1_recipes.recipe import Recipe
from r1_recipes.training import checks

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
# Copies of the trained parameters that an optimizer keeps; all others count as Adam, with two.
_STATE_COPIES = {"sgd": 0, "adafactor": 0, "adagrad": 1, "rmsprop": 1, "lion": 1}
_TIGHT = 0.85
_CONSTRAINTS = "constraints.txt"
_PACKAGE = "r1-recipes"
# TRL scores tokens in tiles of this many, by this much of the vocabulary (trl.kernels.chunked_logprob, trl.trainer.utils).
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768
# Tiles in float32 that its arithmetic holds at once where no Triton kernel does it, and copies of a step's scores that sampling makes.
_TILE_COPIES, _SAMPLING_COPIES = 8, 4
# DeepSpeed's reduce_bucket_size, stage3_max_live_parameters and sub_group_size where no file says otherwise, in parameters.
BUCKET, LIVE, SUBGROUP = 500_000_000, 1_000_000_000, 1_000_000_000
# Bytes of a parameter that bitsandbytes packs; in 4 bits with a float32 scale for every 64.
_QUANTIZED = {"load_in_4bit": 0.5 + 4 / 64, "load_in_8bit": 1}
_LASTING = ("weights", "reference", "gradients", "optimizer", "autocast", "buckets")
# Rewards that compare completions with one another in one process; `length` asks the other processes.
_WITHIN_GROUP = ("reward_model",)


def check_batch(report: Report, recipe: Recipe, processes: int) -> None:
    """That groups fill the generation batch and the evaluation batch, over ``processes``; with the arithmetic."""
    _check_eval_batch(report, recipe, processes)
    training = recipe.training
    device, group, steps = training.per_device_train_batch_size, training.num_generations, training.steps_per_generation
    fixed = recipe.settings.get("generation_batch_size")
    step = f"per_device_train_batch_size {device} x {processes} process{'es' * (processes > 1)}"
    batch, how = fixed, f"generation_batch_size {fixed}"
    if not fixed:
        batch = device * processes * steps
        how = f"{step} x {steps} step{'s' * (steps > 1)} = {batch} completions"
    elif fixed % (device * processes):
        report.error(
            "fit.batch",
            f"{how} is no multiple of {step} = {device * processes}; set generation_batch_size: "
            f"{_above(fixed, math.lcm(device * processes, group))}, or leave it out",
        )
        return
    if batch % group:
        if fixed:
            remedy = f"generation_batch_size: {_above(fixed, math.lcm(device * processes, group))}"
        else:
            key = "steps_per_generation" if "steps_per_generation" in recipe.settings else "gradient_accumulation_steps"
            remedy = f"{key}: {_above(steps, group // math.gcd(device * processes, group))}"
        sizes = [size for size in range(2, batch + 1) if batch % size == 0]
        if sizes:
            remedy += f", or num_generations: {min(sizes, key=lambda size: abs(size - group))}"
        report.error(
            "fit.batch",
            f"{how}, which is no multiple of the {group} completions of a group (num_generations): {batch} = {batch // group} x {group} + "
            f"{batch % group}; set {remedy}",
        )
        return
    report.ok("fit.batch", f"{how} = {batch // group} group{'s' * (batch > group)} of {group}")
    share = batch // processes
    torn = [name for name in recipe.script.reward_funcs if name in _WITHIN_GROUP]
    if torn and share % group:
        report.warn(
            "fit.groups",
            f"each of {processes} processes has {share} completions, no multiple of {group}, so groups are torn, and {listed(torn)} "
            f"compares parts of them; make per_device_train_batch_size x steps a multiple of {group}",
        )


def _check_eval_batch(report: Report, recipe: Recipe, processes: int) -> None:
    training = recipe.training
    if training.eval_strategy == "no":
        return
    group, device = training.num_generations_eval or training.num_generations, training.per_device_eval_batch_size
    if device * processes % group:
        report.error(
            "fit.eval_batch",
            f"per_device_eval_batch_size {device} x {processes} process{'es' * (processes > 1)} = {device * processes} completions is no "
            f"multiple of the {group} completions of a group; set per_device_eval_batch_size: {_above(device, group)}",
        )


def _above(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Shape:
    """What of a model counts for memory.

    Attributes:
        parameters: of the model, without adapters.
        trainable: parameters that are trained: all, those that ``unfrozen_parameters`` names, or those of the adapters.
        layers: of the transformer.
        reached: layers that the gradient passes through: from the lowest one that is trained to the last.
        hidden: width of the residual stream.
        intermediate: width of the MLP; of a mixture of experts, of those that a token passes through.
        vocabulary: rows of the output layer.
        embeddings: parameters of the input and the output layer, once where they are tied.
        head_trained: whether the output layer is trained.
        key_value_width: values a token and layer in the KV cache: 2 x key-value heads x head width.
        window: tokens that the model was made for; ``None``: its configuration does not say.
        width: bytes of one parameter in the checkpoint, by its configuration.
    """

    parameters: int
    trainable: int
    layers: int
    reached: int
    hidden: int
    intermediate: int
    vocabulary: int
    embeddings: int
    head_trained: bool
    key_value_width: int
    window: int | None
    width: int


def model_shape(report: Report, recipe: Recipe) -> Shape:
    """The model's shape by its configuration, without its weights; adapters and patterns that fit nothing go to the report.

    Raises:
        RecipeError: there is no configuration, or none of a causal language model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from trl import get_peft_config

    name = recipe.model.model_name_or_path
    try:
        config = AutoConfig.from_pretrained(name, revision=recipe.model.model_revision, trust_remote_code=recipe.training.trust_remote_code)
        pictures = (config.architectures or [""])[0].endswith("ForConditionalGeneration")
        kind = AutoModelForImageTextToText if pictures else AutoModelForCausalLM
        with torch.device("meta"):
            model = kind.from_config(config, trust_remote_code=recipe.training.trust_remote_code)
    except Exception as error:  # an adapter's folder, an unknown architecture: the library's own words
        raise RecipeError(f"{recipe.path}: model_name_or_path: {name!r}: memory cannot be estimated ({first_line(error)[:-1]})") from error
    parameters = sum(p.numel() for p in model.parameters())
    trained = dict(model.named_parameters())
    peft_config = get_peft_config(recipe.model)
    if peft_config is not None:
        from peft import get_peft_model

        try:
            with torch.device("meta"):
                trained = dict(get_peft_model(model, peft_config).named_parameters())
        except ValueError as error:
            report.error(
                "fit.adapter",
                f"{recipe.path}: lora_target_modules {recipe.model.lora_target_modules!r}: {str(error).splitlines()[0].rstrip('.')}. (A "
                "single entry is read as a regular expression for whole names: '.*q_proj'.) Write all-linear, or leave it out",
            )
    patterns = recipe.script.unfrozen_parameters
    if patterns:
        trained = _matching(report, recipe, trained, patterns)
    trained = {name: p for name, p in trained.items() if p.requires_grad}
    text = config.get_text_config()
    heads = text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    output = model.get_output_embeddings()
    ends = {id(layer.weight): layer.weight.numel() for layer in (model.get_input_embeddings(), output) if layer is not None}
    return Shape(
        parameters=parameters,
        trainable=sum(p.numel() for p in trained.values()),
        layers=text.num_hidden_layers,
        reached=_reached(model, trained, text.num_hidden_layers),
        hidden=text.hidden_size,
        intermediate=_intermediate(text),
        vocabulary=text.vocab_size,
        embeddings=sum(ends.values()),
        head_trained=output is not None and any(p is output.weight for p in trained.values()),
        key_value_width=2 * (getattr(text, "num_key_value_heads", None) or heads) * head,
        window=getattr(text, "max_position_embeddings", None),
        width=config.dtype.itemsize if config.dtype else 4,
    )


def _reached(model: Any, trained: dict[str, Any], layers: int) -> int:
    if any(p is model.get_input_embeddings().weight for p in trained.values()):
        return layers
    numbers = [int(found[1]) for name in trained if (found := re.search(r"\.(?:layers|h|blocks)\.(\d+)\.", name))]
    return layers - min(numbers, default=layers)


def _intermediate(config: Any) -> int:
    if getattr(config, "moe_intermediate_size", None):
        return config.moe_intermediate_size * (getattr(config, "num_experts_per_tok", None) or 1)
    return getattr(config, "intermediate_size", None) or 4 * config.hidden_size


def _matching(report: Report, recipe: Recipe, parameters: dict[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """The parameters that a pattern of ``unfrozen_parameters`` matches."""
    matched: dict[str, Any] = {}
    for pattern in patterns:
        try:
            found = {name: p for name, p in parameters.items() if re.search(pattern, name)}
        except re.error as error:
            report.error("fit.unfrozen", f"{recipe.path}: unfrozen_parameters: {pattern!r} is no regular expression: {error}")
            continue
        if not found:
            example = next(reversed(parameters))
            report.error(
                "fit.unfrozen",
                f"{recipe.path}: unfrozen_parameters: {pattern!r} matches none of {len(parameters)} names such as {example!r}",
            )
        matched |= found
    return matched


def window(recipe: Recipe, shape: Shape | None) -> int | None:
    """Tokens that prompt and completion may have together."""
    limits = [shape.window if shape else None]
    if getattr(recipe.training, "use_vllm", False):
        limits.append(recipe.training.vllm_max_model_length)
    return min((limit for limit in limits if limit), default=None)


@dataclass(frozen=True)
class Parallelism:
    """How a launch spreads a model over processes, of which each has a device.

    Attributes:
        processes: without ``zero`` and ``fsdp`` each has the whole model (ddp).
        zero: DeepSpeed's stage; ``None``: no DeepSpeed.
        fsdp: FSDP shards weights, gradients and optimizer state.
        resharded: FSDP frees gathered weights after the forward pass.
        weights_on_host: the computer's memory has the shards of the weights; with FSDP those of gradients and optimizer too.
        optimizer_on_host: it has DeepSpeed's optimizer state, and gradients from stage 2.
    """

    processes: int = 1
    zero: int | None = None
    fsdp: bool = False
    resharded: bool = True
    weights_on_host: bool = False
    optimizer_on_host: bool = False

    def over(self, part: str) -> int:
        """How many processes share ``"weights"``, ``"gradients"`` or ``"optimizer"``."""
        stage = {"optimizer": 1, "gradients": 2, "weights": 3}[part]
        return self.processes if self.fsdp or (self.zero or 0) >= stage else 1

    def __str__(self) -> str:
        if self.zero is None and not self.fsdp:
            return f"ddp over {self.processes} processes" if self.processes > 1 else "one process"
        kind = "FSDP" if self.fsdp else f"ZeRO-{self.zero}"
        return f"{kind} over {self.processes} process{'es' * (self.processes > 1)}"


def parallelism() -> Parallelism:
    """What ``accelerate launch`` or ``torchrun`` exported, as accelerate's own plugins read it."""
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin, parse_flag_from_env

    processes = max(1, int(os.environ.get("WORLD_SIZE", 1)))
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        plugin = DeepSpeedPlugin()
        weights, optimizer = (device not in (None, "none") for device in (plugin.offload_param_device, plugin.offload_optimizer_device))
        return Parallelism(
            processes, zero=plugin.zero_stage, weights_on_host=weights and plugin.zero_stage == 3, optimizer_on_host=optimizer
        )
    if parse_flag_from_env("ACCELERATE_USE_FSDP"):
        plugin = FullyShardedDataParallelPlugin()
        # FSDP 1 has strategies and a flag where FSDP2 has a bool and a class; of its strategies the default, full sharding, is counted.
        offloads = getattr(plugin.cpu_offload, "offload_params", type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy")
        return Parallelism(processes, fsdp=True, resharded=plugin.reshard_after_forward is not False, weights_on_host=offloads)
    return Parallelism(processes)


@dataclass(frozen=True)
class _Sizes:
    """Bytes of one value.

    Attributes:
        frozen: a weight that is not trained, as it is kept; of a quantized base on average.
        trained: a trained weight, and its gradient.
        used: a weight where it is gathered to be used, and the residual stream.
        compute: what matrices are multiplied in.
    """

    frozen: float
    trained: int
    used: int
    compute: int


def _sizes(recipe: Recipe, shape: Shape, spread: Parallelism) -> _Sizes:
    model, training = recipe.model, recipe.training
    mixed = training.bf16 or training.fp16
    width = _BYTES.get(str(model.dtype), shape.width)  # "auto", or none: the checkpoint's own
    if mixed and spread.zero is not None:  # DeepSpeed casts all of the model
        width = trained = used = 2
    else:
        # PEFT keeps adapters in fp32; accelerate makes weights fp32 that FSDP2 trains, and FSDP2 gathers them in 16 bits.
        trained = 4 if model.use_peft or (mixed and spread.fsdp) else width
        used = 2 if mixed and spread.fsdp else width
    frozen = width
    if packed := next((size for key, size in _QUANTIZED.items() if getattr(model, key)), None):
        frozen = packed + (width - packed) * shape.embeddings / shape.parameters
    return _Sizes(frozen, trained, used, 2 if mixed else width)


def memory(recipe: Recipe, shape: Shape, tokens: int, spread: Parallelism | None = None) -> dict[str, float]:
    """An estimate of the memory of one process's device, in bytes.

    On one process, and on each of ddp's, the weights stay: parameters x bytes of ``dtype`` (4-bit: 0.56, 8-bit: 1, but for the
    embeddings), with the reference model's again where ``beta`` is above 0 and there is no adapter; an adapter's x 4. Gradients are
    trainable parameters x the same. The optimizer's states are two more such copies (Adam; 8-bit: 1 byte each; lion, rmsprop, adagrad
    one, SGD and Adafactor none). bf16 or fp16 autocast over fp32 weights keeps 2 bytes a parameter more. ddp sends gradients from a copy.

    DeepSpeed makes all of that 16-bit where ``bf16`` or ``fp16`` is on, and has trained weights in fp32 beside the optimizer's states. A
    process has its share of these from stage 1, of gradients from stage 2, of weights and reference in stage 3. FSDP shares out
    everything, with trained weights in fp32. Beside these comes the largest of

    - training, of a micro-batch of B sequences: what the backward pass needs of each token and layer that it reaches, 32 bytes a hidden
      unit (20 with 16-bit weights) and, in the bytes that are computed with, 4 MLP units and one key and value each, as
      ``torch.autograd.graph.saved_tensors_hooks`` counts for Qwen2 without the attention matrix, which today's kernels do not keep
      (Qwen3 and Gemma 2 keep up to 40 % more); with ``gradient_checkpointing`` one such layer, and of the others their input.
      Beside it the tile of logits at a time that TRL computes, with its arithmetic in float32 where there is no GPU, and the output
      layer's gradient in float32 where it is trained; and the weights that are gathered at a time: two layers and the output layer under
      FSDP, up to 1e9 parameters under ZeRO-3. FSDP adds up whole gradients, in 16 bits, over the micro-batches before a step's last one
      (accelerate's ``no_sync``), unless ``sync_each_batch`` is set;
    - generation by Transformers: the KV cache, completions at once x (prompt + completion) x 2 x layers x key-value heads x head
      width x bytes, and their scores of the next token. ZeRO-3 gathers the whole model for it, and so does FSDP for the reference, which
      TRL does not wrap by layers. With vLLM in the same process, the share of the device that ``vllm_gpu_memory_utilization`` sets aside
      is added by :func:`check_memory`;
    - a step of DeepSpeed's optimizer: the share of the gradients in fp32.

    Args:
        tokens: of the longest prompt (GRPO) or the longest example (SFT).
        spread: one process, if not given.

    Returns:
        ``weights``, ``reference``, ``gradients``, ``optimizer``, ``autocast``, ``buckets``, ``unreduced``, ``gathered``, ``activations``,
        ``logits``, ``whole_model``, ``kv_cache``, ``sampling``, ``step``, ``total``.
    """
    spread = spread or Parallelism()
    size = _sizes(recipe, shape, spread)
    parts = _lasting(recipe, shape, spread, size) | _passing(recipe, shape, spread, size, tokens)
    phases = (("unreduced", "gathered", "activations", "logits"), ("whole_model", "kv_cache", "sampling"), ("step",))
    return {**parts, "total": sum(parts[name] for name in _LASTING) + max(sum(parts[name] for name in phase) for phase in phases)}


def _shards_base(recipe: Recipe, spread: Parallelism) -> bool:
    """Whether weights that are not trained are shared out too; packed in bytes, which is no float, they are not."""
    packed = any(getattr(recipe.model, key) for key in _QUANTIZED)
    return spread.over("weights") > 1 and (not packed or "float" in str(recipe.model.bnb_4bit_quant_storage))


def _has_reference(recipe: Recipe) -> bool:
    return bool(getattr(recipe.training, "beta", 0)) and not recipe.model.use_peft


def _lasting(recipe: Recipe, shape: Shape, spread: Parallelism, size: _Sizes) -> dict[str, float]:
    model, training = recipe.model, recipe.training
    zero, shares = spread.zero is not None, spread.over("weights")
    base = (shape.parameters - (0 if model.use_peft else shape.trainable)) * size.frozen
    own = shape.trainable * size.trained
    sharded = _shards_base(recipe, spread)
    optim = str(getattr(training.optim, "value", training.optim))
    copies = next((count for name, count in _STATE_COPIES.items() if name in optim), 2)
    state = 1 if "8bit" in optim else 4 if zero else size.trained
    parts = {
        "weights": base / shares + own / shares if sharded else base + own / shares,
        "reference": shape.parameters * size.frozen / shares if _has_reference(recipe) else 0,
        "gradients": own / spread.over("gradients"),
        "optimizer": shape.trainable * (state * copies + (4 if zero else 0)) / spread.over("optimizer"),
        "autocast": shape.parameters * 2 if size.compute == 2 and size.frozen == size.used == 4 else 0,
        "buckets": 0,
    }
    if zero:
        parts["buckets"] = BUCKET * size.trained if spread.zero else 0
    elif not spread.fsdp and spread.processes > 1:
        parts["buckets"] = own
    if spread.fsdp and not spread.resharded and _has_reference(recipe):
        parts["reference"] += shape.parameters * size.used
    if spread.weights_on_host:
        parts |= dict.fromkeys(("weights", "reference"), 0)
        parts |= dict.fromkeys(("gradients", "optimizer"), 0) if spread.fsdp else {}
    if spread.optimizer_on_host:
        parts["optimizer"] = 0
        parts["gradients"] = 0 if spread.zero >= 2 else parts["gradients"]
    return parts


def _syncs_each_batch(training: Any) -> bool:
    settings = getattr(training.accelerator_config, "gradient_accumulation_kwargs", None) or {}
    return bool(settings.get("sync_each_batch"))


def _passing(recipe: Recipe, shape: Shape, spread: Parallelism, size: _Sizes, tokens: int) -> dict[str, float]:
    training = recipe.training
    grpo = recipe.method == "grpo"
    completion = training.max_completion_length if grpo else tokens
    batch, sequence = training.per_device_train_batch_size, tokens + completion if grpo else tokens
    layer = shape.hidden * (32 if size.used == 4 else 20) + (4 * shape.intermediate + shape.key_value_width) * size.compute
    kept = shape.reached * layer
    if training.gradient_checkpointing:
        kept = shape.reached * shape.hidden * size.used + layer * bool(shape.reached)
    tile = min(batch * (sequence if training.use_cpu else completion), TILE_TOKENS) * TILE_VOCABULARY
    parts = {
        "unreduced": 0,
        "gathered": 0,
        "activations": batch * sequence * kept,
        "logits": tile * (size.compute + (_TILE_COPIES * 4 if training.use_cpu else 0))
        + (shape.vocabulary * shape.hidden * 4 if shape.head_trained else 0),
        "whole_model": 0,
        "kv_cache": 0,
        "sampling": 0,
        "step": 0,
    }
    if spread.fsdp and training.gradient_accumulation_steps > 1 and not _syncs_each_batch(training):
        reduced = 0 if spread.weights_on_host else shape.trainable * size.trained / spread.over("gradients")
        parts["unreduced"] = max(0, shape.trainable * size.compute - reduced)
    generates = grpo and not training.use_vllm
    if _shards_base(recipe, spread):
        weight = min(size.used, size.frozen)
        if spread.zero == 3:
            parts["gathered"] = min(shape.parameters, LIVE) * weight
            if generates and training.ds3_gather_for_generation:
                parts["whole_model"] = shape.parameters * weight
        else:
            layers = 2 * (shape.parameters - shape.embeddings) / shape.layers
            at_once = layers + shape.vocabulary * shape.hidden if spread.resharded else shape.parameters
            parts["gathered"] = at_once * weight
            if _has_reference(recipe) and spread.resharded:
                parts["whole_model"] = shape.parameters * weight
    if generates:
        at_once = batch * training.steps_per_generation
        parts["kv_cache"] = at_once * sequence * shape.layers * shape.key_value_width * size.compute
        parts["sampling"] = at_once * shape.vocabulary * 4 * _SAMPLING_COPIES
    if spread.zero is not None and not spread.optimizer_on_host:
        share = shape.trainable / spread.over("optimizer")
        parts["step"] = 4 * (min(share, SUBGROUP) if spread.zero == 3 else share)
    return parts


def check_memory(report: Report, recipe: Recipe, shape: Shape, tokens: int, spread: Parallelism | None = None) -> None:
    """The estimate against the memory of a device, or the computer's where there is none."""
    spread = spread or Parallelism()
    parts = memory(recipe, shape, tokens, spread)
    name, available, wanted_here = _device(recipe)
    if getattr(recipe.training, "use_vllm", False) and recipe.training.vllm_mode == "colocate" and wanted_here:
        parts["vllm"] = recipe.training.vllm_gpu_memory_utilization * available
        parts["total"] += parts["vllm"]
    estimate = {key: round(value) for key, value in parts.items()}
    report.facts["memory"] = {"estimate_bytes": estimate, "parallelism": str(spread), "device": name, "bytes": available}
    report.facts["model"] = {"parameters": shape.parameters, "trainable": shape.trainable}
    shown = ", ".join(f"{key.replace('_', ' ')} {_size(value)}" for key, value in parts.items() if value and key != "total")
    how = "" if spread == Parallelism() else f", {spread}"
    said = f"estimate: {_size(parts['total'])} a process{how} ({shown}); {name} has {_size(available)}"
    share = parts["total"] / available
    if share <= _TIGHT:
        report.ok("fit.memory", said)
        return
    biggest = max((key for key in parts if key != "total"), key=parts.get)
    remedy = {
        "logits": "a smaller per_device_train_batch_size with more gradient_accumulation_steps",
        "sampling": "steps_per_generation: 1, or a smaller per_device_train_batch_size",
        "activations": "gradient_checkpointing: true, or a smaller per_device_train_batch_size",
        "kv_cache": "steps_per_generation: 1, or a smaller per_device_train_batch_size",
        "vllm": "a lower vllm_gpu_memory_utilization",
        "reference": "beta: 0, or use_peft: true",
        "unreduced": "accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}, or ZeRO-3",
        "whole_model": "beta: 0, or use_peft: true" if spread.fsdp else "use_vllm: true, or ds3_gather_for_generation: false",
    }.get(biggest, f"use_peft: true, ZeRO-3 or FSDP over {'more' if spread.processes > 1 else 'several'} devices, or a smaller model")
    say = report.error if share > 1 and wanted_here else report.warn
    say("fit.memory", f"{said}, {share:.0%} of it is asked for; the largest part is {biggest.replace('_', ' ')}: try {remedy}")


def _device(recipe: Recipe) -> tuple[str, int, bool]:
    """Its name, its bytes, and whether it is where the recipe means to run."""
    import psutil
    import torch

    if not recipe.training.use_cpu and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return f"{properties.name} (of {torch.cuda.device_count()})", properties.total_memory, True
    total = psutil.virtual_memory().total
    if recipe.training.use_cpu:
        return "this computer's main memory", total, True
    return "no CUDA device is here; this computer's main memory", total, False


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def check_versions(report: Report, recipe: Recipe) -> None:
    """Installed packages against what this package supports, the tested set in ``constraints.txt``, and TRL's range of vLLM."""
    from packaging.requirements import Requirement

    supported = _supported()
    installed = {name: version for name in [*supported, "vllm"] if (version := _version(name)) is not None}
    report.facts["versions"] = installed
    outside = [
        f"{name} {installed.get(name, 'is missing')} (supported: {specifier})"
        for name, specifier in supported.items()
        # A local build such as 2.13.0+cu130 is that version.
        if name not in installed or not specifier.contains(_public(installed[name]), prereleases=True)
    ]
    if outside:
        report.error(
            "fit.versions", f"{len(outside)} of {len(supported)} packages are not as supported: {listed(outside)}; {install_hint('dev')}"
        )
    path = _constraints(recipe.path)
    pins = {}
    if path is not None:
        lines = re.findall(r"^\w.*==.*", path.read_text(encoding="utf-8"), re.MULTILINE)
        pins = {_normal(r.name): str(r.specifier)[2:] for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate()}
    other = [
        f"{name} {installed[name]} (tested: {pins[name]})" for name in installed if pins.get(name, "") not in ("", _public(installed[name]))
    ]
    if other:
        report.warn("fit.constraints", f"{len(other)} versions are not those of {path}, with which the tests ran: {listed(other)}")
    if not outside and not other:
        shown = listed([f"{name} {version}" for name, version in installed.items()], 20)
        report.ok("fit.versions", f"{shown}: as {'tested' if pins else 'supported'}")
    with report.refusals("fit.vllm"):
        checks.check_generation_backend(recipe)
        if getattr(recipe.training, "use_vllm", False):
            _check_vllm(report)


def _check_vllm(report: Report) -> None:
    from trl.import_utils import is_vllm_available

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_vllm_available()
    found = [str(warning.message) for warning in caught if "supports vLLM" in str(warning.message)]
    if found:
        report.error("fit.vllm", f"{found[0]} Install the tested one: {install_hint('vllm')}")
    else:
        report.ok("fit.vllm", f"vLLM {_version('vllm')} is in the range that this TRL supports")


def _supported() -> dict[str, Any]:
    """The packages that this one needs, and which versions of each; none where it runs from a folder without being installed."""
    from packaging.requirements import Requirement

    try:
        texts = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    needed = map(Requirement, texts)
    return {_normal(r.name): r.specifier for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _public(version: str) -> str:
    from packaging.version import Version

    return Version(version).public


def _normal(package: str) -> str:
    return package.lower().replace("_", "-")


def _constraints(recipe: Path) -> Path | None:
    """``constraints.txt`` beside or above the recipe, or in the working directory."""
    folders: Sequence[Path] = [Path.cwd(), *recipe.resolve().parents]
    return next((folder / _CONSTRAINTS for folder in folders if (folder / _CONSTRAINTS).is_file()), None)
