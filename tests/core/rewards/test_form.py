"""Rewards for the surface of the text: counted markers, n-grams by hand and by TRL, the two formats
of the GSM8K demo.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes import rewards
from r1_recipes.prompts import FORMATS
from tests.support.rewards import HOSTILE, seconds

FMT = FORMATS["reasoning_answer"]
SHAPES = (rewards.format, rewards.format_partial, rewards.tag_count)
ALL = (
    *SHAPES,
    rewards.reasoning_steps,
    rewards.repetition_penalty,
    rewards.xml_soft_format,
    rewards.xml_strict_format,
    rewards.xml_count,
    rewards.integer_answer,
)
TAGGED = "<think>\na\n</think>\n<answer>\n72\n</answer>"
EXACT = "<reasoning>\na\n</reasoning>\n<answer>\n72\n</answer>"


def score(reward, completion, **columns):
    [value] = reward(completions=[completion], prompts=["p"], trainer_state=None, **columns)
    return value


def paid(reward, completion, fmt=FORMATS["think_answer"]):
    return score(reward, completion, fmt=fmt)


# format, format_partial and tag_count of a completion
SHAPED = {
    TAGGED: (1.0, 1.0, 1.0),
    "\n" + TAGGED + " \n": (1.0, 1.0, 1.0),  # white space around is free
    # tags count without their line breaks
    "<think>a</think><answer>72</answer>": (1.0, 1.0, 1.0),
    TAGGED + "\nDone.": (0.0, 0.6, 1.0),  # text after: 0.1 + 0.5
    "Sure! " + TAGGED: (0.0, 0.6, 1.0),  # text before
    # two equal answer blocks read as one answer; the tags occur twice: 2 of 4 tags
    TAGGED + "\n<answer>\n72\n</answer>": (0.0, 0.6, 0.5),
    # two that contradict: no answer, 0.1 for the reasoning
    TAGGED + "\n<answer>\n5\n</answer>": (0.0, 0.1, 0.5),
    # empty reasoning: 0.5 for the answer, and its tags; an empty answer: 0.1, and half of the tags
    "<think>\n\n</think>\n<answer>\n72\n</answer>": (0.0, 0.5, 0.5),
    "<think>\na\n</think>\n<answer>\n\n</answer>": (0.0, 0.1, 0.5),
    "<think>\na\n</think>\n72": (0.0, 0.1, 0.5),  # no answer block: 2 of 4 tags
    "<answer>\n72\n</answer>": (0.0, 0.5, 0.5),  # no reasoning: 2 of 4 tags
    "<think>\nstill thinking": (0.0, 0.0, 0.25),  # cut off: 1 of 4 tags
    "72": (0.0, 0.0, 0.0),
    "": (0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("completion", SHAPED)
def test_shapes(completion):
    found = [paid(reward, completion) for reward in SHAPES]
    assert found == pytest.approx(SHAPED[completion])


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_format_writes_gets_full_marks(name):
    fmt = FORMATS[name]
    text = fmt.render_completion("2 + 2 = 4", "4")
    assert paid(rewards.format, text, fmt) == 1.0
    assert paid(rewards.format_partial, text, fmt) == 1.0


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
    ("text", "params", "expected"),
    [
        # 6 words, 4 trigrams: abc bca cab abc, 3 distinct: (1 - 3/4) * -1
        ("a b c a b c", {}, -0.25),
        ("A b c a B C", {}, -0.25),  # in lower case
        ("a a a a a", {}, -2 / 3),  # 3 trigrams, 1 distinct
        ("a a a a a", {"repetition_max_penalty": -0.3}, -0.2),  # 2/3 * -0.3
        ("a b c d e", {}, 0.0),
        ("a a", {}, 0.0),  # fewer than 3 words
        ("", {}, 0.0),
        # 6 characters, 4 trigrams: 我们算 们算我 算我们 我们算
        ("我们算我们算", {}, -0.25),
        # mixed: 算 100 加 100 算 100 加: 5 trigrams, [算 100 加] twice
        ("算100加100算100加", {}, -0.2),
        # Japanese and Thai, a character each: かさかさか: かさか さかさ かさか
        ("かさかさか", {}, -1 / 3),
        ("มามามา", {}, -0.5),  # 6 characters, 4 trigrams, 2 distinct
    ],
)
def test_repetition_penalty(text, params, expected):
    value = score(rewards.repetition_penalty, text, **params)
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


# xml_soft_format and xml_strict_format of a completion
XML = {
    EXACT: (1.0, 1.0),
    EXACT + "\n": (1.0, 1.0),  # one last line break is free
    EXACT + "\n\n": (1.0, 0.0),
    "<reasoning>a</reasoning><answer>72</answer>": (1.0, 0.0),  # no line breaks
    EXACT.replace("\n<answer>", "\n\n<answer>"): (1.0, 0.0),  # one break too many
    "Well. " + EXACT + " Done.": (1.0, 0.0),  # anywhere
    EXACT.replace("72", "7\n2"): (1.0, 1.0),  # several lines inside
    # near-misses of both
    EXACT.replace("a\n</r", "\n</r"): (0.0, 0.0),  # empty reasoning
    EXACT.replace("72", ""): (0.0, 0.0),  # empty answer
    "<answer>\n72\n</answer>\n<reasoning>\na\n</reasoning>": (0.0, 0.0),  # the wrong way round
    EXACT.replace("\n<answer>", "\nso\n<answer>"): (0.0, 0.0),  # text between
    EXACT.replace("</reasoning>\n", ""): (0.0, 0.0),  # reasoning never closes
    EXACT.removesuffix("\n</answer>"): (0.0, 0.0),  # answer never closes
    "72": (0.0, 0.0),
    "": (0.0, 0.0),
}


@pytest.mark.parametrize("text", XML)
def test_xml_formats(text):
    soft, strict = rewards.xml_soft_format, rewards.xml_strict_format
    assert (score(soft, text, fmt=FMT), score(strict, text, fmt=FMT)) == XML[text]


def test_xml_count_is_the_demo_s_at_half_weight():
    """The demo: 0.125 a tag, less 0.001 a character after the answer, twice; with a line break at
    the end, where the two agree.
    """
    for trailing in ("", "Done.", "x" * 50):
        theirs = 4 * 0.125 - 2 * 0.001 * len(trailing)
        assert 0.5 * score(
            rewards.xml_count, fmt=FMT, completion=EXACT + "\n" + trailing
        ) == pytest.approx(theirs)
    # Without answer tags nothing can follow them.
    assert (
        score(
            rewards.xml_count,
            fmt=FORMATS["think_prose"],
            completion="<think>\na\n</think>\n\n72 and more",
        )
        == 1.0
    )


def test_integer_answer():
    shape = "<reasoning>\na\n</reasoning>\n<answer>\n{}\n</answer>"
    for answers, value in (
        (("72", "-72", "+7", "1,200", " 0 "), 1.0),
        (("72.0", "72 pens", "12,00", "٧٢", ""), 0.0),
    ):
        for answer in answers:
            assert score(rewards.integer_answer, shape.format(answer), fmt=FMT) == value, answer


@pytest.mark.parametrize("reward", ALL)
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_completions(reward, name):
    with seconds(5):
        assert len(
            reward(completions=HOSTILE, completion_ids=[[1]] * len(HOSTILE), fmt=FORMATS[name])
        ) == len(HOSTILE)
