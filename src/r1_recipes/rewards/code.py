"""Rewards for a program that does what it was asked to: run against test cases in a sandbox."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.common.processes import cores_per_rank
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Reward, register_reward
from r1_recipes.rewards.sandbox import CONTAINERS, check_provider, get_sandbox
from r1_recipes.rewards.sandbox.base import Call, Outcome, Sandbox, SandboxError
from r1_recipes.rewards.summary import summary

logger = logging.getLogger(__name__)

PATIENCE = 2  # timeouts after which a program fails its remaining test cases without a run
MAX_CODE_CHARS = 1 << 16  # a longer block is no program
RETRY_SECONDS = (1.0, 4.0)  # waits before another run if the sandbox failed: a machine may lack memory for a moment
SPARE_OUTPUT_BYTES = 1 << 16  # a program may print this much more than twice the expected output
CACHE_SIZE = 4096  # programs whose verdict is remembered

_WHY = {"ok": "wrong output", "timeout": "timeout", "output": "too much output", "error": "error"}
_OUT_OF_TIME = "code_batch_seconds is over"
_TAGS = {"python": ("python", "py", "python3"), "cpp": ("cpp", "c++"), "javascript": ("javascript", "js")}


def language_tags(language: str) -> tuple[str, ...]:
    """Names by which a fence or a row may call a language."""
    return _TAGS.get(language, (language,))


def extract_code(fmt: ResponseFormat, completion: str, language: str) -> str | None:
    """The program in a completion's answer, or after its reasoning if the format has no answer tags."""
    answer = fmt.parse(completion).answer if fmt.answer_tags else summary(fmt, completion)
    code = last_fence(answer or "", language_tags(language))
    return code if code is None or len(code) <= MAX_CODE_CHARS else None


