"""Every file in accelerate_configs/: what accelerate makes of it, and that every recipe goes with
it.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from r1_recipes.recipe.load import Recipe, load_recipe
from tests.conftest import RECIPES, REPOSITORY, method_of

CONFIGS = sorted((REPOSITORY / "accelerate_configs").glob("*.yaml"))
# Those that tests/test_launchers.py, tests/core/training/test_deepspeed.py and this file train
# with; the others need CUDA, and say so.
DEEPSPEED = ["zero2", "zero2_offload", "zero3", "zero3_offload"]
RUN = {"cpu", "ddp", "fsdp2", *DEEPSPEED}
NAME = {"ids": lambda path: f"{path.parent.name}/{path.stem}"}
TRAINED = [path for path in RECIPES if method_of(path) in ("grpo", "sft", "distill", "reward")]
# A recipe for GPUs can be resolved where there is none, with these.
ON_CPU = ["--use_cpu", "true", "--bf16", "false", "--tf32", "none"]
# Keys of a config file that say what starts the processes, not what they do.
EVERYWHERE = {
    "compute_environment",
    "debug",
    "distributed_type",
    "downcast_bf16",
    "machine_rank",
    "main_training_function",
}
EVERYWHERE |= {"mixed_precision", "num_machines", "num_processes", "use_cpu"}
HAS_TO = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


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


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@HAS_TO
def test_a_config_is_run_by_a_test_or_says_that_it_was_not(path: Path) -> None:
    head = re.match(r"(#[^\n]*\n)+", path.read_text(encoding="utf-8"))[0]
    assert ("Not run here" in head) == (path.stem not in RUN)


@HAS_TO
def test_accelerate_knows_every_key(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    # It refuses an unknown key of the file by itself, but not one of a section.
    loaded = load_config_from_file(str(path))
    sections = {"fsdp_config", "deepspeed_config"}
    for key, value in read(path).items():
        if key not in sections:
            assert (
                getattr(loaded, key, None) in (value, None)
                or str(getattr(loaded, key).value) == value
            )
    parser = __import__(
        "accelerate.commands.launch", fromlist=["launch_command_parser"]
    ).launch_command_parser()
    known = {action.dest for action in parser._actions}
    for section in sections & set(read(path)):
        assert set(read(path)[section]) <= known


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
            "zero2_offload",
            "deepspeed_launcher",
            {
                "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
                "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
                "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
                "nproc": "1",
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


@pytest.mark.parametrize(
    "path",
    [path for path in CONFIGS if path.stem not in ("cpu", "single_gpu")],
    ids=lambda path: path.stem,
)
def test_the_launchers_flags_spread_a_config_over_nodes(launched: Callable, path: Path) -> None:
    flags = [
        "--num_machines",
        "3",
        "--num_processes",
        "24",
        "--machine_rank",
        "1",
        "--main_process_ip",
        "10.0.0.1",
    ]
    _, variables = launched(path, *flags)
    # 24 processes on 3 machines, which torch's own launcher starts, not pdsh.
    assert (variables["nproc"], variables["nnodes"]) == ("8", "3")


def test_fsdp2_is_what_its_plugin_understands(launched: Callable) -> None:
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    _, variables = launched(REPOSITORY / "accelerate_configs" / "fsdp2.yaml")
    with environment(
        {key: value for key, value in variables.items() if key.startswith(("FSDP_", "ACCELERATE_"))}
    ):
        plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward, plugin.activation_checkpointing) == (
        2,
        True,
        False,
    )
    assert plugin.auto_wrap_policy is transformer_auto_wrap_policy
    assert plugin.state_dict_type.name == "FULL_STATE_DICT" and not plugin.cpu_ram_efficient_loading


def deepspeed_settings(launched: Callable, name: str) -> dict[str, Any]:
    from accelerate import DeepSpeedPlugin

    _, variables = launched(REPOSITORY / "accelerate_configs" / f"{name}.yaml")
    with environment(
        {key: value for key, value in variables.items() if key.startswith("ACCELERATE_")}
    ):
        plugin = DeepSpeedPlugin()
    assert plugin.zero3_init_flag == name.startswith("zero3")
    return plugin.deepspeed_config


@pytest.mark.parametrize(
    ("name", "stage", "optimizer"),
    [
        ("zero2", 2, "none"),
        ("zero2_offload", 2, "cpu"),
        ("zero3", 3, "none"),
        ("zero3_offload", 3, "cpu"),
    ],
)
def test_deepspeed_gets_these_settings(
    launched: Callable, name: str, stage: int, optimizer: str
) -> None:
    settings = deepspeed_settings(launched, name)
    # "auto" is the recipe's: Transformers puts its batch sizes, steps and clipping there.
    assert settings == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": float("inf"),
        "zero_optimization": {
            "stage": int(name[4]),
            "offload_optimizer": {
                "device": "cpu" if name.endswith("offload") else "none",
                "nvme_path": None,
            },
            "offload_param": {"device": "none", "nvme_path": None},
            "stage3_gather_16bit_weights_on_model_save": name.startswith("zero3"),
        },
    }


@pytest.fixture(scope="module")
def resolved() -> Callable[..., Recipe]:
    """``resolved(path, word, …)``: a recipe with these overrides, read once; nothing of it may be
    changed.
    """
    kept: dict[tuple, Recipe] = {}

    def read_once(path: Path, *words: str) -> Recipe:
        if (path, words) not in kept:
            with environment({}):
                kept[path, words] = load_recipe([str(path), *ON_CPU, *words], method_of(path))
        return kept[path, words]

    return read_once


@pytest.fixture(scope="module")
def exported() -> dict[str, dict[str, str]]:
    """What the launcher exports, by the name of the config file; filled by the first test that
    asks.
    """
    return {}


@pytest.mark.parametrize("recipe", TRAINED, **NAME)
def test_every_recipe_goes_with_every_config(
    launched: Callable, exported: dict, resolved: Callable, recipe: Path
) -> None:
    """Resolved in the environment that the launcher makes of each file, a recipe is the same, in
    its own precision.
    """
    loaded = resolved(recipe)
    for path in CONFIGS:
        if path.stem not in exported:
            variables = launched(path)[1].items()
            exported[path.stem] = {
                key: value for key, value in variables if key.startswith(("ACCELERATE_", "FSDP_"))
            }
        # With DeepSpeed's variables the arguments can be built only where it is installed:
        # tests/core/training/test_deepspeed.py.
        with environment(
            {key: value for key, value in exported[path.stem].items() if "DEEPSPEED" not in key}
        ):
            there = load_recipe(
                [str(recipe), *ON_CPU], loaded.method, world_size=read(path)["num_processes"]
            )  # whose groups fill the batch
        assert (path.stem, there.settings, there.training.mixed_precision) == (
            path.stem,
            loaded.settings,
            "no",
        )
