"""What a model must at least have of a device's memory; its shape comes from its configuration alone."""

from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.processes import world_size
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.models.engine import Dimensions, cache_of, fit_engine
from r1_recipes.recipe import Recipe
from r1_recipes.training.weights import freeze_parameters

_MEASURED = "two runs that were measured peaked at 3.9 and 5.8 times their estimates, docs/preflight.md"
ELSEWHERE = "no CUDA device is here; this computer's main memory"
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
    from transformers.modeling_utils import set_zero3_state
    from trl import get_peft_config

    arguments, trusted = recipe.model, recipe.training.trust_remote_code
    name = arguments.model_name_or_path
    with report.refusals("fit.model", essential=True):
        try:
            config = AutoConfig.from_pretrained(name, revision=arguments.model_revision, trust_remote_code=trusted)
            pictures = (config.architectures or [""])[0].endswith("ForConditionalGeneration")
            kind = AutoModelForImageTextToText if pictures else AutoModelForCausalLM
            dtype = config.dtype if arguments.dtype in (None, "auto") else getattr(torch, arguments.dtype)
            with set_zero3_state(), torch.device("meta"):  # or ZeRO-3 would allocate and share out the weights
                model: Any = kind.from_config(config, dtype=dtype, trust_remote_code=trusted)
                width, output = next(model.parameters()).element_size(), model.get_output_embeddings()
                linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not output)
                if adapters := get_peft_config(arguments):
                    model = get_peft_model(model, adapters)
        except Exception as error:  # an adapter's folder, an unknown architecture, lora_target_modules: the library's own words
            raise RecipeError(f"{recipe.path}: model_name_or_path: {name!r} cannot be built, weights aside: {first_line(error)}") from error
    saved = linear * (width - (0.5 if arguments.load_in_4bit else 1 if arguments.load_in_8bit else width))  # bitsandbytes packs these
    with report.refusals("fit.unfrozen"):
        freeze_parameters(model, recipe.script.unfrozen_parameters)
    weights, trained = list(model.parameters()), [parameter for parameter in model.parameters() if parameter.requires_grad]
    text = config.get_text_config()
    return Shape(
        parameters=sum(parameter.numel() for parameter in weights),
        trainable=sum(parameter.numel() for parameter in trained),
        weight_bytes=sum(parameter.nbytes for parameter in weights) - saved,
        trained_bytes=sum(parameter.nbytes for parameter in trained),
        width=width,
        vocabulary=text.vocab_size,
        cache=cache_of(text),
        window=getattr(text, "max_position_embeddings", None),
    )


@dataclass(frozen=True)
class Parallelism:
    """How a launch spreads a model over processes."""

    processes: int = 1
    stage: int = 0  # what is sharded, as ZeRO counts: from 1 the optimizer, from 2 gradients, 3 (and FSDP) weights
    offloaded: tuple[str, ...] = ()  # parts of the estimate that are not counted, since main memory has (some of) them

    def __str__(self) -> str:
        return f"{('ddp', 'ZeRO-1', 'ZeRO-2', 'ZeRO-3 or FSDP')[self.stage]} over {self.processes} processes"


def parallelism(processes: int | None = None) -> Parallelism:
    """Return what ``accelerate launch`` or ``torchrun`` exported."""
    from accelerate.utils import DeepSpeedPlugin, parse_flag_from_env

    stage, optimizer, weights = 0, False, False
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        plugin = DeepSpeedPlugin()
        stage, none = plugin.zero_stage, (None, "none")
        optimizer, weights = plugin.offload_optimizer_device not in none, plugin.offload_param_device not in none
    elif parse_flag_from_env("ACCELERATE_USE_FSDP"):
        stage, weights = 3, bool(parse_flag_from_env("FSDP_OFFLOAD_PARAMS"))
    return Parallelism(processes or world_size(), stage, _LASTING if weights else _LASTING[2:] if optimizer else ())


