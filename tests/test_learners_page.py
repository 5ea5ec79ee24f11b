"""The numbers of docs/how_grpo_works.md are what TRL computes."""

import inspect
import re

import pytest

pytest.importorskip("trl")

import torch
from trl import GRPOTrainer
from trl.trainer.utils import nanstd

from r1_recipes.rewards import get_reward_funcs
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "how_grpo_works.md"
TEXTS = {
    "1": "<think>\n7 + 15\n</think>\n<answer>\n22\n</answer>",
    "2": "<think>\n12 * 3\n</think>\n<answer>\n36\n</answer>",
    "3": "<think>\n5 * 3\n</think>\n<answer>\n15\n</answer>",
    "4": "It is 22.",
    "5": "<think>\n5 * 3 = 15\n</think>\n<answer>\n22\n</answer>",
    "6": "<think>\n7 + 5\n</think>\n<answer>\n12\n</answer>",
    "7": "<think>\nFirst the product, then",
    "8": "<think>\n7 + 5 = 12\n</think>\n<answer>\n36\n</answer>",
}


@pytest.fixture(scope="module")
def page():
    """The page's tables, each as rows of cells, and its text."""
    text = PAGE.read_text(encoding="utf-8")
    found, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found, text


def test_rewards_and_advantages(page):
    (group, *_), text = page
    accuracy, format_ = get_reward_funcs(["accuracy", "format"], "think_answer")
    completions = [[{"role": "assistant", "content": TEXTS[row[0][0]]}] for row in group]
    scores = {
        "accuracy": accuracy(prompts=[[]] * 8, completions=completions, solution=["22"] * 8),
        "format": format_(prompts=[[]] * 8, completions=completions),
    }
    assert [[float(cell) for cell in row[1:3]] for row in group] == [
        list(pair) for pair in zip(scores["accuracy"], scores["format"], strict=True)
    ]
    rewards = torch.tensor(scores["accuracy"]) + 0.2 * torch.tensor(scores["format"])
    assert [float(row[3]) for row in group] == pytest.approx(rewards.tolist())
    # As TRL: the unbiased deviation of the group, and 1e-4 against a division by 0.
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert "advantages = advantages / (std_rewards + 1e-4)" in source
    mean, deviation = rewards.mean(), nanstd(rewards, dim=0)
    assert f"{mean:.3f}" in text and f"{deviation:.3f}" in text
    advantages = (rewards - mean) / (deviation + 1e-4)
    assert [row[4] for row in group] == [f"{value:+.3f}" for value in advantages]


def test_the_kl(page):
    (_, _, rows, *_), _ = page
    for policy, reference, kl, penalty in rows:
        gap = torch.tensor(float(reference) - float(policy))
        expected = torch.exp(gap) - gap - 1
        assert kl == f"{expected:.4f}" and penalty == f"{0.04 * expected:.5f}"
    source = re.sub(r"\s+", " ", inspect.getsource(GRPOTrainer._compute_loss))
    theirs = "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - "
    assert theirs + "per_token_logps) - 1" in source
