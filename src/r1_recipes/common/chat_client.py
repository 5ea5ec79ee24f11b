"""Completions and verdicts from any OpenAI-compatible server (``vllm serve``, ``transformers serve``, a hosted teacher or judge).

The address comes from ``OPENAI_BASE_URL``, the key from ``OPENAI_API_KEY``; the key stands in no log and no error. ``HTTP_PROXY`` and
``HTTPS_PROXY`` hold for this machine too: with them, a local server needs ``NO_PROXY=127.0.0.1,localhost``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line, install_hint
from r1_recipes.common.masking import masked_text

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# Waits between tries double from half a second up to eight (openai's own), so this many ride out a server's restart of a minute.
MAX_RETRIES = 10
# So many requests that fail one after the other are the server's fault, not theirs; then nothing more is asked, and none is given up.
PATIENCE = 32
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0
# A completion that ended otherwise was cut: vLLM's "abort", a filter. TGI names its two ways to stop.
_WHOLE = ("stop", "length", "tool_calls", "function_call", "eos_token", "stop_sequence", None)
_MAX_TOKENS = 2**31
_ERROR_WIDTH = 400
_SAMPLING = ("temperature", "top_p", "seed", "stop")
# Not in OpenAI's API; vLLM and its like take them in the request's body.
_EXTRA_SAMPLING = ("top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")


@dataclass(frozen=True)
class Reply:
    """One answer of a server."""

    text: str = ""
    reasoning: str | None = None  # that came in a field of its own (reasoning_content or reasoning)
    tokens: int | None = None  # generated, as the server counts them
    finish_reason: str | None = None  # "stop", "length", …
    error: str | None = None  # why there is no text, after every retry
    refused: bool = False  # the error is this request's own (too long, filtered), so that asking again would not help


@dataclass(frozen=True)
class ChatServer:
    """A chat-completions endpoint, asked with many requests at once.

    Attributes:
        model: the name that the server knows the model by.
        base_url: ``http://host:port/v1``; ``None``: ``OPENAI_BASE_URL``.
        max_concurrency: requests under way at once.
        timeout: seconds that one try may wait for the next byte. Completions are not streamed, so nearly all of it is one wait.
        max_retries: further tries, with growing waits, after a lost connection, a time-out, 408, 409, 429 or 5xx, and after a reply that
            is no whole chat completion. A ``Retry-After`` is kept up to two minutes; a server that asks for more has failed the request.
    """

    model: str
    base_url: str | None = None
    max_concurrency: int = 16
    timeout: float = 600.0
    max_retries: int = MAX_RETRIES

    def check(self) -> str:
        """Return the server's address if asking can begin.

        Raises:
            RecipeError: the client package or the address is missing, or the address is no ``http://`` or ``https://`` one.
        """
        try:
            import openai  # noqa: F401
        except ImportError as error:
            raise RecipeError(f"an OpenAI-compatible server needs the client package; {install_hint('generate')}") from error
        address = self.base_url or os.environ.get("OPENAI_BASE_URL")
        if not address:
            raise RecipeError(
                "no server is named: set OPENAI_BASE_URL (http://127.0.0.1:8000/v1 for a local `vllm serve`), and OPENAI_API_KEY where it "
                "wants a key"
            )
        if not address.startswith(("http://", "https://")):
            raise RecipeError(
                f"the server's address is {masked_text(f'//{address}')[2:]!r}; one starts with http:// or https://, as http://127.0.0.1:8000/v1"
            )
        return address

    def chat(
        self,
        conversations: Sequence[list[dict[str, str]]],
        *,
        max_tokens: int | None = None,
        seeds: Sequence[int] | None = None,
        on_reply: Callable[[int, Reply], None] | None = None,
        **sampling: Any,
    ) -> list[Reply]:
        """Ask for one completion of each conversation. Works beside a running event loop (a notebook) too; Ctrl-C ends it at once.

        Args:
            conversations: messages with ``role`` and ``content``.
            max_tokens: limit of one completion.
            seeds: one a conversation.
            on_reply: called with index and reply as each one comes in, in no particular order.
            **sampling: ``temperature``, ``top_p``, ``stop``, and what vLLM takes besides (``top_k``, ``min_p``, …); ``None``: not sent.

        Returns:
            One reply a conversation, in order. A request that failed for good has its ``error`` set; it does not stop the others.

        Raises:
            RecipeError: as :meth:`check`, or the server refuses the model or the key, which no retry would change.
        """
        address = self.check()
        unknown = set(sampling) - {*_SAMPLING, *_EXTRA_SAMPLING}
        if unknown:
            raise ValueError(f"sampling: {sorted(unknown)} are not sent to a server")
        given = {name: value for name, value in {**sampling, "max_tokens": max_tokens}.items() if value is not None}
        extra = {name: given.pop(name) for name in _EXTRA_SAMPLING if name in given}
        if extra:
            given["extra_body"] = extra
        requests = [{**given, "messages": messages} for messages in conversations]
        if seeds is not None:
            for request, seed in zip(requests, seeds, strict=True):
                request["seed"] = seed
        return _run(self._all(address, requests, on_reply))

    async def _all(self, address: str, requests: list[dict[str, Any]], on_reply: Callable[[int, Reply], None] | None) -> list[Reply]:
        from openai import AsyncOpenAI

        # A local server takes any key, but the client insists on one.
        key = os.environ.get("OPENAI_API_KEY", "").strip() or "none"
        async with AsyncOpenAI(base_url=address, api_key=key, timeout=self.timeout, max_retries=self.max_retries) as client:
            gate = asyncio.Semaphore(self.max_concurrency)

            async def one(index: int) -> Reply:
                async with gate:
                    reply = await self._ask(client, address, requests[index])
                if on_reply is not None:
                    on_reply(index, reply)
                return reply

            # A group, so that one refusal (or Ctrl-C) ends them all instead of leaving thousands to run on.
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(index)) for index in range(len(requests))]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, client: AsyncOpenAI, address: str, request: dict[str, Any]) -> Reply:
        # The client retries what the network loses; an answer that is whole as HTTP and broken inside is for us to ask for again.
        for tried in range(self.max_retries + 1):
            if tried:
                await asyncio.sleep(min(_FIRST_WAIT * 2 ** (tried - 1), _LONGEST_WAIT))
            reply, broken = await self._try(client, address, request)
            if not broken:
                break
        return reply

    async def _try(self, client: AsyncOpenAI, address: str, request: dict[str, Any]) -> tuple[Reply, bool]:
        """Return the reply, and whether it came but was no whole chat completion."""
        import openai

        try:
            answer = await client.chat.completions.create(model=self.model, **request)
            choice = answer.choices[0]
            message = choice.message
            content = _text("content", message.content)
            reasoning = _text("reasoning_content", getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None))
            tokens = getattr(answer.usage, "completion_tokens", None)
            if tokens is not None and (type(tokens) is not int or not 0 <= tokens < _MAX_TOKENS):
                raise TypeError(f"completion_tokens is {tokens!r:.40}")
            ended = getattr(choice, "finish_reason", None)
            if ended not in _WHOLE:
                filtered = ended == "content_filter"
                said = masked_text(f"the completion is cut: finish_reason {str(ended)!r:.40}")
                return Reply(error=said, refused=filtered), not filtered
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            # The cause is left out: a server may quote the key in it, and a traceback would show it.
            raise RecipeError(f"the server at {masked_text(address)} refuses model {self.model!r}: {_said(error)}") from None
        except openai.OpenAIError as error:
            refused = getattr(error, "status_code", None) in (400, 413, 422)
            return Reply(error=_said(error), refused=refused), isinstance(error, openai.APIResponseValidationError)
        # An answer of another shape, or deeper than anybody reads, or no JSON at all.
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            return Reply(error=f"the reply is no chat completion: {_said(error)}"), True
        return Reply(text=content or "", reasoning=reasoning, tokens=tokens, finish_reason=ended), False


def _text(name: str, value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"{name} is of type {type(value).__name__}")
    return value


def _run(work: Coroutine[Any, Any, list[Reply]]) -> list[Reply]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # A thread has one loop at a time, so beside a running one the work needs a thread of its own.
    with contextlib.closing(asyncio.new_event_loop()) as loop, ThreadPoolExecutor(1) as thread:
        task = loop.create_task(work)
        try:
            return thread.submit(loop.run_until_complete, task).result()
        except BaseException:
            loop.call_soon_threadsafe(task.cancel)  # Ctrl-C reaches this thread, not that one
            raise


def _said(error: Exception) -> str:
    """Return what went wrong in half a sentence, without the key, which some servers quote."""
    import openai

    # "Connection error." says little; what lies under it names the reason.
    cause = error.__cause__ if isinstance(error, openai.APIConnectionError) and not isinstance(error, openai.APITimeoutError) else None
    text = masked_text(first_line(cause or error))
    return text if len(text) <= _ERROR_WIDTH else text[: _ERROR_WIDTH - 1] + "…"
