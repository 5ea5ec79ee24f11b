"""Complete prompts: with Transformers, with vLLM in this process, or on a server.

A generator is called with rows, a temperature and a count, and returns so many completions of
each row's ``prompt``. ``store.complete`` calls it for ``generate`` and ``evaluate``. For several
GPUs, raise ``vllm_tensor_parallel_size``, or start ``vllm serve --data-parallel-size N`` and use
``backend: openai``.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common import gpu
from r1_recipes.common.chat_client import ChatServer, Reply
from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.models.tokenizer import from_pretrained, load_tokenizer, recipe_format
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe.types import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Messages = list[dict[str, Any]]
# None instead of the defaults: Transformers warns about values that greedy decoding does not use.
_GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
# Values that change nothing. vLLM and SGLang get them too, because they would take others from the
# model's generation_config.json. Not every other server accepts these keys.
_NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Completion:
    """A completion of a prompt.

    Attributes:
        text: Without the prefill and the token that ends the turn. In an episode with tools, the
            last message.
        tokens: The number of generated tokens, including the token that ends the turn.
        finished: False if ``max_completion_length`` cut it.
        turns: In an episode, all messages after the prompt.
        reward: In an episode, the environment's reward.
    """

    text: str
    tokens: int
    finished: bool
    turns: Messages | None = None
    reward: float | None = None


Generator = Callable[[Any, float, int], list[list[Completion]]]


def load_format(
    recipe: Recipe, backend: str
) -> tuple[PreTrainedTokenizerBase | None, ResponseFormat]:
    """Return the tokenizer and the format that reads the backend's completions.

    A server has the tokenizer (``None``). Its chat template writes the prefill, and completions
    come without it.
    """
    return (None, recipe_format(recipe)) if backend == "openai" else load_tokenizer(recipe)


def get_generator(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase | None,
    fmt: ResponseFormat,
    backend: str,
    rows: Any,
) -> Generator:
    """Load the recipe's model, or find its server. vLLM has to hold the longest of all ``rows``."""
    if backend == "vllm":
        _check_vllm(recipe)
    if recipe.script.tools or recipe.script.environment:
        from r1_recipes.extras.agents.episodes import EpisodeGenerator

        return EpisodeGenerator(recipe, tokenizer, backend, rows)
    if tokenizer is None:
        return ServerGenerator(recipe, fmt)
    if backend == "vllm":
        return VLLMGenerator(recipe, tokenizer, rows["prompt"])
    return TransformersGenerator(recipe, tokenizer)


def _check_vllm(recipe: Recipe) -> None:
    where, name = f"{recipe.path}: backend: vllm:", str(recipe.model.model_name_or_path)
    if importlib.util.find_spec("vllm") is None:
        raise RecipeError(
            f"{where} vLLM is not installed. Fix: {install_hint('vllm')}, or --backend transformers"
        )
    if Path(name, "adapter_config.json").is_file():
        raise RecipeError(
            f"{where} {name} contains only adapters. Fix: python -m r1_recipes.adapters "
            f"{name}, then use {name}/merged"
        )


def load_model(recipe: Recipe) -> Any:
    """Return the recipe's model for generation, on the accelerator if there is one."""
    from accelerate import PartialState

    options = {key: getattr(recipe.model, key) for key in ("dtype", "attn_implementation")}
    model = from_pretrained("AutoModelForCausalLM", recipe, **options)
    return (model if recipe.training.use_cpu else model.to(PartialState().device)).eval()


