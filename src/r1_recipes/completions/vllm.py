"""Completions by vLLM in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError, first_line, install_hint
from r1_recipes.completions.types import Completion, Request, SamplingPlan, Sink, sample_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from r1_recipes.recipe.load import Recipe


class VLLMBackend:
    """vLLM's engine. Every completion is a request of its own, so rows are handed over as soon as they are whole."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise RecipeError(
                f"{recipe.path}: backend: vllm: vLLM is not installed; {install_hint('vllm')}, or run without it: --backend transformers"
            )
        if processes.world_size() > 1:
            raise RecipeError(
                f"{recipe.path}: backend: vllm: {processes.world_size()} processes were started; start one, and spread the model over GPUs "
                "with vllm_tensor_parallel_size, or run `vllm serve --data-parallel-size N` and take backend: openai"
            )
        from vllm import LLM

        model, self._settings = recipe.model, recipe.training
        self._tokenizer = tokenizer
        try:
            self._llm = LLM(
                model.model_name_or_path,
                revision=model.model_revision,
                dtype=model.dtype or "auto",
                seed=self._settings.seed,
                tensor_parallel_size=self._settings.vllm_tensor_parallel_size,
                gpu_memory_utilization=self._settings.vllm_gpu_memory_utilization,
                max_model_len=self._settings.vllm_max_model_length,
                trust_remote_code=self._settings.trust_remote_code,
            )
        except Exception as error:  # no device, too little memory, a model it does not know: vLLM's own words
            raise RecipeError(
                f"{recipe.path}: backend: vllm: the engine does not start ({first_line(error)[:-1]}); without it: --backend transformers"
            ) from error

    def run(self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings, engine, limit = self._settings, self._llm.llm_engine, self._llm.model_config.max_model_len
        temperatures = [temperature for temperature, copies in sampling_plans for _ in range(copies)]
        options = {name: getattr(settings, name) for name in ("top_p", "top_k", "repetition_penalty")}
        # One output per request, when it is done; otherwise every step builds one for each that is under way.
        options |= {
            "min_p": settings.min_p or 0.0,
            "max_tokens": settings.max_completion_length,
            "output_kind": RequestOutputKind.FINAL_ONLY,
        }
        done: dict[int, list[Completion | None]] = {}
        for request in requests:
            text = self._tokenizer.apply_chat_template(request.prompt, add_generation_prompt=True, tokenize=False)
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) >= limit:
                sink(request.index, [], f"the prompt has {len(ids)} tokens; the model takes fewer than {limit}")
                continue
            done[request.index] = [None] * len(temperatures)
            for sample, temperature in enumerate(temperatures):
                seed = sample_seed(settings.seed, request.index, sample)
                params = SamplingParams(**options, temperature=temperature, seed=seed)
                engine.add_request(f"{request.index}:{sample}", {"prompt_token_ids": ids}, params)
        # The engine's own steps, not LLM.generate: a row is stored when it is whole, not when all are.
        while engine.has_unfinished_requests():
            for output in engine.step():
                index, sample = map(int, output.request_id.split(":"))
                (answer,) = output.outputs
                done[index][sample] = Completion(answer.text, len(answer.token_ids), answer.finish_reason or "stop")
                whole = [completion for completion in done[index] if completion is not None]
                if len(whole) == len(temperatures):
                    del done[index]
                    sink(index, whole, None)
