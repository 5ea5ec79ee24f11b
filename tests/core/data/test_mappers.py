"""The mappers: what each makes of its example rows, and why it leaves a row out."""

import io
import sys

import pytest
from datasets import Dataset
from PIL import Image as Pillow

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import MAPPERS, SkipRow, get_mapper, load_dataset
from r1_recipes.data.mappers import example_rows
from r1_recipes.prompts import get_response_format
from tests.core.data.test_load import arguments

VERL_ROW = example_rows("verl")[0]


# Chats have no gold; the others' are words, or programs.
NO_MATHEMATICS = {
    "environment",
    "preference",
    "safe_rlhf",
    "conversations",
    "prompt_completion",
    "reasoning_columns",
    "r1_distill_sft",
    "medical_verifiable",
    "summary",
    "verifiable_code",
}
CALL = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


@pytest.mark.parametrize("name", MAPPERS)
def test_every_mapper_maps_its_own_examples(name):
    rows = example_rows(name)
    assert len(rows) >= 2 or name == "generated"  # which reads what generate wrote
    for row in rows:
        mapped = get_mapper(name, list(row))(row)
        assert mapped.get("turns") or (isinstance(mapped["question"], str) and mapped["question"])
        if name != "environment":  # which judges itself
            assert any(mapped.get(key) for key in ("solution", "response", "nums", "turns"))
        if name not in NO_MATHEMATICS:
            gold = mapped["solution"]
            assert not gold or verification.grade([gold], [gold]) == [True]


# What each mapper cannot work without: one column less than it needs, and what the error calls it.
LACKING = [
    (name, group.split("|"))
    for name in MAPPERS
    for group in getattr(MAPPERS[name], "columns", ())
    if name != "generated"
]


@pytest.mark.parametrize(("name", "alternatives"), LACKING)
def test_a_missing_column_is_refused_by_name(name, alternatives):
    row = {key: cell for key, cell in example_rows(name)[0].items() if key not in alternatives}
    rows = Dataset.from_list([row or {"other": 1}])
    method = "reward" if name in ("preference", "safe_rlhf") else "grpo"
    with pytest.raises(RecipeError) as error:
        load_dataset(arguments(mapper=name), get_response_format("think_answer"), method, rows=rows)
    said = str(error.value)
    assert all(repr(column) in said for column in alternatives) and "the source has" in said


def test_gsm8k_drops_thousands_commas_and_calculator_marks():
    row = {
        "question": "  A shop sells 40 crates of 30 lamps. How many? ",
        "answer": "One holds 30.\n40*30=<<40*30=1200>>1200 in all.\n#### 1,200",
    }
    assert get_mapper("gsm8k")(row) == {
        "question": "A shop sells 40 crates of 30 lamps. How many?",
        "solution": "1200",
        "reasoning": "One holds 30.\n40*30=1200 in all.",
    }


