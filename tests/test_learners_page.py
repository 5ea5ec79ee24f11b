"""Each number of docs/how_grpo_works.md, computed by the installed TRL and by our rewards.

Advantages come out of a training step of a real GRPOTrainer, losses out of its `_compute_loss`.
"""

import math
import re
from importlib.metadata import version

import pytest

pytest.importorskip("trl")

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards import REWARDS
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs/how_grpo_works.md"
CHINESE = PAGE.with_name("how_grpo_works.zh.md")
REWARDS_OF_THE_PAGE = [1.2, 1.2, 1.0, 0.2, 0.2, 0.2, 0.0, 0.0]
pytestmark = pytest.mark.slow


def tables(path):
    """The page's tables, each a list of rows of cells, without heading and ruler."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
        for block in blocks
    ]


EIGHT, CLIP, KL, LOSSES, FORMAT_FIRST, _, SOURCES = tables(PAGE)


@pytest.fixture
def trainer(tiny_model, tmp_path):
    """``trainer(rewards, **keys)``: TRL's own, whose reward function returns these rewards."""

    def build(rewards, **keys):
        keys = {"loss_type": "grpo", "max_completion_length": 16, **keys}
        settings = GRPOConfig(
            output_dir=str(tmp_path / "run"),
            per_device_train_batch_size=8,
            num_generations=8,
            max_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            disable_tqdm=True,
            **keys,
        )
        return GRPOTrainer(
            model=str(tiny_model),
            args=settings,
            reward_funcs=lambda completions, **columns: list(rewards),
            train_dataset=Dataset.from_list([{"prompt": "3 * 4?"}] * 8),
        )

    return build


def advantages(trainer, rewards, **keys):
    """What TRL gives the completions of one group, in one training step."""
    made = trainer(rewards, **keys)
    made.train()
    assert len(made._logs["advantages"]) == 8
    return list(made._logs["advantages"])


def loss(trainer, now, sampled, advantage, mask=None, reference=None):
    """TRL's loss and its gradient, of tokens with these probabilities."""
    logps = torch.tensor(now).log().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
        logps,
        torch.zeros_like(logps),
        None,
    )
    trainer.current_gradient_accumulation_steps = 1
    ids = torch.ones_like(logps, dtype=torch.long)
    mask = torch.ones_like(ids) if mask is None else torch.tensor(mask)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor(advantage),
        "old_per_token_logps": torch.tensor(sampled).log(),
        "num_items_in_batch": mask.sum(),
    }
    if reference is not None:
        inputs["ref_per_token_logps"] = torch.tensor(reference).log()
    value = trainer._compute_loss(trainer.model, inputs)
    value.backward()
    return value.item(), logps.grad.abs().sum().item()


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def test_the_rewards_are_those_of_our_rule_rewards():
    for _, completion, *cells in EIGHT:
        scores = [
            REWARDS[name](response_format=FORMATS["think_answer"])(
                completions=[[{"role": "assistant", "content": completion.strip("`")}]],
                solution=["12"],
                prompts=[[{"role": "user", "content": "Ana has 3 boxes of 4 pens. How many?"}]],
            )[0]
            for name in ("accuracy", "format")
        ]
        assert [float(cell) for cell in cells[:2]] == scores, completion
        assert float(cells[2]) == pytest.approx(scores[0] + 0.2 * scores[1])
    assert [float(row[4]) for row in EIGHT] == REWARDS_OF_THE_PAGE


def test_the_advantages_are_trl_s(trainer):
    found = advantages(trainer, REWARDS_OF_THE_PAGE)
    assert [row[5] for row in EIGHT] == [f"{value:.3f}" for value in found]
    unscaled = advantages(trainer, REWARDS_OF_THE_PAGE, scale_rewards="none")
    sentence = re.search(r"The advantages are then (.*)", PAGE.read_text(encoding="utf-8"))[1]
    assert numbers(sentence) == pytest.approx(unscaled, abs=1e-6)
    assert advantages(trainer, [0.2] * 8) == pytest.approx([0.0] * 8, abs=1e-3)


def test_mean_and_deviation_are_those_that_trl_logs(trainer):
    made = trainer(REWARDS_OF_THE_PAGE)
    made.train()
    logged = made.state.log_history[0]
    text = PAGE.read_text(encoding="utf-8")
    assert f"mean of the group       {logged['reward']:.3f}" in text
    assert f"standard deviation      {logged['reward_std']:.3f}" in text


