"""``--smoke``: one step of a recipe on nothing but what this package holds. It proves that the recipe's keys fit together."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import MAPPERS, get_mapper
from r1_recipes.data.load import COLUMN_KEYS, COLUMNS_BY_KEYS
from r1_recipes.models.tiny import build_tiny_classifier, build_tiny_model, build_tiny_vlm

if TYPE_CHECKING:
    from datasets import Dataset

# Two conversations in the schema of reasoning SFT sets (messages with a <think> block).
_CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>\n2+2=4\n</think>\n4"}]},
    {"messages": [{"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "<think>\n3+3=6\n</think>\n6"}]},
]
_ALWAYS = {"smoke": True, "use_cpu": True, "dtype": "float32", "hub": "huggingface"}
_TRAINING = {
    "max_steps": 1,
    "logging_steps": 1,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "bf16": False,
    "fp16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "eval_strategy": "no",
}
_BY_METHOD: dict[str, dict[str, Any]] = {
    "sft": _TRAINING,
    "grpo": {**_TRAINING, "use_vllm": False, "max_completion_length": 8, "num_generations": 2},
    "distill": {**_TRAINING, "use_vllm": False, "max_completion_length": 8, "teacher_model_revision": "main"},
    "generate": {"backend": "transformers", "max_completion_length": 8, "generation_batch_size": 4},
    "evaluate": {"backend": "transformers", "max_completion_length": 8},
}
# What these set costs time, or needs a GPU, a server or a hub. A recipe that does not name one keeps its default.
_IF_SET = {
    "attn_implementation": "sdpa",
    "optim": "adamw_torch",
    "push_to_hub": False,
    "tf32": False,
    "torch_compile": False,
    "use_liger_kernel": False,
    "load_in_4bit": False,
    "load_in_8bit": False,
    "model_revision": "main",
    "max_prompt_tokens": "none",
    "max_solution_tokens": "none",
    "unfrozen_parameters": [""],
    "num_iterations": 1,
    "generation_batch_size": 2,  # one batch of rollouts for the one step, however many the recipe draws at once
    "steps_per_generation": 1,
    "model_init_kwargs": "none",
    "reward_model_prompt": "none",
    "match_judge": "",
}


def smoke_overrides(path: Path, method: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the command-line values that shrink a recipe to one CPU step; everything else stays the recipe's own.

    ``config`` holds the recipe's settings so far. Model and run go to a temporary folder, which is gone when the process ends;
    ``--output_dir`` keeps the run.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"r1-recipes-smoke-{path.stem}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build = build_tiny_vlm if _has_images(config) else build_tiny_model
    model = build(folder / "model", config)
    overrides = {key: value for key, value in _IF_SET.items() if key in config} | _ALWAYS | _BY_METHOD[method]
    overrides["model_name_or_path"] = str(model)
    if method == "evaluate":
        overrides["num_samples"] = min(2, int(config["num_samples"]))
    else:
        overrides["output_dir"] = str(folder / "run")
    if method == "generate":
        overrides["num_generations"] = 2 if float(config.get("temperature", 1)) else 1
    if method == "distill":
        overrides["teacher_model_name_or_path"] = str(model)
    if config.get("reward_model"):  # a judge, too: it would need a server
        overrides["reward_model"] = str(build_tiny_classifier(folder / "reward_model", model))
    return overrides


def _parts(mixture: Any) -> list[dict[str, Any]] | None:
    """Return the parts of a recipe's ``dataset_mixture``; ``None`` if it is none."""
    parts = mixture.get("datasets") if isinstance(mixture, dict) else None
    return [part if isinstance(part, dict) else {} for part in parts] if isinstance(parts, list) else None


def _has_images(config: dict[str, Any]) -> bool:
    names = [part.get("mapper") for part in (config, *(_parts(config.get("dataset_mixture")) or ()))]
    return any(name in MAPPERS and MAPPERS[name].images for name in names)


def example_rows(args: Any, method: str) -> Dataset | list[Dataset]:
    """Return the example rows of the recipe's mapper, twice each so that a batch fills; of a mixture, one dataset a part."""
    parts = _parts(args.dataset_mixture)
    return _examples(args, method, {}) if parts is None else [_examples(args, method, part) for part in parts]


def _examples(args: Any, method: str, part: dict[str, Any]) -> Dataset:
    from datasets import Dataset

    name = part.get("mapper") or args.mapper
    if name == "auto" and not args.prompt_column:
        if method == "sft":
            return Dataset.from_list(_CONVERSATIONS * 2)
        raise RecipeError(f"smoke: mapper is 'auto', which needs the data's columns; name one of {', '.join(MAPPERS)}")
    named = {key: getattr(args, key) for key in COLUMN_KEYS} if name in COLUMNS_BY_KEYS else {}
    mapper = get_mapper("prompt_solution" if name == "auto" else name, **named, **(part.get("mapper_config") or args.mapper_config or {}))
    examples = mapper.example_rows()
    if not examples:
        raise RecipeError(
            f"smoke: mapper {name!r} has no example rows. Fix: examples = ({{…}}, {{…}}) in its class, two rows as the data has them"
        )
    # Columns that the recipe carries along for a reward are in the real rows only; here they are there, and empty.
    known = dict.fromkeys(key for row in examples for key in row)
    kept = {key: "" for key in args.keep_columns or () if key not in known}
    return Dataset.from_list([{**known, **row, **kept} for row in examples] * 2)
