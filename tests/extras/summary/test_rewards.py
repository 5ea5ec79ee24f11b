"""Rewards for shorter summaries: facts kept, length saved, and why being short alone pays
nothing.
"""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper
from r1_recipes.extras.summary.rewards import SummaryCompressionReward, SummaryFactsReward
from r1_recipes.prompts import FORMATS
from tests.support.rewards import HOSTILE, seconds

FMT = FORMATS["think_prose"]
DOCUMENT = (
    "We moved to Bern in 2019 with two cats, and one ran away." + " It was sad." * 10
)  # 57 + 120 = 177 characters
FACTS = ["moved", "bern", "2019", "away"]


@pytest.mark.parametrize(
    ("text", "facts", "compression"),
    [
        ("Moved to Bern in 2019; a cat ran away.", 1.0, 1 - 38 / 177),
        ("moved, BERN", 0.5, 1 - 11 / 177),  # half is enough
        ("Moved.", 0.25, 0.0),  # too little is kept
        ("", 0.0, 0.0),
        ("Bernese removed 12019 awayness", 0.0, 0.0),  # whole words only
        (DOCUMENT, 1.0, 0.0),  # nothing saved
        (DOCUMENT * 2, 1.0, 0.0),  # longer than the text
        (
            "<think>\nmoved bern 2019 away\n</think>\nA cat.",
            0.0,
            0.0,
        ),  # reasoning is not the summary
        ("<think>\nlong thoughts\n</think>\nMoved, Bern, 2019, away.", 1.0, 1 - 24 / 177),
        ("<think>\nmoved bern 2019 away", 0.0, 0.0),  # never finished
    ],
)
def test_values(text, facts, compression):
    columns = {"facts": [FACTS], "document": [DOCUMENT]}
    assert SummaryFactsReward(FMT)(completions=[text], **columns) == [facts]
    assert SummaryCompressionReward(FMT)(completions=[text], **columns) == [
        pytest.approx(compression)
    ]


def test_the_share_that_must_be_kept_is_a_parameter():
    columns = {"completions": ["Moved."], "facts": [FACTS], "document": [DOCUMENT]}
    assert SummaryCompressionReward(FMT, summary_min_facts=0.25)(**columns) == [
        pytest.approx(1 - 6 / 177)
    ]
    assert SummaryCompressionReward(FMT, summary_min_facts=0.0)(
        **{**columns, "completions": [""]}
    ) == [0.0]
    with pytest.raises(
        ValueError, match=r"summary_min_facts: must be a share from 0 to 1, got 1\.5"
    ):
        SummaryCompressionReward(FMT, summary_min_facts=1.5)


def test_rows_of_other_tasks_and_data_without_the_columns():
    assert SummaryFactsReward(FMT)(completions=["x", "x"], facts=[[], None]) == [None, None]
    assert SummaryCompressionReward(FMT)(
        completions=["x", "x"], facts=[FACTS, []], document=["", "y"]
    ) == [None, None]
    with pytest.raises(RecipeError, match="'summary_facts' needs a column 'facts'"):
        SummaryFactsReward(FMT)(completions=["x"])
    with pytest.raises(RecipeError, match=r"'summary_compression' needs a column 'document'"):
        SummaryCompressionReward(FMT)(completions=["x"], facts=[FACTS])


def test_the_mapper_s_own_reference_keeps_every_fact():
    for row in get_mapper("summary").examples:
        mapped = get_mapper("summary")(row)
        columns = {"facts": [mapped["facts"]], "document": [mapped["document"]]}
        assert SummaryFactsReward(FMT)(completions=[mapped["solution"]], **columns) == [1.0]
        assert SummaryCompressionReward(FMT)(completions=[mapped["solution"]], **columns)[0] > 0.2


@given(
    text=st.text(max_size=80),
    facts=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4),
    document=st.text(max_size=60),
)
def test_ranges(text, facts, document):
    columns = {"completions": [text], "facts": [facts], "document": [document]}
    assert 0.0 <= SummaryFactsReward(FMT)(**columns)[0] <= 1.0
    [value] = SummaryCompressionReward(FMT)(**columns)
    assert (value is None) == (not document) and (value is None or 0.0 <= value <= 1.0)


@pytest.mark.parametrize("cls", [SummaryFactsReward, SummaryCompressionReward])
def test_hostile_completions_and_pickles(cls):
    count = len(HOSTILE)
    with seconds(10):
        assert (
            len(cls(FMT)(completions=HOSTILE, facts=[FACTS] * count, document=[DOCUMENT] * count))
            == count
        )
    assert pickle.loads(pickle.dumps(cls(FMT))) == cls(FMT)
