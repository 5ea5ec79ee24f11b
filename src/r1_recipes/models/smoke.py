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
from r1_recipes.models.tokenizer import CHATML

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
        method: the entry point's.
        config: the recipe's settings so far; what it does not set need not be shrunk.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"r1-recipes-smoke-{path.stem}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    overrides: dict[str, Any] = {
        "smoke": True,
        "model_name_or_path": str((build_tiny_vlm if _has_images(config) else build_tiny_model)(folder / "model", config)),
        "output_dir": str(folder / "run"),
        "use_cpu": True,
        "dtype": "float32",
        "hub": "huggingface",
    }
    if method == "generate":
        samples = 2 if float(config.get("temperature", 1)) else 1
        overrides |= {"backend": "transformers", "num_generations": samples, "max_completion_length": 8, "generation_batch_size": 4}
    elif method == "evaluate":
        del overrides["output_dir"]
        overrides |= {"backend": "transformers", "num_samples": min(2, int(config["num_samples"])), "max_completion_length": 8}
    else:
        overrides |= {
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
    if method in ("grpo", "distill"):
        overrides |= {"use_vllm": False, "max_completion_length": 8}
    if method == "grpo":
        overrides["num_generations"] = 2
        # One batch of rollouts for the one step, however many the recipe draws at once.
        overrides |= {key: value for key, value in (("generation_batch_size", 2), ("steps_per_generation", 1)) if key in config}
    if config.get("reward_model"):  # a judge, too: it would need a server
        overrides["reward_model"] = str(_build_tiny_classifier(folder))
    if method == "distill":
        overrides |= {"teacher_model_name_or_path": overrides["model_name_or_path"], "teacher_model_revision": "main"}
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
        "model_init_kwargs": "none",
        "reward_model_prompt": "none",
        "match_judge": "",
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


_TINY_VLM_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _has_images(config: dict[str, Any]) -> bool:
    mixture = config.get("dataset_mixture")
    parts = mixture.get("datasets") if isinstance(mixture, dict) else None
    names = [config.get("mapper"), *(part.get("mapper") for part in parts or () if isinstance(part, dict))]
    return any(name in MAPPERS and MAPPERS[name].images for name in names)


def build_tiny_vlm(folder: Path, config: dict[str, Any]) -> Path:
    """Save a random LLaVA, the tiny model's language half behind a two-layer CLIP of 28 pixels, with its processor.

    Other families (Qwen2-VL) take video too, and their processors need torchvision.
    """
    from transformers import AutoTokenizer, CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, Qwen2Config, set_seed
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava.processing_llava import LlavaProcessor

    build_tiny_model(folder, config)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False)
    tokenizer.chat_template = _TINY_VLM_TEMPLATE
    text = Qwen2Config.from_pretrained(folder)
    text.vocab_size = len(tokenizer)
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    set_seed(0)
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_id=tokenizer.convert_tokens_to_ids("<image>"), image_seq_length=4)
    )
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    pictures = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    LlavaProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_TINY_VLM_TEMPLATE,
    ).save_pretrained(folder)
    return folder


def _build_tiny_classifier(folder: Path) -> Path:
    """A random reward model with the tiny model's tokenizer, which stands in ``folder / "model"``."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    config = AutoConfig.from_pretrained(folder / "model", num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "reward_model")
    AutoTokenizer.from_pretrained(folder / "model").save_pretrained(folder / "reward_model")
    return folder / "reward_model"


def example_rows(args: Any, method: str) -> Dataset | list[Dataset]:
    """The example rows of the recipe's mapper, twice each so that a batch fills; of a mixture, one dataset a part.

    Raises:
        RecipeError: the recipe does not name its mapper, so the rows' schema is unknown without loading the data.
    """
    mixture = args.dataset_mixture
    parts = mixture.get("datasets") if isinstance(mixture, dict) else None
    if isinstance(parts, list):
        return [_examples(args, method, part if isinstance(part, dict) else {}) for part in parts]
    return _examples(args, method, {})


def _examples(args: Any, method: str, part: dict[str, Any]) -> Dataset:
    from datasets import Dataset

    name = part.get("mapper") or args.mapper
    if name == "auto" and not args.prompt_column:
        if method == "sft":
            return Dataset.from_list(list(_CONVERSATIONS) * 2)
        raise RecipeError(f"smoke: mapper is 'auto', which needs the data's columns; name one of {', '.join(MAPPERS)}")
    named = {key: getattr(args, key) for key in COLUMN_KEYS} if name in COLUMNS_BY_KEYS else {}
    mapper = get_mapper("prompt_solution" if name == "auto" else name, **named, **(part.get("mapper_config") or args.mapper_config or {}))
    examples = mapper.example_rows()
    if not examples:
        raise RecipeError(
            f"smoke: mapper {name!r} has no example rows. Fix: examples = ({{…}}, {{…}}) in its class, two rows as the data has them"
        )
    # Columns that the recipe carries along for a reward are in the real rows only; here they are there, and empty.
    columns = dict.fromkeys([*(key for row in examples for key in row), *(args.keep_columns or ())])
    known = {key for row in examples for key in row}
    return Dataset.from_list([{key: row.get(key, None if key in known else "") for key in columns} for row in examples] * 2)
