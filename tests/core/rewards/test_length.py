"""Rewards on completion length: schedules against their formulas and against TRL's own, groups,
bounds.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards import length
from r1_recipes.rewards.length import (
    CosineReward,
    LengthReward,
    SoftOverlongPunishmentReward,
    TargetLengthReward,
)
from r1_recipes.verification import Verdict

FMT = FORMATS["think_answer"]


def ids(*lengths):
    return [[7] * n for n in lengths]


@pytest.fixture
def verdicts(monkeypatch):
    """Sets what ``correctness`` says, since these tests are about length."""

    def set_verdicts(*values):
        monkeypatch.setattr(
            length,
            "correctness",
            lambda reward, completions, **columns: ([], [*map(Verdict, values)]),
        )
        return {"completions": ["x"] * len(values), "solution": ["1"] * len(values)}

    return set_verdicts


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
def test_cosine_values(verdicts, correct, tokens, expected):
    [reward] = CosineReward(FMT)(completion_ids=ids(tokens), **verdicts(correct))
    assert reward == (expected if expected is None else pytest.approx(expected, abs=1e-12))


@settings(deadline=None)  # the first call imports TRL
@given(
    tokens=st.lists(st.integers(0, 400), min_size=4, max_size=4),
    bounds=st.lists(st.floats(-2, 2), min_size=4, max_size=4),
    max_len=st.integers(1, 300),
)
def test_cosine_schedule_is_trl_s(tokens, bounds, max_len):
    from trl.rewards import accuracy_rewards

    values = [True, False, None, True]
    min_wrong, max_wrong, min_correct, max_correct = bounds
    columns = {"completions": ["x"] * 4, "solution": ["1"] * 4, "completion_ids": ids(*tokens)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length, "correctness", lambda *args, **columns: ([], [*map(Verdict, values)]))
        patch.setattr(
            accuracy_rewards,
            "accuracy_reward",
            lambda *args: [v if v is None else float(v) for v in values],
        )
        ours = CosineReward(FMT, min_wrong, max_wrong, min_correct, max_correct, max_len)(**columns)
        theirs = accuracy_rewards.get_cosine_scaled_reward(
            max_len, min_wrong, max_wrong, min_correct, max_correct
        )(**columns)
    assert ours == [None if value is None else pytest.approx(value, abs=1e-12) for value in theirs]
    low, high = min(bounds), max(bounds)
    assert all(value is None or low - 1e-9 <= value <= high + 1e-9 for value in ours)


def test_length_values(verdicts):
    # One group of 100..200 tokens: w = 0.5 - (n - 100) / 100.
    columns = verdicts(True, True, True, False, False, None)
    rewards = LengthReward(FMT)(
        prompts=["p"] * 6, completion_ids=ids(100, 150, 200, 100, 200, 120), **columns
    )
    #  right: 0.5, 0.5-0.5, 0.5-1.0; wrong: min(0, 0.5), min(0, -0.5); not judged
    assert rewards == pytest.approx([0.5, 0.0, -0.5, 0.0, -0.5, None])


def test_length_compares_within_a_prompt_only(verdicts):
    p, q = [{"role": "user", "content": "p"}], [{"role": "user", "content": "q"}]
    # p: 10 and 20; q: 1000 and 3000, interleaved. Over the whole batch (open-r1), q's short one
    # would score -0.5 + 0.67.
    rewards = LengthReward(FMT)(
        prompts=[p, q, list(p), list(q)],
        completion_ids=ids(10, 1000, 20, 3000),
        **verdicts(*[True] * 4),
    )
    assert rewards == [0.5, 0.5, -0.5, -0.5]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (80, 0.0),  # up to 100 - 20 free
        (81, -0.05),  # (80 - 81) / 20
        (90, -0.5),  # (80 - 90) / 20
        (100, -1.0),  # (80 - 100) / 20
        (101, -1.0),  # past the maximum
        (0, 0.0),
    ],
)
def test_soft_overlong_punishment(tokens, expected):
    reward = SoftOverlongPunishmentReward(FMT, max_completion_len=100, soft_punish_cache=20)
    assert reward(completions=["x"], completion_ids=ids(tokens), trainer_state=None) == [
        pytest.approx(expected)
    ]


@pytest.mark.parametrize(
    ("tokens", "expected"), [(64, 0.0), (0, -1.0), (128, -1.0), (9999, -1.0), (32, -0.5)]
)
def test_target_length(tokens, expected):
    assert TargetLengthReward(FMT)(completions=["x"], completion_ids=ids(tokens)) == [expected]


@pytest.mark.parametrize("reward", [TargetLengthReward, SoftOverlongPunishmentReward])
def test_a_length_needs_the_tokens_of_every_completion(reward):
    with pytest.raises(ValueError, match="shorter"):
        reward(FMT)(["a"])
