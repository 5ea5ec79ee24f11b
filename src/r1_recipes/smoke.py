"""``--smoke``: one step of a recipe on nothing but what this package holds. It proves that the recipe's keys fit together."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.errors import RecipeError

if TYPE_CHECKING:
    from datasets import Dataset

# Two conversations in the schema of reasoning SFT sets (messages with a <think> block).
_CONVERSATIONS = (
    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>\n2+2=4\n</think>\n4"}]},
    {"messages": [{"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "<think>\n3+3=6\n</think>\n6"}]},
)
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def smoke_overrides(path: Path, method: str, config: dict[str, Any]) -> dict[str, Any]:
    """Settings that shrink a recipe to one CPU step, written as command-line values; everything else stays the recipe's own.

    Model and run go to a temporary folder of this process, which is gone when the process ends; ``--output_dir`` keeps the run.

    Args:
        path: the recipe file.
        method: ``"grpo"`` or ``"sft"``.
        config: the recipe's settings so far; what it does not set need not be shrunk.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"r1-recipes-smoke-{path.stem}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    overrides: dict[str, Any] = {
        "smoke": True,
        "model_name_or_path": str(build_tiny_model(folder / "model", config)),
        "output_dir": str(folder / "run"),
        "max_steps": 1,
        "logging_steps": 1,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "eval_strategy": "no",
        "dtype": "float32",
        "hub": "huggingface",
    }
    if method == "grpo":
        overrides |= {"use_vllm": False, "num_generations": 2, "max_completion_length": 8}
    disabled = {
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
    }
    return overrides | {key: value for key, value in disabled.items() if key in config}


def build_tiny_model(folder: Path, config: dict[str, Any]) -> Path:
    """Save a random two-layer Qwen2 with a byte-level tokenizer and ChatML; about 30,000 parameters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

    specials = list(dict.fromkeys([*_SPECIAL_TOKENS, *filter(None, [config.get("eos_token"), config.get("pad_token")])]))
    vocabulary = {token: index for index, token in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=specials
    )
    from r1_recipes.runtime import CHATML

    tokenizer.chat_template = CHATML
    set_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
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
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def example_rows(args: Any, method: str) -> Dataset:
    """The example rows of the recipe's mapper, twice each so that a batch fills.

    Raises:
        RecipeError: the recipe does not name its mapper, so the rows' schema is unknown without loading the data.
    """
    from datasets import Dataset

    from r1_recipes.data import MAPPERS, get_mapper

    if args.mapper == "auto" and not args.prompt_column:
        if method == "sft":
            return Dataset.from_list(list(_CONVERSATIONS) * 2)
        raise RecipeError(f"smoke: mapper is 'auto', which needs the data's columns; name one of {', '.join(MAPPERS)}")
    mapper = get_mapper("prompt_solution" if args.mapper == "auto" else args.mapper)
    examples = [dict(row) for row in mapper.examples]
    renamed = {"prompt": args.prompt_column, "solution": args.solution_column, "reasoning": args.reasoning_column}
    if mapper.name == "prompt_solution":
        # One column holds one type: the plain-text example stands for all.
        examples = [{renamed.get(key) or key: value for key, value in examples[0].items()}]
    if mapper.name == "math" and args.prompt_column:
        examples = [{(args.prompt_column if key == "problem" else key): value for key, value in row.items()} for row in examples]
    # Columns that the recipe carries along for a reward are in the real rows only; here they are there, and empty.
    columns = dict.fromkeys([*(key for row in examples for key in row), *(args.keep_columns or ())])
    return Dataset.from_list([{key: row.get(key, "") for key in columns} for row in examples] * 2)
