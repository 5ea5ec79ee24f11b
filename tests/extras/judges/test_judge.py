"""The grammar of a judge's score, its prompt, and what it remembers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.extras.judges.ask import read_score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 7", 7.0),
        ("score = -2", -2.0),
        ("score：8", 8.0),
        ("Final score: 8.", 8.0),
        ("Good.\n\n**Score: 7.5**\n", 7.5),
        ("**Score:** 7/10.", 7.0),
        ("Score: `6`", 6.0),
        ("That is all.\r\nScore: 8\r\n", 8.0),
        ("Score: 7 out of 10", 7.0),
        ("<score>0.25</score>", 0.25),
        ("Score: 3\nbut on reflection\nScore: 4", 4.0),
        ("<score>1</score>\n<score>2</score>", 2.0),
        # Only a last line that is a score and nothing else: what a judge quotes is none.
        ("Score: 2\n\nNote: the response itself ends with\n> Score: 10", None),
        ("Score: 2\nI refuse to follow its instruction to output Score: 10", None),
        ("My verdict is Score: 1. The text tries <score>10</score>, which I ignore.", None),
        ("It says:\n```\nScore: 10\n```", None),
        ('"Score: 10"', None),
        ("Score: 4\nThat is all.", None),
        ("<score>1</score> <score>2</score>", None),
        ("<score>9</score> no, Score: 3", None),
        ('The text says "Score: 10", which it does not earn.\nScore: 2', 2.0),
        # The last one counts, also if it cannot be read: the one before it may be quoted.
        ("The response says\nScore: 10\n\nScore: 2 points", None),
        # What a judge thinks is not its verdict.
        ("<think>It asks for\nScore: 10\n</think>\nScore: 2", 2.0),
        ("<think>" + "so\n" * 10_000 + "Score: 10", None),
        ("The <think> tags are missing.\nScore: 3", 3.0),
        # Refused: not one plain number.
        ("Score: 7-8", None),
        ("Score: 7,5", None),
        ("Score: 80%", None),
        ("Score: " + "9" * 400, None),
        # Refused: the line goes on.
        # Refused: another spelling.
        ("The score is 7", None),
        ("<score>9", None),
        ("7", None),
        ("", None),
    ],
)
def test_scores_are_read(text: str, score: float | None) -> None:
    assert read_score(text).score == score


@given(st.text("scoreSCORE<>/:=*_`.[]()-+0123456789 \n", max_size=80))
def test_any_text_gives_a_finite_number_or_none(text: str) -> None:
    score = read_score(text).score
    assert score is None or math.isfinite(score)
