"""Rewards for programs, which run against the test cases of their row in a sandbox."""

import ast
import functools
import json
import logging
import re
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.common.plugins import import_object
from r1_recipes.common.processes import cores_per_rank
from r1_recipes.extras.code import sandbox
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards.registry import Column, Log, Reward, Values, ignore, register_reward
from r1_recipes.rewards.text import shown_text

logger = logging.getLogger(__name__)

MAX_TIMEOUTS = 2  # after so many, a program fails its remaining test cases
PYTHON = ("python", "python3", "py")
Judged = tuple[float | None, str]  # the reward of a program, and why it is not full marks


def extract_code(fmt: ResponseFormat, completion: str, language: str) -> str | None:
    """Return the last closed block of a language in the answer, or ``None`` if there is none.

    In a format without answer tags, the program follows the reasoning.
    """
    answer = fmt.parse(completion).answer if fmt.answer_tags else shown_text(fmt, completion)
    names = "|".join(PYTHON if language in PYTHON else (re.escape(language),))
    fence = rf"```(?:{names})[ \t]*\n(.*?)```"
    text = (answer or "").replace("\r\n", "\n")
    blocks = re.findall(fence, text, re.DOTALL | re.IGNORECASE)
    return (textwrap.dedent(blocks[-1]).strip("\n") or None) if blocks else None


class Case(NamedTuple):
    """A test case: text for stdin and stdout, or the arguments and the result of a function."""

    stdin: bytes
    expected: Any
    function: str | None

    def passes(self, output: bytes) -> bool:
        """Return whether an output is as expected. Text is compared by lines without margins."""
        text = output.decode("utf-8", "replace")
        if self.function is None:
            return _lines(text) == _lines(self.expected)
        try:
            result = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return result == self.expected or [result] == self.expected  # APPS puts results in a list


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def read_cases(info: Any, language: str) -> list[Case]:
    """Return the test cases in ``verification_info`` (docs/rewards.md).

    Return ``[]`` if there are none, if they are for another language, or if one cannot be read.
    """
    try:
        info = _parsed(info)
        declared = str(info.get("language") or language).strip().lower()
        if declared != language and not {declared, language} <= {*PYTHON}:
            return []
        return [_read_case(case) for case in _parsed(info["test_cases"])]
    except (AttributeError, KeyError, ValueError, TypeError, SyntaxError, RecursionError):
        return []


def _read_case(case: dict[str, Any]) -> Case:
    function, given, expected = case.get("fn_name"), case.get("input"), case["output"]
    if expected is None:
        raise ValueError("no output")
    if not function:
        return Case(_text(given).encode("utf-8", "replace"), _text(expected), None)
    arguments = _parsed([] if given is None else given)
    arguments = arguments if isinstance(arguments, list) else [arguments]
    return Case(json.dumps(arguments).encode(), _parsed(expected), str(function))


