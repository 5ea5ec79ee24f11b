"""Generate completions with Transformers' ``generate``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import message_text
from r1_recipes.completions.turns import read_completion, written_prompt
from r1_recipes.completions.types import Completion, Request, SamplingPlan, Sink, sample_seed
from r1_recipes.models.tokenizer import from_pretrained
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# None instead of the defaults: Transformers warns about values that greedy decoding does not use.
_GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}


def load_model(recipe: Recipe) -> PreTrainedModel:
    """Return the recipe's model for generation, on the accelerator if there is one."""
    from accelerate import PartialState

    settings = recipe.model
    try:
        model = from_pretrained(
            "AutoModelForCausalLM",
            recipe,
            dtype=settings.dtype,
            attn_implementation=settings.attn_implementation,
        )
    except OSError as error:  # a file is missing, incomplete or not readable
        raise RecipeError(
            f"model_name_or_path: {settings.model_name_or_path!r} cannot be loaded "
            f"({first_line(error)[:-1]}). Fix: a folder with a complete model, or another id"
        ) from error
    if not recipe.training.use_cpu:
        model = model.to(PartialState().device)
    return model.eval()


def sampling(settings: Any, temperature: float | None = None) -> dict[str, Any]:
    """Return Transformers' generation arguments for a recipe's sampling keys.

    ``temperature`` replaces the recipe's; 0 is greedy.
    """
    if temperature is None:
        temperature = settings.temperature
    if temperature == 0:
        return {**_GREEDY, "repetition_penalty": settings.repetition_penalty}
    # Transformers' default is top_k 50. Training samples from all tokens unless the recipe sets
    # another top_k.
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    shared = {name: getattr(settings, name) for name in names}
    return shared | {"do_sample": True, "temperature": temperature}


def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    requests: Sequence[Request],
    sampling_plans: Sequence[tuple[dict[str, Any], int]],
    max_new_tokens: int,
) -> list[list[list[Completion]]]:
    """Complete a batch of prompts by plans, each with arguments of :func:`sampling` and copies.

    ``result[plan][prompt]`` is the list of completions.
    """
    import torch
    from transformers.cache_utils import DynamicCache, DynamicLayer

    texts = [written_prompt(tokenizer, request) for request in requests]
    batch = tokenizer(
        texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    ).to(model.device)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    limits = {
        "max_new_tokens": max_new_tokens,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": sorted(ends),
    }
    results = []
    with torch.inference_mode():
        # Read each prompt once, except its last token, and repeat the cache. That takes a fifth of
        # the time for samples of 48 tokens on a CPU.
        start = {name: tensor[:, :-1] for name, tensor in batch.items()}
        read = model.generate(
            **start, **_GREEDY, **{**limits, "max_new_tokens": 1}, return_dict_in_generate=True
        ).past_key_values
        # The states of linear attention and recurrent layers cannot be repeated, so such a model
        # reads the prompt for every copy.
        repeatable = type(read) is DynamicCache and all(
            isinstance(layer, DynamicLayer) for layer in read.layers
        )
        for settings, copies in sampling_plans:
            inputs = {
                name: tensor.repeat_interleave(copies, dim=0) for name, tensor in batch.items()
            }
            cache = copy.deepcopy(read) if repeatable else None
            if cache is not None:
                cache.batch_repeat_interleave(copies)
            output = model.generate(**inputs, **settings, **limits, past_key_values=cache)
            rows = iter(output[:, inputs["input_ids"].shape[1] :].tolist())
            plan = [
                [_completion(tokenizer, request, next(rows), ends) for _ in range(copies)]
                for request in requests
            ]
            results.append(plan)
    return results


def _completion(
    tokenizer: PreTrainedTokenizerBase, request: Request, ids: list[int], ends: set[int]
) -> Completion:
    for position, token in enumerate(ids):
        if token in ends:
            return read_completion(tokenizer, request, ids[:position], position + 1, "stop")
    return read_completion(tokenizer, request, ids, len(ids), "length")


class TransformersBackend:
    """Generate batch by batch. It is slow, but runs wherever PyTorch does."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        self._settings = recipe.training
        self._tokenizer = tokenizer
        self._model = load_model(recipe)

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        from transformers import set_seed

        settings = self._settings
        step = max(1, settings.generation_batch_size // max(copies for _, copies in sampling_plans))
        arguments = [
            (sampling(settings, temperature), copies) for temperature, copies in sampling_plans
        ]
        # Batch prompts of similar length, because padding costs time. Start with the longest, so
        # that a lack of memory shows at once.
        requests = sorted(requests, key=lambda request: (-_length(request), request.index))
        for begin in range(0, len(requests), step):
            part = requests[begin : begin + step]
            set_seed(sample_seed(settings.seed, part[0].index, 0))
            done = complete(
                self._model, self._tokenizer, part, arguments, settings.max_completion_length
            )
            for request, *groups in zip(part, *done, strict=True):
                sink(request.index, list(itertools.chain(*groups)), None)


def _length(request: Request) -> int:
    return sum(len(message_text(message)) for message in request.prompt)
