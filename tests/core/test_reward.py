"""A reward model of one's own: from pairs on a disk, or from those that ``generate`` writes, to an
entry of ``reward_models``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes import generate, reward, sft
from r1_recipes.extras.preflight import __main__ as preflight_main
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs
from tests.conftest import log_lines, metrics, weights


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Sixteen pairs: what is polite is chosen."""
    rows = [
        {
            "prompt": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": f"What is {n}+{n}?"},
            ],
            "chosen": [{"role": "assistant", "content": f"Gladly: {2 * n}"}],
            "rejected": [{"role": "assistant", "content": f"zzz {2 * n}"}],
            "scores": "{}",
        }
        for n in range(16)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def recipe(write_recipe: Callable[..., str], pairs: Path) -> Callable[..., str]:
    def write(**changes: object) -> str:
        settings = {
            "dataset_name": str(pairs),
            "mapper": "preference",
            "system_prompt": None,
            "per_device_train_batch_size": 8,
        }
        settings |= {
            "dataset_train_split": "train[:12]",
            "dataset_test_split": "train[12:]",
            "eval_strategy": "steps",
            "eval_steps": 3,
        }
        return write_recipe("reward", **{**settings, **changes})

    return write


@pytest.mark.usefixtures("offline")
def test_what_a_run_leaves_is_an_entry_of_reward_models(
    recipe: Callable[..., str], tmp_path: Path
) -> None:
    reward.main(
        [recipe(max_steps=12, learning_rate=3e-2, unfrozen_parameters=["embed", "norm", "score"])]
    )
    run = tmp_path / "run"
    assert metrics(run)[-1]["accuracy"] == 1.0
    held_out = [
        json.loads(line)["eval_accuracy"]
        for line in (run / "metrics.jsonl").read_text().splitlines()
        if "eval_accuracy" in line
    ]
    assert len(held_out) == 4 and held_out[-1] == 1.0
    assert weights(run)["score.weight"].shape[0] == 1
    template = (run / "chat_template.jinja").read_text(encoding="utf-8")
    assert (
        "Be brief." not in template and "<think>" not in template
    )  # conversations are read as they are
    assert (run / "report.html").is_file() and (run / "recipe.yaml").is_file()
    (judge,) = get_reward_funcs(
        ["polite"], "think_answer", {"polite": {"model": str(run), "scope": "full"}}
    )
    asked = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 7+9?"},
    ]
    high, low = judge(prompts=[asked] * 2, completions=["Gladly: 16", "zzz 16"])
    assert high > low + 0.1
    with pytest.raises(SystemExit) as ended:  # done already
        reward.main(
            [
                recipe(
                    max_steps=12, learning_rate=3e-2, unfrozen_parameters=["embed", "norm", "score"]
                )
            ]
        )
    assert ended.value.code == 0


@pytest.mark.usefixtures("offline")
def test_a_stopped_run_goes_on(recipe: Callable[..., str], tmp_path: Path) -> None:
    reward.main([recipe(max_steps=4)])
    reward.main([recipe(max_steps=6)])
    assert [entry["step"] for entry in metrics(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    assert any(line.startswith("resuming from ") for line in log_lines(tmp_path / "run"))


@pytest.mark.usefixtures("offline")
def test_pairs_that_are_too_long_are_counted(recipe: Callable[..., str], tmp_path: Path) -> None:
    reward.main(
        [recipe(max_steps=1, max_length=61, eval_strategy="no")]
    )  # a byte a token: two-digit sums are longer
    assert "max_length 61 leaves out 7 of 12 pairs" in log_lines(tmp_path / "run")


def test_keys_for_questions_are_named(recipe: Callable[..., str]) -> None:
    worked = [{"question": "1+1?", "reasoning": "one more", "answer": "2"}]
    warnings = load_recipe([recipe(system_prompt="Be kind.", few_shot=worked)], "reward").warnings
    assert [one.partition(": ")[2] for one in warnings if "ignored" in one] == [
        f"{key} is ignored: pairs are taken as they are" for key in ("system_prompt", "few_shot")
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 5, "eval_strategy": "no"}, "max_length: leaves no pair of 12, got 5"),
        ({"use_peft": True}, r"use_peft: must be false, got true: .* Fix: unfrozen_parameters"),
        (
            {"mapper": "prompt_solution", "solution_column": "scores"},
            "dropped: no pair of a chosen and a rejected message",
        ),
        ({"reward_funcs": ["accuracy"]}, "unknown key 'reward_funcs' for reward"),
    ],
)
def test_a_recipe_that_cannot_be(
    recipe: Callable[..., str], changes: dict, message: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as ended:
        reward.main([recipe(**changes)])
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_other_commands_say_what_pairs_are_for(
    recipe: Callable[..., str], capsys: pytest.CaptureFixture
) -> None:
    path = recipe(eval_strategy="no", eval_steps=None)
    with pytest.raises(SystemExit):
        sft.main([path])
    assert (
        "12 dropped: a preference pair. Fix: train on it with python -m r1_recipes.reward"
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit) as ended:
        preflight_main.main([path])
    assert ended.value.code == 1
    assert (
        "is for python -m r1_recipes.reward, which preflight cannot check"
        in capsys.readouterr().out
    )


@pytest.mark.usefixtures("offline")
def test_from_a_model_s_own_answers_to_a_reward_model(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    common = {
        "learning_rate": None,
        "lr_scheduler_type": None,
        "max_steps": None,
        "logging_steps": None,
        "save_strategy": None,
    }
    common |= dict.fromkeys(
        (
            "save_steps",
            "bf16",
            "gradient_checkpointing",
            "disable_tqdm",
            "report_to",
            "per_device_train_batch_size",
        )
    )
    made = {
        "num_generations": 4,
        "max_completion_length": 8,
        "reward_funcs": ["tests.conftest:letters"],
        "keep": {"output": "pairs"},
    }
    generate.main([write_recipe("generate", **common, **made, output_dir=str(tmp_path / "made"))])
    dataset = tmp_path / "made" / "dataset"
    rows = [
        json.loads(line)
        for line in (dataset / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert rows and all(one["chosen"] != one["rejected"] for one in rows)
    counts = json.loads((dataset / "yield.json").read_text(encoding="utf-8"))["completions"]
    assert (
        counts["kept"] == 2 * len(rows)
        and counts["kept"] + counts["not in a pair"] == counts["generated"]
    )
    own = {
        "dataset_name": str(dataset),
        "mapper": "preference",
        "max_steps": 1,
        "output_dir": str(tmp_path / "model"),
    }
    reward.main([write_recipe("reward", **own)])
    assert weights(tmp_path / "model")["score.weight"].shape[0] == 1
