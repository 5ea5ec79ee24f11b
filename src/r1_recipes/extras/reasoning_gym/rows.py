"""Generate the rows of a data set with reasoning-gym."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line, install_hint, unknown_name
from r1_recipes.data.generated import Draws, distinct_rows, nearest_key
from r1_recipes.extras.reasoning_gym.scorer import check_task

if TYPE_CHECKING:
    from datasets import Dataset


def reasoning_gym_rows(task: str, split: str, config: dict[str, Any]) -> Dataset:
    """Return the ``question``, ``answer`` and ``metadata`` of a reasoning-gym task.

    ``metadata`` is JSON text, because its keys depend on the task.

    Args:
        task: The name of the task.
        split: ``"train"`` or ``"test"``.
        config: The keys of the task, ``level`` (of reasoning-gym's curriculum, from 0), and
            mappings ``train`` and ``test`` with ``size``, ``seed`` and keys for only that split.
            Question i is generated from seed + i, so close seeds share most questions.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS, create_curriculum
    except ImportError as error:
        raise RecipeError(
            f"dataset_name: reasoning_gym tasks need the package. Fix: {install_hint('demo')}"
        ) from error
    if task not in DATASETS:
        raise RecipeError(unknown_name("reasoning_gym task", task, DATASETS))
    try:
        check_task(task)
    except ValueError as error:
        raise RecipeError(f"dataset_name: {error}") from error

    def draw(part: dict[str, Any]) -> Draws:
        options = {**config, **part, "size": part["size"] * 20}  # A small task repeats questions.
        del options["train"], options["test"]
        try:
            level = options.pop("level", None)
            if level is not None:
                options = {**_options_of_level(create_curriculum(task), level), **options}
            questions = reasoning_gym.create_dataset(task, **options)
        except (TypeError, AssertionError, ValueError) as error:
            hint = nearest_key(options, inspect.signature(DATASETS[task][1]).parameters)
            raise RecipeError(
                f"task_config of {task!r}: {first_line(error)}{hint} The keys are {sorted(options)}"
            ) from error
        for row in questions:
            metadata = json.dumps(row["metadata"], default=str)
            yield (
                row["question"],
                {"question": row["question"], "answer": row["answer"], "metadata": metadata},
            )

    return distinct_rows(draw, split, config, f"questions of {task!r}")


def _options_of_level(curriculum: Any, level: int) -> dict[str, Any]:
    """Return a task's options at a level of its curriculum. Raise ValueError above its levels."""
    if not any(level < len(attribute.levels) for attribute in curriculum.attributes.values()):
        # reasoning-gym would use the last level instead.
        raise ValueError(f"level: the curriculum has no level {level}")
    curriculum.set_global_level(level)
    return vars(curriculum.generate_configuration())
