"""Rewards for golds in words and letters: what counts as the same, and what hedging
earns. The mapper: each data set's columns give the letter of the right option.
"""

import pytest

from r1_recipes.data.mappers import get_mapper
from r1_recipes.extras.choices import answer_match, choice_match, exact_match
from r1_recipes.prompts import FORMATS, get_response_format
from tests.support.rewards import HOSTILE, seconds

FMT = FORMATS["think_answer"]


def think(answer):
    return f"<think>\na\n</think>\n<answer>\n{answer}\n</answer>"


def score(reward, answer, gold, fmt=FMT):
    [value] = reward([think(answer)], [gold], prompts=["p"], trainer_state=None, fmt=fmt)
    return value


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("pancreas", "Pancreas", 1.0),
        ("The pancreas.", "Pancreas", 1.0),  # an article and a full stop
        ("**Pancreas**", "pancreas", 1.0),
        ("Ｐａｎｃｒｅａｓ", "Pancreas", 1.0),  # full width
        ("vitamin-C deficiency", "Vitamin C deficiency", 1.0),
        ("The answer is: pancreas", "Pancreas", 1.0),
        ("It makes insulin, so the answer is the pancreas.\n", "Pancreas", 1.0),
        ("\\boxed{pancreas}", "Pancreas", 1.0),
        ("胰腺。", "胰腺", 1.0),
        ("答案是：胰腺", "胰腺", 1.0),
        ("5.5 mg", "5.5 mg", 1.0),
        ("type-2 diabetes", "Type 2 diabetes", 1.0),  # a hyphen is no sign
        ("COVID 19", "COVID-19", 1.0),
        ("1200", "1,200", 1.0),
        ("0.5", ".5", 1.0),
        ("Ca²⁺", "Ca2+", 1.0),
        ("**The** `pancreas`", "_pancreas_", 1.0),
        ("A", "A", 1.0),  # a letter is no article
        ("the hepatitis A virus", "Hepatitis A virus", 1.0),
        # a sign that turns the meaning round
        ("↓ calcium", "↑ calcium", 0.0),
        ("PaO2 > 60 mmHg", "PaO2 < 60 mmHg", 0.0),
        ("x > 3", "x < 3", 0.0),
        ("5", ".5", 0.0),
        ("1:2", "1/2", 0.0),
        ("105", "10⁵", 0.0),
        ("2x-3", "2x+3", 0.0),
        ("B", "A, B", 0.0),
        ("hepatitis virus", "Hepatitis A virus", 0.0),
        # another value, word, order, or more than the gold
        ("5,5 mg", "5.5 mg", 0.0),
        ("HER2-", "HER2+", 0.0),
        ("-3", "3", 0.0),
        ("liver", "Pancreas", 0.0),
        ("pancreas or liver", "Pancreas", 0.0),
        ("deficiency vitamin C", "Vitamin C deficiency", 0.0),
        (
            "The answer is pancreas. No, the answer is liver.",
            "Pancreas",
            0.0,
        ),  # the last one counts
        ("\\boxed{pancreas} or \\boxed{liver}", "Pancreas", 0.0),
        ("", "Pancreas", 0.0),
        ("x" * 5000, "x" * 5000, 0.0),  # unread
        ("pancreas", "", None),
        ("pancreas", " . ", None),
        ("pancreas", None, None),
        ("7", 7, 1.0),
    ],
)
def test_exact_match(answer, gold, value):
    assert score(exact_match, answer, gold) == value


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("B", "B", 1.0),
        ("(B) pancreas", "B", 1.0),
        ("The answer is B.", "(B)", 1.0),
        ("It is an exocrine gland, so the answer is (B)", "B. pancreas", 1.0),
        ("C", "B", 0.0),
        ("B or C", "B", 0.0),
        ("The answer is B or C", "B", 0.0),
        ("B\nThe answer is C", "B", 0.0),  # two choices
        ("pancreas", "B", 0.0),
        ("B. liver", "B. pancreas", 0.0),
        ("B. pancreas", "B. Pancreas", 1.0),
        ("E. histolytica", "E. coli", 0.0),
        ("E. coli", "E. coli", 1.0),
        ("B", "pancreas", None),
        ("B", "42", None),
        ("B", None, None),
    ],
)
def test_choice_match(answer, gold, value):
    assert score(choice_match, answer, gold) == value


def test_answer_match_takes_the_rule_that_the_gold_asks_for():
    logged = {}
    answers = ["(B)", "0.75", "The pancreas", "liver", "B", ""]
    golds = ["B", "\\frac{3}{4}", "Pancreas", "Pancreas", "", "B"]
    values = answer_match([*map(think, answers)], golds, log_extra=logged.__setitem__)
    assert values == [1.0, 1.0, 1.0, 0.0, None, 0.0]
    assert logged.pop("matched_by") == ["choice", "mathematics", "words", "", "", ""]
    assert logged == {"answer_match_answer": answers, "answer_match_solution": golds}


@pytest.mark.parametrize("reward", [exact_match, choice_match, answer_match])
@pytest.mark.parametrize("name", ["think_answer", "boxed", "think_prose"])
def test_hostile_completions(reward, name):
    texts = [*HOSTILE, *map(think, HOSTILE)]
    with seconds(20):
        scores = reward(texts, ["B"] * len(texts), fmt=get_response_format(name))
    assert len(scores) == len(texts)


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