def _parsed(value: Any) -> Any:
    """Return text read as JSON or as a Python literal, and any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return ast.literal_eval(value.strip())


def _text(value: Any) -> str:
    lines = value if isinstance(value, list) else [] if value is None else [value]
    return "\n".join(map(str, lines))


@functools.cache
def get_run(provider: str) -> Callable[..., sandbox.Outcome]:
    """Return what runs programs: bubblewrap, tried once per process, or ``my_module:run``.

    Raises:
        RecipeError: Programs would not be isolated on this machine.
    """
    if provider != "bubblewrap":
        return import_object(provider, "code_provider")
    try:
        sandbox.check()
    except sandbox.SandboxError as error:
        raise RecipeError(f"code_provider: bubblewrap: {error}") from error
    return sandbox.run


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
    binary_from: ClassVar[float] = 0.0  # above 0, the reward is 1 from this share on, else 0

    code_language: str = "python"
    code_provider: str = "bubblewrap"
    code_timeout: int = 5
    code_memory_mb: int = 512
    code_batch_seconds: float = 300.0
    parallel_code_exec_per_proc: int | None = None

    def __post_init__(self) -> None:
        own = ":" in self.code_provider
        known = own or self.code_provider == "bubblewrap"
        self.require(known, "code_provider", "bubblewrap or my_module:run (docs/rewards.md)")
        python = own or self.code_language in PYTHON
        self.require(python, "code_language", "python with code_provider: bubblewrap")

    def check_start(self) -> None:
        """Raise a RecipeError if programs cannot run on this machine."""
        get_run(self.code_provider)

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
        codes = [
            extract_code(self.response_format, text, self.code_language)
            for text in completion_texts(completions)
        ]
        # Equal programs of one row run once. Rows are compared as text, since a dict has no hash.
        jobs = list(zip(codes, map(json.dumps, verification_info), strict=True))
        distinct = list(dict.fromkeys(jobs))
        judge = functools.partial(self._judge, deadline=time.monotonic() + self.code_batch_seconds)
        with ThreadPoolExecutor(self.parallel_code_exec_per_proc or cores_per_rank()) as pool:
            judged = dict(zip(distinct, pool.map(judge, distinct), strict=True))
        self._report_failures([reason for _, reason in judged.values()])
        rewards, reasons = [judged[job][0] for job in jobs], [judged[job][1] for job in jobs]
        log_extra(f"{self.name}_result", reasons)
        log_metric(f"{self.name}/no_code", float(codes.count(None)))
        log_metric(f"{self.name}/timeouts", float(sum("timeout" in text for text in reasons)))
        return rewards

    def _judge(self, job: tuple[str | None, str], deadline: float) -> Judged:
        code, cases = job[0], read_cases(json.loads(job[1]), self.code_language)
        if not cases:
            return None, "no test cases"
        if code is None:
            return 0.0, "no code"
        try:
            statuses = self._run(code, cases, deadline)
        except sandbox.SandboxError as error:
            return None, f"not judged: {error}"
        passed, reason = statuses.count("ok"), ""
        if passed < len(statuses):
            at, status = next(item for item in enumerate(statuses, 1) if item[1] != "ok")
            reason = f"; case {at}: {status}"
        share = passed / len(cases)
        reward = float(share >= self.binary_from) if self.binary_from else share
        return reward, f"{passed} of {len(cases)}{reason}"

    def _run(self, code: str, cases: Sequence[Case], deadline: float) -> list[str]:
        """Return what became of each case, as far as one can still change the reward."""
        run, statuses = get_run(self.code_provider), list[str]()
        for case in cases:
            if time.monotonic() > deadline:
                raise sandbox.SandboxError("code_batch_seconds is over")
            # The expected output stays outside, where no program can find it.
            outcome = run(
                code,
                case.stdin,
                function=case.function,
                seconds=self.code_timeout,
                memory_mb=self.code_memory_mb,
                output_bytes=2 * len(str(case.expected)) + (1 << 16),
            )
            status = f"{outcome.status} {outcome.detail}".strip()
            if outcome.status == "ok":
                status = "ok" if case.passes(outcome.output) else "wrong output"
            statuses.append(status)
            failed = len(statuses) - statuses.count("ok")
            hopeless = failed > len(cases) * (1 - self.binary_from)
            if hopeless or statuses.count("timeout") == MAX_TIMEOUTS:
                break
        return statuses

    def _report_failures(self, reasons: list[str]) -> None:
        """Warn about programs that were not judged, or raise if none was."""
        lost = [reason for reason in reasons if reason.startswith("not judged")]
        if lost:
            message = f"reward {self.name!r}: {len(lost)} of {len(reasons)} programs are {lost[0]}"
            if len(lost) == len(reasons):
                raise RecipeError(message)
            logger.warning("%s. If time is short, raise parallel_code_exec_per_proc", message)


@register_reward("binary_code")
class BinaryCodeReward(CodeReward):
    """Return 1.0 if the reward ``code`` would be at least 0.99, else 0.0.

    Range: {0, 1}. Return ``None`` where ``code`` does. A program that can no longer reach 0.99 is
    not run any further. Source: open-r1's reward of the same name.
    """

    binary_from: ClassVar[float] = 0.99


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
        code = extract_code(fmt, text, self.code_language)
        return float(fmt.parse(text).well_formed and code is not None)
