"""Episodes that TRL's trainer plays for ``evaluate``: calls, the environment's reward, sampling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.load import load_dataset
from r1_recipes.extras.agents.episodes import EpisodeGenerator
from r1_recipes.generation import load_format
from r1_recipes.recipe import load_recipe

pytestmark = pytest.mark.slow


@pytest.fixture
def played(write_recipe: Callable[..., str], caller: Path) -> Callable:
    """``played("transformers")``: a game of guessing, its rows, and a generator of its episodes."""

    def load(backend: str, **changes):
        keys = {
            "model_name_or_path": str(caller),
            "dataset_name": "environment:tests.support.callers:Game",
            "mapper": "environment",
            "environment": "tests.support.callers:Game",
            "task_config": {"train": {"size": 6, "seed": 0}, "test": {"size": 1, "seed": 1}},
            "reward_funcs": ["format"],
            "max_completion_length": 40,
        }
        recipe = load_recipe([write_recipe("grpo", **keys, **changes)], "grpo")
        tokenizer, fmt = load_format(recipe, "transformers")
        rows, _ = load_dataset(recipe.script, fmt, "grpo")
        return EpisodeGenerator(recipe, tokenizer, backend, rows), rows

    return load


def test_an_environment_is_played_and_scores(played: Callable) -> None:
    generate, rows = played("transformers")
    greedy, again, sampled = generate(rows, 0.0, 1), generate(rows, 0.0, 1), generate(rows, 2.0, 3)
    assert greedy == again and [len(group) for group in sampled] == [3] * len(rows)
    assert {one.reward for group in greedy + sampled for one in group} <= {0.0, 1.0}
    assert any(len({str(one.turns) for one in group}) > 1 for group in sampled)
    called = [one for group in greedy + sampled for one in group if len(one.turns) > 1]
    assert called and called[0].turns[0]["tool_calls"][0]["function"]["name"] == "guess"
    assert {turn["role"] for one in called for turn in one.turns} == {"assistant", "tool"}
    for one in called:
        last = one.turns[-1]
        assert one.text == ((last["content"] or "") if last["role"] == "assistant" else "")
        # Every row was reset with its own number: the game answers to that.
        results = [turn["content"] for turn in one.turns if turn["role"] == "tool"]
        assert one.reward == float(results[-1].startswith("Right"))


def test_calls_beyond_the_limit_are_not_answered(played: Callable) -> None:
    generate, rows = played("transformers", max_tool_calling_iterations=1)
    for group in generate(rows, 1.0, 2):
        assert all(sum(turn["role"] == "tool" for turn in one.turns) <= 1 for one in group)


def test_a_server_cannot_play(played: Callable) -> None:
    with pytest.raises(RecipeError, match=r"backend: openai: .* needs the weights. Fix: "):
        played("openai")
