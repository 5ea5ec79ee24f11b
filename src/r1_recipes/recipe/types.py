"""Define a recipe as an object, and the keys that it may have beyond TRL's own."""

import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    import trl

Settings = dict[str, Any]  # values of keys
Backend = Literal["transformers", "vllm", "openai"]
_WHO_GENERATES = (
    "Who generates: 'transformers', 'vllm' (offline), or 'openai' (any such server: "
    "OPENAI_BASE_URL)."
)


def _key(help: str, default: Any = None, **options: Any) -> Any:
    return field(**(options or {"default": default}), metadata={"help": help})


@dataclass
class RecipeArguments:
    """Data, response format and run keys that every command shares."""

    dataset_name: str | None = _key(
        "Hub or ModelScope id, a local file or folder, or 'reasoning_gym:TASK' or 'countdown:3-4'."
    )
    dataset_config: str | None = _key("Configuration (subset) of the dataset.")
    dataset_revision: str | None = _key("Revision of the hub dataset.")
    dataset_train_split: str = _key("Split to train on.", "train")
    dataset_test_split: str = _key(
        "Split to evaluate on; read only where eval_strategy is not 'no'.", "test"
    )
    dataset_mixture: dict | None = _key(
        "Several datasets: {datasets: [{id, config, split, columns, weight, mapper, task, "
        "system_prompt, …}], seed, test_split_size}."
    )
    task_config: dict | None = _key(
        "For 'reasoning_gym:TASK' and 'countdown:3-4': {train: {size, seed}, test: {size, "
        "seed}, and the task's own keys}."
    )
    hub: Literal["huggingface", "modelscope"] = _key(
        "Where names that are not local paths come from: 'huggingface' or 'modelscope'; "
        "models too.",
        "huggingface",
    )
    mapper: str = _key(
        "Registered mapper, 'my_module:my_mapper', or 'auto': the first whose columns are there.",
        "auto",
    )
    mapper_config: dict | None = _key("Arguments of the mapper.")
    prompt_column: str | None = _key(
        "Column of the question, for the mappers 'prompt_solution' and 'math'."
    )
    solution_column: str | None = _key("Column of the reference answer, for the same mappers.")
    reasoning_column: str | None = _key(
        "Column of the worked solution (SFT), for the same mappers."
    )
    keep_columns: list[str] | None = _key(
        "Source columns that reach the rewards besides the mapper's own. Default: all."
    )
    max_prompt_tokens: int | None = _key(
        "Rows with a longer rendered prompt are dropped, and counted."
    )
    max_solution_tokens: int | None = _key(
        "Rows whose SFT target, or gold, is longer are dropped, and counted."
    )
    max_samples: int | None = _key("Train on the first N rows that are left.")
    max_eval_samples: int | None = _key(
        "Evaluate on the first N rows of the test split that are left."
    )
    response_format: dict | str | None = _key(
        "What an answer must look like: a name (docs/recipes.md lists them), "
        "'my_formats.yaml:NAME', or a format's keys.",
        "think_answer",
    )
    system_prompt: str | None = _key(
        "Replaces the format's own instruction; '' sends no system message."
    )
    prompt_template: str | None = _key(
        "Wraps the question: text with {question} and, by name, any other column of the row."
    )
    prefill: str | None = _key(
        "Text that the assistant's turn starts with; the model goes on from there."
    )
    few_shot: list[dict] | None = _key(
        "Worked turns before the question: [{question, reasoning, answer}]."
    )
    chat_template: str | None = _key(
        "Jinja text or path of a file; replaces the tokenizer's chat template."
    )
    tools: list[str] | None = _key(
        "What the model may call: registered tools or 'my_module:my_tool', typed functions "
        "with docstrings."
    )
    environment: dict | str | None = _key(
        "What it plays in: a registered environment or 'my_module:MyGame'; {NAME: …} by the "
        "column 'environment' for several."
    )
    tool_timeout: float = _key("Seconds that one call may take.", 10.0)
    tool_output_chars: int = _key("Characters of a result that the model is shown.", 2000)
    unfrozen_parameters: list[str] | None = _key(
        "Train only the parameters whose name matches one of these regular expressions."
    )
    wandb_entity: str | None = _key("WANDB_ENTITY of the run.")
    wandb_project: str | None = _key("WANDB_PROJECT of the run.")
    wandb_run_group: str | None = _key("WANDB_RUN_GROUP of the run.")
    smoke: bool = _key(
        "One step of a tiny random model on a few rows, on the CPU, without any hub.", False
    )


