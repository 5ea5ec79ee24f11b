"""Answers that must not score, answers that must, and letters that no reading may lose.

``tricks.jsonl``: wrong answers that an attack on the rules tried, by class. ``honest.jsonl``: right
answers as models write them. Both were written by hand for these rules; a line has ``gold`` and
``answer``.
"""

import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from r1_recipes.verification import judge
from r1_recipes.verification.gold import read_gold
from r1_recipes.verification.units import UNITS
from r1_recipes.verification.words import letters

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def rows(name):
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def verdicts(pairs):
    found = []
    for start in range(0, len(pairs), 64):
        part = pairs[start : start + 64]
        found += judge([row["gold"] for row in part], [row["answer"] for row in part])
    return found


def test_no_trick_scores():
    tricks = rows("tricks.jsonl")
    paid = [
        (row["class"], row["gold"], row["answer"])
        for row, verdict in zip(tricks, verdicts(tricks), strict=True)
        if verdict.right
    ]
    assert paid == []


def test_honest_spellings_score():
    honest = rows("honest.jsonl")
    refused = [
        (row["gold"], row["answer"], v.refusal)
        for row, v in zip(honest, verdicts(honest), strict=True)
        if v.right is not True
    ]
    assert refused == []


FACTOR = st.sampled_from(
    [
        *"abcdehkmnpqrstuvxyzABGLMNPQRT",
        "2",
        "3",
        "10",
        r"\pi ",
        "(x+1)",
        "v^2",
        r"\sqrt{k}",
        r"\theta ",
    ]
)


@given(
    st.lists(st.lists(FACTOR, min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["+", " + ", "-", " - "]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_gold_keeps_every_letter_of_its_algebra(terms, sign, spaced):
    gold = sign.join((" " if spaced else "").join(term) for term in terms)
    assume(
        letters(gold) and len(gold) > 1 and not re.search(r"\de[-+]?\d", gold)
    )  # 2e3 is a number
    # 2 s and 2cm are a number with its unit.
    assume(not re.fullmatch(rf"\d+ [A-Za-z]|\d+\s*(?:{UNITS})", gold))
    read = read_gold(gold)
    assert read is not None
    # What is no expression is its own text, whole.
    kept = letters(read.text) if read.text is not None else letters(read.raw)
    assert {letter.lower() for letter in letters(gold)} <= {letter.lower() for letter in kept}, (
        gold,
        read,
    )
