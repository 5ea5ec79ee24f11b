"""ResponseFormat: what is rendered can be read back, and what must not be read is not."""

import pytest

from r1_recipes.prompts import FORMATS, ParsedResponse, get_response_format, template_prefill

THOUGHT = "<think>\na\n</think>\n"
ANSWER = "<answer>\n72\n</answer>"
SOLVED = "<|begin_of_thought|>a<|end_of_thought|><|begin_of_solution|>"
READ: dict[str, list[tuple[str, str | None, bool]]] = {
    "think_answer": [
        (THOUGHT + ANSWER, "72", True),
        ("<think>a</think> <answer>72</answer>  \n", "72", True),  # white space is free
        ("<think>\n</think>\n" + ANSWER, "72", False),  # an empty think
        (THOUGHT + "<answer>\n</answer>", None, False),  # an empty answer
        (THOUGHT + ANSWER + "\nDone.", "72", False),  # text after the answer
        ("Sure! " + THOUGHT + ANSWER, "72", False),  # text before the reasoning
        (THOUGHT + "so\n" + ANSWER, "72", False),  # text between the blocks
        (THOUGHT + THOUGHT + ANSWER, "72", False),  # two reasoning blocks
        (THOUGHT + ANSWER + ANSWER, "72", False),  # the same answer twice
        (THOUGHT + "<answer>\n71\n</answer>" + ANSWER, None, False),  # two different ones
        ("<think>\n<answer>71</answer>\n</think>\n" + ANSWER, "72", False),
        ("<think>\n<answer>72</answer>\n</think>\nno idea", None, False),  # in the reasoning only
        ("<think>\nit is 72, <answer>72</answer>", None, False),  # the reasoning never ends
        (THOUGHT + ANSWER + "<think>\nwait", None, False),  # a block reopened after the answer
        (ANSWER + THOUGHT, None, False),  # only what follows the reasoning counts
        (ANSWER, "72", False),  # no reasoning at all: an answer, but not the shape
        (THOUGHT + "<answer>\n72", None, False),  # cut before the closing tag
        (THOUGHT + "<answer>71</answer>72</answer>", None, False),  # a stray closing tag
        ("a\n</think>\n" + ANSWER, "72", False),  # no opening tag and no prefill
    ],
    "think_boxed": [
        (THOUGHT + "The answer is $\\boxed{72}$.", "72", True),
        ("<think>\n\\boxed{72}\n</think>\nno idea", None, False),
        (THOUGHT + "\\boxed{5} or \\boxed{72}", None, False),
        (THOUGHT + "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", True),
        (THOUGHT + "\\boxed{72", None, False),
        (THOUGHT + "\\boxed{5}, no: \\boxed{72", None, False),  # cut: 5 is not the answer
        (THOUGHT + "\\boxed{5} hmm \\boxed{}", None, False),
        (THOUGHT + "\\boxed{72}, so \\boxed{ 72 }", "72", False),
        (THOUGHT + "\\boxed {72}", "72", True),
        (THOUGHT + "\\fbox{72}", "72", True),
        (THOUGHT + "\\boxed{72} and then I ramble on about 71", "72", False),
    ],
    "boxed": [
        ("8 * 9 = 72, so the answer is $\\boxed{72}$.", "72", True),
        ("8 * 9 = 72\n\\[\\boxed{72}\\]\n", "72", True),
        ("\\boxed{72}", "72", False),  # no working
        ("8 * 9 = 72, so \\boxed{72}. Or is it?", "72", False),
        ("8 * 9 = 72", None, False),
    ],
    "think_prose": [
        (THOUGHT + "\nIt is **72**.\n\nCheck: 8 * 9.", "It is **72**.\n\nCheck: 8 * 9.", True),
        (THOUGHT, None, False),  # nothing said
        ("<think>\n72", None, False),  # cut
        ("<think>\n</think>\n72", "72", False),  # no reasoning
        ("So: " + THOUGHT + "72", "72", False),
        ("72", "72", False),
    ],
    "thought_solution": [
        (SOLVED + "\n\nIt is 72.\n\n<|end_of_solution|>", "It is 72.", True),
        (SOLVED + "72<|end_of_solution|> Bye.", "72", False),
        (SOLVED + "72", None, False),
    ],
}


@pytest.mark.parametrize(
    ("name", "completion", "answer", "well_formed"),
    [(name, *case) for name in READ for case in READ[name]],
)
def test_a_completion_is_read(name, completion, answer, well_formed):
    parsed = FORMATS[name].parse(completion)
    assert (parsed.answer, parsed.well_formed) == (answer, well_formed)


@pytest.mark.parametrize("prefill", ["<think>\n", "Let me see.\n<think>\n", "Let me see.\n<think>"])
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
