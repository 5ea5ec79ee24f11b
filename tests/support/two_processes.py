"""Run by each process of test_processes.py: ``torchrun … -m tests.support.two_processes
dies|stops|all FOLDER MODEL DATA``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from accelerate import PartialState

from r1_recipes import grpo, sft
from r1_recipes.common import processes

_calls = 0


def tokens(
    completion_ids: list, trainer_state: Any, log_extra: Callable[[str, list], None], **columns: Any
) -> list[float]:
    """The number of tokens, which also goes to the completions table; with ``R1_TEST_DIES`` rank 1
    fails in its fourth step.
    """
    global _calls
    _calls += trainer_state.train_batch_size is not None  # not the try before training
    if os.environ.get("R1_TEST_DIES") and _calls == 4 and processes.rank() == 1:
        raise ValueError("rank 1 has lost its disk")
    log_extra("tokens", [len(ids) for ids in completion_ids])
    return [float(len(ids)) for ids in completion_ids]


def settings(folder: Path, model: str, data: str, name: str, **changes: Any) -> dict[str, Any]:
    """A recipe of four steps, with four completions or rows a step in all; ``None`` leaves a key
    out.
    """
    keys = {
        "model_name_or_path": model,
        "dataset_name": data,
        "mapper": "gsm8k",
        "response_format": "think_answer",
        "system_prompt": "",
        "dtype": "float32",
        "use_cpu": True,
        "seed": 1,
        "output_dir": str(folder / name),
        **changes,
    }
    return {key: value for key, value in keys.items() if value is not None}


def training(**changes: Any) -> dict[str, Any]:
    """The keys of a training recipe."""
    return {
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": 4,
        "logging_steps": 1,
        "save_steps": 2,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "report_to": "none",
        **changes,
    }


def grpo_training(**changes: Any) -> dict[str, Any]:
    """Four completions a prompt, two in each process: every group is cut in two."""
    rewards = {
        "reward_funcs": ["tests.support.two_processes:tokens", "length"],
        "num_generations": 4,
        "max_completion_length": 100,
    }
    return training(**{**rewards, "log_completions": True, **changes})


def main() -> None:
    """Everything, one after the other: starting the processes takes most of the time."""
    what, folder, model, data = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]

    def run(entry_point: Callable, name: str, changes: dict[str, Any]) -> None:
        recipe = folder / f"{name}.yaml"
        if processes.rank() == 0:
            recipe.write_text(yaml.safe_dump(settings(folder, model, data, name, **changes)))
        state = PartialState(cpu=True)
        state.wait_for_everyone()
        entry_point([str(recipe)])
        state.wait_for_everyone()

    if what == "dies":
        os.environ["R1_TEST_DIES"] = "1"
        run(grpo.main, "grpo", grpo_training())
    elif what == "stops":
        run(grpo.main, "stopped", grpo_training(max_steps=400, save_steps=1000))
    else:
        run(grpo.main, "grpo", grpo_training())  # goes on where it died
        run(grpo.main, "grpo_straight", grpo_training())
        run(sft.main, "sft", training())


if __name__ == "__main__":
    main()
