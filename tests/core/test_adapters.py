"""Adapters merged into their base model give the same answers without PEFT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes import adapters, grpo
from tests.conftest import weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]


def test_a_lora_run_can_be_merged(
    write_recipe: Callable[..., str],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lora = {"use_peft": True, "lora_r": 4, "lora_target_modules": ["all-linear"]}
    grpo.main([write_recipe("grpo", max_steps=1, model_revision="v1", **lora)])
    run = tmp_path / "run"
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
    assert asked == ["v1"]
    # A checkpoint has none; its tokenizer knows the token that ends a turn.
    (run / "generation_config.json").unlink()
    settings = json.loads((tiny_model / "generation_config.json").read_text(encoding="utf-8"))
    ends = settings["eos_token_id"]
    tokenizer = AutoTokenizer.from_pretrained(run)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ends + 1)
    tokenizer.save_pretrained(run)
    adapters.main([str(run)])
    merged = json.loads((run / "merged" / "generation_config.json").read_text(encoding="utf-8"))
    assert merged["eos_token_id"] == [ends, ends + 1]
    before, after = weights(tiny_model), weights(run / "merged")
    changed = {name for name in before if not before[name].equal(after[name])}
    # All linear layers but the output, which is not trained; norms, embeddings and biases are the
    # base model's.
    assert changed == {name for name in before if name.endswith("proj.weight")}
