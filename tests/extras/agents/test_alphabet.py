"""The names that alphabet_sort draws, what it asks for, and what a submitted list scores."""

from random import Random

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.agents.guard import Limits, ToolError
from r1_recipes.extras.agents.registry import ENVIRONMENTS, build_environments

ADDED = [["Cora Dunn", "Abel Zorn"], ["Bela Amin"], ["Dora Bond"]]


def play(lists, by="first", added=ADDED, power=4):
    make = build_environments("alphabet_sort", {"alphabet_sort_power": power}, Limits())[None]
    game = make()
    game.reset(by=by, added=added, question="?", environment="alphabet_sort")
    return [game.submit(names) for names in lists], game.get_reward()


RIGHT = {
    "first": [
        ["Abel Zorn", "Cora Dunn"],
        ["Abel Zorn", "Bela Amin // new name!", "Cora Dunn"],
        ["Abel Zorn", "Bela Amin", "Cora Dunn", "Dora Bond // new name!"],
    ],
    "last": [
        ["Cora Dunn", "Abel Zorn"],
        ["Bela Amin // new name!", "Cora Dunn", "Abel Zorn"],
        ["Bela Amin", "Dora Bond // new name!", "Cora Dunn", "Abel Zorn"],
    ],
}


@pytest.mark.parametrize("by", RIGHT)
def test_right_lists_score_1_and_each_message_names_what_is_added(by):
    said, reward = play(RIGHT[by], by)
    assert reward == 1.0
    assert "Bela Amin" in said[0] and "Dora Bond" in said[1] and f"by {by} name" in said[0]
    assert "Cora" not in said[0] and "All lists are in" in said[2]


def test_a_list_after_the_last_one_changes_nothing():
    assert play([*RIGHT["first"], ["x"]])[1] == 1.0


def test_case_and_spaces_around_a_name_do_not_count():
    lists = [[f" {name.upper()} " for name in names] for names in RIGHT["first"]]
    assert play(lists)[1] == 1.0


@pytest.mark.parametrize(
    "lists",
    [
        [],
        RIGHT["first"][:2],  # the last list is missing
        [RIGHT["first"][0][::-1], *RIGHT["first"][1:]],
        [[name.removesuffix(" // new name!") for name in names] for names in RIGHT["first"]],
        [[], [], []],
    ],
)
def test_whatever_is_not_right_scores_less_than_1(lists):
    assert 0.0 <= play(lists)[1] < 1.0


def test_a_missing_list_counts_as_nothing_and_the_power_is_taken_last():
    assert play(RIGHT["first"][:2], power=1)[1] == pytest.approx(2 / 3)
    assert play(RIGHT["first"][:2], power=4)[1] == pytest.approx((2 / 3) ** 4)


@pytest.mark.parametrize(
    "names", [None, 7, "Abel Zorn\nCora Dunn", '["Abel Zorn", "Cora Dunn"]', {}]
)
def test_what_is_no_list_is_an_error_that_the_model_reads_and_may_mend(names):
    make = build_environments("alphabet_sort", {}, Limits())[None]
    game = make()
    game.reset(by="first", added=ADDED, question="?")
    with pytest.raises(ToolError):
        game.submit(names)
    for right in RIGHT["first"]:
        game.submit(right)
    assert game.get_reward() == 1.0


def test_an_endless_list_scores_nothing():
    assert play([["Abel Zorn"] * 10_000] * 3)[1] == 0.0


def test_rows_have_the_lengths_of_task_config_and_one_right_order():
    draw = ENVIRONMENTS["alphabet_sort"].draw
    for seed in range(200):
        row = draw(Random(seed), min_turns=2, max_turns=4, max_names=3)
        assert 2 <= len(row["added"]) <= 4
        assert all(1 <= len(names) <= 3 for names in row["added"])
        names = [name.split(" ") for added in row["added"] for name in added]
        for part in zip(*names, strict=True):
            assert len(set(part)) == len(part)
        assert all(name in row["question"] for name in row["added"][0])
        assert row["by"] in row["question"]
    assert draw(Random(5)) == draw(Random(5)) != draw(Random(6))


@pytest.mark.parametrize(
    "keys",
    [{"min_turns": 0}, {"max_turns": 2}, {"max_names": 0}, {"max_turns": 16, "max_names": 10}],
)
def test_bounds_that_cannot_be_drawn_are_refused_for_every_seed(keys):
    for seed in range(5):
        with pytest.raises(ValueError, match="min_turns"):
            ENVIRONMENTS["alphabet_sort"].draw(Random(seed), **keys)


def test_a_power_that_pays_for_worse_lists_is_refused():
    for power in (0, -4):
        with pytest.raises(RecipeError, match="alphabet_sort_power"):
            play([], power=power)
