"""Private names of TRL that training/trainer.py overrides or reads, held against the installed TRL: an upgrade fails here first."""

import inspect
import json
from collections import defaultdict
from math import nan
from types import SimpleNamespace

import pandas
import pytest

pytest.importorskip("trl")

import torch
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from r1_recipes.common.errors import RecipeError
from r1_recipes.training.trainer import CurriculumGRPOTrainer, RecipeGRPOTrainer

OVERRIDDEN = {
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_log_completion_extra": ["self", "column", "values"],
    "log": ["self", "logs", "start_time"],
}
OF_A_CURRICULUM = {"_get_train_sampler": ["self", "dataset"]}


@pytest.mark.parametrize("name", OVERRIDDEN | OF_A_CURRICULUM)
def test_an_overridden_method_has_the_parameters_of_trl(name):
    for trainer in (GRPOTrainer, CurriculumGRPOTrainer):
        assert list(inspect.signature(getattr(trainer, name)).parameters) == (OVERRIDDEN | OF_A_CURRICULUM)[name], trainer


@pytest.mark.parametrize(("trainer", "pinned"), [(RecipeGRPOTrainer, OVERRIDDEN), (CurriculumGRPOTrainer, OF_A_CURRICULUM)])
def test_every_private_override_is_pinned(trainer, pinned):
    own = {name for name, value in vars(trainer).items() if callable(value) and hasattr(GRPOTrainer, name)}
    assert own - {"__init__", "evaluate", "__doc__"} == set(pinned)


def test_the_attributes_that_are_read_are_set_by_trl():
    source = inspect.getsource(GRPOTrainer)
    for line in (
        "self._pending_extra_logs = defaultdict(list)",
        "self._logs = {",
        "self.generation_config =",
        "self.generation_kwargs =",
        'self._metrics = {"train"',
    ):
        assert line in source, line
    # Rewards get the overridden method, not a copy of it.
    assert 'reward_kwargs["log_extra"] = self._log_completion_extra' in source


def test_the_sampler_draws_one_order_per_epoch_from_its_generator():
    source = inspect.getsource(RepeatSampler)
    assert "torch.randperm(self.num_samples, generator=self.generator)" in source and "self.shuffle" in source


def test_calls_of_any_shape_can_be_logged(tmp_path, monkeypatch):
    """A model's calls of one step may have no arguments, or others of another type; TRL writes all into one Parquet column."""
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, *args: torch.zeros(1, 1))
    trainer = RecipeGRPOTrainer.__new__(RecipeGRPOTrainer)
    trainer._unjudged = trainer._logged_step = 0
    trainer.model, trainer.tools, trainer._pending_extra_logs = SimpleNamespace(training=True), [print], defaultdict(list)
    trainer._seconds = {"time/rewards": 0.0}
    written = [{}, {"n": 1}, {"n": "one"}, {"n": {}}, {"n": "a\nb\ud800"}, [1], "text"]
    calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}} for arguments in written]
    completions = [[{"role": "assistant", "content": "", "tool_calls": [call]}] for call in calls]
    trainer._calculate_rewards(None, None, completions, None)
    pandas.DataFrame({"completion": completions, **trainer._pending_extra_logs}).to_parquet(tmp_path / "completions.parquet")
    table = pandas.read_parquet(tmp_path / "completions.parquet")
    assert [json.loads(row[0]["tool_calls"][0]["function"]["arguments"]) for row in table["completion"]] == written
    assert table["turns"].tolist()[1:3] == ["[call f]\nn=1", "[call f]\nn='one'"]


def test_a_run_whose_completions_nobody_judges_stops(monkeypatch):
    """A game's or a judge's server that is down: TRL logs nothing of such batches, and would go on all night."""
    batches = iter([[1.0, nan], [nan, nan], [nan, nan], [nan, 0.0], *[[nan, nan]] * 3])
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, *args: torch.tensor([next(batches)]))
    trainer = RecipeGRPOTrainer.__new__(RecipeGRPOTrainer)
    trainer.model, trainer.tools, trainer._seconds = SimpleNamespace(training=True), [], {"time/rewards": 0.0}
    trainer._unjudged = trainer._logged_step = 0
    for _ in range(6):
        trainer._calculate_rewards(None, None, [], None)
    with pytest.raises(RecipeError, match="no reward judges any completion of 3 batches in a row"):
        trainer._calculate_rewards(None, None, [], None)
