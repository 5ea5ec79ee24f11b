"""Rows that reasoning-gym draws: distinct, stable, and disjoint by split."""

import json
import sys

import pytest

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper, load_rows
from r1_recipes.extras.reasoning_gym.rows import reasoning_gym_rows
from tests.core.data.test_sources import as_list


def gym_config(train=40, test=10, **keys):
    return {"train": {"size": train, "seed": 1}, "test": {"size": test, "seed": 1}, **keys}


@pytest.mark.parametrize(
    ("task", "config"),
    [
        # 2 x 90 two-digit sums and differences of 10..19: the splits draw on the same seed, and
        # still share nothing.
        ("chain_sum", gym_config(min_terms=2, max_terms=2, min_digits=1, max_digits=1)),
        ("gcd", gym_config()),
        ("spell_backward", gym_config()),
        ("countdown", gym_config(train=6, test=3)),
    ],
)
def test_train_and_test_of_a_task_are_disjoint_and_stable(task, config):
    train, test = (
        load_rows(f"reasoning_gym:{task}", split, task_config=config) for split in ("train", "test")
    )
    assert (len(train), len(test)) == (config["train"]["size"], config["test"]["size"])
    questions = [row["question"] for row in (*train, *test)]
    assert len(set(questions)) == len(questions)
    assert as_list(reasoning_gym_rows(task, "train", config)) == as_list(train)
    mapper = get_mapper("auto", train.column_names)
    golds = [mapper(row) for row in test]
    assert verification.score(
        [row["scorer"] for row in golds], [row["solution"] for row in golds]
    ) == [True] * len(golds)
    assert not any(verification.score([row["scorer"] for row in golds], ["no answer"] * len(golds)))


def test_another_seed_is_another_draw():
    # reasoning-gym draws question i from seed + i: neighbouring seeds are one stream, distant ones
    # are not.
    first, second = (
        set(
            reasoning_gym_rows(
                "chain_sum", "train", {**gym_config(), "train": {"size": 40, "seed": seed}}
            )["question"]
        )
        for seed in (1, 10**6)
    )
    assert not first & second


def test_a_split_has_keys_of_its_own():
    config = gym_config(min_terms=2, max_terms=2)
    config["test"] |= {"min_terms": 5, "max_terms": 5}
    terms = {
        split: {
            len(json.loads(row["metadata"])["expression"].split())
            for row in reasoning_gym_rows("chain_sum", split, config)
        }
        for split in ("train", "test")
    }
    assert terms == {"train": {3}, "test": {9}}  # n terms and the signs between them


@pytest.mark.parametrize(
    ("task", "config", "parts"),
    [
        ("chain_sums", gym_config(), ["unknown reasoning_gym task 'chain_sums'", "'chain_sum'"]),
        ("chain_sum", gym_config(min_term=2), ["task_config of 'chain_sum'", "min_term"]),
        ("chain_sum", gym_config(min_terms=5, max_terms=2), ["task_config of 'chain_sum'"]),
        (
            "chain_sum",
            {"train": {"size": 3, "seed": 0}},
            ["task_config: test: size: must be a whole number, at least 1, got None"],
        ),
        (
            "chain_sum",
            {"train": {"size": 3}, "test": {"size": 3, "seed": 0}},
            ["task_config: train: seed: must be a whole number"],
        ),
        (
            "chain_sum",
            {"train": {"size": "many", "seed": 0}, "test": {"size": 3, "seed": 0}},
            ["task_config: train: size", "'many'"],
        ),
        ("chain_sum", gym_config(test=0), ["task_config: test: size", "0"]),
        # One-digit sums of two terms: 9 x 9 x 2 questions at most.
        (
            "chain_sum",
            gym_config(train=500, min_terms=2, max_terms=2, min_digits=1, max_digits=1),
            [
                "task_config: train: size: there are only ",
                "distinct questions of 'chain_sum', not 500",
            ],
        ),
    ],
)
def test_a_task_that_cannot_be_drawn(task, config, parts):
    with pytest.raises(RecipeError) as error:
        reasoning_gym_rows(task, "train", config)
    for part in parts:
        assert part in str(error.value)


def test_a_task_has_two_splits_only():
    with pytest.raises(RecipeError, match="split 'dev': questions of 'chain_sum' have only"):
        reasoning_gym_rows("chain_sum", "dev", gym_config())


def test_without_reasoning_gym_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(RecipeError, match=r"-e '.\[demo\]'"):
        reasoning_gym_rows("chain_sum", "train", gym_config())
