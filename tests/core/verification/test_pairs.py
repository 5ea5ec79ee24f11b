"""Answers that must not score, and answers that must.

``tricks.jsonl``: wrong answers that an attack on the rules tried, by class. ``honest.jsonl``: right
answers as models write them. Both were written by hand for these rules; a line has ``gold`` and
``answer``.
"""

import json
from pathlib import Path

from r1_recipes.verification import judge

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
