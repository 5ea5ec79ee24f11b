"""Completions by an OpenAI-compatible server."""

from collections.abc import Sequence

from r1_recipes.common.chat_client import PATIENCE, ChatServer, Reply
from r1_recipes.common.errors import RecipeError
from r1_recipes.completions.types import Completion, Request, SamplingPlan, Sink, TooLong, sample_seed
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import Recipe

_NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}  # not sent: not every server takes these keys
# Requests handed to the client at once, in units of those under way: the server waits for stragglers only between slices.
_SLICE = 64


class OpenAIBackend:
    """The server at ``OPENAI_BASE_URL``. Each completion is a request of its own, retried by itself."""

    def __init__(self, recipe: Recipe) -> None:
        self._settings = settings = recipe.training
        self._format = get_response_format(recipe.script.response_format)
        self._server = ChatServer(
            recipe.model.model_name_or_path,
            max_concurrency=settings.generation_batch_size,
            timeout=settings.request_timeout,
            max_retries=settings.request_retries,
        )
        self._server.check()
        self._options = {name: getattr(settings, name) for name, value in _NEUTRAL.items() if getattr(settings, name) != value}
        self._options |= {"max_tokens": settings.max_completion_length, "chat_template_kwargs": settings.chat_template_kwargs}

    def run(self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]) -> None:
        from transformers.utils import get_json_schema

        settings = self._settings
        temperatures = [temperature for temperature, copies in sampling_plans for _ in range(copies)]
        # Failed rows wait for one that is answered: then their failure was their own.
        failed: list[tuple[int, list[Completion], str | None]] = []

        def on_reply(number: int, reply: Reply) -> None:
            request, sample = asked[number]
            own = replies[request.index]
            own[sample] = reply
            if len(own) < len(temperatures):
                return
            error = next((reply.error for reply in own.values() if reply.error), None)
            error = TooLong(error) if error and "maximum context length" in error else error
            failed.append((request.index, [self._completion(own[sample]) for sample in sorted(own) if not own[sample].error], error))
            if error and len(failed) >= max(PATIENCE, settings.generation_batch_size):
                again = "The same command goes on from what is stored"
                raise RecipeError(f"{len(failed)} rows failed one after the other, so this stops here; the last: {error} {again}")
            while failed and not error:
                sink(*failed.pop(0))

        step = max(1, _SLICE * settings.generation_batch_size // len(temperatures))
        for begin in range(0, len(requests), step):
            part = requests[begin : begin + step]
            replies: dict[int, dict[int, Reply]] = {request.index: {} for request in part}
            for plan in dict.fromkeys(temperatures):
                asked = [(request, sample) for request in part for sample, own in enumerate(temperatures) if own == plan]
                seeds = None
                if plan and settings.seed is not None:  # not every server takes one
                    seeds = [sample_seed(settings.seed, request.index, sample) for request, sample in asked]
                prompts = [request.prompt for request, _ in asked]
                tools = [list(map(get_json_schema, request.tools)) for request, _ in asked]
                self._server.chat(prompts, seeds=seeds, tools=tools, on_reply=on_reply, temperature=plan, **self._options)
        for row in failed:
            sink(*row)

    def _completion(self, reply: Reply) -> Completion:
        text = reply.text
        if reply.reasoning:
            # The server took the reasoning out of the text; it belongs in front again, as the model wrote it.
            opening, closing = self._format.tags[:2] if self._format.reasoning_tags else ("", "\n\n")
            text = f"{opening}{reply.reasoning.strip()}{closing}{text.lstrip()}".strip()
        turns = [{"role": "assistant", "content": text, "tool_calls": reply.calls}] if reply.calls else None
        return Completion(text, reply.tokens or 0, "length" if reply.finish_reason == "length" else "stop", turns)
