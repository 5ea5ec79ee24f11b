"""Micro-batches without padding have TRL's loss and gradient."""

import inspect
import re

import pytest

pytest.importorskip("trl")

import datasets
import torch
from trl import GRPOConfig, GRPOTrainer

from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.training import padding
from r1_recipes.training.trainer import RecipeGRPOTrainer

LENGTHS = (3, 40, 9, 1, 24, 17, 33, 2, 12, 5, 40, 7, 28, 3, 19, 11)
PROMPTS = ("2+3?", "What is 17 + 25, please, in words and in figures?", "Why?", "9*9 is what?")


def rewards(completions, **columns):
    """Differ within a group, whatever the model says."""
    return [float((7 * index) % 5) for index in range(len(completions))]


class Cut(RecipeGRPOTrainer):
    """Completions of the lengths above, whatever the model samples."""

    def _generate(self, prompts):
        prompt_ids, completion_ids, *rest = super()._generate(prompts)
        lengths = [LENGTHS[index % len(LENGTHS)] for index in range(len(completion_ids))]
        cut = [ids[:length] for ids, length in zip(completion_ids, lengths, strict=True)]
        return prompt_ids, cut, *rest


def trained(model, folder, trims, trainer=Cut, **keys):
    """The weights after one optimizer step of SGD, and the tokens that each loss was given."""
    config = GRPOConfig(
        output_dir=str(folder),
        **{
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "steps_per_generation": 8,
            "num_generations": 4,
            "max_completion_length": 40,
            "max_steps": 1,
            "learning_rate": 1.0,
            "lr_scheduler_type": "constant",
            "optim": "sgd",
            "max_grad_norm": 0.0,
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "seed": 3,
            "save_strategy": "no",
            "temperature": 1.0,
            "model_init_kwargs": {"dtype": "float32"},
        }
        | keys,
    )
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]
    run = trainer(
        script=GRPORecipeArguments(trim_padding=trims, reward_funcs=["own"]),
        model=str(model),
        args=config,
        reward_funcs=[rewards],
        train_dataset=datasets.Dataset.from_list(rows),
    )
    sizes = []
    loss = run._compute_loss

    def counted(model, inputs):
        sizes.append(inputs["prompt_ids"].numel() + inputs["completion_ids"].numel())
        return loss(model, inputs)

    run._compute_loss = counted
    run.train()
    return {name: value.detach().clone() for name, value in run.model.named_parameters()}, sizes


def gap(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


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
