"""Private names of TRL that training/trainer.py overrides or reads, held against the installed TRL: an upgrade fails here first."""

import inspect

import pytest

pytest.importorskip("trl")

from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from r1_recipes.training.trainer import RecipeGRPOTrainer

OVERRIDDEN = {
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_log_completion_extra": ["self", "column", "values"],
    "log": ["self", "logs", "start_time"],
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_has_the_parameters_of_trl(name):
    for trainer in (GRPOTrainer, RecipeGRPOTrainer):
        assert list(inspect.signature(getattr(trainer, name)).parameters) == OVERRIDDEN[name], trainer


def test_every_private_override_is_pinned():
    own = {name for name, value in vars(RecipeGRPOTrainer).items() if callable(value) and hasattr(GRPOTrainer, name)}
    assert own - {"__init__", "evaluate", "__doc__"} == set(OVERRIDDEN)


def test_the_attributes_that_are_read_are_set_by_trl():
    source = inspect.getsource(GRPOTrainer)
    for line in ("self._pending_extra_logs = defaultdict(list)", "self._logs = {", "self.generation_config =", "self.generation_kwargs ="):
        assert line in source, line
    # Rewards get the overridden method, not a copy of it.
    assert 'reward_kwargs["log_extra"] = self._log_completion_extra' in source


def test_the_sampler_draws_one_order_per_epoch_from_its_generator():
    source = inspect.getsource(RepeatSampler)
    assert "torch.randperm(self.num_samples, generator=self.generator)" in source and "self.shuffle" in source
