"""The accuracy reward: what it logs, and what a model may write to break it.

What it pays is in tests/acceptance: rewards.yaml, verdicts.yaml.
"""

import pytest

from r1_recipes.common.messages import completion_texts
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.rewards.answers import parsed_answer
from tests.support.rewards import HOSTILE, seconds

THINK = get_response_format("think_answer")


def reward(fmt=THINK):
    return get_reward_funcs(["accuracy"], fmt)[0]


def think(answer, reasoning="48 + 24"):
    return f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"


def test_a_reference_answer_may_be_a_number_or_missing():
    golds = [72, None, "It is " + "very " * 12 + "long."]
    assert reward()(completions=[think("72")] * 3, solution=golds) == [1.0, None, None]


def test_logging():
    extra = {}
    reward()(
        completions=[think("18 eggs"), "nothing"],
        solution=[18, "18"],
        log_extra=extra.__setitem__,
    )
    assert extra == {
        "answer_parsed": ["18 eggs", ""],
        "solution": ["18", "18"],
        "refused": ["", "no answer in the format"],
    }


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_completions(name):
    fmt = get_response_format(name)
    completions = [
        *HOSTILE,
        *(
            fmt.layout.replace("{reasoning}", "x").replace("{answer}", text)
            for text in HOSTILE
            if isinstance(text, str)
        ),
    ]
    texts = completion_texts(completions)
    with seconds(20):
        for gold in ("73", r"\frac{1}{7}"):
            scores = reward(fmt)(completions=completions, solution=[gold] * len(completions))
            assert set(scores) == {0.0}
        assert all(isinstance(parsed_answer(fmt, text), str | None) for text in texts)
