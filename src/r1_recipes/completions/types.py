"""What every backend takes and gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Messages = list[dict[str, str]]
# A temperature (0 is greedy), and the number of completions per request at it.
SamplingPlan = tuple[float, int]


@dataclass(frozen=True)
class Completion:
    """One generated text.

    Attributes:
        text: without the prefill and without the token that ends the turn.
        tokens: number of generated tokens, the ending one included.
        finish_reason: ``"stop"``, or ``"length"`` if ``max_completion_length`` cut it.
    """

    text: str
    tokens: int
    finish_reason: str


@dataclass(frozen=True)
class Request:
    """A prompt, by the index of its row."""

    index: int
    prompt: Messages


# Called once per request: its index, its completions, and why there are fewer than asked for (or None).
Sink = Callable[[int, list[Completion], str | None], None]


class Backend(Protocol):
    """Generates completions for requests."""

    def run(self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]) -> None:
        """Complete every request by every plan; a request goes to ``sink`` when its last completion (in the plans' order) is there.

        Raises:
            RecipeError: nothing can be generated at all. A failure of one request goes to ``sink``.
        """


def sample_seed(seed: int, index: int, sample: int) -> int:
    """Derive a completion's own seed (0..2**31-1), so that an interrupted run gives the same completions.

    Transformers samples a batch at once: the first row's seed stands for the batch, and an interrupted batch is drawn anew.
    """
    digest = hashlib.sha256(f"{seed}:{index}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
