"""What ``--smoke`` changes in a recipe, and what it leaves. tests/test_recipes.py runs each recipe."""

from __future__ import annotations

import atexit
from pathlib import Path

import pytest

from r1_recipes import grpo
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import load_recipe
from tests.conftest import RECIPES, method_of

GRPO = next(str(path) for path in RECIPES if method_of(path) == "grpo")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]


def test_smoke_runs_use_separate_folders_and_remove_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    at_exit = []
    monkeypatch.setattr(
        atexit, "register", lambda *call, **options: at_exit.append((call, options))
    )
    first, second = (
        load_recipe([GRPO, "--smoke"], "grpo", smoke=smoke_overrides) for _ in range(2)
    )
    assert first.training.output_dir != second.training.output_dir
    assert Path(first.model.model_name_or_path).is_relative_to(tmp_path)
    for (function, *arguments), options in at_exit:
        if function.__name__ == "rmtree" or getattr(function, "__self__", None):
            function(*arguments, **options)
    left = [path.name for path in tmp_path.iterdir()]
    assert [name for name in left if not name.startswith("torchinductor_")] == []


def test_smoke_overrides_leave_what_the_user_typed(tmp_path: Path) -> None:

    loaded = load_recipe([GRPO, "--smoke", "--max_steps", "3"], "grpo", smoke=smoke_overrides)
    assert loaded.training.max_steps == 3 and loaded.training.num_generations == 2


def test_a_mapper_without_examples_says_what_smoke_needs(tmp_path, monkeypatch, capsys):
    (tmp_path / "bare_mapper.py").write_text(
        "def bare(row):\n    return {'question': row['q'], 'solution': row['a']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        grpo.main([GRPO, "--smoke", "--mapper", "bare_mapper:bare"])
    assert ended.value.code == 2
    assert "smoke: mapper 'bare_mapper:bare' has no example rows. Fix: " in capsys.readouterr().err
