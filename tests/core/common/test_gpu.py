"""A GPU that torch cannot use, one of several, and one without bf16; no GPU is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from r1_recipes.common import gpu
from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe

OLD = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC "
    "2023\nGCC version: 12.3.0\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  "
    "(dvs-builder)\n"
)
RECIPE = "model_name_or_path: a\ndataset_name: b\nreward_funcs: [format]\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """``machine(text)``: an NVIDIA device whose driver says this; torch, built for CUDA 13, sees
    none.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *arguments: False)
    monkeypatch.setattr(gpu, "_VERSION", tmp_path / "version")

    def use(version: str) -> None:
        (tmp_path / "version").write_text(version, encoding="utf-8")

    return use


@pytest.mark.parametrize(
    "text, version", [(OLD, "535.104.05"), (OPEN, "580.65.06"), ("NVRM", "of an unknown version")]
)
def test_a_gpu_that_torch_cannot_use_is_refused_with_its_driver(
    machine, tmp_path: Path, text: str, version: str
) -> None:
    machine(text)
    path = tmp_path / "own.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"own\.yaml: use_cpu: ") as error:
        load_recipe([str(path)], "grpo")
    assert all(
        word in str(error.value)
        for word in (f"driver {version})", "CUDA 13.0", "580", "--use_cpu true")
    )
    assert (
        load_recipe([str(path), "--use_cpu", "true", "--bf16", "false"], "grpo").training.use_cpu
        is True
    )


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
    said = gpu.use_first_gpu()
    assert (
        os.environ["CUDA_VISIBLE_DEVICES"] == first
        and said
        and f"CUDA_VISIBLE_DEVICES={first}" in said
    )


@pytest.mark.parametrize("capability, lacks", [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_bf16_needs_capability_8(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], lacks: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: capability)
    assert gpu.lacks_bf16() is lacks
