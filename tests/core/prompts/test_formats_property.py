"""Every response format reads what it writes, whatever the text, and in time linear in it."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts import FORMATS, ParsedResponse, ResponseFormat, get_response_format

OWN = {
    "plan": {
        "system_prompt": "Plan between <plan> and </plan>, result between <result> and </result>.",
        "layout": "<plan>\n{reasoning}\n</plan>\n<result>\n{answer}\n</result>",
        "reasoning_tags": ["<plan>", "</plan>"],
        "answer_tags": ["<result>", "</result>"],
    },
    "opened": {
        "system_prompt": "",
        "layout": "<plan>\n{reasoning}\n</plan>\n{answer}",
        "reasoning_tags": ["<plan>", "</plan>"],
        "prefill": "Let me see.\n<plan>\n",
    },
    "answer alone": {
        "system_prompt": "",
        "layout": "{reasoning}\n[[{answer}]]",
        "answer_tags": ["[[", "]]"],
    },
    "one marker": {
        "system_prompt": "",
        "layout": "%%{reasoning}%% So: {answer}",
        "reasoning_tags": ["%%", "%%"],
    },
    "headings": {
        "system_prompt": "",
        "layout": "## Thinking\n\n{reasoning}\n\n## Final Response\n\n{answer}",
        "reasoning_tags": ["## Thinking", "## Final Response"],
        "prose": True,
    },
    "box": {
        "system_prompt": "",
        "layout": "<w>{reasoning}</w> \\boxed{{answer}}",
        "reasoning_tags": ["<w>", "</w>"],
    },
}
ALL: dict[str, ResponseFormat] = {
    **FORMATS,
    **{name: get_response_format(OWN[name]) for name in OWN},
}

# Free text, and text made of the very delimiters that could confuse a reader.
TAGS = sorted({tag for fmt in ALL.values() for tag in fmt.tags})
PIECES = st.one_of(
    st.text(max_size=12),
    st.sampled_from([*TAGS, "Summary:", "So:", "}", "{", "\\", "72", "\n", " "]),
)
FRAGMENTS = st.lists(PIECES, max_size=6).map("".join)


@pytest.mark.parametrize("name", ALL)
@given(reasoning=FRAGMENTS, answer=FRAGMENTS)
@example(reasoning="16 - 3 = 13\n13 * 2 = 26", answer="26")
@example(reasoning="So \\frac{1}{2}, not \\boxed{1}.", answer="\\frac{1}{2}")
def test_parse_undoes_render(name: str, reasoning: str, answer: str) -> None:
    fmt = ALL[name]
    try:
        completion = fmt.render_completion(reasoning, answer)
    except ValueError:
        return
    assert fmt.parse(completion) == ParsedResponse(reasoning.strip(), answer.strip(), True)
    assert fmt.full_text(completion).startswith(fmt.prefill)


@pytest.mark.parametrize("name", ALL)
def test_what_could_not_be_read_back_is_not_written(name: str) -> None:
    fmt = ALL[name]
    for reasoning, answer in (("", "4"), ("2+2", " "), ("2+2", "4" + "".join(fmt.tags))):
        with pytest.raises(ValueError, match="cannot hold reasoning"):
            fmt.render(reasoning, answer)


@pytest.mark.parametrize("name", ALL)
@given(text=FRAGMENTS)
def test_any_text_is_read(name: str, text: str) -> None:
    parsed = ALL[name].parse(text)
    assert not parsed.well_formed or (parsed.reasoning and parsed.answer)
    assert parsed.answer is None or parsed.answer in text


@pytest.mark.parametrize("name", FORMATS)
def test_the_prompt_asks_for_the_format_s_own_tags(name: str) -> None:
    fmt = FORMATS[name]
    assert all(tag in fmt.system_prompt for tag in fmt.tags)


LOOPS = [*TAGS, "\\boxed{1}", "\\boxed{1", "\\boxed {", "\\fbox{", "{", "}", "\\", "\n", "a ", "<"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("loop", [*LOOPS, "<answer>1</answer>", "<think>a</think>"])
def test_a_loop_is_read_in_linear_time(name: str, loop: str) -> None:
    """A completion that was cut at its limit is often one phrase over and over."""
    text = (loop * 100_000)[:100_000]
    start = time.process_time()
    ALL[name].parse(f"<think>\n{text}")
    ALL[name].parse(text)
    # Quadratic reading would take minutes.
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"systm_prompt": ""}, "Did you mean 'system_prompt'"),
        ({"layout": "<plan>{answer}</plan><result>{reasoning}</result>"}, "layout|cannot hold"),
        ({"layout": "<plan>{reasoning}</plan>{answer}"}, "cannot hold"),
        ({"answer_tags": ["<plan>", "</plan>"]}, "cannot hold"),
        ({"prefill": "<think>"}, "does not start with its prefill"),
    ],
)
def test_a_format_that_reads_otherwise_than_it_writes_is_refused(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        get_response_format({**OWN["plan"], **changes})
