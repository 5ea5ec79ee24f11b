"""Completions and verdicts from any OpenAI-compatible server (``vllm serve``, ``transformers
serve``, a hosted teacher or judge).

The address comes from ``OPENAI_BASE_URL``, the key from ``OPENAI_API_KEY``; the key stands in no
log and no error. ``HTTP_PROXY`` and ``HTTPS_PROXY`` hold for this machine too: with them, a local
server needs ``NO_PROXY=127.0.0.1,localhost``.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line, install_hint
from r1_recipes.common.masking import masked_text

# So many requests that fail one after the other are the server's fault, not theirs; then nothing
# more is asked, and none is given up.
PATIENCE = 32
# A completion that ended otherwise was cut: vLLM's "abort", a filter. TGI names its two ways to
# stop.
_WHOLE = ("stop", "length", "tool_calls", "function_call", "eos_token", "stop_sequence", None)
_ERROR_WIDTH = 400
# What OpenAI's API takes; vLLM and its like take more (top_k, min_p, …) in the request's body.
_STANDARD = ("max_tokens", "temperature", "top_p", "stop")


@dataclass(frozen=True)
class Reply:
    text: str = ""
    calls: list[dict[str, Any]] | None = None  # of tools, as the server parsed them
    reasoning: str | None = None  # that came in a field of its own (reasoning_content or reasoning)
    tokens: int | None = None  # generated, as the server counts them
    finish_reason: str | None = None  # "stop", "length", …
    error: str | None = None  # why there is no text, after every retry
    # The error is this request's own (too long, filtered), so that asking again would not help
    refused: bool = False


@dataclass(frozen=True)
class ChatServer:
    """A chat-completions endpoint, asked with many requests at once.

    ``timeout`` is seconds that one try may wait for the next byte. ``max_retries`` are further
    tries, with growing waits, after a lost connection, a time-out, 408, 409, 429 or 5xx; a
    ``Retry-After`` is kept up to two minutes, more is a failure.
    """

    model: str
    max_concurrency: int = 16
    timeout: float = 600.0
    # Waits double from half a second up to eight (openai's own), so this rides out a server's
    # restart
    max_retries: int = 10

    def check(self) -> str:
        """Return the server's address; a RecipeError if the address or the client package is
        missing.
        """
        try:
            import openai  # noqa: F401
        except ImportError as error:
            raise RecipeError(
                f"an OpenAI-compatible server needs the client package; {install_hint('generate')}"
            ) from error
        address = os.environ.get("OPENAI_BASE_URL", "")
        if not address.startswith(("http://", "https://")):
            raise RecipeError(
                "OPENAI_BASE_URL: must be a server's address, which starts with http:// or "
                "https://, got "
                f"{masked_text(f'//{address}')[2:]!r}. Fix: http://127.0.0.1:8000/v1 for a "
                f"local `vllm serve`; OPENAI_API_KEY for its key"
            )
        return address

    def chat(
        self,
        conversations: Sequence[list[dict[str, str]]],
        *,
        seeds: Sequence[int] | None = None,
        tools: Sequence[Sequence[dict[str, Any]]] | None = None,
        on_reply: Callable[[int, Reply], None] | None = None,
        **sampling: Any,
    ) -> list[Reply]:
        """Ask for one completion of each conversation; Ctrl-C ends it at once.

        ``on_reply`` gets index and reply as each comes in. ``tools`` are JSON schemas, a list per
        conversation. ``sampling`` is ``max_tokens``, ``temperature``, ``top_p``, ``stop``, and what
        vLLM has more; ``None`` is not sent. A reply that failed for good has its ``error`` set; it
        does not stop the others, but a server that refuses the model or the key is a RecipeError.
        """
        address = self.check()
        given = {
            name: value
            for name, value in sampling.items()
            if name in _STANDARD and value is not None
        }
        given["extra_body"] = {
            name: value
            for name, value in sampling.items()
            if name not in _STANDARD and value is not None
        }
        requests = []
        for number, messages in enumerate(conversations):
            request = {**given, "messages": messages}
            if seeds is not None:
                request["seed"] = seeds[number]
            if tools and tools[number]:  # servers refuse an empty list
                request["tools"] = tools[number]
            requests.append(request)
        return asyncio.run(self._all(address, requests, on_reply))

    async def _all(
        self,
        address: str,
        requests: list[dict[str, Any]],
        on_reply: Callable[[int, Reply], None] | None,
    ) -> list[Reply]:
        from openai import AsyncOpenAI

        # A local server takes any key, but the client insists on one.
        key = os.environ.get("OPENAI_API_KEY", "").strip() or "none"
        async with AsyncOpenAI(
            base_url=address, api_key=key, timeout=self.timeout, max_retries=self.max_retries
        ) as client:
            gate = asyncio.Semaphore(self.max_concurrency)

            async def one(index: int) -> Reply:
                async with gate:
                    reply = await self._ask(client, address, requests[index])
                if on_reply is not None:
                    on_reply(index, reply)
                return reply

            # A group, so that one refusal (or Ctrl-C) ends them all instead of leaving thousands to
            # run on.
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(index)) for index in range(len(requests))]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, client: Any, address: str, request: dict[str, Any]) -> Reply:
        import openai

        try:
            return _read(await client.chat.completions.create(model=self.model, **request))
        except (
            openai.AuthenticationError,
            openai.PermissionDeniedError,
            openai.NotFoundError,
        ) as error:
            # The cause is left out: a server may quote the key in it, and a traceback would show
            # it.
            raise RecipeError(
                f"the server at {masked_text(address)} refuses model {self.model!r}: {_said(error)}"
            ) from None
        except openai.OpenAIError as error:
            return Reply(
                error=_said(error), refused=getattr(error, "status_code", None) in (400, 413, 422)
            )
        # An answer of another shape, or deeper than anybody reads, or no JSON at all.
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            return Reply(error=f"the reply is no chat completion: {_said(error)}")


def _read(answer: Any) -> Reply:
    choice = answer.choices[0]
    message, ended = choice.message, getattr(choice, "finish_reason", None)
    if ended not in _WHOLE:
        return Reply(
            error=masked_text(f"the completion is cut: finish_reason {str(ended)!r:.40}"),
            refused=ended == "content_filter",
        )
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    for text in (message.content, reasoning):
        if not isinstance(text, str | None):
            raise TypeError(f"a text is of type {type(text).__name__}")
    tokens = getattr(answer.usage, "completion_tokens", None)
    counted = type(tokens) is int and 0 <= tokens < 2**31
    calls = [call.model_dump() for call in getattr(message, "tool_calls", None) or ()]
    return Reply(
        message.content or "", calls or None, reasoning, tokens if counted else None, ended
    )


def _said(error: Exception) -> str:
    """Return what went wrong in half a sentence, without the key, which some servers quote."""
    import openai

    # "Connection error." says little; what lies under it names the reason.
    cause = (
        error.__cause__
        if isinstance(error, openai.APIConnectionError)
        and not isinstance(error, openai.APITimeoutError)
        else None
    )
    text = masked_text(first_line(cause or error))
    return text if len(text) <= _ERROR_WIDTH else text[: _ERROR_WIDTH - 1] + "…"
