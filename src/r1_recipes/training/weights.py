"""The model of a run: what is loaded, what is trained, and in which precision."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.masking import masked
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

logger = logging.getLogger(__name__)


def model_arguments(recipe: Recipe) -> dict[str, Any]:
    """Return the keyword arguments of a TRL trainer that come from ``ModelConfig``: name, quantization and PEFT."""
    from trl import get_peft_config, get_quantization_config  # heavy

    model, training = recipe.model, recipe.training
    adapters = get_peft_config(model)
    if adapters is not None and model.model_revision != "main":
        adapters.revision = model.model_revision  # into adapter_config.json, for whoever loads or merges them
    options = {"revision": model.model_revision, "attn_implementation": model.attn_implementation, "dtype": model.dtype}
    training.model_init_kwargs = {**options, **(training.model_init_kwargs or {})}
    return {
        "model": model.model_name_or_path,
        "quantization_config": get_quantization_config(model),
        "peft_config": adapters,
    }


def prepare(recipe: Recipe, trainer: Trainer) -> None:
    """Bring a new trainer into the state that the recipe asks for."""
    _hide_secrets(trainer.args)
    _keep_adapters_in_fp32(recipe, trainer.model)
    _mend_generation_config(trainer.model)
    freeze_parameters(trainer.model, recipe.script.unfrozen_parameters)


def freeze_parameters(model: PreTrainedModel, patterns: Sequence[str] | None) -> None:
    """Leave only the parameters trainable whose name matches one of ``patterns``; call it before training starts.

    Raises:
        RecipeError: a pattern is no regular expression, or matches nothing.
    """
    if not patterns:
        return
    names, chosen = [name for name, _ in model.named_parameters()], set()
    for pattern in patterns:
        try:
            matched = {name for name in names if re.search(pattern, name)}
        except re.error as error:
            raise RecipeError(f"unfrozen_parameters: {pattern!r} is no regular expression: {error}") from error
        if not matched:
            raise RecipeError(f"unfrozen_parameters: {pattern!r} matches none of the {len(names)} parameters (such as {names[-1]!r})")
        chosen |= matched
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name in chosen
    trained = model.num_parameters(only_trainable=True)
    logger.info("training %s of %s parameters", f"{trained:,}", f"{model.num_parameters():,}")


def _hide_secrets(training: Any) -> None:
    """Keep secrets out of ``training_args.bin``, which Transformers pickles, and out of trackers; everything has read them by now."""
    if training.hub_token:
        os.environ["HF_TOKEN"] = training.hub_token  # pushing takes it from there
        training.hub_token = None
    for field in dataclasses.fields(training):
        value = getattr(training, field.name)
        hidden = masked(value, field.name)
        if hidden != value:
            setattr(training, field.name, hidden)


def _mend_generation_config(model: PreTrainedModel) -> None:
    """Mend sampling values beside ``do_sample: false``, which Transformers would refuse to save after the last step."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return
    try:
        config.validate(strict=True)
    except ValueError as error:
        config.do_sample = True
        logger.warning("the model's generation_config.json contradicts itself (%s); saved with do_sample: true", first_line(error)[:-1])


def _keep_adapters_in_fp32(recipe: Recipe, model: PreTrainedModel) -> None:
    """Undo TRL's bf16 for adapters of a quantized base: at the rates of RL most of AdamW's steps are too small for it."""
    if recipe.model.load_in_4bit or recipe.model.load_in_8bit:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
