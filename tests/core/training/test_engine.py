"""What vLLM is sent of the trained model, and how it is asked to sample, with an engine that only
records.
"""

import copy
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

pytest.importorskip("trl")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from trl.generation import vllm_generation

from r1_recipes.training.engine import Engine
from tests.support.commands import succeed

IDS = torch.arange(5, 25).reshape(2, 10)
LORA = {
    "r": 8,
    "lora_alpha": 32,
    "target_modules": ["q_proj", "v_proj", "down_proj"],
    "task_type": "CAUSAL_LM",
}


class RecordingLLM:
    """vLLM's class: what it was built with, and the weights that it was sent last."""

    def __init__(self, **options: Any) -> None:
        self.options, self.weights = options, {}
        numpy.random.seed(options["seed"])  # as vLLM's worker does
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.weights |= {name: weight.detach().clone() for name, weight in weights}

    def reset_prefix_cache(self) -> None:
        pass


def sharded(folder: str) -> None:
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
        make = _builder(patched)
        engines = make(whole), make(pieces, fsdp=2, rank=torch.distributed.get_rank(), ranks=2)
        before = {name: piece.to_local() for name, piece in bits(pieces).items()}
        log_probs(pieces)  # as an evaluation does: what follows finds the last layers whole
        for engine in engines:
            engine.sync_weights()
        sent, wanted = (engine.llm.weights for engine in reversed(engines))
        assert sent.keys() == wanted.keys() and all(
            sent[name].equal(value) for name, value in wanted.items()
        )
        assert all(piece.to_local().equal(before[name]) for name, piece in bits(pieces).items())
    torch.distributed.destroy_process_group()


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    return _builder(monkeypatch)


def _builder(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Build an engine of ours; ``state`` and the like are the accelerator's."""
    monkeypatch.setattr(vllm_generation, "LLM", RecordingLLM, raising=False)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))  # TRL sets them

    def make(
        model: Any,
        *,
        seed: int = 42,
        rank: int = 0,
        ranks: int = 1,
        fsdp: int | None = None,
        **options: Any,
    ) -> Engine:
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
        given = {
            "model": model,
            "accelerator": accelerator,
            "processing_class": None,
            "max_num_seqs": 8,
            **options,
        }
        return Engine(seed=seed, **given)

    return make


def base_model(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.name_or_path = str(folder)
    return model


def with_adapters(folder: Path, **changes: Any) -> PeftModel:
    """A bf16 base with adapters in fp32, as after some steps."""
    torch.manual_seed(0)
    model = get_peft_model(base_model(folder), LoraConfig(**LORA | changes))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            if "lora_B" in name or "embedding_A" in name:
                torch.nn.init.normal_(parameter.data, std=0.02)
    return model.eval()


def bits(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def log_probs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float().log_softmax(-1)


@pytest.mark.parametrize(
    "changes",
    [{}, {"use_dora": True}, {"use_rslora": True}, {"modules_to_save": ["norm"]}],
    ids=str,
)
def test_adapters_are_sent_merged_and_the_base_keeps_its_bits(
    build: Callable, tiny_model: Path, tmp_path: Path, changes: dict
) -> None:
    model = with_adapters(tiny_model, **changes)
    before, policy = bits(model), log_probs(model)
    engine = build(model)
    engine.sync_weights()
    engine.sync_weights()
    after = bits(model)
    assert before.keys() == after.keys() and all(
        after[name].equal(value) for name, value in before.items()
    )
    assert log_probs(model).equal(policy)

    # In fp32 by PEFT's own hand, and cast at the end.
    exact = copy.deepcopy(model).float().merge_and_unload()
    wanted = {name: parameter.bfloat16() for name, parameter in exact.named_parameters()}
    assert engine.llm.weights.keys() == wanted.keys()
    assert all(
        value.dtype == torch.bfloat16 or "norm" in name
        for name, value in engine.llm.weights.items()
    )
    assert all(engine.llm.weights[name].bfloat16().equal(value) for name, value in wanted.items())

    # Whoever puts the saved adapter on the clean base has the trained policy.
    model.save_pretrained(tmp_path / "adapter")
    assert log_probs(
        PeftModel.from_pretrained(base_model(tiny_model), tmp_path / "adapter").eval()
    ).equal(policy)


@pytest.mark.e2e
def test_the_pieces_of_fsdp2_are_sent_whole(tiny_model: Path) -> None:
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "tests.core.training.test_engine",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    succeed([*launcher, str(tiny_model)], environment)


def test_the_stream_of_samples_follows_the_seed_and_the_group_of_ranks(
    build: Callable, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM gives a request without a seed one of NumPy's global generator
    (v1/worker/gpu/sample/states.py of 0.31).
    """
    monkeypatch.setattr(
        torch.distributed, "new_subgroups_by_enumeration", lambda ranks: (None, None)
    )
    model = base_model(tiny_model)

    def draw(**options: int) -> tuple[int, float]:
        build(model, ranks=8, **options)
        return int(numpy.random.randint(1 << 62)), float(torch.rand(1))

    streams = {
        (seed, rank): draw(seed=seed, rank=rank) for seed in (0, 1, 2, 42) for rank in range(8)
    }
    assert len(set(streams.values())) == len(streams)
    assert draw(seed=1, rank=3) == streams[1, 3]
    # The ranks of one tensor-parallel group must sample the same.
    assert draw(seed=1, rank=2, tensor_parallel_size=2) == draw(
        seed=1, rank=3, tensor_parallel_size=2
    )
    assert draw(seed=1, rank=1, tensor_parallel_size=2) != draw(
        seed=1, rank=2, tensor_parallel_size=2
    )


def test_the_private_names_of_trl_that_the_engine_uses_are_there() -> None:
    theirs = vllm_generation.VLLMGeneration
    for method in (theirs._iter_named_params, theirs._init_vllm):
        assert list(inspect.signature(method).parameters) == ["self"]
    source = inspect.getsource(theirs)
    for line in (
        "model.merge_adapter()",
        "model.unmerge_adapter()",
        'name.removeprefix("base_model.model.").replace(".base_layer", "")',
        "self._dist = DistributedBackend(accelerator)",
        "seed=accelerator.process_index // self.tensor_parallel_size",
        "max_num_batched_tokens=4096",
        "self.tp_group, _ = torch.distributed.new_subgroups_by_enumeration(",
    ):
        assert line in source, line
    assert "max_num_seqs" in inspect.signature(theirs).parameters
    assert "name" in inspect.signature(theirs._fix_param_name_to_vllm).parameters


if __name__ == "__main__":
    sharded(sys.argv[1])
