"""The code reward: what counts as the program, as a test case, as passed; what is run how often;
and that cheating does not pay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from r1_recipes.extras.code import reward as code_module
from r1_recipes.extras.code.reward import Case, extract_code, last_fence, read_test_cases
from r1_recipes.extras.code.sandbox import Call, Outcome, SandboxError
from r1_recipes.extras.code.sandbox.bubblewrap import Bubblewrap
from r1_recipes.prompts import get_response_format
from r1_recipes.rewards import get_reward_funcs

pytestmark = pytest.mark.slow

THINK = get_response_format("think_answer")
DOUBLE = "print(2 * int(input()))"


def answer(code: str, tag: str = "python") -> str:
    return f"<think>\nwork\n</think>\n<answer>\n```{tag}\n{code}\n```\n</answer>"


def info(
    *cases: tuple[str, str], language: str | None = "python", function: str | None = None
) -> dict[str, Any]:
    kind = "stdin_stdout" if function is None else "function_call"
    entries = [
        {"fn_name": function, "input": given, "output": wanted, "type": kind}
        for given, wanted in cases
    ]
    return {"language": language, "test_cases": entries}


# 4 -> 8, -1 -> -2 and 0 -> 1, which doubling does not give: 2 of 3.
DOUBLING = info(("4\n", "8\n"), ("-1\n", "-2\n"), ("0\n", "1\n"))


def build(name: str = "code", **params: Any) -> Any:
    (reward,) = get_reward_funcs([name], params.pop("response_format", THINK), **params)
    return reward


class Log(dict):
    __call__ = dict.__setitem__


class NoSandbox:
    """Runs nothing: the program's text is looked up in a table of what it would print. For tests
    alone; no recipe can name it.
    """

    name = "table"

    def __init__(self) -> None:
        self.table: dict[str, Callable[[bytes], Outcome]] = {}
        self.ran: list[tuple[str, bytes]] = []
        self.error: Exception | None = None
        self.at_once = self.most_at_once = 0
        self.limits: tuple[int, int] | None = None
        self.lock = threading.Lock()

    def run(self, code: str, call: Call) -> Outcome:
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if isinstance(self.error, SandboxError):
                raise self.error
            self.limits = (call.cpu_seconds, call.memory_mb)
            with self.lock:
                self.ran.append((code, call.stdin))
            return self.table[code](call.stdin)
        finally:
            with self.lock:
                self.at_once -= 1


def doubling(stdin: bytes) -> Outcome:
    return Outcome("ok", b"%d\n" % (2 * int(stdin)))


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> NoSandbox:
    found = NoSandbox()
    found.table[DOUBLE] = doubling
    monkeypatch.setattr(code_module, "get_sandbox", lambda *kind: found)
    return found


@pytest.fixture(scope="module")
def bwrap() -> None:
    try:
        Bubblewrap().check()
    except SandboxError as error:
        pytest.skip(str(error))


class TestTheProgram:
    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("```python\nx = 1\n```", "x = 1"),
            ("```py\nx = 1\n```", "x = 1"),
            ("```Python3 \nx = 1\n```", "x = 1"),
            ("first\n```python\nx = 1\n```\nthen\n```python\nx = 2\n```\nend", "x = 2"),
            ("```python\nx = 1\n```\n```bash\nls\n```", "x = 1"),
            ("```\nx = 1\n```", None),
            ("```cpp\nint x;\n```", None),
            ("x = 1", None),
            ("```python\nx = 1", None),  # cut off
            ("```python\nx = 1\n```\n```python\nx = 2", "x = 1"),
            ("Here: ```python\nx = 1\n```", "x = 1"),
            ("```python\nx = 1```", "x = 1"),
            ("```python\n```", ""),
            ("1. So:\n   ```python\n   if x:\n       y()\n   ```", "if x:\n    y()"),
            ("```python\r\nx = 1\r\ny = 2\r\n```", "x = 1\ny = 2"),
            (
                "```python\ns = '\u2028\x0c'\n```",
                "s = '\u2028\x0c'",
            ),  # line breaks to splitlines() alone
            ("use `` ```python `` here", None),
            ("", None),
        ],
    )
    def test_the_last_closed_fence(self, text, code):
        assert last_fence(text, ("python", "py", "python3")) == code

    def test_only_the_answer_counts(self):
        fence = "```python\nx = 1\n```"
        assert extract_code(THINK, answer("x = 1"), "python") == "x = 1"
        for text in (
            f"<think>\n{fence}\n</think>\n<answer>\nno\n</answer>",
            f"<think>\n{fence}",
            fence,
            f"<think>\na\n</think>\n{fence}",
            answer("  "),  # no program
        ):
            assert extract_code(THINK, text, "python") is None


class TestCases:
    @pytest.mark.parametrize(
        "unusable",
        [
            None,
            "",
            "no JSON",
            "[" * 100_000,
            7,
            [],
            {},
            {"test_cases": []},
            {"test_cases": "x"},
            {"test_cases": [None]},
            {"test_cases": [{"input": "1", "output": None}]},
            {"test_cases": [{"input": "1", "output": "1"}, {"input": "1"}]},
            info(("1", "1"), language="cpp"),
            info(("(", "1"), function="f"),
            info(("1", "{1"), function="f"),
            info(("1", "{1}"), function="f"),  # a set has no JSON
        ],
    )
    def test_rows_that_cannot_be_judged(self, unusable):
        assert read_test_cases(unusable, "python") is None

    @pytest.mark.parametrize(
        ("expected", "printed", "passed"),
        [
            ("8\n", "8\n", True),
            ("8", "8\n", True),
            ("8\n", "  8 \n\n", True),
            ("1\n2\n", "1 \n2", True),
            (
                "1\n2\n",
                "1\n",
                False,
            ),  # open-r1 compares as many lines as there are in the shorter one
            ("1\n", "1\n2\n", False),
            ("1 2", "1  2", False),
            ("8", "8.0", False),
            ("8", "", False),
            ("", "", True),
            ("é", "é", True),
            ("YES", "yes", False),
        ],
    )
    def test_what_passes(self, expected, printed, passed):
        assert Case(b"", expected).passed(Outcome("ok", printed.encode())) is passed
        for status in ("error", "timeout", "output"):
            assert not Case(b"", expected).passed(Outcome(status, printed.encode()))

    @pytest.mark.parametrize(
        ("expected", "returned", "passed"),
        [
            ([1, 2], b"[1, 2]", True),
            ([7], b"7", True),  # APPS wraps results
            (7, b"[7]", False),
            (0.5, b"0.5", True),
            ("a", b'"a"', True),
            ("a", b"a", False),
            ({"a": 1}, b'{"a": 1}', True),
            (1, b"", False),
            (1, b"\xff", False),
            ([], b"[" * 100_000, False),
            (1, b"9" * 5000, False),  # more digits than Python converts
        ],
    )
    def test_what_a_function_returns(self, expected, returned, passed):
        assert Case(b"[]", expected, "f").passed(Outcome("ok", returned)) is passed


class TestScores:
    def test_the_share_of_passed_cases(self, box):
        assert build()(completions=[answer(DOUBLE)], verification_info=[DOUBLING]) == [2 / 3]

    def test_what_is_not_judged_and_what_is_wrong(self, box):
        log = Log()
        completions = [
            answer(DOUBLE),
            "no fence",
            answer(DOUBLE),
            answer("x" * 70_000),
            [{"role": "assistant", "content": answer(DOUBLE)}],
            [],
        ]
        infos = [None, DOUBLING, info(("1", "1"), language="rust"), DOUBLING, DOUBLING, DOUBLING]
        scores = build()(
            completions=completions, verification_info=infos, log_extra=log, log_metric=log
        )
        assert scores == [None, 0.0, None, 0.0, 2 / 3, 0.0]
        words = [
            "no test cases",
            "no code",
            "no test cases",
            "no code",
            "2 of 3; case 3: wrong output",
            "no code",
        ]
        assert log["code_result"] == words
        assert (log["code/no_code"], log["code/timeouts"], log["code/unjudged"]) == (3.0, 0.0, 0.0)
        assert log["code/seconds"] >= 0


class TestCost:
    def test_each_distinct_pair_is_run_once(self, box):
        other = info(("5\n", "10\n"))
        reward = build()
        completions, infos = [answer(DOUBLE)] * 4, [DOUBLING, DOUBLING, other, DOUBLING]
        assert reward(completions=completions, verification_info=infos) == [
            2 / 3,
            2 / 3,
            1.0,
            2 / 3,
        ]
        assert len(box.ran) == 3 + 1
        build(code_timeout=9)(completions=completions[:1], verification_info=infos[:1])
        assert len(box.ran) == 7 and box.limits == (9, 512)


class TestCheating:
    def test_an_honest_program_scores(self, bwrap):
        reward = build(code_timeout=20)
        texts = [
            answer(DOUBLE),
            answer("class Solution:\n    def add(self, a, b):\n        return a + b"),
            answer("print(input()[::-1])"),
        ]
        infos = [
            DOUBLING,
            info(("[1, 2]", "3"), ("[[1], [2]]", "[1, 2]"), function="add"),
            info(("abc\n", "cba\n")),
        ]
        assert reward(completions=texts, verification_info=infos) == [2 / 3, 1.0, 1.0]
