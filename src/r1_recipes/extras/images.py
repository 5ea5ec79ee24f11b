"""Questions about a picture: the mapper ``image_question``, the processor, and a tiny model."""

import io
import re
from pathlib import Path
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.mappers import MappedRow, SkipRow, register_mapper, text
from r1_recipes.models.load import from_pretrained
from r1_recipes.models.smoke import build_tiny_model
from r1_recipes.prompts.formats import boxes
from r1_recipes.recipe import Recipe

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@register_mapper("image_question", "image", "problem", "solution")
def image_question(
    row: dict[str, Any],
    image_column: str = "image",
    question_column: str = "problem",
    solution_column: str = "solution",
    template: str = "{question}",
    max_pixels: int | None = None,
) -> MappedRow:
    """Map pictures with a question and a short answer, for a vision-language model.

    The default columns are those of lmms-lab/multimodal-open-r1-8k-verified. ``<answer>`` tags and
    a box are removed from the reference answer. TRL puts the picture, in RGB, before the text of
    the prompt. The picture is a ``datasets.Image``, ``{"bytes": …}``, a path, or a list of one of
    these. Those with more than ``max_pixels`` are scaled down. ``template`` is the text around the
    question.
    """
    # Many rows mark the picture's place, and TRL adds a mark of its own.
    question = text(row, question_column).replace("<image>", "").strip()
    solution = text(row, solution_column)
    solution = (_ANSWER.findall(solution) or [solution])[-1].strip()
    return {
        "question": template.replace("{question}", question),
        "solution": next(filter(None, boxes(solution)[::-1]), solution),
        "image": _picture(row.get(image_column), image_column, max_pixels),
    }


image_question.examples = tuple(
    {
        "image": {"bytes": b"P5 8 8 255\n" + bytes([grey]) * 64, "path": None},
        "problem": "How many pixels wide is the square?",
        "solution": "<answer>8</answer>",
        "original_question": "Width?",
        "original_answer": "Answer: 8",
    }
    for grey in (128, 255)
)


def _picture(value: Any, column: str, max_pixels: int | None) -> Any:
    """Return a row's picture in RGB on white, with at most ``max_pixels``."""
    from PIL import Image, ImageOps

    try:
        (value,) = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            value = io.BytesIO(value["bytes"]) if value.get("bytes") else value["path"]
        picture = value if isinstance(value, Image.Image) else Image.open(value)
        # A phone writes how it was held beside the picture.
        drawn = ImageOps.exif_transpose(picture).convert("RGBA")
    except Exception:  # empty, torn, not a picture, or so large that Pillow refuses it
        raise SkipRow(f"the picture in column {column!r} cannot be read") from None
    # On white: black lines on nothing would be black on black.
    picture = Image.new("RGBA", drawn.size, "white")
    picture.alpha_composite(drawn)
    picture = picture.convert("RGB")
    width, height = picture.size
    if max_pixels and width * height > max_pixels:
        scale = (max_pixels / (width * height)) ** 0.5
        picture = picture.resize((max(1, int(width * scale)), max(1, int(height * scale))))
    return picture


def load_processor(recipe: Recipe, tokenizer: Any) -> Any:
    """Return the processor of a vision-language model, with this tokenizer and chat template."""
    processor = from_pretrained("AutoProcessor", recipe)
    if not hasattr(processor, "image_token"):
        raise RecipeError(
            f"{recipe.path}: model_name_or_path: the rows have pictures, which "
            f"{recipe.model.model_name_or_path!r} cannot read"
        )
    tokenizer.padding_side = "left"  # pictures are counted from the end of the prompt
    processor.tokenizer = tokenizer
    processor.chat_template = tokenizer.chat_template
    return processor


TINY_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' "
    "else part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tiny_vlm(folder: Path, config: dict[str, Any]) -> Path:
    """Save a random LLaVA for images of 28 pixels, with its processor.

    Other families, such as Qwen2-VL, also take video and need torchvision for it.
    """
    import transformers
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava.processing_llava import LlavaProcessor

    build_tiny_model(folder, config)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False
    )
    tokenizer.chat_template = TINY_TEMPLATE
    language = transformers.Qwen2Config.from_pretrained(folder)
    language.vocab_size = len(tokenizer)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=28,
        patch_size=14,
    )
    both = transformers.LlavaConfig(
        vision_config=vision,
        text_config=language,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=4,
    )
    transformers.set_seed(0)
    model = transformers.LlavaForConditionalGeneration(both)
    model.generation_config.update(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TINY_TEMPLATE,
    ).save_pretrained(folder)
    return folder
