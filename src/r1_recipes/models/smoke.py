"""Run one step of a recipe on a few rows with a tiny random model, for ``--smoke``.

It proves that the keys fit together.
"""

import atexit
import inspect
import shutil
import tempfile
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import shipped
from r1_recipes.common.messages import say_once
from r1_recipes.common.plugins import NAMES
from r1_recipes.data.load import COLUMN_KEYS, COLUMNS_BY_KEYS
from r1_recipes.data.mappers import MAPPERS, example_rows
from r1_recipes.data.sources import load_rows
from r1_recipes.prompts import CHATML, get_response_format
from r1_recipes.recipe.types import RecipeArguments, Settings, argument_types

# What a run's smallest step needs; a method takes the keys that it has.
_SMALL: Settings = {
    "smoke": True,
    "use_cpu": True,
    "use_vllm": False,
    "backend": "transformers",
    "dtype": "float32",
    "bf16": False,
    "fp16": False,
    "hub": "huggingface",
    "max_steps": 1,
    "logging_steps": 1,
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 2,
    "num_generations": 2,
    "num_samples": 2,
    "max_completion_length": 8,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "eval_strategy": "no",
    "report_to": "none",
}
# These features cost time, or need a GPU, a server or a hub. A recipe that does not set a key keeps
# its default.
_IF_SET = {
    "push_to_hub": False,
    "tf32": False,
    "torch_compile": False,
    "use_liger_kernel": False,
    "load_in_4bit": False,
    "load_in_8bit": False,
    "max_prompt_tokens": "none",
    "model_init_kwargs": "none",
    "chat_template_kwargs": "none",
    "num_iterations": 1,
    "temperature": 1.0,
    "steps_per_generation": 1,
    "attn_implementation": "sdpa",
    "optim": "adamw_torch",
    "model_revision": "main",
    "unfrozen_parameters": [""],
    # One batch of rollouts for the single step, even if the recipe generates more at once
    "generation_batch_size": 2,
    "teacher_model_revision": "main",
}
_PREFIX = "r1-recipes-smoke-"  # of folders that are removed at the end of this process


def smoke_overrides(path: Path, method: str, config: Settings) -> Settings:
    """Return command-line values that shrink a recipe to one step on the CPU.

    All other keys stay as in the recipe. Model and run go to a temporary folder, which is removed
    when the process ends. ``--output_dir`` keeps the run.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{path.stem}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build = build_tiny_model
    if "image" in getattr(MAPPERS.get(str(config.get("mapper"))), "columns", ()):
        from r1_recipes.extras.images import build_tiny_vlm as build
    model = str(build(folder / "model", config))
    keys = {field.name for part in argument_types(method) for field in fields(part)}
    small = {
        **_SMALL,
        "model_name_or_path": model,
        "teacher_model_name_or_path": model,
        "output_dir": str(folder / "run"),
    }
    overrides = {key: value for key, value in small.items() if key in keys}
    overrides |= {key: value for key, value in _IF_SET.items() if key in config}
    if entries := config.get("reward_models"):  # also replaces judges, which need a server
        from r1_recipes.extras.judges import build_tiny_classifier

        tiny = {"model": str(build_tiny_classifier(folder / "judge", model)), "prompt": None}
        overrides["reward_models"] = {
            name: entry | tiny if isinstance(entry, dict) else entry
            for name, entry in entries.items()
        }
    return overrides


def is_temporary(output_dir: Path) -> bool:
    """Return whether a run's folder is a smoke run's own folder, removed at the process's end."""
    return output_dir.parent.name.startswith(_PREFIX)


def smoke_rows(args: RecipeArguments, method: str, part: Settings | None = None) -> Any:
    """Return a local file's short rows, or the mapper's examples.

    Each row comes twice, so that a batch fills. For a mixture, return one dataset per part.
    """
    if args.dataset_mixture and part is None:
        return [smoke_rows(args, method, each) for each in args.dataset_mixture.get("datasets", ())]
    part = part or {}
    source = str(part.get("id") or args.dataset_name or "")
    generated = source.partition(":")[0] in NAMES["dataset"]
    if generated or (source and shipped(Path(source)).exists()):
        rows = load_rows(
            source,
            part.get("split") or args.dataset_train_split,
            config=part.get("config") or args.dataset_config,
            task_config=part.get("task_config") or args.task_config,
        )
        first = range(min(200, len(rows)))
        short = sorted(first, key=lambda index: len(str(rows[index])))[:16]
        return rows.select(sorted(short) * 2)
    from datasets import Dataset

    name = part.get("mapper") or args.mapper
    if name == "auto":
        whole = method == "sft" and not args.prompt_column
        name = "conversations" if whole else "prompt_solution"
        name = "environment" if args.environment else name
    say_once(f"smoke: {source} is not here, so the examples of mapper {name} take its place")
    examples = example_rows(name)
    if name == "generated":  # responses are in the recipe's format
        fmt = get_response_format(args.response_format or "think_answer")
        examples = [
            {
                "question": f"What is {n} + {n}?",
                "response": fmt.render(f"{n} and {n} is {2 * n}.", str(2 * n)),
                "solution": str(2 * n),
                "pass_rate": 0.5,
            }
            for n in (2, 3)
        ]
    if not examples:
        fix = "NAME.examples = [{…}, {…}] behind the function, two rows in the shape of the data"
        raise RecipeError(f"smoke: mapper {name!r} has no example rows. Fix: {fix}")
    examples = [_renamed(row, args, name, part.get("mapper_config")) for row in examples]
    # The examples lack columns that a reward reads and only the real data has. Add them, empty.
    empty = dict.fromkeys(args.keep_columns or (), "") | dict.fromkeys(chain(*examples))
    return Dataset.from_list([empty | row for row in examples] * 2)


def _renamed(row: Settings, args: RecipeArguments, name: str, config: Any) -> Settings:
    keys = {key: getattr(args, key) for key in COLUMN_KEYS if name in COLUMNS_BY_KEYS}
    keys |= config or args.mapper_config or {}
    names = {}
    for key, parameter in inspect.signature(MAPPERS.resolve(name)).parameters.items():
        if key.endswith("_column") and keys.get(key):
            names[parameter.default or key.removesuffix("_column")] = keys[key]
    return {names.get(column, column): value for column, value in row.items()}


def build_tiny_model(folder: Path, config: Settings) -> Path:
    """Save a random two-layer Qwen2 with a byte-level tokenizer and ChatML.

    Its special tokens include the recipe's eos and pad tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

    asked = [token for key in ("eos_token", "pad_token") if (token := config.get(key))]
    specials = list(dict.fromkeys(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *asked]))
    tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=specials,
    )
    tokenizer.chat_template = CHATML
    if config.get("tools") or config.get("environment"):
        from trl.chat_template_utils import qwen3_instruct_2507_chat_template

        tokenizer.chat_template = qwen3_instruct_2507_chat_template
    set_seed(0)
    qwen = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(qwen).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
