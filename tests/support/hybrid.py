"""A tiny checkpoint in the shape of Qwen3.5: linear attention in three of four layers, and a vision
tower that text never reaches.
"""

from pathlib import Path

PROCESSOR = '{"image_processor_type": "Qwen2VLImageProcessor"}'


def build_hybrid(folder: Path) -> Path:
    """Save a random Qwen3.5 of four layers with a byte-level tokenizer and ChatML."""
    from transformers import (
        AutoTokenizer,
        Qwen3_5Config,
        Qwen3_5ForConditionalGeneration,
        set_seed,
    )

    from r1_recipes.models.smoke import build_tiny_model

    build_tiny_model(folder, {})
    (folder / "model.safetensors").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pictures = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    tokenizer.add_special_tokens(
        {"additional_special_tokens": pictures}, replace_extra_special_tokens=False
    )
    image, video, start, end = tokenizer.convert_tokens_to_ids(pictures)
    set_seed(0)
    config = Qwen3_5Config(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 4,
            "out_hidden_size": 32,
            "num_position_embeddings": 16,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    Qwen3_5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # what the real checkpoint has for its pictures
    (folder / "preprocessor_config.json").write_text(PROCESSOR, encoding="utf-8")
    return folder
