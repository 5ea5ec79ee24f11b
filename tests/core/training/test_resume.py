"""A run that goes on trains its remaining steps at today's rate and with today's settings."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import utils
from accelerate.utils.deepspeed import DeepSpeedSchedulerWrapper, DummyOptim, DummyScheduler
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.integrations.deepspeed import deepspeed_optim_sched

from r1_recipes import sft
from r1_recipes.training import callbacks
from r1_recipes.training.resume import TodaysSettings
from tests.conftest import log_lines, metrics
from tests.core.training.test_faults import unfinished

START = {"max_steps": 8, "save_steps": 4, "lr_scheduler_type": "linear", "weight_decay": 0.1}


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the optimizer's first parameter group holds after each step."""
    seen: list[dict[str, Any]] = []
    before = callbacks.StopAndSave.on_step_end

    def on_step_end(
        self: Any, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> Any:
        seen.append(
            {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        )
        return before(self, args, state, control, **kwargs)

    monkeypatch.setattr(callbacks.StopAndSave, "on_step_end", on_step_end)
    return seen


def stop_after_four(run: Path) -> None:
    """As a stop in step 4 leaves a run that was trained to its end."""
    shutil.rmtree(run / "checkpoint-8")
    unfinished(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 1e-3},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr_rate": 0.5}'},
        {"warmup_steps": 6},
        {"max_steps": 12},
        {"weight_decay": 0.0, "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_remaining_steps_follow_today_s_settings(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    groups: list[dict[str, Any]],
    changes: dict[str, Any],
) -> None:
    path = write_recipe("sft", **START)
    sft.main([path])
    stop_after_four(tmp_path / "run")
    typed = [word for key, value in changes.items() for word in (f"--{key}", str(value))]
    groups.clear()
    sft.main([path, *typed])
    resumed = groups.copy()
    groups.clear()
    sft.main([path, *typed, "--output_dir", str(tmp_path / "new")])
    assert resumed == groups[4:] and resumed[0]["lr"] > 0
    rates = [
        [entry["learning_rate"] for entry in metrics(tmp_path / name)] for name in ("run", "new")
    ]
    assert rates[0][4:] == rates[1][4:]


def test_steps_between_checkpoints_and_logs_follow_too(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    path = write_recipe("sft", **START)
    sft.main([path])
    stop_after_four(tmp_path / "run")
    sft.main([path, "--save_steps", "3", "--logging_steps", "2"])
    assert {folder.name for folder in (tmp_path / "run").glob("checkpoint-*")} >= {
        "checkpoint-4",
        "checkpoint-6",
        "checkpoint-8",
    }
    assert [entry["step"] for entry in metrics(tmp_path / "run")] == [1, 2, 3, 4, 6, 8]


def test_tied_weights_are_not_called_missing(
    write_recipe: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_recipe("sft", **START)
    sft.main([path])
    stop_after_four(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"]
    logging.getLogger("transformers").propagate = True
    try:
        sft.main([path])
    finally:
        logging.getLogger("transformers").propagate = False
    assert any("resuming from" in line for line in log_lines(tmp_path / "run"))
    assert not [line for line in caplog.messages if "missing keys" in line]


def bare_trainer(tmp_path: Path) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        learning_rate=0.5,
        lr_scheduler_type="constant",
        report_to="none",
    )
    return Trainer(model=torch.nn.Linear(2, 2), args=arguments)


@pytest.mark.parametrize(
    "sections", [{"optimizer"}, {"scheduler"}, {"optimizer", "scheduler"}], ids=sorted
)
def test_optimizer_and_schedule_of_a_deepspeed_file_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: set[str]
) -> None:
    for kind in (
        DummyOptim,
        DummyScheduler,
    ):  # accelerate has them there where DeepSpeed is installed
        monkeypatch.setattr(utils, kind.__name__, kind, raising=False)
    trainer = bare_trainer(tmp_path)
    callback = TodaysSettings(trainer)
    # As Trainer._prepare_for_training does.
    file = SimpleNamespace(config={key: {} for key in sections}, is_offload=lambda: False)
    parameters = list(trainer.model.parameters())
    trainer.optimizer, trainer.lr_scheduler = deepspeed_optim_sched(
        trainer, file, trainer.args, 4, parameters
    )
    trainer.create_optimizer()
    if (
        "scheduler" not in sections
    ):  # DeepSpeed asks for Transformers' schedule of its own optimizer
        made = trainer.lr_scheduler.lr_scheduler_callable(torch.optim.SGD(parameters, lr=0.1))
        assert isinstance(made, LambdaLR)
    trainer.lr_scheduler = object.__new__(DeepSpeedSchedulerWrapper)
    trainer.create_scheduler(num_training_steps=4)
    callback.on_train_begin(
        trainer.args, TrainerState(max_steps=4), None, lr_scheduler=trainer.lr_scheduler
    )


def test_what_deepspeed_loads_before_transformers_does_is_set_right(tmp_path: Path) -> None:
    trainer = bare_trainer(tmp_path)
    callback = TodaysSettings(trainer)
    trainer.create_optimizer()
    trainer.create_scheduler(num_training_steps=4)
    for group in (
        trainer.optimizer.param_groups
    ):  # deepspeed_load_checkpoint, before _load_optimizer_and_scheduler
        group.update(lr=7.0, initial_lr=7.0, weight_decay=7.0)
    trainer.lr_scheduler.base_lrs = [7.0, 7.0]
    callback.on_train_begin(
        trainer.args, TrainerState(max_steps=4), None, lr_scheduler=trainer.lr_scheduler
    )
    assert trainer.lr_scheduler.base_lrs == [0.5, 0.5]
    assert {
        (group["lr"], group["initial_lr"], group["weight_decay"])
        for group in trainer.optimizer.param_groups
    } == {(0.5, 0.5, 0.0)}
