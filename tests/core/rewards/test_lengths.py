"""Rewards on completion length: schedules against their formulas and against TRL's own, groups."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import accuracy_rewards

from r1_recipes.rewards import cosine, length, soft_overlong_punishment

# A completion that is right, wrong, or whose reference answer is a question.
VERDICTS = {True: ("1", "1"), False: ("2", "1"), None: ("1", "Why?")}


def judged(*verdicts, tokens):
    """Columns of completions with these verdicts and numbers of tokens."""
    answers, golds = zip(*map(VERDICTS.get, verdicts), strict=True)
    shape = "<think>\na\n</think>\n<answer>\n{}\n</answer>"
    return {
        "completions": [*map(shape.format, answers)],
        "solution": [*golds],
        "completion_ids": [[7] * count for count in tokens],
    }


@pytest.mark.parametrize(
    ("correct", "tokens", "expected"),
    [
        # right: 0.5 + 0.5 * (1.0 - 0.5) * (1 + cos(pi * tokens / 1000))
        (True, 0, 1.0),  # cos 0 = 1: 0.5 + 0.25 * 2
        (True, 500, 0.75),  # cos(pi/2) = 0: 0.5 + 0.25 * 1
        (True, 1000, 0.5),  # cos pi = -1: 0.5 + 0.25 * 0
        (True, 2000, 0.5),  # clamped; unclamped, cos 2pi = 1 would pay 1.0 again
        (True, 250, 0.5 + 0.25 * (1 + math.sqrt(0.5))),  # cos(pi/4)
        # wrong, bounds swapped: -0.5 + 0.5 * (0.0 - -0.5) * (1 + cos(pi * tokens / 1000))
        (False, 0, 0.0),  # -0.5 + 0.25 * 2
        (False, 500, -0.25),  # -0.5 + 0.25 * 1
        (False, 1000, -0.5),  # -0.5 + 0.25 * 0
        (False, 5000, -0.5),  # clamped
        (None, 500, None),  # gold that cannot be judged
    ],
)
def test_cosine_values(correct, tokens, expected):
    [reward] = cosine(**judged(correct, tokens=[tokens]))
    assert reward == (expected if expected is None else pytest.approx(expected, abs=1e-12))


@settings(deadline=None)  # the first call starts workers
@given(
    tokens=st.lists(st.integers(0, 400), min_size=4, max_size=4),
    bounds=st.lists(st.floats(-2, 2), min_size=4, max_size=4),
    max_len=st.integers(1, 300),
)
def test_cosine_schedule_is_trl_s(tokens, bounds, max_len):
    verdicts = [True, False, None, True]
    columns = judged(*verdicts, tokens=tokens)
    keys = [f"cosine_{end}_value_{of}" for of in ("wrong", "correct") for end in ("min", "max")]
    ours = cosine(**columns, cosine_max_len=max_len, **dict(zip(keys, bounds, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        theirs = [v if v is None else float(v) for v in verdicts]
        patch.setattr(accuracy_rewards, "accuracy_reward", lambda *args: theirs)
        theirs = accuracy_rewards.get_cosine_scaled_reward(max_len, *bounds)(**columns)
    assert ours == [None if value is None else pytest.approx(value, abs=1e-12) for value in theirs]


def test_length_values():
    # One group of 100..200 tokens: w = 0.5 - (n - 100) / 100.
    tokens = (100, 150, 200, 100, 200, 120)
    columns = judged(True, True, True, False, False, None, tokens=tokens)
    #  right: 0.5, 0.5-0.5, 0.5-1.0; wrong: min(0, 0.5), min(0, -0.5); not judged
    assert length(prompts=["p"] * 6, **columns) == [0.5, 0.0, -0.5, 0.0, -0.5, None]


def test_length_compares_within_a_prompt_only():
    p, q = [{"role": "user", "content": "p"}], [{"role": "user", "content": "q"}]
    # p: 10 and 20; q: 1000 and 3000, interleaved. Over the whole batch (open-r1), q's short one
    # would score -0.5 + 0.67.
    columns = judged(*[True] * 4, tokens=(10, 1000, 20, 3000))
    assert length(prompts=[p, q, list(p), list(q)], **columns) == [0.5, 0.5, -0.5, -0.5]


def test_soft_overlong_punishment():
    tokens = (80, 81, 90, 100, 101, 0)  # up to 100 - 20 free, then (80 - tokens) / 20
    rewards = soft_overlong_punishment(
        completions=["x"] * 6,
        completion_ids=[[7] * count for count in tokens],
        trainer_state=None,
        max_completion_len=100,
        soft_punish_cache=20,
    )
    assert rewards == pytest.approx([0.0, -0.05, -0.5, -1.0, -1.0, 0.0])
