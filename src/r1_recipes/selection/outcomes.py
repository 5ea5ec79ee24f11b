"""What becomes of a completion: why it is dropped, and the counts of all."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.prompts.formats import ParsedResponse, ResponseFormat

REASONS = (
    "failed row",
    "malformed",
    "truncated",
    "overlong",
    "repetitive",
    "mixed_language",
    "code",
    "wrong",
    "low score",
    "duplicate completion",
    "pass rate",
    "contaminated",
    "not among the best",
    "duplicate question",
)
"""Why a completion is dropped, in the order in which it is asked; the first that applies is the one counted."""


class Candidate:
    """One completion on its way through the rules."""

    def __init__(self, record: dict[str, Any], sample: int, fmt: ResponseFormat) -> None:
        completion = record["completions"][sample]
        self.record, self.sample, self.fmt = record, sample, fmt
        self.text: str = completion["text"]
        self.tokens: int = completion["tokens"]
        self.truncated: bool = completion["finish_reason"] == "length"
        self.scores: dict[str, float | None] = {}  # by reward; None: not judged. Empty for a failed row
        self.correct: bool | None = None
        self.readability = 0.0
        self.reason: str | None = None  # one of REASONS; None: kept

    @functools.cached_property
    def parsed(self) -> ParsedResponse:
        return self.fmt.parse(self.text)

    @property
    def rank(self) -> tuple[int, float, int, int]:
        """Smaller is better: right before not judged before wrong."""
        return ({True: 0, None: 1, False: 2}[self.correct], -self.readability, self.tokens, self.sample)

    def verdict(self) -> dict[str, Any]:
        """What ``verdicts.jsonl`` says of it."""
        verdict = {"index": self.record["index"], "sample": self.sample, "reason": self.reason, "scores": self.scores}
        return {**verdict, "kept": self.reason is None}


def left(candidates: Iterable[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.reason is None]


def drop(candidates: Iterable[Candidate], reason: str) -> None:
    for candidate in left(candidates):
        candidate.reason = reason


@dataclass
class YieldReport:
    """What was generated, what is left, and where the rest went; ``yield.json`` holds it."""

    prompts: int = 0
    failed_prompts: int = 0
    completions: int = 0
    unjudged: int = 0  # neither right nor wrong
    kept_prompts: int = 0
    kept_completions: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # completions by reason
    dropped_prompts: Counter[str] = field(default_factory=Counter)  # prompts that lost a completion for it, or failed
    first_index: dict[str, int] = field(default_factory=dict)  # of the first such record
    tokens_generated: int = 0
    tokens_kept: int = 0
    contaminated: Counter[str] = field(default_factory=Counter)  # prompts by evaluation set

    def count(self, record: dict[str, Any], group: list[Candidate]) -> None:
        kept = left(group)
        self.prompts += 1
        self.failed_prompts += record["error"] is not None
        self.completions += len(group)
        self.kept_prompts += bool(kept)
        self.kept_completions += len(kept)
        self.tokens_generated += sum(candidate.tokens for candidate in group)
        self.tokens_kept += sum(candidate.tokens for candidate in kept)
        reasons = Counter(candidate.reason for candidate in group if candidate.reason is not None)
        if record["error"] is not None:
            reasons["failed row"] += 0  # counts as a prompt even without a completion
        self.dropped.update(reasons)
        self.dropped_prompts.update(reasons.keys())
        for reason in reasons:
            self.first_index.setdefault(reason, record["index"])

    def table(self) -> str:
        """A Markdown table, and a line each for what it cannot show."""
        share = f" ({100 * self.kept_completions / self.completions:.1f} %)" if self.completions else ""
        rows = [
            "| | completions | prompts | tokens | first row |",
            "|---|---:|---:|---:|---:|",
            f"| generated | {self.completions} | {self.prompts} | {self.tokens_generated} | |",
        ]
        for reason in REASONS:
            if reason in self.dropped:
                rows.append(f"| {reason} | {-self.dropped[reason]} | {self.dropped_prompts[reason]} | | {self.first_index[reason]} |")
        rows.append(f"| **kept** | {self.kept_completions}{share} | {self.kept_prompts} | {self.tokens_kept} | |")
        if self.unjudged:
            rows.append(f"\n{self.unjudged} completions could not be judged right or wrong.")
        if self.contaminated:
            rows.append(f"\nOverlap by evaluation set: {', '.join(f'{name} {count}' for name, count in self.contaminated.items())}.")
        return "\n".join(rows)
