"""Map questions about pictures."""

import io
import re
from typing import Any

from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    check_template,
    last_boxed,
    register_mapper,
    required_text,
)

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


@register_mapper("image_question")
class ImageQuestion(Mapper):
    """Pictures with a question and a short answer, for a vision-language model.

    The default columns are those of lmms-lab/multimodal-open-r1-8k-verified. ``<answer>`` tags and
    a box are removed from the reference answer. TRL puts the picture, in RGB, before the text of
    the prompt.

    Attributes:
        image_column: A column with ``datasets.Image``, or with ``{"bytes": …}``.
        question_column: The column of the question.
        solution_column: The column of the reference answer.
        template: The text around the question.
        max_pixels: Larger pictures are scaled down. ``None`` keeps their size.
    """

    image_column: str = "image"
    question_column: str = "problem"
    solution_column: str = "solution"
    template: str = "{question}"
    max_pixels: int | None = None
    columns = ("image", "problem", "solution")
    images = True
    examples = tuple(
        {
            "image": {"bytes": b"P5 8 8 255\n" + bytes([grey]) * 64, "path": None},
            "problem": "How many pixels wide is the square?",
            "solution": "<answer>8</answer>",
            "original_question": "Width?",
            "original_answer": "Answer: 8",
        }
        for grey in (128, 255)
    )

    def __post_init__(self) -> None:
        check_template(self.template, "{question}")
        if self.max_pixels is not None and self.max_pixels < 1:
            raise RecipeError(
                f"mapper_config: max_pixels: must be 1 or more, got {self.max_pixels}"
            )

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        solution = required_text(row, self.solution_column)
        solution = (_ANSWER.findall(solution) or [solution])[-1].strip()
        if not solution:
            raise SkipRow(f"column {self.solution_column!r} is empty")
        return {
            "question": self.template.replace(
                "{question}", required_text(row, self.question_column)
            ),
            "solution": last_boxed(solution) or solution,
            "image": self._picture(row.get(self.image_column)),
        }

    def _picture(self, value: Any) -> Any:
        try:
            from PIL import Image, ImageOps
        except ImportError as error:
            raise RecipeError(
                f"mapper {self.name!r} reads pictures with Pillow. Fix: {install_hint('images')}"
            ) from error
        data = value.get("bytes") if isinstance(value, dict) else None
        if not isinstance(data, bytes) and not isinstance(value, Image.Image):
            raise SkipRow(
                f"column {self.image_column!r} is {'empty' if value is None else 'not a picture'}"
            )
        if (
            isinstance(data, bytes)
            and data.startswith(b"\xff\xd8")
            and data.count(b"\xff\xda") > _MOST_SCANS
        ):
            raise SkipRow(
                f"the picture in column {self.image_column!r} has more than {_MOST_SCANS} scans"
            )
        try:
            picture = (
                Image.open(io.BytesIO(data), formats=_FORMATS) if isinstance(data, bytes) else value
            )
            # Check the size in the header of the file, before decoding anything.
            self._check_size(picture.size)
            picture = ImageOps.exif_transpose(picture)  # a phone's photo may be stored on its side
            if picture.has_transparency_data:  # black lines on nothing would be black on black
                drawn = picture.convert("RGBA")
                picture = Image.new("RGBA", picture.size, "white")
                picture.alpha_composite(drawn)
            picture = picture.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            raise SkipRow(f"the picture in column {self.image_column!r} cannot be read") from None
        width, height = picture.size
        if self.max_pixels is not None and width * height > self.max_pixels:
            scale = (self.max_pixels / (width * height)) ** 0.5
            picture = picture.resize((max(1, int(width * scale)), max(1, int(height * scale))))
        return picture

    def _check_size(self, size: tuple[int, int]) -> None:
        if max(size) > _LONGEST * min(size):
            raise SkipRow(
                f"the picture in column {self.image_column!r} is more than {_LONGEST} times as "
                f"long as wide"
            )
        if size[0] * size[1] > _MOST_PIXELS:
            raise SkipRow(
                f"the picture in column {self.image_column!r} has more than {_MOST_PIXELS:,} pixels"
            )
