"""The model of a run: how it is loaded, which weights train in which precision, and how it is
saved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import write_whole
from r1_recipes.common.masking import masked
from r1_recipes.data.mappers import example_rows, get_mapper
from r1_recipes.models.smoke import is_temporary
from r1_recipes.models.weights import copy_processor, repair_generation_config
from r1_recipes.prompts import served
from r1_recipes.recipe import Recipe
from r1_recipes.recipe.types import namespace_value
from r1_recipes.runs import run_dir
from r1_recipes.runs.run_dir import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

logger = logging.getLogger(__name__)

Arguments = dict[str, Any]  # keyword arguments of a TRL trainer


def model_arguments(recipe: Recipe) -> Arguments:
    """Return a TRL trainer's keyword arguments from ``ModelConfig``: model, quantization, PEFT."""
    from trl import get_peft_config, get_quantization_config  # heavy

    model = recipe.model
    adapters = get_peft_config(model)
    if adapters is not None and model.model_revision != "main":
        # adapter_config.json records it, for programs that load or merge the adapters.
        adapters.revision = model.model_revision
    options = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }
    options |= recipe.training.model_init_kwargs or {}
    recipe.training.model_init_kwargs = options
    return {
        "model": model.model_name_or_path,
        "quantization_config": get_quantization_config(model),
        "peft_config": adapters,
    }


@contextlib.contextmanager
def loaded_whole(recipe: Recipe) -> Iterator[None]:
    """Build a trainer with a frozen second model (reference, teacher) that has all its weights.

    With FSDP's ``cpu_ram_efficient_loading``, Transformers fills the weights with zeros in all
    processes but the first of a host (``PreTrainedModel._move_missing_keys_from_meta_to_device``).
    TRL's ``prepare_fsdp`` and Accelerate's ``prepare_model(evaluation_mode=True)`` never send the
    real weights to a second model.
    """
    from accelerate.utils import parse_flag_from_env, patch_environment  # heavy

    second_model = None
    if recipe.method == "distill":
        second_model = "teacher"
    elif recipe.method == "grpo" and not recipe.model.use_peft:
        if recipe.training.beta:
            second_model = "reference model (beta is not 0)"
        if namespace_value(recipe, "teacher_model_kind") in ("ema", "base"):
            second_model = "teacher"
    if not (second_model and parse_flag_from_env("FSDP_CPU_RAM_EFFICIENT_LOADING")):
        yield
        return
    logger.warning(
        "fsdp_cpu_ram_efficient_loading: true would leave the %s without weights, so this run "
        "uses false",
        second_model,
    )
    # Accelerate's plugin reads the variable too, when the trainer creates its Accelerator.
    with patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false"):
        yield


def prepare(recipe: Recipe, trainer: Trainer) -> None:
    """Change the model that TRL loaded, and make its card ask as in training."""
    _hide_secrets(trainer.args)
    _keep_adapters_in_fp32(recipe, trainer.model)
    repair_generation_config(trainer.model)
    freeze_parameters(trainer.model, recipe.script.unfrozen_parameters)
    # Not with adapters: PEFT generates with the inner model, which autocast does not wrap, so
    # layers of two types would meet.
    if recipe.training.use_cpu and recipe.training.bf16 and not recipe.model.use_peft:
        _spare_casts(trainer.model)
    # Checkpoints get this card too.
    trainer.create_model_card = partial(
        _write_card, recipe, trainer, trainer.create_model_card, _question(recipe)
    )


def freeze_parameters(model: PreTrainedModel, patterns: Sequence[str] | None) -> None:
    """Leave only parameters trainable whose name matches one of ``patterns``.

    Call it before training starts.
    """
    if not patterns:
        return
    names = list(dict(model.named_parameters()))
    chosen = set()
    for pattern in patterns:
        where = f"unfrozen_parameters: {pattern!r}"
        try:
            matched = [name for name in names if re.search(pattern, name)]
        except re.error as error:
            raise RecipeError(f"{where} is not a regular expression: {error}") from error
        if not matched:
            raise RecipeError(
                f"{where} matches none of the {len(names)} parameters (for example {names[-1]!r})"
            )
        chosen.update(matched)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name in chosen
    logger.info(
        "training %s of %s parameters",
        f"{model.num_parameters(only_trainable=True):,}",
        f"{model.num_parameters():,}",
    )


