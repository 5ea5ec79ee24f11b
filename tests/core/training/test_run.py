"""The run directory, torn checkpoints, vLLM and trackers where they are missing, tokenizers and
prefills, the log.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from r1_recipes import grpo, sft
from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.completions import load_format
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer
from r1_recipes.prompts import CHATML, get_response_format
from r1_recipes.recipe import load, load_recipe
from r1_recipes.recipe.load import Recipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.runs import checkpoints, run_dir, sources
from r1_recipes.training import callbacks
from r1_recipes.training.start import (
    check_generation_backend,
    check_processes,
    check_trackers,
    plan,
    prepare_trackers,
    start,
    steps_of,
)
from tests.conftest import log_lines


def loaded(path: str, *overrides: str, method: str = "grpo") -> Recipe:
    return load_recipe([path, *overrides], method)


# The run directory


def claim(loaded: Recipe, folder: Path, step: int = 0) -> None:
    """As a start does it."""
    folder.mkdir(parents=True, exist_ok=True)
    run_dir.check(loaded, folder)
    run_dir.claim(run_dir.Run(loaded, folder, ["tiny.yaml"]), step)


def trained(folder: Path, steps: int = 1) -> None:
    """As a run leaves it that has logged some steps."""
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step}) + "\n" for step in range(1, steps + 1))
    )


def test_a_fresh_directory_is_made_and_remembers_the_recipe(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    run = tmp_path / "new" / "run"
    claim(loaded(write_recipe("grpo")), run)
    entry = json.loads((run / "run.json").read_text())
    assert (entry["recipe"], entry["method"]) == ("tiny", "grpo")
    assert entry["versions"]["trl"] and entry["versions"]["r1-recipes"]
    assert entry["argv"] == ["tiny.yaml"] and entry["started"].endswith("Z")
    assert not run_dir.is_finished(run)
    assert checkpoints.newest_intact(run) is None


def test_what_a_start_recorded_stays_and_going_on_is_added(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    path, run = write_recipe("grpo"), tmp_path / "run"
    claim(loaded(path), run)
    trained(run, 3)
    recipe_file, first = (
        (run / "recipe.yaml").read_text(),
        json.loads((run / "run.json").read_text()),
    )
    claim(loaded(path, "--learning_rate", "1e-4"), run, 3)
    claim(loaded(path, "--learning_rate", "1e-4", "--max_steps", "50"), run, 5)
    assert (run / "recipe.yaml").read_text() == recipe_file
    entry = json.loads((run / "run.json").read_text())
    later = entry.pop("continued")
    assert entry == first and entry["hardware"]["processes"] == 1
    assert [(start["step"], start["settings"]) for start in later] == [
        (3, {"learning_rate": 1e-4}),
        (5, {"max_steps": 50}),
    ]
    assert later[0]["hardware"] == entry["hardware"] and later[1]["versions"] == entry["versions"]
    assert run_dir.recorded_settings(run)["max_steps"] == 50 and run_dir.changed_settings(
        loaded(path), run
    ) == [
        "learning_rate",
        "max_steps",
    ]
    assert not list(run.glob("*.part"))


def test_a_folder_without_a_trained_step_is_free(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    claim(loaded(write_recipe("grpo", dataset_name="no/such")), run)
    claim(loaded(write_recipe("sft"), method="sft"), run)
    entry = json.loads((run / "run.json").read_text())
    assert (entry["method"], "continued" in entry) == ("sft", False)
    assert "no/such" not in (run / "recipe.yaml").read_text()


def test_another_recipe_is_refused_by_name(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    claim(loaded(write_recipe("grpo")), tmp_path / "run")
    trained(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_text()
    with pytest.raises(
        RecipeError,
        match=r"grpo run of recipe 'tiny', not the grpo run of 'other'\. Fix: choose another",
    ):
        claim(loaded(write_recipe("grpo", name="other")), tmp_path / "run")
    with pytest.raises(RecipeError, match="grpo run of recipe 'tiny', not the sft run of 'tiny'"):
        claim(loaded(write_recipe("sft"), method="sft"), tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_text() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_name_or_path", "another/model"),
        ("dataset_name", "another/data"),
        ("response_format", "boxed"),
        ("reward_funcs", "format"),
    ],
)
def test_another_model_or_data_set_is_refused_and_named(
    write_recipe: Callable[..., str], tmp_path: Path, key: str, value: str
) -> None:
    path = write_recipe("grpo")
    claim(loaded(path), tmp_path / "run")
    trained(tmp_path / "run")
    with pytest.raises(
        RecipeError,
        match=rf"'tiny' with different settings \({key}: .* then, .*{value}.* now\)\. Fix: choose another",
    ):
        claim(loaded(path, f"--{key}", value), tmp_path / "run")


def test_checkpoints_of_unknown_origin_are_refused(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoint-5").mkdir(parents=True)
    with pytest.raises(
        RecipeError,
        match=r"holds steps or checkpoints of a run without run\.json\. Fix: choose another "
        r".* or delete",
    ):
        claim(loaded(write_recipe("grpo")), tmp_path / "run")


@pytest.mark.parametrize("content", ["", '{"recipe": "tiny", "meth', "[]", '"tiny"', "\x00\x00"])
def test_a_corrupt_run_file_is_refused_with_a_message(
    write_recipe: Callable[..., str], tmp_path: Path, content: str
) -> None:
    (tmp_path / "run").mkdir()
    trained(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content)
    with pytest.raises(RecipeError, match=r"its run\.json cannot be read"):
        claim(loaded(write_recipe("grpo")), tmp_path / "run")
    assert not run_dir.is_finished(tmp_path / "run")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda run: run.mkdir() or (run / "_lock").mkdir(), "Is a directory"),
        (lambda run: run.mkdir() or (run / "run.log").mkdir(), "Is a directory"),
        (lambda run: run.mkdir() or (run / "recipe.yaml").mkdir(), "Is a directory"),
    ],
    ids=["no lock", "no log", "no record"],
)
def test_an_output_dir_that_cannot_be_written_is_one_line(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    spoil: Callable[[Path], None],
    reason: str,
) -> None:
    spoil(tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        sft.main([write_recipe("sft")])
    assert ended.value.code == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert f"{tmp_path / 'run'}: cannot be written: {reason}" in line and "--output_dir" in line


def test_one_process_at_a_time(
    write_recipe: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    code = (
        "import sys, pathlib; from r1_recipes.common import locks; "
        "locks.hold(pathlib.Path(sys.argv[1])); print(); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    holder.stdout.readline()
    try:
        with pytest.raises(SystemExit):
            sft.main([write_recipe("sft")])
        said = capsys.readouterr().err
        assert (
            f"{run}: another process is writing into this folder (process {holder.pid} on "
            f"{socket.gethostname()}, since " in said
        )
        assert sorted(path.name for path in run.iterdir()) == ["_lock"]
    finally:
        holder.kill()
        holder.communicate()
    with console.reported_errors():
        start([write_recipe("sft")], "sft")


# Checkpoints


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sums: Path) -> Path:
    """A finished run of four steps with checkpoint-2 and checkpoint-4."""
    folder = tmp_path_factory.mktemp("checkpoints")
    path = folder / "tiny.yaml"
    settings = {
        "model_name_or_path": str(tiny_model),
        "dataset_name": str(sums),
        "mapper": "gsm8k",
        "reward_funcs": ["tests.conftest:letters"],
        "num_generations": 2,
        "max_completion_length": 4,
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "save_steps": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "output_dir": str(folder / "run"),
    }
    path.write_text(json.dumps(settings))
    grpo.main([str(path)])
    return folder / "run"


@pytest.fixture
def torn(whole_run: Path, tmp_path: Path) -> Path:
    """A copy of that run whose checkpoint-4 may be damaged."""
    shutil.copytree(whole_run, tmp_path / "torn")
    return tmp_path / "torn"


def test_whole_checkpoints_are_whole(whole_run: Path, tmp_path: Path) -> None:
    assert [checkpoints.manifest_mismatch(whole_run / f"checkpoint-{step}") for step in (2, 4)] == [
        None,
        None,
    ]
    assert checkpoints.newest_intact(whole_run).name == "checkpoint-4"
    # By number, not by name or age.
    for step in (10, 9):
        shutil.copytree(whole_run / "checkpoint-4", tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / "checkpoint-11").write_text("a file")
    assert checkpoints.newest_intact(tmp_path).name == "checkpoint-10"


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return damage


def overwrite(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content)


def missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def zeros(name: str) -> Callable[[Path], None]:
    """As a machine that went down leaves a file: its length is there, its content is not."""

    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-64] + bytes(64))

    return damage


def assert_passed_over(torn: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    assert checkpoints.manifest_mismatch(torn / "checkpoint-4").startswith(fault)
    with caplog.at_level(logging.WARNING, "r1_recipes"):
        assert checkpoints.newest_intact(torn) == torn / "checkpoint-2"
    (line,) = (record.getMessage() for record in caplog.records)
    assert f"{torn / 'checkpoint-4'} is damaged ({fault}" in line and "skipped" in line


FILES = (
    "model.safetensors",
    "config.json",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "tokenizer.json",
)


@pytest.mark.parametrize("name", FILES)
def test_no_file_of_a_checkpoint_may_differ_from_what_was_saved(
    torn: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest = torn / "checkpoint-4"
    whole = (newest / name).read_bytes()
    for damage, fault in (
        (lambda folder: (folder / name).unlink(), f"{name} is missing"),
        (cut(name, 0.9), f"{name} has {int(len(whole) * 0.9)} bytes, but {len(whole)} were saved"),
        (cut(name, 0), f"{name} has 0 bytes"),
        (zeros(name), f"{name} differs from the saved file"),
    ):
        damage(newest)
        assert checkpoints.manifest_mismatch(newest).startswith(fault)
        (newest / name).write_bytes(whole)
    assert checkpoints.manifest_mismatch(newest) is None
    zeros(name)(newest)
    assert_passed_over(torn, f"{name} differs from the saved file", caplog)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model.safetensors": 3}', b"\x00" * 9])
def test_a_damaged_manifest_vouches_for_nothing(
    torn: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    overwrite("manifest.json", content)(torn / "checkpoint-4")
    assert_passed_over(torn, "manifest.json: ", caplog)


def test_a_checkpoint_without_a_manifest_is_skipped(
    torn: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (torn / "checkpoint-4" / "manifest.json").unlink()
    assert_passed_over(torn, "no manifest.json: saving was interrupted", caplog)


def test_a_run_cannot_resume_without_optimizer_or_schedule(
    write_recipe: Callable[..., str], torn: Path
) -> None:
    newest = torn / "checkpoint-4"
    for name in ("optimizer.pt", "scheduler.pt"):
        (newest / name).unlink()
    checkpoints.write_manifest(newest)
    with pytest.raises(RecipeError, match="has no optimizer and schedule to resume"):
        checkpoints.resume_point(loaded(write_recipe("grpo")), torn)


def test_a_named_checkpoint_is_where_a_free_folder_starts(
    write_recipe: Callable[..., str], torn: Path, tmp_path: Path
) -> None:
    path, fresh, last = write_recipe("grpo"), tmp_path / "fresh", torn / "checkpoint-4"
    named = loaded(path, "--resume_from_checkpoint", str(last))
    claim(loaded(path, "--per_device_train_batch_size", "8"), fresh)  # of a start that failed
    assert checkpoints.resume_point(named, fresh) == last
    # Its own checkpoints come first, so that the same command goes on after a stop.
    shutil.copytree(torn / "checkpoint-2", fresh / "checkpoint-3")
    claim(loaded(path), tmp_path / "record")
    for name in ("run.json", "recipe.yaml"):
        shutil.copy(tmp_path / "record" / name, fresh)
    assert checkpoints.resume_point(named, fresh) == fresh / "checkpoint-3"
    zeros("model.safetensors")(last)
    with pytest.raises(
        RecipeError,
        match=r"resume_from_checkpoint: \S+checkpoint-4: model.safetensors differs .* Fix: remove the key",
    ):
        checkpoints.resume_point(named, tmp_path / "none")


@pytest.mark.parametrize("named", ["checkpoint-2", "false"])
def test_another_checkpoint_than_the_newest_is_refused_with_the_way_back(
    write_recipe: Callable[..., str], torn: Path, named: str
) -> None:
    path = write_recipe(
        "grpo", resume_from_checkpoint=named if named == "false" else str(torn / named)
    )
    with pytest.raises(
        RecipeError,
        match=r"resumes from its newest checkpoint, checkpoint-4\. Fix: .* To go back, delete the "
        r"later",
    ):
        checkpoints.resume_point(loaded(path), torn)


def test_damaged_checkpoints_are_renamed_before_rotation(torn: Path) -> None:
    checkpoints.quarantine(torn, torn / "checkpoint-4")
    cut("model.safetensors", 0.5)(torn / "checkpoint-4")
    checkpoints.quarantine(torn, torn / "checkpoint-2")
    assert [path.name for path in torn.glob("checkpoint-*")] == ["checkpoint-2"]
    (aside,) = torn.glob("_torn-*-checkpoint-4")
    assert (aside / "optimizer.pt").exists()


def test_an_unfinished_run_does_not_resume_if_its_starting_model_was_trained_again(
    write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    start, run = tmp_path / "start", tmp_path / "run"
    shutil.copytree(tiny_model, start)
    entry = {"finished": True, "started": "1"}
    (start / "run.json").write_text(json.dumps({**entry, "finished": False}))
    path = write_recipe("grpo", model_name_or_path=str(start))
    claim(loaded(path), run)
    trained(run)
    (start / "run.json").write_text(json.dumps(entry))
    run_dir.check(loaded(path), run)  # it still trained then
    claim(loaded(path), run, 1)
    run_dir.check(loaded(path), run)
    (start / "run.json").write_text(json.dumps({**entry, "started": "2"}))
    with pytest.raises(
        RecipeError, match=r"started from \S+start, which changed since\. Fix: choose another"
    ):
        run_dir.check(loaded(path), run)


def test_weights_are_identified_by_content(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    stamp = sources.weights_stamp(tmp_path / "model")
    os.utime(tmp_path / "model" / "model.safetensors", (1, 1))
    assert sources.weights_stamp(tmp_path / "model") == stamp == sources.weights_stamp(tiny_model)
    zeros("model.safetensors")(tmp_path / "model")
    assert sources.weights_stamp(tmp_path / "model") != stamp
    assert sources.weights_stamp(tmp_path / "none") is None


def test_if_every_checkpoint_is_damaged_the_run_starts_again(torn: Path) -> None:
    for folder in torn.glob("checkpoint-*"):
        empty(folder)
    assert checkpoints.newest_intact(torn) is None


# vLLM and trackers


def pretend_installed(
    monkeypatch: pytest.MonkeyPatch, *names: str, absent: tuple[str, ...] = ()
) -> None:
    find = importlib.util.find_spec

    def find_spec(name: str, *args: Any) -> Any:
        if name in absent:
            return None
        return importlib.machinery.ModuleSpec(name, None) if name in names else find(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_vllm_that_is_not_installed(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = loaded(write_recipe("grpo", use_vllm=True, vllm_mode="server"))
    pretend_installed(monkeypatch, absent=("vllm",))
    with pytest.raises(
        RecipeError,
        match=r"^\S+tiny\.yaml: use_vllm: vLLM is not installed\. Fix: .*--use_vllm false",
    ) as error:
        check_generation_backend(recipe)
    assert "\n" not in str(error.value)


def test_vllm_without_a_gpu(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    pretend_installed(monkeypatch, "vllm")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *args: False)
    path = write_recipe("grpo", use_vllm=True, vllm_mode="colocate", use_cpu=False)
    with pytest.raises(
        RecipeError, match=r"^\S+tiny\.yaml: use_vllm: this process sees no GPU.*--use_vllm false"
    ) as error:
        check_generation_backend(
            loaded(path, "--use_vllm", "true")
        )  # typed; a recipe's own key follows the machine
    assert "\n" not in str(error.value)
    # A server has its own GPU; and what the message says does run.
    check_generation_backend(loaded(path, "--vllm_mode", "server"))
    check_generation_backend(loaded(path, "--use_vllm", "false"))


def test_what_the_machine_changed_is_on_record_and_no_change_of_settings(
    write_recipe: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda *args: False)
    path = write_recipe("grpo", use_vllm=True, use_cpu=None, bf16=True)
    for _ in range(2):
        with console.reported_errors():
            run = start([path], "grpo")
        assert run_dir.changed_settings(run.recipe, tmp_path / "run") == []
    kept = read_yaml(tmp_path / "run" / "recipe.yaml")
    assert (kept["use_cpu"], kept["bf16"], kept["use_vllm"]) == (True, False, False)
    entry = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert entry["adapted_to_machine"] == {"use_cpu": False, "bf16": True, "use_vllm": True}
    assert (
        sum("no accelerator is visible" in message for message in caplog.messages) == 2
    )  # once a start
    # Nor is it where the folder is moved to a machine with a GPU.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *args: True)
    monkeypatch.setattr(load, "_follow_machine", lambda *args: {})
    assert run_dir.changed_settings(loaded(path, "--bf16", "false"), tmp_path / "run") == []


@pytest.mark.parametrize("tracker", ["wandb", "tensorboard", "trackio", "swanlab"])
def test_a_tracker_that_is_not_installed(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    pretend_installed(monkeypatch, absent=(tracker,))
    fix = (
        "see docs/report.md, Trackers"
        if tracker == "swanlab"
        else rf"pip install -c constraints.txt -e '.\[{tracker}\]'"
    )
    with pytest.raises(RecipeError, match=rf"report_to: {tracker} is not installed\. Fix: {fix}"):
        check_trackers(loaded(write_recipe("grpo", report_to=[tracker])))


def test_wandb_without_a_key_runs_offline_with_a_warning(
    write_recipe: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pretend_installed(monkeypatch, "wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "restored after the test")
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    path = write_recipe("grpo", report_to=["wandb"], wandb_project="sums", name="offline")
    with caplog.at_level(logging.WARNING, "r1_recipes"):
        run = start([path], "grpo")
    console.replace_handler(console.LogFile, None)
    assert (os.environ["WANDB_MODE"], os.environ["WANDB_PROJECT"]) == ("offline", "sums")
    (line,) = (record.getMessage() for record in caplog.records if "wandb" in record.getMessage())
    assert "no API key" in line and "offline" in line
    assert line in log_lines(run.output_dir)

    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "k")
    prepare_trackers(run.recipe)
    assert "WANDB_MODE" not in os.environ
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password k\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    prepare_trackers(run.recipe)
    assert "WANDB_MODE" not in os.environ


# Tokenizer, template and prefill


def model_with_template(tiny_model: Path, folder: Path, template: str | None) -> str:
    from transformers import AutoTokenizer

    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


OPENS_THINK = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n<think>\\n' }}{% endif")


@pytest.mark.parametrize(
    "prefill",
    [
        "<think>\n",
        "Let me solve this step by step.\n<think>",
        'Ok: "q" \\ 思考🤔 {{x}} {% y %}\n<think>',
    ],
)
def test_a_prefill_starts_the_turn_and_is_read_back(
    write_recipe: Callable[..., str], prefill: str
) -> None:
    tokenizer, fmt = load_tokenizer(loaded(write_recipe("grpo", prefill=prefill)))
    assert generation_prompt(tokenizer) == "<|im_start|>assistant\n" + prefill
    assert fmt.prefill == prefill
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    assert prefill not in tokenizer.apply_chat_template(messages, tokenize=False)
    (reward,) = get_reward_funcs(["format"], fmt)
    assert reward(completions=["2+2=4\n</think>\n<answer>\n4\n</answer>"]) == [1.0]


def test_a_template_that_opens_the_reasoning_is_found(
    write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    model = model_with_template(tiny_model, tmp_path / "distill", OPENS_THINK)
    tokenizer, fmt = load_tokenizer(loaded(write_recipe("grpo", model_name_or_path=model)))
    assert generation_prompt(tokenizer) == "<|im_start|>assistant\n<think>\n"
    assert fmt.prefill == "<think>\n"
    (reward,) = get_reward_funcs(["format"], fmt)
    # What is generated closes a block that only the prompt opened.
    assert reward(
        completions=["2+2=4\n</think>\n<answer>\n4\n</answer>", "<answer>\n4\n</answer>"]
    ) == [1.0, 0.0]
    # Without the template's opening the same text is no whole response.
    (plain,) = get_reward_funcs(["format"], get_response_format("think_answer"))
    assert plain(completions=["2+2=4\n</think>\n<answer>\n4\n</answer>"]) == [0.0]


def test_a_prefill_against_the_template_is_an_error_and_its_own_again_is_not(
    write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    model = model_with_template(tiny_model, tmp_path / "distill", OPENS_THINK)
    with pytest.raises(
        RecipeError,
        match=r"prefill: the chat template of .* already opens the assistant's turn with '<think>\\n'\. Fix: remove "
        r"prefill",
    ):
        load_tokenizer(
            loaded(write_recipe("grpo", model_name_or_path=model, prefill="Well.\n<think>"))
        )
    # A checkpoint that was trained with a prefill carries it; the next recipe may well set the
    # same.
    tokenizer, fmt = load_tokenizer(
        loaded(write_recipe("grpo", model_name_or_path=model, prefill="<think>\n"))
    )
    assert generation_prompt(tokenizer).count("<think>") == 1 and fmt.prefill == "<think>\n"
    first, _ = load_tokenizer(
        loaded(write_recipe("grpo", response_format="boxed", prefill="Let me see."))
    )
    first.save_pretrained(tmp_path / "distill")
    again, _ = load_tokenizer(
        loaded(
            write_recipe(
                "grpo", model_name_or_path=model, response_format="boxed", prefill="Let me see."
            )
        )
    )
    assert generation_prompt(again).count("Let me see.") == 1


_METHODS = {
    "grpo": {
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "reward_funcs": ["format"],
        "bf16": False,
        "output_dir": "unused",
    },
    "generate": {"output_dir": "unused"},
    "evaluate": {"num_samples": 0},
}


@pytest.mark.parametrize("method", _METHODS)
def test_an_answer_must_continue_the_generation_prompt(
    tiny_model: Path, sums: Path, tmp_path: Path, method: str
) -> None:
    model = tmp_path / "merging"
    shutil.copytree(tiny_model, model)
    spec = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    # One token for " <" and for ">\n", as real vocabularies have them, in the place of bytes that
    # no text here has.
    spec["pre_tokenizer"]["use_regex"] = False
    for byte, token in (("ÿ", "Ġ<"), ("þ", ">Ċ")):
        spec["model"]["vocab"][token] = spec["model"]["vocab"].pop(byte)
    spec["model"]["merges"] = [["Ġ", "<"], [">", "Ċ"]]
    (model / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")

    def load_with(**changes: Any) -> Any:
        data = {
            "model_name_or_path": str(model),
            "dataset_name": str(sums),
            "mapper": "gsm8k",
            "use_cpu": True,
        }
        (tmp_path / "recipe.yaml").write_text(
            json.dumps(data | _METHODS[method] | changes), encoding="utf-8"
        )
        return load_format(loaded(str(tmp_path / "recipe.yaml"), method=method), "transformers")

    tokenizer, _ = load_with(response_format="r1_zero")
    assert generation_prompt(tokenizer) == "Assistant:"
    turn = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "<think> a </think>"},
    ]
    assert "\nAssistant: <think> a </think>" in tokenizer.apply_chat_template(turn, tokenize=False)
    lone = get_response_format("r1_zero").chat_template.replace(
        "%}Assistant:{% endif", "%}Assistant:{{ ' ' }}{% endif"
    )
    with pytest.raises(
        RecipeError,
        match="ends a prompt in ' ', but writes other tokens there when an answer follows",
    ):
        load_with(response_format="r1_zero", chat_template=lone)
    with pytest.raises(
        RecipeError, match="Fix: start prefill as the template starts the turn"
    ):  # there a turn begins with a space
        load_with(response_format="r1_zero", prefill="So.\n<think>")
    load_with(response_format="r1_zero", prefill=" So.\n<think>")
    load_with(prefill="<think>")  # a model may well go on without the layout's line break
    # DeepSeek's distilled models, whose templates write no reasoning of turns that are there, and
    # templates for one question alone.
    drops = OPENS_THINK.replace("message['content']", "message['content'].split('</think>')[-1]")
    for fmt in ("think_answer", "boxed", "reasoning_answer"):
        load_with(chat_template=drops, response_format=fmt)
    load_with(chat_template="{{ messages[-1]['content'] }}")


def test_base_models_without_a_chat_template(
    write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    model = model_with_template(tiny_model, tmp_path / "base", None)
    tokenizer, _ = load_tokenizer(
        loaded(write_recipe("grpo", model_name_or_path=model, response_format="r1_zero"))
    )
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2+2?"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "User: 2+2?\nAssistant:"
    with pytest.raises(RecipeError, match=r"has no chat template. Fix: response_format: r1_zero"):
        load_tokenizer(loaded(write_recipe("grpo", model_name_or_path=model)))


def test_a_chat_template_as_text_and_as_a_file(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}[{{ m['content'] }}]{% endfor %}{% if add_generation_prompt "
        "%}[{% endif %}"
    )
    (tmp_path / "chat.jinja").write_text(template)
    for given in (template, str(tmp_path / "chat.jinja")):
        tokenizer, _ = load_tokenizer(loaded(write_recipe("grpo", chat_template=given)))
        assert tokenizer.chat_template == template
    with pytest.raises(
        RecipeError,
        match=r"chat_template: must be Jinja text or a readable file, got '.*chta\.jinja'",
    ):
        load_tokenizer(loaded(write_recipe("grpo", chat_template=str(tmp_path / "chta.jinja"))))


def test_a_missing_model(
    write_recipe: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found = {
        "nobody/no-such-model": r"tiny\.yaml: model_name_or_path: '{}' cannot be "
        r"loaded \(.*--model_name_or_path"
    }
    found[str(tmp_path / "nowhere")] = "model_name_or_path: {}: no such folder"
    for name, said in found.items():
        with pytest.raises(RecipeError, match=said.format(name)) as error:
            load_tokenizer(loaded(write_recipe("grpo", model_name_or_path=name)))
        assert "\n" not in str(error.value)


# The log and the exit status


def test_the_log_says_when_what_and_who(write_recipe: Callable[..., str], tmp_path: Path) -> None:
    path = write_recipe("grpo", warmup_ratio=0.1)
    root = logging.getLogger()
    before = [handler for handler in root.handlers if not isinstance(handler, console.Terminal)]
    with console.reported_errors():
        start([path], "grpo")
        logging.getLogger("r1_recipes.x").info("two\nlines, %s", "ünïcode")
        try:
            raise ValueError("inside")
        except ValueError:
            logging.getLogger("elsewhere").exception("went wrong")
    logging.getLogger("r1_recipes.x").warning("after the run")
    text = (tmp_path / "run" / "run.log").read_text(encoding="utf-8")
    assert re.search(
        r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO r1_recipes.x: two\nlines, ünïcode$",
        text,
        re.MULTILINE,
    )
    assert "after the run" not in text and "warmup_ratio is read as warmup_steps" in text
    assert "Z ERROR elsewhere: went wrong\nTraceback" in text and text.endswith(
        "ValueError: inside\n"
    )
    assert [
        handler for handler in root.handlers if not isinstance(handler, console.Terminal)
    ] == before


def test_two_runs_in_one_process_do_not_share_a_log(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        with console.reported_errors():
            start([write_recipe("grpo", name=name, output_dir=str(tmp_path / name))], "grpo")
    assert (
        sum(isinstance(handler, console.Terminal) for handler in logging.getLogger().handlers) <= 1
    )
    assert all("two.yaml" not in line for line in log_lines(tmp_path / "one"))
    assert all("one.yaml" not in line for line in log_lines(tmp_path / "two"))


@pytest.mark.parametrize(
    ("error", "status"),
    [(RecipeError("x.yaml: lr: no"), 2), (KeyboardInterrupt(), 130), (SystemExit(7), 7)],
)
def test_exit_status(error: BaseException, status: int, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended, console.reported_errors():
        raise error
    assert ended.value.code == status
    written = capsys.readouterr()
    assert written.out == ""
    if status == 2:
        assert written.err == "error: x.yaml: lr: no\n"
    if status == 130:
        assert written.err.count("\n") == 1 and "same command" in written.err


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError), console.reported_errors():
        _ = 1 / 0


@pytest.mark.parametrize(("local_rank", "held_back"), [(None, 0), ("0", 0), ("3", 6)])
def test_each_host_reports_with_its_name_and_rank(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    local_rank: str | None,
    held_back: int,
) -> None:
    monkeypatch.setenv("RANK", "11")
    monkeypatch.setenv("WORLD_SIZE", "16")
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    waited: list[float] = []
    monkeypatch.setattr(console.time, "sleep", waited.append)
    monkeypatch.setattr(console.socket, "gethostname", lambda: "node2")
    with pytest.raises(SystemExit) as ended, console.reported_errors():
        raise RecipeError("x.yaml: no such model here")
    assert (ended.value.code, sum(waited)) == (2, held_back)
    assert capsys.readouterr().err == "error: node2, rank 11: x.yaml: no such model here\n"


def test_the_processes_of_a_host_report_once(tmp_path: Path) -> None:
    """Under torch's own launcher: what all of them meet, and what only the second meets."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, sys, time\n"
        "from r1_recipes.common import console\n"
        "from r1_recipes.common.errors import RecipeError\n"
        "with console.reported_errors():\n"
        "    if sys.argv[1] in ('all', os.environ['LOCAL_RANK']):\n"
        "        raise RecipeError('x.yaml: full')\n"
        "    time.sleep(60)\n"
    )
    for met_by, rank in (("all", 0), ("1", 1)):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(worker),
            met_by,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        line, summary = (line for line in done.stderr.splitlines() if "x.yaml: full" in line)
        assert line.startswith("error: ") and line.endswith(f", rank {rank}: x.yaml: full")
        # The launcher's own traceback comes between; its last words are ours.
        assert summary in done.stderr.splitlines()[-3:] and summary.endswith(
            f", rank {rank}: x.yaml: full"
        )


