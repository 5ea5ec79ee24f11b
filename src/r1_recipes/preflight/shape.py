"""What of a model counts for memory, by its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.preflight.findings import ERROR, Report
from r1_recipes.recipe.load import Recipe
from r1_recipes.training.weights import freeze_parameters

# Bytes of a packed weight; bitsandbytes packs linear layers but for the output layer.
_PACKED = {"load_in_4bit": 0.5, "load_in_8bit": 1}


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
    """Count a model that is built without its weights; adapters and patterns that fit nothing go to the report.

    Raises:
        RecipeError: there is no configuration, or none of a model that generates text.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from trl import get_peft_config

    arguments, trusted = recipe.model, recipe.training.trust_remote_code
    name = arguments.model_name_or_path
    try:
        config = AutoConfig.from_pretrained(name, revision=arguments.model_revision, trust_remote_code=trusted)
        pictures = (config.architectures or [""])[0].endswith("ForConditionalGeneration")
        kind = AutoModelForImageTextToText if pictures else AutoModelForCausalLM
        dtype = config.dtype if arguments.dtype in (None, "auto") else getattr(torch, arguments.dtype)
        with torch.device("meta"):
            model: Any = kind.from_config(config, dtype=dtype, trust_remote_code=trusted)
    except Exception as error:  # an adapter's folder, an unknown architecture: the library's own words
        raise RecipeError(f"{recipe.path}: model_name_or_path: {name!r}: memory cannot be estimated ({first_line(error)[:-1]})") from error
    width, output = next(model.parameters()).element_size(), model.get_output_embeddings()
    packed = next((size for key, size in _PACKED.items() if getattr(arguments, key)), width)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not output]
    saved = sum(layer.weight.numel() for layer in layers) * (width - packed)
    if adapters := get_peft_config(arguments):
        from peft import get_peft_model

        try:
            with torch.device("meta"):
                model = get_peft_model(model, adapters)
        except ValueError as error:
            report.add(
                ERROR, "fit.adapter", f"{recipe.path}: lora_target_modules: {first_line(error)[:-1]} Fix: all-linear, or leave it out"
            )
    with report.refusals("fit.unfrozen"):
        freeze_parameters(model, recipe.script.unfrozen_parameters)
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    text = config.get_text_config()
    heads = text.num_attention_heads
    head_width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Shape(
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in trained),
        weight_bytes=sum(p.nbytes for p in parameters) - saved,
        trained_bytes=sum(p.nbytes for p in trained),
        width=width,
        vocabulary=text.vocab_size,
        cache=2 * text.num_hidden_layers * (getattr(text, "num_key_value_heads", None) or heads) * head_width,
        window=getattr(text, "max_position_embeddings", None),
    )
