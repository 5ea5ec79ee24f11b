"""Multiple-choice questions: each data set's columns give the letter of the right option."""

import pytest

from r1_recipes.data.mappers.base import get_mapper

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
    "a float of an integer": {"options": TEXTS, "answer": 1.0},
    "a list of one": {"options": TEXTS, "answer": ["B"]},
    "labels that are numbers": {"choices": {"text": TEXTS, "label": [1, 2, 3, 4]}, "answerKey": 2},
    "a dictionary by number": {"options": dict(zip("1234", TEXTS, strict=True)), "answer": "2"},
    "a list of dictionaries": {
        "choices": [{"label": label, "text": text} for label, text in zip("ABCD", TEXTS)],  # noqa: B905
        "answerKey": "B",
    },
    "padding at the end": {"options": [*TEXTS, None, ""], "answer": "B"},
    "an empty column": {"choices": None, "options": TEXTS, "answerKey": None, "answer": "B"},
    "spaces around the text": {"options": TEXTS, "answer": "the pancreas\n"},
}


# What the recipe says of the answer; the others name an option by its label.
CONFIG = {
    "MMLU": {"first": 0},
    "MedMCQA": {"first": 0},
    "a float of an integer": {"first": 0},
    "MedQA": {"answer_column": "answer", "answer_is": "text"},
    "the text of an option": {"answer_is": "text"},
    "spaces around the text": {"answer_is": "text"},
}


@pytest.mark.parametrize("name", ROWS)
def test_the_letter_is_that_of_the_right_option(name):
    mapped = get_mapper("multiple_choice", **CONFIG.get(name, {}))({**QUESTION, **ROWS[name]})
    assert mapped["solution"] == "B) the pancreas"
    assert mapped["question"].splitlines() == [
        "Which organ makes insulin?",
        "A) the liver",
        "B) the pancreas",
        "C) the spleen",
        "D) the lung",
    ]
