"""The demo's own logic, on a tiny random model: stages, table, memory of what is done. Its result is measured, not tested."""

import shutil

import pytest

from r1_recipes import demo
from r1_recipes.smoke import build_tiny_model

pytestmark = pytest.mark.e2e


@pytest.fixture
def short_recipes(tmp_path, monkeypatch):
    folder = tmp_path / "recipes"
    shutil.copytree(demo._recipes_folder(), folder)
    for name, steps in ((demo.SFT_RECIPE, 2), (demo.GRPO_RECIPE, 1)):
        path = folder / name
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(("max_steps", "unfrozen"))]
        path.write_text("\n".join([*lines, f"max_steps: {steps}", ""]), encoding="utf-8")
    monkeypatch.setattr(demo, "_recipes_folder", lambda: folder)


def test_the_demo_trains_judges_and_remembers(short_recipes, tmp_path, capsys):
    model = str(build_tiny_model(tmp_path / "model", {}))
    settings = {"problems": 4, "num_samples": 2, "seed": 1, "model": model}
    scores = demo.run_demo(tmp_path / "out", **settings)
    assert list(scores) == ["raw", "cold_start", "grpo"]
    assert all(len(s.greedy) == len(s.sampled) == 4 for s in scores.values())
    table = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    for label in demo.LABELS.values():
        assert label in table
    assert "GRPO over the cold start: greedy" in table
    capsys.readouterr()

    # Again: nothing is trained or judged a second time.
    changed = (tmp_path / "out" / "grpo" / "model.safetensors").stat().st_mtime_ns
    assert demo.run_demo(tmp_path / "out", **settings) == scores
    assert (tmp_path / "out" / "grpo" / "model.safetensors").stat().st_mtime_ns == changed
    assert capsys.readouterr().out.count("already trained") == 2
