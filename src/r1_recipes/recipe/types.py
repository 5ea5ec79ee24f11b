"""A recipe as an object, and the keys that it may have beyond TRL's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BACKENDS = ("transformers", "vllm", "openai")


def _key(help: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": help})


def _names(help: str) -> Any:
    return field(default_factory=list, metadata={"help": help})


@dataclass
class RecipeArguments:
    """Data, response format and run keys that every entry point shares."""

    dataset_name: str | None = _key("Hub or ModelScope id, a local file or folder, or 'reasoning_gym:TASK' or 'countdown:3-4'.")
    dataset_config: str | None = _key("Configuration (subset) of the dataset.")
    dataset_revision: str | None = _key("Revision of the hub dataset.")
    dataset_train_split: str = _key("Split to train on.", "train")
    dataset_test_split: str = _key("Split to evaluate on; read only where eval_strategy is not 'no'.", "test")
    dataset_mixture: dict | str | None = _key(
        "Several datasets: {datasets: [{id, config, split, columns, weight, mapper, task, system_prompt, …}], seed, test_split_size}."
    )
    task_config: dict | str | None = _key(
        "For 'reasoning_gym:TASK' and 'countdown:3-4': {train: {size, seed}, test: {size, seed}, and the task's own keys}."
    )
    csv_separator: str | None = _key("What separates the cells of local CSV files. Default: a comma, or a tab in a .tsv file.")
    csv_encoding: str = _key("Encoding of local CSV files, such as 'cp1252'.", "utf-8")
    csv_decimal: str = _key("Decimal mark of local CSV files; with ',' a cell that is a number, 1.250,5, is read as 1250.5.", ".")
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
    response_format: str = _key("What an answer must look like; docs/recipes.md lists the formats.", "think_answer")
    system_prompt: str | None = _key("Replaces the format's own instruction; '' sends no system message.")
    prefill: str | None = _key("Text that the assistant's turn starts with; the model goes on from there.")
    few_shot: list[dict] | None = _key("Worked turns before the question: [{question, reasoning, answer}].")
    chat_template: str | None = _key("Jinja text or path of a file; replaces the tokenizer's chat template.")
    unfrozen_parameters: list[str] | None = _key("Train only the parameters whose name matches one of these regular expressions.")
    strict_hardware: bool = _key("Refuse a machine without an accelerator; by default use_cpu, bf16 and use_vllm follow it.", False)
    wandb_entity: str | None = _key("WANDB_ENTITY of the run.")
    wandb_project: str | None = _key("WANDB_PROJECT of the run.")
    wandb_run_group: str | None = _key("WANDB_RUN_GROUP of the run.")
    smoke: bool = _key("One step of a tiny random model on the mapper's example rows, on the CPU, without any hub.", False)


@dataclass
class GRPORecipeArguments(RecipeArguments):
    """Keys of a GRPO recipe. The parameters of the rewards are keys too; they live with the rewards."""

    reward_funcs: list[str] = _names("Registered rewards or 'my_module:my_reward'; weights are TRL's reward_weights.")
    task_rewards: dict | str | None = _key(
        "Which of reward_funcs judge which rows: {TASK: [reward, …]} by the value of task_column. A reward that no task names judges all."
    )
    eval_temperature: float | None = _key("Temperature of the trainer's evaluation; 0 is greedy. Default: as in training.")
    eval_max_completion_length: int | None = _key("Tokens of a completion in the trainer's evaluation. Default: as in training.")
    task_column: str | None = _key("Column that says a row's task; default: 'task' where it is there, else 'data_source'.")


@dataclass
class GenerateRecipeArguments(RecipeArguments):
    """Keys of a generation recipe: who generates, from which prompt, and what is kept."""

    backend: str = _key("Who generates: 'transformers', 'vllm' (offline), or 'openai' (any such server: OPENAI_BASE_URL).", "transformers")
    prompt_template: str | None = _key("Wraps the question: text with {question} and, by name, any other column of the row.")
    reward_funcs: list[str] = _names("Rewards that score the completions; the first one says what is correct.")
    keep: dict | str | None = _key("Which completions become the dataset: see docs/recipes.md. Default: all.")
    retry_failed: bool = _key("Ask again for rows that failed for good in an earlier run.", False)


@dataclass
class EvaluateRecipeArguments(RecipeArguments):
    """Keys of a benchmark: how many completions, and what else they are scored with. ``num_samples`` tells it from a GRPO recipe."""

    num_samples: int = _key("Sampled completions a row, besides the greedy one; 0: only that.")
    backend: str = _key("Who generates: 'transformers', 'vllm' (offline), or 'openai' (any such server: OPENAI_BASE_URL).", "transformers")
    reward_funcs: list[str] = _names("Rewards; the first that judges a row says what is right.")
    task_rewards: dict | str | None = _key("As in a GRPO recipe.")
    task_column: str | None = _key("As in a GRPO recipe.")


@dataclass
class SamplingSettings:
    """How completions are sampled; names and meanings are those of ``trl.GRPOConfig``."""

    seed: int | None = _key("Of the sampling; null: a server is sent none.", 42)
    max_completion_length: int = _key("Tokens that one completion may have.", 512)
    temperature: float = _key("0 is greedy.", 1.0)
    top_p: float = _key("Nucleus.", 1.0)
    top_k: int = _key("0: all tokens.", 0)
    min_p: float | None = _key("Least probability, as a share of the likeliest token's.")
    repetition_penalty: float = _key("1: none.", 1.0)
    generation_batch_size: int = _key("Completions generated at once (transformers), or asked for at once (openai).", 64)
    trust_remote_code: bool = _key("Run code that the model's repository ships.", False)
    use_cpu: bool = _key("Do not use an accelerator.", False)
    request_timeout: float = _key("openai: seconds that one try of a request may take.", 600.0)
    request_retries: int = _key("openai: further tries of a request, with growing waits.", 10)
    vllm_tensor_parallel_size: int = _key("vllm: GPUs that one copy of the model is spread over.", 1)
    vllm_gpu_memory_utilization: float = _key("vllm: share of the GPU's memory.", 0.9)
    vllm_max_model_length: int | None = _key("vllm: longest prompt and completion together.")


@dataclass
class GenerationSettings(SamplingSettings):
    """How completions are sampled and where they go; names and meanings are those of ``trl.GRPOConfig``."""

    output_dir: str = _key("The run directory.")
    num_generations: int = _key("Completions a prompt.", 1)
    reward_weights: list[float] | None = _key("Weights of reward_funcs; default 1 each.")


@dataclass
class Recipe:
    """A recipe, resolved.

    Attributes:
        script: ours; :class:`RecipeArguments` of the method.
        training: ``trl.GRPOConfig``, ``SFTConfig`` or ``DistillationConfig``, or our ``GenerationSettings`` or ``SamplingSettings``.
        model: ``trl.ModelConfig``.
        reward_params: parameters for ``get_reward_funcs``, only those the recipe sets.
        settings: every key that the file or the command line set, translated; what a run's copy of the recipe holds.
        warnings: one sentence a translated or ignored key.
        adapted: the recipe's own values of keys that follow the machine.
    """

    path: Path
    method: str
    script: Any
    training: Any
    model: Any
    reward_params: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    adapted: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's name without its ending; what a run directory remembers."""
        return self.path.stem


def namespace_value(recipe: Recipe, key: str) -> Any:
    """Return the resolved value of a key, wherever it lives."""
    for part in (recipe.script, recipe.training, recipe.model):
        if hasattr(part, key):
            return getattr(part, key)
    return recipe.reward_params.get(key)
