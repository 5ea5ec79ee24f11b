"""The types that every backend takes and returns."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Messages = list[dict[str, Any]]
# A temperature (0 is greedy), and the number of completions per request at this temperature.
SamplingPlan = tuple[float, int]


@dataclass(frozen=True)
class Completion:
    text: str  # without the prefill and without the token that ends the turn
    tokens: int  # number of generated tokens, including the token that ends the turn
    finish_reason: str  # "stop", or "length" if max_completion_length cut the completion
    # In an episode with tools, every message after the prompt; text is that of the last message.
    turns: Messages | None = None
    reward: float | None = None  # the environment's reward


@dataclass(frozen=True)
class Request:
    """A prompt with the index of its row."""

    index: int
    prompt: Messages
    # Tools that the model may call. The completion's message then holds the model's calls.
    tools: tuple[Callable, ...] = ()


class TooLong(str):
    """The error of a prompt that does not fit the model's context."""


# Called once per request with its index, its completions in the order of the plans, and the error
# if completions are missing (or None).
Sink = Callable[[int, list[Completion], str | None], None]


def temperatures_of(plans: Sequence[SamplingPlan]) -> list[float]:
    """Return the temperature of each completion of a request, in the order of the plans."""
    return [temperature for temperature, copies in plans for _ in range(copies)]


class Backend(Protocol):
    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        """Complete every request by every plan.

        A request that fails goes to ``sink`` with its error, and does not stop the others.
        """


def close(backend: Backend) -> None:
    """End a backend's process, if it has one, so that its GPU is free for the next model."""
    getattr(backend, "close", lambda: None)()


def sample_seed(seed: int, index: int, sample: int) -> int:
    """Return a completion's own seed (0..2**31-1).

    The seed depends only on run seed, row and sample, so an interrupted run gives the same
    completions.
    """
    digest = hashlib.sha256(f"{seed}:{index}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
