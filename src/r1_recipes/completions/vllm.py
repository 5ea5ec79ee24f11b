"""Generate completions with vLLM in this process."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common import gpu, processes
from r1_recipes.common.errors import RecipeError, first_line, install_hint
from r1_recipes.completions.turns import read_completion, written_prompt
from r1_recipes.completions.types import (
    Completion,
    Messages,
    Request,
    SamplingPlan,
    Sink,
    TooLong,
    sample_seed,
    temperatures_of,
)
from r1_recipes.models.tokenizer import from_pretrained
from r1_recipes.recipe.types import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

# A launcher's environment variables. With them, vLLM would join the launcher's processes.
_LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "ROLE_RANK",
)


class VLLMBackend:
    """One engine of vLLM per process.

    Every completion is a separate request, so a row is handed over as soon as it is complete.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Iterable[Messages] | None = None,
    ) -> None:
        """Start the engine.

        Given all ``prompts``, the engine only has to hold the longest prompt and its completion.
        """
        where = f"{recipe.path}: backend: vllm:"
        if importlib.util.find_spec("vllm") is None:
            raise RecipeError(
                f"{where} vLLM is not installed. Fix: {install_hint('vllm')}, or "
                "--backend transformers"
            )
        name = recipe.model.model_name_or_path
        if Path(name, "adapter_config.json").is_file():
            raise RecipeError(
                f"{where} {name} contains only adapters. Fix: python -m r1_recipes.adapters "
                f"{name}, then use {name}/merged"
            )
        gpu.quiet_vllm()
        from vllm import LLM
        from vllm.platforms import current_platform

        model = recipe.model
        settings = self._settings = recipe.training
        self._tokenizer = tokenizer
        length = settings.vllm_max_model_length
        on_cpu = current_platform.is_cpu()
        if length is None and prompts is not None:
            length = self._longest(prompts, _window(from_pretrained("AutoConfig", recipe)))
        dtype = model.dtype or "auto"
        if (
            dtype == "bfloat16"
            and current_platform.is_cuda()
            and not current_platform.has_device_capability(80)
        ):
            logger.warning(
                "dtype: using float16 instead of bfloat16, which this GPU does not support "
                "(compute capability below 8.0)"
            )
            dtype = "float16"
        parallel = settings.vllm_tensor_parallel_size
        try:
            with _gpus_of_this_process(parallel, where):
                self._llm = LLM(
                    model.model_name_or_path,
                    revision=model.model_revision,
                    dtype=dtype,
                    seed=settings.seed,
                    tensor_parallel_size=parallel,
                    gpu_memory_utilization=settings.vllm_gpu_memory_utilization,
                    max_model_len=length,
                    trust_remote_code=settings.trust_remote_code,
                    # On a CPU, vLLM 0.31 ends with "CPU Generator does not use offset" if it cuts
                    # the prompt of a seeded request into chunks.
                    enable_chunked_prefill=False if on_cpu else None,
                )
        except RecipeError:
            raise
        # There is no device, too little memory, or an unknown model. vLLM's message says which.
        except Exception as error:
            raise RecipeError(
                f"{where} vLLM does not start: {first_line(error)} Fix: correct the cause, or use "
                "--backend transformers"
            ) from error

    def _longest(self, prompts: Iterable[Messages], window: int | None) -> int | None:
        """Return the length of the longest prompt with its completion.

        Return None, which leaves the length to vLLM, if the model's context is shorter.
        """
        longest = max((len(self._prompt_ids(Request(0, prompt))) for prompt in prompts), default=0)
        length = longest + int(self._settings.max_completion_length) + 1
        return length if length <= min(window or length, self._tokenizer.model_max_length) else None

    def _prompt_ids(self, request: Request) -> list[int]:
        text = written_prompt(self._tokenizer, request)
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def close(self) -> None:
        """End the engine's process, so that its memory is free for the next model."""
        self._llm.llm_engine.engine_core.shutdown()

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings = self._settings
        engine = self._llm.llm_engine
        limit = self._llm.model_config.max_model_len
        temperatures = temperatures_of(sampling_plans)
        shared = {
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "repetition_penalty": settings.repetition_penalty,
            "min_p": settings.min_p or 0.0,
            "max_tokens": settings.max_completion_length,
            # Output only finished requests. Otherwise every step builds an output for each running
            # request.
            "output_kind": RequestOutputKind.FINAL_ONLY,
        }
        done: defaultdict[int, dict[int, Completion]] = defaultdict(dict)
        by_index = {request.index: request for request in requests}
        for index, request in by_index.items():
            ids = self._prompt_ids(request)
            if len(ids) >= limit:
                error = f"the prompt has {len(ids)} tokens, but the model takes fewer than {limit}"
                sink(index, [], TooLong(error))
                continue
            for sample, temperature in enumerate(temperatures):
                seed = sample_seed(settings.seed, index, sample)
                params = SamplingParams(temperature=temperature, seed=seed, **shared)
                engine.add_request(f"{index}:{sample}", {"prompt_token_ids": ids}, params)
        # Step the engine instead of calling LLM.generate, which returns only when all rows are
        # complete. Each complete row is stored at once.
        while engine.has_unfinished_requests():
            for output in engine.step():
                index, sample = map(int, output.request_id.split(":"))
                request = by_index[index]
                answer = output.outputs[0]
                ids = list(answer.token_ids)
                ended = answer.finish_reason or "stop"
                completion = Completion(answer.text, len(ids), ended)
                # vLLM's text lacks special tokens, which some templates use to write tool calls.
                if request.tools:
                    written = ids[:-1] if ended == "stop" else ids
                    completion = read_completion(self._tokenizer, request, written, len(ids), ended)
                done[index][sample] = completion
                if len(done[index]) == len(temperatures):
                    completions = done.pop(index)
                    sink(index, [completions[sample] for sample in range(len(temperatures))], None)


@contextlib.contextmanager
def _gpus_of_this_process(parallel: int, where: str) -> Iterator[None]:
    """Show vLLM's engine only this process's GPUs, and no launcher.

    Each of several processes on this machine gets ``parallel`` GPUs.
    """
    if processes.world_size() == 1:
        yield
        return
    import torch

    start = int(os.environ.get("LOCAL_RANK", 0)) * parallel
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_devices:
        devices = visible_devices.split(",")
    else:
        devices = [str(number) for number in range(torch.cuda.device_count())]
    visible_to_process = devices[start : start + parallel]
    if devices and len(visible_to_process) < parallel:
        count = os.environ.get("LOCAL_WORLD_SIZE", processes.world_size())
        raise RecipeError(
            f"{where} vllm_tensor_parallel_size: each of {count} processes needs {parallel} "
            f"GPUs, but {len(devices)} are visible. "
            f"Fix: start {max(1, len(devices) // parallel)} processes"
        )
    before = dict(os.environ)
    try:
        if visible_to_process:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible_to_process)
        for name in before:
            if name in _LAUNCHER or name.startswith("TORCHELASTIC_"):
                del os.environ[name]
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _window(config: Any) -> int | None:
    """Return the model's longest context in tokens."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)
