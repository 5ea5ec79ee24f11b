"""Random models of a few ten thousand parameters, for smoke runs and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r1_recipes.prompts import CHATML

VLM_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tiny_model(folder: Path, config: dict[str, Any]) -> Path:
    """Save a random two-layer Qwen2 with a byte-level tokenizer and ChatML; its tokens include the recipe's eos and pad token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

    wanted = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", config.get("eos_token"), config.get("pad_token"))
    specials = list(dict.fromkeys(token for token in wanted if token))
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


def build_tiny_vlm(folder: Path, config: dict[str, Any]) -> Path:
    """Save a random LLaVA of 28 pixels with its processor. Other families (Qwen2-VL) take video too, for which they need torchvision."""
    from transformers import AutoTokenizer, CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, Qwen2Config, set_seed
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava.processing_llava import LlavaProcessor

    build_tiny_model(folder, config)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False)
    tokenizer.chat_template = VLM_TEMPLATE
    text = Qwen2Config.from_pretrained(folder)
    text.vocab_size = len(tokenizer)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**sizes, image_size=28, patch_size=14)
    image = tokenizer.convert_tokens_to_ids("<image>")
    set_seed(0)
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=image, image_seq_length=4))
    model.generation_config.update(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder)
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=VLM_TEMPLATE,
    ).save_pretrained(folder)
    return folder


def build_tiny_classifier(folder: Path, model: Path) -> Path:
    """Save a random reward model with the configuration and tokenizer of the tiny model in ``model``."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(model, num_labels=1)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder
