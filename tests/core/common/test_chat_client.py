"""The client of OpenAI-compatible servers, against real servers on the loopback that break in every
way a server can.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from r1_recipes.common import chat_client
from r1_recipes.common.chat_client import ChatServer
from r1_recipes.common.errors import RecipeError
from tests.support.loopback import Handler, loopback

pytest.importorskip("openai", reason="the extra 'generate' is not installed")

KEY = "sk-not-to-be-seen-0123456789"
ASK = [{"role": "user", "content": "2+2?"}]


@dataclass
class Answer:
    """What the stub sends after ``delay`` seconds: bytes as they are, the rest as JSON; ``claim``
    more bytes are announced than come.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    claim: int = 0
    content_type: str = "application/json"


def completion(
    content: Any = "4", finish_reason: str = "stop", tokens: Any = 3, **message: Any
) -> dict[str, Any]:
    """A chat completion as vLLM writes one."""
    message |= {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": finish_reason, "message": message, "logprobs": None}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 4}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stub",
        "choices": [choice], "usage": usage if tokens else None,
    }  # fmt: skip


class ChatStub:
    """A server on the loopback; ``script(request, number)`` says what it answers to the number-th
    request (from 0).
    """

    def __init__(self, script: Callable[[dict[str, Any], int], Answer]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = self.most = 0
        self.url = ""
        lock = threading.Lock()
        stub = self

        class Chat(Handler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.read())
                with lock:
                    number = len(stub.requests)
                    stub.requests.append(request)
                    stub.headers.append(
                        {
                            "path": self.path,
                            **{name.lower(): value for name, value in self.headers.items()},
                        }
                    )
                    stub.under_way += 1
                    stub.most = max(stub.most, stub.under_way)
                answer = script(request, number)
                time.sleep(answer.delay)
                body = (
                    answer.body
                    if isinstance(answer.body, bytes)
                    else json.dumps(answer.body).encode()
                )
                with lock:
                    stub.under_way -= 1
                self.send(
                    answer.status,
                    body,
                    {"Content-Type": answer.content_type, **answer.headers},
                    claim=answer.claim,
                )

        self.handler = Chat


def says(body: Any, **options: Any) -> Callable[[dict[str, Any], int], Answer]:
    """The same answer to every request."""
    return lambda request, number: Answer(body, **options)


def after(count: int, first: Answer, then: Any = None) -> Callable[[dict[str, Any], int], Answer]:
    """``first`` to that many requests, then a completion."""
    return lambda request, number: first if number < count else Answer(then or completion())


@pytest.fixture
def chat_stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ChatStub]]:
    """``chat_stub(script)`` starts a server and names it in the environment. The client waits only
    milliseconds between tries.
    """
    from openai import _base_client

    monkeypatch.setattr(_base_client, "INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr(_base_client, "MAX_RETRY_DELAY", 0.002)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with contextlib.ExitStack() as servers:

        def start(script: Callable[[dict[str, Any], int], Answer]) -> ChatStub:
            stub = ChatStub(script)
            stub.url = f"{servers.enter_context(loopback(stub.handler))}/v1"
            monkeypatch.setenv("OPENAI_BASE_URL", stub.url)
            return stub

        yield start


def test_a_reply_and_what_was_sent_for_it(chat_stub: Callable[..., ChatStub]) -> None:
    stub = chat_stub(says(completion("4", reasoning_content="2 and 2")))
    (reply,) = ChatServer("m").chat(
        [ASK], max_tokens=7, seeds=[5], temperature=0.0, top_p=None, top_k=20, stop=["\n"]
    )
    assert (reply.text, reply.reasoning, reply.tokens, reply.finish_reason, reply.error) == (
        "4",
        "2 and 2",
        3,
        "stop",
        None,
    )
    assert stub.requests == [
        {
            "model": "m",
            "messages": ASK,
            "max_tokens": 7,
            "seed": 5,
            "temperature": 0.0,
            "stop": ["\n"],
            "top_k": 20,
        }  # a None is not sent
    ]
    assert stub.headers[0]["path"] == "/v1/chat/completions"
    assert stub.headers[0]["authorization"] == f"Bearer {KEY}"


HALF = json.dumps(completion()).encode()[:90]


@pytest.mark.parametrize(
    "first",
    [
        Answer({"error": {"message": "busy"}}, status=500),
        Answer(b"<html>bad gateway</html>", status=502, content_type="text/html"),
        Answer({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0.01"}),
        Answer(completion(), delay=0.5),  # longer than the time-out
        Answer(HALF, claim=200),  # the connection is cut in the middle of the body
    ],
    ids=["500", "502", "429", "hang", "cut"],
)
def test_what_breaks_twice_and_then_works(
    chat_stub: Callable[..., ChatStub], first: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = chat_stub(after(2, first))
    monkeypatch.setattr(chat_client, "TIMEOUT", 0.15 if first.delay else 5.0)
    (reply,) = ChatServer("m").chat([ASK])
    assert (reply.text, reply.error) == ("4", None)
    assert len(stub.requests) == 3


@pytest.mark.parametrize(
    ("answer", "tries", "message"),
    [
        (Answer({"error": {"message": "no memory"}}, status=500), 3, "ServerError: .*no memory"),
        (Answer({"error": {"message": "too long"}}, status=400), 1, "BadRequestError: .*too long"),
        (Answer({"error": {"message": "x" * 5000}}, status=503), 3, "InternalServerError: .*x$"),
        (Answer(completion(), delay=0.4), 3, "APITimeoutError: Request timed out"),
        (Answer(HALF, claim=200), 3, "APIConnectionError: "),
        (Answer(HALF), 1, "^[A-Z][a-zA-Z]+Error: "),  # whole as HTTP, half as JSON
        (Answer(b"<html>log in</html>", content_type="text/html"), 1, "^[A-Z][a-zA-Z]+Error: "),
        (Answer(completion(finish_reason="abort")), 1, "was cut: finish_reason 'abort'"),
        (Answer(completion(finish_reason="content_filter")), 1, "finish_reason 'content_filter'"),
    ],
    ids=["500", "400", "503", "hang", "cut", "half", "html", "abort", "filter"],
)
def test_what_stays_broken_is_one_reply_s_error(
    chat_stub: Callable[..., ChatStub],
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
    tries: int,
    message: str,
) -> None:
    stub = chat_stub(
        lambda request, number: (
            answer if request["messages"][0]["content"] == "bad" else Answer(completion())
        )
    )
    asked = [[{"role": "user", "content": text}] for text in ("good", "bad", "fine")]
    monkeypatch.setattr(chat_client, "TIMEOUT", 0.1 if answer.delay else 5.0)
    monkeypatch.setattr(chat_client, "MAX_RETRIES", 2)
    server = ChatServer("m")
    replies = server.chat(asked)
    assert [reply.text for reply in replies] == ["4", "", "4"]
    assert [reply.error is None for reply in replies] == [True, False, True]
    assert re.search(message, replies[1].error) and len(replies[1].error) <= 440
    assert sum(request["messages"][0]["content"] == "bad" for request in stub.requests) == tries
    # A strict call ends with the first failure, unless the server refuses the content.
    assert replies[1].refused == (answer.status == 400 or "filter" in message)
    monkeypatch.setattr(chat_client, "TIMEOUT", chat_client.TIMEOUT / 6)  # it waits longer
    if not replies[1].refused:
        with pytest.raises(RecipeError, match=r"the server at .* fails: .*run the same command"):
            server.chat(asked, strict=True)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_ends_all_at_once(chat_stub: Callable[..., ChatStub], status: int) -> None:
    stub = chat_stub(says({"error": {"message": "no such model"}}, status=status))
    with pytest.raises(RecipeError, match=r"server at .* refuses model 'm': .*no such model"):
        ChatServer("m", max_concurrency=1).chat([ASK] * 5)
    assert len(stub.requests) <= 2  # one may be on its way


def raise_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "handler", [signal.default_int_handler, raise_interrupt], ids=["python's", "a run's own"]
)
def test_ctrl_c_ends_promptly(chat_stub: Callable[..., ChatStub], handler: Any) -> None:
    stub = chat_stub(says(completion(), delay=20.0))

    def press() -> None:
        while stub.under_way < 16:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, handler)
    begin = time.monotonic()
    try:
        threading.Thread(target=press, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            ChatServer("m").chat([ASK] * 40)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert time.monotonic() - begin < 5.0
    assert len(stub.requests) == 16
