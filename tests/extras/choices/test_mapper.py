"""Multiple-choice questions: each data set's columns give the letter of the right option."""

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.mappers.base import SkipRow, get_mapper
from r1_recipes.rewards import get_reward_funcs

TEXTS = ["the liver", "the pancreas", "the spleen", "the lung"]
QUESTION = {"question": "Which organ makes insulin?"}
ROWS = {
    "ARC": {"choices": {"text": TEXTS, "label": ["A", "B", "C", "D"]}, "answerKey": "B"},
    "ARC, labels in digits": {
        "choices": {"text": TEXTS, "label": ["1", "2", "3", "4"]},
        "answerKey": "2",
    },
    "MMLU": {"choices": TEXTS, "answer": 1, "subject": "anatomy"},
    "MMLU-Pro": {"options": TEXTS, "answer": "B", "answer_index": 1},
    # A column of dictionaries has the keys of all rows.
    "MedQA": {
        "options": {**dict(zip("ABCD", TEXTS, strict=True)), "E": None},
        "answer": "the pancreas",
        "answer_idx": "B",
    },
    "MedMCQA": {**dict(zip(("opa", "opb", "opc", "opd"), TEXTS, strict=True)), "cop": 1},
    "the text of an option": {"options": TEXTS, "answer": "the pancreas"},
    "a letter in brackets": {"options": TEXTS, "answer": "(B)"},
    "Option b": {"options": TEXTS, "answer": "Option b"},
    "a sentence": {"options": TEXTS, "answer": "The answer is B."},
    "a float of an integer": {"options": TEXTS, "answer": 1.0},
    "a list of one": {"options": TEXTS, "answer": ["B"]},
    "labels that are numbers": {
        "choices": {"text": TEXTS, "label": [1, 2, 3, 4]},
        "answerKey": 2,
    },
    "labels in another order": {
        "choices": {"text": TEXTS[::-1], "label": list("DCBA")},
        "answerKey": "B",
    },
    "a dictionary by number": {
        "options": dict(zip("1234", TEXTS, strict=True)),
        "answer": "2",
    },
    "a list of dictionaries": {
        "choices": [{"label": label, "text": text} for label, text in zip("ABCD", TEXTS)],  # noqa: B905
        "answerKey": "B",
    },
    "options with letters of their own": {
        "options": [f"({label}) {text}" for label, text in zip("ABCD", TEXTS)],  # noqa: B905
        "answer": "B",
    },
    "padding at the end": {"options": [*TEXTS, None, ""], "answer": "B"},
    "an empty column": {"choices": None, "options": TEXTS, "answerKey": None, "answer": "B"},
    "spaces around the text": {"options": TEXTS, "answer": "the pancreas\n"},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_letter_is_that_of_the_right_option(row):
    mapped = get_mapper("multiple_choice", first=0)({**QUESTION, **row})
    assert mapped["solution"] == "B) the pancreas"
    assert mapped["question"].splitlines() == [
        "Which organ makes insulin?",
        "A) the liver",
        "B) the pancreas",
        "C) the spleen",
        "D) the lung",
    ]


@pytest.mark.parametrize(
    ("right", "answer", "score"),
    [
        ("the pancreas", "B", 1.0),
        ("the pancreas", r"\text{(B)}", 1.0),
        ("the pancreas", "B) the pancreas", 1.0),
        ("the pancreas", "C", 0.0),
        ("the pancreas", "B) the liver", 0.0),
        ("the pancreas", "B. coli", 0.0),  # the text of another option
        ("hepatitis A", "B", 1.0),
        ("hepatitis A", "A", 0.0),
    ],
)
def test_the_reward_compares_the_letter_and_a_text_beside_it(right, answer, score):
    row = {**QUESTION, "options": ["the liver", right, "B. coli"], "answer": "B"}
    (reward,) = get_reward_funcs(["choice_match"], "boxed")
    solution = get_mapper("multiple_choice")(row)["solution"]
    assert reward(completions=[rf"So \boxed{{{answer}}}"], solution=[solution]) == [score]


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (TEXTS, "E"),
        (TEXTS, -1),  # MedMCQA's test rows
        (TEXTS, 4),
        (TEXTS, ""),
        (TEXTS, "the kidney"),
        (["1", "2", "3", "4"], "2"),  # an option's text, or the position of another?
        (["the liver", "the pancreas", "the pancreas"], "the pancreas"),
        (["the liver"], 0),
        (["the liver", " ", "the lung"], 0),
        (["1", "2", "3", "None"], None),
        (["1", "2", "3", "nan"], float("nan")),
        (["Yes", "No"], True),
        (["D", "C", "A", "B"], "B"),  # a letter, or the text of the last option?
        ([1, 2, 3, 4], 3),
        (["1 m", "2 m", "3 m"], "2"),
        (["w", "x", "W"], "A"),
        ({"A": "w", "C": "x"}, "A"),
        ({"A": "w", "B": "x", "answer": "B"}, "B"),
        ({"text": ["w", "x"], "label": None}, "x y"),
        ({"text": ["w", "x"], "label": ["A"]}, "A"),
        ({"text": ["w", "x"], "label": ["A", "A"]}, "A"),
        ({"text": ["w", "x"], "label": ["A", "B"]}, "1"),  # the labels are letters
        ({"text": None, "label": None}, "A"),
        ([["w"], ["x"]], "A"),
        (["w", "x"], "9" * 5000),
        (["w", "x"], {"A": 1}),
        (["the liver", None], 0),
        ([f"option {letter}" for letter in "abcdefghijk"], 0),
        ("the liver, the pancreas", "A"),
        (None, "A"),
    ],
)
def test_a_row_without_one_right_option_is_left_out(options, answer):
    with pytest.raises(SkipRow):
        get_mapper("multiple_choice", first=0)({**QUESTION, "choices": options, "answer": answer})


