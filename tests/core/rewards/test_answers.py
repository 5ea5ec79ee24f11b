"""The accuracy reward: what scores, and everything that must not."""

import time

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.answers import parsed_answer

THINK = get_response_format("think_answer")


def reward(fmt=THINK):
    return get_reward_funcs(["accuracy"], fmt)[0]


def think(answer, reasoning="48 + 24"):
    return f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("72", "72", 1.0),  # not only LaTeX
        ("$72$", "72", 1.0),
        (r"\boxed{72}", "72", 1.0),
        ("$1,080", "1080", 1.0),
        ("1080.00", "1,080", 1.0),
        ("18 eggs", "18", 1.0),
        ("50%", "50%", 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        ("[1,2]", "(1,2)", 0.0),  # math-verify: a closed interval is not an open one
        (r"\boxed{1=2=3=72}", "72", 0.0),
        ("71 or 72", "72", 0.0),
        ("no idea", "72", 0.0),
        ("72", "Pancreas", 0.0),  # words are compared as words
        ("Pancreas.", "Pancreas", 1.0),
        ("72", "It is " + "very " * 12 + "long.", None),
        ("72", None, None),
        ("72", 72, 1.0),  # a numeric column
        ("0.5", 0.5, 1.0),
    ],
)
def test_answers(answer, gold, expected):
    assert reward()(completions=[think(answer)], solution=[gold]) == [expected]


@pytest.mark.parametrize(
    "completion",
    [
        think("no idea", reasoning=r"it is \boxed{72}"),  # right only inside the reasoning
        think(
            "71", reasoning="<answer>72</answer>"
        ),  # right answer block inside the reasoning, wrong one after it
        think("71") + "<answer>72</answer>",  # contradicting blocks
        "<answer>72</answer>" + think("71"),
        "<think>72</think>",
        "<think>so <answer>72</answer>",  # the reasoning never ends
        think("72").removesuffix("</answer>"),
        "The answer is 72.",  # a format with tags wants them
        "",
    ],
)
def test_nothing_but_the_final_answer_counts(completion):
    assert reward()(completions=[completion], solution=["72"]) == [0.0]


def test_logging():
    extra, metrics = {}, {}
    reward()(
        completions=[think("18 eggs"), "nothing"],
        solution=[18, "18"],
        log_extra=extra.__setitem__,
        log_metric=metrics.__setitem__,
    )
    assert extra == {
        "answer_parsed": ["18 eggs", ""],
        "solution": ["18", "18"],
        "refused": ["", "no answer in the format"],
    }
    assert metrics["verification/timeouts"] == 0.0
    assert metrics["verification/seconds"] >= 0.0


def test_a_puzzle_decides_its_rows():
    nums, target = [1, 2, 3], 7
    completions = [think("1 + 2 * 3"), think("7"), "nothing", think("72"), think("72")]
    rewards = reward()(
        completions=completions,
        solution=[None, "7", "7", "72", None],
        nums=[nums, nums, nums, None, None],
        target=[target, target, target, None, None],
    )
    assert rewards == [1.0, 0.0, 0.0, 1.0, None]
    # A puzzle needs no reference answer.
    assert reward()(completions=completions[:1], nums=[nums], target=[target]) == [1.0]
    with pytest.raises(RecipeError, match="solution"):
        reward()(completions=completions[:2], nums=[nums, None], target=[target, None])


def test_answer_contains():
    (contains,) = get_reward_funcs(["answer_contains"], THINK)
    completions = [think("172 eggs"), think("71"), "72", think("72"), think("72")]
    # "172 eggs" holds "72"; "71" does not; no answer block; no gold; a numeric gold
    assert contains(completions=completions, solution=["72", "72", "72", None, 72]) == [
        1.0,
        0.0,
        0.0,
        None,
        1.0,
    ]


HOSTILE = [
    "9**9**9**9",
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{" * 3000,
    "1" * 200_000,
    "<think>" * 20_000,
    "<answer>" * 20_000,
    "</think><answer>" * 20_000,
    r"\frac{" * 2000,
    "(" * 50_000,
    "a" * 100_000,
    "\ud800\udfff" * 100,
    "\0" * 1000,
    "\u202e72",
    "",
]


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_completions(name):
    fmt = get_response_format(name)
    completions = [
        *HOSTILE,
        *(fmt.layout.replace("{reasoning}", "x").replace("{answer}", text) for text in HOSTILE),
    ]
    completions += [[], [{"role": "assistant", "content": None}]]
    started = time.monotonic()
    for gold in ("73", r"\frac{1}{7}"):
        assert set(reward(fmt)(completions=completions, solution=[gold] * len(completions))) == {
            0.0
        }
    assert all(
        isinstance(parsed_answer(fmt, text), str | None) for text in completion_texts(completions)
    )
    assert time.monotonic() - started < 20
