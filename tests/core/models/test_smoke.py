"""What ``--smoke`` changes in a recipe, and what it leaves. tests/acceptance runs each recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from r1_recipes import grpo
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import load_recipe
from tests.conftest import RECIPES, method_of

GRPO = next(str(path) for path in RECIPES if method_of(path) == "grpo")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]


def test_smoke_overrides_leave_what_the_user_typed(tmp_path: Path) -> None:

    loaded = load_recipe([GRPO, "--smoke", "--max_steps", "3"], "grpo", smoke=smoke_overrides)
    assert loaded.training.max_steps == 3 and loaded.training.num_generations == 2


def test_examples_that_replace_a_misspelt_file_are_named(capsys):
    grpo.main([GRPO, "--smoke", "--dataset_name", "no_such_rows.csv", "--mapper", "gsm8k"])
    assert "smoke: no_such_rows.csv is not here" in capsys.readouterr().err


def test_a_mapper_without_examples_says_what_smoke_needs(tmp_path, monkeypatch, capsys):
    (tmp_path / "bare_mapper.py").write_text(
        "def bare(row):\n    return {'question': row['q'], 'solution': row['a']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        grpo.main([GRPO, "--smoke", "--mapper", "bare_mapper:bare"])
    assert ended.value.code == 2
    assert "smoke: mapper 'bare_mapper:bare' has no example rows. Fix: " in capsys.readouterr().err
