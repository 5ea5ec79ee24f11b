"""Rewards for a program that does what it was asked to: run against test cases, in a sandbox, and never anywhere else."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import logging
import math
import os
import textwrap
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Reward, register_reward
from r1_recipes.rewards.sandbox import CONTAINERS, Call, Limits, Outcome, Program, Sandbox, SandboxError, check_provider, get_sandbox
from r1_recipes.rewards.summary import summary

logger = logging.getLogger(__name__)

PATIENCE = 2
"""Calls of one program that may run out of time; it then fails the test cases that are left, unrun."""

MAX_CODE_CHARS = 1 << 16
"""A longer program fails unread: no completion of a recipe here has room for it."""

RETRY_SECONDS = (1.0, 4.0)
"""Waits before a program whose sandbox failed is run again: a machine may be out of processes or memory for a moment."""

SPARE_OUTPUT_BYTES = 1 << 16
"""A program may print this much more than twice what is expected before it is killed."""

BINARY_SHARE = 0.99
"""Share of test cases from which ``binary_code`` pays, as open-r1 has it."""

CACHE_SIZE = 4096
"""Programs whose verdict is remembered: several steps' worth."""

_TAGS = {"python": ("python", "py", "python3"), "cpp": ("cpp", "c++"), "javascript": ("javascript", "js")}


def language_tags(language: str) -> tuple[str, ...]:
    """What a fence may call a language."""
    return _TAGS.get(language, (language,))


def extract_code(fmt: ResponseFormat, completion: str, language: str) -> str | None:
    """The last closed fence of that language in a completion's answer, without its indentation; ``None`` where there is none.

    The answer is what stands in the format's answer tags; in a format without them, what follows the reasoning.
    """
    answer = fmt.parse(completion).answer if fmt.answer_tags else summary(fmt, completion)
    return None if answer is None else last_fence(answer, language_tags(language))


def last_fence(text: str, tags: Sequence[str]) -> str | None:
    """What the last closed fence called one of ``tags`` (in any case) holds, dedented. Linear in the length."""
    found, lines, wanted = None, None, False
    for line in text.split("\n"):
        stripped = line.strip()
        if lines is None:
            before, mark, tag = stripped.rpartition("```")
            if mark and "`" not in before:
                lines, wanted = [], tag.strip().lower() in tags
        elif stripped.startswith("```") or stripped.endswith("```"):
            if wanted:
                last = line.rstrip()[:-3].rstrip() if not stripped.startswith("```") else ""
                found = textwrap.dedent("\n".join([*lines, last] if last else lines))
            lines = None
        else:
            lines.append(line.removesuffix("\r"))
    return found


@dataclass(frozen=True)
class Case:
    """One test case of a row.

    Attributes:
        stdin: what the program reads, or a JSON list of arguments.
        expected: what it should print, or a function's result.
        function: name of the function that is called; ``None``: the program is run.
    """

    stdin: bytes
    expected: Any
    function: str | None = None

    def call(self) -> Call:
        expected = self.expected if self.function is None else json.dumps(self.expected)
        return Call(self.stdin, 2 * len(expected.encode("utf-8", "replace")) + SPARE_OUTPUT_BYTES, self.function)

    def passed(self, outcome: Outcome) -> bool:
        """Whether this is what was expected. Text: equal line by line, apart from white space at the ends of lines and of the text."""
        if outcome.status != "ok":
            return False
        text = outcome.output.decode("utf-8", "replace")
        if self.function is None:
            return _lines(text) == _lines(self.expected)
        try:
            result = json.loads(text)
            # Sets made after APPS wrap a result in a list.
            return result == self.expected or [result] == self.expected
        except (ValueError, RecursionError):
            return False


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def read_test_cases(info: Any, language: str) -> list[Case] | None:
    """A row's ``verification_info``: ``{"language": …, "test_cases": [{"input", "output", "type", "fn_name"}, …]}``, or the same as JSON.

    A case with a ``fn_name`` calls that function: ``input`` is the list of its arguments, or one argument a line, ``output`` its result,
    as JSON or Python literals.

    Returns:
        ``None`` where there are no test cases, one of them cannot be read, or the row is for another language.
    """
    info = _loaded(info)
    if not isinstance(info, dict):
        return None
    named = info.get("language")
    if named and str(named).strip().lower() not in language_tags(language):
        return None
    entries = _loaded(info.get("test_cases"))
    if isinstance(entries, dict):  # a list of structs, as older versions of datasets give it
        columns = {key: values for key, values in entries.items() if isinstance(values, list)}
        entries = [dict(zip(columns, values, strict=False)) for values in zip(*columns.values(), strict=False)]
    if not isinstance(entries, list) or not entries:
        return None
    cases = [_test_case(entry) for entry in entries]
    return None if None in cases else cases


