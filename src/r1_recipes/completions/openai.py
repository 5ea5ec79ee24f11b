"""Generate completions with an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from r1_recipes.common.chat_client import MAX_FAILURES_IN_A_ROW, ChatServer, Reply
from r1_recipes.common.errors import RecipeError
from r1_recipes.completions.types import (
    Completion,
    Request,
    SamplingPlan,
    Sink,
    TooLong,
    sample_seed,
    temperatures_of,
)
from r1_recipes.models.tokenizer import recipe_format
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards.call import warn_once

# Values that change nothing. vLLM and SGLang get them too, because they would take others from the
# model's generation_config.json. Not every other server accepts these keys.
_NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
}
# How many times the concurrent requests are handed to the client at once. The server waits for
# slow requests only between these slices.
_SLICE = 64


@dataclass
class _Rows:
    """Collect replies by row, and hand over a row when it has ``count`` replies.

    Failed rows wait for a row that succeeds. If one does, the server is up and the failures were
    caused by the rows.
    """

    count: int
    max_failures: int
    read: Callable[[Reply], Completion]
    sink: Sink
    replies: dict[int, dict[int, Reply]] = field(default_factory=dict)
    held_back: list[tuple[int, list[Completion], str | None]] = field(default_factory=list)

    def add(self, index: int, sample: int, reply: Reply) -> None:
        by_sample = self.replies.setdefault(index, {})
        by_sample[sample] = reply
        if len(by_sample) < self.count:
            return
        del self.replies[index]
        replies = [by_sample[sample] for sample in range(self.count)]
        error = next((reply.error for reply in replies if reply.error), None)
        if error and "maximum context length" in error:
            error = TooLong(error)
        completions = [self.read(reply) for reply in replies if not reply.error]
        self.held_back.append((index, completions, error))
        if not error:
            self.hand_over()
        elif len(self.held_back) >= self.max_failures:
            raise RecipeError(
                f"{len(self.held_back)} rows failed in a row, so generation stopped. The last "
                f"error: {error} Fix: correct the cause, then run the same command to resume"
            )

    def hand_over(self) -> None:
        while self.held_back:
            self.sink(*self.held_back.pop(0))


class OpenAIBackend:
    """The server at ``OPENAI_BASE_URL``.

    Each completion is a separate request with its own retries.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._settings = settings = recipe.training
        self._format = recipe_format(recipe)
        self._server = ChatServer(
            recipe.model.model_name_or_path,
            max_concurrency=settings.generation_batch_size,
            timeout=settings.request_timeout,
            max_retries=settings.request_retries,
        )
        self._server.check()
        self._options = {
            "max_tokens": settings.max_completion_length,
            "chat_template_kwargs": settings.chat_template_kwargs,
        }
        sends_all = self._server.takes_vllms_keys()
        for name, neutral in _NEUTRAL.items():
            value = getattr(settings, name)
            if sends_all or value != neutral:
                self._options[name] = value

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        temperatures = temperatures_of(sampling_plans)
        at_once = self._settings.generation_batch_size
        rows = _Rows(len(temperatures), max(MAX_FAILURES_IN_A_ROW, at_once), self._completion, sink)
        step = max(1, _SLICE * at_once // len(temperatures))
        for begin in range(0, len(requests), step):
            for temperature in dict.fromkeys(temperatures):
                samples = [i for i, value in enumerate(temperatures) if value == temperature]
                self._ask(requests[begin : begin + step], temperature, samples, rows)
        rows.hand_over()

    def _ask(
        self, requests: Sequence[Request], temperature: float, samples: Sequence[int], rows: _Rows
    ) -> None:
        """Request these samples of each request at one temperature.

        Replies go to ``rows`` as they arrive.
        """
        from transformers.utils import get_json_schema

        pairs = [(request, sample) for request in requests for sample in samples]
        seed = self._settings.seed
        seeds = None
        if temperature and seed is not None:  # not every server accepts a seed
            seeds = [sample_seed(seed, request.index, sample) for request, sample in pairs]

        def on_reply(number: int, reply: Reply) -> None:
            request, sample = pairs[number]
            rows.add(request.index, sample, reply)

        self._server.chat(
            [request.prompt for request, _ in pairs],
            seeds=seeds,
            tools=[list(map(get_json_schema, request.tools)) for request, _ in pairs],
            on_reply=on_reply,
            temperature=temperature,
            **self._options,
        )

    def _completion(self, reply: Reply) -> Completion:
        text = reply.text
        if reply.reasoning:
            # The server moved the reasoning out of the text. Put it back in front, as the model
            # wrote it: without an opening tag that is in the prefill.
            opening, closing = (
                self._format.tags[:2] if self._format.reasoning_tags else ("", "\n\n")
            )
            if self._format.prefill.rstrip().endswith(opening.strip()):
                opening = ""
            text = f"{opening}{reply.reasoning.strip()}{closing}{text.lstrip()}".strip()
        turns = None
        if reply.calls:
            turns = [{"role": "assistant", "content": text, "tool_calls": reply.calls}]
        if reply.tokens is None:
            warn_once("the server does not count tokens, so every completion counts as 0 tokens")
        ended = "length" if reply.finish_reason == "length" else "stop"
        return Completion(text, reply.tokens or 0, ended, turns)