def test_processes_that_the_launcher_did_not_get_are_refused(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = loaded(write_recipe("grpo"))
    monkeypatch.setenv("R1_RECIPES_PROCESSES", "1")
    check_processes(recipe)
    monkeypatch.setenv("R1_RECIPES_PROCESSES", "16")
    with pytest.raises(
        RecipeError,
        match=r"tiny\.yaml: expected 16 processes, but 1 started and this one sees "
        r"1\. Fix: use a multi",
    ):
        check_processes(recipe)


def test_a_bad_recipe_fails_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture, write_recipe: Callable[..., str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        grpo.main([write_recipe("grpo"), "--learning_rat", "1"])
    assert ended.value.code == 2
    assert "unknown key 'learning_rat'" in capsys.readouterr().err


def test_help_names_every_key_of_ours(capsys):
    from r1_recipes import sft

    with pytest.raises(SystemExit) as ended:
        sft.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for key in ("--dataset_name", "--response_format", "--max_prompt_tokens", "trl.SFTConfig"):
        assert key in text


def test_a_failed_run_leaves_its_traceback(tmp_path, caplog):
    with pytest.raises(ZeroDivisionError), console.reported_errors():
        raise ZeroDivisionError("boom")
    assert "the run failed" in caplog.text and "ZeroDivisionError: boom" in caplog.text


LOGGED = {
    "reward": 0.5,
    "rewards/accuracy/mean": 0.25,
    "rewards/accuracy/std": 0.4,
    "completions/mean_length": 37.25,
    "loss": 0.1,
}
LOGGED |= {
    "rewards/language_consistency/mean": float("nan"),
    "completions/clipped_ratio": 1.0,
    "entropy": "0.0004",
    "kl": -0.125,
}
LOGGED |= {
    "num_tokens": 3e6,
    "frac_reward_zero_std": 0.0,
    "grad_norm": 1234.5,
    "step": " 1/10",
    "step_time": 12.5,
    "eta": "1:02:03",
}


def test_a_row_shows_what_a_person_watches_and_fits_the_terminal():
    header, row = callbacks.table_row(LOGGED, LOGGED, 120)
    assert (
        " ".join(header.split())
        == "step reward accuracy lang_cons length cut entropy KL flat grad s/step ETA"
    )
    assert len(header) == len(row) <= 120
    assert row.split() == [
        "1/10",
        "0.500",
        "0.250",
        "nan",
        "37.2",
        "1.000",
        "4e-04",
        "-0.125",
        "0.000",
        "1.23k",
        "12.5",
        "1:02:03",
    ]
    header, row = callbacks.table_row(LOGGED, LOGGED, 80)
    assert (
        " ".join(header.split()) == "step reward accuracy lang_cons length cut entropy s/step ETA"
    )
    assert len(header) == len(row) <= 80
    header, row = callbacks.table_row(
        {"reward": None}, {"reward": None}, 80
    )  # TRL's, where no completion was judged
    assert (header.split(), row.split()) == (["reward"], ["nan"])
    header, row = callbacks.table_row(
        {"loss": 1.0, "mean_token_accuracy": 0.5}, {"loss": "0.1221"}, 80
    )
    assert (header.split(), row.split()) == (["loss", "token", "acc"], ["0.122"])


def test_a_log_file_gets_lines_and_a_resumed_run_its_own_pace(capsys):
    state = SimpleNamespace(global_step=100, max_steps=110, is_world_process_zero=True)
    progress = callbacks.Progress()
    progress.on_train_begin(None, state, None)
    for _ in range(2):
        state.global_step += 1
        progress.on_step_end(None, state, None)
        progress.on_log(None, state, None, {"reward": 0.5, "grad_norm": 1.0})
    progress.on_log(None, state, None, {"eval_reward": 0.25, "eval_runtime": 1.0})
    progress.on_log(None, state, None, {"train_runtime": 3.0})
    progress.on_train_end(None, state, None)
    text = capsys.readouterr().err
    assert "\r" not in text and "\x1b" not in text
    header, *rows = [line.split() for line in text.splitlines()]
    assert header == ["step", "reward", "grad", "s/step", "ETA"]
    assert [row[:2] for row in rows] == [
        ["101/110", "0.500"],
        ["102/110", "0.500"],
        ["eval", "0.250"],
    ]
    assert rows[0][-1] == rows[1][-1] == "00:00"


@pytest.mark.parametrize(
    ("settings", "rows", "steps", "said"),
    [
        # Groups of 4, two prompts a batch of rollouts, each for two micro-batches, which make one
        # step.
        (
            {
                "num_generations": 4,
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 2,
            },
            7,
            3,
            "6 prompts, 24 completions, at most 240",
        ),
        (
            {
                "num_generations": 4,
                "per_device_train_batch_size": 8,
                "num_iterations": 2,
                "max_steps": 6,
            },
            7,
            6,
            "6 prompts, 24 completions, at most 240",
        ),
    ],
)
def test_the_plan_counts_what_trl_samples(settings, rows, steps, said, tmp_path):
    from trl import GRPOConfig

    values = {
        "output_dir": str(tmp_path),
        "num_train_epochs": 1,
        "max_completion_length": 10,
        "bf16": False,
        "use_cpu": True,
    }
    training = GRPOConfig(**values | settings)
    assert steps_of(training, rows, 1) == steps
    assert plan(training, steps, 1)[1] == f"{steps} steps: {said} tokens"


def test_a_recipe_that_starts_where_another_ends_says_which_to_run_first(
    write_recipe, tmp_path, capsys
):
    from r1_recipes import sft

    before = write_recipe("grpo", "before", output_dir="outputs/chain/first")
    path = write_recipe(
        "sft", "after", model_name_or_path="outputs/chain/first", output_dir=str(tmp_path / "after")
    )
    with pytest.raises(SystemExit) as stopped:
        sft.main([path])
    assert stopped.value.code == 2
    assert (
        f"model_name_or_path: outputs/chain/first does not exist yet. Fix: run {before} first"
        in capsys.readouterr().err
    )
    data = write_recipe(
        "sft", "data", dataset_name="outputs/chain/first/dataset", output_dir=str(tmp_path / "data")
    )
    with pytest.raises(SystemExit):
        sft.main([data])
    assert (
        f"dataset_name: outputs/chain/first/dataset does not exist yet. Fix: run {before} first"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "after").exists()


def test_control_characters_of_an_error_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture,
) -> None:
    with pytest.raises(SystemExit), console.reported_errors():
        raise RecipeError("the server said \x1b[2J\x07bad\nsecond line")
    assert capsys.readouterr().err == "error: the server said \ufffd[2J\ufffdbad\nsecond line\n"