class TransformersGenerator:
    """Transformers' ``generate``, batch by batch. It is slow, but runs wherever PyTorch does."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        from transformers import set_seed

        self.settings, self.tokenizer, self.model = recipe.training, tokenizer, load_model(recipe)
        set_seed(self.settings.seed or 0)
        ends = self.model.generation_config.eos_token_id
        self.ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        self.read_prompts: tuple[Any, Any] = (None, None)  # ids of the latest batch, and its cache

    def __call__(self, rows: Any, temperature: float, count: int) -> list[list[Completion]]:
        prompts, size = rows["prompt"], max(1, self.settings.generation_batch_size // count)
        batches = (prompts[start : start + size] for start in range(0, len(prompts), size))
        return [*chain(*(self.batch(part, temperature, count) for part in batches))]

    def batch(self, prompts: Any, temperature: float, count: int) -> list[list[Completion]]:
        """Complete the prompts of one batch, which are padded on the left."""
        import torch

        settings = self.settings
        # Transformers' default is top_k 50. Training samples from all tokens, unless the recipe
        # sets another top_k.
        names = ("top_p", "top_k", "min_p")
        sampling = {"do_sample": True, "temperature": temperature}
        sampling |= {name: getattr(settings, name) for name in names}
        inputs = self.tokenizer.apply_chat_template(
            list(prompts),
            add_generation_prompt=True,
            padding=True,
            tokenizer_kwargs={"padding_side": "left"},
            return_dict=True,
            return_tensors="pt",
        ).to(self.model.device)
        batch = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            output = self.model.generate(
                **{name: tensor.repeat_interleave(count, 0) for name, tensor in batch.items()},
                past_key_values=self.shared_prompts(batch, count),
                **(sampling if temperature else _GREEDY),
                repetition_penalty=settings.repetition_penalty,
                max_new_tokens=settings.max_completion_length,
                pad_token_id=self.tokenizer.pad_token_id,
                eos_token_id=sorted(self.ends),
            )
        made = [self.read(ids) for ids in output[:, batch["input_ids"].shape[1] :].tolist()]
        return [made[start : start + count] for start in range(0, len(made), count)]

    def shared_prompts(self, batch: dict[str, Any], count: int) -> Any:
        """Return the cache of prompts without their last token, read once for all completions.

        On a CPU a token of a prompt costs as much as one of a completion. Return None for a model
        whose states cannot be repeated (linear attention, recurrent layers).
        """
        from transformers.cache_utils import DynamicCache, DynamicLayer

        ids = batch["input_ids"].tolist()
        if self.read_prompts[0] != ids:
            start = {name: tensor[:, :-1] for name, tensor in batch.items()}
            ends = {"max_new_tokens": 1, "pad_token_id": self.tokenizer.pad_token_id}
            made = self.model.generate(**start, **_GREEDY, **ends, return_dict_in_generate=True)
            self.read_prompts = ids, made.past_key_values
        cache = copy.deepcopy(self.read_prompts[1])
        if type(cache) is not DynamicCache or not all(
            isinstance(layer, DynamicLayer) for layer in cache.layers
        ):
            return None
        cache.batch_repeat_interleave(count)
        return cache

    def read(self, ids: list[int]) -> Completion:
        """Return the completion of generated ids, which may go on after its end."""
        end = next((place for place, token in enumerate(ids) if token in self.ends), None)
        text = self.tokenizer.decode(ids[:end], skip_special_tokens=True)
        return Completion(text, len(ids) if end is None else end + 1, end is not None)


class VLLMGenerator:
    """vLLM in this process."""

    def __init__(
        self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, prompts: Iterable[Messages]
    ) -> None:
        """Start the engine, which has to hold the longest prompt and its completion."""
        gpu.quiet_vllm()
        from vllm import LLM

        settings, self.tokenizer = recipe.training, tokenizer
        self.settings = settings
        self.llm = LLM(
            str(recipe.model.model_name_or_path),
            revision=recipe.model.model_revision,
            dtype=recipe.model.dtype or "auto",
            seed=settings.seed,
            tensor_parallel_size=settings.vllm_tensor_parallel_size,
            gpu_memory_utilization=settings.vllm_gpu_memory_utilization,
            max_model_len=settings.vllm_max_model_length or self.longest(recipe, prompts),
            trust_remote_code=settings.trust_remote_code,
        )

    def ids(self, prompts: Iterable[Messages]) -> list[list[int]]:
        """Return the tokens of prompts, as training has them."""
        return self.tokenizer.apply_chat_template(
            list(prompts), add_generation_prompt=True, return_dict=True
        )["input_ids"]

    def longest(self, recipe: Recipe, prompts: Iterable[Messages]) -> int | None:
        """Return the tokens of the longest prompt with its completion.

        Return None, which leaves the length to vLLM, if the model's context is shorter.
        """
        config = from_pretrained("AutoConfig", recipe).get_text_config()
        window = getattr(config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        length = max(map(len, self.ids(prompts))) + self.settings.max_completion_length + 1
        return length if length <= min(window, self.tokenizer.model_max_length) else None

    def __call__(self, rows: Any, temperature: float, count: int) -> list[list[Completion]]:
        from vllm import SamplingParams

        settings = self.settings
        # No seed of its own: all prompts would share it, and the engine has the recipe's.
        params = SamplingParams(
            n=count,
            temperature=temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p or 0.0,
            repetition_penalty=settings.repetition_penalty,
            max_tokens=settings.max_completion_length,
        )
        prompts = [{"prompt_token_ids": ids} for ids in self.ids(rows["prompt"])]
        return [
            [
                Completion(made.text, len(made.token_ids), made.finish_reason != "length")
                for made in result.outputs
            ]
            for result in self.llm.generate(prompts, params, use_tqdm=False)
        ]

    def close(self) -> None:
        """End the engine's process, so that its memory is free for the next model."""
        self.llm.llm_engine.engine_core.shutdown()


