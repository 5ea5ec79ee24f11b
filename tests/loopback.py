"""A server of HTTP on loopback, for the tests that need one; what it answers is theirs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Reads and sends whole bodies, and says nothing on the terminal."""

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, claim: int = 0) -> None:
        """Answer with ``body``, of which ``Content-Length`` says that it has ``claim`` bytes more; a client that has left is no error."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            for key, value in {"Content-Type": "application/json", **(headers or {}), "Content-Length": str(len(body) + claim)}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        self.close_connection = self.close_connection or bool(claim)

    def log_message(self, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64  # the default of 5 makes the kernel put the sixth connection off for a second


@contextlib.contextmanager
def loopback(handler: type[Handler]) -> Iterator[str]:
    """Serve on a free port until the block ends; yields the address, without a slash at its end."""
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
