"""Questions that reasoning-gym draws."""

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
    """Draw a reasoning-gym task's ``question``, ``answer`` and ``metadata`` (JSON text, since its
    shape differs by task).

    ``config``: the task's own keys, ``level`` (of reasoning-gym's curriculum, from 0), and
    ``train``/``test``: mappings with ``size``, ``seed`` and keys for that split alone. Question i
    is drawn from seed + i, so closer seeds share most questions.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS, create_curriculum
    except ImportError as error:
        raise RecipeError(
            f"reasoning_gym tasks need the package: {install_hint('demo')}"
        ) from error
    if task not in DATASETS:
        raise RecipeError(unknown_name("reasoning_gym task", task, DATASETS))
    try:
        check_task(task)
    except ValueError as error:
        raise RecipeError(f"dataset_name: {error}") from error

    def draw(part: dict[str, Any]) -> Draws:
        options = {**config, **part, "size": part["size"] * 20}  # a small task repeats itself
        del options["train"], options["test"]
        try:
            level = options.pop("level", None)
            if level is not None:
                options = {**_options_of_level(create_curriculum(task), level), **options}
            drawn = reasoning_gym.create_dataset(task, **options)
        except (TypeError, AssertionError, ValueError) as error:
            hint = nearest_key(options, inspect.signature(DATASETS[task][1]).parameters)
            raise RecipeError(
                f"task_config of {task!r}: {first_line(error)}{hint} Keys given: {sorted(options)}"
            ) from error
        for row in drawn:
            metadata = json.dumps(row["metadata"], default=str)
            yield (
                row["question"],
                {"question": row["question"], "answer": row["answer"], "metadata": metadata},
            )

    return distinct_rows(draw, split, config, f"questions of {task!r}")


def _options_of_level(curriculum: Any, level: int) -> dict[str, Any]:
    """Return a task's options at a level of its curriculum; ValueError: it has none so high."""
    if not any(level < len(attribute.levels) for attribute in curriculum.attributes.values()):
        raise ValueError(f"level: there is none {level}")  # reasoning-gym would take the last
    curriculum.set_global_level(level)
    return vars(curriculum.generate_configuration())
