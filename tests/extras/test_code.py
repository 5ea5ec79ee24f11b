"""The rewards for programs: what counts as the program, as a test case and as passed."""

import json

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.code import Case, extract_code, read_cases
from r1_recipes.extras.sandbox import Outcome, SandboxError
from r1_recipes.prompts import get_response_format
from r1_recipes.rewards import get_reward_funcs

THINK = get_response_format("think_answer")
DOUBLE = "print(2 * int(input()))"


def answer(code, tag="python"):
    return f"<think>\nwork\n</think>\n<answer>\n```{tag}\n{code}\n```\n</answer>"


def info(*cases, function=None):
    entries = [{"fn_name": function, "input": given, "output": wanted} for given, wanted in cases]
    return {"language": "python", "test_cases": entries}


# 4 -> 8, -1 -> -2 and 0 -> 1, which doubling does not give: 2 of 3.
DOUBLING = info(("4\n", "8\n"), ("-1\n", "-2\n"), ("0\n", "1\n"))
calls: list[tuple[str, bytes, dict]] = []


def scripted(code, stdin=b"", **limits):
    """A code_provider that looks up what a program would do instead of running it."""
    calls.append((code, stdin, limits))
    if code == "lost" or (code == "sometimes" and stdin == b"0\n"):
        raise SandboxError("no machine")
    if code == "slow":
        return Outcome("timeout")
    if code == "broken":
        return Outcome("error", b"", "NameError")
    return Outcome("ok", b"%d\n" % (2 * int(stdin)))


def score(name, completions, infos, **params):
    calls.clear()
    logged: dict[str, object] = {}
    params = {"code_provider": f"{__name__}:scripted", "parallel_code_exec_per_proc": 1} | params
    (reward,) = get_reward_funcs([name], THINK, **params)
    scores = reward(
        completions=completions,
        verification_info=infos,
        log_extra=logged.__setitem__,
        log_metric=logged.__setitem__,
    )
    return scores, logged


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("```Python3 \r\nx = 1\r\ny = 2\r\n```", "x = 1\ny = 2"),
        ("first\n```python\nx = 1\n```\nthen\n```python\nx = 2\n```\nend", "x = 2"),
        ("```python\nx = 1\n```\n```bash\nls\n```", "x = 1"),
        ("```python\nx = 1\n```\n```python\nx = 2", "x = 1"),
        ("1. So:\n   ```python\n   if x:\n       y()\n   ```", "if x:\n    y()"),
        ("Here: ```python\nx = 1```", "x = 1"),
        ("```cpp\nint x;\n```", None),
        ("```python\nx = 1", None),
        ("x = 1", None),
    ],
)
def test_the_program_is_the_last_closed_block(text, code):
    assert extract_code(get_response_format("boxed"), text, "python") == code


def test_test_cases_of_programs_and_of_functions():
    plain = [Case(b"4\n", "8\n", None), Case(b"-1\n", "-2\n", None), Case(b"0\n", "1\n", None)]
    assert read_cases(DOUBLING) == plain
    for given in ("[1, [2, 3]]", [1, [2, 3]]):
        [case] = read_cases(info((given, "4"), function="f"))
        assert (json.loads(case.stdin), case.expected, case.function) == ([1, [2, 3]], 4, "f")


@pytest.mark.parametrize(
    "unusable",
    [
        None,
        "no JSON",
        {"test_cases": []},
        {"test_cases": [None]},
        {"test_cases": [{"input": "1", "output": "1"}, {"input": "1"}]},
        info(("(", "1"), function="f"),
    ],
)
def test_rows_without_usable_test_cases(unusable):
    assert read_cases(unusable) == []


@pytest.mark.parametrize(
    ("expected", "printed", "passed"),
    [
        ("8\n", "8\n", True),
        ("8\n", "  8 \n\n", True),
        ("1\n2\n", "1 \n2", True),
        ("1\n2\n", "1\n", False),  # open-r1 compares as many lines as the shorter one has
        ("1\n", "1\n2\n", False),
        ("1 2", "1  2", False),
    ],
)
def test_what_passes(expected, printed, passed):
    assert Case(b"", expected, None).passes(printed.encode()) is passed


@pytest.mark.parametrize(
    ("expected", "returned", "passed"),
    [
        ([1, 2], b"[1, 2]", True),
        ([7], b"7", True),  # APPS puts results in a list
        (7, b"[7]", False),
        (1, b"", False),
        (1, b"\xff", False),
        ([], b"[" * 100_000, False),
    ],
)
def test_what_a_function_has_to_return(expected, returned, passed):
    assert Case(b"[]", expected, "f").passes(returned) is passed


def test_the_share_of_passed_cases_and_why_the_others_did_not():
    texts = [answer(DOUBLE), "no block", answer("broken"), answer("slow"), answer(DOUBLE)]
    scores, logged = score("code", texts, [DOUBLING] * 4 + [None])
    assert scores == [2 / 3, 0.0, 0.0, 0.0, None]
    assert logged["code_result"] == [
        "2 of 3; case 3: wrong output",
        "no code",
        "0 of 3; case 1: error NameError",
        "0 of 3; case 1: timeout",
        "no test cases",
    ]
    assert (logged["code/no_code"], logged["code/timeouts"]) == (1.0, 1.0)
    assert [code for code, *_ in calls].count("slow") == 2, "two timeouts are enough"


def test_programs_run_with_the_limits_of_the_recipe():
    scores, _ = score("code", [answer(DOUBLE)], [DOUBLING], code_timeout=9)
    assert scores == [2 / 3] and len(calls) == 3
    assert calls[0][2]["seconds"] == 9 and calls[0][2]["memory_mb"] == 512


@pytest.mark.parametrize(("total", "reward", "runs"), [(3, 0.0, 1), (99, 0.0, 1), (100, 1.0, 100)])
def test_binary_scores_1_from_99_percent_and_stops_below(total, reward, runs):
    cases = [("0\n", "1\n"), *((f"{n}\n", f"{2 * n}\n") for n in range(1, total))]
    assert score("binary_code", [answer(DOUBLE)], [info(*cases)])[0] == [reward]
    assert len(calls) == runs


def test_what_the_sandbox_loses_is_not_judged(caplog, monkeypatch):
    assert score("code", [answer("sometimes"), answer(DOUBLE)], [DOUBLING] * 2)[0] == [None, 2 / 3]
    assert "1 of 2 programs are not judged: no machine" in caplog.text
    with pytest.raises(RecipeError, match="1 of 1 programs are not judged: no machine"):
        score("code", [answer("lost")], [DOUBLING])
    assert score("code", [answer(DOUBLE)], [None], code_batch_seconds=0)[0] == [None]
    # Nobody waits for a single process.
    assert score("code", [answer(DOUBLE)], [DOUBLING], code_batch_seconds=-1)[0] == [2 / 3]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="not judged: code_batch_seconds is over"):
        score("code", [answer(DOUBLE)], [DOUBLING], code_batch_seconds=-1)
