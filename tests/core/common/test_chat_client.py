"""The client of OpenAI-compatible servers, against real servers on the loopback that break in every
way a server can.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from r1_recipes.common.chat_client import ChatServer
from r1_recipes.common.errors import RecipeError
from tests.support.loopback import Handler, loopback
from tests.support.needs import needs

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
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": content, **message},
                "logprobs": None,
            }
        ],
        "usage": None
        if tokens is None
        else {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 4},
    }


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


@needs("agents")
def test_each_request_is_sent_with_its_own_tools(
    chat_stub: Callable[..., ChatStub],
) -> None:
    from r1_recipes.completions.openai import OpenAIBackend
    from r1_recipes.completions.types import Request
    from r1_recipes.extras.agents.registry import TOOLS
    from r1_recipes.recipe.types import RecipeArguments, SamplingSettings

    stub = chat_stub(says(completion("4")))
    model, script = (
        SimpleNamespace(model_name_or_path="m"),
        RecipeArguments(dataset_name="d", response_format="boxed"),
    )
    backend = OpenAIBackend(
        SimpleNamespace(model=model, script=script, training=SamplingSettings())
    )
    # Rows of two environments, one of which has no methods.
    requests = [
        Request(0, [{"role": "user", "content": "plain"}]),
        Request(1, ASK, (TOOLS["calculator"],)),
    ]
    backend.run(requests, lambda index, made, error: None, [(0.0, 1)])
    sent = {request["messages"][0]["content"]: request.get("tools") for request in stub.requests}
    assert sent["plain"] is None and sent["2+2?"][0]["function"]["name"] == "calculator"


def test_reasoning_under_its_other_name_and_no_usage(chat_stub: Callable[..., ChatStub]) -> None:
    chat_stub(says(completion("4", "length", None, reasoning="2 and 2")))
    (reply,) = ChatServer("m").chat([ASK])
    assert (reply.text, reply.reasoning, reply.tokens, reply.finish_reason) == (
        "4",
        "2 and 2",
        None,
        "length",
    )


def test_content_null_is_an_empty_text(chat_stub: Callable[..., ChatStub]) -> None:
    # What a reasoning parser leaves of a completion that was cut off before its answer.
    stub = chat_stub(says(completion(None, "length", reasoning_content="so")))
    (reply,) = ChatServer("m").chat([ASK])
    assert (reply.text, reply.reasoning, reply.error) == ("", "so", None)
    assert len(stub.requests) == 1


def test_a_reply_without_what_it_may_leave_out(chat_stub: Callable[..., ChatStub]) -> None:
    bare = {"choices": [{"message": {"content": "4"}}], "usage": {}}
    chat_stub(says(bare))
    (reply,) = ChatServer("m").chat([ASK])
    assert (reply.text, reply.reasoning, reply.tokens, reply.finish_reason, reply.error) == (
        "4",
        None,
        None,
        None,
        None,
    )


def test_replies_keep_their_order_and_are_reported_as_they_arrive(
    chat_stub: Callable[..., ChatStub],
) -> None:
    def script(request: dict[str, Any], number: int) -> Answer:
        asked = request["messages"][0]["content"]
        return Answer(
            completion(f"re {asked} {request['seed']}"), delay=0.03 if asked == "0" else 0.0
        )

    chat_stub(script)
    told: dict[int, str] = {}
    conversations = [[{"role": "user", "content": str(i)}] for i in range(10)]
    replies = ChatServer("m").chat(
        conversations, seeds=range(100, 110), on_reply=lambda i, reply: told.update({i: reply.text})
    )
    assert [reply.text for reply in replies] == [f"re {i} {100 + i}" for i in range(10)]
    assert told == {i: reply.text for i, reply in enumerate(replies)}
    assert next(iter(told)) != 0  # the slow one is not waited for
    assert ChatServer("m").chat([]) == []


def test_no_more_requests_at_once_than_allowed(chat_stub: Callable[..., ChatStub]) -> None:
    stub = chat_stub(says(completion(), delay=0.03))
    replies = ChatServer("m", max_concurrency=3).chat([ASK] * 12)
    assert [reply.text for reply in replies] == ["4"] * 12
    assert stub.most == 3


HALF = json.dumps(completion()).encode()[:90]
DEEP = (
    json.dumps(completion())
    .encode()
    .replace(b'"logprobs": null', b'"logprobs": ' + b"[" * 100_000 + b"]" * 100_000)
)


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
    chat_stub: Callable[..., ChatStub], first: Answer
) -> None:
    stub = chat_stub(after(2, first))
    (reply,) = ChatServer("m", timeout=0.15 if first.delay else 5.0).chat([ASK])
    assert (reply.text, reply.error) == ("4", None)
    assert len(stub.requests) == 3


def test_retry_after_is_kept(chat_stub: Callable[..., ChatStub]) -> None:
    chat_stub(after(1, Answer({}, status=429, headers={"Retry-After": "0.3"})))
    begin = time.monotonic()
    ChatServer("m").chat([ASK])
    assert time.monotonic() - begin > 0.3  # without the header: 2 ms


@pytest.mark.parametrize(
    ("answer", "tries", "message"),
    [
        (
            Answer({"error": {"message": "out of memory"}}, status=500),
            3,
            "InternalServerError: .*out of memory",
        ),
        (
            Answer({}, status=429, headers={"Retry-After": "3600"}),
            1,
            "RateLimitError",
        ),  # nobody waits an hour
        (
            Answer({"error": {"message": "prompt too long"}}, status=400),
            1,
            "BadRequestError: .*prompt too long",
        ),
        (Answer({"error": {"message": "x" * 5000}}, status=503), 3, "InternalServerError: .*x…$"),
        (Answer(completion(), delay=0.4), 3, "APITimeoutError: Request timed out"),
        (
            Answer(HALF, claim=200),
            3,
            "RemoteProtocolError: ",
        ),  # what lies under the client's "Connection error."
        (Answer(HALF), 1, "the reply is not a chat completion: "),  # whole as HTTP, half as JSON
        (Answer({"choices": []}), 1, "the reply is not a chat completion: IndexError"),
        (Answer({"choices": None}), 1, "the reply is not a chat completion: TypeError"),
        (Answer({"choices": [{}]}), 1, "the reply is not a chat completion: AttributeError"),
        (Answer([1]), 1, "the reply is not a chat completion: AttributeError"),
        (
            Answer(completion(7)),
            1,
            "the reply is not a chat completion: TypeError: a text is of type int",
        ),
        (
            Answer(completion(reasoning_content=["so"])),
            1,
            "not a chat completion: TypeError: a text is of type list",
        ),
        (Answer(DEEP), 1, "not a chat completion: RecursionError"),
        (
            Answer(b"<html>log in</html>", content_type="text/html"),
            1,
            "not a chat completion: AttributeError",
        ),
        (
            Answer(completion(finish_reason="abort")),
            1,
            "the completion was cut: finish_reason 'abort'",
        ),
        (Answer(completion(finish_reason=["stop"])), 1, "the completion was cut: finish_reason "),
        (
            Answer(completion(finish_reason="content_filter")),
            1,
            "the completion was cut: finish_reason 'content_filter'",
        ),
    ],
    ids=(
        *("500", "429", "400", "503", "hang", "cut", "half", "no choice", "null", "empty", "list"),
        *("number", "reasoning", "deep", "html", "abort", "list reason", "filter"),
    ),
)
def test_what_stays_broken_is_one_reply_s_error(
    chat_stub: Callable[..., ChatStub], answer: Answer, tries: int, message: str
) -> None:
    stub = chat_stub(
        lambda request, number: (
            answer if request["messages"][0]["content"] == "bad" else Answer(completion())
        )
    )
    asked = ["good", "bad", "fine"]
    timeout = 0.1 if answer.delay else 5.0
    replies = ChatServer("m", timeout=timeout, max_retries=2).chat(
        [[{"role": "user", "content": text}] for text in asked]
    )
    assert [reply.text for reply in replies] == ["4", "", "4"]
    assert [reply.error is None for reply in replies] == [True, False, True]
    assert replies[1].finish_reason is None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(replies[1].error)
    assert len(replies[1].error) <= 440  # 400 and a lead
    assert sum(request["messages"][0]["content"] == "bad" for request in stub.requests) == tries


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_ends_all_at_once_and_shows_no_key(
    chat_stub: Callable[..., ChatStub],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    stub = chat_stub(
        says(
            {"error": {"message": f"Incorrect API key provided: {KEY}, or no such model"}},
            status=status,
        )
    )
    monkeypatch.setenv("OPENAI_BASE_URL", stub.url.replace("//", "//user:hidden-word@"))
    caplog.set_level(logging.DEBUG)
    with pytest.raises(
        RecipeError,
        match=rf"server at http://\*\*\*@{stub.url[7:]} refuses model 'm': .*\*\*\*, or no such "
        rf"model",
    ) as refusal:
        ChatServer("m", max_concurrency=1).chat([ASK] * 5)
    assert len(stub.requests) == 1
    shown = "".join(traceback.format_exception(refusal.value)) + caplog.text
    assert "openai" in caplog.text  # its debug messages are there to be looked at
    assert KEY not in shown
    assert "hidden-word" not in str(refusal.value)


def test_no_log_and_no_reply_shows_the_key(
    chat_stub: Callable[..., ChatStub], caplog: pytest.LogCaptureFixture
) -> None:
    chat_stub(says({"error": {"message": f"you sent {KEY}"}}, status=500))
    caplog.set_level(logging.DEBUG)
    (reply,) = ChatServer("m", max_retries=1).chat([ASK])
    assert "you sent ***" in reply.error
    assert "openai" in caplog.text
    assert KEY not in caplog.text
    assert KEY not in repr(ChatServer("m")) + str(pickle.dumps(ChatServer("m")))


def test_a_key_with_a_line_break_and_no_key(
    chat_stub: Callable[..., ChatStub], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = chat_stub(says(completion()))
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")  # as `$(cat key)` in a .env file leaves it
    assert ChatServer("m").chat([ASK])[0].text == "4"
    monkeypatch.delenv("OPENAI_API_KEY")
    assert ChatServer("m").chat([ASK])[0].text == "4"
    assert [headers["authorization"] for headers in stub.headers] == [
        f"Bearer {KEY}",
        "Bearer none",
    ]


def test_a_server_that_does_not_listen(
    chat_stub: Callable[..., ChatStub], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    chat_stub(says(completion()))  # for the short waits
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    replies = ChatServer("m", max_retries=1).chat([ASK] * 2)
    assert [reply.error for reply in replies] == [
        "ConnectError: All connection attempts failed."
    ] * 2


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (None, "OPENAI_BASE_URL: must start with http.*, got ''"),
        ("", "OPENAI_BASE_URL: must start with http.*, got ''"),
        ("127.0.0.1:8000/v1", r"OPENAI_BASE_URL: must start with .*, got '127\.0\.0\.1:8000/v1'"),
    ],
)
def test_an_invalid_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str | None, message: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", address) if address is not None else monkeypatch.delenv(
        "OPENAI_BASE_URL", raising=False
    )
    with pytest.raises(RecipeError, match=message):
        ChatServer("m").chat([ASK])


def test_without_the_client_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(RecipeError, match=r"pip install -c constraints\.txt -e '\.\[generate\]'"):
        ChatServer("m").check()


@pytest.mark.parametrize("tokens", ["few", -1, 1.5, 10**30])
def test_an_invalid_count_of_tokens_is_dropped(
    chat_stub: Callable[..., ChatStub], tokens: Any
) -> None:
    chat_stub(says(completion(tokens=tokens)))
    (reply,) = ChatServer("m").chat([ASK])
    assert (reply.text, reply.tokens) == ("4", None)


def test_an_error_of_on_reply_ends_the_rest(chat_stub: Callable[..., ChatStub]) -> None:
    stub = chat_stub(says(completion()))

    def full_disk(index: int, reply: Any) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        ChatServer("m", max_concurrency=1).chat([ASK] * 5, on_reply=full_disk)
    assert len(stub.requests) <= 2


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


def test_proxies_are_the_environment_s(
    chat_stub: Callable[..., ChatStub], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = chat_stub(says(completion("by the proxy")))
    direct = chat_stub(says(completion("direct")))
    monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
    assert ChatServer("m").chat([ASK])[0].text == "by the proxy"
    assert proxy.headers[0]["path"] == f"{direct.url}/chat/completions"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    assert ChatServer("m").chat([ASK])[0].text == "direct"


def test_importing_loads_no_client() -> None:
    code = (
        "import sys, r1_recipes.common.chat_client; print(*(name for name in ('openai', 'torch') "
        "if name in sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        == []
    )
