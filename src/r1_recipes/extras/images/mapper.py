"""Map questions about pictures."""

import io
import re
from typing import Any

from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.data.mappers.base import MappedRow, SkipRow, register_mapper, text
from r1_recipes.prompts.formats import boxes

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# A longer strip has less than one patch of a vision model on its short side. The processor of
# Qwen2-VL would reject it in the middle of a run.
_LONGEST = 200
# A file of a few KB can hold more pixels, and a decoded picture takes 3 bytes per pixel.
_MOST_PIXELS = 25_000_000
# Pillow reads many more formats, with programs (Ghostscript for EPS) and rarely reviewed parsers.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# Each scan of a progressive JPEG decodes the whole picture. Cameras write about ten.
_MOST_SCANS = 100


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
    the prompt. The picture is a ``datasets.Image``, or ``{"bytes": …}``. Those with more than
    ``max_pixels`` are scaled down. ``template`` is the text around the question.
    """
    solution = text(row, solution_column)
    solution = (_ANSWER.findall(solution) or [solution])[-1].strip()
    if not solution:
        raise SkipRow(f"column {solution_column!r} is empty")
    return {
        "question": template.replace("{question}", text(row, question_column)),
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
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        fix = install_hint("images")
        raise RecipeError(f"mapper 'image_question' needs Pillow. Fix: {fix}") from error
    data = value.get("bytes") if isinstance(value, dict) else None
    if not isinstance(data, bytes) and not isinstance(value, Image.Image):
        kind = "empty" if value is None else "not a picture"
        raise SkipRow(f"column {column!r} is {kind}")
    if data and data.startswith(b"\xff\xd8") and data.count(b"\xff\xda") > _MOST_SCANS:
        raise SkipRow(f"the picture in column {column!r} has more than {_MOST_SCANS} scans")
    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS) if data else value
        # Check the size in the header of the file, before decoding anything.
        _check_size(picture.size, column)
        picture = ImageOps.exif_transpose(picture)  # a phone's photo may be stored on its side
        if picture.has_transparency_data:  # black lines on nothing would be black on black
            drawn = picture.convert("RGBA")
            picture = Image.new("RGBA", picture.size, "white")
            picture.alpha_composite(drawn)
        picture = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise SkipRow(f"the picture in column {column!r} cannot be read") from None
    width, height = picture.size
    if max_pixels is not None and width * height > max_pixels:
        scale = (max_pixels / (width * height)) ** 0.5
        picture = picture.resize((max(1, int(width * scale)), max(1, int(height * scale))))
    return picture


def _check_size(size: tuple[int, int], column: str) -> None:
    if max(size) > _LONGEST * min(size):
        raise SkipRow(
            f"the picture in column {column!r} is more than {_LONGEST} times as long as wide"
        )
    if size[0] * size[1] > _MOST_PIXELS:
        raise SkipRow(f"the picture in column {column!r} has more than {_MOST_PIXELS:,} pixels")
