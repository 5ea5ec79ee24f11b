"""ResponseFormat: what is rendered can be read back, and what must not be read is not."""

import pytest

from r1_recipes.prompts import FORMATS, ParsedResponse, get_response_format, template_prefill


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
        ("<think>\na\n</think>\n\\boxed{72}, so \\boxed{ 72 }", "72", False),
        ("<think>\na\n</think>\n\\boxed {72}", "72", True),
        ("<think>\na\n</think>\n\\fbox{72}", "72", True),
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
