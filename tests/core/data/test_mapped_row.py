"""The hand-over from mappers to the renderer."""

import pytest

from r1_recipes.data import MAPPERS
from r1_recipes.data.mapped_row import MappedRow, fault_of
from tests.support.needs import by_mapper


@pytest.mark.parametrize("name", by_mapper(MAPPERS))
def test_every_mapper_returns_a_mapped_row(name):
    mapper = MAPPERS[name]()
    rows = mapper.example_rows()
    assert rows
    for row in rows:
        mapped = mapper(row)
        assert fault_of(mapped) is None
        assert set(mapped) <= set(MappedRow.__annotations__)


@pytest.mark.parametrize(
    "mapped", [{"question": "2+2?"}, {"turns": []}, {"question": "", "own": 1}]
)
def test_a_question_or_turns_make_a_mapped_row(mapped):
    assert fault_of(mapped) is None


@pytest.mark.parametrize("mapped", [None, "2+2?", {}, {"question": None}, {"frage": "2+2?"}])
def test_what_is_no_mapped_row_is_named(mapped):
    assert fault_of(mapped)
