"""Texts with a reference summary: which facts a summary must keep."""

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper
from r1_recipes.data.mappers.base import SkipRow
from r1_recipes.extras.summary.mapper import content_words


def test_summary_s_facts_are_numbers_and_content_words_of_both():
    document = "We moved to Bern in 2019 with two cats. One ran away, and we put up 1,200 posters."
    mapped = get_mapper("summary")(
        {
            "prompt": document,
            "completion": "Moved to Bern in 2019 from Paris; 1,200 posters for the cat.",
        }
    )
    # "cat" has three letters and Paris is not in the text
    assert mapped["facts"] == ["moved", "bern", "2019", "1,200", "posters"]
    assert (mapped["document"], mapped["solution"]) == (
        document,
        "Moved to Bern in 2019 from Paris; 1,200 posters for the cat.",
    )
    assert mapped["question"].endswith(document)
    with pytest.raises(SkipRow, match="share no number"):
        get_mapper("summary")({"prompt": "One two.", "completion": "Three."})
    own = get_mapper(
        "summary",
        template="TL;DR {document} {x}",
        document_column="article",
        summary_column="highlights",
    )
    assert (
        own({"article": "Bern is cold.", "highlights": "Bern."})["question"]
        == "TL;DR Bern is cold. {x}"
    )
    assert own.missing(["article"]) == ["highlights"]
    with pytest.raises(RecipeError, match=r"must contain \{document\}"):
        get_mapper("summary", template="TL;DR")


def test_content_words():
    assert content_words("About 3.5 Posters, posters! It's über-cold; 1,200 km") == [
        "3.5",
        "posters",
        "posters",
        "über",
        "cold",
        "1,200",
    ]
