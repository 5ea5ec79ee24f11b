"""A model with linear attention, in the shape of Qwen3.5: padding, training, evaluation."""

import json

import pytest

pytest.importorskip("trl")

from transformers import AutoConfig

from r1_recipes import adapters, evaluate, grpo
from r1_recipes.models import weights
from tests.support.hybrid import PROCESSOR, build_hybrid
from tests.support.padded import gap, trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return build_hybrid(tmp_path_factory.mktemp("hybrid") / "model")


def test_a_state_that_runs_over_the_row_takes_nothing_from_padding(hybrid, tmp_path):
    """Its layers add up a state from left to right, so masks alone must keep padding out of it."""
    theirs, whole = trained(hybrid, tmp_path / "theirs", False)
    ours, cut = trained(hybrid, tmp_path / "ours", True)
    assert gap(theirs, ours) < 1e-6
    assert sum(cut) < 0.75 * sum(whole)


@pytest.fixture
def recipe(hybrid, sums, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"""
model_name_or_path: {hybrid}
dataset_name: {sums}
mapper: gsm8k
response_format: boxed
reward_funcs: [accuracy, target_length]
target_length: 4
num_generations: 4
max_completion_length: 8
per_device_train_batch_size: 8
max_steps: 2
save_steps: 2
learning_rate: 1.0e-3
use_cpu: true
bf16: false
report_to: none
output_dir: {tmp_path}/out
""")
    return path


def test_a_recipe_trains_and_evaluates_it_and_keeps_what_a_server_needs(recipe, tmp_path):
    out = tmp_path / "out"
    grpo.main([str(recipe), "--unfrozen_parameters", "language_model"])
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["rewards/target_length/mean"] == -1.0  # 8 tokens, twice the target
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert (out / "preprocessor_config.json").read_text() == PROCESSOR
    assert (out / "checkpoint-2" / "preprocessor_config.json").read_text() == PROCESSOR
    evaluate.main([str(recipe), "--model", str(out), "--dataset_test_split", "train"])


def test_adapters_are_merged_into_the_whole_model(recipe, tmp_path):
    out = tmp_path / "out"
    grpo.main([str(recipe), "--use_peft", "true", "--lora_target_modules", "all-linear"])
    merged = adapters.merge(out)
    config = json.loads((merged / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert (merged / "preprocessor_config.json").read_text() == PROCESSOR


def test_a_processor_that_cannot_be_copied_costs_a_warning_and_no_weights(
    hybrid, tmp_path, caplog, monkeypatch
):
    """The other processes wait in the saving of the weights for the one that copies."""
    config = AutoConfig.from_pretrained(hybrid)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "processor_config.json").write_text("{}")
    weights.copy_processor(config, tmp_path / "own")
    assert not (tmp_path / "own" / "preprocessor_config.json").exists()

    def fails(*args, **kwargs):
        raise PermissionError("read-only cache")

    monkeypatch.setattr("transformers.utils.cached_file", fails)
    (tmp_path / "new").mkdir()
    weights.copy_processor(config, tmp_path / "new")
    assert "read-only cache" in caplog.text and not list((tmp_path / "new").iterdir())