def test_columns_and_the_first_position_can_be_named():
    mapper = get_mapper(
        "multiple_choice",
        question_column="frage",
        option_columns=["eins", "zwei"],
        answer_column="richtig",
        first=1,
    )
    row = {"frage": "3 + 4?", "eins": "8", "zwei": "7", "richtig": 2}
    assert mapper(row)["solution"] == "B) 7"
    assert mapper.missing(row) == []
    assert mapper.missing(["question", "choices", "answerKey"]) == ["frage", "richtig"]
    assert mapper.missing(["frage", "richtig"]) == ["choices (or options)"]


@pytest.mark.parametrize(
    ("answer_is", "answer", "solution"),
    [("text", "3", "A) 3"), ("position", "3", "D) 6"), ("position", 0, "A) 3")],
)
def test_how_an_answer_is_read_can_be_said(answer_is, answer, solution):
    row = {**QUESTION, "options": ["3", "4", "5", "6"], "answer": answer}
    mapper = get_mapper("multiple_choice", answer_is=answer_is, first=0)
    assert mapper(row)["solution"] == solution


@pytest.mark.parametrize("answer", [1, "1", 1.0])
def test_a_position_needs_to_know_where_counting_begins(answer):
    row = {**QUESTION, "options": TEXTS, "answer": answer}
    with pytest.raises(SkipRow, match="first"):
        get_mapper("multiple_choice")(row)
    assert get_mapper("multiple_choice", first=1)(row)["solution"] == "A) the liver"
    labelled = {**row, "options": {"text": TEXTS, "label": ["1", "2", "3", "4"]}}
    assert get_mapper("multiple_choice")(labelled)["solution"] == "A) the liver"


@pytest.mark.parametrize(("key", "value"), [("answer_is", "letter"), ("first", "1"), ("first", 2)])
def test_values_that_no_key_has_are_refused(key, value):
    with pytest.raises(RecipeError, match=key):
        get_mapper("multiple_choice", **{key: value})


def test_the_right_option_must_not_always_have_the_same_letter():
    with pytest.raises(RecipeError, match="option_columns"):
        get_mapper("multiple_choice", option_columns=["wrong", "right"], answer_column="right")


def test_what_the_question_is_about_precedes_it():
    row = {"article": "Insulin is made in the pancreas.", "options": TEXTS, "answer": "B"}
    lines = get_mapper("multiple_choice")({**QUESTION, **row})["question"].splitlines()
    assert lines[:3] == [row["article"], "", QUESTION["question"]]
