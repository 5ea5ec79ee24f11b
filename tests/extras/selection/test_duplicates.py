"""Questions compared by words: evaluation sets that must not leak, and questions that
come twice.
"""

import json
import random

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.selection.duplicates import (
    Decontaminator,
    Deduplicator,
    evaluation_questions,
    n_gram_hashes,
    units,
    words,
)
from r1_recipes.extras.selection.rules import Decontaminate, Deduplicate, EvaluationSet
from tests.support.rewards import HOSTILE, seconds


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    datasets.disable_progress_bars()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tom's 2,500 x²", ["tom", "s", "2", "500", "x2"]),
        ("STRASSE Straße", ["strasse", "strasse"]),
        ("ＡＢ１ ﬁve", ["ab1", "five"]),  # full width, a ligature
        ("Cafe\u0301 Café", ["café", "café"]),
        ("若x=3，求x+1", ["若", "x", "3", "求", "x", "1"]),
        ("鶏が2羽", ["鶏", "が", "2", "羽"]),
        (
            "हिन्दी में। शब्द",
            ["हिन्दी", "में", "शब्द"],
        ),  # vowel signs are inside words, the full stop is not
        ("con\u00adtami\u200bnated", ["contaminated"]),  # a soft hyphen, a zero-width space
        ("snake_case \\frac{1}{2}", ["snake", "case", "frac", "1", "2"]),
        ("?! …", []),
        ("", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is 3 + 4?", ["what", "is", "3", "+", "4"]),
        ("(3-4)*2 = $x_1$.", ["(", "3", "-", "4", ")", "*", "2", "=", "x", "1"]),
        ("5!, “five”", ["5", "!", "five"]),
        ("x^{2+1}", ["x", "^", "{", "2", "+", "1", "}"]),
    ],
)
def test_units_keep_what_a_formula_means(text, expected):
    assert units(text) == expected


@given(st.text())
def test_words_are_the_units_without_signs(text):
    found = units(text)
    assert words(text) == [unit for unit in found if words(unit)]


def test_hostile_texts():
    overlap, duplicates = (
        Decontaminator(Decontaminate((), 8)),
        Deduplicator(Deduplicate(True, 0.8, 5)),
    )
    texts = [text for text in HOSTILE if isinstance(text, str)]
    with seconds(20):
        overlap.add("hostile", texts)
        assert [text for text in texts if words(text) and not overlap.sources(text)] == []
        first = [duplicates.add(text) for text in texts]
        assert not any(duplicates.add(text) for text in texts)
    assert first[0] and first.count(True) > 10


EVAL = "A train leaves the old station at noon and arrives at five."  # 12 words
SHARED = "leaves the old station at noon and arrives"  # 8 of them


@pytest.mark.parametrize(
    ("question", "found"),
    [
        (EVAL, True),
        (f"Tom {SHARED.upper()}, late.", True),  # 8 words in a row, whatever stands around them
        ("LEAVES, the OLD\nstation: at noon -- and “arrives”", True),
        ("Tom leaves the old station at noon and returns.", False),  # 7: leaves … and
        ("station at noon and arrives at five", False),  # 7 words: whole questions are compared
        ("", False),
        ("???", False),
        ("What is 3 + 4?", True),  # the short question below
        ("what is  3+4", True),
        (
            "What is 3 * 4?",
            True,
        ),  # words alone count: better one question too few than one of the evaluation's
        ("What is 34?", False),
        ("What is 3 + 4 + 5?", False),
    ],
)
def test_decontaminator(question, found):
    overlap = Decontaminator(Decontaminate((), 8))
    overlap.add("trains", [EVAL, "", "???"])
    overlap.add("sums", ["What is 3 + 4?"])
    expected = (["sums"] if "3" in question else ["trains"]) if found else []
    assert overlap.sources(question) == expected


def test_short_questions_do_not_meet_n_grams_of_long_ones():
    overlap = Decontaminator(Decontaminate((), 3))
    overlap.add("eval", ["a b c d"])
    assert overlap.sources("x b c d") == ["eval"]
    assert overlap.sources("b c") == []
    overlap.add("short", ["b + c"])
    assert overlap.sources("b c d") == ["eval"]
    assert overlap.sources("B+C") == ["short"]


@given(
    st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=4),
    st.lists(st.sampled_from("abc"), max_size=6),
    st.integers(1, 4),
)
def test_decontamination_is_what_comparing_strings_gives(sets, question, n):
    def grams(sequence):
        return {" ".join(sequence[i : i + n]) for i in range(len(sequence) - n + 1)}

    overlap = Decontaminator(Decontaminate((), n))
    overlap.add("eval", [" ".join(one) for one in sets])
    expected = (
        any(grams(one) & grams(question) for one in sets)
        if len(question) >= n
        else bool(question) and question in sets
    )
    assert overlap.sources(" ".join(question)) == (["eval"] if expected else [])


