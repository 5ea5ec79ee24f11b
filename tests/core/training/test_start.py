"""What a start does about GPUs: one of several, one without bf16, several processes; and what a run
says to type next.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import inspect
import locale
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from r1_recipes.common import gpu
from r1_recipes.common.errors import RecipeError
from r1_recipes.models import engine
from r1_recipes.models.engine import Dimensions, fit_engine
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.engine import GIB
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.runs.run_dir import Run
from r1_recipes.training import machine
from r1_recipes.training.run import _say_next, _without_training_keys
from r1_recipes.training.start import check_encoding, check_precision, say_batch, start


@pytest.mark.parametrize(
    "keys, refused",
    [
        ({"bf16": True}, "bf16"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({}, ""),
        ({"bf16": True, "use_cpu": True}, ""),
    ],
)
def test_bf16_on_a_gpu_without_it(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch, keys: dict, refused: str
) -> None:
    recipe = load_recipe([write_recipe("grpo", **keys)], "grpo")
    recipe.training.use_cpu = keys.get("use_cpu", False)
    check_precision(recipe)
    monkeypatch.setattr(gpu, "lacks_bf16", lambda: True)
    if not refused:
        check_precision(recipe)
        return
    with pytest.raises(
        RecipeError, match=rf"tiny\.yaml: {refused}: .*--fp16 true --bf16 false --dtype float32"
    ):
        check_precision(recipe)


def test_a_start_without_a_launcher_uses_one_gpu_with_a_message(
    write_recipe: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # The recipe is one for the CPU: that the GPU has been chosen before it was read is what matters
    # here.
    run = start([write_recipe("grpo")], "grpo")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2" and not any(
        "CUDA_VISIBLE_DEVICES" in line for line in caplog.messages
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *arguments: True)
    monkeypatch.setattr(
        "r1_recipes.training.start.load_recipe",
        lambda argv, method, check, smoke: check(run.recipe.path, {}) or run.recipe,
    )
    run.recipe.training.use_cpu = False
    start([str(run.recipe.path)], "grpo")
    assert sum("CUDA_VISIBLE_DEVICES=2" in line for line in caplog.messages) == 1


def test_the_gpu_is_chosen_before_user_code_is_imported(
    write_recipe: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module may ask torch for its devices, which initialises CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    own = tmp_path / "asks_for_devices.py"
    lines = [
        "import os",
        "SEEN = os.environ['CUDA_VISIBLE_DEVICES']",
        "def reward(completions, **kwargs):",
        "    return []",
    ]
    own.write_text("\n".join(lines), encoding="utf-8")
    run = start([write_recipe("grpo", reward_funcs=[f"{own}:reward"])], "grpo")
    [reward] = get_reward_funcs(run.recipe.script.reward_funcs, run.recipe.script.response_format)
    assert inspect.unwrap(reward).__globals__["SEEN"] == "2"


@pytest.mark.parametrize(
    "options",
    [{"device_map": "auto"}, '{"device_map": "auto"}', {"attn_implementation": "sdpa"}, None],
)
def test_a_device_map_keeps_all_gpus(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    start([write_recipe("grpo", model_init_kwargs=options)], "grpo")
    spread = "device_map" in (options or {})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("2,3" if spread else "2")


def test_several_processes_log_the_size_of_a_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    training = SimpleNamespace(per_device_train_batch_size=4, gradient_accumulation_steps=16)
    say_batch(training)
    assert caplog.messages == []
    monkeypatch.setenv("WORLD_SIZE", "8")
    say_batch(training)
    assert "8 x 64 = 512" in caplog.messages[0]


@pytest.fixture
def said_next(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    monkeypatch.delenv("R1_RECIPES_STAGE", raising=False)

    def say(**keys: Any) -> str:
        path = write_recipe("grpo", **keys)
        recipe = load_recipe([path], "grpo")
        recipe.training.use_cpu = keys.get("use_cpu", True)
        caplog.set_level(logging.INFO)
        _say_next(Run(recipe, tmp_path / "run", [path]))
        return caplog.messages[-1]

    return say


def test_next_evaluates_with_vllm_if_it_is_installed(
    said_next: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "--backend" not in said_next() and f"--output {tmp_path}/run/evaluation" in said_next()
    find = importlib.util.find_spec
    spec = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: spec if name == "vllm" else find(name, *rest),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "--backend vllm --output" in said_next(use_cpu=False)
    assert "--backend" not in said_next()  # trained on the CPU
    assert f"--model {tmp_path}/run/merged --backend vllm" in (
        said := said_next(use_cpu=False, use_peft=True)
    )
    assert f"r1_recipes.adapters {tmp_path}/run\n" in said


def test_next_evaluates_on_training_rows_where_none_are_held_out(
    said_next: Callable[..., str],
) -> None:
    assert "--dataset_test_split train --model" in said_next()
    assert "--dataset_test_split" not in said_next(dataset_test_split="test")


def test_next_leaves_out_overrides_that_only_training_reads() -> None:
    argv = ["a.yaml", "--max_steps", "3", "--learning-rate=1e-5", "--temperature", "0.5", "--beta"]
    assert _without_training_keys([*argv, "0"]) == ["a.yaml", "--temperature", "0.5"]
    assert _without_training_keys(["--max_steps=3", "a.yaml"]) == ["a.yaml"]


def test_next_keeps_the_weights_that_fit_typed_rewards() -> None:
    argv = ["a.yaml", "--reward_funcs", "accuracy", "--reward_weights", "1.0"]
    assert _without_training_keys(argv) == argv


def sized(length: int | None, **keys: Any) -> SimpleNamespace:
    training = {
        "use_vllm": True,
        "vllm_max_model_length": length,
        "max_completion_length": 512,
        "vllm_mode": "colocate",
    }
    training |= {"vllm_tensor_parallel_size": 1, "vllm_gpu_memory_utilization": 0.3, **keys}
    script = SimpleNamespace(max_prompt_tokens=100)
    return SimpleNamespace(
        training=SimpleNamespace(**training),
        script=script,
        model=SimpleNamespace(),
        reward_params={},
        environment_params={},
    )


@pytest.mark.parametrize(
    "length, window, pictures, kept",
    [
        (612, 4096, False, 612),
        (612, 4096, True, None),
        (612, 512, False, None),
        (700, 512, True, 700),
        (None, 512, False, None),
    ],
)
def test_the_loaders_length_is_dropped_where_it_does_not_hold(
    length: int | None, window: int, pictures: bool, kept: int | None
) -> None:
    """Pictures are tokens, too, and no engine takes more than the model's window; what the user
    wrote stays.
    """
    recipe = sized(length)
    assert fit_engine(recipe, Dimensions(10, 10, window), pictures=pictures) is None
    assert recipe.training.vllm_max_model_length == kept


def test_a_colocated_engine_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "gpu_memory", lambda: 24 * GIB)
    size = Dimensions(3 * 10**9, 36 * 2 * 2 * 128, 32768)
    short = fit_engine(sized(612), size, pictures=False)
    assert short and not short.certain and "vllm_gpu_memory_utilization: 0.3" in short.message
    assert fit_engine(sized(612, vllm_gpu_memory_utilization=0.4), size, pictures=False) is None
    assert fit_engine(sized(612, vllm_mode="server"), size, pictures=False) is None
    assert fit_engine(sized(612), None, pictures=False) is None  # a model of unknown size


@pytest.mark.parametrize("total, outcome", [(23.0, "fits"), (21.5, "warned"), (18.0, "refused")])
def test_only_what_certainly_has_no_room_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, total: float, outcome: str
) -> None:
    """0.4 of the card for weights of 6 GiB, 0.75 to 2 GiB of overhead, and a cache of 1 GiB."""
    monkeypatch.setattr(engine, "gpu_memory", lambda: int(total * GIB))
    short = fit_engine(
        sized(1024, vllm_gpu_memory_utilization=0.4),
        Dimensions(3 * GIB, 2**19, 32768),
        pictures=False,
    )
    with (
        pytest.raises(RecipeError, match="vllm_gpu_memory_utilization")
        if outcome == "refused"
        else contextlib.nullcontext()
    ):
        engine.check_room("own.yaml:", short)
    assert [record.levelname for record in caplog.records] == (
        ["WARNING"] if outcome == "warned" else []
    )


def test_completions_that_the_model_s_window_cuts_are_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fit_engine(sized(612), Dimensions(10, 10, 512), pictures=False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert all(word in caplog.messages[0] for word in ("max_completion_length", "612", "512"))
    # A server answers such a request with an error, which would end the run.
    served = sized(612, vllm_mode="server")
    served.path = "own.yaml"
    with pytest.raises(RecipeError, match=r"own\.yaml: max_completion_length: .* 612 .* 512"):
        fit_engine(served, Dimensions(10, 10, 512), pictures=False)


def test_a_locale_or_a_name_that_the_libraries_cannot_write_is_refused(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe([write_recipe("grpo")], "grpo")
    check_encoding(recipe)
    with monkeypatch.context() as patched:
        patched.setattr(locale, "getpreferredencoding", lambda *_: "ANSI_X3.4-1968")
        with pytest.raises(RecipeError, match=r"ANSI_X3\.4-1968.*Fix: export PYTHONUTF8=1"):
            check_encoding(recipe)
    recipe.training.output_dir = os.fsdecode(b"run\xff")
    with pytest.raises(RecipeError, match=r"output_dir: must be printable text in UTF-8"):
        check_encoding(recipe)


SLEEPS = {"use_vllm": True, "vllm_enable_sleep_mode": True}


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({"use_vllm": True, "vllm_mode": "server"}, True),
        ({"use_vllm": True, "vllm_tensor_parallel_size": 2}, True),
        ({"deepspeed_plugin": SimpleNamespace(zero_stage=3)}, True),
        ({"deepspeed_plugin": SimpleNamespace(zero_stage=3), "use_vllm": True}, False),
        ({"deepspeed_plugin": SimpleNamespace(zero_stage=2)}, False),
        ({"deepspeed_plugin": SimpleNamespace(zero_stage=3), **SLEEPS}, True),
        ({"deepspeed_plugin": SimpleNamespace(zero_stage=2), **SLEEPS}, False),
        (SLEEPS, False),
        ({"use_vllm": True}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("asks", ["tools", "environment", None])
def test_turns_of_several_processes_do_not_mix(monkeypatch, keys, refused, asks) -> None:
    """TRL asks for further turns in each process until its own completions are done."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    training = {
        "use_vllm": False,
        "vllm_mode": "colocate",
        "vllm_tensor_parallel_size": 1,
        "vllm_enable_sleep_mode": False,
        "deepspeed_plugin": None,
        **keys,
    }
    script = SimpleNamespace(
        **{key: ["x"] if key == asks else None for key in ("tools", "environment")}
    )
    recipe = SimpleNamespace(
        method="grpo", path="x.yaml", script=script, training=SimpleNamespace(**training)
    )
    with (
        pytest.raises(RecipeError, match="tools") if refused and asks else contextlib.nullcontext()
    ):
        machine.check_turns(recipe)
    monkeypatch.setenv("WORLD_SIZE", "1")
    machine.check_turns(recipe)
