"""A run that goes on trains its remaining steps at today's rate and with today's settings."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r1_recipes import sft
from r1_recipes.training import callbacks
from tests.conftest import log_lines, metrics
from tests.core.training.test_faults import unfinished

pytestmark = pytest.mark.slow

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