def _test_case(entry: Any) -> Case | None:
    if not isinstance(entry, dict) or entry.get("output") is None:
        return None
    given, wanted, function = entry.get("input"), entry["output"], entry.get("fn_name")
    if not function:
        return Case(_text(given).encode("utf-8", "replace"), _text(wanted))
    try:
        arguments = json.dumps(_arguments(given)).encode()
        expected = json.loads(json.dumps(_literal(wanted)))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return Case(arguments, expected, str(function))


def _loaded(value: Any) -> Any:
    """A value that may be written as JSON; text that is none stays text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)


def _literal(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return ast.literal_eval(value.strip())


def _arguments(value: Any) -> list[Any]:
    if value is None:
        return []
    try:
        whole = _literal(value)
    except (ValueError, SyntaxError):
        return [_literal(line) for line in value.strip().split("\n")]
    return whole if isinstance(whole, list) else [whole]


@dataclass(frozen=True)
class _Verdict:
    """Of one program.

    Attributes:
        passed: test cases.
        total: test cases.
        late: calls that ran out of time.
        complete: every case is decided; otherwise more might pass, were they run.
        first: the first case that failed, in words.
    """

    passed: int
    total: int
    late: int = 0
    complete: bool = True
    first: str = ""

    @property
    def share(self) -> float:
        return self.passed / self.total

    def __str__(self) -> str:
        at_least = "" if self.complete else "at least "
        return f"{at_least}{self.passed} of {self.total}" + (f"; {self.first}" if self.first else "")


_verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()


@dataclass(frozen=True)
class _LanguageReward(Reward):
    code_language: str = "python"


@register_reward("code")
@dataclass(frozen=True)
class CodeReward(_LanguageReward):
    """The share of the row's test cases that the answer's program passes; ``None`` where the row has none for this language.

    Range: 0..1. The program is the last ```` ```python ```` block of the answer (``code_language`` says which); without one the reward
    is 0. The column ``verification_info`` holds the test cases, see :func:`read_test_cases`. A case passes where the program ends with
    exit status 0 and its output is the expected one; the comparison is made outside the sandbox, where no program sees what is expected.

    ``code_provider`` is the sandbox: ``bubblewrap`` (Python with its standard library); ``docker`` or ``podman`` with ``code_image`` (a
    Python of its own, or with ``code_command`` any language: a shell command that runs ``/tmp/solution``); ``e2b``. A run without it is
    refused at its start. A case gets ``code_timeout`` whole seconds of processor time (and twice as long by the clock) and
    ``code_memory_mb``; after two timeouts a program fails what is left. ``parallel_code_exec_per_proc`` programs run at once (default: this
    rank's share of the cores; of e2b 2). What a batch has not judged after ``code_batch_seconds`` gets ``None``, with a warning. Each
    distinct pair of program and test cases is run once.

    Metrics, of this batch: ``code/no_code`` (completions without a program), ``code/timeouts`` (programs that ran out of time),
    ``code/unjudged`` (completions that the sandbox failed three times, or for which there was no time), ``code/seconds``. Column of the
    completions table: ``code_result``. Those of ``binary_code`` have its name.

    Source: open-r1's reward of that name (https://github.com/huggingface/open-r1).

    Raises:
        RecipeError: no such provider, a parameter out of range or of another provider. On a call: no column ``verification_info``; no
            sandbox; or the sandbox fails for every program of a batch. Never because of a completion or a row.
    """

    code_provider: str = "bubblewrap"
    code_image: str | None = None
    code_command: str | None = None
    code_timeout: int = 5
    code_memory_mb: int = 512
    code_batch_seconds: float = 300.0
    parallel_code_exec_per_proc: int | None = None

    def __post_init__(self) -> None:
        check_provider(self.code_provider)
        contained = self.code_provider in CONTAINERS
        if contained and not self.code_image:
            raise RecipeError(f"code_image: missing; code_provider {self.code_provider!r} runs an image, such as python:3.12-slim")
        if self.code_image and not contained and self.code_provider != "e2b":
            raise RecipeError(f"code_image: code_provider {self.code_provider!r} has none; write code_provider: docker or podman")
        if self.code_command and not contained:
            raise RecipeError(f"code_command: code_provider {self.code_provider!r} has none; write code_provider: docker or podman")
        if self.code_language not in language_tags("python") and not self.code_command:
            raise RecipeError(
                f"code_language: {self.code_language!r} needs code_provider: docker or podman, with a code_image that has it and a "
                "code_command that runs /tmp/solution"
            )
        for key, least in (("code_timeout", 1), ("code_memory_mb", 64), ("code_batch_seconds", 1), ("parallel_code_exec_per_proc", 1)):
            if (value := getattr(self, key)) is not None and value < least:
                raise RecipeError(f"{key}: found {value}; {least} or more")

    def check_start(self) -> None:
        """What the run needs before it starts: a sandbox that holds.

        Raises:
            RecipeError: there is none; the message says what to install.
        """
        self._sandbox().check()

    def __call__(
        self,
        completions: Sequence[Any],
        verification_info: Sequence[Any] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        if verification_info is None:
            found = sorted(key for key, value in columns.items() if isinstance(value, (list, tuple)))
            raise RecipeError(
                f"reward {self.name!r} needs a column 'verification_info' with test cases; the dataset's columns here are: "
                f"{', '.join(found) or 'none'}. Name a mapper in the recipe that writes one (verifiable_code)."
            )
        began = time.monotonic()
        rows: dict[str, list[Case] | None] = {}
        programs: list[tuple[bytes | None, str]] = []
        tasks: dict[bytes, tuple[str, list[Case]]] = {}
        for text, info in zip(completion_texts(completions), verification_info, strict=True):
            row = json.dumps(info, default=str)
            if row not in rows:
                rows[row] = read_test_cases(info, self.code_language)
            code = extract_code(self.response_format, text, self.code_language)
            if rows[row] is None:
                programs.append((None, "no test cases"))
            elif code is None:
                programs.append((None, "no code"))
            elif len(code) > MAX_CODE_CHARS:
                programs.append((None, "too long"))
            else:
                key = hashlib.blake2b(repr((code, row, *self._settings())).encode("utf-8", "replace"), digest_size=16).digest()
                tasks[key] = (code, rows[row])
                programs.append((key, ""))
        verdicts = self._run(tasks)
        scores: list[float | None] = []
        said = []
        for key, reason in programs:
            verdict = verdicts.get(key) if key is not None else None
            if verdict is not None:
                scores.append(self._pay(verdict.share))
            else:
                scores.append(0.0 if reason in ("no code", "too long") else None)
            said.append(reason or ("not judged" if verdict is None else str(verdict)))
        if log_extra is not None:
            log_extra(f"{self.name}_result", said)
        if log_metric is not None:
            log_metric(f"{self.name}/no_code", float(said.count("no code")))
            log_metric(f"{self.name}/timeouts", float(sum(verdict.late > 0 for verdict in verdicts.values())))
            log_metric(f"{self.name}/unjudged", float(said.count("not judged")))
            log_metric(f"{self.name}/seconds", time.monotonic() - began)
        return scores

    @staticmethod
    def _pay(share: float) -> float:
        return share

    def _allowed_failures(self, total: int) -> int:
        """How many test cases may fail before the rest need not be run."""
        return total

    def _sandbox(self) -> Sandbox:
        return get_sandbox(self.code_provider, self.code_image, self.code_command)

    def _settings(self) -> tuple[Any, ...]:
        return (self.code_language, self.code_provider, self.code_image, self.code_command, self.code_timeout, self.code_memory_mb)

    def _workers(self) -> int:
        if self.parallel_code_exec_per_proc is not None:
            return self.parallel_code_exec_per_proc
        if self.code_provider == "e2b":
            return 2
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))

    def _run(self, tasks: dict[bytes, tuple[str, list[Case]]]) -> dict[bytes, _Verdict]:
        """A verdict for each task that could be judged.

        Raises:
            RecipeError: there is no sandbox, or it failed for every task.
        """
        verdicts, waiting = {}, []
        for key, (_, cases) in tasks.items():
            known = _verdicts.get(key)
            if known is not None and (known.complete or self._allowed_failures(len(cases)) < len(cases)):
                verdicts[key] = known
                _verdicts.move_to_end(key)
            else:
                waiting.append(key)
        if not waiting:
            return verdicts
        sandbox = self._sandbox()
        sandbox.check()
        deadline = time.monotonic() + self.code_batch_seconds
        with ThreadPoolExecutor(min(self._workers(), len(waiting))) as pool:
            futures = {key: pool.submit(self._judge_again, sandbox, *tasks[key], deadline) for key in waiting}
            try:
                answers = {key: future.result() for key, future in futures.items()}
            except BaseException:  # Ctrl-C: those that run end by themselves, the others need not begin
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for key, answer in answers.items():
            if isinstance(answer, _Verdict):
                verdicts[key] = _verdicts[key] = answer
        while len(_verdicts) > CACHE_SIZE:
            _verdicts.popitem(last=False)
        self._report([answer for answer in answers.values() if not isinstance(answer, _Verdict)], len(answers))
        return verdicts

    def _judge_again(self, *arguments: Any) -> _Verdict | str:
        """The verdict on one program, or why there is none after every retry."""
        for wait in (*RETRY_SECONDS, None):
            try:
                return self._judge(*arguments)
            except (SandboxError, OSError) as error:
                if wait is None:
                    return f"the sandbox failed: {error}"
            time.sleep(wait)
        raise AssertionError("the last attempt returns")

    def _judge(self, sandbox: Sandbox, code: str, cases: list[Case], deadline: float) -> _Verdict | str:
        """The verdict on one program, or that there is no time for one.

        Raises:
            SandboxError: the sandbox failed.
        """
        passed = failed = late = 0
        first = ""
        calls = [case.call() for case in cases]
        limits = Limits(self.code_timeout, self.code_memory_mb)
        if time.monotonic() > deadline:
            return "code_batch_seconds is over"
        with contextlib.closing(sandbox.run(Program(code, self.code_language), calls, limits)) as outcomes:
            for case, outcome in zip(cases, outcomes, strict=True):
                if case.passed(outcome):
                    passed += 1
                else:
                    failed += 1
                    late += outcome.status == "timeout"
                    first = first or f"case {passed + failed}: {_why(outcome)}"
                if passed + failed == len(cases) or late == PATIENCE:
                    return _Verdict(passed, len(cases), late, True, first)
                if failed > self._allowed_failures(len(cases)):
                    return _Verdict(passed, len(cases), late, False, first)
                if time.monotonic() > deadline:
                    return "code_batch_seconds is over"
        raise AssertionError("a sandbox gives one outcome a call")

    def _report(self, reasons: list[str], total: int) -> None:
        if not reasons:
            return
        late = [reason for reason in reasons if reason.startswith("code_batch_seconds")]
        if len(reasons) == total and not late:
            raise RecipeError(f"reward {self.name!r}, code_provider {self.code_provider!r}: not one of {total} programs ran: {reasons[0]}")
        logger.warning(
            "%s: %d of %d programs are not judged; the first: %s (raise code_batch_seconds or parallel_code_exec_per_proc, or lower "
            "code_timeout, where time is short)",
            self.name,
            len(reasons),
            total,
            reasons[0],
        )


def _why(outcome: Outcome) -> str:
    words = {"ok": "wrong output", "timeout": "timeout", "output": "too much output", "error": "error"}[outcome.status]
    return f"{words} ({outcome.detail})" if outcome.detail else words


@register_reward("binary_code")
@dataclass(frozen=True)
class BinaryCodeReward(CodeReward):
    """1.0 where ``code`` would be at least 0.99, else 0.0; ``None`` where it would be. Its parameters are those of ``code``.

    Range: {0, 1}. A program that can no longer get there is not run further. Source: open-r1's reward of that name.
    """

    @staticmethod
    def _pay(share: float) -> float:
        return float(share >= BINARY_SHARE)

    def _allowed_failures(self, total: int) -> int:
        return total - math.ceil(BINARY_SHARE * total)


@register_reward("code_format")
@dataclass(frozen=True)
class CodeFormatReward(_LanguageReward):
    """1.0 where the completion is in the response format and its answer holds a closed block of ``code_language``, else 0.0.

    Range: {0, 1}. Nothing is run. Source: open-r1's reward of that name.
    """

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [
            float(self.response_format.parse(text).well_formed and extract_code(self.response_format, text, self.code_language) is not None)
            for text in completion_texts(completions)
        ]
