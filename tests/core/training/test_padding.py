"""Micro-batches without padding have TRL's loss and gradient."""

import inspect
import os
import re
import sys

import pytest

pytest.importorskip("trl")

import torch
from trl import GRPOTrainer

from r1_recipes.training import padding
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


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_entropy_and_kl_are_means_over_tokens(tiny_model, tmp_path, size):
    """A log is the mean over micro-batches, of which the sorted ones have one length each."""
    steps = {"gradient_accumulation_steps": 16 // size, "steps_per_generation": 16 // size}
    keys = {"per_device_train_batch_size": size, "num_iterations": 2, "max_steps": 2, **steps}
    keys |= {"beta": 0.04, "learning_rate": 0.1, "logging_steps": 1}
    logs = []
    for batch in (keys, {**keys, "per_device_train_batch_size": 16} | dict.fromkeys(steps, 1)):
        trained(tiny_model, tmp_path / str(len(logs)), len(logs) == 0, **batch)
        logs.append(trained.logged)
    for ours, whole in zip(*logs, strict=True):
        for name in ("entropy", "kl", "clip_ratio/region_mean"):
            assert ours[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-9), name
    assert logs[0][1]["kl"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"importance_sampling_level": "sequence"},  # GSPO
        {"mask_truncated_completions": True},
        {"pad_to_multiple_of": 8},
        {"top_entropy_quantile": 0.5},
        {"entropy_coef": 0.01},
        {"gradient_accumulation_steps": 2, "max_steps": 4},  # a generation of several steps
        {"gradient_accumulation_steps": 2, "max_steps": 8, "num_iterations": 2},
        {"gradient_accumulation_steps": 16},  # several generations of one step
        {"gradient_accumulation_steps": 6, "steps_per_generation": 4, "max_steps": 2},
    ],
    ids=lambda keys: "-".join(keys),
)
def test_the_gradient_is_that_of_trl_with(tiny_model, tmp_path, keys):
    keys = {"learning_rate": 0.1} | keys if keys.get("max_steps", 1) > 1 else keys
    theirs, whole = trained(tiny_model, tmp_path / "theirs", False, **keys)
    ours, cut = trained(tiny_model, tmp_path / "ours", True, **keys)
    assert gap(theirs, ours) < 1e-6
    assert sum(cut) < sum(whole)


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


def test_rows_move_within_a_window_with_all_that_is_theirs():
    lengths = torch.tensor([1, 4, 2, 3])
    mask = (torch.arange(5) < lengths[:, None]).long()
    batch = {
        "prompt_ids": torch.arange(12).view(4, 3),
        "prompt_mask": torch.tensor([[0, 0, 1]] * 4),
        "completion_ids": lengths[:, None] * mask,
        "completion_mask": mask,
        "tool_mask": mask,
        "importance_sampling_ratio": lengths[:, None].float(),  # one a sequence
        "advantages": lengths.float(),
        "num_items_in_batch": torch.tensor(10),
        "num_images": [1, 2, 0, 3],
        "pixel_values": torch.tensor([[1.0], [4.0], [4.5], [3.0], [3.1], [3.2]]),
    }
    halves = padding.split_tensor_dict(padding.split_pixel_values_by_grid(batch), 2)
    halves = [padding.unsplit_pixel_values_by_grid(half) for half in halves]
    first, second = padding.without_padding(halves, 2, None)
    assert first["advantages"].tolist() == [4, 3] and second["advantages"].tolist() == [2, 1]
    assert first["completion_ids"].tolist() == [[4, 4, 4, 4], [3, 3, 3, 0]]
    assert second["completion_ids"].tolist() == [[2, 2], [1, 0]]
    assert first["prompt_ids"].tolist() == [[5], [11]]
    assert first["importance_sampling_ratio"].tolist() == [[4], [3]]
    assert second["tool_mask"].tolist() == [[1, 1], [1, 0]]
    assert first["num_images"] == [2, 3] and second["num_images"] == [0, 1]
    assert first["pixel_values"].flatten().tolist() == pytest.approx([4.0, 4.5, 3.0, 3.1, 3.2])
    assert second["num_items_in_batch"].item() == 10
    kept = padding.without_padding(halves, 1, 4)
    assert [half["advantages"].tolist() for half in kept] == [[1, 4], [2, 3]]
    assert [half["completion_ids"].size(1) for half in kept] == [4, 4]


def test_what_trl_hands_over_by_token_is_known():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    names = set(re.findall(r'output\["(\w+)"\]', source))
    names |= set(re.findall(r'"(\w+)"', source[source.index("output = {") :].partition("}")[0]))
    by_row = {"advantages", "num_items_in_batch", "num_images", "num_tiles"}
    by_image = {
        *("pixel_values", "image_grid_thw", "pixel_attention_mask", "spatial_shapes"),
        *("image_sizes", "image_position_ids"),
    }
    by_token = {*padding.OF_PROMPT, *padding.OF_COMPLETION, *padding.OF_BOTH}
    assert names == by_row | by_image | by_token
