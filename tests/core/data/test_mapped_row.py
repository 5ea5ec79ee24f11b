"""The hand-over from mappers to the renderer."""

import pytest

from r1_recipes.data.mapped_row import fault_of


@pytest.mark.parametrize(
    "mapped", [{"question": "2+2?"}, {"turns": []}, {"question": "", "own": 1}]
)
def test_a_question_or_turns_make_a_mapped_row(mapped):
    assert fault_of(mapped) is None


@pytest.mark.parametrize("mapped", [None, "2+2?", {}, {"question": None}, {"frage": "2+2?"}])
def test_what_is_no_mapped_row_is_named(mapped):
    assert fault_of(mapped)
