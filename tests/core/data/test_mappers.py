"""What each mapper makes of a row, what it cannot use and why, and how ``auto`` chooses."""

from typing import Any

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import MAPPERS, SkipRow, get_mapper
from r1_recipes.data.mappers import example_rows

CALL = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
VERL = {"data_source": "x", "prompt": CALL[:1], "reward_model": {"ground_truth": "4"}}


@pytest.mark.parametrize("name", MAPPERS)
def test_every_mapper_maps_its_own_examples(name: str) -> None:
    rows = example_rows(name)
    assert len(rows) >= 2 or name == "generated"
    for row in rows:
        mapped = get_mapper(name, list(row))(row)
        assert mapped["question"].strip() and isinstance(mapped.get("solution", ""), str)


MAPPED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("gsm8k", {}, {"question": "q", "answer": "#### (1,2)"}, {"solution": "(1,2)"}),
    ("math", {}, {"problem": "p", "solution": "\\boxed{9}", "answer": None}, {"solution": "9"}),
    ("math", {}, {"problem": "p", "solution": "none", "answer": 0}, {"solution": "0"}),
    ("prompt_solution", {}, {"prompt": "p", "solution": "#N/A"}, {"solution": ""}),
    ("math", {}, {"problem": "p", "answer": "It is $\\boxed{(1,2)}$."}, {"solution": "(1,2)"}),
    ("math", {}, {"problem": "p", "answer": "\\boxed{1}, no, \\boxed{2}"}, {"solution": "2"}),
    (
        "generated",
        {},
        {"question": "q", "response": " text\n", "solution": 4, "task": None, "pass_rate": 0.5},
        {"response": " text\n", "solution": "4", "task": "", "well_formed": True},
    ),
    (
        "generated",
        {"well_formed": False},
        {"question": "q", "pass_rate": 1, "solution": "", "earlier_messages": CALL},
        {"messages": [*CALL, {"role": "user", "content": "q"}], "well_formed": False},
    ),
    ("verl", {}, {**VERL, "reward_model": {"ground_truth": 0.5}}, {"solution": "0.5", "task": "x"}),
    (
        "multiple_choice",
        {},
        {"question": "Why?", "options": {"A": "x", "B": None, "C": "y"}, "answer_idx": "C"},
        {"question": "Why?\nA) x\nB) y", "solution": "B) y"},
    ),
    (
        "multiple_choice",
        {"first": 1},
        {"question": "Why?", "opa": "x", "opb": "D", "opc": "z", "opd": "w", "cop": 2},
        {"solution": "B"},
    ),
    (
        "multiple_choice",
        {"answer_is": "text"},
        {"question": "Why?", "choices": ["x", "y"], "answer": "Y"},
        {"solution": "B) y"},
    ),
]


@pytest.mark.parametrize(("name", "config", "row", "mapped"), MAPPED)
def test_what_a_row_becomes(
    name: str, config: dict[str, Any], row: dict[str, Any], mapped: dict[str, Any]
) -> None:
    made = get_mapper(name, list(row), **config)(row)
    assert {key: made[key] for key in mapped} == mapped


SKIPPED = [
    ("gsm8k", {"question": "q", "answer": "no mark"}, "no '#### NUMBER' in column 'answer'"),
    ("math", {"problem": "p", "solution": "no box"}, "no reference answer in column 'answer'"),
    ("math", {"problem": "p", "answer": "proof"}, "a proof"),
    ("prompt_solution", {"prompt": "", "solution": "1"}, "column 'prompt' is empty"),
    ("conversations", {"messages": CALL[:1]}, "no assistant message"),
    ("conversations", {"messages": CALL[1:]}, "no message of the user"),
    ("preference", {"chosen": "a", "rejected": "b"}, "no message of the user"),
    ("preference", {"prompt": "q", "chosen": "a", "rejected": "a"}, "must be different answers"),
    ("preference", {"prompt": "q", "chosen": "a", "rejected": None}, "'rejected' is empty"),
    (
        "preference",
        {"prompt": "other", "chosen": CALL, "rejected": CALL},
        "column 'chosen' does not start with column 'prompt'",
    ),
    ("verl", {**VERL, "prompt": []}, "column 'prompt' is empty"),
    ("multiple_choice", {"question": "q", "choices": ["a", "b"], "answer": 2}, "mapper_config"),
    ("verifiable_code", {"problem": "p", "verification_info": {}}, "has no test_cases"),
]


@pytest.mark.parametrize(("name", "row", "reason"), SKIPPED)
def test_a_row_that_cannot_be_used_says_why(name: str, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(SkipRow) as skipped:
        get_mapper(name)(row)
    assert reason in str(skipped.value)


CHOSEN = {
    "gsm8k": ["question", "answer"],
    "math": ["problem", "solution", "messages"],  # NuminaMath-TIR
    "prompt_solution": ["prompt", "solution"],
    "conversations": ["system", "conversations"],
    # generate keeps the columns of its source
    "generated": ["question", "answer", "pass_rate", "response", "solution", "tokens", "scores"],
    "r1_distill_sft": ["id", "reannotated_assistant_content", "reannotated_messages", "messages"],
    "openthoughts": ["problem", "deepseek_reasoning", "deepseek_solution", "domain"],
    # TinyZero's keeps the raw columns
    "verl": ["target", "nums", "data_source", "prompt", "ability", "reward_model", "extra_info"],
    "countdown": ["nums", "target"],
    "preference": ["prompt", "chosen", "rejected"],
    "alpaca": ["instruction", "input", "output"],
    "prompt_completion": ["prompt", "completion"],
    "multiple_choice": ["id", "question", "choices", "answerKey"],
}


@pytest.mark.parametrize("name", CHOSEN)
def test_auto_finds_the_mapper_by_its_columns(name: str) -> None:
    mapper: Any = get_mapper("auto", CHOSEN[name])
    assert mapper.func is MAPPERS[name]


def test_columns_that_no_mapper_knows_are_named() -> None:
    with pytest.raises(RecipeError, match=r"no mapper fits the columns q, a. Fix: name one of"):
        get_mapper("auto", ["q", "a"])


@pytest.mark.parametrize("image", [None, {"bytes": b"not a picture", "path": None}])
def test_a_picture_that_cannot_be_read_says_so(image: Any) -> None:
    row = {**example_rows("image_question")[0], "image": image}
    with pytest.raises(SkipRow, match="column 'image' cannot be read"):
        get_mapper("image_question")(row)
