"""Rows of environments: whatever ``draw`` or a file has reaches ``reset``."""

import json
import sys
import types

import pytest

from r1_recipes.data.load import load_dataset
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe

CONFIG = {"train": {"size": 6, "seed": 1}, "test": {"size": 2, "seed": 2}}


class Sums:
    @classmethod
    def draw(cls, rng):
        n = rng.randrange(1000)
        row = {
            "question": f"{n}?",
            "problem": "secret",
            "answer": n,
            "solution": str(n),
            "board": {str(n): 1},
            "mixed": n if n % 2 else "x",
        }
        return row | ({"hint": n} if n % 2 else {})

    def reset(self, **row):
        """Begin."""

    def get_reward(self):
        return 1.0


@pytest.fixture
def rows(tmp_path, monkeypatch):
    module = types.ModuleType("game_of_rows")
    module.Sums = Sums
    monkeypatch.setitem(sys.modules, "game_of_rows", module)

    def load(**keys):
        path = tmp_path / "recipe.yaml"
        keys = {
            "model_name_or_path": "m",
            "output_dir": "o",
            "environment": "game_of_rows:Sums",
            **keys,
        }
        path.write_text(json.dumps(keys), encoding="utf-8")
        script = load_recipe([str(path)], "grpo").script
        return list(load_dataset(script, get_response_format(script.response_format), "grpo")[0])

    return load


def test_what_draw_gives_reaches_reset(rows):
    drawn = rows(dataset_name="environment:game_of_rows:Sums", task_config=CONFIG)
    for row in drawn:
        n = row["answer"]
        assert row["prompt"][-1]["content"] == f"{n}?" and row["environment"] == "game_of_rows:Sums"
        assert (row["solution"], row["board"], row["hint"]) == (
            str(n),
            {str(n): 1},
            n if n % 2 else None,
        )
    assert {row["hint"] is None for row in drawn} == {True, False}
