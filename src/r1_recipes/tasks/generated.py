"""Data sets that are drawn instead of read: reasoning-gym's tasks and Countdown puzzles."""

from __future__ import annotations

import json
import re
from random import Random
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line, install_hint, unknown_name
from r1_recipes.tasks.countdown import draw as draw_puzzle
from r1_recipes.verification.gym import check_task

if TYPE_CHECKING:
    from datasets import Dataset


def reasoning_gym_rows(task: str, split: str, config: dict[str, Any]) -> Dataset:
    """Rows of a reasoning-gym task, with train and test disjoint by question.

    Args:
        task: name in reasoning-gym's registry.
        split: ``"train"`` or ``"test"``.
        config: the task's own keys, and ``train``/``test``: mappings with ``size``, ``seed`` and keys for that split alone. Question i
            is drawn from seed + i, so seeds closer together than the sizes share most questions.

    Returns:
        Columns ``question``, ``answer``, ``metadata`` (JSON text, since its shape differs by task). A training question that the test
        split holds is left out and replaced by the next one drawn.

    Raises:
        RecipeError: package missing, unknown task, unknown key, or too few distinct questions.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise RecipeError(f"reasoning_gym tasks need the package: {install_hint('demo')}") from error
    from datasets import Dataset  # heavy

    if task not in DATASETS:
        raise RecipeError(unknown_name("reasoning_gym task", task, DATASETS))
    try:
        check_task(task)
    except ValueError as error:
        raise RecipeError(f"dataset_name: {error}") from error
    common = {key: value for key, value in config.items() if key not in ("train", "test")}
    _check_parts(config, split, "a reasoning_gym task")

    def draw(part: str, size: int) -> Any:
        options = {**common, **config[part], "size": size}
        try:
            return reasoning_gym.create_dataset(task, **options)
        except (TypeError, AssertionError, ValueError) as error:
            raise RecipeError(f"task_config of {task!r}: {first_line(error)}; keys given: {sorted(options)}") from error

    def unique(part: str, size: int, excluded: frozenset[str]) -> list[dict[str, Any]]:
        rows, seen, drawn = [], set(excluded), 0
        # A small task repeats itself; draw on until there is enough, but not for ever.
        for entry in draw(part, size * 20):
            drawn += 1
            if entry["question"] not in seen:
                seen.add(entry["question"])
                rows.append(entry)
                if len(rows) == size:
                    return rows
        raise RecipeError(f"task_config: {part}: only {len(rows)} distinct questions of {size} in {drawn} draws of {task!r}")

    rows = unique("test", config["test"]["size"], frozenset())
    if split == "train":
        rows = unique("train", config["train"]["size"], frozenset(row["question"] for row in rows))
    return Dataset.from_list(
        [{"question": r["question"], "answer": r["answer"], "metadata": json.dumps(r["metadata"], default=str)} for r in rows]
    )


def _check_parts(config: dict[str, Any], split: str, source: str) -> None:
    """``train`` and ``test`` of something generated have a size and a seed each, and ``split`` is one of them."""
    for part in ("train", "test"):
        if not isinstance(config.get(part), dict) or not {"size", "seed"} <= set(config[part]):
            raise RecipeError(f"task_config: {part}: needs size and seed, found {config.get(part)!r}")
        for key, least in (("size", 1), ("seed", 0)):
            value = config[part][key]
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise RecipeError(f"task_config: {part}: {key}: a whole number from {least}, found {value!r}")
    if split not in ("train", "test"):
        raise RecipeError(f"split {split!r}: {source} has 'train' and 'test'")


def countdown_rows(count: str, split: str, config: dict[str, Any]) -> Dataset:
    """Countdown puzzles, each with a solution in whole positive steps; no puzzle twice, and none in both splits.

    Two puzzles are the same where they have the same target and the same numbers in any order. (reasoning-gym's task ``countdown``, at
    some 15 ms a puzzle, keeps its splits apart by the words of the question, so the same puzzle may stand in both.)

    Args:
        count: how many numbers a puzzle has: ``"3-4"``, or ``"3"``; from 2 to 6.
        split: ``"train"`` or ``"test"``.
        config: ``min_value``, ``max_value``: range of the numbers, from 1; ``min_target``, ``max_target``: range of the target, from 1;
            ``train``, ``test``: mappings with ``size`` and ``seed``.

    Returns:
        Columns ``nums``, ``target`` (those of Jiayi-Pan/Countdown-Tasks-3to4) and ``expression`` (a solution). A training puzzle that the
        test split holds is left out and replaced by the next one drawn.

    Raises:
        RecipeError: a count or a key that is not so, or too few distinct puzzles.
    """
    from datasets import Dataset  # heavy

    bounds = re.fullmatch(r"([2-6])(?:-([2-6]))?", count)
    if bounds is None or bounds[1] > (bounds[2] or bounds[1]):
        raise RecipeError(f"dataset_name: countdown:{count}: how many numbers a puzzle has, from 2 to 6, such as countdown:3-4")
    settings = {"min_numbers": int(bounds[1]), "max_numbers": int(bounds[2] or bounds[1])}
    keys = ("min_value", "max_value", "min_target", "max_target")
    for key in config:
        if key not in (*keys, "train", "test"):
            raise RecipeError("task_config: " + unknown_name("key of countdown", key, (*keys, "train", "test")))
    for key in keys:
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RecipeError(f"task_config: {key}: a whole number from 1, found {value!r}")
        settings[key] = value
    for name in ("value", "target"):
        if settings[f"min_{name}"] > settings[f"max_{name}"]:
            raise RecipeError(f"task_config: min_{name} {settings[f'min_{name}']} is above max_{name} {settings[f'max_{name}']}")
    _check_parts(config, split, "countdown")

    def unique(part: str, excluded: set[tuple]) -> dict[tuple, dict[str, Any]]:
        rng, size = Random(config[part]["seed"]), config[part]["size"]
        rows: dict[tuple, dict[str, Any]] = {}
        drawn = 100 * size + 1000  # a narrow range repeats itself, or seldom meets a target
        for _ in range(drawn):
            found = draw_puzzle(rng, settings)
            if found is not None:
                puzzle, expression = found
                key = (*sorted(puzzle.numbers), puzzle.target)
                if key not in excluded and key not in rows:
                    rows[key] = {"nums": list(puzzle.numbers), "target": puzzle.target, "expression": expression}
                    if len(rows) == size:
                        return rows
        raise RecipeError(f"task_config: {part}: only {len(rows)} distinct puzzles of {size} in {drawn} draws of countdown:{count}")

    rows = unique("test", set())
    if split == "train":
        rows = unique("train", set(rows))
    return Dataset.from_list(list(rows.values()))


# By the prefix of a recipe's dataset_name.
GENERATED_SETS = {"reasoning_gym": reasoning_gym_rows, "countdown": countdown_rows}
