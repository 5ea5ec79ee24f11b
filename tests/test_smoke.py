"""Every recipe in recipes/ goes through one step of training with ``--smoke``, without a hub."""

from __future__ import annotations

import atexit
import math
from pathlib import Path

import pytest
import yaml

from r1_recipes import grpo, sft
from tests.conftest import metrics

RECIPES = sorted((Path(__file__).parents[1] / "recipes").rglob("*.yaml"))
pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_trains_one_step(path: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    rewards = settings.get("reward_funcs")
    run = tmp_path / "run"
    (grpo if rewards else sft).main([str(path), "--smoke", "--output_dir", str(run)])

    (entry,) = metrics(run)
    assert entry["step"] == 1 and math.isfinite(entry["loss"]) and math.isfinite(entry["grad_norm"])
    for name in rewards or ():
        assert f"rewards/{name.rpartition(':')[2]}/mean" in entry
    AutoTokenizer.from_pretrained(run)
    if not (run / "adapter_config.json").exists():
        AutoModelForCausalLM.from_pretrained(run)


def test_two_smoke_runs_share_no_folder_and_leave_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tempfile

    from r1_recipes import recipe

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    at_exit = []
    monkeypatch.setattr(atexit, "register", lambda *call, **options: at_exit.append((call, options)))
    path = next(p for p in RECIPES if "reward_funcs" in p.read_text(encoding="utf-8"))
    first, second = (recipe.load([str(path), "--smoke"], "grpo") for _ in range(2))
    assert first.training.output_dir != second.training.output_dir
    assert Path(first.model.model_name_or_path).is_relative_to(tmp_path)
    for (function, *arguments), options in at_exit:
        if function.__name__ == "rmtree" or getattr(function, "__self__", None):
            function(*arguments, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_kept_smoke_run_can_be_repeated_but_not_continued_for_real(tmp_path: Path) -> None:
    path = next(str(p) for p in RECIPES if "reward_funcs" in p.read_text(encoding="utf-8"))
    run = ["--output_dir", str(tmp_path / "run"), "--use_vllm", "false"]
    for _ in range(2):
        grpo.main([path, "--smoke", *run])
    with pytest.raises(SystemExit) as stopped:
        grpo.main([path, *run, "--use_cpu", "true", "--bf16", "false"])
    assert stopped.value.code == 2


def test_smoke_overrides_leave_what_the_user_typed(tmp_path: Path) -> None:
    from r1_recipes import recipe

    path = next(str(p) for p in RECIPES if "reward_funcs" in p.read_text(encoding="utf-8"))
    loaded = recipe.load([path, "--smoke", "--max_steps", "3"], "grpo")
    assert loaded.training.max_steps == 3 and loaded.training.num_generations == 2
