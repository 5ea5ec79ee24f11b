"""Estimate the least memory that a run needs on each device, from the model's configuration."""

from dataclasses import dataclass

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report
from r1_recipes.models.engine import empty_model, gpu_memory, window_of
from r1_recipes.recipe import Recipe
from r1_recipes.training.weights import freeze_parameters


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
    from peft import get_peft_model
    from trl import get_peft_config

    with report.refusals("fit.model", essential=True):
        try:
            config, model = empty_model(recipe)
            if adapters := get_peft_config(recipe.model):
                model = get_peft_model(model, adapters)
        except Exception as error:  # For example lora_target_modules.
            problem = f"cannot build {recipe.model.model_name_or_path!r}: {first_line(error)}"
            raise RecipeError(f"{recipe.path}: model_name_or_path: {problem}") from error
    with report.refusals("fit.unfrozen"):
        freeze_parameters(model, recipe.script.unfrozen_parameters)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    if recipe.model.load_in_4bit:
        weight_bytes = parameters * 0.5
    elif recipe.model.load_in_8bit:
        weight_bytes = parameters
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trainable = sum(parameter.numel() for parameter in trained)
    trained_bytes = sum(parameter.nbytes for parameter in trained)
    return Shape(
        parameters=parameters,
        window=window_of(config),
        trainable=trainable,
        weight_bytes=weight_bytes,
        trained_bytes=trained_bytes,
    )


def training_state(recipe: Recipe, shape: Shape, shards: int) -> dict[str, float]:
    """Return the bytes of weights, gradients and optimizer states, over all shards."""
    training, trainable = recipe.training, shape.trainable
    weights = shape.weight_bytes
    gradients = moment = shape.trained_bytes
    optimizer = 0
    if shards > 1 and (training.bf16 or training.fp16):  # ZeRO and FSDP train a copy in fp32.
        weights = min(weights, 2 * shape.parameters)
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

    return psutil.virtual_memory().total if recipe.training.use_cpu else gpu_memory()


# The usable share of a device's memory. Activations, which are not counted, need the rest.
_FULL = 0.85


def check_memory(report: Report, recipe: Recipe, shape: Shape, shards: int) -> None:
    """Compare the memory needed on each device with the memory that vLLM leaves."""
    training = recipe.training
    state = training_state(recipe, shape, shards)
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
    share = training.vllm_gpu_memory_utilization if shares_device(recipe) else 0
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


def shares_device(recipe: Recipe) -> bool:
    """Return whether a vLLM engine runs in the training processes."""
    return getattr(recipe.training, "use_vllm", False) and recipe.training.vllm_mode == "colocate"
