"""Completions by vLLM in this process."""

import importlib.util
from collections.abc import Sequence
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError, first_line, install_hint
from r1_recipes.completions.turns import read_completion, written_prompt
from r1_recipes.completions.types import Completion, Request, SamplingPlan, Sink, TooLong, sample_seed
from r1_recipes.recipe.types import Recipe


class VLLMBackend:
    """vLLM's engine. Every completion is a request of its own, so rows are handed over as soon as they are whole."""

    def __init__(self, recipe: Recipe, tokenizer: Any) -> None:
        where = f"{recipe.path}: backend: vllm:"
        if importlib.util.find_spec("vllm") is None:
            raise RecipeError(f"{where} vLLM is not installed; {install_hint('vllm')}, or run without it: --backend transformers")
        if processes.world_size() > 1:
            raise RecipeError(f"{where} must be one process. Fix: vllm_tensor_parallel_size: N spreads the model")
        from vllm import LLM
        from vllm.platforms import current_platform

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
                # A seeded request whose prompt is cut into chunks ends vLLM 0.31 on a CPU: "CPU Generator does not use offset".
                enable_chunked_prefill=False if current_platform.is_cpu() else None,
            )
        except Exception as error:  # no device, too little memory, a model it does not know: vLLM's own words
            raise RecipeError(f"{where} the engine does not start: {first_line(error)} Without it: --backend transformers") from error

    def run(self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings, engine, limit = self._settings, self._llm.llm_engine, self._llm.model_config.max_model_len
        temperatures = [temperature for temperature, copies in sampling_plans for _ in range(copies)]
        shared: dict[str, Any] = {name: getattr(settings, name) for name in ("top_p", "top_k", "repetition_penalty")}
        shared |= {"min_p": settings.min_p or 0.0, "max_tokens": settings.max_completion_length}
        # When a request is done; otherwise every step builds an output for each that is under way.
        shared["output_kind"] = RequestOutputKind.FINAL_ONLY
        done: dict[int, dict[int, Completion]] = {}
        asked = {request.index: request for request in requests}
        for request in requests:
            text = written_prompt(self._tokenizer, request)
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) >= limit:
                sink(request.index, [], TooLong(f"the prompt has {len(ids)} tokens; the model takes fewer than {limit}"))
                continue
            done[request.index] = {}
            for sample, temperature in enumerate(temperatures):
                seed = sample_seed(settings.seed, request.index, sample)
                params = SamplingParams(temperature=temperature, seed=seed, **shared)
                engine.add_request(f"{request.index}:{sample}", {"prompt_token_ids": ids}, params)
        # The engine's own steps, not LLM.generate: a row is stored when it is whole, not when all are.
        while engine.has_unfinished_requests():
            for output in engine.step():
                index, sample = map(int, output.request_id.split(":"))
                (answer,) = output.outputs
                ids, ended = list(answer.token_ids), answer.finish_reason or "stop"
                if asked[index].tools:  # vLLM's text has no special tokens, in which some templates write calls
                    done[index][sample] = read_completion(
                        self._tokenizer, asked[index], ids[: len(ids) - (ended == "stop")], len(ids), ended
                    )
                else:
                    done[index][sample] = Completion(answer.text, len(ids), ended)
                if len(done[index]) == len(temperatures):
                    own = done.pop(index)
                    sink(index, [own[sample] for sample in sorted(own)], None)