def _spare_casts(model: PreTrainedModel) -> None:
    """Convert frozen linear layers to bf16 where that is exact.

    Otherwise autocast would cast them again for every token.
    """
    embeddings = model.get_input_embeddings().weight  # all hidden states have its precision
    for module in model.modules():
        if type(module).__name__ != "Linear" or module.weight is embeddings:
            continue
        if all(
            weight.bfloat16().equal(weight) and not weight.requires_grad
            for weight in module.parameters()
        ):
            module.bfloat16()


def _hide_secrets(training: Any) -> None:
    """Keep secrets out of ``training_args.bin``, which Transformers pickles, and of trackers.

    Everything that needs them has read them by now.
    """
    if training.hub_token:
        os.environ["HF_TOKEN"] = training.hub_token  # a push reads the token from there
        training.hub_token = None
    for field in dataclasses.fields(training):
        value = getattr(training, field.name)
        hidden = masked(value, field.name)
        if hidden != value:
            setattr(training, field.name, hidden)


def _keep_adapters_in_fp32(recipe: Recipe, model: PreTrainedModel) -> None:
    """Undo TRL's bf16 for adapters of a quantized base model.

    At the learning rates of RL, most AdamW steps are too small for bf16.
    """
    if recipe.model.load_in_4bit or recipe.model.load_in_8bit:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()


def save(run: Run, trainer: Trainer) -> None:
    """Save model, tokenizer, state and card, and push them if the recipe says so.

    The saved chat template adds the system prompt of training.
    """
    script = run.recipe.script
    output_dir = run.output_dir
    card = {"dataset_name": None, "tags": ["r1-recipes", run.recipe.method]}
    name = script.dataset_name
    if name and ":" not in name and script.hub == "huggingface":
        card["dataset_name"] = None if os.path.exists(os.path.expanduser(name)) else name
    trainer.save_state()
    # Generation needs the cache, which training switches off.
    trainer.model.config.use_cache = True
    served.add_system_prompt(trainer.processing_class, run.system_prompt)
    generation_config = getattr(trainer.model, "generation_config", None)
    if trainer.is_world_process_zero():
        if not hasattr(trainer.processing_class, "tokenizer"):  # a processor saves itself
            copy_processor(trainer.model.config, output_dir)
        if generation_config is not None:
            # An adapter's folder would lack it, and so the token that ends a turn.
            generation_config.save_pretrained(output_dir)
    if run.recipe.training.push_to_hub:
        trainer.push_to_hub(**card)  # it saves first
    else:
        trainer.save_model(str(output_dir))
        trainer.create_model_card(output_dir.name, **card)
    if trainer.is_world_process_zero():
        run_dir.mark_finished(output_dir)
    if is_temporary(output_dir):
        logger.info("the smoke run passed. Its folder is removed")
    else:
        logger.info("saved to %s", output_dir)


def _question(recipe: Recipe) -> str:
    """Return the question of one of the mapper's invented rows.

    A card is published, and training rows may be private.
    """
    with contextlib.suppress(Exception):  # a mapper without rows, or that needs a configuration
        row = example_rows(recipe.script.mapper)[0]
        return str(get_mapper(recipe.script.mapper)(row)["question"])
    return "A question like those of the training data"


def _write_card(
    recipe: Recipe,
    trainer: Trainer,
    write: Callable,
    question: str,
    *arguments: Any,
    **options: Any,
) -> None:
    """Write TRL's card with None replaced, and let its quick start ask as in training.

    TRL writes None for a local model, which has no id on the hub.
    """
    write(*arguments, **options)
    if not trainer.is_world_process_zero():
        return
    output_dir = Path(trainer.args.output_dir)
    model_name = str(recipe.settings["model_name_or_path"])
    base = f"`{masked(model_name)}`"
    if os.path.exists(os.path.expanduser(model_name)):
        base = "a local checkpoint"
    card = output_dir / "README.md"
    text = card.read_text(encoding="utf-8")
    text = text.replace("[None](https://huggingface.co/None)", base)
    text = text.replace('model="None"', f'model="{output_dir}"')
    asked = f"question = {question!r}"
    text = re.sub(r"(?m)^question = .*$", lambda line: asked, text, count=1)
    heading, notes = "## Training procedure\n", []
    if recipe.script.few_shot:
        count = len(recipe.script.few_shot)
        notes.append(f"Prompts of training start with {count} worked examples. Send them too.")
    if variables := namespace_value(recipe, "chat_template_kwargs"):
        notes.append(f"Variables of the chat template in training: `{variables}`. Send them too.")
    text = text.replace(heading, "\n\n".join([*notes, heading]), 1)
    length = namespace_value(recipe, "max_completion_length") or 1024
    write_whole(card, text.replace("max_new_tokens=128", f"max_new_tokens={length}"))
