"""Every recipe in recipes/ goes through one step of training with ``--smoke``, without a hub."""

from __future__ import annotations

import atexit
import json
import math
import sys
from pathlib import Path

import pytest
import yaml

from r1_recipes import distill, evaluate, generate, grpo, reward, sft
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import load_recipe
from tests.conftest import RECIPES, method_of, metrics

ENTRY_POINTS = {
    "grpo": grpo,
    "sft": sft,
    "distill": distill,
    "reward": reward,
    "generate": generate,
    "evaluate": evaluate,
}
GRPO = next(str(path) for path in RECIPES if method_of(path) == "grpo")

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe_runs_one_step(path: Path, tmp_path: Path) -> None:
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    torch.set_num_threads(1)
    method, run = method_of(path), tmp_path / "run"
    ENTRY_POINTS[method].main(
        [str(path), "--smoke", "--output" if method == "evaluate" else "--output_dir", str(run)]
    )
    if method == "generate":
        from r1_recipes.data import load_rows

        assert len(load_rows(str(run / "dataset"), "train")) >= 2
        return
    if method == "evaluate":
        (scores,) = json.loads((run / "results.json").read_text(encoding="utf-8"))
        assert set(scores["rewards"]) == set(
            yaml.safe_load(path.read_text(encoding="utf-8"))["reward_funcs"]
        )
        return
    (entry,) = metrics(run)
    assert entry["step"] == 1 and math.isfinite(entry["loss"]) and math.isfinite(entry["grad_norm"])
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    # Of a mixture one row is drawn, which not every reward may judge.
    for name in (
        settings.get("reward_funcs", ())
        if method == "grpo" and "dataset_mixture" not in settings
        else ()
    ):
        assert f"rewards/{name.rpartition(':')[2]}/mean" in entry
    AutoTokenizer.from_pretrained(run)
    if not (run / "adapter_config.json").exists():
        pictures = (run / "processor_config.json").exists()
        kind = AutoModelForSequenceClassification if method == "reward" else AutoModelForCausalLM
        (AutoModelForImageTextToText if pictures else kind).from_pretrained(run)


def test_smoke_runs_use_separate_folders_and_remove_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    at_exit = []
    monkeypatch.setattr(
        atexit, "register", lambda *call, **options: at_exit.append((call, options))
    )
    first, second = (
        load_recipe([GRPO, "--smoke"], "grpo", smoke=smoke_overrides) for _ in range(2)
    )
    assert first.training.output_dir != second.training.output_dir
    assert Path(first.model.model_name_or_path).is_relative_to(tmp_path)
    for (function, *arguments), options in at_exit:
        if function.__name__ == "rmtree" or getattr(function, "__self__", None):
            function(*arguments, **options)
    left = [path.name for path in tmp_path.iterdir()]
    assert [name for name in left if not name.startswith("torchinductor_")] == []


def test_a_kept_smoke_run_is_neither_repeated_nor_continued_for_real(tmp_path: Path) -> None:
    run = ["--output_dir", str(tmp_path / "run"), "--use_vllm", "false"]
    grpo.main([GRPO, "--smoke", *run])
    for words in (["--smoke"], ["--use_cpu", "true", "--bf16", "false"]):
        with pytest.raises(SystemExit) as stopped:
            grpo.main([GRPO, *words, *run])
        assert stopped.value.code == 2


def test_smoke_overrides_leave_what_the_user_typed(tmp_path: Path) -> None:

    loaded = load_recipe([GRPO, "--smoke", "--max_steps", "3"], "grpo", smoke=smoke_overrides)
    assert loaded.training.max_steps == 3 and loaded.training.num_generations == 2


def test_a_run_of_several_tasks_logs_a_curve_for_each(tmp_path: Path) -> None:
    path = next(path for path in RECIPES if path.stem == "mixed_qwen15b")
    run = tmp_path / "run"
    # Four prompts a step: the mixture's example rows all come up within a few steps.
    grpo.main(
        [
            str(path),
            "--smoke",
            "--output_dir",
            str(run),
            "--max_steps",
            "4",
            "--per_device_train_batch_size",
            "8",
        ]
    )
    seen = {key for entry in metrics(run) for key in entry if key.startswith("rewards/")}
    assert {
        "rewards/accuracy/gsm8k",
        "rewards/accuracy/math",
        "rewards/countdown/countdown",
    } <= seen
    # and no task has the curve of another's reward
    assert (
        not {"rewards/accuracy/countdown", "rewards/countdown/gsm8k", "rewards/countdown/math"}
        & seen
    )


