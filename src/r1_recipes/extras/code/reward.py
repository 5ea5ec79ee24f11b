"""Rewards for programs, which run against test cases in a sandbox."""

import ast
import functools
import json
import logging
import math
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import completion_texts
from r1_recipes.common.plugins import import_object
from r1_recipes.common.processes import cores_per_rank
from r1_recipes.extras.code.sandbox import Call, Outcome, Sandbox, SandboxError
from r1_recipes.extras.code.sandbox.bubblewrap import Bubblewrap
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Column, Log, Reward, Values, ignore, register_reward
from r1_recipes.rewards.text import shown_text

logger = logging.getLogger(__name__)

MAX_TIMEOUTS = 2  # After this many timeouts, a program fails its remaining test cases.
MAX_CODE_CHARS = 1 << 16  # A longer block does not count as a program.
# A program may print this much more than twice the expected output.
SPARE_OUTPUT_BYTES = 1 << 16

_WHY = {"ok": "wrong output", "timeout": "timeout", "output": "too much output", "error": "error"}
_PYTHON = ("python", "py", "python3")  # Names of Python in fences and rows.


def extract_code(fmt: ResponseFormat, completion: str, language: str) -> str | None:
    """Return the program in the answer of a completion, or ``None`` if there is none.

    In a format without answer tags, the program follows the reasoning.
    """
    answer = fmt.parse(completion).answer if fmt.answer_tags else shown_text(fmt, completion)
    code = last_fence(answer or "", _PYTHON if language in _PYTHON else (language,))
    return code if code and len(code) <= MAX_CODE_CHARS else None


def last_fence(text: str, tags: Sequence[str]) -> str | None:
    """Return the dedented text of the last closed fence with one of ``tags``, in linear time.

    The case of a tag does not count. Return ``None`` if there is no such fence.
    """
    code: str | None = None
    lines: list[str] | None = None
    matches = False
    for line in text.split("\n"):
        stripped = line.strip()
        before, mark, after = stripped.rpartition("```")
        if lines is None:
            if mark and "`" not in before:
                lines, matches = [], after.strip().lower() in tags
        elif mark and (stripped.startswith(mark) or not after):
            if matches:
                code = textwrap.dedent("\n".join([*lines, line.rpartition(mark)[0]])).rstrip()
            lines = None
        else:
            lines.append(line.removesuffix("\r"))
    return code


@dataclass(frozen=True)
class Case:
    """A test case.

    It has stdin and the expected stdout or, with ``function``, a JSON list of arguments and the
    expected result.
    """

    stdin: bytes
    expected: Any
    function: str | None = None

    def call(self, cpu_seconds: int, memory_mb: int) -> Call:
        """Return the call of a program for this test case."""
        expected = self.expected if self.function is None else json.dumps(self.expected)
        return Call(
            self.stdin,
            2 * len(expected.encode("utf-8", "replace")) + SPARE_OUTPUT_BYTES,
            self.function,
            cpu_seconds,
            memory_mb,
        )

    def passed(self, outcome: Outcome) -> bool:
        """Return whether the outcome is as expected.

        Text is compared line by line, ignoring white space around lines and around the text.
        """
        if outcome.status != "ok":
            return False
        text = outcome.output.decode("utf-8", "replace")
        if self.function is None:
            return _lines(text) == _lines(self.expected)
        try:
            result = json.loads(text)
        except (ValueError, RecursionError):
            return False
        # Data sets derived from APPS wrap a result in a list.
        return result == self.expected or [result] == self.expected


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def read_test_cases(info: Any, language: str) -> list[Case] | None:
    """Return the test cases in ``verification_info`` (docs/rewards.md).

    Return ``None`` if there are none, if they are for another language, or if a test case cannot be
    read.
    """
    try:
        info = _literal(info)
        declared, entries = info.get("language"), _literal(info["test_cases"])
        if declared and str(declared).strip().lower() not in (
            _PYTHON if language in _PYTHON else (language,)
        ):
            return None
        if isinstance(entries, dict):  # The Sequence of datasets turns a list of structs into this.
            columns = {key: values for key, values in entries.items() if isinstance(values, list)}
            entries = [
                dict(zip(columns, values, strict=False))
                for values in zip(*columns.values(), strict=False)
            ]
        return [_test_case(entry) for entry in entries] or None
    except (
        AttributeError,
        KeyError,
        ValueError,
        TypeError,
        SyntaxError,
        MemoryError,
        RecursionError,
    ):
        return None