def test_gsm8k_takes_what_follows_the_last_mark():
    assert get_mapper("gsm8k")({"question": "q", "answer": "a #### 1 b\n#### 2"})["solution"] == "2"


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        (
            "gsm8k",
            {"question": "q", "answer": "no mark here"},
            "no '#### NUMBER' in column 'answer'",
        ),
        ("preference", {"chosen": "a", "rejected": "b"}, "no user message before the answer"),
        (
            "preference",
            {"prompt": "q", "chosen": "a", "rejected": "a"},
            "chosen and rejected must be different answers to the same conversation",
        ),
        (
            "preference",
            {"prompt": "q", "chosen": "a", "rejected": None},
            "column 'rejected' is empty",
        ),
        (
            "safe_rlhf",
            {"prompt": "q", "response_0": "a", "response_1": "b", "safer_response_id": 2},
            "column 'safer_response_id' is neither 0 nor 1",
        ),
        (
            "safe_rlhf",
            {"prompt": "q", "response_0": "a", "response_1": "", "safer_response_id": 0},
            "column 'response_1' is empty",
        ),
        (
            "gsm8k",
            {"question": "q", "answer": "steps ####  "},
            "no '#### NUMBER' in column 'answer'",
        ),
        ("gsm8k", {"question": "q", "answer": None}, "column 'answer' is empty"),
        ("gsm8k", {"question": " \n", "answer": "#### 1"}, "column 'question' is empty"),
        (
            "math",
            {"problem": "p", "solution": "no box", "answer": ""},
            "no reference answer in column 'answer' and no \\boxed{} in 'solution'",
        ),
        ("math", {"problem": None, "answer": "1"}, "column 'problem' is empty"),
        ("prompt_solution", {"prompt": "", "solution": "1"}, "column 'prompt' is empty"),
        (
            "countdown",
            {"nums": [7, 4], "target": None},
            "columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more",
        ),
        (
            "countdown",
            {"nums": None, "target": 3},
            "columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more",
        ),
        (
            "countdown",
            {"nums": [7, -4], "target": 3},
            "columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more",
        ),
        (
            "countdown",
            {"nums": [7, 4], "target": 11, "expression": "7 - 4"},
            "column 'expression' does not make the target from 'nums'",
        ),
        ("verl", {**VERL_ROW, "data_source": None}, "column 'data_source' is empty"),
        ("verl", {**VERL_ROW, "prompt": []}, "column 'prompt' is empty"),
    ],
)
def test_a_row_without_what_is_needed_says_why(name, row, reason):
    with pytest.raises(SkipRow) as skipped:
        get_mapper(name)(row)
    assert str(skipped.value) == reason


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"solution": "So $x=\\boxed{\\frac{1}{\\sqrt{2}}}$."}, "\\frac{1}{\\sqrt{2}}"),
        ({"solution": "\\boxed{1}, no: \\boxed{ 2 }"}, "2"),
        ({"solution": "worked, \\boxed{9}", "answer": "8"}, "8"),  # the answer column wins
        ({"solution": "worked, \\boxed{9}", "answer": None}, "9"),
        ({"solution": "none", "answer": 0}, "0"),  # numbers are golds too, zero included
        ({"answer": "The result is $\\boxed{(1,2)}$."}, "(1,2)"),
        ({"solution": "open \\boxed{3", "answer": "025"}, "025"),
    ],
)
def test_math_gold(row, gold):
    assert get_mapper("math")({"problem": "p", **row})["solution"] == gold


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (["question", "answer"], "gsm8k"),
        (["problem", "level", "solution", "type"], "math"),
        (["id", "problem", "answer"], "math"),
        (["prompt", "solution"], "prompt_solution"),
        (["problem", "solution", "messages"], "math"),  # NuminaMath-TIR: what has a gold goes first
        (["messages", "num_tokens", "source"], "conversations"),  # Mixture-of-Thoughts
        (["system", "conversations"], "conversations"),  # OpenThoughts
        (["question", "pass_rate", "solution"], "generated"),  # prompt-only
        (["id", "problem", "answer", "url", "year"], "math"),  # AIME
        (
            ["id", "reannotated_assistant_content", "source", "reannotated_messages", "messages"],
            "r1_distill_sft",
        ),  # v1
        (["problem", "deepseek_reasoning", "deepseek_solution", "domain"], "openthoughts"),
        (
            ["data_source", "prompt", "ability", "reward_model", "extra_info"],
            "verl",
        ),  # the original DAPO set, too
        # Generated from gsm8k's rows, whose columns stay beside ours.
        (
            ["question", "answer", "pass_rate", "response", "solution", "tokens", "scores"],
            "generated",
        ),
        (["nums", "target"], "countdown"),  # Countdown-Tasks-3to4
        (
            ["target", "nums", "data_source", "prompt", "ability", "reward_model", "extra_info"],
            "verl",
        ),  # TinyZero keeps the raw columns
    ],
)
def test_auto_finds_the_mapper_by_its_columns(columns, name):
    assert get_mapper("auto", columns).func is MAPPERS[name]


def test_conversations_reads_both_schemas_alike():
    from_value = [{"from": "human", "value": "2+2?"}, {"from": "GPT ", "value": "4"}]
    wanted = {"question": "2+2?", "response": "4", "messages": CALL[:1], "well_formed": True}
    assert get_mapper("conversations")({"messages": CALL}) == wanted
    assert get_mapper("conversations")({"conversations": from_value, "system": None}) == wanted
    assert get_mapper("conversations")({"conversations": from_value, "messages": None}) == wanted
    assert get_mapper("conversations", well_formed=False)(
        {"messages": CALL, "conversations": []}
    ) == {**wanted, "well_formed": False}