_TEMPLATE_VARIABLES = (
    "Variables of the chat template: {enable_thinking: false}. A saved checkpoint's template has "
    "them as defaults."
)


@dataclass
class TurnsRecipeArguments(RecipeArguments):
    """Keys of methods whose trainer has no ``chat_template_kwargs``."""

    chat_template_kwargs: dict | None = _key(_TEMPLATE_VARIABLES)


@dataclass
class GRPORecipeArguments(RecipeArguments):
    """Keys of a GRPO recipe.

    The parameters of the rewards are keys too; they are defined with the rewards.
    """

    reward_funcs: list[str] = _key(
        "Registered rewards or 'my_module:my_reward'; weights are TRL's reward_weights.",
        default_factory=list,
    )
    reward_models: dict | None = _key(
        "Reward models and judges by name, for reward_funcs: {NAME: {model, scope, "
        "activation, prompt, batch_size}}."
    )
    task_rewards: dict | None = _key(
        "Which of reward_funcs judge which rows: {TASK: [reward, …]} by the value of "
        "task_column. A reward that no task names judges all."
    )
    eval_temperature: float | None = _key(
        "Temperature of the trainer's evaluation; 0 is greedy. Default: as in training."
    )
    eval_max_completion_length: int | None = _key(
        "Tokens of a completion in the trainer's evaluation. Default: as in training."
    )
    max_logged_completions: int = _key(
        "Rows of the table that log_completions writes, once per generation; the first ones.", 256
    )
    trim_padding: bool = _key(
        "Compute no padding: rows of one optimizer step are sorted by length, and each micro-batch "
        "is cut to its longest row. Same loss and gradient.",
        True,
    )
    dynamic_sampling: dict | None = _key(
        "Replace groups whose completions all get the same reward by groups of further prompts: "
        "{max_rounds: 3}, rounds of sampling per batch; reward: NAME compares that reward alone."
    )
    task_column: str | None = _key(
        "Column that says a row's task; default: 'task' where it is there, else 'data_source'."
    )
    curriculum: list[str] | None = _key(
        "Tasks, easiest first: one after the other, each until its held-out rows are mostly right."
    )
    curriculum_threshold: float = _key(
        "Mean of the first reward on the held-out rows that ends a task of curriculum, (0, 1].", 0.7
    )


@dataclass
class DistillRecipeArguments(RecipeArguments):
    """Keys of a distillation recipe."""

    distill_with: Literal["distillation", "gold", "server"] = _key(
        "TRL's trainer: 'distillation' (one vocabulary), 'gold' (any two), 'server' (one "
        "vocabulary, the teacher behind vLLM's server).",
        "distillation",
    )


@dataclass
class GenerateRecipeArguments(RecipeArguments):
    """Keys of a generation recipe: who generates, from which prompt, and what is kept."""

    backend: Backend = _key(_WHO_GENERATES, "transformers")
    reward_funcs: list[str] = _key(
        "Rewards that score the completions; the first one says what is correct.",
        default_factory=list,
    )
    reward_models: dict | None = _key("As in a GRPO recipe.")
    keep: dict | None = _key(
        "Which completions become the dataset: see docs/recipes.md. Default: all."
    )
    retry_failed: bool = _key("Ask again for rows that failed for good in an earlier run.", False)


@dataclass
class EvaluateRecipeArguments(RecipeArguments):
    """Keys of a benchmark: how many completions, and what else they are scored with.

    ``num_samples`` distinguishes a benchmark from a GRPO recipe.
    """

    num_samples: int = _key("Sampled completions a row, besides the greedy one; 0: only that.")
    backend: Backend = _key(_WHO_GENERATES, "transformers")
    reward_funcs: list[str] = _key(
        "Rewards; the first that judges a row says what is right.", default_factory=list
    )
    reward_models: dict | None = _key("As in a GRPO recipe.")
    task_rewards: dict | None = _key("As in a GRPO recipe.")
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
    max_tool_calling_iterations: int | None = _key(
        "Rounds of tool calls in one completion; default: no limit."
    )
    chat_template_kwargs: dict | None = _key(_TEMPLATE_VARIABLES)
    generation_batch_size: int = _key(
        "Completions generated at once (transformers), or asked for at once (openai).", 64
    )
    trust_remote_code: bool = _key("Run code that the model's repository ships.", False)
    use_cpu: bool = _key("Do not use an accelerator.", False)
    request_timeout: float = _key("openai: seconds that one try of a request may take.", 600.0)
    request_retries: int = _key("openai: further tries of a request, with growing waits.", 10)
    vllm_tensor_parallel_size: int = _key(
        "vllm: GPUs that one copy of the model is spread over.", 1
    )
    vllm_gpu_memory_utilization: float = _key("vllm: share of the GPU's memory.", 0.9)
    vllm_max_model_length: int | None = _key("vllm: longest prompt and completion together.")


