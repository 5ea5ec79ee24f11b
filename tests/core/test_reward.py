"""A reward model of one's own: from pairs on a disk to an entry of ``reward_models``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes import reward
from r1_recipes.rewards import get_reward_funcs
from tests.conftest import metrics, weights

pytestmark = pytest.mark.slow


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
