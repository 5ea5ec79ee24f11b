"""A picture and a question about it."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.data.mappers.base import Mapper, SkipRow, register_mapper, required_text
from r1_recipes.data.mappers.maths import last_boxed

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# A longer strip has less than one patch of a vision model on its short side; Qwen2-VL's processor refuses it, in the middle of a run.
_LONGEST = 200
# A grey and a white square of 8 pixels.
_PNGS = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAADklEQVR42mNogAIGyhgAgIQgARDoahcAAAAASUVORK5CYII=",
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAADklEQVR42mP4DwUMlDEA98A/wa9cD80AAAAASUVORK5CYII=",
)


@register_mapper("image_question")
@dataclass(frozen=True)
class ImageQuestion(Mapper):
    """lmms-lab/multimodal-open-r1-8k-verified, and any set with a picture, a question and a short gold: for a vision-language model.

    ``image`` is the picture in RGB, as Pillow has it; TRL puts it before the words of the prompt. The gold loses ``<answer>`` tags and
    a box. Rows whose picture cannot be read, or is over 200 times as long as wide, are left out.

    Attributes:
        image_column: column of the picture: a ``datasets.Image``, or its ``{"bytes": …}``.
        question_column: column of the question.
        solution_column: column of the gold.
        max_pixels: larger pictures are made smaller, to at most that many pixels; ``None``: as they are.

    Raises:
        RecipeError: ``max_pixels`` is below 1; on a call: Pillow is not installed.
    """

    image_column: str = "image"
    question_column: str = "problem"
    solution_column: str = "solution"
    max_pixels: int | None = None
    columns = ("image", "problem", "solution")
    named_by: ClassVar[dict[str, str]] = {"image": "image_column", "problem": "question_column", "solution": "solution_column"}
    images = True
    optional = ("original_question", "original_answer")
    hub = (("lmms-lab/multimodal-open-r1-8k-verified", None),)
    examples = tuple(
        {
            "image": {"bytes": base64.b64decode(png), "path": None},
            "problem": "How many pixels wide is the square?",
            "solution": "<answer>8</answer>",
            "original_question": "Width?",
            "original_answer": "Answer: 8",
        }
        for png in _PNGS
    )

    def __post_init__(self) -> None:
        if self.max_pixels is not None and self.max_pixels < 1:
            raise RecipeError(f"mapper_config: max_pixels: found {self.max_pixels}; 1 or more")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        gold = required_text(row, self.solution_column)
        tagged = _ANSWER.findall(gold)
        gold = tagged[-1].strip() if tagged else gold
        if not gold:
            raise SkipRow(f"column {self.solution_column!r} is empty")
        return {
            "question": required_text(row, self.question_column),
            "solution": last_boxed(gold) or gold,
            "image": self._picture(row.get(self.image_column)),
        }

    def _picture(self, value: Any) -> Any:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise RecipeError(f"mapper {self.name!r} reads pictures with Pillow: {install_hint('images')}") from error
        data = value.get("bytes") if isinstance(value, dict) else None
        if not isinstance(data, bytes) and not isinstance(value, Image.Image):
            raise SkipRow(f"column {self.image_column!r} is {'empty' if value is None else 'no picture'}")
        try:
            picture = (Image.open(io.BytesIO(data)) if isinstance(data, bytes) else value).convert("RGB")
        except UnidentifiedImageError:
            raise SkipRow(f"column {self.image_column!r} is no picture") from None
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # cut off, or damaged: Pillow has many words for it
            raise SkipRow(f"the picture in column {self.image_column!r} cannot be read") from None
        width, height = picture.size
        if max(width, height) > _LONGEST * min(width, height):
            raise SkipRow(f"the picture in column {self.image_column!r} is over {_LONGEST} times as long as wide")
        if self.max_pixels is not None and width * height > self.max_pixels:
            scale = (self.max_pixels / (width * height)) ** 0.5
            picture = picture.resize((max(1, int(width * scale)), max(1, int(height * scale))))
        return picture
