"""Rows of environments: whatever ``draw`` or a file has reaches ``reset``."""

import json
import sys
import types

import pytest

from r1_recipes.common.errors import RecipeError
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


class Words(Sums):
    @classmethod
    def draw(cls, rng):
        return {"question": "A word?", "word": str(rng.random())}


class Paid(Words):
    """Named as another class."""


@pytest.fixture
def rows(tmp_path, monkeypatch):
    module = types.ModuleType("game_of_rows")
    module.Sums, module.Words = Sums, Words
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


def test_a_mixture_keeps_the_columns_of_each_environment(rows):
    names = ["game_of_rows:Sums", "game_of_rows:Words"]
    parts = [{"id": f"environment:{name}", "task_config": CONFIG} for name in names]
    made = rows(environment={name: name for name in names}, dataset_mixture={"datasets": parts})
    assert all((row["answer"] is None) != (row["word"] is None) for row in made)


def test_a_file_needs_a_question_alone(rows, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"question": "?", "letter": "a", "solution": 7}\n', encoding="utf-8"
    )
    [row] = rows(dataset_name=str(tmp_path / "rows.jsonl"), mapper="environment")
    assert (row["letter"], row["solution"]) == ("a", "7")


@pytest.mark.parametrize("name", ["b", ""])
def test_a_row_of_no_environment_is_refused(rows, tmp_path, name):
    lines = [json.dumps({"question": "?", "environment": one}) for one in ("a", name)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(
        RecipeError,
        match=f"environment: row 1: column 'environment' must be one of a, got '{name}'",
    ):
        rows(
            dataset_name=str(tmp_path / "rows.jsonl"),
            mapper="environment",
            environment={"a": "game_of_rows:Sums"},
        )


class Odd(Sums):
    drawn = None

    @classmethod
    def draw(cls, rng, size=9):
        if isinstance(cls.drawn, BaseException):
            raise cls.drawn
        return cls.drawn


class Unpaid:
    reset, draw = Sums.reset, Sums.draw


@pytest.mark.parametrize(
    ("drawn", "problem"),
    [
        (
            None,
            r"draw \(.*test_rows\.py:\d+\): must return a dict with a 'question', got None\. "
            r"Fix: return \{'question'",
        ),
        (
            {"frage": "1+1?"},
            r"draw \(.*test_rows\.py:\d+\): must return a dict with a 'question', got \{'frage'",
        ),
        (
            KeyError("deck"),
            r"environment 'game_of_rows:Odd': draw fails: KeyError: 'deck' \(.*test_rows\.py:\d+\)",
        ),
        (SystemExit(0), r"draw fails: SystemExit: 0 \("),
    ],
)
def test_a_draw_that_gives_no_row_is_named_with_its_line(rows, monkeypatch, drawn, problem):
    monkeypatch.setattr(sys.modules["game_of_rows"], "Odd", Odd, raising=False)
    monkeypatch.setattr(Odd, "drawn", drawn)
    with pytest.raises(RecipeError, match=problem):
        rows(
            environment="game_of_rows:Odd",
            dataset_name="environment:game_of_rows:Odd",
            task_config=CONFIG,
        )


@pytest.mark.parametrize(
    ("name", "config", "problem"),
    [
        (
            "environment:game_of_rows:Odd",
            {**CONFIG, "siz": 3},
            r"task_config of 'game_of_rows:Odd': .*'siz' \(.*\)\. Did you mean 'size'",
        ),
        (
            "environment:game_of_rows:Odd",
            {**CONFIG, "test": {"siz": 3, "seed": 1}},
            r"test: size: .*, got None\. Did you mean 'size'",
        ),
        (
            "reasoning_gym:chain_sum",
            {**CONFIG, "min_term": 3},
            r"task_config of 'chain_sum': .*'min_term'\. Did you mean 'min_terms'",
        ),
    ],
)
def test_a_misspelt_key_of_what_is_drawn_is_named_with_the_nearest(
    rows, monkeypatch, name, config, problem
):
    monkeypatch.setattr(sys.modules["game_of_rows"], "Odd", Odd, raising=False)
    with pytest.raises(RecipeError, match=problem):
        rows(dataset_name=name, task_config=config)


def test_an_environment_without_a_reward_needs_get_reward(rows, monkeypatch):
    monkeypatch.setattr(sys.modules["game_of_rows"], "Unpaid", Unpaid, raising=False)
    with pytest.raises(
        RecipeError,
        match=r"reward_funcs: missing\. Fix: give environment Unpaid a "
        r"method get_reward\(self\), or name",
    ):
        rows(
            environment="game_of_rows:Unpaid",
            dataset_name="environment:game_of_rows:Unpaid",
            task_config=CONFIG,
        )
