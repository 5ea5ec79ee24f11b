"""Play episodes with tools and environments, for ``evaluate``, ``generate`` and preflight.

TRL's trainer plays them, as in training, so that both measure the same.
"""

import tempfile
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.agents.build import agent
from r1_recipes.generation import Completion, load_model
from r1_recipes.recipe.types import Recipe

# Keys that mean the same in our settings and in TRL's.
_SHARED = (
    "seed use_cpu max_completion_length max_tool_calling_iterations top_p top_k min_p "
    "repetition_penalty generation_kwargs vllm_tensor_parallel_size vllm_gpu_memory_utilization "
    "vllm_max_model_length"
)


class EpisodeGenerator:
    """A generator whose completions are episodes: TRL's trainer, which is never trained."""

    def __init__(self, recipe: Recipe, tokenizer: Any, backend: str, rows: Any) -> None:
        """Build the trainer. ``rows`` name the environments."""
        if backend == "openai":
            raise RecipeError(
                "backend: openai: TRL's trainer plays an agent's episodes, and it needs the "
                "weights. Fix: --backend transformers, or vllm"
            )
        from trl import GRPOConfig

        from r1_recipes.training.trainer import RecipeTrainer

        self.settings, self.made = recipe.training, list[Completion]()
        tools, environments = agent(recipe, tokenizer)
        arguments = GRPOConfig(
            output_dir=tempfile.gettempdir(),  # Transformers makes the folder; nothing is written
            report_to="none",
            bf16=False,
            num_generations=2,  # unused: __call__ says how many
            per_device_train_batch_size=2,
            steps_per_generation=1,
            use_vllm=backend == "vllm",
            # Else TRL reads every completion again, for its loss.
            vllm_importance_sampling_correction=False,
            **{name: getattr(self.settings, name) for name in _SHARED.split()},
        )
        arguments._n_gpu = 1  # TRL refuses several in one process
        self.trainer = RecipeTrainer(
            [self.note],
            model=load_model(recipe),
            args=arguments,
            train_dataset=rows,
            processing_class=tokenizer,
            tools=tools,
            environment_factory=environments.get(None, environments) or None,
        )
        # Private names of TRL: this one says that vLLM has these weights. It read them from disk,
        # but always of the main revision (TRL 1.16: vllm_generation.py:347), and its CPU build
        # fails to load them a second time.
        if recipe.model.model_revision == "main":
            self.trainer._last_loaded_step = 0

    def __call__(self, rows: Any, temperature: float, count: int) -> list[list[Completion]]:
        """Play ``count`` episodes of each row."""
        trainer, settings = self.trainer, self.settings
        engine = trainer.vllm_generation if trainer.use_vllm else trainer.generation_config
        # The likeliest token alone is greedy decoding, with both engines.
        engine.temperature = temperature or 1.0
        engine.top_k = settings.top_k if temperature else 1
        trainer.num_generations_eval, self.made = count, []
        trainer.model.eval()
        episodes = [dict(row) for row in rows for _ in range(count)]
        size = max(1, settings.generation_batch_size // count) * count
        for start in range(0, len(episodes), size):
            # And this one plays a batch, and hands it to the rewards.
            trainer._generate_and_score_completions(episodes[start : start + size])
        return [self.made[at : at + count] for at in range(0, len(self.made), count)]

    def note(
        self, completions: Any, completion_ids: Any, environments: Any = None, **columns: Any
    ) -> list[float]:
        """Keep what TRL gives a reward. Return a score that nobody reads."""
        ends = self.trainer.eos_token_ids
        for place, (turns, ids) in enumerate(zip(completions, completion_ids, strict=True)):
            pay = getattr(environments[place], "get_reward", None) if environments else None
            reward = pay() if pay else None
            # As rewards read it: an episode that ends in a tool's result has no answer.
            text = turns[-1]["content"] if turns[-1]["role"] == "assistant" else ""
            self.made.append(Completion(text or "", len(ids), ids[-1] in ends, turns, reward))
        return [0.0] * len(completions)