def memory(recipe: Recipe, shape: Shape, tokens: int, spread: Parallelism) -> dict[str, float]:
    """Return the bytes that one process's device must at least have; docs/preflight.md has each part's formula."""
    training, grpo = recipe.training, recipe.method == "grpo"
    mixed = training.bf16 or training.fp16
    weights, gradients = shape.weight_bytes, float(shape.trained_bytes)
    if mixed and spread.stage:  # what is trained is then kept in 32 bits, and computed with in 16
        weights, gradients = min(weights, 2 * shape.parameters), 2 * shape.trainable
    master, moments = adam_state(recipe, shape, spread)
    batch, width = training.per_device_train_batch_size, 2 if mixed else shape.width
    completion = training.max_completion_length if grpo else tokens
    at_once = batch * training.steps_per_generation if grpo and not training.use_vllm else 0
    shares = [spread.processes if spread.stage >= stage else 1 for stage in range(4)]
    parts = {
        "weights": weights / shares[3],
        "reference": weights / shares[3] if getattr(training, "beta", 0) and not recipe.model.use_peft else 0,
        "gradients": gradients / shares[2],
        "optimizer": (master + moments * ("paged" not in optimizer_name(training))) / shares[1],
        "logits": batch * completion * shape.vocabulary * width,
        "kv_cache": at_once * (tokens + completion) * shape.cache * width,
    }
    return parts | dict.fromkeys(spread.offloaded, 0)


def optimizer_name(training: Any) -> str:
    return str(getattr(training.optim, "value", training.optim))


def adam_state(recipe: Recipe, shape: Shape, spread: Parallelism) -> tuple[int, int]:
    """Return the bytes of the optimizer's own copy of what is trained, and of Adam's two moments, over all processes."""
    training = recipe.training
    optim = optimizer_name(training)
    copied = spread.stage and (training.bf16 or training.fp16)
    size = 4 * shape.trainable if copied else shape.trained_bytes
    moment = shape.trainable if "8bit" in optim else size
    return size if copied else 0, 2 * moment * ("adam" in optim)


def check_memory(report: Report, recipe: Recipe, shape: Shape, tokens: int, spread: Parallelism) -> None:
    """Compare what stays for the whole run, and that with its largest guest, with the memory of the device."""
    from pandas import DataFrame

    training, parts = recipe.training, memory(recipe, shape, tokens, spread)
    name, available = device(training.use_cpu)
    if getattr(training, "use_vllm", False) and training.vllm_mode == "colocate":
        parts["vllm"] = training.vllm_gpu_memory_utilization * available
    lasting = sum(parts[key] for key in _LASTING)
    total = lasting + max(size for key, size in parts.items() if key not in _LASTING)
    report.show("fit", "GB that a process must at least have, by what they hold:", DataFrame({"GB": parts | {"total": total}}) / 1e9)
    said = (
        f"at least {total / 1e9:.2f} GB a process, {spread} ({_MEASURED}), "
        f"{shape.trainable:,} of {shape.parameters:,} parameters trained; {name} has {available / 1e9:.1f} GB"
    )
    level = OK if total <= 0.85 * available else ERROR if lasting > available and name != ELSEWHERE else WARNING
    if level != OK:
        said += "; try use_peft: true, ZeRO-3 or FSDP over several devices, a smaller batch or model"
    report.add(level, "fit.memory", said)


def check_engine(report: Report, recipe: Recipe, shape: Shape, *, pictures: bool) -> None:
    """Compare the KV cache of the longest sequence with what a colocated engine has for it."""
    training = recipe.training
    if not getattr(training, "use_vllm", False):
        return
    short = fit_engine(recipe, Dimensions(shape.parameters, shape.cache, shape.window), pictures=pictures)
    length = training.vllm_max_model_length
    held = f"{length} tokens" if length else f"the model's whole window, {shape.window} tokens (max_prompt_tokens bounds it)"
    level = OK if short is None else ERROR if short.certain else WARNING
    report.add(level, "fit.engine", short.said if short else f"vllm_max_model_length: one sequence of the engine may have {held}")


def device(use_cpu: bool) -> tuple[str, int]:
    """Return the name and the bytes of the device that the recipe would run on here."""
    import psutil
    import torch

    if not use_cpu and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return properties.name, properties.total_memory
    return "this computer's main memory" if use_cpu else ELSEWHERE, psutil.virtual_memory().total
