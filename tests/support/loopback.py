"""Servers of HTTP on loopback for the tests that need one: their own, or a command's."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Reads and sends whole bodies, and says nothing on the terminal."""

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, claim: int = 0
    ) -> None:
        """Answer with ``body``, of which ``Content-Length`` says that it has ``claim`` bytes more;
        a client that has left is no error.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            for key, value in {
                "Content-Type": "application/json",
                **(headers or {}),
                "Content-Length": str(len(body) + claim),
            }.items():
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
    request_queue_size = (
        64  # the default of 5 makes the kernel put the sixth connection off for a second
    )


@contextlib.contextmanager
def loopback(handler: type[Handler]) -> Iterator[str]:
    """Serve on a free port until the block ends; yields the address, without a slash at its end."""
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def serving(
    words: Callable[[int], list[str]], log: Path, environment: dict[str, str], cwd: Path
) -> Iterator[str]:
    """The command ``words(port)``, which serves on that free port, until the block ends; yields
    ``127.0.0.1:port`` once it is healthy.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{(port := listener.getsockname()[1])}"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            words(port), cwd=cwd, env=environment, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + 300
        while not _answers(f"http://{address}/health"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(
                encoding="utf-8"
            )[-6000:]
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False
