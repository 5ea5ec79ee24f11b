"""Every file in accelerate_configs/: what accelerate makes of it."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, dict[str, str]]]:
    """``launched(path, "--num_machines", "2", …)``: the launcher that accelerate chooses, and what
    it adds to the environment.
    """
    from accelerate.commands import launch
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    def run(path: Path, *flags: str) -> tuple[str, dict[str, str]]:
        chosen: list[tuple[str, Any]] = []
        for name in ("deepspeed_launcher", "multi_gpu_launcher", "simple_launcher"):
            monkeypatch.setattr(launch, name, lambda args, name=name: chosen.append((name, args)))
        # A free port: what runs on this machine is none of the file's business.
        words = [
            "--config_file",
            str(path),
            "--main_process_port",
            "0",
            *flags,
            "-m",
            "r1_recipes.grpo",
        ]
        launch.launch_command(launch.launch_command_parser().parse_args(words))
        ((name, args),) = chosen
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if name == "multi_gpu_launcher":
                environment = prepare_multi_gpu_env(args)
            else:
                _, environment = (
                    prepare_deepspeed_cmd_env
                    if name == "deepspeed_launcher"
                    else prepare_simple_launcher_cmd_env
                )(args)
        assert [str(warning.message) for warning in caught] == []
        counts = {
            "nproc": getattr(args, "nproc_per_node", None),
            "nnodes": getattr(args, "nnodes", None),
        }
        return name, {
            **{k: v for k, v in environment.items() if os.environ.get(k) != v},
            **{k: v for k, v in counts.items() if v},
        }

    return run


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = os.environ.copy()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.parametrize(
    ("name", "launcher", "expected"),
    [
        (
            "cpu",
            "simple_launcher",
            {"ACCELERATE_USE_CPU": "True", "ACCELERATE_MIXED_PRECISION": "no"},
        ),
        (
            "single_gpu",
            "simple_launcher",
            {"ACCELERATE_USE_CPU": "False", "ACCELERATE_MIXED_PRECISION": "bf16"},
        ),
        ("ddp", "multi_gpu_launcher", {"ACCELERATE_MIXED_PRECISION": "bf16", "nproc": "8"}),
        (
            "fsdp2",
            "multi_gpu_launcher",
            {
                "ACCELERATE_MIXED_PRECISION": "bf16",
                "ACCELERATE_USE_FSDP": "true",
                "FSDP_VERSION": "2",
                "FSDP_RESHARD_AFTER_FORWARD": "true",
                "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
                "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
                "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
                "FSDP_OFFLOAD_PARAMS": "false",
                "FSDP_ACTIVATION_CHECKPOINTING": "false",
                "nproc": "8",
            },
        ),
        (
            "zero2",
            "deepspeed_launcher",
            {
                "ACCELERATE_MIXED_PRECISION": "bf16",
                "ACCELERATE_USE_DEEPSPEED": "true",
                "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
                "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
                "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
                "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
                "nproc": "8",
            },
        ),
        (
            "zero3",
            "deepspeed_launcher",
            {
                "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
                "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
                "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
                "nproc": "8",
            },
        ),
    ],
)
def test_what_accelerate_makes_of_a_config(
    launched: Callable, name: str, launcher: str, expected: dict[str, str]
) -> None:
    found, variables = launched(REPOSITORY / "accelerate_configs" / f"{name}.yaml")
    assert found == launcher
    assert {key: variables.get(key) for key in expected} == expected
