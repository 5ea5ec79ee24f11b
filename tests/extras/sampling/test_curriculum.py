"""A curriculum: which rows are trained on, when the next task's turn comes, that a stopped run goes
on with the same rows.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from trl.trainer.utils import RepeatSampler

from r1_recipes import grpo
from r1_recipes.common.errors import RecipeError
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.sampling.curriculum import CurriculumSampler
from r1_recipes.recipe import load_recipe
from tests.conftest import metrics
from tests.core.training.test_faults import assert_same_run, unfinished

LEVELS = ["easy", "middle", "hard"]
SEEN: list[tuple[int, list[str], list[str]]] = []


def right(completions, level, solution, trainer_state, **columns):
    """Rows of 'hard' are never right, all others always."""
    if trainer_state.train_batch_size is not None:  # not the try before training
        SEEN.append((trainer_state.global_step, list(level), list(solution)))
    return [float(one != "hard") for one in level]


@pytest.fixture
def write(write_recipe: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """A recipe with six training rows of each level and two held-out ones; nine steps are
    an epoch.
    """
    for split, count in (("train", 6), ("test", 2)):
        rows = [
            {
                "question": f"{split} {level} {row}?",
                "answer": f"#### {LEVELS.index(level) * 100 + row}",
                "level": level,
            }
            for row in range(count)
            for level in LEVELS
        ]
        (tmp_path / "levels").mkdir(exist_ok=True)
        (tmp_path / "levels" / f"{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    keys = {
        "dataset_name": str(tmp_path / "levels"),
        "task_column": "level",
        "curriculum": LEVELS,
        "reward_funcs": ["tests.extras.sampling.test_curriculum:right", "tests.conftest:letters"],
        "eval_strategy": "steps",
        "eval_steps": 3,
        "eval_temperature": 0.0,
        "num_generations_eval": 1,
        "per_device_eval_batch_size": 2,
        "max_steps": 11,
        "save_steps": 5,
    }
    return lambda **changes: write_recipe("grpo", **{**keys, **changes})


def test_tasks_advance_by_held_out_accuracy_and_a_stopped_run_resumes_its_task(
    write, tmp_path: Path
) -> None:
    SEEN.clear()
    path = write()
    grpo.main([path, "--output_dir", str(tmp_path / "whole")])
    whole = list(SEEN)
    assert all(len(set(levels)) == 1 for _, levels, _ in whole)
    order = [levels[0] for _, levels, _ in whole]
    assert order == sorted(order, key=LEVELS.index) and set(order) == set(LEVELS)
    # 'hard' is never right, so it stays; the first reward decides, not the sum.
    lines = [
        json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    ]
    judged = [
        (line["step"], line["eval_curriculum/level"], line["eval_rewards/right/mean"])
        for line in lines
        if "eval_reward" in line
    ]
    assert judged == [(3, 1, 1.0), (6, 2, 1.0), (9, 3, 0.0), (11, 3, 0.0)]
    # From before the second rise, and from the second epoch.
    for step in (5, 10):
        shutil.copytree(tmp_path / "whole", tmp_path / "run")
        for folder in (tmp_path / "run").glob("checkpoint-*"):
            if int(folder.name.partition("-")[2]) > step:
                shutil.rmtree(folder)
        unfinished(tmp_path / "run")
        SEEN.clear()
        grpo.main([path])
        assert whole[-len(SEEN) :] == SEEN and SEEN[0][0] == step
        assert (
            metrics(tmp_path / "run")
            and assert_same_run(tmp_path / "run", tmp_path / "whole") is None
        )
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize("repeats", [1, 4])
def test_batches_are_of_one_task_and_begin_where_the_state_says(repeats: int) -> None:
    rows = [[0, 3, 6], [1, 4, 7, 9], [2]]
    state = SimpleNamespace(epoch=None)
    trainer = SimpleNamespace(state=state, began=[0, 2])

    def epoch(number: float | None) -> list[int]:
        state.epoch = number
        sampler = RepeatSampler(
            range(10), mini_repeat_count=2, batch_size=2, repeat_count=repeats, seed=7
        )
        drawn = list(CurriculumSampler(sampler, rows, trainer))
        assert len(drawn) == len(sampler)
        size = len(drawn) // 5
        return [
            {task for task, mine in enumerate(rows) for row in drawn[at : at + size] if row in mine}
            for at in range(0, len(drawn), size)
        ]

    assert epoch(None) == [{0}, {0}, {1}, {1}, {1}]
    trainer.began.append(7)
    assert (
        epoch(1.0) == epoch(1.6) == [{1}, {1}, {2}, {2}, {2}]
    )  # batches 5 to 9, also when the epoch is resumed
    trainer.began[1:] = [5, 5]  # two evaluations before the next batch
    assert epoch(0.0) == [{0}] * 5 and epoch(1.0) == [{2}] * 5


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"curriculum": ["easy"]}, "curriculum: must be two or more different tasks"),
        ({"curriculum": ["easy", "easy"]}, "curriculum: must be two or more different tasks"),
        ({"curriculum_threshold": 70}, "curriculum_threshold"),
        ({"curriculum_threshold": 0}, "curriculum_threshold"),
        ({"eval_strategy": "no"}, "curriculum: needs eval_strategy: steps"),
        ({"save_strategy": "best", "metric_for_best_model": "loss"}, "no best checkpoint"),
        ({"curriculum": None}, "task_column has no effect without task_rewards or curriculum"),
    ],
)
def test_what_cannot_be_followed_is_refused(write, changes, told) -> None:
    with pytest.raises(RecipeError, match=told):
        load_recipe([write(**changes)], "grpo")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"curriculum": ["easy", "hrad"]},
            "curriculum: train_dataset: unknown value of column 'level' 'hrad'. Did you mean "
            "'hard'?",
        ),
        ({"task_column": "lvl"}, "unknown value of column 'lvl'"),
    ],
)
def test_a_task_without_rows_is_refused_before_the_model_is_loaded(
    write, capsys, monkeypatch, changes, told
) -> None:
    monkeypatch.setattr("trl.GRPOTrainer.__init__", None)
    with pytest.raises(SystemExit):
        grpo.main([write(**changes)])
    assert told in capsys.readouterr().err


def test_levels_are_those_of_reasoning_gym() -> None:
    def questions(level: object) -> list[str]:
        config = {
            "level": level,
            "train": {"size": 20, "seed": 1},
            "test": {"size": 5, "seed": 900000},
        }
        return load_rows("reasoning_gym:chain_sum", "train", task_config=config)["question"]

    lengths = [
        max(question.count("+") + question.count("-") for question in questions(level))
        for level in (0, 3)
    ]
    assert lengths == [1, 4]
    for level in (11, "2", -1):
        with pytest.raises(RecipeError, match=r"level|not supported"):
            questions(level)
    with pytest.raises(RecipeError, match="No curriculum"):
        load_rows(
            "reasoning_gym:acre",
            "train",
            task_config={
                "level": 1,
                "train": {"size": 1, "seed": 1},
                "test": {"size": 1, "seed": 9},
            },
        )