def test_generated_reads_what_generate_writes():
    row = {
        "question": "q",
        "response": " text\n",
        "solution": 4,
        "task": "sums",
        "pass_rate": 0.5,
        "tokens": 3,
        "scores": {},
    }
    mapped = {
        "question": "q",
        "response": " text\n",
        "solution": "4",
        "task": "sums",
        "well_formed": True,
    }
    assert get_mapper("generated")(row) == mapped
    # Prompt-only data has no response, and general data no gold.
    assert get_mapper("generated", well_formed=False)({"question": "q"}) == {
        "question": "q",
        "solution": "",
        "well_formed": False,
    }
    assert get_mapper("generated")({"question": "q", "response": None})["response"] == ""


def verl_row(truth, prompt=None, source="yolo/multiply-3_digit"):
    prompt = prompt or [{"role": "user", "content": " 12*34?\n<think>"}]
    return {
        "data_source": source,
        "prompt": prompt,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
    }


@pytest.mark.parametrize(
    ("truth", "solution"),
    [(408, "408"), (0, "0"), (" 408 ", "408"), ("\\frac{1}{2}", "\\frac{1}{2}"), (0.5, "0.5")],
)
def test_verl_takes_plain_ground_truths_as_solutions(truth, solution):
    mapped = {
        "question": " 12*34?\n<think>",
        "task": "yolo/multiply-3_digit",
        "solution": solution,
    }  # the question verbatim
    assert get_mapper("verl")(verl_row(truth)) == mapped


def test_a_mapper_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "own_mapper_file.py").write_text(
        "def own(row, suffix=''):\n"
        "    return {'question': row['q'] + suffix, 'solution': row['a']}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    mapper = get_mapper("own_mapper_file:own", suffix="?")
    assert mapper({"q": "1+1", "a": "2"}) == {"question": "1+1?", "solution": "2"}
    with pytest.raises(RecipeError, match="own"):
        get_mapper("own_mapper_file:onw")
    with pytest.raises(RecipeError, match="no_such_file"):
        get_mapper("no_such_file:Own")
    sys.modules.pop("own_mapper_file", None)


def _said(role, words):
    return {"role": role, "content": words}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Rain?", "chosen": "Water.", "rejected": "No."},
        {
            "prompt": [_said("user", "Rain?")],
            "chosen": [_said("assistant", "Water.")],
            "rejected": [_said("assistant", "No.")],
        },
        # The whole conversation on both sides; Zephyr's UltraFeedback has its prompt beside it,
        # too.
        {
            "chosen": [_said("user", "Rain?"), _said("assistant", "Water.")],
            "rejected": [_said("user", "Rain?"), _said("assistant", "No.")],
        },
        {
            "prompt": "Rain?",
            "chosen": [_said("user", "Rain?"), _said("assistant", "Water.")],
            "rejected": [_said("user", "Rain?"), _said("assistant", "No.")],
        },
    ],
)
def test_preference_pairs_of_every_shape(row):
    mapped = get_mapper("preference")(row)
    assert (mapped["question"], mapped["response"], mapped["rejected"]) == (
        "Rain?",
        "Water.",
        "No.",
    )
    assert mapped["messages"] == [_said("user", "Rain?")]


def picture(width=4, height=3, mode="RGB"):
    return Pillow.new(mode, (width, height))


def png(image):
    sink = io.BytesIO()
    image.save(sink, format="PNG")
    return sink.getvalue()


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (None, "column 'image' is empty"),
        ("a path", "column 'image' is not a picture"),
        ({"bytes": None, "path": "x.png"}, "column 'image' is not a picture"),
        ({"bytes": b"not a picture", "path": None}, "the picture in column 'image' cannot be read"),
        (
            {"bytes": png(picture(64, 64))[:60], "path": None},
            "the picture in column 'image' cannot be read",
        ),
        (picture(801, 4), "the picture in column 'image' is more than 200 times as long as wide"),
    ],
)
def test_a_picture_that_cannot_be_used_says_why(image, reason):
    with pytest.raises(SkipRow) as skipped:
        get_mapper("image_question")({**example_rows("image_question")[0], "image": image})
    assert str(skipped.value) == reason
