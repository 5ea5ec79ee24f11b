"""Rewards for the shape of a response: exact values over shapes and near-misses, prefills, formats with fewer tags."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.rewards import format as shape
from tests.rewards import HOSTILE, seconds

FMT = FORMATS["think_answer"]
ALL = (shape.FormatReward, shape.FormatPartialReward, shape.TagCountReward)
EXACT = "<think>\na\n</think>\n<answer>\n72\n</answer>"


def score(cls, completion, fmt=FMT):
    [value] = cls(fmt)(completions=[completion], prompts=["p"], completion_ids=[[1]], trainer_state=None)
    return value


@pytest.mark.parametrize(
    ("completion", "format_", "partial", "tags"),
    [
        # The four tags are "<think>\n", "\n</think>\n", "\n<answer>\n" and "\n</answer>"; two may share a line break.
        (EXACT, 1.0, 1.0, 1.0),
        ("\n" + EXACT + " \n", 1.0, 1.0, 1.0),  # white space around is free
        ("<think>a</think><answer>72</answer>", 1.0, 1.0, 0.0),  # right blocks, but no tag has its line breaks
        (EXACT + "\nDone.", 0.0, 0.6, 1.0),  # text after: 0.1 + 0.5
        ("Sure! " + EXACT, 0.0, 0.6, 1.0),  # text before
        # two equal answer blocks read as one answer; "\n<answer>\n" and "\n</answer>" occur twice: 2 of 4
        (EXACT + "\n<answer>\n72\n</answer>", 0.0, 0.6, 0.5),
        (EXACT + "\n<answer>\n5\n</answer>", 0.0, 0.1, 0.5),  # two that contradict: no answer, 0.1 for the reasoning
        ("<think>\n\n</think>\n<answer>\n72\n</answer>", 0.0, 0.5, 1.0),  # empty reasoning: 0.5 for the answer
        ("<think>\na\n</think>\n<answer>\n\n</answer>", 0.0, 0.1, 1.0),  # empty answer: 0.1 for the reasoning
        ("<think>\na\n</think>\n72", 0.0, 0.1, 0.5),  # no answer block: 2 of 4 tags
        ("<answer>\n72\n</answer>", 0.0, 0.5, 0.25),  # no reasoning; only "\n</answer>" has its breaks, "<answer>" starts the text
        ("<think>\nstill thinking", 0.0, 0.0, 0.25),  # cut off: 1 of 4 tags
        ("72", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_values(completion, format_, partial, tags):
    assert score(shape.FormatReward, completion) == format_
    assert score(shape.FormatPartialReward, completion) == pytest.approx(partial)
    assert score(shape.TagCountReward, completion) == tags


def test_messages_are_read_like_text():
    assert score(shape.FormatReward, [{"role": "assistant", "content": EXACT}]) == 1.0


@pytest.mark.parametrize("prefill", ["<think>\n", "Let me solve this step by step.\n<think>\n"])
def test_the_prefill_belongs_to_the_response(prefill):
    fmt = get_response_format("think_answer", prefill=prefill)
    rest = EXACT.removeprefix("<think>\n")
    assert [score(cls, rest, fmt) for cls in ALL] == [1.0, 1.0, 1.0]
    # Opened twice: the tag is repeated (3 of 4 tags are single), the block no longer the only one.
    assert [score(cls, EXACT, fmt) for cls in (shape.FormatReward, shape.TagCountReward)] == [0.0, 0.75]
    # Without the prefill the same completion lacks its opening tag.
    assert [score(cls, rest) for cls in (shape.FormatReward, shape.TagCountReward)] == [0.0, 0.75]


@pytest.mark.parametrize(
    ("name", "completion", "share"),
    [
        ("think_boxed", "<think>\na\n</think>\n\\boxed{72}", 1.0),  # 3 tags: <think>, </think>, \boxed{
        ("think_boxed", "<think>\na\n</think>\n72", 2 / 3),
        ("boxed", "a\n\\boxed{72}", 1.0),  # 1 tag
        ("boxed", "a\n\\boxed{72}\n\\boxed{5}", 0.0),
        ("special_token", "|special_token|a|special_token|Summary: 72", 1.0),
    ],
)
def test_tags_of_other_formats(name, completion, share):
    assert score(shape.TagCountReward, completion, FORMATS[name]) == pytest.approx(share)


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_format_writes_is_paid_in_full(name):
    fmt = FORMATS[name]
    text = fmt.render_completion("2 + 2 = 4", "4")
    assert score(shape.FormatReward, text, fmt) == 1.0
    assert score(shape.FormatPartialReward, text, fmt) == 1.0


@given(text=st.text())
@pytest.mark.parametrize("name", FORMATS)
def test_ranges(name, text):
    fmt = FORMATS[name]
    assert score(shape.FormatReward, text, fmt) in (0.0, 1.0)
    assert round(score(shape.FormatPartialReward, text, fmt), 9) in (0.0, 0.1, 0.5, 0.6, 1.0)
    assert 0.0 <= score(shape.TagCountReward, text, fmt) <= 1.0


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_completions(name):
    for cls in ALL:
        reward = cls(FORMATS[name])
        with seconds(5):
            assert len(reward(completions=HOSTILE)) == len(HOSTILE)


@pytest.mark.parametrize("cls", ALL)
def test_pickles(cls):
    reward = cls(FMT)
    assert pickle.loads(pickle.dumps(reward)) == reward
    assert reward.__name__ == cls.name
