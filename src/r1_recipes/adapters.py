"""LoRA adapters merged into the model that they were trained on, so that any server or framework can load the result.

``python -m r1_recipes.adapters outputs/NAME [--output DIR] [--base MODEL]``; the key ``merge_adapters`` does it at the end of a run.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, first_line

logger = logging.getLogger("r1_recipes.adapters")  # under `python -m` this module is called __main__

MERGED = "merged"
_CONFIG = "adapter_config.json"


def merge(run: Path, output: Path | None = None, base: str | None = None) -> Path:
    """Write the base model with a run's adapters added to its weights, and the run's tokenizer.

    The sum is taken in fp32, in main memory (4 bytes per parameter), and rounded once, to the type of the base model's checkpoint. A base
    model that was trained over in 4 or 8 bits (QLoRA) is read in its own precision: the adapters then meet slightly other weights.

    Args:
        run: a folder with adapters: a run or one of its checkpoints.
        output: must be empty or new; default ``run / "merged"``, which is replaced.
        base: in place of the base model that the adapters' configuration names.

    Raises:
        RecipeError: the adapters cannot be read or merged, their base model cannot be loaded or is not theirs, or ``output`` is not empty.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        config = json.loads((run / _CONFIG).read_text(encoding="utf-8"))
        named, revision = config["base_model_name_or_path"], config.get("revision") or "main"
    except FileNotFoundError as error:
        raise RecipeError(f"{run}: holds no adapters ({_CONFIG} is missing); give the output_dir of a run with use_peft: true") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise RecipeError(f"{run / _CONFIG}: cannot be read ({error!r})") from error
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RecipeError(f"{output}: is there already; choose another folder (--output DIR) or remove it")
    _check_weights(run)
    if base is not None:
        named, revision = base, "main"  # the revision on record is another model's
    try:
        dtype = AutoConfig.from_pretrained(named, revision=revision).dtype or torch.float32
        model = AutoModelForCausalLM.from_pretrained(named, revision=revision, dtype=torch.float32)
    except (OSError, ValueError) as error:
        reason = first_line(error)[:-1]
        raise RecipeError(f"{run}: the base model {named!r} cannot be loaded ({reason}); name another: --base MODEL") from error
    misfit = f"{run}: the adapters do not fit {named!r}"
    try:
        adapted = PeftModel.from_pretrained(model, run)
        # Once more for what PEFT then reports: it loads adapters of another depth without an error, and would merge a part of them.
        loaded = adapted.load_adapter(run, "default")
    except Exception as error:  # other shapes: PEFT's own words
        raise RecipeError(f"{misfit} ({first_line(error)[:-1]})") from error
    for keys, what in ((loaded.unexpected_keys, "weights have no place in it"), (loaded.missing_keys, "places in it get no weights")):
        if keys:
            raise RecipeError(f"{misfit} ({len(keys)} {what}: {keys[0]} …); name the model that they were trained on: --base MODEL")
    try:
        merged = adapted.merge_and_unload(safe_merge=True).to(dtype)
    except Exception as error:  # a kind of adapter that cannot be merged, values that are not finite
        raise RecipeError(f"{run}: the adapters cannot be merged ({first_line(error)[:-1]})") from error
    folder = output or run / MERGED
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        merged.save_pretrained(part)
        AutoTokenizer.from_pretrained(run).save_pretrained(part)
        if (run / "generation_config.json").is_file():
            shutil.copy(run / "generation_config.json", part)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    logger.info("%s + %s -> %s", named, run, folder)
    return folder


def _check_weights(run: Path) -> None:
    """Refuse a torn weights file before the base model is loaded, which takes minutes if it is large."""
    from safetensors import SafetensorError, safe_open

    path = run / "adapter_model.safetensors"
    try:
        with safe_open(path, framework="pt"):
            pass
    except FileNotFoundError:
        return  # PEFT reads adapter_model.bin too, and says what it looked for
    except (SafetensorError, OSError) as error:
        reason = f"{first_line(error)[:-1]}; {path.stat().st_size} bytes"
        remedy = "take one of the run's checkpoints, or train on from it"
        raise RecipeError(f"{path}: cannot be read as safetensors ({reason}); {remedy}") from error


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
