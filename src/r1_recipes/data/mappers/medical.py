"""Medical questions with an answer that can be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from r1_recipes.data.mappers.base import Mapper, register_mapper, required_text

_QUESTION, _GOLD = "Open-ended Verifiable Question", "Ground-True Answer"


@register_mapper("medical_verifiable")
@dataclass(frozen=True)
class MedicalVerifiable(Mapper):
    """FreedomIntelligence/medical-o1-verifiable-problem: an open question and a gold of a few words, for ``exact_match`` or a judge."""

    columns = (_QUESTION, _GOLD)
    hub = (("FreedomIntelligence/medical-o1-verifiable-problem", None),)
    examples = (
        {_QUESTION: "Which organ makes insulin?", _GOLD: "Pancreas"},
        {_QUESTION: "Which vitamin deficiency causes scurvy?", _GOLD: "Vitamin C deficiency"},
    )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"question": required_text(row, _QUESTION), "solution": required_text(row, _GOLD)}
