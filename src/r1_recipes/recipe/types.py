"""Define a recipe as an object, and the keys that it may have beyond TRL's own."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import trl

Settings = dict[str, Any]  # values of keys
ON = ("true", "1", "yes")  # words of a switch that is on
Backend = Literal["transformers", "vllm", "openai"]
_BACKEND_HELP = (
    "What generates: 'transformers', 'vllm' (offline), or 'openai' (any OpenAI-compatible "
    "server: OPENAI_BASE_URL)."
)


def _key(help: str, default: Any = None, **options: Any) -> Any:
    return field(**(options or {"default": default}), metadata={"help": help})


@dataclass
class RecipeArguments:
    """Data, response format and run keys that every command shares."""

    dataset_name: str | None = _key(
        "Hub or ModelScope id, a local file or folder, or 'sums' or 'countdown:3-4'."
    )
    dataset_config: str | None = _key("Configuration (subset) of the dataset.")
    dataset_revision: str | None = _key("Revision of the hub dataset.")
    dataset_train_split: str = _key("Split to train on.", "train")
    dataset_test_split: str = _key(
        "Split of held-out rows, for evaluate and eval_strategy.", "test"
    )
    dataset_mixture: dict | None = _key(
        "Several datasets: {datasets: [{id, config, split, columns, weight, mapper, task, "
        "system_prompt, …}], seed, test_split_size}."
    )
    task_config: dict | None = _key(
        "For 'sums' and 'countdown:3-4': {train: {size, seed}, test: {size, seed}, and keys of "
        "the task}."
    )
    hub: Literal["huggingface", "modelscope"] = _key(
        "Where data sets and models that are not local paths come from: 'huggingface' or "
        "'modelscope'.",
        "huggingface",
    )
    mapper: str = _key(
        "Registered mapper, 'my_module:my_mapper', or 'auto': the first whose columns exist.",
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
        "Source columns that reach the rewards besides the mapper's columns. Default: all."
    )
    max_prompt_tokens: int | None = _key("Drop and count rows with a longer rendered prompt.")
    max_samples: int | None = _key("Train on the first N remaining rows.")
    max_eval_samples: int | None = _key("Evaluate on the first N remaining rows of the test split.")
    response_format: dict | str | None = _key(
        "How an answer must be written: a format's name (docs/keys.md lists them), or the keys of "
        "your own.",
        "think_answer",
    )
    system_prompt: str | None = _key(
        "Replaces the format's instruction; '' sends no system message."
    )
    prompt_template: str | None = _key(
        "Wraps the question: text with {question}, and with other columns of the row by name."
    )
    prefill: str | None = _key("Text that starts the assistant's turn; the model continues it.")
    few_shot: list[dict] | None = _key(
        "Worked examples before the question: [{question, reasoning, answer}]."
    )
    chat_template: str | None = _key(
        "Jinja text or a file's path; replaces the tokenizer's chat template."
    )
    tools: list[str] | None = _key(
        "Tools that the model may call: registered tools or 'my_module:my_tool', typed functions "
        "with docstrings."
    )
    environment: dict | str | None = _key(
        "Environment that the model plays in: a registered one or 'my_module:MyGame'. For several: "
        "{NAME: …}, chosen by the column 'environment'."
    )
    tool_timeout: float = _key("Seconds that one tool call may take.", 10.0)
    tool_output_chars: int = _key("Characters of a tool result that the model sees.", 2000)
    unfrozen_parameters: list[str] | None = _key(
        "Train only the parameters whose name matches one of these regular expressions."
    )
    wandb_entity: str | None = _key("WANDB_ENTITY of the run.")
    wandb_project: str | None = _key("WANDB_PROJECT of the run.")
    wandb_run_group: str | None = _key("WANDB_RUN_GROUP of the run.")
    smoke: bool = _key(
        "Run one step with a tiny random model on a few rows, on the CPU and without a hub.", False
    )


_TEMPLATE_VARIABLES = (
    "Variables of the chat template: {enable_thinking: false}. A saved checkpoint does not keep "
    "them."
)


@dataclass
class TurnsRecipeArguments(RecipeArguments):
    """Keys of methods whose trainer has no ``chat_template_kwargs``."""

    chat_template_kwargs: dict | None = _key(_TEMPLATE_VARIABLES)


@dataclass
class RewardedRecipeArguments(RecipeArguments):
    """Keys of methods whose rewards may differ by task."""

    reward_funcs: list[str] = _key(
        "Registered rewards or 'my_module:my_reward'. Their weights are TRL's reward_weights.",
        default_factory=list,
    )
    reward_models: dict | None = _key(
        "Reward models and judges by name, for reward_funcs: {NAME: {model, scope, "
        "activation, prompt, batch_size}}."
    )
    task_rewards: dict | None = _key(
        "Which reward_funcs score which rows: {TASK: [reward, …]} by the value of task_column. "
        "A reward that no task lists scores all rows."
    )
    task_column: str | None = _key(
        "Column with a row's task. Default: 'task' if it exists, otherwise 'data_source'."
    )


@dataclass
class GRPORecipeArguments(RewardedRecipeArguments):
    """Keys of a GRPO recipe.

    The parameters of the rewards are keys too; they are defined with the rewards.
    """

    trim_padding: bool = _key(
        "Skip padding: sort the rows of one optimizer step by length, and cut each micro-batch "
        "to its longest row. Same loss and gradient.",
        True,
    )
    dynamic_sampling: dict | None = _key(
        "Replace groups whose completions all get the same reward by groups of further prompts: "
        "{max_rounds: 3}, rounds of sampling per batch; reward: NAME compares that reward alone."
    )


@dataclass
class GenerateRecipeArguments(RecipeArguments):
    """Keys of a generation recipe: who generates, from which prompt, and what is kept."""

    backend: Backend = _key(_BACKEND_HELP, "transformers")
    reward_funcs: list[str] = _key(
        "Rewards that score the completions. The first reward says which are correct.",
        default_factory=list,
    )
    reward_models: dict | None = _key("As in a GRPO recipe.")
    keep: dict | None = _key(
        "Which completions become the dataset: see docs/keys.md. Default: all."
    )


@dataclass
class EvaluateRecipeArguments(RewardedRecipeArguments):
    """Keys of a benchmark: how many completions, and what else they are scored with.

    ``num_samples`` distinguishes a benchmark from a GRPO recipe. The first of ``reward_funcs`` that
    scores a row says whether it is right.
    """

    num_samples: int = _key("Sampled completions per row, besides the greedy one; 0: greedy only.")
    backend: Backend = _key(_BACKEND_HELP, "transformers")


@dataclass
class SamplingSettings:
    """How completions are sampled; names and meanings are those of ``trl.GRPOConfig``."""

    seed: int | None = _key("Seed of the sampling; null: no seed is sent to a server.", 42)
    max_completion_length: int = _key("Most tokens of a completion.", 512)
    temperature: float = _key("Sampling temperature; 0 is greedy.", 1.0)
    top_p: float = _key("Nucleus sampling; 1: all tokens.", 1.0)
    top_k: int = _key("Sample from the K likeliest tokens; 0: all tokens.", 0)
    min_p: float | None = _key("Least probability of a token, as a share of the likeliest token's.")
    repetition_penalty: float = _key("Penalty on repeated tokens; 1: no penalty.", 1.0)
    max_tool_calling_iterations: int | None = _key(
        "Most rounds of tool calls in one completion. Default: no limit."
    )
    generation_kwargs: dict | None = _key("Further settings of the backend's sampling.")
    chat_template_kwargs: dict | None = _key(_TEMPLATE_VARIABLES)
    generation_batch_size: int = _key(
        "Completions generated at once (transformers), or requested at once (openai).", 64
    )
    trust_remote_code: bool = _key("Run code from the model's repository.", False)
    use_cpu: bool = _key("Do not use an accelerator.", False)
    vllm_tensor_parallel_size: int = _key("vllm: GPUs that share one copy of the model.", 1)
    vllm_gpu_memory_utilization: float = _key(
        "vllm: share of the GPU's memory that vLLM takes.", 0.9
    )
    vllm_max_model_length: int | None = _key(
        "vllm: most tokens of a prompt and its completion together."
    )


@dataclass
class GenerationSettings(SamplingSettings):
    """How completions are sampled and where they are written.

    Names and meanings are those of ``trl.GRPOConfig``.
    """

    output_dir: str = _key("The run folder.")
    num_generations: int = _key("Completions per prompt.", 1)
    reward_weights: list[float] | None = _key("Weights of reward_funcs. Default: 1 each.")


# The class of our keys for a method, and that of its trainer's settings, TRL's by name alone.
OWN_TYPES: dict[str, tuple[type, type | str]] = {
    "grpo": (GRPORecipeArguments, "GRPOConfig"),
    "sft": (TurnsRecipeArguments, "SFTConfig"),
    "distill": (RecipeArguments, "DistillationConfig"),
    "reward": (TurnsRecipeArguments, "RewardConfig"),
    "generate": (GenerateRecipeArguments, GenerationSettings),
    "evaluate": (EvaluateRecipeArguments, SamplingSettings),
}


def argument_types(method: str) -> tuple[type, ...]:
    """Return the classes that have the keys of a command's recipe.

    They are ours, that of the trainer's settings (or our own settings), and TRL's ``ModelConfig``.
    """
    import trl  # heavy

    own, config = OWN_TYPES[method]
    return own, getattr(trl, config) if isinstance(config, str) else config, trl.ModelConfig


@dataclass
class Recipe:
    """A recipe with its overrides applied and every value checked.

    Attributes:
        path: The recipe's file.
        method: The command, for example ``grpo``.
        script: The keys of this project.
        training: TRL's config of the method, or the settings of generation and evaluation.
        model: TRL's ``ModelConfig``.
        reward_params: The parameters of rewards that the recipe sets.
        settings: What the file and the command line set. A run's copy of the recipe holds the same.
        warnings: One sentence for each key that was translated or ignored.
        typed: The keys of the command line.
    """

    path: Path
    method: str
    script: Any
    training: Any
    model: "trl.ModelConfig"
    reward_params: Settings = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    typed: frozenset[str] = frozenset()


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
    return recipe.reward_params.get(key)
