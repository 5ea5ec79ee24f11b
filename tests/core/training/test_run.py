"""The run directory, torn checkpoints, vLLM and trackers where they are missing, tokenizers and
prefills, the log.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import logging
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r1_recipes import grpo, sft
from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer
from r1_recipes.prompts import CHATML
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.load import Recipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.runs import checkpoints, run_dir
from r1_recipes.training import callbacks
from r1_recipes.training.start import check_generation_backend, check_trackers, start

pytestmark = pytest.mark.slow


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


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return damage


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


@pytest.mark.parametrize("tracker", ["wandb", "tensorboard", "trackio"])
def test_a_tracker_that_is_not_installed(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    pretend_installed(monkeypatch, absent=(tracker,))
    fix = rf"pip install -c constraints.txt -e '.\[{tracker}\]'"
    with pytest.raises(RecipeError, match=rf"report_to: {tracker} is not installed\. Fix: {fix}"):
        check_trackers(loaded(write_recipe("grpo", report_to=[tracker])))


# Tokenizer, template and prefill


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
