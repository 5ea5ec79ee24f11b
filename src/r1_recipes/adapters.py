"""Merge LoRA adapters into their base model, so that any server or framework can load it.

``python -m r1_recipes.adapters outputs/NAME``
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.models.load import auto_class, copy_processor, end_tokens, repair_generation_config


def merge(run: Path) -> Path:
    """Merge the adapters of a run or checkpoint into the base model.

    The weights are added in fp32, in main memory (4 bytes per parameter), and rounded once to the
    type of the base model's checkpoint. A base model that was quantized to 4 or 8 bits for training
    (QLoRA) is read in its own precision, so its weights differ slightly from those of training.

    Returns:
        The folder ``run / "merged"``.

    Raises:
        ValueError: The folder has no adapters, or they are not finite.
    """
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    lora = PeftConfig.from_pretrained(run)
    # Without trust_remote_code, Transformers asks on the terminal, and runs the model's code.
    base = {
        "pretrained_model_name_or_path": lora.base_model_name_or_path,
        "revision": lora.revision or "main",
        "trust_remote_code": False,
    }
    config = AutoConfig.from_pretrained(**base)
    model = auto_class(config).from_pretrained(**base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, run).merge_and_unload(safe_merge=True)
    tokenizer = AutoTokenizer.from_pretrained(run, trust_remote_code=False)
    if (run / "generation_config.json").is_file():  # the token that ends a turn
        merged.generation_config = GenerationConfig.from_pretrained(run)
    else:  # A checkpoint has none, and SFT may have changed that token.
        merged.generation_config.eos_token_id = sorted(
            end_tokens(merged.generation_config, tokenizer)
        )
    repair_generation_config(merged)
    folder = run / "merged"
    merged.to(config.dtype or torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for source in (lora.base_model_name_or_path, str(run)):  # a run with pictures has its own
        copy_processor(config, folder, source)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
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
