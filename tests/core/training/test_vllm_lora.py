"""What vLLM is sent of a model with adapters, with an engine that only records."""

import copy
import inspect
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from trl.generation import vllm_generation

from r1_recipes.common.errors import RecipeError
from r1_recipes.training import vllm_lora
from tests.support.commands import succeed

IDS = torch.arange(5, 25).reshape(2, 10)
TARGETS = ["q_proj", "v_proj", "down_proj"]


class RecordingLLM:
    """vLLM's class, which keeps the weights that it was sent last."""

    def __init__(self, **options):
        self.weights = {}
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def load_weights(self, weights):
        self.weights |= {name: weight.detach().clone() for name, weight in weights}

    def reset_prefix_cache(self):
        pass


def engine_of(model, patched, fsdp=None, rank=0, ranks=1):
    """TRL's engine for a model, with the accelerator's facts."""
    patched.setattr(vllm_generation, "LLM", RecordingLLM, raising=False)
    patched.setattr(vllm_generation, "is_vllm_available", lambda: True)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        patched.setenv(name, os.environ.get(name, "0"))  # TRL sets them
    plugin = SimpleNamespace(fsdp_version=fsdp) if fsdp else None
    accelerator = SimpleNamespace(
        state=SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=plugin),
        process_index=rank,
        local_process_index=rank,
        num_processes=ranks,
        is_main_process=rank == 0,
        device=torch.device("cpu"),
        wait_for_everyone=lambda: None,
    )
    return vllm_generation.VLLMGeneration(
        model=model, accelerator=accelerator, processing_class=None, max_num_seqs=8
    )


def base_model(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.name_or_path = str(folder)
    return model


def with_adapters(folder, **changes):
    """A bf16 base with adapters in fp32, as after some steps."""
    torch.manual_seed(0)
    config = {"r": 8, "lora_alpha": 32, "target_modules": TARGETS, "task_type": "CAUSAL_LM"}
    model = get_peft_model(base_model(folder), LoraConfig(**config | changes))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            if "lora_B" in name or "embedding_A" in name:
                torch.nn.init.normal_(parameter.data, std=0.02)
    return model.eval()


def bits(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def log_probs(model):
    with torch.no_grad():
        return model(IDS).logits.float().log_softmax(-1)


@pytest.mark.parametrize(
    "changes", [{}, {"use_rslora": True}, {"modules_to_save": ["norm"]}], ids=str
)
def test_after_50_syncs_the_base_has_its_bits_and_vllm_the_policy(
    tiny_model, tmp_path, monkeypatch, changes
):
    model = with_adapters(tiny_model, **changes)
    before, policy = bits(model), log_probs(model)
    engine = engine_of(model, monkeypatch)
    for _ in range(50):
        engine.sync_weights()
    after = bits(model)
    assert before.keys() == after.keys() and all(after[n].equal(v) for n, v in before.items())
    assert log_probs(model).equal(policy)

    # In fp32 by PEFT's own hand, and cast at the end.
    exact = copy.deepcopy(model).float().merge_and_unload()
    wanted = {name: parameter.bfloat16() for name, parameter in exact.named_parameters()}
    sent = engine.llm.weights
    assert sent.keys() == wanted.keys()
    assert all(sent[name].bfloat16().equal(value) for name, value in wanted.items())

    # Whoever puts the saved adapter on the clean base has the trained policy.
    model.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(base_model(tiny_model), tmp_path / "adapter").eval()
    assert log_probs(loaded).equal(policy)


def test_trl_still_changes_the_base(tiny_model, monkeypatch):
    """When this fails, vllm_lora.py can go."""
    monkeypatch.setattr(vllm_generation.VLLMGeneration, "_iter_named_params", vllm_lora._trl_params)
    model = with_adapters(tiny_model)
    before = bits(model)
    engine = engine_of(model, monkeypatch)
    for _ in range(50):
        engine.sync_weights()
    assert any(not value.equal(before[name]) for name, value in bits(model).items())


def test_adapters_of_a_tied_layer_are_refused(tiny_model, monkeypatch):
    model = with_adapters(tiny_model, target_modules=["q_proj", "lm_head"])
    with pytest.raises(RecipeError, match=r"lora_target_modules: .*lm_head\.weight"):
        engine_of(model, monkeypatch).sync_weights()


def sharded(folder):
    """Run by each of two ranks: what FSDP 2's pieces send is what the whole model sends, and the
    pieces keep their bits.
    """
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    whole, pieces = with_adapters(Path(folder)), with_adapters(Path(folder))
    for layer in pieces.base_model.model.model.layers:
        torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
    torch.distributed.fsdp.fully_shard(pieces, mesh=mesh)
    with pytest.MonkeyPatch.context() as patched:
        rank = torch.distributed.get_rank()
        engines = engine_of(whole, patched), engine_of(pieces, patched, fsdp=2, rank=rank, ranks=2)
        before = {name: piece.to_local() for name, piece in bits(pieces).items()}
        log_probs(pieces)  # as an evaluation does: what follows finds the last layers whole
        for engine in engines:
            engine.sync_weights()
        sent, wanted = (engine.llm.weights for engine in reversed(engines))
        assert sent.keys() == wanted.keys()
        assert all(sent[name].equal(value) for name, value in wanted.items())
        assert all(piece.to_local().equal(before[name]) for name, piece in bits(pieces).items())
    torch.distributed.destroy_process_group()


@pytest.mark.e2e
def test_the_pieces_of_fsdp2_are_sent_whole(tiny_model):
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    words += ["tests.core.training.test_vllm_lora", str(tiny_model)]
    succeed([sys.executable, "-m", *words], {**os.environ, "OMP_NUM_THREADS": "1"})


def test_the_private_names_of_trl_are_there():
    theirs = vllm_generation.VLLMGeneration
    assert list(inspect.signature(vllm_lora._trl_params).parameters) == ["self"]
    source = inspect.getsource(theirs)
    for line in (
        "model.merge_adapter()",
        "model.unmerge_adapter()",
        'name.removeprefix("base_model.model.").replace(".base_layer", "")',
        "seed=accelerator.process_index // self.tensor_parallel_size",  # train.py: prepare
    ):
        assert line in source, line
    assert "name" in inspect.signature(theirs._fix_param_name_to_vllm).parameters


if __name__ == "__main__":
    sharded(sys.argv[1])
