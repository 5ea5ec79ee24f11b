"""Rejection sampling: each rule of ``keep`` alone, their order, and the files that are written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.selection import (
    Keep,
    evaluation_sets,
    n_grams,
    select,
    write,
)
from r1_recipes.generation import Completion
from r1_recipes.prompts import FORMATS
from r1_recipes.recipe.load import load_recipe

FMT = FORMATS["think_answer"]


def right(completions, **columns):
    """The first reward: a text says itself what it is, and "unknown" is not scored."""
    texts = [completion[0]["content"] for completion in completions]
    return [None if "unknown" in text else float("right" in text) for text in texts]


def commas(completions, **columns):
    return [float(completion[0]["content"].count(",")) for completion in completions]


def record(index, *completions, question=None, **columns):
    """A row, and its completions: texts, or a text with its tokens and whether it is finished."""
    question = question or f"What is {index} plus {index}?"
    prompt = [{"role": "user", "content": question}]
    made = [
        Completion(*one) if isinstance(one, tuple) else Completion(one, 10, True)
        for one in completions
    ]
    return {"question": question, "prompt": prompt, "solution": "4", **columns}, made


def selected(records, keep, rewards, weights=None):
    rules = Keep.parse(keep)
    held_out = evaluation_sets(rules.decontaminate, "huggingface")
    rows, made = zip(*records, strict=True)
    named = {reward.__name__: reward for reward in rewards}
    return select(rows, made, rules, FMT, named, weights, held_out)


def reasons(records, keep=None, rewards=(right,), weights=None):
    return [[one.reason for one in group] for _, group in selected(records, keep, rewards, weights)]


def test_wrong_ones_go_and_those_without_a_score_stay():
    found = reasons([record(0, "right", "wrong", "unknown")], {"correct": True})
    assert found == [[None, "wrong", None]]


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        ({"malformed": True}, "malformed"),
        ({"truncated": True}, "truncated"),
        ({"max_tokens": 99}, "too long"),
        ({"code": True}, "code"),
    ],
)
def test_filters(filters, reason):
    bad = {
        "malformed": "no tags",
        "truncated": (FMT.render("a", "4"), 9, False),
        "too long": (FMT.render("b", "4"), 100, True),
        "code": FMT.render("So:\n```python\nx = 1\n```", "4"),
    }
    found = reasons([record(0, FMT.render("fine", "4"), *bad.values())], {"filters": filters})
    assert found == [[None, *(name if name == reason else None for name in bad)]]


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [([0.5, 0.5], {0}), ([0.1, 0.9], {0, 3}), ([0, 1], {0, 1, 2, 3}), ([1, 1], {1})],
)
def test_pass_rate_is_of_all_completions_with_a_score(bounds, kept):
    records = [
        record(0, "right a", "wrong b", "unknown c"),
        record(1, "right a", "right b"),
        record(2, "wrong a"),
        record(3, "right a", "wrong b", "wrong c", "unknown"),
        record(4, "unknown"),
    ]
    found = reasons(records, {"pass_rate": bounds})
    assert {at for at, group in enumerate(found) if None in group} == kept


def test_best_of_ranks_by_correctness_then_the_other_rewards_then_length():
    long = ("right,,", 99, True)
    texts = ["wrong,,,", "unknown,,", "right", "right,", long, "right,, "]
    [found] = reasons([record(0, *texts)], {"best_of": 2}, (right, commas))
    assert [text for text, reason in zip(texts, found, strict=True) if not reason] == [
        long,
        "right,, ",
    ]
    [found] = reasons([record(0, *texts)], {"best_of": 2}, (right, commas), [1.0, -1.0])
    assert [at for at, reason in enumerate(found) if not reason] == [2, 3]
    [found] = reasons([record(0, "right", "right", "right b")], {"best_of": 2})
    assert found == [None, "equal completion", None]


def test_at_least_drops_what_a_reward_gives_less_or_nothing():
    keep = {"at_least": {"right": 1, "commas": 2}}
    [found] = reasons([record(0, "right,,", "right,", "unknown,,,")], keep, (right, commas))
    assert found == [None, "low score", "not scored"]


def test_equal_questions_are_kept_once():
    records = [
        record(0, "right", question="A  b?"),
        record(1, "right", question="A b?"),
        record(2, "right", question="A b?", prompt=[{"role": "user", "content": "C"}]),
        record(3, "wrong", question="D?"),
        record(4, "right", question="D?"),
    ]
    found = reasons(records, {"deduplicate": True, "correct": True})
    assert found == [[None], ["equal question"], [None], ["wrong"], [None]]


def test_questions_of_evaluation_sets_go(tmp_path):
    held = tmp_path / "held.jsonl"
    asked = "A baker fills four trays with six rolls each and sells nine."
    held.write_text(
        json.dumps({"problem": asked}) + "\n" + json.dumps({"problem": "1 + 2?"}) + "\n"
    )
    source = {"id": str(held), "column": "problem"}
    questions = {
        "Again: a BAKER fills four trays with six rolls each, today.": True,
        "A baker fills four trays with seven rolls each and sells nine.": False,
        "1 + 2?": True,
        "1 + 2 + 3?": False,
    }
    records = [record(at, "right", question=question) for at, question in enumerate(questions)]
    found = reasons(records, {"decontaminate": {"datasets": [source]}})
    assert found == [[f"in {held} (test)"] if goes else [None] for goes in questions.values()]
    with pytest.raises(RecipeError, match=r"decontaminate: .*held.jsonl: column: .* problem, got"):
        rules = {"decontaminate": {"datasets": [{"id": str(held)}]}}
        evaluation_sets(Keep.parse(rules).decontaminate, "")


@given(st.text(max_size=60))
def test_any_text_has_n_grams(text):
    assert n_grams(text, 3) == n_grams(f" {text}\n", 3)


def test_the_first_reason_that_applies_counts():
    keep = {"correct": True, "best_of": 1, "filters": {"malformed": True}, "pass_rate": [0, 0.5]}
    good = FMT.render("right", "4")
    records = [
        record(0, "right", good, FMT.render("wrong", "4"), FMT.render("wrong", "5")),
        record(1, good, FMT.render("right", "5")),
        record(2, ("", 0, False)),  # a server refused it
    ]
    assert reasons(records, keep) == [
        ["malformed", None, "wrong", "wrong"],
        ["pass rate", "pass rate"],
        ["refused"],
    ]
    assert reasons(records[2:]) == [["refused"]]


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"best_of": 0}, "keep: best_of: must be a whole number of 1 or more, got 0"),
        ({"pass_rate": [0.9, 0.1]}, r"keep: pass_rate: must be two shares from 0 to 1"),
        ({"output": "pairs"}, "keep: output: must be completions or prompts, got 'pairs'"),
        (
            {"at_least": {"fromat": 1}},
            r"keep: at_least: must be scores of rewards in .*'format'.*, got {'fromat': 1}",
        ),
    ],
)
def test_a_wrong_rule_is_named_before_anything_is_generated(tmp_path, keep, message):
    path = tmp_path / "recipe.yaml"
    keys = {"model_name_or_path": "m", "dataset_name": "d.jsonl", "mapper": "gsm8k", "keep": keep}
    keys |= {"reward_funcs": ["accuracy", "format"], "output_dir": "out", "use_cpu": True}
    path.write_text(json.dumps(keys))
    with pytest.raises(RecipeError, match=message):
        load_recipe([str(path)], "generate")


def written(folder, records, keep=None):
    groups = selected(records, keep, [right, commas])
    title, settings = "mine", {"seed": 1, "keep": keep}
    output = Keep.parse(keep).output
    return write(groups, FMT, output, folder / "dataset", title=title, settings=settings)


def test_the_files_of_a_data_set(tmp_path):
    good = FMT.render("right,", "4")
    records = [
        record(0, good, "wrong", level="2024-01-01", response="theirs"),
        record(1, "right \ud800", "unknown", level=None, response=None),
    ]
    table = written(tmp_path, records, {"correct": True, "best_of": 1})
    assert table.splitlines()[2:] == [
        "| generated | 4 | 2 |",
        "| not among the best | 1 | 1 |",
        "| wrong | 1 | 1 |",
        "| kept | 2 | 2 |",
    ]
    rows = [
        json.loads(line) for line in (tmp_path / "dataset/train.jsonl").read_text().splitlines()
    ]
    assert rows[0] == {
        "question": "What is 0 plus 0?",
        "response": good,
        "solution": "4",
        "level": "2024-01-01",
        "pass_rate": 0.5,
        "tokens": 10,
        "scores": '{"right": 1.0, "commas": 1.0}',
    }
    assert "right" in rows[1]["response"] and len(rows) == 2
    verdicts = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert [verdict["reason"] for verdict in verdicts] == [
        None,
        "wrong",
        None,
        "not among the best",
    ]
    assert '"seed": 1' in (tmp_path / "dataset/README.md").read_text()
    read = load_rows(str(tmp_path / "dataset"), "train")
    assert (
        str(read["level"][0]).startswith("2024-01-01")
        and read["level"][1] is None
        and read["question"][0] == rows[0]["question"]
    )


def test_a_later_selection_replaces_an_earlier_one(tmp_path):
    written(tmp_path, [record(0, "right", "wrong")])
    written(tmp_path, [record(0, "right", "wrong")], {"output": "prompts", "pass_rate": [0, 1]})
    [line] = (tmp_path / "dataset/train.jsonl").read_text().splitlines()
    assert json.loads(line) == {"question": "What is 0 plus 0?", "solution": "4", "pass_rate": 0.5}


def test_nothing_left_is_an_error_that_shows_why(tmp_path):
    with pytest.raises(RecipeError, match=r"all 1 completions were dropped:\n(.*\n)*\| wrong \| 1"):
        written(tmp_path, [record(0, "wrong")], {"correct": True})
    assert not (tmp_path / "dataset/train.jsonl").exists()
    assert "wrong" in (tmp_path / "verdicts.jsonl").read_text()
