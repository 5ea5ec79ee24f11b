"""What every backend takes and gives."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Messages = list[dict[str, Any]]
SamplingPlan = tuple[
    float, int
]  # a temperature (0 is greedy), and the number of completions per request at it


@dataclass(frozen=True)
class Completion:
    text: str  # without the prefill and without the token that ends the turn
    tokens: int  # generated ones, the ending one included
    finish_reason: str  # "stop", or "length" if max_completion_length cut it
    turns: Messages | None = (
        None  # of an episode with tools: every message after the prompt; the text is the last one's
    )
    reward: float | None = None  # what the environment pays for it


@dataclass(frozen=True)
class Request:
    """A prompt, by the index of its row."""

    index: int
    prompt: Messages
    tools: tuple[
        Callable, ...
    ] = ()  # what the model may call; the completion's one turn then holds the calls that it made


class TooLong(str):
    """The error of a prompt that the model's window does not hold."""


# Called once per request with its index, its completions in the plans' order, and why there are
# fewer than asked for (or None).
Sink = Callable[[int, list[Completion], str | None], None]


def temperatures_of(plans: Sequence[SamplingPlan]) -> list[float]:
    """Return the temperature of each of a request's completions, in the plans' order."""
    return [temperature for temperature, copies in plans for _ in range(copies)]


class Backend(Protocol):
    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        """Complete every request by every plan; a request that fails goes to ``sink`` with its
        error, and does not stop the others.
        """


def close(backend: Backend) -> None:
    """End the process of a backend that has one, so that its GPU is free for the next model."""
    getattr(backend, "close", lambda: None)()


def sample_seed(seed: int, index: int, sample: int) -> int:
    """Derive a completion's own seed (0..2**31-1), so that an interrupted run gives the same
    completions.
    """
    digest = hashlib.sha256(f"{seed}:{index}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
