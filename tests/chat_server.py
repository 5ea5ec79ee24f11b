"""A chat-completions server on loopback that does what a test tells it to; no model, no dependency."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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
def chat_server(answer: Callable[[dict[str, Any], int], Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve until the block ends.

    Args:
        answer: called with a request's body and how often that same body was asked before; returns a dict (the reply's body), an int (an
            HTTP error), ``"cut"`` (half a body, then the connection is closed) or a float (seconds to wait before a usual reply).

    Yields:
        The base URL, and the bodies received so far.
    """
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            before = seen.count(body)
            seen.append(body)
            result = answer(body, before)
            if isinstance(result, float):
                time.sleep(result)
                result = reply("late")
            status, content = (result, b'{"error": {"message": "told to"}}') if isinstance(result, int) else (200, None)
            content = content or json.dumps(reply("cut") if result == "cut" else result).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client may have given up
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if result == "cut" else content)
            self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
