"""Multiple-choice questions: each data set's columns give the letter of the right option."""

import pytest

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
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_letter_is_that_of_the_right_option(row):
    mapped = get_mapper("multiple_choice")({**QUESTION, **row})
    assert mapped["solution"] == "B"
    assert mapped["question"].splitlines() == [
        "Which organ makes insulin?",
        "A) the liver",
        "B) the pancreas",
        "C) the spleen",
        "D) the lung",
    ]
    (reward,) = get_reward_funcs(["choice_match"], "boxed")
    texts = [r"\boxed{B}", r"\boxed{\text{B}}", r"\boxed{C}", "B"]
    columns = {"solution": [mapped["solution"]] * len(texts)}
    assert reward(completions=texts, **columns)[:3] == [1.0, 1.0, 0.0]


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
        (["the liver", " "], 0),
        (["the liver", None], 0),
        ([str(number) for number in range(11)], 0),
        ("the liver, the pancreas", "A"),
        (None, "A"),
    ],
)
def test_a_row_without_one_right_option_is_left_out(options, answer):
    with pytest.raises(SkipRow):
        get_mapper("multiple_choice")({**QUESTION, "choices": options, "answer": answer})


def test_columns_and_the_first_position_can_be_named():
    mapper = get_mapper(
        "multiple_choice",
        question_column="frage",
        option_columns=["eins", "zwei"],
        answer_column="richtig",
        first=1,
    )
    row = {"frage": "3 + 4?", "eins": "8", "zwei": "7", "richtig": 2}
    assert mapper(row)["solution"] == "B"
    assert mapper.missing(row) == []
    assert mapper.missing(["question", "choices", "answerKey"]) == ["frage", "richtig"]
    assert mapper.missing(["frage", "richtig"]) == ["choices (or options)"]
