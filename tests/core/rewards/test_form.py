"""Rewards for the surface of the text: counted markers, n-grams by hand and by TRL.

What format, the xml rewards and their kind pay is in tests/acceptance/rewards.yaml and tests/golden.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes import rewards
from r1_recipes.prompts import FORMATS
from tests.support.rewards import HOSTILE, seconds

ALL = (
    rewards.format,
    rewards.format_partial,
    rewards.tag_count,
    rewards.reasoning_steps,
    rewards.repetition_penalty,
    rewards.xml_soft_format,
    rewards.xml_strict_format,
    rewards.xml_count,
    rewards.integer_answer,
)


def score(reward, completion, **columns):
    [value] = reward(completions=[completion], prompts=["p"], trainer_state=None, **columns)
    return value


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_format_writes_gets_full_marks(name):
    fmt = FORMATS[name]
    text = fmt.render_completion("2 + 2 = 4", "4")
    assert score(rewards.format, text, fmt=fmt) == 1.0
    assert score(rewards.format_partial, text, fmt=fmt) == 1.0


STEPS = {  # markers in a text
    "Step 1: add. Step 2: halve.": 2,
    "1. add\n  2) halve\n10. done": 3,
    "- add\n* halve\n• done": 3,
    "First, add. Second, halve. Next, check. Finally, write.": 4,
    "首先加，其次减，然后乘，最后除。": 4,
    "1. First, add": 2,  # the number and the word
}
NO_STEPS = ["Step one: add", "Step 1 add", "Misstep 1: add", "first, add; SECOND, halve"]
NO_STEPS += ["First add", "1.5 apples\n2.25", "-3 + 5\n*2", ""]


def test_reasoning_steps():
    for text, count in {**STEPS, **dict.fromkeys(NO_STEPS, 0)}.items():
        expected = min(1.0, count / 3)
        assert score(rewards.reasoning_steps, text) == pytest.approx(expected), text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0.0),
        # mixed: 算 100 加 100 算 100 加: 5 trigrams, [算 100 加] twice
        ("算100加100算100加", -0.2),
        # Japanese and Thai, a character each: かさかさか: かさか さかさ かさか
        ("かさかさか", -1 / 3),
        ("มามามา", -0.5),  # 6 characters, 4 trigrams, 2 distinct
    ],
)
def test_repetition_penalty(text, expected):
    value = score(rewards.repetition_penalty, text)
    assert value == pytest.approx(expected)
    assert str(value) != "-0.0"


@settings(deadline=None)  # the first call imports TRL
@given(
    words=st.lists(st.sampled_from("abcd"), max_size=20),
    n=st.integers(1, 4),
    penalty=st.floats(-3, 0).filter(lambda value: value == 0 or value < -1e-9),
)
def test_words_are_penalised_as_trl_penalises_tokens(words, n, penalty):
    from trl.rewards import get_repetition_penalty_reward

    ids = [ord(word) for word in words]
    params = {"repetition_n_grams": n, "repetition_max_penalty": penalty}
    [expected] = get_repetition_penalty_reward(n, penalty)([ids])
    text = " ".join(words)
    assert score(rewards.repetition_penalty, text, **params) == pytest.approx(expected)
    assert penalty <= expected <= 0.0


@pytest.mark.parametrize("reward", ALL)
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_completions(reward, name):
    with seconds(5):
        assert len(
            reward(completions=HOSTILE, completion_ids=[[1]] * len(HOSTILE), fmt=FORMATS[name])
        ) == len(HOSTILE)
