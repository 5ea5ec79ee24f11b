"""What a recipe may say beyond TRL's own keys. Imports TRL (and so torch); use :mod:`r1_recipes.recipe` to read a recipe."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.errors import RecipeError


def _key(help: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class RecipeArguments:
    """Data, response format and run keys that every entry point shares."""

    dataset_name: str | None = _key("Hub or ModelScope id, a local file or folder, or 'reasoning_gym:TASK'.")
    dataset_config: str | None = _key("Configuration (subset) of the dataset.")
    dataset_revision: str | None = _key("Revision of the hub dataset.")
    dataset_train_split: str = _key("Split to train on.", "train")
    dataset_test_split: str = _key("Split to evaluate on; read only where eval_strategy is not 'no'.", "test")
    dataset_mixture: dict | str | None = _key(
        "Several datasets: {datasets: [{id, config, split, columns, weight}], seed, test_split_size}."
    )
    task_config: dict | str | None = _key("For 'reasoning_gym:TASK': {train: {size, seed}, test: {size, seed}, and the task's own keys}.")
    hub: str = _key("Where names that are not local paths come from: 'huggingface' or 'modelscope'; models too.", "huggingface")
    mapper: str = _key("Registered mapper, 'my_module:my_mapper', or 'auto': the first whose columns are there.", "auto")
    mapper_config: dict | str | None = _key("Arguments of the mapper.")
    prompt_column: str | None = _key("Column of the question, for the mappers 'prompt_solution' and 'math'.")
    solution_column: str | None = _key("Column of the reference answer, for the same mappers.")
    reasoning_column: str | None = _key("Column of the worked solution (SFT), for the same mappers.")
    keep_columns: list[str] | None = _key("Source columns that reach the rewards besides the mapper's own. Default: all.")
    max_prompt_tokens: int | None = _key("Rows with a longer rendered prompt are dropped, and counted.")
    max_solution_tokens: int | None = _key("Rows whose reference solution (worked, where there is one) is longer are dropped, and counted.")
    max_samples: int | None = _key("Train on the first N rows that are left.")
    max_eval_samples: int | None = _key("Evaluate on the first N rows of the test split that are left.")
    response_format: str = _key("What an answer must look like: a name of r1_recipes.formats.FORMATS.", "think_answer")
    system_prompt: str | None = _key("Replaces the format's own instruction; '' sends no system message.")
    prefill: str | None = _key("Text that the assistant's turn starts with; the model goes on from there.")
    few_shot: list[dict] | None = _key("Worked turns before the question: [{question, reasoning, answer}].")
    chat_template: str | None = _key("Jinja text or path of a file; replaces the tokenizer's chat template.")
    unfrozen_parameters: list[str] | None = _key("Train only the parameters whose name matches one of these regular expressions.")
    wandb_entity: str | None = _key("WANDB_ENTITY of the run.")
    wandb_project: str | None = _key("WANDB_PROJECT of the run.")
    wandb_run_group: str | None = _key("WANDB_RUN_GROUP of the run.")
    smoke: bool = _key("One step of a tiny random model on the mapper's example rows, on the CPU, without any hub.", False)

    def __post_init__(self) -> None:
        for name in ("dataset_mixture", "task_config", "mapper_config"):
            value = getattr(self, name)
            if isinstance(value, str):
                try:
                    setattr(self, name, json.loads(value))
                except json.JSONDecodeError as error:
                    raise RecipeError(f"{name}: not a JSON object ({error}): {value!r}") from error
        if self.hub not in ("huggingface", "modelscope"):
            raise RecipeError(f"hub: found {self.hub!r}; 'huggingface' and 'modelscope' are known")
        if self.dataset_name and self.dataset_mixture:
            raise RecipeError("dataset_name and dataset_mixture are both set; keep the one that is meant")
        if not (self.dataset_name or self.dataset_mixture):
            raise RecipeError("dataset_name: missing; name a hub dataset, a local path or 'reasoning_gym:TASK' (or set dataset_mixture)")


@dataclass
class GRPORecipeArguments(RecipeArguments):
    """Keys of a GRPO recipe. The parameters of the rewards are keys too; they live with the rewards."""

    reward_funcs: list[str] = field(
        default_factory=list, metadata={"help": "Registered rewards or 'my_module:my_reward'; weights are TRL's reward_weights."}
    )


@dataclass
class SFTRecipeArguments(RecipeArguments):
    """Keys of an SFT recipe."""
