"""After the last step: model, tokenizer and model card in the run directory, or on the hub too."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from r1_recipes.common.files import write_whole
from r1_recipes.common.masking import masked
from r1_recipes.prompts.served_template import serve
from r1_recipes.runs import run_dir
from r1_recipes.runs.run_dir import Run

if TYPE_CHECKING:
    from transformers import Trainer

logger = logging.getLogger(__name__)


def save(run: Run, trainer: Trainer, system_prompt: str) -> None:
    """Save model, tokenizer, state and model card in the run directory; push them if the recipe says so.

    Args:
        system_prompt: what the saved chat template puts before a conversation without a system message.
    """
    script, output_dir = run.recipe.script, run.output_dir
    name = script.dataset_name
    on_hub = name and ":" not in name and script.hub == "huggingface" and not Path(name).expanduser().exists()
    card = {"dataset_name": name if on_hub else None, "tags": ["r1-recipes", run.recipe.method]}
    trainer.save_state()
    # Generation needs the cache that training switches off.
    trainer.model.config.use_cache = True
    serve(trainer.processing_class, system_prompt)
    if trainer.is_world_process_zero() and trainer.model.generation_config is not None:
        # An adapter's folder would lack it, and with it the end of a turn.
        trainer.model.generation_config.save_pretrained(output_dir)
    if run.recipe.training.push_to_hub:
        trainer.push_to_hub(**card)  # saves first
    else:
        trainer.save_model(str(output_dir))
        trainer.create_model_card(output_dir.name, **card)
    if trainer.is_world_process_zero():
        _mend_card(output_dir, masked(run.recipe.model.model_name_or_path))
        run_dir.mark_finished(output_dir)
    logger.info("saved to %s", output_dir)


def _mend_card(output_dir: Path, base: str) -> None:
    """Replace None in TRL's card: a local model, and a base model that is a local folder, have no id on the hub."""
    text = (output_dir / "README.md").read_text(encoding="utf-8")
    text = text.replace("[None](https://huggingface.co/None)", f"`{base}`").replace('model="None"', f'model="{output_dir}"')
    write_whole(output_dir / "README.md", text)
