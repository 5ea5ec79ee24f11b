"""Rewards for programs, which run on the test cases of their row in a sandbox; their mapper."""

import functools
import json
import logging
import math
import re
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from r1_recipes.common.errors import RecipeError, located, require
from r1_recipes.common.messages import completion_texts
from r1_recipes.common.plugins import import_object
from r1_recipes.common.processes import cores_per_rank, world_size
from r1_recipes.data.mappers import MappedRow, SkipRow, register_mapper, text
from r1_recipes.extras import sandbox
from r1_recipes.extras.judges import shown_text
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards.answers import THINK_ANSWER, Column, Log, Values, ignore

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
    plain = (answer or "").replace("\r\n", "\n")
    blocks = re.findall(fence, plain, re.DOTALL | re.IGNORECASE)
    return (textwrap.dedent(blocks[-1]).strip("\n") or None) if blocks else None


class Case(NamedTuple):
    """A test case: text for stdin and stdout, or the arguments and the result of a function."""

    stdin: bytes
    expected: Any
    function: str | None

    def passes(self, output: bytes) -> bool:
        """Return whether an output is as expected. Text is compared by lines without margins."""
        printed = output.decode("utf-8", "replace")
        if self.function is None:
            given, wanted = (each.strip().split("\n") for each in (printed, self.expected))
            return list(map(str.strip, given)) == list(map(str.strip, wanted))
        try:
            result = json.loads(printed)
        except (ValueError, RecursionError):
            return False
        return result == self.expected or [result] == self.expected  # APPS puts results in a list


def read_cases(info: Any) -> list[Case]:
    """Return the test cases in ``verification_info`` (docs/rewards.md), ``[]`` without readable."""
    try:
        return [_read_case(case) for case in info["test_cases"]]
    except (AttributeError, KeyError, ValueError, TypeError, RecursionError):
        return []


def _read_case(case: dict[str, Any]) -> Case:
    function, given, expected = case.get("fn_name"), case.get("input"), case["output"]
    if not function:
        return Case(_text(given).encode("utf-8", "replace"), _text(expected), None)
    arguments = _parsed([] if given is None else given)
    arguments = arguments if isinstance(arguments, list) else [arguments]
    return Case(json.dumps(arguments).encode(), _parsed(expected), str(function))


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    lines = value if isinstance(value, list) else [] if value is None else [value]
    return "\n".join(map(str, lines))


@functools.cache
def get_run(provider: str) -> Callable[..., sandbox.Outcome]:
    """Return what runs programs: bubblewrap, tried once per process, or ``my_module:run``.

    Raises:
        RecipeError: Programs would not be isolated on this machine.
    """
    if ":" in provider:
        return import_object(provider, "code_provider")
    require(
        provider == "bubblewrap",
        "code_provider",
        "bubblewrap or my_module:run (docs/rewards.md)",
        provider,
    )
    with located("code_provider: bubblewrap"):
        sandbox.check()
    return sandbox.run


def code(
    completions: Column,
    verification_info: Column,
    log_extra: Log = ignore,
    log_metric: Log = ignore,
    binary_from: float = 0.0,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    code_language: str = "python",
    code_provider: str = "bubblewrap",
    code_timeout: int = 5,
    code_memory_mb: int = 512,
    code_batch_seconds: float = 300.0,
    parallel_code_exec_per_proc: int | None = None,
    **columns: Any,
) -> Values:
    """Return the share of the row's test cases (``verification_info``) that the program passes.

    Range: 0..1. Return ``None`` if the row has no test cases. The program is the last
    ```` ```python ```` block of the answer; without such a block the reward is 0. If the sandbox
    fails for every program of a batch, raise :class:`RecipeError`. Source: open-r1's reward of the
    same name. See docs/rewards.md.
    """
    name = "binary_code" if binary_from else "code"
    codes = [extract_code(fmt, text, code_language) for text in completion_texts(completions)]
    limits = {"seconds": code_timeout, "memory_mb": code_memory_mb}
    # Other ranks wait for this one. generate and evaluate score a whole dataset at once.
    deadline = time.monotonic() + (code_batch_seconds if world_size() > 1 else math.inf)

    def judge(program: str | None, info: Any) -> Judged:
        cases = read_cases(info)
        if not cases:
            return None, "no test cases"
        if program is None:
            return 0.0, "no code"
        return _judge(program, cases, binary_from, code_provider, limits, deadline)

    with ThreadPoolExecutor(parallel_code_exec_per_proc or cores_per_rank()) as pool:
        judged = list(pool.map(judge, codes, verification_info))
    reasons = [reason for _, reason in judged]
    lost = [reason for reason in reasons if reason.startswith("not judged")]
    if lost:
        message = f"reward {name!r}: {len(lost)} of {len(judged)} programs are {lost[0]}"
        if len(lost) == len(judged):
            raise RecipeError(message)
        logger.warning("%s. If time is short, raise parallel_code_exec_per_proc", message)
    log_extra(f"{name}_result", reasons)
    log_metric(f"{name}/no_code", float(codes.count(None)))
    log_metric(f"{name}/timeouts", float(sum("timeout" in reason for reason in reasons)))
    return [score for score, _ in judged]


