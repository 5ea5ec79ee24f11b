"""A GPU that torch cannot use, and one of several; no GPU is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe

RECIPE = "model_name_or_path: a\ndataset_name: b\nreward_funcs: [format]\n"


def test_a_gpu_that_torch_cannot_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *arguments: False)
    (tmp_path / "nvidia-smi").touch(0o755)
    path = tmp_path / "own.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"own\.yaml: use_cpu: .*CUDA 13\.0.*580.*--use_cpu true"):
        load_recipe([str(path)], "grpo")
    assert load_recipe([str(path), "--use_cpu", "true", "--bf16", "false"], "grpo").training.use_cpu


@pytest.mark.parametrize(
    "visible, first", [(None, "0"), ("3,5", "3"), ("GPU-7a, GPU-9b", "GPU-7a")]
)
def test_without_a_launcher_one_gpu_is_used(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, first: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    said = processes.use_first_gpu()
    assert (
        os.environ["CUDA_VISIBLE_DEVICES"] == first
        and said
        and f"CUDA_VISIBLE_DEVICES={first}" in said
    )
