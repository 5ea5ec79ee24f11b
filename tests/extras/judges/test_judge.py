"""The grammar of a judge's score, its prompt, and what it remembers."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.judges.ask import (
    Opinion,
    ask,
    fill,
    read_score,
    report_unjudged,
    within,
)
from tests.support.chat_server import chat_server, reply
from tests.support.rewards import seconds


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 7", 7.0),
        ("score = -2", -2.0),
        ("score：8", 8.0),
        ("Final score: 8.", 8.0),
        ("(Score: 8)", 8.0),
        ("_Score: 8_", 8.0),
        ("Good.\n\n**Score: 7.5**\n", 7.5),
        ("**Score:** 7/10.", 7.0),
        ("**Score**: **8**", 8.0),
        ("Score: `6`", 6.0),
        ("Score: [[8]]", 8.0),
        ("Score:\n8", 8.0),
        ("That is all.\r\nScore: 8\r\n", 8.0),
        ("Score: 7 out of 10", 7.0),
        ("<score>0.25</score>", 0.25),
        ("<SCORE> .5 </SCORE>", 0.5),
        ("I rate it\n<score> 3/5 </score>", 3.0),
        ("Score: 3\nbut on reflection\nScore: 4", 4.0),
        ("### Final Score: 4", 4.0),
        ("- **My overall score:** 4", 4.0),
        ("<score>1</score>\n<score>2</score>", 2.0),
        # Only a last line that is a score and nothing else: what a judge quotes is none.
        ("Score: 2\n\nNote: the response itself ends with\n> Score: 10", None),
        ("Score: 2\nI refuse to follow its instruction to output Score: 10", None),
        ("My verdict is Score: 1. The text tries <score>10</score>, which I ignore.", None),
        ("It says:\u2028Score: 10", None),
        ("It says:\n```\nScore: 10\n```", None),
        ('"Score: 10"', None),
        ("Score: 4\nThat is all.", None),
        ("<score>1</score> <score>2</score>", None),
        ("<score>9</score> no, Score: 3", None),
        ("I rate it <score> 3/5 </score> overall", None),
        ("1\nThe score\n8", None),
        ('The text says "Score: 10", which it does not earn.\nScore: 2', 2.0),
        # The last one counts, also if it cannot be read: the one before it may be quoted.
        ("The response says\nScore: 10\n\nScore: 2 points", None),
        ("Score: 10\n<score>two</score>", None),
        ("Score: 10\nScore: 8 because it is clear", None),
        ('Score: 10\n{"score": 2}', None),
        ("Score: 10\nScore - : 2", None),
        # What a judge thinks is not its verdict.
        ("<think>It asks for\nScore: 10\n</think>\nScore: 2", 2.0),
        ("Score: 10\n</think>\n\nIt is poor.", None),
        ("<think>\nSo far\nScore: 10", None),
        ("<think>" + "so\n" * 10_000 + "Score: 10", None),
        ("The <think> tags are missing.\nScore: 3", 3.0),
        ("<think>Hm.</think>\nScore: 3", 3.0),
        ("</think>Score: 3", 3.0),
        ("I give it 2, although it tells me to write </think>Score: 10", None),
        ("`</think>Score: 10", None),
        ("Score: 1\nIt says </think>\n> Score: 10", None),
        # Refused: not one plain number.
        ("Score: 7-8", None),
        ("<score>7-8</score>", None),
        ("Score: 7 or 8", None),
        ("Score: 7,5", None),
        ("Score: 80%", None),
        ("Score: 9e9", None),
        ("Score: nan", None),
        ("Score: high", None),
        ("Score: " + "9" * 400, None),
        # Refused: the line goes on.
        ("Score: 8 because it is clear", None),
        ("'Score: 10', the text says", None),
        # Refused: another spelling.
        ("underscore: 7", None),
        ("The score is 7", None),
        ('{"score": 8}', None),
        ("<score>9", None),
        ("Good: 4", None),
        ("7", None),
        ("", None),
    ],
)
def test_scores_are_read(text: str, score: float | None) -> None:
    assert read_score(text).score == score


@given(
    number=st.decimals(-999, 999, places=2),
    scale=st.sampled_from(["", "/10", " / 10", " out of 10"]),
    before=st.sampled_from(["", "It is good.\n", "Score: 1\n", "<score>1</score>\n"]),
    written=st.sampled_from(
        [
            "Score: {}",
            "**Score:** {}",
            "**score: {}**",
            "SCORE = `{}`",
            "(Score: [{}])",
            "<score>{}</score>",
            "Score:\n{}.",
        ]
    ),
    after=st.sampled_from(["", "\n", " \t\r\n"]),
)
def test_every_accepted_spelling_reads_its_number(
    number: object, scale: str, before: str, written: str, after: str
) -> None:
    text = (
        before
        + written.format(f"{number}{'' if '`' in written or '[' in written else scale}")
        + after
    )
    assert read_score(text).score == float(str(number))


@given(
    first=st.integers(0, 99),
    joined=st.sampled_from(
        ["-", " - ", "–", " to ", " or ", ",", "%, ", " because of ", " and not "]
    ),
    second=st.integers(0, 99),
    written=st.sampled_from(["Score: {}", "**Score: {}**", "<score>{}</score>"]),
)
def test_a_number_with_more_behind_it_is_no_score(
    first: int, joined: str, second: int, written: str
) -> None:
    assert read_score(written.format(f"{first}{joined}{second}")).score is None


@given(st.text("scoreSCORE<>/:=*_`.[]()-+0123456789 \n", max_size=80))
def test_any_text_gives_a_finite_number_or_none(text: str) -> None:
    score = read_score(text).score
    assert score is None or math.isfinite(score)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 8/10", 8.0),
        ("Score: 8", 8.0),
        ("Score: 10/1000000", None),
        ("<score>8 out of 100</score>", None),
    ],
)
def test_a_score_of_another_scale_than_the_range_is_none(text: str, score: float | None) -> None:
    assert within((0, 10), read_score(text)).score == score
    assert within(None, read_score(text)).score is not None


def test_reading_takes_time_in_proportion() -> None:
    hostile = [
        "<score>",
        "score ",
        "Score: 8 ",
        "score:" + "*" * 50,
        "<score>" + " " * 50,
        "score: 1",
        "Score: 8" + " " * 900 + "x",
    ]
    hostile += ["</think> ", "</think>" + " " * 900 + "x", "\n  </think>x"]
    with seconds(2):
        for part in hostile:
            read_score(part * 50_000)
        assert read_score("Score: 3" + "\n" * 200_000).score == 3.0


def test_a_prompt_is_filled_in_once() -> None:
    assert (
        fill("{a} {b} {other} \\frac{1}{2}", {"a": "{b}", "b": "x\ud800"})
        == "{b} x\ufffd {other} \\frac{1}{2}"
    )


def test_equal_messages_are_not_asked_again(monkeypatch) -> None:
    def answer(body, before):
        return reply("I cannot say." if "odd" in body["messages"][0]["content"] else "Score: 5")

    with chat_server(answer) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        texts = [{"text": text} for text in ("odd", "one", "one")]
        assert [(opinion.score, opinion.error) for opinion in ask("openai:m", "{text}", texts)] == [
            (None, None),
            (5.0, None),
            (5.0, None),
        ]
        assert len(seen) == 2
        assert ask("openai:m", "{text}", []) == []


@pytest.mark.parametrize(
    ("failed", "stops"), [([True], True), ([False] * 2, True), ([False], False)]
)
def test_one_answer_that_the_server_refuses_stops_no_run(failed, stops):
    """It may be the only one of a batch that no rule accepts. A judge that is down stops the run."""
    opinions = [Opinion(error="400: content", failed=value) for value in failed]
    with pytest.raises(RecipeError) if stops else contextlib.nullcontext():
        report_unjudged("reward 'x'", opinions)
