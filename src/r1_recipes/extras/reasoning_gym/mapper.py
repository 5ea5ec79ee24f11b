"""Map rows of reasoning-gym, which the scorer of the task checks."""

import json
from typing import Any

from r1_recipes.data.mapped_row import MappedRow
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    optional_text,
    register_mapper,
    required_text,
)
from r1_recipes.extras.reasoning_gym.scorer import check_task


@register_mapper("reasoning_gym")
class ReasoningGym(Mapper):
    """A task of reasoning-gym: ``question``, ``answer`` and ``metadata``.

    The scorer of the task checks answers, by the column ``scorer``.
    """

    columns = ("question", "answer", "metadata")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        metadata = row.get("metadata")
        try:
            metadata = (
                metadata
                if isinstance(metadata, dict)
                else json.loads(required_text(row, "metadata"))
            )
            task = metadata["source_dataset"]
            check_task(task)
        except (TypeError, KeyError, json.JSONDecodeError, RecursionError) as error:
            raise SkipRow(
                "column 'metadata' must be JSON of reasoning-gym with source_dataset, the name "
                "of a task"
            ) from error
        except ValueError as error:
            raise SkipRow(str(error)) from error
        question = required_text(row, "question")
        entry = {"question": question, "answer": row.get("answer"), "metadata": metadata}
        scorer = json.dumps({"reasoning_gym": task, "entry": entry}, default=str)
        return {"question": question, "solution": optional_text(row, "answer"), "scorer": scorer}
