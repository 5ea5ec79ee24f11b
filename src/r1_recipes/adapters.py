"""Merge LoRA adapters into their base model, so that any server or framework can load it.

``python -m r1_recipes.adapters outputs/NAME``
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.models.weights import auto_class, copy_processor, repair_generation_config


def merge(run: Path) -> Path:
    """Merge the adapters of a run or checkpoint into the base model.

    The weights are added in fp32, in main memory (4 bytes per parameter), and rounded once to the
    type of the base model's checkpoint. A base model that was quantized to 4 or 8 bits for training
    (QLoRA) is read in its own precision, so its weights differ slightly from those of training.

    Returns:
        The folder ``run / "merged"``.

    Raises:
        RecipeError: The folder has no adapters, or they do not fit the base model.
    """
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import AutoConfig, AutoTokenizer

    base_model = None
    # Without it, Transformers asks on the terminal, and runs the model's code after a "y".
    options = {"trust_remote_code": False}
    try:
        config = PeftConfig.from_pretrained(run)
        base_model = config.base_model_name_or_path
        revision = config.revision or "main"
        base_config = AutoConfig.from_pretrained(base_model, revision=revision, **options)
        dtype = base_config.dtype or torch.float32
        model = auto_class(base_config).from_pretrained(
            base_model, revision=revision, dtype=torch.float32, **options
        )
        adapted = PeftModel.from_pretrained(model, run)
        if tied := adapted.base_model._get_tied_target_modules(model):
            raise RecipeError(
                f"{run}: lora_target_modules: {', '.join(tied)} shares its weights with another "
                "layer, and merging would change both. Fix: serve the adapters beside their base "
                "model (vllm serve --enable-lora), or train with lora_target_modules: [all-linear]"
            )
        # Load them again for PEFT's report. PEFT loads adapters of another depth without an error,
        # and would merge only a part of them.
        loaded = adapted.load_adapter(run, "default")
        if foreign_keys := [*loaded.unexpected_keys, *loaded.missing_keys]:
            raise ValueError(
                f"{len(foreign_keys)} weights are missing in the model or in the adapters, "
                f"for example {foreign_keys[0]}"
            )
        merged = adapted.merge_and_unload(safe_merge=True).to(dtype)
    except RecipeError:
        raise
    # Adapters or model are missing or damaged, or not finite. The library's message says which.
    except Exception as error:
        raise RecipeError(
            f"{run}: the adapters cannot be merged into the base model {base_model!r}: "
            f"{first_line(error)} "
            "Fix: in adapter_config.json, set base_model_name_or_path to the model that they were "
            "trained on, or give a checkpoint of the run"
        ) from error
    repair_generation_config(merged)
    folder = run / "merged"
    with tempfile.TemporaryDirectory(dir=run, prefix=".merging-") as scratch:
        part = Path(scratch) / folder.name
        merged.save_pretrained(part)
        AutoTokenizer.from_pretrained(run, **options).save_pretrained(part)
        copy_processor(base_config, part, str(run), base_model)  # a run with pictures has its own
        if (run / "generation_config.json").is_file():
            shutil.copy(run / "generation_config.json", part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. Exit with 2 if the adapters cannot be merged."""
    parser = argparse.ArgumentParser(
        prog="python -m r1_recipes.adapters",
        description=__doc__.splitlines()[0],
        allow_abbrev=False,
    )
    parser.add_argument(
        "run", type=Path, help="output_dir of a run with use_peft: true, or one of its checkpoints"
    )
    with console.reported_errors():
        console.say(str(merge(parser.parse_args(argv).run)))


if __name__ == "__main__":
    main()
