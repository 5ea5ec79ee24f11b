"""LoRA adapters merged into the model that they were trained on, so that any server or framework can load the result.

``python -m r1_recipes.adapters outputs/NAME [--output DIR] [--base MODEL]``
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, first_line

logger = logging.getLogger("r1_recipes.adapters")  # under `python -m` this module is called __main__

MERGED = "merged"
_CONFIG = "adapter_config.json"


def merge(run: Path, output: Path | None = None, base: str | None = None) -> Path:
    """Write the base model with the adapters of a run or checkpoint added to its weights, and the run's tokenizer; return the folder.

    The sum is taken in fp32, in main memory (4 bytes per parameter), and rounded once, to the type of the base model's checkpoint. A base
    model that was trained over in 4 or 8 bits (QLoRA) is read in its own precision: the adapters then meet slightly other weights.

    Args:
        output: must be empty or new; default ``run / "merged"``, which is replaced.
        base: in place of the base model that the adapters' configuration names.

    Raises:
        RecipeError: the adapters or the base model cannot be loaded, do not fit, or ``output`` is not empty.
    """
    import torch
    from peft import PeftModel
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if not (run / _CONFIG).is_file():
        raise RecipeError(f"{run}: holds no adapters ({_CONFIG} is missing); give the output_dir of a run with use_peft: true")
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RecipeError(f"{output}: is there already; choose another folder (--output DIR) or remove it")
    folder, weights = output or run / MERGED, run / "adapter_model.safetensors"
    named, revision = base, "main"  # the revision on record is another model's
    try:
        if named is None:
            config = json.loads((run / _CONFIG).read_text(encoding="utf-8"))
            named, revision = config["base_model_name_or_path"], config.get("revision") or "main"
        if weights.exists():  # a torn file is found before a large base model is loaded
            with safe_open(weights, framework="pt"):
                pass
        dtype = AutoConfig.from_pretrained(named, revision=revision).dtype or torch.float32
        model = AutoModelForCausalLM.from_pretrained(named, revision=revision, dtype=torch.float32)
        adapted = PeftModel.from_pretrained(model, run)
        # Once more for what PEFT then reports: it loads adapters of another depth without an error, and would merge a part of them.
        loaded = adapted.load_adapter(run, "default")
        if strangers := [*loaded.unexpected_keys, *loaded.missing_keys]:
            raise ValueError(f"{len(strangers)} weights are in one of them alone: {strangers[0]} …")
        merged = adapted.merge_and_unload(safe_merge=True).to(dtype)
    except Exception as error:  # a torn file, no such model, other shapes, values that are not finite: the library's words say which
        raise RecipeError(
            f"{run}: the adapters cannot be merged into the base model {named!r}: {first_line(error)} "
            "Fix: name the model that they were trained on (--base MODEL), or give one of the run's checkpoints"
        ) from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".merging-") as scratch:
        part = Path(scratch) / folder.name
        merged.save_pretrained(part)
        AutoTokenizer.from_pretrained(run).save_pretrained(part)
        if (run / "generation_config.json").is_file():
            shutil.copy(run / "generation_config.json", part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    logger.info("%s + %s -> %s", named, run, folder)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 2 if the adapters cannot be merged."""
    parser = argparse.ArgumentParser(prog="python -m r1_recipes.adapters", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("run", type=Path, help="output_dir of a run with use_peft: true, or one of its checkpoints")
    parser.add_argument("--output", type=Path, help=f"where the model goes (default: {MERGED} in the run's folder)")
    parser.add_argument("--base", help="the base model, where it has moved since the run")
    options = parser.parse_args(argv)
    with console.reported_errors():
        console.say(str(merge(options.run, options.output, options.base)))


if __name__ == "__main__":
    main()
