"""ResponseFormat: what is rendered can be read back, and what must not be read is not."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from r1_recipes.prompts import (
    FORMATS,
    ParsedResponse,
    boxed_spans,
    get_response_format,
    template_prefill,
)
from r1_recipes.rewards import get_reward_funcs

# Free text, and text made of the very delimiters that could confuse a parser.
_DELIMITERS = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<reasoning>",
    "</reasoning>",
    "|special_token|",
    "Summary:",
]
_DELIMITERS += [
    "## Thinking",
    "## Final Response",
    "<|begin_of_thought|>",
    "<|end_of_thought|>",
    "<|end_of_solution|>",
]
_PIECES = st.one_of(
    st.text(max_size=12),
    st.sampled_from([*_DELIMITERS, "\\boxed{", "}", "{", "\\", "72", "\n", " "]),
)
FRAGMENTS = st.lists(_PIECES, max_size=6).map("".join)


@pytest.mark.parametrize("name", FORMATS)
@given(reasoning=FRAGMENTS, answer=FRAGMENTS)
@example(reasoning="16 - 3 = 13\n13 * 2 = 26", answer="26")
@example(reasoning="So \\frac{1}{2}.", answer="\\frac{1}{2}")
def test_parse_undoes_render_or_render_refuses(name, reasoning, answer):
    fmt = FORMATS[name]
    try:
        text = fmt.render(reasoning, answer)
    except ValueError:
        return
    assert fmt.parse(text) == ParsedResponse(reasoning.strip(), answer.strip(), True)


@pytest.mark.parametrize("name", FORMATS)
def test_ordinary_answers_are_never_refused(name):
    fmt = FORMATS[name]
    for reasoning, answer in (
        ("2 + 2 = 4", "4"),
        ("先算 1 + 1", "二"),
        ("x < 3, so y > 4", "\\frac{1}{2}"),
        ("a\n\nb", "(1, 2]"),
    ):
        assert fmt.parse(fmt.render(reasoning, answer)) == ParsedResponse(reasoning, answer, True)


@pytest.mark.parametrize("name", FORMATS)
@given(text=FRAGMENTS)
def test_parse_takes_any_text(name, text):
    parsed = FORMATS[name].parse(text)
    assert not parsed.well_formed or (parsed.reasoning and parsed.answer)


@pytest.mark.parametrize("name", FORMATS)
def test_the_prompt_asks_for_the_format_s_own_tags(name):
    fmt = FORMATS[name]
    for tag in fmt.tags:
        assert tag.strip() in fmt.system_prompt


@pytest.mark.parametrize(
    ("completion", "answer", "well_formed"),
    [
        ("<think>\na\n</think>\n<answer>\n72\n</answer>", "72", True),
        ("<think>a</think> <answer>72</answer>  \n", "72", True),  # white space is free
        ("<think>\n</think>\n<answer>\n72\n</answer>", "72", False),  # an empty think
        ("<think>\na\n</think>\n<answer>\n</answer>", None, False),  # an empty answer
        (
            "<think>\na\n</think>\n<answer>\n72\n</answer>\nDone.",
            "72",
            False,
        ),  # text after the answer
        (
            "Sure! <think>\na\n</think>\n<answer>\n72\n</answer>",
            "72",
            False,
        ),  # text before the reasoning
        (
            "<think>\na\n</think>\nso\n<answer>\n72\n</answer>",
            "72",
            False,
        ),  # text between the blocks
        (
            "<think>\na\n</think>\n<think>\nb\n</think>\n<answer>\n72\n</answer>",
            "72",
            False,
        ),  # two reasoning blocks
        (
            "<think>\na\n</think>\n<answer>\n72\n</answer><answer>\n72\n</answer>",
            "72",
            False,
        ),  # the same answer twice
        (
            "<think>\na\n</think>\n<answer>\n71\n</answer><answer>\n72\n</answer>",
            None,
            False,
        ),  # two different ones
        ("<think>\n<answer>72</answer>\n</think>\n<answer>\n71\n</answer>", "71", False),
        (
            "<think>\n<answer>72</answer>\n</think>\nno idea",
            None,
            False,
        ),  # only inside the reasoning
        ("<think>\nit is 72, <answer>72</answer>", None, False),  # the reasoning never ends
        (
            "<think>\na\n</think>\n<answer>\n72\n</answer><think>\nwait",
            None,
            False,
        ),  # a block reopened after the answer
        (
            "<answer>\n72\n</answer>\n<think>\na\n</think>",
            None,
            False,
        ),  # only what follows the reasoning counts
        (
            "<answer>\n72\n</answer>",
            "72",
            False,
        ),  # no reasoning at all: an answer, but not the shape
        ("<think>\na\n</think>\n<answer>\n72", None, False),  # cut before the closing tag
        (
            "<think>\na\n</think>\n<answer>71</answer>72</answer>",
            None,
            False,
        ),  # a stray closing tag
        ("a\n</think>\n<answer>\n72\n</answer>", "72", False),  # no opening tag and no prefill
    ],
)
def test_think_answer_reads(completion, answer, well_formed):
    parsed = FORMATS["think_answer"].parse(completion)
    assert (parsed.answer, parsed.well_formed) == (answer, well_formed)


@pytest.mark.parametrize(
    ("completion", "answer", "well_formed"),
    [
        ("<think>\na\n</think>\nThe answer is $\\boxed{72}$.", "72", True),
        ("<think>\n\\boxed{72}\n</think>\nno idea", None, False),
        ("<think>\na\n</think>\n\\boxed{5} or \\boxed{72}", None, False),
        ("<think>\na\n</think>\n\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", True),
        ("<think>\na\n</think>\n\\boxed{72", None, False),
        ("<think>\na\n</think>\n\\boxed{72} and then I ramble on about 71", "72", False),
    ],
)
def test_think_boxed_reads(completion, answer, well_formed):
    parsed = FORMATS["think_boxed"].parse(completion)
    assert (parsed.answer, parsed.well_formed) == (answer, well_formed)


@pytest.mark.parametrize(
    ("completion", "answer", "well_formed"),
    [
        ("8 * 9 = 72, so the answer is $\\boxed{72}$.", "72", True),
        ("8 * 9 = 72\n\\[\\boxed{72}\\]\n", "72", True),
        ("\\boxed{72}", "72", False),  # no working
        ("8 * 9 = 72, so \\boxed{72}. Or is it?", "72", False),
        ("8 * 9 = 72", None, False),
    ],
)
def test_boxed_reads(completion, answer, well_formed):
    parsed = FORMATS["boxed"].parse(completion)
    assert (parsed.answer, parsed.well_formed) == (answer, well_formed)


@pytest.mark.parametrize(
    ("name", "completion", "answer", "well_formed"),
    [
        (
            "think_prose",
            "<think>\na\n</think>\n\nIt is **72**.\n\nCheck: 8 * 9.",
            "It is **72**.\n\nCheck: 8 * 9.",
            True,
        ),
        ("think_prose", "<think>\na\n</think>", None, False),  # nothing said
        ("think_prose", "<think>\n72", None, False),  # cut
        ("think_prose", "<think>\n</think>\n72", "72", False),  # no reasoning
        ("think_prose", "So: <think>\na\n</think>\n72", "72", False),
        ("think_prose", "72", "72", False),
        (
            "thinking_response",
            "## Thinking\n\na\n\n## Final Response\n\nThe pancreas.",
            "The pancreas.",
            True,
        ),
        (
            "thinking_response",
            "## Thinking\n\na\n\n## Final Response\n\nx\n\n## Final Response\n\ny",
            None,
            False,
        ),
        (
            "thinking_response",
            "## Thinking\n\na\n\n## Thinking\n\nb\n\n## Final Response\n\ny",
            None,
            False,
        ),
        ("thinking_response", "## Thinking\n\na\n\n## Final Response\ny", None, False),
        ("thinking_response", "## Final Response\n\ny\n\n## Thinking\n\na", None, False),
        ("thinking_response", "a\n\n## Final Response\n\ny", None, False),
        ("thinking_response", "## Thinking\n\na", None, False),
        (
            "thought_solution",
            "<|begin_of_thought|>\n\na\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\nIt "
            "is 72.\n\n<|end_of_solution|>",
            "It is 72.",
            True,
        ),
        (
            "thought_solution",
            "<|begin_of_thought|>a<|end_of_thought|><|begin_of_solution|>72<|end_of_solution|> "
            "Bye.",
            "72",
            False,
        ),
        (
            "thought_solution",
            "<|begin_of_thought|>a<|end_of_thought|><|begin_of_solution|>72",
            None,
            False,
        ),
    ],
)
def test_formats_whose_answer_is_prose_read(name, completion, answer, well_formed):
    parsed = FORMATS[name].parse(completion)
    assert (parsed.answer, parsed.well_formed) == (answer, well_formed)


def test_accuracy_finds_the_final_answer_in_prose():
    """The words around it are for a reader; without prose the answer block is the answer."""
    accuracy, exact = get_reward_funcs(["accuracy"], "think_prose") + get_reward_funcs(
        ["accuracy"], "think_answer"
    )
    texts = [
        "Eight nines are\n$\\boxed{72}$, as asked.",
        "The answer is 72.",
        "72",
        "It is 71 or 72.",
        "\\boxed{71} or \\boxed{72}",
    ]
    completions = [f"<think>\n8 * 9\n</think>\n\n{text}" for text in texts]
    assert accuracy(completions=completions, solution=["72"] * 5) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert accuracy(
        completions=["<think>\n\\boxed{72}\n</think>\n\nNo idea."], solution=["72"]
    ) == [0.0]
    assert exact(
        completions=["<think>\na\n</think>\n<answer>\nThe answer is 72.\n</answer>"],
        solution=["72"],
    ) == [1.0]


@pytest.mark.parametrize(
    "prefill",
    [
        "<think>\n",
        "Let me solve this step by step.\n<think>\n",
        "Let me solve this step by step.\n<think>",
    ],
)
def test_a_prefill_is_part_of_the_response(prefill):
    fmt = get_response_format("think_answer", prefill=prefill)
    completion = fmt.render_completion("a", "72")
    assert not completion.startswith("<think>")
    assert fmt.parse(completion) == ParsedResponse("a", "72", True)
    assert not get_response_format("think_answer").parse(completion).well_formed


def test_a_template_that_opens_the_reasoning_is_found():
    fmt = FORMATS["think_answer"]
    assert template_prefill("<｜Assistant｜><think>\n", fmt) == "<think>\n"
    assert template_prefill("<|im_start|>assistant\n", fmt) == ""
    assert template_prefill("<｜Assistant｜><think>\n", FORMATS["boxed"]) == ""


def test_tags_carry_the_layout_s_line_breaks():
    assert FORMATS["think_answer"].tags == (
        "<think>\n",
        "\n</think>\n",
        "\n<answer>\n",
        "\n</answer>",
    )
    assert FORMATS["r1_zero"].tags == ("<think>", "</think>", "<answer>", "</answer>")


def test_boxed_spans_balance_braces_and_skip_escapes():
    text = r"\boxed{a{b}\}c} \boxed{} \boxed{open"
    assert [text[start:end] for start, end in boxed_spans(text)] == [r"a{b}\}c", ""]


def test_an_unknown_format_names_similar_formats():
    with pytest.raises(ValueError, match=r"'think_answr'.*Did you mean 'think_answer'"):
        get_response_format("think_answr")


def test_a_delimited_format_has_no_answer_outside_its_delimiters():
    boxed, only = (
        get_reward_funcs(["accuracy"], response_format="boxed"),
        get_reward_funcs(["accuracy"], response_format="boxed_only"),
    )
    completions = ["So the answer is 81.", "So it is \\boxed{81}.", "\\boxed{9}, no, \\boxed{81}"]
    assert boxed[0](completions=completions, solution=["81"] * 3) == [1.0, 1.0, 0.0]
    assert only[0](completions=completions, solution=["81"] * 3) == [0.0, 1.0, 0.0]
    headings = FORMATS["thinking_response"]
    assert headings.parse("Pancreas") == ParsedResponse(None, None, False)
    assert (
        headings.parse("## Thinking\n\nInsulin.\n\n## Final Response\n\nPancreas").answer
        == "Pancreas"
    )
    # Where an answer may come without a thought, the whole text is it.
    assert FORMATS["think_prose"].parse("Pancreas").answer == "Pancreas"
