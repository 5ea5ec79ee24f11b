"""A chat-completions server on loopback that does what a test tells it to; no model, no
dependency.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.loopback import Handler, loopback


def reply(text: str, tokens: Any = 5) -> dict[str, Any]:
    """The body of a chat completion."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 6},
    }


@contextlib.contextmanager
def chat_server(
    answer: Callable[[dict[str, Any], int], Any], owner: str | None = None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve until the block ends.

    Args:
        answer: called with a request's body and how often that same body was asked before; returns
            a dict (the reply's body), an int (an
            HTTP error), ``"cut"`` (half a body, then the connection is closed) or a float (seconds
            to wait before a usual reply).
        owner: who serves, in the list of models; without one there is no list.

    Yields:
        The base URL, and the bodies received so far.
    """
    seen: list[dict[str, Any]] = []

    class Chat(Handler):
        def do_GET(self) -> None:
            models = {"data": [{"id": "m", "object": "model", "created": 0, "owned_by": owner}]}
            self.send(200 if owner else 404, json.dumps(models).encode())

        def do_POST(self) -> None:
            body = json.loads(self.read())
            before = seen.count(body)
            seen.append(body)
            result = answer(body, before)
            if isinstance(result, float):
                time.sleep(result)
                result = reply("late")
            if isinstance(result, int):
                return self.send(result, b'{"error": {"message": "told to"}}')
            content = json.dumps(reply("cut") if result == "cut" else result).encode()
            half = len(content) // 2 if result == "cut" else 0
            self.send(200, content[: len(content) - half], claim=half)

    with loopback(Chat) as url:
        yield f"{url}/v1", seen
