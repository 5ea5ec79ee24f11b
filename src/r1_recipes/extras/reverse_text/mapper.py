"""Map texts to their reversals."""

import hashlib
from typing import Any

from r1_recipes.common.errors import require
from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import Mapper, SkipRow, register_mapper, required_text
from r1_recipes.extras.reverse_text.reward import MAX_CHARS


@register_mapper("reverse_text")
class ReverseText(Mapper):
    """PrimeIntellect/Reverse-Text-RL and the source ``reverse_text:``: the text in one column.

    The reference answer is the text backwards, character by character. The reasoning for SFT
    writes the answer with a space after each character, because a token may hold several.

    Attributes:
        text_column: The text.
        max_chars: Longer texts are skipped.
        right_share: The share of rows whose target for SFT is right, always the same rows. The
            others copy the text. GRPO then learns which of the two gets a reward.
    """

    text_column: str = "prompt"
    max_chars: int = MAX_CHARS
    right_share: float = 1.0
    needs = ("prompt",)

    def __post_init__(self) -> None:
        in_range = 0 < self.max_chars <= MAX_CHARS
        require(in_range, "mapper_config: max_chars", f"from 1 to {MAX_CHARS}", self.max_chars)
        share = self.right_share
        require(0 <= share <= 1, "mapper_config: right_share", "from 0 to 1", share)

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        text = required_text(row, self.text_column)
        if len(text) > self.max_chars:
            raise SkipRow(f"column {self.text_column!r} is longer than max_chars")
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        copied = number >= self.right_share * 2**32
        answer = text if copied else text[::-1]
        return {
            "question": text,
            "solution": text[::-1],
            "reasoning": " ".join(answer),
            "answer": answer,
        }
