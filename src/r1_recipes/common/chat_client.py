"""Get completions and verdicts from any OpenAI-compatible server.

The server is ``vllm serve``, ``transformers serve``, a hosted teacher or a hosted judge.
``OPENAI_BASE_URL`` holds the address and ``OPENAI_API_KEY`` the key. No log and no error shows the
key. ``HTTP_PROXY`` and ``HTTPS_PROXY`` apply to this machine too: with them, a local server needs
``NO_PROXY=127.0.0.1,localhost``.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line, install_hint
from r1_recipes.common.masking import masked_text

# If this many requests fail in a row, the server is down. Then no request is sent any more, and the
# rows stay open for a later run.
MAX_FAILURES_IN_A_ROW = 32
# Finish reasons of a complete reply. Others mean that it was cut, such as vLLM's "abort" or a
# filter. The last two are TGI's.
_COMPLETE_REASONS = (
    "stop",
    "length",
    "tool_calls",
    "function_call",
    "eos_token",
    "stop_sequence",
    None,
)
_ERROR_WIDTH = 400
# Parameters of OpenAI's API. vLLM and others take more (top_k, min_p, …) in the request's body.
_OPENAI_PARAMETERS = ("max_tokens", "temperature", "top_p", "stop")


@dataclass(frozen=True)
class Reply:
    text: str = ""
    calls: list[dict[str, Any]] | None = None  # tool calls, as the server parsed them
    reasoning: str | None = None  # from the field reasoning_content or reasoning
    tokens: int | None = None  # generated tokens, as the server counts them
    finish_reason: str | None = None  # "stop", "length", …
    error: str | None = None  # why there is no text, after all retries
    # The request itself causes the error (too long, filtered), so a retry would not help.
    refused: bool = False


@dataclass(frozen=True)
class ChatServer:
    """A chat-completions endpoint that answers many requests at once.

    ``timeout`` is how many seconds one try may wait for the next byte. ``max_retries`` limits
    further tries, with growing waits, after a lost connection, a time-out, 408, 409, 429 or 5xx. A
    ``Retry-After`` of up to two minutes is followed; a longer one is a failure.
    """

    model: str
    max_concurrency: int = 16
    timeout: float = 600.0
    # The openai client doubles its waits from half a second up to eight. Ten tries are enough for a
    # server's restart.
    max_retries: int = 10

    def check(self) -> str:
        """Return the server's address.

        Raise RecipeError if the address or the client package is missing.
        """
        try:
            import openai  # noqa: F401
        except ImportError as error:
            raise RecipeError(
                "an OpenAI-compatible server needs the package openai. Fix: "
                f"{install_hint('generate')}"
            ) from error
        address = os.environ.get("OPENAI_BASE_URL", "")
        if not address.startswith(("http://", "https://")):
            raise RecipeError(
                "OPENAI_BASE_URL: must start with http:// or https://, got "
                f"{masked_text(f'//{address}')[2:]!r}. Fix: http://127.0.0.1:8000/v1 for a "
                f"local `vllm serve`. OPENAI_API_KEY holds the key"
            )
        return address

    def takes_vllms_keys(self) -> bool:
        """Return whether the server says that it is vLLM or SGLang, which take ``top_k``, ``min_p``
        and ``repetition_penalty``.
        """
        import openai

        client = openai.OpenAI(base_url=self.check(), api_key=_key(), timeout=10, max_retries=0)
        try:
            with client:
                owners = {model.owned_by for model in client.models.list().data}
        except Exception:  # not every server lists its models, and a reply may be anything
            return False
        return bool(owners & {"vllm", "sglang"})

    def chat(
        self,
        conversations: Sequence[list[dict[str, str]]],
        *,
        seeds: Sequence[int] | None = None,
        tools: Sequence[Sequence[dict[str, Any]]] | None = None,
        on_reply: Callable[[int, Reply], None] | None = None,
        **sampling: Any,
    ) -> list[Reply]:
        """Ask for one completion of each conversation. Ctrl-C ends it at once.

        Args:
            conversations: Lists of messages.
            seeds: One seed per conversation.
            tools: JSON schemas of tools, one list per conversation.
            on_reply: Called with index and reply as each reply arrives.
            **sampling: ``max_tokens``, ``temperature``, ``top_p``, ``stop``, and what vLLM adds.
                ``None`` is not sent.

        Returns:
            One reply per conversation. After all retries, a failed reply has ``error`` set. It does
            not stop the others.

        Raises:
            RecipeError: The server refuses the model or the key.
        """
        address = self.check()
        extra_body = {name: value for name, value in sampling.items() if value is not None}
        shared = {name: extra_body.pop(name) for name in _OPENAI_PARAMETERS if name in extra_body}
        requests = []
        for number, messages in enumerate(conversations):
            request = {**shared, "extra_body": extra_body, "messages": messages}
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

        async with AsyncOpenAI(
            base_url=address, api_key=_key(), timeout=self.timeout, max_retries=self.max_retries
        ) as client:
            gate = asyncio.Semaphore(self.max_concurrency)

            async def ask_one(index: int) -> Reply:
                async with gate:
                    reply = await self._ask(client, address, requests[index])
                if on_reply is not None:
                    on_reply(index, reply)
                return reply

            # In a task group, one refusal or Ctrl-C ends all requests. Otherwise thousands would
            # keep running.
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(ask_one(index)) for index in range(len(requests))]
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
            # Drop the cause: a server may quote the key in it, and a traceback would show it.
            raise RecipeError(
                f"the server at {masked_text(address)} refuses model {self.model!r}: "
                f"{_error_text(error)}"
            ) from None
        except openai.OpenAIError as error:
            return Reply(
                error=_error_text(error),
                refused=getattr(error, "status_code", None) in (400, 413, 422),
            )
        # The reply has another shape, is nested too deeply, or is not JSON.
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            return Reply(error=f"the reply is not a chat completion: {_error_text(error)}")


def _key() -> str:
    # A local server takes any key, but the client insists on one.
    return os.environ.get("OPENAI_API_KEY", "").strip() or "none"


def _read(answer: Any) -> Reply:
    choice = answer.choices[0]
    message = choice.message
    ended = getattr(choice, "finish_reason", None)
    if ended not in _COMPLETE_REASONS:
        return Reply(
            error=masked_text(f"the completion was cut: finish_reason {str(ended)!r:.40}"),
            refused=ended == "content_filter",
        )
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    for text in (message.content, reasoning):
        if not isinstance(text, str | None):
            raise TypeError(f"a text is of type {type(text).__name__}")
    tokens = getattr(answer.usage, "completion_tokens", None)
    if type(tokens) is not int or not 0 <= tokens < 2**31:
        tokens = None
    calls = [call.model_dump() for call in getattr(message, "tool_calls", None) or ()]
    return Reply(message.content or "", calls or None, reasoning, tokens, ended)


def _error_text(error: Exception) -> str:
    """Return an error as one line without the key, which some servers quote."""
    import openai

    cause = None
    if type(error) is openai.APIConnectionError:
        # "Connection error." says little. Its cause names the reason.
        cause = error.__cause__
    text = masked_text(first_line(cause or error))
    return text if len(text) <= _ERROR_WIDTH else text[: _ERROR_WIDTH - 1] + "…"
