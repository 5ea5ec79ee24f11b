"""Private names of TRL that training/trainer.py overrides or reads, held against the installed TRL:
an upgrade fails here first.
"""

import inspect
from collections import defaultdict
from math import nan
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")

import torch
from trl import GRPOTrainer

from r1_recipes.training.trainer import RecipeGRPOTrainer

OVERRIDDEN = {
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_log_completion_extra": ["self", "column", "values"],
    "log": ["self", "logs", "start_time"],
    "_compute_loss": ["self", "model", "inputs"],
    "_get_per_token_logps_and_entropies": None,  # whatever TRL gives it is passed on
    "_prepare_inputs": ["self", "generation_batch"],
    "create_accelerator_and_postprocess": ["self"],
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_has_the_parameters_of_trl(name):
    for trainer in (GRPOTrainer, RecipeGRPOTrainer):
        pinned = OVERRIDDEN[name]
        assert (
            pinned is None or list(inspect.signature(getattr(trainer, name)).parameters) == pinned
        ), trainer


def overrides(trainer):
    """The methods of TRL's trainer that a subclass of ours defines anew."""
    own = {name for name, value in vars(trainer).items() if callable(value)}
    return {name for name in own if hasattr(GRPOTrainer, name)} - {"__init__", "evaluate"}


def test_every_private_override_is_pinned():
    assert overrides(RecipeGRPOTrainer) == set(OVERRIDDEN)


def test_the_attributes_that_are_read_are_set_by_trl():
    source = inspect.getsource(GRPOTrainer)
    for line in (
        "self._pending_extra_logs = defaultdict(list)",
        "self._logs = {",
        "self.generation_config =",
        "self.generation_kwargs =",
        'self._metrics = {"train"',
        "self.reward_funcs = reward_funcs",
        "self.reward_func_names = []",
        "self.vllm_importance_sampling_correction =",
        # The first call of a loss is of the policy, and its first value are the log-probabilities.
        "per_token_logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(",
        'output["sampling_per_token_logps"] = sampling_per_token_logps',
        'mask = completion_mask if "tool_mask" not in inputs else completion_mask * '
        'inputs["tool_mask"]',
        "if self.accelerator.is_main_process and self.log_completions:",
        # Padding is cut off what a generation leaves here.
        "self._buffered_inputs = [unsplit_pixel_values_by_grid(batch) for batch in generation_batches]",
        "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]",
    ):
        assert line in source, line
    # Rewards get the overridden method, not a copy of it.
    assert 'reward_kwargs["log_extra"] = self._log_completion_extra' in source


@pytest.mark.parametrize("correction", [False, True])
def test_the_gap_to_the_engine_is_logged_until_the_policy_moves(correction):
    """Of the two micro-batches that a window of sorted rows has; NaN, padding and a tool's words do
    not count. TRL's correction logs it itself.
    """
    trainer = RecipeGRPOTrainer.__new__(RecipeGRPOTrainer)
    trainer.model, trainer.vllm_importance_sampling_correction = (
        SimpleNamespace(training=True),
        correction,
    )
    trainer._uncompared, trainer._metrics = 2, {"train": defaultdict(list)}
    trainer._token_shares = []
    trainer.accelerator = SimpleNamespace(
        gather=lambda values: torch.cat([values, values * 3])
    )  # of a second rank
    given = {
        "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
        "tool_mask": torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1]]),
        "sampling_per_token_logps": torch.tensor(
            [[-1.0, -2.0, -9.0, nan], [-1.0, -2.0, -9.0, -9.0]]
        ),
    }

    def loss(self, model, inputs):
        self._latest_logps = torch.tensor([[-1.1, -2.1, 0.0, 0.0], [-1.0, -2.6, 0.0, 0.0]])
        return torch.zeros(())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GRPOTrainer, "_compute_loss", loss)
        trainer.model.training = False
        trainer._compute_loss(None, given)
        trainer.model.training = True
        for _ in range(3):
            trainer._compute_loss(None, given)
    logged = {name.rpartition("/")[2]: values for name, values in trainer._metrics["train"].items()}
    if correction:
        assert logged == {}
    else:
        assert logged == {"mean": [pytest.approx(0.2 * 2)] * 2, "max": [pytest.approx(0.6 * 3)] * 2}
