"""Private names of TRL that training/trainer.py overrides or reads, held against the installed TRL:
an upgrade fails here first.
"""

import inspect
import json
from collections import defaultdict
from math import nan
from types import SimpleNamespace

import pandas
import pytest

pytest.importorskip("trl")

import torch
from accelerate import FullyShardedDataParallelPlugin
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from r1_recipes.common.errors import StoppedTogether
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


def test_fsdp_does_not_round_log_probabilities(monkeypatch):
    """Accelerate's policy would cast what the model returns to bf16. On CPUs it does not shard, so
    this looks at the policy that torch is given.
    """
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.output_dtype == torch.bfloat16
    trainer = RecipeGRPOTrainer.__new__(RecipeGRPOTrainer)
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))
    monkeypatch.setattr(GRPOTrainer, "create_accelerator_and_postprocess", lambda self: None)
    trainer.is_fsdp_enabled = False
    trainer.create_accelerator_and_postprocess()
    assert plugin.mixed_precision_policy.output_dtype == torch.bfloat16
    trainer.is_fsdp_enabled = True
    trainer.create_accelerator_and_postprocess()
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.output_dtype) == (torch.bfloat16, None)


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


def test_the_sampler_draws_one_order_per_epoch_from_its_generator():
    source = inspect.getsource(RepeatSampler)
    assert (
        "torch.randperm(self.num_samples, generator=self.generator)" in source
        and "self.shuffle" in source
    )


def test_calls_of_any_shape_can_be_logged(tmp_path, monkeypatch):
    """A model's calls of one step may have no arguments, or others of another type; TRL writes all
    into one Parquet column.
    """
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, *args: torch.zeros(1, 1))
    trainer = RecipeGRPOTrainer.__new__(RecipeGRPOTrainer)
    trainer._unjudged, trainer._logged_step, trainer._failed = 0, 0, []
    trainer._window = 1
    trainer.model, trainer.tools, trainer._pending_extra_logs = (
        SimpleNamespace(training=True),
        [print],
        defaultdict(list),
    )
    trainer._seconds = {"time/rewards": 0.0}
    written = [{}, {"n": 1}, {"n": "one"}, {"n": {}}, {"n": "a\nb\ud800"}, [1], "text"]
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": arguments}}
        for arguments in written
    ]
    completions = [[{"role": "assistant", "content": "", "tool_calls": [call]}] for call in calls]
    trainer._calculate_rewards(None, None, completions, None)
    pandas.DataFrame({"completion": completions, **trainer._pending_extra_logs}).to_parquet(
        tmp_path / "completions.parquet"
    )
    table = pandas.read_parquet(tmp_path / "completions.parquet")
    assert [
        json.loads(row[0]["tool_calls"][0]["function"]["arguments"]) for row in table["completion"]
    ] == written
    assert table["turns"].tolist()[1:3] == ["[call f]\nn=1", "[call f]\nn='one'"]


def test_a_reward_may_log_what_can_be_read_once_or_cannot_be_compared():
    """TRL takes whatever its list can be extended by."""
    trainer = RecipeGRPOTrainer.__new__(RecipeGRPOTrainer)
    trainer._pending_extra_logs = defaultdict(list)
    trainer._log_completion_extra("steps", (count for count in range(3)))
    trainer._log_completion_extra("vector", [torch.zeros(2)] * 3)
    trainer._log_completion_extra("said", ["", None, "no"])
    trainer._log_completion_extra("said", map(str, range(3)))  # a second reward fills the gaps
    logged = trainer._pending_extra_logs
    assert logged["steps"] == [0, 1, 2] and len(logged["vector"]) == 3
    assert logged["said"] == ["0", "1", "no"]


def test_a_run_without_scores_stops(monkeypatch):
    """A game's or a judge's server that is down: TRL logs nothing of such batches, and would go on
    all night.
    """
    batches = iter([[1.0, nan], [nan, nan], [nan, nan], [nan, 0.0], *[[nan, nan]] * 3])
    monkeypatch.setattr(
        GRPOTrainer, "_calculate_rewards", lambda self, *args: torch.tensor([next(batches)])
    )
    trainer = RecipeGRPOTrainer.__new__(RecipeGRPOTrainer)
    trainer.model, trainer.tools, trainer._seconds = (
        SimpleNamespace(training=True),
        [],
        {"time/rewards": 0.0},
    )
    trainer._unjudged, trainer._logged_step, trainer._failed = 0, 0, []
    trainer._window = 1
    trainer.state, trainer.reward_func_names = SimpleNamespace(max_steps=9), ["own"]
    for _ in range(6):
        trainer._calculate_rewards(None, None, [], None)
    with pytest.raises(StoppedTogether, match="judged no completion of 3 batches in a row"):
        trainer._calculate_rewards(None, None, [], None)


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
        assert logged == {
            "mean": [pytest.approx(0.2 * 2)] * 2,
            "max": [pytest.approx(0.6 * 3)] * 2,
        }


def test_what_the_loss_computed_is_what_is_compared(monkeypatch):
    trainer = RecipeGRPOTrainer.__new__(RecipeGRPOTrainer)
    found = torch.ones(2, 3, requires_grad=True), None, None
    monkeypatch.setattr(
        GRPOTrainer, "_get_per_token_logps_and_entropies", lambda self, *args, **options: found
    )
    trainer._trims = True
    result = trainer._get_per_token_logps_and_entropies("model", None, None, 3, aux=True)
    assert result is found
    assert trainer._latest_logps.equal(found[0]) and not trainer._latest_logps.requires_grad