def last_fence(text: str, tags: Sequence[str]) -> str | None:
    """The text of the last closed fence with one of ``tags``, in any case, dedented. Takes linear time."""
    found: str | None = None
    lines: list[str] | None = None
    wanted = False
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
    """One test case: stdin and the expected stdout, or, with ``function``, arguments as a JSON list and the expected result."""

    stdin: bytes
    expected: Any
    function: str | None = None

    def call(self, cpu_seconds: int, memory_mb: int) -> Call:
        expected = self.expected if self.function is None else json.dumps(self.expected)
        return Call(self.stdin, 2 * len(expected.encode("utf-8", "replace")) + SPARE_OUTPUT_BYTES, self.function, cpu_seconds, memory_mb)

    def passed(self, outcome: Outcome) -> bool:
        """Compare a result, or text line by line without white space at the ends of lines and of the text."""
        if outcome.status != "ok":
            return False
        text = outcome.output.decode("utf-8", "replace")
        if self.function is None:
            return _lines(text) == _lines(self.expected)
        try:
            result = json.loads(text)
        except (ValueError, RecursionError):
            return False
        # Sets made after APPS wrap a result in a list.
        return result == self.expected or [result] == self.expected


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def read_test_cases(info: Any, language: str) -> list[Case] | None:
    """Read a row's ``verification_info`` (docs/code_reward.md); ``None``: no test cases, one that cannot be read, or another language."""
    try:
        info = _literal(info)
        named, entries = info.get("language"), _literal(info["test_cases"])
        if named and str(named).strip().lower() not in language_tags(language):
            return None
        if isinstance(entries, dict):  # a list of structs, as datasets' Sequence gives it
            columns = {key: values for key, values in entries.items() if isinstance(values, list)}
            entries = [dict(zip(columns, values, strict=False)) for values in zip(*columns.values(), strict=False)]
        return [_test_case(entry) for entry in entries] or None
    except (AttributeError, KeyError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _test_case(entry: dict[str, Any]) -> Case:
    given, wanted, function = entry.get("input"), entry["output"], entry.get("fn_name")
    if wanted is None:
        raise ValueError("no output")
    if not function:
        return Case(_text(given).encode("utf-8", "replace"), _text(wanted))
    try:
        arguments = _literal([] if given is None else given)
    except (ValueError, SyntaxError):
        arguments = [_literal(line) for line in str(given).strip().split("\n")]
    if not isinstance(arguments, list):
        arguments = [arguments]
    return Case(json.dumps(arguments).encode(), json.loads(json.dumps(_literal(wanted))), str(function))


def _text(value: Any) -> str:
    lines = value if isinstance(value, list) else [] if value is None else [value]
    return "\n".join(map(str, lines))


def _literal(value: Any) -> Any:
    """Read text as JSON or as a Python literal; anything else is itself."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return ast.literal_eval(value.strip())


@dataclass(frozen=True)
class _Verdict:
    share: float  # of cases that passed
    late: int  # calls that ran out of time
    words: str  # for people


_verdicts: dict[bytes, _Verdict] = {}


@register_reward("code")
@dataclass(frozen=True)
class CodeReward(Reward):
    """The share of the row's test cases that the answer's program passes; ``None`` if the row has none for this language.

    Range: 0..1. The program is the last ```` ```python ```` block of the answer; without one the reward is 0. The column
    ``verification_info`` holds the test cases. docs/code_reward.md describes them, the parameters, the sandboxes and the metrics.
    Source: open-r1's reward of that name (https://github.com/huggingface/open-r1).

    Raises:
        RecipeError: a wrong parameter, no column ``verification_info``, no sandbox, or one that fails for every program of a batch.
    """

    pays_from: ClassVar[float | None] = None  # share from which the reward is 1, below it 0; None: the reward is the share
    code_language: str = "python"
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
        if (self.code_image and self.code_provider == "bubblewrap") or (self.code_command and not contained):
            raise RecipeError(f"code_image, code_command: not of {self.code_provider!r}. Fix: write code_provider: docker or podman")
        if self.code_language not in language_tags("python") and not self.code_command:
            needed = "code_provider: docker or podman, a code_image that has it and a code_command that runs /tmp/solution"
            raise RecipeError(f"code_language: {self.code_language!r} needs {needed}")
        for key, least in (("code_timeout", 1), ("code_memory_mb", 64), ("code_batch_seconds", 1), ("parallel_code_exec_per_proc", 1)):
            if (value := getattr(self, key)) is not None and value < least:
                raise RecipeError(f"{key}: must be {least} or more, got {value}")

    def check_start(self) -> Sandbox:
        """Get a sandbox that holds; :class:`RecipeError`: there is none here."""
        return get_sandbox(self.code_provider, self.code_image, self.code_command)

    def __call__(
        self,
        completions: Sequence[Any],
        verification_info: Sequence[Any] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        if verification_info is None:
            fix = "Fix: name a mapper in the recipe that writes one (verifiable_code)"
            raise RecipeError(f"reward {self.name!r} needs a column 'verification_info'; there are: {', '.join(sorted(columns))}. {fix}")
        began, settings = time.monotonic(), (self.pays_from, *dataclasses.astuple(self))
        rows: dict[str, list[Case] | None] = {}
        keys: list[bytes | str] = []  # of a program, or why there is none
        programs: dict[bytes, tuple[str, list[Case]]] = {}
        for text, info in zip(completion_texts(completions), verification_info, strict=True):
            row = json.dumps(info, default=str)
            if row not in rows:
                rows[row] = read_test_cases(info, self.code_language)
            code, cases = extract_code(self.response_format, text, self.code_language), rows[row]
            if cases is None:
                keys.append("no test cases")
            elif code is None:
                keys.append("no code")
            else:
                key = hashlib.blake2b(repr((code, row, settings)).encode("utf-8", "replace"), digest_size=16).digest()
                keys.append(key)
                programs[key] = (code, cases)
        verdicts = self._run(programs)
        scores: list[float | None] = []
        said = []
        for found in keys:
            if isinstance(found, str):
                scores.append(0.0 if found == "no code" else None)
                said.append(found)
            elif found not in verdicts:
                scores.append(None)
                said.append("not judged")
            else:
                share = verdicts[found].share
                scores.append(share if self.pays_from is None else float(share >= self.pays_from))
                said.append(verdicts[found].words)
        if log_extra is not None:
            log_extra(f"{self.name}_result", said)
        if log_metric is not None:
            log_metric(f"{self.name}/no_code", float(said.count("no code")))
            log_metric(f"{self.name}/timeouts", float(sum(verdict.late > 0 for verdict in verdicts.values())))
            log_metric(f"{self.name}/unjudged", float(said.count("not judged")))
            log_metric(f"{self.name}/seconds", time.monotonic() - began)
        return scores

    def _run(self, programs: dict[bytes, tuple[str, list[Case]]]) -> dict[bytes, _Verdict]:
        known = {key: _verdicts[key] for key in programs if key in _verdicts}
        waiting = [key for key in programs if key not in known]
        if not waiting:
            return known
        sandbox = self.check_start()
        deadline = time.monotonic() + self.code_batch_seconds
        # open-r1 asks E2B for two at a time.
        at_once = self.parallel_code_exec_per_proc or (2 if self.code_provider == "e2b" else cores_per_rank())
        with ThreadPoolExecutor(min(at_once, len(waiting))) as pool:  # After Ctrl-C, map cancels what has not begun.
            answers = list(pool.map(lambda key: self._judge(sandbox, *programs[key], deadline), waiting))
        found = {key: answer for key, answer in zip(waiting, answers, strict=True) if isinstance(answer, _Verdict)}
        _verdicts.update(found)
        for key in list(_verdicts)[:-CACHE_SIZE]:
            del _verdicts[key]
        failures = [answer for answer in answers if isinstance(answer, str)]
        if len(failures) == len(answers) and _OUT_OF_TIME not in failures:
            raise RecipeError(f"reward {self.name!r}: not one of {len(answers)} programs ran: {failures[0]}")
        if failures:
            fix = "if time is short, raise code_batch_seconds or parallel_code_exec_per_proc, or lower code_timeout"
            logger.warning("%s: %d of %d programs are not judged: %s (%s)", self.name, len(failures), len(answers), failures[0], fix)
        return known | found

    def _judge(self, sandbox: Sandbox, code: str, cases: list[Case], deadline: float) -> _Verdict | str:
        """The verdict on one program, or why there is none."""
        reason = ""
        for wait in (*RETRY_SECONDS, 0.0):
            try:
                return self._judge_once(sandbox, code, cases, deadline)
            except (SandboxError, OSError) as error:
                reason = f"the sandbox failed: {error}"
                time.sleep(wait)
        return reason

    def _judge_once(self, sandbox: Sandbox, code: str, cases: list[Case], deadline: float) -> _Verdict | str:
        if time.monotonic() > deadline:
            return _OUT_OF_TIME
        passed, failed, late, first = 0, 0, 0, ""
        may_fail = len(cases) - math.ceil((self.pays_from or 0) * len(cases))
        calls = [case.call(self.code_timeout, self.code_memory_mb) for case in cases]
        with contextlib.closing(sandbox.run(code, calls)) as outcomes:
            for case, outcome in zip(cases, outcomes, strict=True):
                if case.passed(outcome):
                    passed += 1
                else:
                    failed += 1
                    late += outcome.status == "timeout"
                    detail = f" ({outcome.detail})" if outcome.detail else ""
                    first = first or f"; case {passed + failed}: {_WHY[outcome.status]}{detail}"
                if late == PATIENCE or failed > may_fail:
                    break
                if passed + failed < len(cases) and time.monotonic() > deadline:
                    return _OUT_OF_TIME
        at_least = "" if passed + failed == len(cases) or late == PATIENCE else "at least "
        return _Verdict(passed / len(cases), late, f"{at_least}{passed} of {len(cases)}{first}")


@register_reward("binary_code")
@dataclass(frozen=True)
class BinaryCodeReward(CodeReward):
    """1.0 if ``code`` would be at least 0.99, else 0.0; ``None`` if it would be. Its parameters are those of ``code``.

    Range: {0, 1}. A program that can no longer get there is not run further. Source: open-r1's reward of that name.
    """

    pays_from: ClassVar[float | None] = 0.99


@register_reward("code_format")
@dataclass(frozen=True)
class CodeFormatReward(Reward):
    """1.0 if the completion is in the response format and its answer holds a closed block of ``code_language``, else 0.0.

    Range: {0, 1}. Nothing is run. Source: open-r1's reward of that name.
    """

    code_language: str = "python"

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        fmt, texts = self.response_format, completion_texts(completions)
        return [float(fmt.parse(text).well_formed and extract_code(fmt, text, self.code_language) is not None) for text in texts]
