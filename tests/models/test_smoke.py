"""Every recipe in recipes/ goes through one step of training with ``--smoke``, without a hub."""

from __future__ import annotations

import atexit
import json
import math
from pathlib import Path

import pytest
import yaml

from r1_recipes import distill, evaluate, generate, grpo, reward, sft
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import load_recipe
from tests.conftest import RECIPES, method_of, metrics

ENTRY_POINTS = {"grpo": grpo, "sft": sft, "distill": distill, "reward": reward, "generate": generate, "evaluate": evaluate}
GRPO = next(str(path) for path in RECIPES if method_of(path) == "grpo")

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe_runs_one_step(path: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(1)
    method, run = method_of(path), tmp_path / "run"
    ENTRY_POINTS[method].main([str(path), "--smoke", "--output" if method == "evaluate" else "--output_dir", str(run)])
    if method == "generate":
        from r1_recipes.data import load_rows

        assert len(load_rows(str(run / "dataset"), "train")) >= 2
        return
    if method == "evaluate":
        (scores,) = json.loads((run / "results.json").read_text(encoding="utf-8"))
        assert set(scores["rewards"]) == set(yaml.safe_load(path.read_text(encoding="utf-8"))["reward_funcs"])
        return
    (entry,) = metrics(run)
    assert entry["step"] == 1 and math.isfinite(entry["loss"]) and math.isfinite(entry["grad_norm"])
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    # Of a mixture one row is drawn, which not every reward may judge.
    for name in settings.get("reward_funcs", ()) if method == "grpo" and "dataset_mixture" not in settings else ():
        assert f"rewards/{name.rpartition(':')[2]}/mean" in entry
    AutoTokenizer.from_pretrained(run)
    if not (run / "adapter_config.json").exists():
        pictures = (run / "processor_config.json").exists()
        kind = AutoModelForSequenceClassification if method == "reward" else AutoModelForCausalLM
        (AutoModelForImageTextToText if pictures else kind).from_pretrained(run)


def test_two_smoke_runs_share_no_folder_and_leave_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    at_exit = []
    monkeypatch.setattr(atexit, "register", lambda *call, **options: at_exit.append((call, options)))
    first, second = (load_recipe([GRPO, "--smoke"], "grpo", smoke=smoke_overrides) for _ in range(2))
    assert first.training.output_dir != second.training.output_dir
    assert Path(first.model.model_name_or_path).is_relative_to(tmp_path)
    for (function, *arguments), options in at_exit:
        if function.__name__ == "rmtree" or getattr(function, "__self__", None):
            function(*arguments, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_kept_smoke_run_is_neither_repeated_nor_continued_for_real(tmp_path: Path) -> None:
    run = ["--output_dir", str(tmp_path / "run"), "--use_vllm", "false"]
    grpo.main([GRPO, "--smoke", *run])
    for words in (["--smoke"], ["--use_cpu", "true", "--bf16", "false"]):
        with pytest.raises(SystemExit) as stopped:
            grpo.main([GRPO, *words, *run])
        assert stopped.value.code == 2


def test_smoke_overrides_leave_what_the_user_typed(tmp_path: Path) -> None:

    loaded = load_recipe([GRPO, "--smoke", "--max_steps", "3"], "grpo", smoke=smoke_overrides)
    assert loaded.training.max_steps == 3 and loaded.training.num_generations == 2


def test_a_run_of_several_tasks_logs_a_curve_for_each(tmp_path: Path) -> None:
    path = next(path for path in RECIPES if path.stem == "mixed_qwen15b")
    run = tmp_path / "run"
    # Four prompts a step: the mixture's example rows all come up within a few steps.
    grpo.main([str(path), "--smoke", "--output_dir", str(run), "--max_steps", "4", "--per_device_train_batch_size", "8"])
    seen = {key for entry in metrics(run) for key in entry if key.startswith("rewards/")}
    assert {"rewards/accuracy/gsm8k", "rewards/accuracy/math", "rewards/countdown/countdown"} <= seen
    # and no task has the curve of another's reward
    assert not {"rewards/accuracy/countdown", "rewards/countdown/gsm8k", "rewards/countdown/math"} & seen


def test_a_mapper_without_examples_says_what_smoke_needs(tmp_path, monkeypatch, capsys):
    (tmp_path / "bare_mapper.py").write_text(
        "from r1_recipes.data import Mapper\n\n\nclass Bare(Mapper):\n    columns = ('q', 'a')\n\n    def __call__(self, row):\n"
        "        return {'question': row['q'], 'solution': row['a']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        grpo.main([next(str(path) for path in RECIPES if path.name == "gsm8k_qwen05b.yaml"), "--smoke", "--mapper", "bare_mapper:Bare"])
    assert ended.value.code == 2
    assert "smoke: mapper 'bare_mapper:Bare' has no example rows. Fix: examples = ({" in capsys.readouterr().err
