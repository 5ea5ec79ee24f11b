"""A trainer whose completions have given lengths: one optimizer step with and without padding.

Run by each of two processes: ``accelerate launch … -m tests.support.padded MODEL FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import datasets
import torch
from transformers import AutoTokenizer
from trl import GRPOConfig

from r1_recipes.training.trainer import RecipeTrainer

LENGTHS = (3, 40, 9, 1, 24, 17, 33, 2, 12, 5, 40, 7, 28, 3, 19, 11)
PROMPTS = ("2+3?", "What is 17 + 25, please, in words and in figures?", "Why?", "9*9 is what?")


def rewards(completions, **columns):
    """Differ within a group, whatever the model says."""
    return [float((7 * index) % 5) for index in range(len(completions))]


class Cut(RecipeTrainer):
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
        trim_padding=trims,
        model=str(model),
        args=config,
        reward_funcs=[rewards],
        train_dataset=datasets.Dataset.from_list(rows),
        # as a recipe does: a model that also reads pictures would bring its processor
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    )
    sizes = []

    def counted(module, arguments, given):
        if module.training and torch.is_grad_enabled():
            sizes.append(given["input_ids"].numel())

    run.model.register_forward_pre_hook(counted, with_kwargs=True)
    run.train()
    trained.logged = [entry for entry in run.state.log_history if "loss" in entry]
    return {name: value.detach().clone() for name, value in run.model.named_parameters()}, sizes


def gap(one, other):
    """The largest difference between two sets of weights."""
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def main() -> None:
    """Write the weights after a step with padding and one without, as every process has them."""
    model, folder = map(Path, sys.argv[1:])
    steps = {"gradient_accumulation_steps": 4, "steps_per_generation": 4}
    for trims in (False, True):
        weights, sizes = trained(model, folder / str(trims), trims, **steps)
        rank = torch.distributed.get_rank()
        torch.save({"weights": weights, "sizes": sizes}, folder / f"{trims}_{rank}.pt")


if __name__ == "__main__":
    main()