class ServerGenerator:
    """The server at ``OPENAI_BASE_URL``. Its client tries again what may work later."""

    def __init__(self, recipe: Recipe, fmt: ResponseFormat) -> None:
        self.settings, self.fmt = recipe.training, fmt
        settings = recipe.training
        self.server = ChatServer(
            str(recipe.model.model_name_or_path),
            settings.generation_batch_size,
            settings.request_timeout,
            settings.request_retries,
        )
        sends_all = self.server.takes_vllms_keys()
        self.options = {
            name: value
            for name, neutral in _NEUTRAL.items()
            if (value := getattr(settings, name)) != neutral or sends_all
        }
        self.options["max_tokens"] = settings.max_completion_length
        self.options["chat_template_kwargs"] = settings.chat_template_kwargs

    def __call__(self, rows: Any, temperature: float, count: int) -> list[list[Completion]]:
        prompts, seed = rows["prompt"], self.settings.seed
        asked = [prompt for prompt in prompts for _ in range(count)]
        seeds = None
        if temperature and seed is not None:  # not every server accepts a seed
            seeds = range(seed, seed + len(asked))
        replies = self.server.chat(
            asked,
            seeds=seeds,
            strict=True,
            temperature=temperature,
            **self.options,
        )
        # One row that a filter refuses must not stop the others. All of them are a mistake.
        if refused := [reply.error for reply in replies if reply.error]:
            message = f"the server refuses {len(refused)} of {len(replies)} requests: {refused[0]}"
            if len(refused) == len(replies) and len(prompts) > 8:
                raise RecipeError(f"{message} Fix: correct the cause, then run it again")
            logger.warning("%s Their completions are empty", message)
        made = list(map(self.read, replies))
        return [made[start : start + count] for start in range(0, len(made), count)]

    def read(self, reply: Reply) -> Completion:
        """Return a reply as the model wrote it, with the reasoning that the server moved out."""
        text = reply.text
        if reply.reasoning:
            opening, closing = self.fmt.tags[:2] if self.fmt.reasoning_tags else ("", "\n\n")
            if self.fmt.prefill.rstrip().endswith(opening.strip()):
                opening = ""
            text = f"{opening}{reply.reasoning.strip()}{closing}{text.lstrip()}".strip()
        finished = not reply.error and reply.finish_reason != "length"
        return Completion(text, reply.tokens or 0, finished)
