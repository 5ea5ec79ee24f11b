"""What a run that goes on takes and refuses: every key is in one class, and refusals follow the
table.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.load import Recipe
from r1_recipes.recipe.types import argument_types
from r1_recipes.rewards import REWARDS, reward_parameters
from r1_recipes.runs import checkpoints, resume, run_dir, sources
from tests.conftest import REPOSITORY
from tests.support.needs import needs

METHODS = [
    ("grpo", {}),
    ("grpo", {"train_with": "sdpo"}),
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


@needs("code")
def test_no_key_is_in_two_classes_and_none_is_made_up() -> None:
    table = yaml.safe_load(
        Path(resume.__file__).with_name("resume.yaml").read_text(encoding="utf-8")
    )
    keys = Counter(
        key for groups in table.values() for group in groups.values() for key in group.split()
    )
    assert {key for key, count in keys.items() if count > 1} == set()
    known = {"retry_failed", *reward_parameters(REWARDS)}.union(
        *(fields_of(*method) for method in METHODS)
    )
    assert keys.keys() - known == set()


def test_the_page_names_every_group_of_the_table() -> None:
    page = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    _, _, section = page.partition("### Changing keys of a run that resumes")
    section = section.partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert {
        "learning_rate",
        "max_steps",
        "weight_decay",
        "lora_r",
        "optim",
        "num_generations",
        "mapper",
        "system_prompt",
    } <= named
    rows = {
        line.split("|")[1].strip(): set(re.findall(r"`(\w+)`", line))
        for line in section.splitlines()
        if line.startswith("|")
    }
    classes = {
        "is taken": "taken",
        "is taken where": "batch",
        "is refused": "another run",
        "is refused where": "checkpoint",
    }
    for begins, name in classes.items():
        (row,) = (
            keys
            for heading, keys in rows.items()
            if heading.startswith(begins) and (begins.endswith("where") == ("where" in heading))
        )
        assert {key: resume.key_class(key) for key in row} == dict.fromkeys(row, name)


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


@pytest.mark.parametrize(
    ("key", "then", "now"),
    [("eval_strategy", "steps", "epoch"), ("optim", "adamw_torch", "adamw_torch_fused")],
)
def test_another_spelling_of_the_same_rows_or_state_is_accepted(
    write_recipe: Callable[..., str], tmp_path: Path, key: str, then: str, now: str
) -> None:
    path = write_recipe("grpo", **{key: then})
    run = stopped(loaded(path), tmp_path / "run")
    assert go_on(loaded(path, f"--{key}", now), run)


def test_a_schedule_that_follows_the_loss_keeps_its_rate(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    path = write_recipe("sft", lr_scheduler_type="greedy", eval_strategy="steps", eval_steps=2)
    run = stopped(loaded(path, method="sft"), tmp_path / "run")
    assert go_on(loaded(path, method="sft"), run)
    with pytest.raises(RecipeError, match=r"learning_rate: .*greedy keeps its rate"):
        go_on(loaded(path, "--learning_rate", "1e-4", method="sft"), run)


def test_a_reference_that_moves_is_in_no_checkpoint(
    write_recipe: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = loaded(write_recipe("grpo", sync_ref_model=True, beta=0.1))
    go_on(recipe, stopped(recipe, tmp_path / "run"))
    assert [line.split(":")[0] for line in caplog.messages] == ["sync_ref_model"]


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


def test_a_mixture_s_folders_are_data_too(
    write_recipe: Callable[..., str], sums: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    shutil.copy(sums, folder / "train.jsonl")
    mixture = {"datasets": [{"id": str(folder)}, {"id": str(sums)}]}
    recipe = loaded(write_recipe("grpo", dataset_name=None, dataset_mixture=mixture))
    run = stopped(recipe, tmp_path / "run")
    (folder / ".hidden").write_text("no data")
    assert go_on(recipe, run)
    (folder / "more.jsonl").write_text("{}")
    with pytest.raises(RecipeError, match=rf"the data in {folder} changed"):
        go_on(recipe, run)


def test_user_code_that_was_edited_is_refused(
    write_recipe: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "own_reward", None)
    del sys.modules["own_reward"]
    code = tmp_path / "own_reward.py"
    code.write_text("def two(completions, **columns):\n    return [2.0] * len(completions)\n")
    recipe = loaded(write_recipe("grpo", reward_funcs=["own_reward:two"]))
    run = stopped(recipe, tmp_path / "run")
    assert go_on(recipe, run)
    edited(code)
    with pytest.raises(
        RecipeError, match=r"the code of own_reward changed.*--resume_from_checkpoint true"
    ):
        go_on(recipe, run)
    mended = loaded(
        write_recipe("grpo", reward_funcs=["own_reward:two"]), "--resume_from_checkpoint", "true"
    )
    assert go_on(mended, run)
    # A recipe that always says so agrees to nothing.
    with pytest.raises(RecipeError, match="the code of own_reward changed"):
        go_on(
            loaded(
                write_recipe("grpo", reward_funcs=["own_reward:two"], resume_from_checkpoint=True)
            ),
            run,
        )


def test_modules_that_user_code_imports_from_its_folder_are_checked_too(
    write_recipe: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own_judge", "own_helper"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    helper = tmp_path / "own_helper.py"
    helper.write_text("two = 2.0\n")
    (tmp_path / "own_judge.py").write_text(
        "from own_helper import two\n\n\ndef pay(completions, **columns):\n    return [two] "
        "* len(completions)\n"
    )
    path = write_recipe("grpo", reward_funcs=[f"{tmp_path}/own_judge.py:pay"])
    run = stopped(loaded(path), tmp_path / "run")
    assert go_on(loaded(path), run)
    edited(helper)
    with pytest.raises(
        RecipeError, match=r": the code of own_helper changed.*--resume_from_checkpoint true"
    ):
        go_on(loaded(path), run)
    assert go_on(loaded(path, "--resume_from_checkpoint", "true"), run)


def test_a_large_file_is_identified_by_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from r1_recipes.common import files

    monkeypatch.setattr(files, "_PIECES", 4)
    monkeypatch.setattr(files, "_PIECE", 8)
    path, found = tmp_path / "rows", set()
    content = bytearray(1000)
    for change in (
        None,
        0,
        999,
        1000 - 8,
    ):  # the first piece, the last byte, the last piece's first
        if change is not None:
            content[change] = 1
        path.write_bytes(content)
        files._digest.cache_clear()
        found.add(files.sampled_digest(path))
    path.write_bytes(content + b"x")
    found.add(files.sampled_digest(path))
    assert len(found) == 5
    assert sources.digests({"dataset_name": str(path)}) == {
        f"the data in {path}": files.sampled_digest(path)
    }
