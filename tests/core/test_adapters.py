"""Adapters merged into their base model give the same answers without PEFT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from r1_recipes import adapters, grpo
from r1_recipes.prompts import CHATML
from tests.conftest import metrics, weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder as a LoRA run leaves it, whose adapters change every layer."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("lora") / "run"
    torch.manual_seed(0)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}', encoding="utf-8")
    return folder


def test_a_merged_model_answers_as_base_and_adapters_do(trained: Path, tiny_model: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = adapters.merge(trained)
    assert folder == trained / "merged"
    merged, base = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(tiny_model),
    )
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        before, after = base(tokens).logits, merged(tokens).logits
        expected = PeftModel.from_pretrained(base, trained)(tokens).logits
    torch.testing.assert_close(after, expected, atol=1e-4, rtol=1e-4)
    assert (after - before).abs().max() > 0.1
    # The base model's own names, and nothing of PEFT's: any server can load it.
    assert (
        weights(folder).keys() == weights(tiny_model).keys()
        and not (folder / "adapter_config.json").exists()
    )
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2
    assert AutoTokenizer.from_pretrained(folder).chat_template == CHATML


def test_a_lora_run_can_be_merged(
    write_recipe: Callable[..., str],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoModelForCausalLM

    lora = {
        "use_peft": True,
        "lora_r": 4,
        "lora_target_modules": ["all-linear"],
        "lora_dropout": 0.0,
    }
    grpo.main([write_recipe("grpo", max_steps=3, model_revision="v1", **lora)])
    run = tmp_path / "run"
    assert len(metrics(run)) == 3
    capsys.readouterr()
    # The base's revision is on record, and is asked for again.
    assert json.loads((run / "adapter_config.json").read_text(encoding="utf-8"))["revision"] == "v1"
    asked = []
    original = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM,
        "from_pretrained",
        lambda *a, **k: asked.append(k["revision"]) or original(*a, **k),
    )
    adapters.main([str(run)])
    assert capsys.readouterr().out.endswith(f"{run / 'merged'}\n")
    assert asked == ["v1"]
    before, after = weights(tiny_model), weights(run / "merged")
    changed = {name for name in before if not before[name].equal(after[name])}
    # All linear layers but the output, which is not trained; norms, embeddings and biases are the
    # base model's.
    assert changed == {name for name in before if name.endswith("proj.weight")}
