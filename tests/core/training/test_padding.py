"""Micro-batches without padding have TRL's loss and gradient."""

import os
import sys

import pytest

pytest.importorskip("trl")

import torch

from tests.support.commands import succeed
from tests.support.padded import gap, trained

LOSSES = ("grpo", "dapo", "dr_grpo", "cispo", "luspo", "sapo", "vespo", "bnpo")


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_gradient_is_that_of_trl(tiny_model, tmp_path, loss_type):
    keys = {"loss_type": loss_type, "beta": 0.04}
    theirs, whole = trained(tiny_model, tmp_path / "theirs", False, **keys)
    ours, cut = trained(tiny_model, tmp_path / "ours", True, **keys)
    assert gap(theirs, ours) < 1e-6
    assert len(cut) == len(whole) == 8
    if loss_type == "bnpo":
        assert sum(cut) < sum(whole)
    else:
        assert cut == sorted(cut, reverse=True) and sum(cut) < 0.75 * sum(whole)


@pytest.mark.e2e
def test_two_processes_have_the_gradient_of_trl(tiny_model, tmp_path):
    """Each sorts its own rows; the gradients that they average are the same."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    command += ["--config_file", "accelerate_configs/ddp.yaml", "--mixed_precision", "no"]
    command += ["--main_process_port", "0", "-m", "tests.support.padded"]
    on_cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **on_cpu, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    succeed([*command, str(tiny_model), str(tmp_path)], environment)
    for rank in (0, 1):
        theirs, ours = (torch.load(tmp_path / f"{trims}_{rank}.pt") for trims in (False, True))
        assert gap(theirs["weights"], ours["weights"]) < 1e-6
        assert sum(ours["sizes"]) < 0.9 * sum(theirs["sizes"])