def test_a_mapper_without_examples_says_what_smoke_needs(tmp_path, monkeypatch, capsys):
    (tmp_path / "bare_mapper.py").write_text(
        "from r1_recipes.data import Mapper\n\n\nclass Bare(Mapper):\n    columns = ('q', "
        "'a')\n\n    def __call__(self, row):\n"
        "        return {'question': row['q'], 'solution': row['a']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        grpo.main(
            [
                next(str(path) for path in RECIPES if path.name == "gsm8k_qwen05b.yaml"),
                "--smoke",
                "--mapper",
                "bare_mapper:Bare",
            ]
        )
    assert ended.value.code == 2
    assert (
        "smoke: mapper 'bare_mapper:Bare' has no example rows. Fix: examples = ({"
        in capsys.readouterr().err
    )


OWN = """
from dataclasses import dataclass


def by_level(completions, level, solution, **columns):
    return [{"easy": 1.0, "hard": 2.0}[one] for one in level]


@dataclass
class Game:
    @classmethod
    def draw(cls, rng):
        return {"question": "Guess.", "number": rng.randint(1, 9)}

    def reset(self, number, **row):
        self.number = number

    def guess(self, number: int) -> str:
        \"\"\"
        Guess.

        Args:
            number: The guess.
        \"\"\"
        return "no"

    def get_reward(self):
        return self.nothing
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "smoke_own.py").write_text(OWN, encoding="utf-8")
    long = json.dumps({"frage": "x" * 50_000, "antwort": "0", "level": "easy"})
    rows = [
        json.dumps(
            {"frage": f"{n}+1?", "antwort": str(n + 1), "level": "hard" if n % 2 else "easy"}
        )
        for n in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join([long, *rows]), encoding="utf-8")
    return tmp_path


def smoke_recipe(folder: Path, **settings: object) -> str:
    path = folder / "own.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model_name_or_path": "x/y",
                "output_dir": "out",
                "max_completion_length": 8,
                **settings,
            }
        ),
        "utf-8",
    )
    return str(path)


@pytest.mark.parametrize("keep", [["level"], None])
def test_a_reward_that_reads_a_column_of_a_local_file_passes(
    own: Path, keep: list[str] | None, capsys
) -> None:
    columns = {
        "mapper": "prompt_solution",
        "prompt_column": "frage",
        "solution_column": "antwort",
        "keep_columns": keep,
    }
    path = smoke_recipe(
        own, dataset_name="rows.jsonl", reward_funcs=["smoke_own:by_level"], **columns
    )
    grpo.main([path, "--smoke"])
    told = "".join(capsys.readouterr())
    assert "report" not in told and "saved to" not in told and "the smoke run passed" in told
    grpo.main([path, "--smoke", "--output_dir", "kept"])
    assert "report: " in "".join(capsys.readouterr()) and (own / "kept" / "report.html").is_file()
    assert 1.0 <= metrics(own / "kept")[0]["rewards/by_level/mean"] <= 2.0


def test_of_a_hubs_rows_smoke_says_what_it_lacks(own: Path, capsys) -> None:
    path = smoke_recipe(
        own,
        dataset_name="some/where",
        mapper="gsm8k",
        reward_funcs=["smoke_own:by_level"],
        keep_columns=["level"],
    )
    with pytest.raises(SystemExit):
        grpo.main([path, "--smoke"])
    assert "test the reward on real rows with preflight" in capsys.readouterr().err


@pytest.mark.parametrize("paid", ["self.nothing", "None", "float('nan')", "'good'"])
def test_an_environment_that_cannot_pay_fails_its_smoke_run(own: Path, capsys, paid: str) -> None:
    sys.modules.pop("smoke_own", None)
    (own / "smoke_own.py").write_text(OWN.replace("self.nothing", paid), encoding="utf-8")
    sets = {split: {"size": 4, "seed": seed} for seed, split in enumerate(("train", "test"))}
    path = smoke_recipe(
        own,
        environment="smoke_own:Game",
        dataset_name="environment:smoke_own:Game",
        task_config=sets,
    )
    with pytest.raises(SystemExit) as stopped:
        grpo.main([path, "--smoke"])
    line = OWN.splitlines().index("        return self.nothing") + (
        paid == "self.nothing"
    )  # of the failure, else of the method
    told = capsys.readouterr().err
    assert (
        stopped.value.code == 2
        and "environment Game: get_reward fails" in told
        and f"smoke_own.py:{line})" in told
    )
