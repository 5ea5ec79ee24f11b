"""Texts backwards: what is drawn, what is asked, and what an answer scores."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.mappers.base import SkipRow, get_mapper
from r1_recipes.extras.reverse_text.reward import MAX_CHARS
from r1_recipes.extras.reverse_text.rows import reverse_text_rows
from r1_recipes.rewards import get_reward_funcs

FORMAT = {
    "system_prompt": "",
    "layout": "{reasoning}\n<reversed_text>{answer}</reversed_text>",
    "answer_tags": ["<reversed_text>", "</reversed_text>"],
}
CONFIG = {
    "min_length": 3,
    "max_length": 6,
    "train": {"size": 50, "seed": 1},
    "test": {"size": 20, "seed": 2},
}


def similarity(answer, gold):
    (reward,) = get_reward_funcs(["text_similarity"], response_format=FORMAT)
    completion = f"<reversed_text>{answer}</reversed_text>"
    return reward(completions=[completion], solution=[gold])[0]


@pytest.mark.parametrize("alphabet", ["digits", "letters"])
def test_rows_are_distinct_have_the_lengths_asked_for_and_do_not_read_the_same_backwards(alphabet):
    train, test = (
        reverse_text_rows(alphabet, split, CONFIG)["prompt"]
        for split in CONFIG
        if split in ("train", "test")
    )
    assert (len(train), len(test)) == (50, 20)
    assert len({*train, *test}) == 70
    assert all(3 <= len(text) <= 6 and text != text[::-1] for text in [*train, *test])
    assert list(train) == list(reverse_text_rows(alphabet, "train", CONFIG)["prompt"])


@pytest.mark.parametrize(
    ("alphabet", "change", "key"),
    [
        ("digit", {}, "dataset_name"),
        ("digits", {"min_length": 1}, "min_length"),
        ("digits", {"max_length": 2}, "max_length"),
        ("digits", {"minimum": 2}, "minimum"),
        ("digits", {"max_length": 3, "train": {"size": 2000, "seed": 1}}, "train: size"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_its_key(alphabet, change, key):
    with pytest.raises(RecipeError, match=key):
        reverse_text_rows(alphabet, "train", CONFIG | change)


def test_the_reference_answer_is_the_text_backwards():
    mapped = get_mapper("reverse_text")({"prompt": "Two lamps, née"})
    assert mapped["question"] == "Two lamps, née"
    assert mapped["solution"] == mapped["answer"] == "eén ,spmal owT"
    assert mapped["reasoning"].split(" ")[:3] == ["e", "é", "n"]


def test_a_share_of_the_targets_copies_the_text_and_no_reference_answer_does():
    mapper = get_mapper("reverse_text", right_share=0.4)
    rows = [mapper({"prompt": f"text {number}"}) for number in range(1000)]
    right = sum(row["answer"] == row["solution"] for row in rows)
    assert 350 < right < 450
    assert all(row["solution"] == row["question"][::-1] for row in rows)
    assert all(row["answer"] in (row["question"], row["solution"]) for row in rows)


@pytest.mark.parametrize("text", [None, "", "x" * (MAX_CHARS + 1)])
def test_a_row_without_a_text_that_can_be_compared_is_skipped(text):
    with pytest.raises(SkipRow, match="prompt"):
        get_mapper("reverse_text")({"prompt": text})


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("4321", "4321", 1.0),
        ("1234", "4321", 0.25),  # one character is in place, whichever
        ("432", "4321", 6 / 7),
        ("4321 4321", "4321", 8 / 13),
        ("", "4321", 0.0),
        ("abcd", "4321", 0.0),
        ("4" * 100_000, "4321", 2 / 100_004),
    ],
)
def test_the_score_is_twice_the_matches_over_both_lengths(answer, gold, score):
    assert similarity(answer, gold) == pytest.approx(score)


def test_a_long_text_with_one_wrong_character_at_its_beginning_is_nearly_right():
    # difflib's default would give 0: in 200 characters or more it passes over frequent ones.
    gold = "the tram was late again " * 10
    assert similarity("x" + gold.strip(), gold.strip()) > 0.99


def test_an_answer_outside_the_tags_scores_nothing_and_a_long_reference_answer_is_not_judged():
    (reward,) = get_reward_funcs(["text_similarity"], response_format=FORMAT)
    golds = ["4321", "4321", None, "x" * (MAX_CHARS + 1)]
    texts = ["4321", "<reversed_text>4321", "4321", "4321"]
    assert reward(completions=texts, solution=golds) == [0.0, 0.0, None, None]


def test_an_empty_reference_answer_is_not_judged():
    (reward,) = get_reward_funcs(["text_similarity"], response_format=FORMAT)
    assert reward.score("x", "") is None and reward.score(None, "") is None


@pytest.mark.parametrize("options", [{"max_chars": 301}, {"max_chars": 0}, {"right_share": 40}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(RecipeError, match=next(iter(options))):
        get_mapper("reverse_text", **options)


@given(st.text(max_size=60), st.text(min_size=1, max_size=60))
def test_only_the_same_text_scores_1(answer, gold):
    (reward,) = get_reward_funcs(["text_similarity"], response_format=FORMAT)
    score = reward.score(answer, gold)
    assert 0 <= score <= 1
    assert (score == 1) == (answer == gold)


def test_the_slowest_comparison_takes_seconds_at_most():
    started = time.process_time()
    similarity("ab" * MAX_CHARS, "ba" * (MAX_CHARS // 2))
    similarity("a" * 100_000, "a" * MAX_CHARS)
    similarity("a" * (2 * MAX_CHARS), "ab" * (MAX_CHARS // 2))  # one block of one letter at a time
    assert time.process_time() - started < 5