@functools.wraps(code, assigned=())  # the same columns and keys
def binary_code(completions: Column, **options: Any) -> Values:
    """Return 1.0 if the reward ``code`` would be at least 0.99, else 0.0.

    Range: {0, 1}. Return ``None`` where ``code`` does. A program that can no longer reach 0.99 is
    not run any further. Source: open-r1's reward of the same name.
    """
    return code(completions, binary_from=0.99, **options)


def _judge(
    program: str,
    cases: Sequence[Case],
    binary_from: float,
    provider: str,
    limits: dict[str, int],
    deadline: float,
) -> Judged:
    """Return the reward of a program, and which case it fails.

    Cases are run as long as they can still change the reward.
    """
    passed, reason, timeouts = 0, "", 0
    for number, case in enumerate(cases, 1):
        if time.monotonic() > deadline:
            return None, "not judged: code_batch_seconds is over"
        size = 2 * len(str(case.expected)) + (1 << 16)
        # The expected output stays outside, where no program can find it.
        try:
            outcome = get_run(provider)(
                program, case.stdin, function=case.function, output_bytes=size, **limits
            )
        except sandbox.SandboxError as error:
            return None, f"not judged: {error}"
        status = f"{outcome.status} {outcome.detail}".strip()
        if outcome.status == "ok":
            status = "ok" if case.passes(outcome.output) else "wrong output"
        passed += status == "ok"
        timeouts += status == "timeout"
        if status != "ok":
            reason = reason or f"; case {number}: {status}"
        hopeless = number - passed > len(cases) * (1 - binary_from)
        if hopeless or timeouts == MAX_TIMEOUTS:
            break
    share = passed / len(cases)
    score = float(share >= binary_from) if binary_from else share
    return score, f"{passed} of {len(cases)}{reason}"


def _check_start(*, code_language: str = "python", code_provider: str = "bubblewrap") -> None:
    require(
        ":" in code_provider or code_language in PYTHON,
        "code_language",
        "python with code_provider: bubblewrap",
        code_language,
    )
    get_run(code_provider)


code.check_start = binary_code.check_start = _check_start  # type: ignore[attr-defined]


def code_format(
    completions: Column,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    code_language: str = "python",
    **columns: Any,
) -> Values:
    """Return 1.0 for a completion in the response format with a closed block of code, else 0.0.

    Range: {0, 1}. The block must be of ``code_language`` and in the answer. No program is run.
    Source: open-r1's reward of the same name.
    """
    texts = completion_texts(completions)
    shaped = [fmt.parse(text).well_formed for text in texts]
    codes = [extract_code(fmt, text, code_language) for text in texts]
    return [float(well and code is not None) for well, code in zip(shaped, codes, strict=True)]


@register_mapper("verifiable_code", "problem_statement|problem", "verification_info")
def verifiable_code(row: dict[str, Any], prompt_column: str = "problem_statement") -> MappedRow:
    """Map open-r1/verifiable-coding-problems-python: a problem and ``verification_info``.

    ``verification_info`` has the language and the test cases, for a reward that runs code. The
    decontaminated variants have the column ``problem`` instead of ``problem_statement``.
    ``solution`` is the reference program, if there is one.
    """
    info = row.get("verification_info")
    if not isinstance(info, dict) or not info.get("test_cases"):
        raise SkipRow("column 'verification_info' has no test_cases")
    return {
        "question": text(row, prompt_column if prompt_column in row else "problem"),
        "solution": text(row, "gold_standard_solution", needed=False),
        "verification_info": info,
    }
