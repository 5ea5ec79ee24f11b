"""After the last step: model, tokenizer and model card in the run directory, merged adapters, the hub."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import write_whole
from r1_recipes.common.masking import masked
from r1_recipes.prompts.served_template import serve
from r1_recipes.recipe import Recipe
from r1_recipes.runs import run_dir
from r1_recipes.runs.run_dir import Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Trainer

logger = logging.getLogger(__name__)

# Variables by which launchers tell processes of their run; a process of its own must not have them.
_LAUNCHER = ("ACCELERATE_", "FSDP_", "MASTER_", "TORCHELASTIC_", "PET_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")


def save(run: Run, trainer: Trainer, tokenizer: PreTrainedTokenizerBase, system_prompt: str) -> None:
    """Save model, tokenizer, state and model card in the run directory.

    Args:
        system_prompt: what the saved chat template puts before a conversation without a system message.

    Raises:
        RecipeError: the saved run could not be merged or pushed; the same command tries that again.
    """
    recipe = run.recipe
    trainer.save_state()
    # Generation needs the cache that training switches off.
    trainer.model.config.use_cache = True
    for part in (trainer.processing_class, tokenizer):  # one and the same, unless rows have pictures
        serve(part, system_prompt)
    trainer.save_model(str(run.output_dir), _internal_call=True)  # else it would push now, before the rest is there
    if trainer.accelerator.is_main_process:
        if trainer.model.generation_config is not None:  # an adapter's folder would lack it, and with it the end of a turn
            trainer.model.generation_config.save_pretrained(run.output_dir)
        tokenizer.save_pretrained(run.output_dir)
        trainer.create_model_card(dataset_name=_hub_dataset(recipe), tags=["r1-recipes", recipe.method])
        _name_in_card(run)
        if recipe.script.merge_adapters:
            _merge_adapters(run.output_dir, recipe.training)
    if recipe.training.push_to_hub:
        try:
            trainer.push_to_hub(dataset_name=_hub_dataset(recipe))
        except Exception as error:  # the network, a token, a quota: the hub's own words
            raise RecipeError(
                f"push_to_hub: the model is saved in {run.output_dir}, not pushed: {first_line(error)} {try_again(recipe.training)}"
                f"hf upload {recipe.training.hub_model_id or 'NAME'} {run.output_dir}"
            ) from error
    if trainer.accelerator.is_main_process:
        run_dir.mark_finished(run.output_dir)
    logger.info("saved to %s", run.output_dir)


def try_again(training: Any) -> str:
    """Return the words that introduce the command which tries again what failed after the last step."""
    if training.save_strategy == "no" or training.save_only_model:
        return "There is no checkpoint to continue from (save_strategy, save_only_model), so only this tries again: "
    return "The same command continues from the newest checkpoint and tries again; or: "


def _merge_adapters(folder: Path, training: Any) -> None:
    """Merge in a process of its own: under ZeRO-3, Transformers would load only this process's part of the base model.

    Raises:
        RecipeError: it fails; the run itself is saved.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(_LAUNCHER)} | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-m", "r1_recipes.adapters", str(folder)], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RecipeError(
            f"merge_adapters: the run is saved, its adapters are not merged: {done.stderr.strip()[-2000:]} {try_again(training)}"
            f"python -m r1_recipes.adapters {folder}"
        )
    logger.info("merged: %s", done.stdout.strip().rpartition("\n")[2])


def _hub_dataset(recipe: Recipe) -> str | None:
    """Return the data set if a model card may link it; a local path or a generated task has no page."""
    name = recipe.script.dataset_name
    on_hub = name and ":" not in name and recipe.script.hub == "huggingface" and not Path(name).expanduser().exists()
    return name if on_hub else None


def _name_in_card(run: Run) -> None:
    """Replace None in TRL's card: this model, and a base model that is a local folder, have no id on the hub."""
    card = run.output_dir / "README.md"
    text = card.read_text(encoding="utf-8")
    base = masked(run.recipe.model.model_name_or_path)
    text = text.replace("[None](https://huggingface.co/None)", f"`{base}`").replace('model="None"', f'model="{run.output_dir}"')
    write_whole(card, text.replace("# Model Card for None", f"# Model Card for {run.output_dir.name}"))
