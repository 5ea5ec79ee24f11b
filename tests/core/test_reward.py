"""A reward model of one's own: from pairs on a disk to an entry of ``reward_models``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from r1_recipes import reward
from r1_recipes.rewards import get_reward_funcs

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("offline")
def test_what_a_run_leaves_is_an_entry_of_reward_models(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    """What is polite is chosen, of sixteen pairs."""

    def asked(n: int) -> list[dict[str, str]]:
        question = {"role": "user", "content": f"What is {n}+{n}?"}
        return [{"role": "system", "content": "Be brief."}, question]

    def said(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    rows = [
        {"prompt": asked(n), "chosen": said(f"Gladly: {2 * n}"), "rejected": said(f"zzz {2 * n}")}
        for n in range(16)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    keys = {"dataset_name": str(path), "mapper": "preference", "system_prompt": None}
    keys |= {"dataset_train_split": "train[:12]", "dataset_test_split": "train[12:]"}
    keys |= {"eval_strategy": "steps", "eval_steps": 3, "per_device_train_batch_size": 8}
    keys |= {"max_steps": 12, "learning_rate": 3e-2}
    keys |= {"unfrozen_parameters": ["embed", "norm", "score"]}
    reward.main([write_recipe("reward", **keys)])
    run = tmp_path / "run"
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    held_out = [line["eval_accuracy"] for line in lines if "eval_accuracy" in line]
    assert len(held_out) == 4 and held_out[-1] == 1.0
    # Conversations are read as they are.
    template = (run / "chat_template.jinja").read_text(encoding="utf-8")
    assert "Be brief." not in template and "<think>" not in template
    entry = {"polite": {"model": str(run), "scope": "full"}}
    (judge,) = get_reward_funcs(["polite"], "think_answer", entry)
    high, low = judge(prompts=[asked(16)] * 2, completions=["Gladly: 32", "zzz 32"])
    assert high > low + 0.1
