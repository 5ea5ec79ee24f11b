"""The code reward: what counts as the program, as a test case, as passed; what is run how often;
and that cheating does not pay.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.processes import cores_per_rank
from r1_recipes.data import MAPPERS
from r1_recipes.extras.code import reward as code_module
from r1_recipes.extras.code.reward import (
    Case,
    extract_code,
    get_sandbox,
    last_fence,
    read_test_cases,
)
from r1_recipes.extras.code.sandbox import Call, Outcome, SandboxError, bubblewrap
from r1_recipes.extras.code.sandbox.bubblewrap import Bubblewrap, payload
from r1_recipes.prompts import get_response_format
from r1_recipes.rewards import get_reward_funcs

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

    @given(st.text(alphabet="`py thon\n\r x", max_size=200))
    def test_any_text_can_be_read(self, text):
        assert last_fence(text, ("python",)) is None or "```python" in text

    def test_reading_is_linear(self):
        # One pass: a search that began anew at each of 30,000 fences would take minutes.
        hostile = "```python\nx\n" * 30_000
        began = time.monotonic()
        last_fence(hostile, ("python",))
        last_fence("`" * 300_000, ("python",))
        assert time.monotonic() - began < 10

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

    @pytest.mark.parametrize("name", ["think_boxed", "boxed", "special_token"])
    def test_formats_without_answer_tags(self, name):
        fmt = get_response_format(name)
        opening, closing = fmt.reasoning_tags or ("", "")
        assert (
            extract_code(
                fmt, f"{opening}```python\nno\n```{closing}\n```python\nx = 1\n```", "python"
            )
            == "x = 1"
        )
        if fmt.reasoning_tags:
            assert extract_code(fmt, f"{opening}\n```python\nno\n```", "python") is None


class TestCases:
    def test_a_row_of_the_documented_schema(self):
        assert read_test_cases(DOUBLING, "python") == [
            Case(b"4\n", "8\n"),
            Case(b"-1\n", "-2\n"),
            Case(b"0\n", "1\n"),
        ]

    def test_the_mappers_examples(self):
        for row in MAPPERS["verifiable_code"].examples:
            assert read_test_cases(row["verification_info"], "python")

    def test_other_spellings_of_the_same(self):
        plain = read_test_cases(DOUBLING, "python")
        for spelling in (
            json.dumps(DOUBLING),
            {"language": "Python", "test_cases": json.dumps(DOUBLING["test_cases"])},
            {"language": "python3", "test_cases": DOUBLING["test_cases"]},
            {"test_cases": DOUBLING["test_cases"]},
        ):
            assert read_test_cases(spelling, "python") == plain

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
        ("given", "arguments"),
        [
            ("[1, [2, 3]]", [1, [2, 3]]),
            ("['a', True, None]", ["a", True, None]),
            ([1, 2], [1, 2]),
            (None, []),
        ],
    )
    def test_arguments_of_a_function(self, given, arguments):
        (case,) = read_test_cases(
            {"test_cases": [{"input": given, "output": "1", "fn_name": "f"}]}, "python"
        )
        assert json.loads(case.stdin) == arguments and case.function == "f"

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

    @given(st.binary(max_size=50))
    def test_any_output_can_be_compared(self, output):
        assert Case(b"", "expected-output").passed(Outcome("ok", output)) is False
        assert Case(b"", ["expected"], "f").passed(Outcome("ok", output)) is False

    @settings(max_examples=30)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3),
        )
    )
    def test_any_row_can_be_read(self, value):
        for row in (
            value,
            {"test_cases": value},
            {"test_cases": [{"input": value, "output": value, "fn_name": value}]},
        ):
            found = read_test_cases(row, "python")
            assert found is None or all(isinstance(case, Case) for case in found)

    def test_what_is_expected_never_goes_in(self):
        cases = read_test_cases(info(("[1]", "424242"), function="f"), "python") + read_test_cases(
            info(("1", "424242")), "python"
        )
        for case in cases:
            assert b"424242" not in payload("x", case.call(1, 64))

    def test_room_for_output(self):
        # Twice the expected bytes, and 64 KiB.
        assert Case(b"", "é" * 10).call(1, 64).output_bytes == 2 * 20 + 65536


class TestScores:
    def test_the_share_of_passed_cases(self, box):
        assert build()(completions=[answer(DOUBLE)], verification_info=[DOUBLING]) == [2 / 3]

    def test_binary(self, box):
        both = info(("4\n", "8\n"), ("0\n", "0\n"))
        assert build("binary_code")(
            completions=[answer(DOUBLE)] * 2, verification_info=[DOUBLING, both]
        ) == [0.0, 1.0]

    def test_binary_scores_1_from_99_percent(self, box):
        def one_wrong(total: int) -> dict[str, Any]:
            return info(("0\n", "1\n"), *((f"{n}\n", f"{2 * n}\n") for n in range(1, total)))

        # 98/99 = 0.9899, 99/100 = 0.99
        scores = build("binary_code")(
            completions=[answer(DOUBLE)] * 2, verification_info=[one_wrong(99), one_wrong(100)]
        )
        assert scores == [0.0, 1.0]

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

    def test_a_missing_column_is_named(self, box):
        with pytest.raises(
            RecipeError, match=r"'verification_info' \(mapper: verifiable_code\).* are: solution\."
        ):
            build()(completions=["x"], solution=["y"], trainer_state=None)

    def test_the_cause_is_reported(self, box):
        box.table["late"] = lambda stdin: Outcome("timeout")
        box.table["loud"] = lambda stdin: Outcome("output")
        box.table["bad"] = lambda stdin: Outcome("error", b"", "NameError")
        log = Log()
        texts = [answer(code) for code in ("late", "loud", "bad")]
        assert (
            build()(
                completions=texts, verification_info=[DOUBLING] * 3, log_extra=log, log_metric=log
            )
            == [0.0] * 3
        )
        assert log["code_result"] == [
            "0 of 3, 1 not run; case 1: timeout",
            "0 of 3; case 1: too much output",
            "0 of 3; case 1: error (NameError)",
        ]
        assert log["code/timeouts"] == 1.0

    def test_code_format(self):
        reward = build("code_format")
        texts = [answer("x"), answer("x", "cpp"), "```python\nx\n```", answer("x") + "more", ""]
        assert reward(completions=texts) == [1.0, 0.0, 0.0, 0.0, 0.0]
        assert build("code_format", code_language="cpp")(completions=texts) == [
            0.0,
            1.0,
            0.0,
            0.0,
            0.0,
        ]


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

    def test_binary_stops_at_the_first_failure_and_code_goes_on(self, box):
        wrong_first = info(("0\n", "1\n"), ("1\n", "2\n"), ("2\n", "4\n"))
        assert build("binary_code")(
            completions=[answer(DOUBLE)], verification_info=[wrong_first]
        ) == [0.0]
        assert len(box.ran) == 1
        assert build()(completions=[answer(DOUBLE)], verification_info=[wrong_first]) == [2 / 3]
        assert len(box.ran) == 4

    def test_after_two_timeouts_the_rest_fails_unrun(self, box):
        box.table["slow"] = lambda stdin: Outcome("timeout") if int(stdin) < 2 else doubling(stdin)
        cases = info(*((f"{n}\n", f"{2 * n}\n") for n in (9, 0, 8, 1, 7, 6)))
        # 9 and 8 pass, 0 and 1 are late, 7 and 6 are not run
        assert build()(completions=[answer("slow")], verification_info=[cases]) == [2 / 6]
        assert [stdin for _, stdin in box.ran] == [b"9\n", b"0\n", b"8\n", b"1\n"]

    def test_programs_run_side_by_side(self, box):
        meeting = threading.Barrier(3, timeout=30)

        def meet(stdin: bytes) -> Outcome:
            meeting.wait()
            return Outcome("ok", b"1")

        box.table |= {str(number): meet for number in range(3)}
        texts = [answer(str(number)) for number in range(3)]
        reward = build(parallel_code_exec_per_proc=3)
        assert reward(completions=texts, verification_info=[info(("", "1"))] * 3) == [1.0] * 3
        assert box.most_at_once == 3

    def test_by_default_a_rank_takes_its_share_of_the_cores(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16), raising=False)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        assert cores_per_rank() == 4
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
        assert cores_per_rank() == 1

    def test_what_the_time_of_a_batch_does_not_reach_is_not_judged(self, box, caplog, monkeypatch):
        now = [100.0]
        monkeypatch.setattr(code_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

        def slow(stdin: bytes) -> Outcome:
            now[0] += 7
            return Outcome("ok", b"1")

        box.table |= {"a": slow, "b": slow, "c": slow}
        reward = build(code_batch_seconds=10, parallel_code_exec_per_proc=1)
        log = Log()
        texts = [answer(code) for code in "abc"]
        with caplog.at_level(logging.WARNING):
            scores = reward(
                completions=texts, verification_info=[info(("", "1"))] * 3, log_metric=log
            )
        # One takes 7 s, a second is done after 14 s, and then none is begun.
        assert scores == [1.0, 1.0, None] and log["code/unjudged"] == 1.0
        assert (
            "of 3 programs, 1 are not judged" in caplog.text and "code_batch_seconds" in caplog.text
        )

    @pytest.mark.parametrize(
        "error", [SandboxError("no machine"), OSError(errno.EAGAIN, "no machine")]
    )
    def test_a_sandbox_that_fails_some(self, box, error, caplog):
        def lost(stdin: bytes) -> Outcome:
            raise error

        box.table["lost"] = lost
        with caplog.at_level(logging.WARNING):
            assert build()(
                completions=[answer("lost"), answer(DOUBLE)], verification_info=[DOUBLING] * 2
            ) == [None, 2 / 3]
        assert (
            "of 2 programs, 1 are not judged: the sandbox failed: " in caplog.text
            and "no machine" in caplog.text
        )

    def test_a_sandbox_that_fails_all_ends_the_run(self, box):
        box.error = SandboxError("no machine")
        with pytest.raises(
            RecipeError,
            match=r"none of 1 programs ran: not judged: the sandbox failed: no machine",
        ):
            build()(completions=[answer(DOUBLE)], verification_info=[DOUBLING])


class TestRefusal:
    """Without a sandbox nothing runs: neither at the start of a run nor, should a caller skip that,
    at its first program.
    """

    def test_no_sandbox_no_run(self, monkeypatch):
        monkeypatch.setattr(bubblewrap.shutil, "which", lambda name, **_: None)
        get_sandbox.cache_clear()
        reward = build()
        with pytest.raises(RecipeError, match="apt-get install bubblewrap"):
            reward.check_start()
        with pytest.raises(RecipeError, match="apt-get install bubblewrap"):
            reward(completions=[answer(DOUBLE)], verification_info=[DOUBLING])
        # where there is nothing to run there is nothing to refuse
        assert reward(completions=["none"], verification_info=[DOUBLING]) == [0.0]

    @pytest.mark.parametrize(
        ("params", "words"),
        [
            (
                {"code_provider": "local"},
                "code_provider: must be bubblewrap, or my_module:MySandbox .*, got 'local'",
            ),
            ({"code_language": "cpp"}, "code_language: must be python with bubblewrap, got 'cpp'"),
            ({"code_timeout": 0}, "code_timeout: must be 1 or more, got 0"),
            ({"code_memory_mb": 1}, "code_memory_mb: must be 64 or more, got 1"),
            ({"code_batch_seconds": 0}, "code_batch_seconds: must be 1"),
            ({"parallel_code_exec_per_proc": 0}, "parallel_code_exec_per_proc: must be 1"),
        ],
    )
    @pytest.mark.parametrize("name", ["code", "binary_code"])
    def test_parameters(self, name, params, words):
        with pytest.raises(RecipeError, match=words):
            build(name, **params)

    def test_a_sandbox_of_ones_own_may_run_another_language(self):
        build(code_provider="my_module:MySandbox", code_language="cpp")

    def test_it_pickles(self):
        reward = build("binary_code", code_timeout=3)
        assert pickle.loads(pickle.dumps(reward)) == reward and reward.__name__ == "binary_code"


CHEATS = {
    "says that it passed": "import sys\nsys.stdout.write('\\x06ok 1.0 PASSED\\n')",
    "ends at once": "import os\nos._exit(0)",
    "prints all and ends badly": "print('right')\nraise SystemExit(1)",
    "looks for what is expected": (
        "import gc, sys\n"
        "frame = sys._getframe()\n"
        "while frame:\n    print(frame.f_globals, frame.f_locals)\n    frame = frame.f_back\n"
        "for thing in gc.get_objects():\n    print(repr(thing)[:500] if isinstance(thing, "
        "(dict, list, str, bytes)) else '')\n"
        "sys.stdout.flush()"
    ),
    "writes to every descriptor": "import os\nfor n in range(64):\n    try: "
    "os.write(n, b'0 ok passed 1.0')\n    except "
    "OSError: pass",
    "patches what judges": (
        "import builtins, json, sys, io\n"
        "json.loads = json.dumps = lambda *a, **k: True\n"
        "sys.stdin = io.StringIO('right')\n"
        "sys.exit = lambda *a: None\n"
        "builtins.print(True)"
    ),
    "kills who asks": "import os, signal\nfor n in (os.getppid(), -1, 1):\n    try: os.kill(n, "
    "signal.SIGKILL)\n    except OSError: pass",
    "is equal to everything": (
        "class Any:\n    __eq__ = lambda *a: True\n    __hash__ = lambda s: 0\n    __repr__ "
        "= __str__ = lambda s: ''\n"
        "def f(*a):\n    return Any()\nprint(Any())"
    ),
}


class TestCheating:
    @pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS)
    def test_scores_0(self, bwrap, code):
        # What is expected is in no program's reach, so none prints it; ``passed`` looks for it
        # alone on its line.
        secret = info(("", "a-long-and-secret-word"), ("", "another-secret-word"))
        as_function = info(("[]", '"a-long-and-secret-word"'), function="f")
        reward = build(code_timeout=20)
        assert reward(completions=[answer(code)] * 2, verification_info=[secret, as_function]) == [
            0.0,
            0.0,
        ]

    def test_no_output_holds_the_expected_words(self, bwrap):
        case = Case(b"", "a-long-and-secret-word")
        program = CHEATS["looks for what is expected"]
        outcome = Bubblewrap().run(program, Call(b"", 1 << 26, None, 60, 512))
        assert outcome.status == "ok" and len(outcome.output) > 10_000
        assert case.expected.encode() not in outcome.output

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

    def test_the_mappers_own_solutions_are_right(self, bwrap):
        mapper = MAPPERS["verifiable_code"]
        rows = [mapper()(row) for row in mapper.examples]
        texts = [f"<think>\nwork\n</think>\n<answer>\n{row['solution']}\n</answer>" for row in rows]
        infos = [row["verification_info"] for row in rows]
        assert build(code_timeout=20)(completions=texts, verification_info=infos) == [1.0] * len(
            rows
        )


def run_settings(**params: Any) -> Any:
    """What :func:`r1_recipes.training.start.check_rewards` reads of a recipe, with the code reward
    and no sandbox to be had.
    """
    script = types.SimpleNamespace(
        smoke=False,
        dataset_name=None,
        dataset_mixture=None,
        reward_funcs=["format", "code"],
        response_format="think_answer",
    )
    script.__dict__.update(params)
    empty = types.SimpleNamespace
    return empty(
        path=Path("recipe.yaml"),
        script=script,
        training=empty(),
        model=empty(model_name_or_path=None),
        reward_params={},
        settings={},
    )


def test_a_run_without_a_sandbox_is_refused_at_its_start(monkeypatch):
    from r1_recipes.training import start

    def refuse(self: Any) -> None:
        raise RecipeError("no sandbox; install bubblewrap")

    monkeypatch.setattr(code_module.CodeReward, "check_start", refuse)
    with pytest.raises(RecipeError, match=r"recipe\.yaml: .*install bubblewrap"):
        start.check_rewards(run_settings())
    # a smoke run is one step of a random model, which writes no program
    start.check_rewards(run_settings(smoke=True))
    start.check_rewards(run_settings(reward_funcs=["format"]))