def test_trl_misses_a_group_without_spread_as_the_page_says(trainer):
    for reward, counted in ((0.2, 0.0), (0.0, 1.0)):
        made = trainer([reward] * 8)
        made.train()
        assert made.state.log_history[0]["frac_reward_zero_std"] == counted
        printed = f"{made.state.log_history[0]['reward_std']:.1e}".replace("e-0", "e-")
        assert counted or printed in PAGE.read_text(encoding="utf-8")


def test_the_clip_is_trl_s(trainer):
    found = advantages(trainer, REWARDS_OF_THE_PAGE)
    exact = {str(number): value for number, value in enumerate(found, start=1)}
    made = trainer(REWARDS_OF_THE_PAGE)
    for completion, now, ratio, clipped, product, clipped_product, value, gradient in CLIP:
        advantage = exact[completion[0]]
        assert numbers(completion) == [round(advantage, 3)]
        value_of_trl, slope = loss(made, [[float(now)]], [[0.30]], [advantage])
        r = float(now) / 0.30
        c = min(max(r, 0.8), 1.2)
        assert [ratio, clipped, product, clipped_product, value] == [
            f"{x:.3f}" for x in (r, c, r * advantage, c * advantage, value_of_trl)
        ]
        assert gradient == ("yes" if slope else "none")


def test_the_kl_is_trl_s(trainer):
    made = trainer(REWARDS_OF_THE_PAGE, beta=0.04)
    for reference, now, kl, term in KL:
        probability = [[float(now)]]
        found, _ = loss(made, probability, probability, [0.0], reference=[[float(reference)]])
        assert term == f"{found:.5f}"
        assert kl == f"{found / 0.04:.4f}"


def test_the_averages_are_trl_s(trainer):
    exact = advantages(trainer, REWARDS_OF_THE_PAGE)
    half = [[0.5] * 8] * 2
    mask = [[1] * 2 + [0] * 6, [1] * 8]
    for name, _, printed in LOSSES:
        made = trainer(REWARDS_OF_THE_PAGE, loss_type=name.strip("`"))
        found, _ = loss(made, half, half, [exact[0], exact[3]], mask)
        assert printed == f"{found:.3f}", name


def test_the_loss_is_0_and_the_gradient_is_not(trainer):
    exact = advantages(trainer, REWARDS_OF_THE_PAGE)
    half = [[0.5]] * 8
    found, slope = loss(trainer(REWARDS_OF_THE_PAGE), half, half, exact)
    assert f"{abs(found):.3f}" == "0.000"
    assert slope > 0.5


def test_the_format_rises_first_whatever_its_weight(trainer):
    sentence = PAGE.read_text(encoding="utf-8").partition("the weight counts:")[2]
    for row, unscaled in zip(FORMAT_FIRST, (0.175, 0.875), strict=True):
        group = [float(row[0]), *[0.0] * 7]
        one, other, *_ = advantages(trainer, group)
        mean, deviation = torch.tensor(group).mean(), torch.tensor(group).std()
        assert row[1:] == [f"{x:.3f}" for x in (mean, deviation, one, other)]
        found = advantages(trainer, group, scale_rewards="none")[0]
        assert math.isclose(found, unscaled, abs_tol=1e-6)
        assert f"{found:.3f} at weight {row[0]}" in sentence


def test_the_sources_are_there_and_the_defaults_are_trl_s():
    defaults = {name: field.default for name, field in GRPOConfig.__dataclass_fields__.items()}
    for _, function, keys in SOURCES:
        assert callable(getattr(GRPOTrainer, function.strip("`").rpartition(".")[2]))
        for name, value in re.findall(r"`(\w+)(?:: ([\w.]+))?`", keys):
            assert name in defaults
            assert not value or str(defaults[name]) == value, name
    assert f"TRL {version('trl').rpartition('.')[0]} " in PAGE.read_text(encoding="utf-8")


def test_the_chinese_page_has_the_same_numbers():
    assert [numbers(" ".join(map(" ".join, table))) for table in tables(CHINESE)] == [
        numbers(" ".join(map(" ".join, table))) for table in tables(PAGE)
    ]
    assert sorted(numbers(CHINESE.read_text(encoding="utf-8"))) == sorted(
        numbers(PAGE.read_text(encoding="utf-8"))
    )
