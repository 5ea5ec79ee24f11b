"""LoRA adapters merged into the model that they were trained on, so that any server or framework
can load the result.

``python -m r1_recipes.adapters outputs/NAME``
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.runs.run_dir import check_links


def merge(run: Path) -> Path:
    """Write the base model with the adapters of a run or checkpoint added to its weights to ``run /
    "merged"``; return that folder.

    The sum is taken in fp32, in main memory (4 bytes per parameter), and rounded once, to the type
    of the base model's checkpoint. A base model that was trained over in 4 or 8 bits (QLoRA) is
    read in its own precision: the adapters then meet slightly other weights.
    """
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    check_links(run)
    named = None
    asks = {
        "trust_remote_code": False
    }  # without it Transformers asks on the terminal, and runs a model's code after a "y"
    try:
        config = PeftConfig.from_pretrained(run)
        named, revision = config.base_model_name_or_path, config.revision or "main"
        dtype = AutoConfig.from_pretrained(named, revision=revision, **asks).dtype or torch.float32
        model = AutoModelForCausalLM.from_pretrained(
            named, revision=revision, dtype=torch.float32, **asks
        )
        adapted = PeftModel.from_pretrained(model, run)
        # Once more for what PEFT then reports: it loads adapters of another depth without an error,
        # and would merge a part of them.
        loaded = adapted.load_adapter(run, "default")
        if strangers := [*loaded.unexpected_keys, *loaded.missing_keys]:
            raise ValueError(f"{len(strangers)} weights are in one of them alone: {strangers[0]} …")
        merged = adapted.merge_and_unload(safe_merge=True).to(dtype)
    # No adapters, a torn file, no such model, values that are not finite: the library says which.
    except Exception as error:
        raise RecipeError(
            f"{run}: the adapters cannot be merged into the base model {named!r}: "
            f"{first_line(error)} "
            "Fix: name the one that they were trained on in adapter_config.json "
            "(base_model_name_or_path), or give a checkpoint of the run"
        ) from error
    folder = run / "merged"
    with tempfile.TemporaryDirectory(dir=run, prefix=".merging-") as scratch:
        part = Path(scratch) / folder.name
        merged.save_pretrained(part)
        AutoTokenizer.from_pretrained(run, **asks).save_pretrained(part)
        if (run / "generation_config.json").is_file():
            shutil.copy(run / "generation_config.json", part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    return folder


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 2 if the adapters cannot be merged."""
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
