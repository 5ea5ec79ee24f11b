"""Private names of TRL that the trainers of this extra override or read, held against the
installed TRL.
"""

import inspect

import pytest

pytest.importorskip("trl")

from trl import GRPOTrainer

from r1_recipes.extras.dynamic_sampling import _GENERATED, DynamicSamplingTrainer
from tests.core.training.test_trainer import overrides

ROUNDS = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_get_per_token_logps_and_entropies": None,  # whatever TRL gives it is passed on
}


def test_every_private_override_is_pinned():
    pinned = ROUNDS
    assert overrides(DynamicSamplingTrainer) == set(pinned)
    for name, parameters in pinned.items():
        theirs = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
        assert parameters is None or theirs == parameters, name


def test_a_generation_has_the_parts_that_a_round_keeps():
    source = inspect.getsource(GRPOTrainer._generate)
    parts = source[source.rindex("return ") :].removeprefix("return ").strip()
    assert parts.split(", ") == list(_GENERATED)


def test_a_round_may_end_with_its_rewards():
    """What follows the rewards are advantages and the logs; nothing of it is left half done."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    before, _, after = source.partition("rewards_per_func = self._calculate_rewards(")
    assert after and "try:" not in before and "self._logs[" not in before
    assert before.count("self._generate(") == 1
    # The last pass has rows whose environments have played.
    assert "if self.environments:" in before and "self.environment_factories is not None" in before
