"""Rewards for the surface of the text: counted markers, n-grams by hand and by TRL, the two formats
of the GSM8K demo.
"""

import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.rewards.text import (
    FormatPartialReward,
    FormatReward,
    IntegerAnswerReward,
    ReasoningStepsReward,
    RepetitionPenaltyReward,
    TagCountReward,
    XmlCountReward,
    XmlSoftFormatReward,
    XmlStrictFormatReward,
)
from tests.support.rewards import HOSTILE, seconds

FMT = FORMATS["reasoning_answer"]
SHAPES = (FormatReward, FormatPartialReward, TagCountReward)
ALL = (
    *SHAPES,
    ReasoningStepsReward,
    RepetitionPenaltyReward,
    XmlSoftFormatReward,
    XmlStrictFormatReward,
    XmlCountReward,
    IntegerAnswerReward,
)
TAGGED = "<think>\na\n</think>\n<answer>\n72\n</answer>"
EXACT = "<reasoning>\na\n</reasoning>\n<answer>\n72\n</answer>"


def score(reward, completion, **columns):
    [value] = reward(completions=[completion], prompts=["p"], trainer_state=None, **columns)
    return value


def paid(cls, completion, fmt=FORMATS["think_answer"]):
    return score(cls(fmt), completion)


@pytest.mark.parametrize(
    ("completion", "format_", "partial", "tags"),
    [
        # The four tags are "<think>\n", "\n</think>\n", "\n<answer>\n" and "\n</answer>"; two may
        # share a line break.
        (TAGGED, 1.0, 1.0, 1.0),
        ("\n" + TAGGED + " \n", 1.0, 1.0, 1.0),  # white space around is free
        (
            "<think>a</think><answer>72</answer>",
            1.0,
            1.0,
            0.0,
        ),  # right blocks, but no tag has its line breaks
        (TAGGED + "\nDone.", 0.0, 0.6, 1.0),  # text after: 0.1 + 0.5
        ("Sure! " + TAGGED, 0.0, 0.6, 1.0),  # text before
        # two equal answer blocks read as one answer; "\n<answer>\n" and "\n</answer>" occur twice:
        # 2 of 4
        (TAGGED + "\n<answer>\n72\n</answer>", 0.0, 0.6, 0.5),
        (
            TAGGED + "\n<answer>\n5\n</answer>",
            0.0,
            0.1,
            0.5,
        ),  # two that contradict: no answer, 0.1 for the reasoning
        (
            "<think>\n\n</think>\n<answer>\n72\n</answer>",
            0.0,
            0.5,
            0.5,
        ),  # empty reasoning: 0.5 for the answer, and its tags
        (
            "<think>\na\n</think>\n<answer>\n\n</answer>",
            0.0,
            0.1,
            0.5,
        ),  # empty answer: 0.1 for the reasoning, and half of the tags
        ("<think>\na\n</think>\n72", 0.0, 0.1, 0.5),  # no answer block: 2 of 4 tags
        (
            "<answer>\n72\n</answer>",
            0.0,
            0.5,
            0.25,
        ),  # no reasoning; only "\n</answer>" has its breaks, "<answer>" starts the text
        ("<think>\nstill thinking", 0.0, 0.0, 0.25),  # cut off: 1 of 4 tags
        ("72", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_shapes(completion, format_, partial, tags):
    assert paid(FormatReward, completion) == format_
    assert paid(FormatPartialReward, completion) == pytest.approx(partial)
    assert paid(TagCountReward, completion) == tags


NOTHING_TO_SEE = [
    "",
    *(
        "\u200b",
        "\u2060\n\ufeff",
        "\0",
        "\u2800 \u2800",
        "\u3164",
        "\u00ad",
        "\u200f\u200e",
        "\u034f",
        "\ufe0f",
        "\U000e0041",
        "\U0001d159",
    ),
    *(
        "\\boxed{}",
        "\\boxed{\\quad}",
        "$\\quad\\,$",
        "\\text{ }",
        "\\boxed{\\text{\u200b}}",
        "\\hspace{1em}~",
        "\\phantom{72}",
    ),
]


@pytest.mark.parametrize("nothing", NOTHING_TO_SEE)
def test_a_block_of_which_a_reader_sees_nothing_earns_nothing(nothing):
    fmt = FORMATS["reasoning_answer"]
    no_answer = f"<reasoning>\na\n</reasoning>\n<answer>\n{nothing}\n</answer>"
    no_reasoning = f"<reasoning>\n{nothing}\n</reasoning>\n<answer>\n72\n</answer>"
    neither = f"<reasoning>\n{nothing}\n</reasoning>\n<answer>\n{nothing}\n</answer>"
    for completion, share in ((no_answer, 0.5), (no_reasoning, 0.5), (neither, 0.0)):
        for cls in (FormatReward, XmlSoftFormatReward, XmlStrictFormatReward, IntegerAnswerReward):
            assert score(cls(fmt), completion) == (
                cls is IntegerAnswerReward and completion is no_reasoning
            )
        assert paid(TagCountReward, completion, fmt) == share
        assert paid(XmlCountReward, completion, fmt) == share
    assert [
        paid(FormatPartialReward, text, fmt) for text in (no_answer, no_reasoning, neither)
    ] == [0.1, 0.5, 0.0]
    anywhere = FormatPartialReward(fmt, countdown_answer_anywhere=True)
    assert score(anywhere, no_answer) == 0.1


@pytest.mark.parametrize("nothing", NOTHING_TO_SEE)
@pytest.mark.parametrize(
    "name", ["boxed", "think_boxed", "special_token", "think_prose", "thinking_response"]
)
def test_nothing_to_see_in_other_formats(name, nothing):
    fmt = FORMATS[name]
    text = fmt.layout.replace("{reasoning}", "a").replace("{answer}", nothing)
    assert (
        paid(FormatReward, text, fmt)
        == paid(XmlSoftFormatReward, text, fmt)
        == paid(XmlStrictFormatReward, text, fmt)
        == 0.0
    )
    if fmt.boxed:
        assert paid(TagCountReward, text, fmt) == pytest.approx(1 - 1 / len(fmt.tags))
    if fmt.reasoning_tags:
        text = fmt.layout.replace("{reasoning}", nothing).replace("{answer}", "72")
        assert paid(FormatReward, text, fmt) == 0.0
        second_box = fmt.boxed and "\\boxed" in nothing
        assert paid(TagCountReward, text, fmt) == pytest.approx(
            1 - (2 + second_box) / len(fmt.tags)
        )


@pytest.mark.parametrize(
    "content",
    [
        *(
            "7\u200b2",
            "\ufeff72",
            "\u200fשלום",
            "می\u200cخواهم",
            "e\u0301",
            "👩\u200d🚀",
            "❤\ufe0f",
            "क\u094d\u200dष",
            "\u0301",
        ),
        *(
            "\\quad 72",
            "{}",
            "$",
            "\\{\\}",
            "\\emptyset",
            "\\texttt{a}",
            "\\mathbb{R}",
            ".",
            "\\textdollar",
        ),
    ],
)
def test_content_that_a_reader_sees_keeps_its_marks(content):
    text = f"<reasoning>\n{content}\n</reasoning>\n<answer>\n{content}\n</answer>"
    for cls in (*SHAPES, XmlSoftFormatReward, XmlStrictFormatReward, XmlCountReward):
        assert paid(cls, text, FORMATS["reasoning_answer"]) == 1.0


def test_messages_are_read_like_text():
    assert paid(FormatReward, [{"role": "assistant", "content": TAGGED}]) == 1.0


@pytest.mark.parametrize("prefill", ["<think>\n", "Let me solve this step by step.\n<think>\n"])
def test_the_prefill_belongs_to_the_response(prefill):
    fmt = get_response_format("think_answer", prefill=prefill)
    rest = TAGGED.removeprefix("<think>\n")
    assert [paid(cls, rest, fmt) for cls in SHAPES] == [1.0, 1.0, 1.0]
    # Opened twice: the tag is repeated (3 of 4 tags are single), the block no longer the only one.
    assert [paid(cls, TAGGED, fmt) for cls in (FormatReward, TagCountReward)] == [0.0, 0.75]
    # Without the prefill the same completion lacks its opening tag.
    assert [paid(cls, rest) for cls in (FormatReward, TagCountReward)] == [0.0, 0.75]


@pytest.mark.parametrize(
    ("name", "completion", "share"),
    [
        (
            "think_boxed",
            "<think>\na\n</think>\n\\boxed{72}",
            1.0,
        ),  # 3 tags: <think>, </think>, \boxed{
        ("think_boxed", "<think>\na\n</think>\n72", 2 / 3),
        ("boxed", "a\n\\boxed{72}", 1.0),  # 1 tag
        ("boxed", "a\n\\boxed{72}\n\\boxed{5}", 0.0),
        ("special_token", "|special_token|a|special_token|Summary: 72", 1.0),
    ],
)
def test_tags_of_other_formats(name, completion, share):
    assert paid(TagCountReward, completion, FORMATS[name]) == pytest.approx(share)


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_format_writes_gets_full_marks(name):
    fmt = FORMATS[name]
    text = fmt.render_completion("2 + 2 = 4", "4")
    assert paid(FormatReward, text, fmt) == 1.0
    assert paid(FormatPartialReward, text, fmt) == 1.0


@given(text=st.text())
@pytest.mark.parametrize("name", FORMATS)
def test_ranges_of_shapes(name, text):
    fmt = FORMATS[name]
    assert paid(FormatReward, text, fmt) in (0.0, 1.0)
    assert round(paid(FormatPartialReward, text, fmt), 9) in (0.0, 0.1, 0.5, 0.6, 1.0)
    assert 0.0 <= paid(TagCountReward, text, fmt) <= 1.0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Step 1: add. Step 2: halve.", 2),
        ("**Step 12：** add", 1),
        ("1. add\n  2) halve\n10. done", 3),
        ("1、先算\n2.再算", 2),
        ("- add\n* halve\n• done", 3),
        ("First, add. Second, halve. Next, check. Finally, write.", 4),
        ("第一步：加。第2步：减。第十二步：乘。", 3),
        ("首先加，其次减，然后乘，最后除。", 4),
        ("1. First, add", 2),  # the number and the word
        # near-misses
        ("Step one: add", 0),  # no number
        ("Step 1 add", 0),  # no colon
        ("Misstep 1: add", 0),
        ("first, add; SECOND, halve", 0),  # as open-r1: capital and lower case
        ("First add", 0),  # no comma
        ("1.5 apples\n2.25", 0),  # decimals
        ("-3 + 5\n*2", 0),  # a sign or an operator
        ("**bold**\n--- ", 0),
        ("- \n-\t\n* \n1. \n2) \n", 0),  # steps that say nothing
        ("there are 1. things and - dashes", 0),  # not at the start of a line
        ("第一名，第三次", 0),  # first place, third time: no 步
        ("", 0),
    ],
)
def test_reasoning_steps(text, count):
    assert score(ReasoningStepsReward(FMT), text) == pytest.approx(min(1.0, count / 3))


@given(text=st.text())
def test_reasoning_steps_range(text):
    assert score(ReasoningStepsReward(FMT), text) in (0.0, 1 / 3, 2 / 3, 1.0)


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        # 6 words, 4 trigrams: abc bca cab abc, 3 distinct: (1 - 3/4) * -1
        ("a b c a b c", {}, -0.25),
        ("A b c a B C", {}, -0.25),  # in lower case
        ("a a a a a", {}, -2 / 3),  # 3 trigrams, 1 distinct
        ("a a a a a", {"repetition_max_penalty": -0.3}, -0.2),  # 2/3 * -0.3
        ("a a a a a", {"repetition_n_grams": 2}, -0.75),  # 4 bigrams, 1 distinct
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
        ("abcabc", {}, 0.0),  # one word
    ],
)
def test_repetition_penalty(text, params, expected):
    value = score(RepetitionPenaltyReward(FMT, **params), text)
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
    assert score(
        RepetitionPenaltyReward(FMT, **params), " ".join(words), completion_ids=[ids]
    ) == pytest.approx(expected)
    assert penalty <= expected <= 0.0


