"""What a run that goes on takes and refuses: every key is in one class, and refusals follow the
table.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.load import Recipe
from r1_recipes.recipe.types import argument_types
from r1_recipes.runs import checkpoints, resume, run_dir

pytestmark = pytest.mark.slow

METHODS = [
    ("grpo", {}),
    ("sft", {}),
    ("reward", {}),
    ("distill", {}),
    ("distill", {"distill_with": "gold"}),
    ("distill", {"distill_with": "server"}),
]


def fields_of(method: str, settings: dict[str, str]) -> set[str]:
    return {f.name for kind in argument_types(method, settings) for f in dataclasses.fields(kind)}


@pytest.mark.parametrize(("method", "settings"), METHODS)
def test_every_key_that_a_training_recipe_may_have_is_in_one_class(
    method: str, settings: dict[str, str]
) -> None:
    assert fields_of(method, settings) - resume.CLASSES.keys() == set(), (
        "say in runs/resume.yaml what a run that goes on does with it"
    )


def loaded(path: str, *overrides: str, method: str = "grpo") -> Recipe:
    return load_recipe([path, *overrides], method)


def stopped(recipe: Recipe, folder: Path) -> Path:
    """A run's folder as a start leaves it that was stopped after two steps."""
    checkpoint = folder / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    shutil.rmtree(checkpoint)
    run_dir.claim(run_dir.Run(recipe, folder, ["tiny.yaml"]))
    checkpoint.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (checkpoint / "scheduler.pt").write_text("")
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 2}))
    checkpoints.write_manifest(checkpoint)
    return folder


def go_on(recipe: Recipe, folder: Path) -> Path | None:
    run_dir.check(recipe, folder)
    return checkpoints.resume_point(recipe, folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lora_r", "8"),
        ("use_peft", "true"),
        ("dtype", "bfloat16"),
        ("optim", "adafactor"),
        ("unfrozen_parameters", "lm_head"),
        ("num_iterations", "2"),
        ("max_samples", "4"),
        ("dataset_train_split", "train[:-2]"),
        ("system_prompt", "Think."),
        ("mapper", "prompt_solution"),
        ("cosine_max_len", "7"),
        ("eval_strategy", "steps"),
    ],
)
def test_what_a_checkpoint_cannot_follow_is_refused_by_name(
    write_recipe: Callable[..., str], tmp_path: Path, key: str, value: str
) -> None:
    path = write_recipe("grpo", reward_funcs=["tests.conftest:letters", "cosine"])
    run = stopped(loaded(path), tmp_path / "run")
    with pytest.raises(
        RecipeError,
        match=rf"checkpoint-2 was saved with other settings: {key}: .* Fix: the old values, or "
        rf".*checkpoint-2",
    ):
        go_on(loaded(path, f"--{key}", value), run)
    # Without a checkpoint the run starts anew.
    shutil.rmtree(run / "checkpoint-2")
    assert go_on(loaded(path, f"--{key}", value), run) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("learning_rate", "1e-4"), ("beta", "0.1"), ("temperature", "0.7"), ("save_steps", "1")],
)
def test_accepted_changes_are_logged(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    key: str,
    value: str,
) -> None:
    path = write_recipe("grpo")
    run = stopped(loaded(path), tmp_path / "run")
    assert go_on(loaded(path, f"--{key}", value), run) == run / "checkpoint-2"
    (line,) = caplog.messages
    assert line.startswith(f"{key} was ") and "use the new value" in line


def test_writing_out_a_default_is_not_a_change(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    path = write_recipe("grpo", reward_funcs=["tests.conftest:letters", "cosine"])
    run = stopped(loaded(path), tmp_path / "reward")
    assert (
        run_dir.changed_settings(loaded(path, "--cosine_max_len", "1000"), run) == []
    )  # a reward's own, too
    path = write_recipe("grpo")
    run = stopped(loaded(path), tmp_path / "run")
    written_out = loaded(
        path,
        "--lora_r",
        "16",
        "--num_iterations",
        "1",
        "--dataset_train_split",
        "train",
        "--warmup_steps",
        "0",
    )
    assert run_dir.changed_settings(written_out, run) == []


# Data and code


def edited(path: Path) -> None:
    path.write_text(path.read_text().replace("2", "3"))


def test_a_data_file_that_was_edited_is_refused_and_one_that_was_moved_is_not(
    write_recipe: Callable[..., str], sums: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copy(sums, tmp_path / "own.jsonl"))
    path = write_recipe("grpo", dataset_name=str(data))
    run = stopped(loaded(path), tmp_path / "run")
    moved = Path(shutil.copy(sums, tmp_path / "moved.jsonl"))
    assert go_on(loaded(path, "--dataset_name", str(moved)), run)
    edited(moved)
    with pytest.raises(RecipeError, match="dataset_name: "):
        go_on(loaded(path, "--dataset_name", str(moved)), run)
    edited(data)
    for words in (
        (),
        ("--resume_from_checkpoint", "true"),
    ):  # which is for mended code: other rows have no same place to go on at
        with pytest.raises(
            RecipeError, match=rf"the data in {data} changed since .* Fix: undo the change, or "
        ):
            go_on(loaded(path, *words), run)
    shutil.rmtree(run / "checkpoint-2")
    assert go_on(loaded(path), run) is None  # nothing was trained that it would be mixed with