@dataclass
class GenerationSettings(SamplingSettings):
    """How completions are sampled and where they are written.

    Names and meanings are those of ``trl.GRPOConfig``.
    """

    output_dir: str = _key("The run directory.")
    num_generations: int = _key("Completions a prompt.", 1)
    reward_weights: list[float] | None = _key("Weights of reward_funcs; default 1 each.")


# The class of our keys for a method, and that of its trainer's settings, TRL's by name alone.
OWN_TYPES: dict[str, tuple[type, type | str]] = {
    "grpo": (GRPORecipeArguments, "GRPOConfig"),
    "sft": (TurnsRecipeArguments, "SFTConfig"),
    "distill": (DistillRecipeArguments, "DistillationConfig"),
    "reward": (TurnsRecipeArguments, "RewardConfig"),
    "generate": (GenerateRecipeArguments, GenerationSettings),
    "evaluate": (EvaluateRecipeArguments, SamplingSettings),
}


_DISTILL_CONFIGS = {
    "gold": "experimental.gold.GOLDConfig",
    "server": "experimental.server_distillation.ServerDistillationConfig",
}


def argument_types(method: str, distill_with: object = None) -> tuple[type, type, type]:
    """Return the classes that have the keys of a recipe.

    Args:
        method: The command, for example ``grpo``.
        distill_with: The recipe's key of this name.

    Returns:
        Our class, the class of the trainer's settings (or our own settings), and TRL's
        ``ModelConfig``.
    """
    import trl

    own, config = OWN_TYPES[method]
    if isinstance(config, str):
        os.environ.setdefault(
            "TRL_EXPERIMENTAL_SILENCE", "1"
        )  # a warning at each import of a trainer that may change
        module, _, name = f"trl.{_DISTILL_CONFIGS.get(str(distill_with), config)}".rpartition(".")
        config = getattr(importlib.import_module(module), name)
    return own, config, trl.ModelConfig


Arguments = TypeVar("Arguments", bound=RecipeArguments)
Config = TypeVar("Config")


@dataclass
class Recipe(Generic[Arguments, Config]):
    """A recipe with its overrides applied and every value checked.

    Attributes:
        path: The recipe's file.
        method: The command, for example ``grpo``.
        script: The keys of this project.
        training: TRL's config of the method, or the settings of generation and evaluation.
        model: TRL's ``ModelConfig``.
        reward_params: The parameters of rewards that the recipe sets.
        environment_params: The parameters of environments that the recipe sets.
        settings: What the file and the command line set. A run's copy of the recipe holds the same.
        warnings: One sentence for each key that was translated or ignored.
        typed: The keys of the command line.
        adapted: The recipe's own values of keys that follow the machine.
    """

    path: Path
    method: str
    script: Arguments
    training: Config
    model: "trl.ModelConfig"
    reward_params: Settings = field(default_factory=dict)
    environment_params: Settings = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    typed: frozenset[str] = frozenset()
    adapted: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the file's name without its ending, which a run folder remembers."""
        return self.path.stem


GRPORecipe = Recipe[GRPORecipeArguments, "trl.GRPOConfig"]
SFTRecipe = Recipe[TurnsRecipeArguments, "trl.SFTConfig"]
RewardRecipe = Recipe[TurnsRecipeArguments, "trl.RewardConfig"]
DistillRecipe = Recipe[DistillRecipeArguments, Any]  # distill_with chooses between three configs
GenerateRecipe = Recipe[GenerateRecipeArguments, GenerationSettings]
EvaluateRecipe = Recipe[EvaluateRecipeArguments, SamplingSettings]


def namespace_value(recipe: Recipe, key: str) -> Any:
    """Return the resolved value of a key, wherever it is stored.

    Args:
        recipe: The recipe.
        key: Any key of the recipe.

    Returns:
        The value, or ``None`` if the recipe has no such key.
    """
    for part in (recipe.script, recipe.training, recipe.model):
        if hasattr(part, key):
            return getattr(part, key)
    return (recipe.reward_params | recipe.environment_params).get(key)
