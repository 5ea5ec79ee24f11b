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
}


def test_every_private_override_is_pinned():
    pinned = ROUNDS
    assert overrides(DynamicSamplingTrainer) == set(pinned)
    for name, parameters in pinned.items():
        theirs = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
        assert theirs == parameters, name


def test_a_generation_has_the_parts_that_a_round_keeps():
    source = inspect.getsource(GRPOTrainer._generate)
    parts = source[source.rindex("return ") :].removeprefix("return ").strip()
    assert parts.split(", ") == list(_GENERATED)


def test_what_trl_does_around_a_generation():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    before, _, after = source.partition(" = self._generate(prompts)")
    # A round may end there; nothing of it is left half done.
    assert after and "try:" not in before and "self._logs[" not in before
    # It reads no row again, but the prompts and what rewards have logged.
    assert "inputs[" not in after.replace("_inputs[", "") and " in inputs" not in after
    assert "gather_object(prompts)" in after and "self._pending_extra_logs.get(" in after
