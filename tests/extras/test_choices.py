"""Rewards for golds in words and letters: what counts as the same, and what hedging
earns. The mapper: each data set's columns give the letter of the right option.
"""

import pytest

from r1_recipes.data.mappers import SkipRow, get_mapper
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
        ("**Pancreas**", "pancreas", 1.0),
        ("vitamin-C deficiency", "Vitamin C deficiency", 1.0),
        ("答案是：胰腺", "胰腺", 1.0),
        ("1200", "1,200", 1.0),
        ("Ca²⁺", "Ca2+", 1.0),
        ("A", "A", 1.0),  # a letter is no article
        # a sign that turns the meaning round
        ("↓ calcium", "↑ calcium", 0.0),
        ("PaO2 > 60 mmHg", "PaO2 < 60 mmHg", 0.0),
        ("HER2-", "HER2+", 0.0),
        ("C", "C#", 0.0),
        ("ดู", "ดี", 0.0),  # vowels are marks in Thai and Hindi
        ("5", ".5", 0.0),
        ("hepatitis virus", "Hepatitis A virus", 0.0),
        ("5,5 mg", "5.5 mg", 0.0),
        ("deficiency vitamin C", "Vitamin C deficiency", 0.0),
        ("The answer is pancreas. No, the answer is liver.", "Pancreas", 0.0),
        ("x" * 5000, "x" * 5000, 0.0),  # unread
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
        ("It is an exocrine gland, so the answer is (B)", "B. pancreas", 1.0),
        ("B\nThe answer is C", "B", 0.0),  # two choices
        ("E. histolytica", "E. coli", 0.0),
        ("E. coli", "E. coli", 1.0),
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


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("yes", "True", 1.0),
        ("No", "False", 1.0),
        ("yes", "False", 0.0),
        (r"\text{H}_2\text{O}", "H2O", 1.0),
        (r"\ce{CO2}", "CO2", 1.0),
        ("CO", "CO2", 0.0),
        ("2H2O", "H2O", 0.0),
        ("12.5 percent", "12.5%", 1.0),
        ("50 kg", "50%", 0.0),
        ("12 N", "F = 12 N", 1.0),
        ("12 m", "12 km", 0.0),
        ("x=2, x=-3", "x = 2 or x = -3", 1.0),
    ],
)
def test_answer_match_reads_what_models_write(answer, gold, value):
    assert score(answer_match, answer, gold) == value


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
    "MMLU of the hub, whose answers are classes": {"choices": TEXTS, "answer": "B"},
    "MMLU-Pro": {"options": TEXTS, "answer": "B", "answer_index": 1},
    # A column of dictionaries has the keys of all rows.
    "MedQA": {
        "options": {**dict(zip("ABCD", TEXTS, strict=True)), "E": None},
        "answer": "the pancreas",
        "answer_idx": "B",
    },
    "options as text, in a cell of a CSV file": {"options": str(TEXTS), "answer": "B"},
    "bigbio's MedQA": {
        "options": [{"key": k, "value": v} for k, v in zip("ABCD", TEXTS, strict=True)],
        "answer_idx": "B",
    },
    "MedMCQA": {**dict(zip(("opa", "opb", "opc", "opd"), TEXTS, strict=True)), "cop": 1},
    "the text of an option": {"options": TEXTS, "answer": "the pancreas"},
}


# What the recipe says of the answer; the others name an option by its label.
CONFIG = {
    "MMLU": {"first": 0},
    "MMLU of the hub, whose answers are classes": {"first": 0},
    "MedMCQA": {"first": 0},
    "MedQA": {"answer_column": "answer", "answer_is": "text"},
    "the text of an option": {"answer_is": "text"},
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


def test_a_position_counts_an_option_without_text():
    row = {**QUESTION, "choices": [TEXTS[0], "", TEXTS[1]], "answer": 2}
    assert get_mapper("multiple_choice", first=0)(row)["solution"] == "B) the pancreas"


def test_no_option_is_left_out():
    row = {**QUESTION, "choices": list("abcdefghijk"), "answer": "B"}
    with pytest.raises(SkipRow, match="two to 10 options"):
        get_mapper("multiple_choice")(row)


def test_options_may_have_columns_of_any_name():
    row = {**QUESTION, **dict(zip(("1st", "2nd"), TEXTS, strict=False)), "answerKey": "B"}
    mapper = get_mapper("multiple_choice", row.keys(), option_columns=["1st", "2nd"])
    assert mapper(row)["solution"] == "B) the pancreas"
