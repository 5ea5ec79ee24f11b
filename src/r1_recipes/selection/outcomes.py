"""What becomes of a completion: why it is dropped, and the counts of all."""

from __future__ import annotations

import dataclasses
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
    "duplicate completion",
    "pass rate",
    "contaminated",
    "judge gave no score",
    "judge",
    "not among the best",
    "duplicate question",
)
"""Why a completion is dropped, in the order in which it is asked; the first that applies is the one counted.

The cheapest come first: a judge reads only what everything before it would keep. ``failed row``, ``pass rate``, ``contaminated`` and
``duplicate question`` drop all completions of a prompt that got so far. Equal texts are dropped before the best are picked, so that
``best_of: 2`` gives two different ones if there are.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one completion."""

    index: int  # of its record
    sample: int  # its place among the record's completions, from 0
    reason: str | None  # one of REASONS; None: kept
    scores: dict[str, float | None]  # by reward, and "judge"; None if that one does not judge it. Empty for a failed row

    @property
    def kept(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class Outcome:
    """One record's verdicts, and the rows that it gives the dataset."""

    verdicts: list[Verdict]
    rows: list[dict[str, Any]]


@dataclass
class YieldReport:
    """What was generated, what is left, and where the rest went.

    ``dropped`` counts completions by reason, ``dropped_prompts`` the prompts that lost one for it (or failed), ``first_index`` is the
    first such record; ``contaminated`` counts prompts by evaluation set. ``unjudged`` are neither right nor wrong.
    """

    prompts: int = 0
    failed_prompts: int = 0
    completions: int = 0
    unjudged: int = 0
    kept_prompts: int = 0
    kept_completions: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_prompts: dict[str, int] = field(default_factory=dict)
    first_index: dict[str, int] = field(default_factory=dict)
    tokens_generated: int = 0
    tokens_kept: int = 0
    contaminated: dict[str, int] = field(default_factory=dict)

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
        for reason, number in reasons.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + number
            self.dropped_prompts[reason] = self.dropped_prompts.get(reason, 0) + 1
            self.first_index.setdefault(reason, record["index"])

    def sort(self) -> None:
        """Bring the reasons into the order of :data:`REASONS`."""
        for name in ("dropped", "dropped_prompts", "first_index"):
            counts = getattr(self, name)
            setattr(self, name, {reason: counts[reason] for reason in REASONS if reason in counts})

    def table(self) -> str:
        """A Markdown table, and a line each for what it cannot show."""
        lines = [
            "| | completions | prompts | tokens | first row |",
            "|---|---:|---:|---:|---:|",
            f"| generated | {self.completions} | {self.prompts} | {self.tokens_generated} | |",
        ]
        lines += [
            f"| {reason} | {-self.dropped[reason]} | {self.dropped_prompts[reason]} | | {self.first_index[reason]} |"
            for reason in self.dropped
        ]
        share = f" ({100 * self.kept_completions / self.completions:.1f} %)" if self.completions else ""
        lines.append(f"| **kept** | {self.kept_completions}{share} | {self.kept_prompts} | {self.tokens_kept} | |")
        if self.unjudged:
            lines.append(f"\n{self.unjudged} completions could not be judged right or wrong.")
        if self.contaminated:
            counts = ", ".join(f"{name} {count}" for name, count in self.contaminated.items())
            lines.append(f"\nOverlap by evaluation set: {counts}.")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(eq=False)
class Candidate:
    """One completion on its way through the rules."""

    record: dict[str, Any]
    sample: int
    fmt: ResponseFormat
    scores: dict[str, float | None] = field(default_factory=dict)
    correct: bool | None = None
    readability: float = 0.0
    reason: str | None = None

    def __post_init__(self) -> None:
        completion = self.record["completions"][self.sample]
        self.text: str = completion["text"]
        self.tokens: int = completion["tokens"]
        self.finish_reason: str | None = completion["finish_reason"]

    @functools.cached_property
    def parsed(self) -> ParsedResponse:
        return self.fmt.parse(self.text)

    @property
    def rank(self) -> tuple:
        """Smaller is better: right before not judged before wrong."""
        return ({True: 0, None: 1, False: 2}[self.correct], -self.readability, self.tokens, self.sample)


def left(candidates: Iterable[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.reason is None]


def drop(candidates: Iterable[Candidate], reason: str) -> None:
    for candidate in left(candidates):
        candidate.reason = reason