@given(text=st.text())
def test_repetition_range(text):
    assert -1.0 <= score(RepetitionPenaltyReward(FMT), text) <= 0.0


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"repetition_max_penalty": 0.5}, "repetition_max_penalty"),
        ({"repetition_n_grams": 0}, "repetition_n_grams"),
    ],
)
def test_repetition_parameters_are_checked_when_built(params, match):
    with pytest.raises(ValueError, match=match):
        RepetitionPenaltyReward(FMT, **params)


@pytest.mark.parametrize(
    ("text", "soft", "strict"),
    [
        (EXACT, 1.0, 1.0),
        (EXACT + "\n", 1.0, 1.0),  # one last line break is free
        (EXACT + "\n\n", 1.0, 0.0),
        ("\n" + EXACT, 1.0, 0.0),
        ("<reasoning>a</reasoning><answer>72</answer>", 1.0, 0.0),  # no line breaks
        ("<reasoning>\na\n</reasoning>\n\n<answer>\n72\n</answer>", 1.0, 0.0),  # one break too many
        ("<reasoning>\n\na\n</reasoning>\n<answer>\n72\n</answer>", 1.0, 0.0),
        ("Well. " + EXACT + " Done.", 1.0, 0.0),  # anywhere
        (EXACT + EXACT, 1.0, 0.0),  # found, but not all of it
        (
            "<reasoning>\na\nb\n</reasoning>\n<answer>\n7\n2\n</answer>",
            1.0,
            1.0,
        ),  # several lines inside
        ("<reasoning>" + EXACT, 1.0, 0.0),  # a block opened twice still holds one
        # near-misses of both
        ("<reasoning>\n\n</reasoning>\n<answer>\n72\n</answer>", 0.0, 0.0),  # empty reasoning
        ("<reasoning>\na\n</reasoning>\n<answer>\n\n</answer>", 0.0, 0.0),  # empty answer
        ("<answer>\n72\n</answer>\n<reasoning>\na\n</reasoning>", 0.0, 0.0),  # the wrong way round
        ("<reasoning>\na\n</reasoning>\nso\n<answer>\n72\n</answer>", 0.0, 0.0),  # text between
        ("<reasoning>\na\n<answer>\n72\n</answer>", 0.0, 0.0),  # reasoning never closes
        ("<reasoning>\na\n</reasoning>\n<answer>\n72", 0.0, 0.0),  # answer never closes
        ("<think>\na\n</think>\n<answer>\n72\n</answer>", 0.0, 0.0),  # another format's tags
        ("72", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_xml_formats(text, soft, strict):
    assert score(XmlSoftFormatReward(FMT), text) == soft
    assert score(XmlStrictFormatReward(FMT), text) == strict


@pytest.mark.parametrize("name", FORMATS)
def test_xml_formats_follow_every_format(name):
    fmt = FORMATS[name]
    text = fmt.render_completion("2 + 2 = 4", "4")
    assert score(XmlSoftFormatReward(fmt), text) == 1.0
    assert score(XmlStrictFormatReward(fmt), text) == 1.0
    assert score(XmlStrictFormatReward(fmt), "So: " + text) == (
        1.0 if fmt.reasoning_tags is None else 0.0
    )  # where the working is free text


@pytest.mark.parametrize(
    "prefill", ["<reasoning>\n", "Let me solve this step by step.\n<reasoning>"]
)
def test_xml_formats_read_the_prefill(prefill):
    fmt = get_response_format("reasoning_answer", prefill=prefill)
    rest = fmt.render_completion("a", "72")
    assert rest.lstrip("\n") == EXACT.removeprefix("<reasoning>\n")
    assert score(XmlSoftFormatReward(fmt), rest) == 1.0
    assert score(XmlStrictFormatReward(fmt), rest) == 1.0
    assert score(XmlStrictFormatReward(fmt), EXACT) == 0.0  # opened twice


@given(
    text=st.lists(
        st.sampled_from(["<reasoning>", "</reasoning>", "<answer>", "</answer>", "\n", "a"])
    ).map("".join)
)
def test_strict_implies_soft_and_format(text):
    strict, soft = score(XmlStrictFormatReward(FMT), text), score(XmlSoftFormatReward(FMT), text)
    assert {strict, soft} <= {0.0, 1.0}
    assert strict <= soft
    assert not strict or FMT.parse(text).well_formed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Four tags, a quarter each: "<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n",
        # "\n</answer>".
        (EXACT, 1.0),
        (EXACT + "\n", 1.0),
        (EXACT + "\nDone.", 1 - 5 * 0.004),  # what follows the line break: 5 characters
        (EXACT + "Done.", 1 - 5 * 0.004),
        (EXACT + "\n\n", 1 - 0.004),
        ("Well. " + EXACT, 1.0),  # only what follows costs
        (EXACT + "\n" + "x" * 1000, 1 - 1000 * 0.004),  # no floor
        ("<reasoning>\na\n</reasoning>\n72", 0.5),
        (
            EXACT + "\n<answer>\n72\n</answer>",
            0.5,
        ),  # both answer tags twice; nothing follows the last one
        ("<reasoning>\na", 0.25),
        ("72", 0.0),
        ("", 0.0),
    ],
)
def test_xml_count(text, value):
    assert score(XmlCountReward(FMT), text) == pytest.approx(value)


def test_xml_count_is_the_demo_s_at_half_weight():
    """The demo: 0.125 a tag, less 0.001 a character after the answer, twice; with a line break at
    the end, where the two agree.
    """
    for trailing in ("", "Done.", "x" * 50):
        theirs = 4 * 0.125 - 2 * 0.001 * len(trailing)
        assert 0.5 * score(XmlCountReward(FMT), EXACT + "\n" + trailing) == pytest.approx(theirs)
    # Without answer tags nothing can follow them.
    assert (
        score(XmlCountReward(FORMATS["think_prose"]), "<think>\na\n</think>\n\n72 and more") == 1.0
    )


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("72", 1.0),
        ("-72", 1.0),
        ("+7", 1.0),
        ("1,200", 1.0),
        (" 0 ", 1.0),
        ("72.0", 0.0),
        ("72 pens", 0.0),
        ("12,00", 0.0),
        ("٧٢", 0.0),
        ("", 0.0),
    ],
)
def test_integer_answer(answer, value):
    assert (
        score(
            IntegerAnswerReward(FMT), f"<reasoning>\na\n</reasoning>\n<answer>\n{answer}\n</answer>"
        )
        == value
    )


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_completions(cls, name):
    with seconds(5):
        assert len(
            cls(FORMATS[name])(completions=HOSTILE, completion_ids=[[1]] * len(HOSTILE))
        ) == len(HOSTILE)


@pytest.mark.parametrize("cls", ALL)
def test_pickles(cls):
    reward = cls(FMT)
    assert pickle.loads(pickle.dumps(reward)) == reward
    assert reward.__name__ == cls.name


def test_importing_the_rewards_loads_no_heavy_library():
    code = (
        "import sys, r1_recipes.rewards.length, r1_recipes.rewards.text, "
        "r1_recipes.rewards.language;"
        "sys.stdout.write(' '.join({'torch', 'transformers', 'trl'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        == ""
    )