def test_an_n_gram_is_a_hash_of_eight_bytes():
    found = n_gram_hashes(["a", "b", "c", "a", "b"], 2)  # ab bc ca ab
    assert len(found) == 3
    assert all(0 <= value < 1 << 64 for value in found)
    assert n_gram_hashes(["ab", "c"], 2).isdisjoint(n_gram_hashes(["a", "bc"], 2))
    assert len(n_gram_hashes(["a"], 2)) == 1 and n_gram_hashes([], 2) == set()


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("rows", "column", "expected"),
    [
        ([{"problem": "p", "question": "q", "answer": "1"}], "question", ["q"]),
        ([{"problem": "p", "text": "t"}, {"problem": "p", "text": None}], "text", ["t", ""]),
        (
            [
                {
                    "prompt": [
                        {"role": "system", "content": "s"},
                        {"role": "user", "content": "u"},
                        {"role": "user", "content": "v"},
                    ]
                }
            ],
            "prompt",
            ["v"],
        ),
    ],
)
def test_evaluation_sets(tmp_path, rows, column, expected):
    assert (
        evaluation_questions(EvaluationSet(write(tmp_path / "eval.jsonl", rows), column=column))
        == expected
    )


@pytest.mark.parametrize(
    ("rows", "column", "match"),
    [
        (
            [{"body": "p", "gold": "1"}],
            "question",
            "column: must name .* one of body, gold, got 'question'",
        ),
    ],
)
def test_evaluation_sets_without_questions(tmp_path, rows, column, match):
    with pytest.raises(RecipeError, match=match):
        evaluation_questions(EvaluationSet(write(tmp_path / "eval.jsonl", rows), column=column))


def test_an_evaluation_set_that_is_not_there(tmp_path):
    with pytest.raises(RecipeError, match="no such file"):
        evaluation_questions(EvaluationSet(str(tmp_path / "eval.jsonl")))


def kept(duplicates, questions):
    return [question for question in questions if duplicates.add(question)]


def test_exact_duplicates_differ_in_white_space_alone():
    questions = [
        "What is 3 + 4?",
        " What  is\n3 + 4?\t",
        "What is 3 - 4?",
        "what is 3 + 4?",
        "",
        " ",
        "\ud800",
        "\ud800",
    ]
    assert kept(Deduplicator(Deduplicate(True, None, 5)), questions) == [
        questions[i] for i in (0, 2, 3, 4, 6)
    ]


def test_near_duplicates_at_the_threshold():
    # Bigrams: ab bc cd de ef against ab bc cd de eg: 4 shared of 6.
    first, second = "a b c d e f", "a b c d e g"
    assert kept(Deduplicator(Deduplicate(False, 4 / 6, 2)), [first, second]) == [first]
    assert kept(Deduplicator(Deduplicate(False, 0.67, 2)), [first, second]) == [first, second]
    # Of single units, 11 of 20: 0.55 * 20 is 11.000000000000002, and 11 / 20 is 0.55.
    left, right = [f"w{i}" for i in range(15)], [f"w{i}" for i in range(4, 20)]
    assert kept(Deduplicator(Deduplicate(False, 0.55, 1)), [" ".join(left), " ".join(right)]) == [
        " ".join(left)
    ]


def test_near_duplicates_keep_what_a_formula_means():
    questions = [
        "What is 3 + 4?",
        "what is: 3+4",
        "What is 3 - 4?",
        "What is (3 + 4)?",
        "?",
        "!?",
        "5 + 5 = 5 * 2, so what",
        "x",
    ]
    # With n = 3: equal units, then another sign, then brackets; "?" has no units, "!" is one.
    assert kept(Deduplicator(Deduplicate(False, 1.0, 3)), questions) == [
        q for q in questions if q != "what is: 3+4"
    ]
    duplicates = Deduplicator(Deduplicate(False, 0.5, 5))
    assert duplicates.add("What is 5?")
    assert not duplicates.add("what is $5$")  # shorter than an n-gram: equal units
    assert duplicates.add("What is 6?")


def test_a_question_is_compared_with_kept_ones_only():
    # Unigrams: second shares 3 of 5 with first, third 3 of 5 with second and 2 of 6 with first.
    first, second, third = "a b c d", "b c d e", "c d e f"
    assert kept(Deduplicator(Deduplicate(True, 0.6, 1)), [first, second, third]) == [first, third]


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8), max_size=8),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
)
def test_refused_is_what_is_near(questions, near):
    duplicates, left = Deduplicator(Deduplicate(False, near, 1)), []
    for question in questions:
        similar = max(
            (len({*question} & {*known}) / len({*question} | {*known}) for known in left),
            default=0.0,
        )
        assert duplicates.add(" ".join(question)) == (similar < near)
        if similar < near:
            left.append(question)


@pytest.mark.parametrize("near", [0.5, 0.8, 0.9])
def test_no_pair_at_the_threshold_is_missed(near):
    # 90 units shared of 90 / near: the threshold itself.
    generator = random.Random(0)
    duplicates = Deduplicator(Deduplicate(False, near, 1))
    own = (round(90 / near) - 90) // 2
    for pair in range(100):
        shared = [f"s{generator.getrandbits(60)}" for _ in range(90)]
        first, second = ([*shared, *(f"{side}{pair}x{i}" for i in range(own))] for side in "ab")
        assert duplicates.add(" ".join(first))
        assert not duplicates.add(" ".join(second))