def _test_case(entry: dict[str, Any]) -> Case:
    given, expected, function = entry.get("input"), entry["output"], entry.get("fn_name")
    if expected is None:
        raise ValueError("no output")
    if not function:
        return Case(_text(given).encode("utf-8", "replace"), _text(expected))
    try:
        arguments = _literal([] if given is None else given)
    except (ValueError, SyntaxError):
        arguments = [_literal(line) for line in str(given).strip().split("\n")]
    arguments = arguments if isinstance(arguments, list) else [arguments]
    return Case(
        json.dumps(arguments).encode(), json.loads(json.dumps(_literal(expected))), str(function)
    )


def _text(value: Any) -> str:
    return "\n".join(
        map(str, value if isinstance(value, list) else [] if value is None else [value])
    )


def _literal(value: Any) -> Any:
    """Return text read as JSON or as a Python literal, and any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return ast.literal_eval(value.strip())


@functools.cache
def get_sandbox(provider: str) -> Sandbox:
    """Return the sandbox ``bubblewrap`` or ``my_module:MySandbox``, checked once per process.

    Raises:
        RecipeError: It is not a sandbox, or a program can escape from it.
    """
    kind = Bubblewrap if provider == "bubblewrap" else import_object(provider, "code_provider")
    if not (isinstance(kind, type) and issubclass(kind, Sandbox)):
        raise RecipeError(
            f"code_provider: {provider}: must be a subclass of "
            f"r1_recipes.extras.code.sandbox.Sandbox"
        )
    try:
        sandbox = kind()
        sandbox.check()
    except Exception as error:  # The sandbox may be the user's code.
        cause = error if isinstance(error, SandboxError) else first_line(error)
        raise RecipeError(f"code_provider: {provider}: {cause}. {kind.remedy}".strip()) from error
    return sandbox


@dataclass(frozen=True)
class _Verdict:
    share: float | None  # The share of test cases that passed; None means no reward.
    description: str
    timeouts: int = 0


_NO_CASES = _Verdict(None, "no test cases")
_NO_CODE = _Verdict(0.0, "no code")
_OUT_OF_TIME = _Verdict(None, "not judged: code_batch_seconds is over")


@register_reward("code")
class CodeReward(Reward):
    """Return the share of the row's test cases (``verification_info``) that the program passes.

    Range: 0..1. Return ``None`` if the row has no test cases in this language. The program is the
    last ```` ```python ```` block of the answer; without such a block the reward is 0. If the
    sandbox fails for every program of a batch, raise :class:`RecipeError`. Source: open-r1's reward
    of the same name. See docs/rewards.md.
    """

    judges = "answer"
    full_marks = 1.0
    graded = True
    # From this share on the reward is 1, below it 0. None: the reward is the share.
    full_marks_from: ClassVar[float | None] = None
    code_language: str = "python"
    code_provider: str = "bubblewrap"
    code_timeout: int = 5
    code_memory_mb: int = 512
    code_batch_seconds: float = 300.0
    parallel_code_exec_per_proc: int | None = None

    def __post_init__(self) -> None:
        is_own = ":" in self.code_provider
        self.require(
            is_own or self.code_provider == "bubblewrap",
            "code_provider",
            "bubblewrap, or my_module:MySandbox (docs/rewards.md)",
        )
        self.require(
            is_own or self.code_language in _PYTHON, "code_language", "python with bubblewrap"
        )
        for key, least in (
            ("code_timeout", 1),
            ("code_memory_mb", 64),
            ("code_batch_seconds", 1),
            ("parallel_code_exec_per_proc", 1),
        ):
            self.require(
                getattr(self, key) is None or getattr(self, key) >= least, key, f"{least} or more"
            )

    def check_start(self) -> Sandbox:
        """Return the checked sandbox. Raise a RecipeError if it does not work on this machine."""
        return get_sandbox(self.code_provider)

    def __call__(
        self,
        completions: Column,
        verification_info: Column | None = None,
        log_extra: Log = ignore,
        log_metric: Log = ignore,
        **columns: Any,
    ) -> Values:
        if verification_info is None:
            raise self.missing("a column 'verification_info' (mapper: verifiable_code)", columns)
        began = time.monotonic()
        rows = [json.dumps(info, default=str) for info in verification_info]
        cases = {
            row: read_test_cases(info, self.code_language)
            for row, info in dict(zip(rows, verification_info, strict=True)).items()
        }
        codes = [
            extract_code(self.response_format, text, self.code_language)
            for text in completion_texts(completions)
        ]
        pairs = list(zip(codes, rows, strict=True))
        judged = self._run(
            {
                (code, row): row_cases
                for code, row in pairs
                if code is not None and (row_cases := cases[row])
            }
        )
        verdicts = [
            _NO_CASES if not cases[row] else _NO_CODE if code is None else judged[code, row]
            for code, row in pairs
        ]
        log_extra(f"{self.name}_result", [verdict.description for verdict in verdicts])
        log_metric(f"{self.name}/no_code", float(sum(verdict is _NO_CODE for verdict in verdicts)))
        log_metric(
            f"{self.name}/timeouts", float(sum(verdict.timeouts > 0 for verdict in judged.values()))
        )
        log_metric(
            f"{self.name}/unjudged",
            float(sum(verdict.description.startswith("not judged") for verdict in verdicts)),
        )
        log_metric(f"{self.name}/seconds", time.monotonic() - began)
        shares = [verdict.share for verdict in verdicts]
        return (
            shares
            if self.full_marks_from is None
            else [
                None if share is None else float(share >= self.full_marks_from) for share in shares
            ]
        )

    def _run(self, programs: dict[tuple[str, str], list[Case]]) -> dict[tuple[str, str], _Verdict]:
        if not programs:
            return {}
        sandbox = self.check_start()
        deadline = time.monotonic() + self.code_batch_seconds
        at_once = self.parallel_code_exec_per_proc or cores_per_rank()
        # After Ctrl-C, map cancels calls that have not started.
        with ThreadPoolExecutor(min(at_once, len(programs))) as pool:
            verdicts = list(
                pool.map(
                    lambda key: self._judge(sandbox, key[0], programs[key], deadline), programs
                )
            )
        failures = [verdict for verdict in verdicts if verdict.share is None]
        if len(failures) == len(verdicts) and _OUT_OF_TIME not in failures:
            raise RecipeError(
                f"reward {self.name!r}: none of {len(verdicts)} programs ran: "
                f"{failures[0].description}"
            )
        if failures:
            fix = (
                "if time is short, raise code_batch_seconds or parallel_code_exec_per_proc, or "
                "lower code_timeout"
            )
            logger.warning(
                "%s: of %d programs, %d are %s. Fix: %s",
                self.name,
                len(verdicts),
                len(failures),
                failures[0].description,
                fix,
            )
        return dict(zip(programs, verdicts, strict=True))

    def _judge(self, sandbox: Sandbox, code: str, cases: list[Case], deadline: float) -> _Verdict:
        passed, failed, timeouts, first_failure = 0, 0, 0, ""
        may_fail = len(cases) - math.ceil((self.full_marks_from or 0) * len(cases))
        for case in cases:
            if timeouts == MAX_TIMEOUTS or failed > may_fail:
                break
            if time.monotonic() > deadline:
                return _OUT_OF_TIME
            try:
                outcome = sandbox.run(code, case.call(self.code_timeout, self.code_memory_mb))
            except Exception as error:  # No memory is left, or the user's sandbox fails.
                return _Verdict(None, f"not judged: the sandbox failed: {error}")
            if case.passed(outcome):
                passed += 1
                continue
            failed += 1
            timeouts += outcome.status == "timeout"
            detail = f" ({outcome.detail})" if outcome.detail else ""
            first_failure = (
                first_failure or f"; case {passed + failed}: {_WHY[outcome.status]}{detail}"
            )
        unrun = len(cases) - passed - failed
        return _Verdict(
            passed / len(cases),
            f"{passed} of {len(cases)}{f', {unrun} not run' if unrun else ''}{first_failure}",
            timeouts,
        )


@register_reward("binary_code")
class BinaryCodeReward(CodeReward):
    """Return 1.0 if the reward ``code`` would be at least 0.99, else 0.0.

    Range: {0, 1}. Return ``None`` where ``code`` does. A program that can no longer reach 0.99 is
    not run any further. Source: open-r1's reward of the same name.
    """

    full_marks_from: ClassVar[float | None] = 0.99


@register_reward("code_format")
class CodeFormatReward(Reward):
    """Return 1.0 for a completion in the response format with a closed block of code, else 0.0.

    Range: {0, 1}. The block must be of ``code_language`` and in the answer. No program is run.
    Source: open-r1's reward of the same name.
    """

    judges = "shape"
    full_marks = 1.0

    code_language: str = "python"

    def score_text(self, text: str) -> float:
        fmt = self.response_format
        return float(
            fmt.parse(text).well_formed and extract_code(fmt, text, self.code_language) is not None
        )
