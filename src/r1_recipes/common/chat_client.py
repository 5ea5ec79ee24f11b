"""Get completions and verdicts from any OpenAI-compatible server.

The server is ``vllm serve``, ``transformers serve``, a hosted teacher or a hosted judge.
``OPENAI_BASE_URL`` holds the address and ``OPENAI_API_KEY`` the key. ``HTTP_PROXY`` and
``HTTPS_PROXY`` apply to this machine too: with them, a local server needs
``NO_PROXY=127.0.0.1,localhost``.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line

# Finish reasons of a reply that is not what the model would have said: vLLM's end, and filters.
_BROKEN_OFF = ("abort", "error", "content_filter")
# Seconds that a judge may take, while other ranks wait. No byte comes before a reply is whole, so
# long completions get six times as many.
TIMEOUT = 600.0
# The client doubles its waits from half a second up to eight: a minute in all.
MAX_RETRIES = 10


@dataclass(frozen=True)
class Reply:
    text: str = ""
    reasoning: str | None = None  # from the field reasoning_content or reasoning
    tokens: int | None = None  # generated tokens, as the server counts them
    finish_reason: str | None = None  # "stop", "length", …
    error: str | None = None  # why there is no text, after all retries
    # The request itself causes the error (too long, filtered), so a retry would not help.
    refused: bool = False


@dataclass(frozen=True)
class ChatServer:
    """A chat-completions endpoint that answers many requests at once.

    The openai client tries again after a lost connection, a time-out, 408, 409, 429 or 5xx.
    """

    model: str
    max_concurrency: int = 16

    def check(self) -> str:
        """Return the server's address.

        Raise RecipeError if the address or the client package is missing.
        """
        if find_spec("openai") is None:
            raise RecipeError(
                "an OpenAI-compatible server needs the package openai. Fix: "
                "pip install -c constraints.txt -e '.[generate]'"
            )
        address = os.environ.get("OPENAI_BASE_URL", "")
        if not address.startswith(("http://", "https://")):
            raise RecipeError(
                "OPENAI_BASE_URL: must start with http:// or https://, got "
                f"{address!r}. Fix: http://127.0.0.1:8000/v1 for a local `vllm serve`. "
                "OPENAI_API_KEY holds the key"
            )
        return address

    def takes_vllms_keys(self) -> bool:
        """Return whether the server says that it is vLLM or SGLang, which take ``top_k``, ``min_p``
        and ``repetition_penalty``.
        """
        import openai

        client = openai.OpenAI(base_url=self.check(), api_key=_key(), timeout=10)
        try:
            with client:
                owners = {model.owned_by for model in client.models.list().data}
        except Exception:  # not every server lists its models, and a reply may be anything
            return False
        return bool(owners & {"vllm", "sglang"})

    def chat(
        self,
        conversations: Sequence[list[dict[str, Any]]],
        *,
        seeds: Sequence[int] | None = None,
        strict: bool = False,
        **sampling: Any,
    ) -> list[Reply]:
        """Ask for one completion of each conversation. Ctrl-C ends it at once.

        Args:
            conversations: Lists of messages.
            seeds: One seed per conversation.
            strict: Raise for the first request that fails, unless the server refuses its content.
            **sampling: ``max_tokens``, ``temperature``, ``top_p``, ``stop``, and what vLLM adds.
                ``None`` is not sent.

        Returns:
            One reply per conversation. After all retries, a failed reply has ``error`` set.

        Raises:
            RecipeError: The server refuses the model or the key, or a request failed (``strict``).
        """
        body = {name: value for name, value in sampling.items() if value is not None}
        # The client merges extra_body into the request, so it may hold OpenAI's parameters, too.
        requests: list[dict[str, Any]] = [
            {"extra_body": body, "messages": messages} for messages in conversations
        ]
        for request, seed in zip(requests, seeds or (), strict=False):
            request["seed"] = seed
        return asyncio.run(self._ask_all(requests, strict))

    async def _ask_all(self, requests: list[dict[str, Any]], strict: bool) -> list[Reply]:
        from openai import AsyncOpenAI, Timeout

        address, gate = self.check(), asyncio.Semaphore(self.max_concurrency)

        async def ask(request: dict[str, Any]) -> Reply:
            async with gate:
                reply = await self._ask(client, address, request)
            if strict and reply.error and not reply.refused:
                raise RecipeError(
                    f"the server at {address} fails: {reply.error} Fix: correct the cause, then "
                    "run the same command to resume"
                )
            return reply

        client = AsyncOpenAI(
            base_url=address,
            api_key=_key(),
            timeout=Timeout(TIMEOUT * (6 if strict else 1), connect=min(30.0, TIMEOUT)),
            max_retries=MAX_RETRIES,
        )
        # At an error or Ctrl-C, asyncio.run() cancels what is still running.
        replies = await asyncio.gather(*map(ask, requests))
        await client.close()
        return replies

    async def _ask(self, client: Any, address: str, request: dict[str, Any]) -> Reply:
        import openai

        gone = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)
        try:
            answer = await client.chat.completions.create(model=self.model, **request)
            choice = answer.choices[0]
        except gone as error:
            raise RecipeError(
                f"the server at {address} refuses model {self.model!r}: {first_line(error)}"
            ) from None
        # Or the reply has another shape, for example that of a page on which to log in.
        except (openai.OpenAIError, AttributeError, LookupError, TypeError, ValueError) as error:
            refused = getattr(error, "status_code", None) in (400, 413, 422)
            return Reply(error=first_line(error)[:400], refused=refused)
        message, ended = choice.message, choice.finish_reason
        if ended in _BROKEN_OFF:
            return Reply(
                error=f"the completion was cut: finish_reason {ended!r}.",
                refused=ended == "content_filter",
            )
        reasoning = getattr(message, "reasoning_content", None) or getattr(
            message, "reasoning", None
        )
        return Reply(
            message.content or "",
            reasoning,
            getattr(answer.usage, "completion_tokens", None),
            ended,
        )


def _key() -> str:
    # A local server takes any key, but the client insists on one.
    return os.environ.get("OPENAI_API_KEY", "").strip() or "none"
