"""Rewards on completion length: schedules against their formulas and against TRL's own, groups."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import accuracy_rewards

from r1_recipes.rewards import cosine, length

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


def test_length_compares_within_a_prompt_only():
    p, q = [{"role": "user", "content": "p"}], [{"role": "user", "content": "q"}]
    # p: 10 and 20; q: 1000 and 3000, interleaved. Over the whole batch (open-r1), q's short one
    # would score -0.5 + 0.67.
    columns = judged(*[True] * 4, tokens=(10, 1000, 20, 3000))
    assert length(prompts=[p, q, list(p), list(q)], **columns) == [0.5, 0.5, -0.5, -0.5]


def test_completions_of_equal_length_score_nothing():
    columns = judged(True, False, tokens=[5, 5])
    assert length(prompts=["p", "p"], **columns) == [0.0, 0.0]
