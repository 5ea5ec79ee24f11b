"""Completions by vLLM in this process."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

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
from r1_recipes.models.engine import check_room, dimensions, room_problem
from r1_recipes.recipe.types import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

# What a launcher exports, by which vLLM would join its processes.
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
    """vLLM's engine, one for each process. Every completion is a request of its own, so rows are
    handed over as soon as they are whole.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Iterable[Messages] | None = None,
    ) -> None:
        """Start the engine; with all ``prompts`` that will be asked, it need not hold more than the
        longest and its completion.
        """
        where = f"{recipe.path}: backend: vllm:"
        if importlib.util.find_spec("vllm") is None:
            raise RecipeError(
                f"{where} vLLM is not installed; {install_hint('vllm')}, or run without it: "
                f"--backend transformers"
            )
        name = recipe.model.model_name_or_path
        if Path(name, "adapter_config.json").is_file():
            raise RecipeError(
                f"{where} {name} holds adapters alone. Fix: python -m r1_recipes.adapters "
                f"{name}, then {name}/merged"
            )
        gpu.quiet_vllm()
        from vllm import LLM
        from vllm.platforms import current_platform

        model, settings = recipe.model, recipe.training
        self._settings, self._tokenizer = settings, tokenizer
        size, length, on_cpu = (
            dimensions(recipe),
            settings.vllm_max_model_length,
            current_platform.is_cpu(),
        )
        if length is None and prompts is not None and size is not None:
            length = self._longest(prompts, size.window)
        if not on_cpu and size is not None:
            check_room(where, room_problem(recipe, size, length))
        dtype = model.dtype or "auto"
        if (
            dtype == "bfloat16"
            and current_platform.is_cuda()
            and not current_platform.has_device_capability(80)
        ):
            logger.warning(
                "dtype: float16 instead of bfloat16, which this GPU does not have (compute "
                "capability below 8.0)"
            )
            dtype = "float16"
        parallel = settings.vllm_tensor_parallel_size
        try:
            with _own_gpus(parallel, where):
                self._llm = LLM(
                    model.model_name_or_path,
                    revision=model.model_revision,
                    dtype=dtype,
                    seed=settings.seed,
                    tensor_parallel_size=parallel,
                    gpu_memory_utilization=settings.vllm_gpu_memory_utilization,
                    max_model_len=length,
                    trust_remote_code=settings.trust_remote_code,
                    # A seeded request whose prompt is cut into chunks ends vLLM 0.31 on a CPU: "CPU
                    # Generator does not use offset".
                    enable_chunked_prefill=False if on_cpu else None,
                )
        except RecipeError:
            raise
        except (
            Exception
        ) as error:  # no device, too little memory, a model it does not know: vLLM's own words
            raise RecipeError(
                f"{where} the engine does not start: {first_line(error)} Without it: "
                f"--backend transformers"
            ) from error

    def _longest(self, prompts: Iterable[Messages], window: int | None) -> int | None:
        """Return the tokens of the longest prompt with its completion; None, vLLM's own length, if
        the model was not made for so many.
        """
        longest = max((len(self._prompt_ids(Request(0, prompt))) for prompt in prompts), default=0)
        length = longest + int(self._settings.max_completion_length) + 1
        return length if length <= min(window or length, self._tokenizer.model_max_length) else None

    def _prompt_ids(self, request: Request) -> list[int]:
        return self._tokenizer(written_prompt(self._tokenizer, request), add_special_tokens=False)[
            "input_ids"
        ]

    def close(self) -> None:
        """End the engine's process, so that the next model finds its memory free."""
        self._llm.llm_engine.engine_core.shutdown()

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings, engine, limit = (
            self._settings,
            self._llm.llm_engine,
            self._llm.model_config.max_model_len,
        )
        temperatures = temperatures_of(sampling_plans)
        shared = {
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "repetition_penalty": settings.repetition_penalty,
            "min_p": settings.min_p or 0.0,
            "max_tokens": settings.max_completion_length,
            # When a request is done; otherwise every step builds an output for each that is under
            # way.
            "output_kind": RequestOutputKind.FINAL_ONLY,
        }
        done: defaultdict[int, dict[int, Completion]] = defaultdict(dict)
        by_index = {request.index: request for request in requests}
        for index, request in by_index.items():
            ids = self._prompt_ids(request)
            if len(ids) >= limit:
                sink(
                    index,
                    [],
                    TooLong(
                        f"the prompt has {len(ids)} tokens; the model takes fewer than {limit}"
                    ),
                )
                continue
            for sample, temperature in enumerate(temperatures):
                params = SamplingParams(
                    temperature=temperature,
                    seed=sample_seed(settings.seed, index, sample),
                    **shared,
                )
                engine.add_request(f"{index}:{sample}", {"prompt_token_ids": ids}, params)
        # The engine's own steps, not LLM.generate: a row is stored when it is whole, not when all
        # are.
        while engine.has_unfinished_requests():
            for output in engine.step():
                index, sample = map(int, output.request_id.split(":"))
                answer, request = output.outputs[0], by_index[index]
                ids, ended = list(answer.token_ids), answer.finish_reason or "stop"
                completion = Completion(answer.text, len(ids), ended)
                if (
                    request.tools
                ):  # vLLM's text has no special tokens, in which some templates write calls
                    written = ids[:-1] if ended == "stop" else ids
                    completion = read_completion(self._tokenizer, request, written, len(ids), ended)
                done[index][sample] = completion
                if len(done[index]) == len(temperatures):
                    completions = done.pop(index)
                    sink(index, [completions[sample] for sample in range(len(temperatures))], None)


@contextlib.contextmanager
def _own_gpus(parallel: int, where: str) -> Iterator[None]:
    """Show the engine's process its own GPUs, of several processes on this machine ``parallel``
    each, and no launcher.
    """
    if processes.world_size() == 1:
        yield
        return
    import torch

    start, visible = (
        int(os.environ.get("LOCAL_RANK", 0)) * parallel,
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    devices = (
        visible.split(",")
        if visible
        else [str(number) for number in range(torch.cuda.device_count())]
    )
    own = devices[start : start + parallel]
    if devices and len(own) < parallel:
        count = os.environ.get("LOCAL_WORLD_SIZE", processes.world_size())
        raise RecipeError(
            f"{where} vllm_tensor_parallel_size: each of {count} processes needs {parallel} "
            f"GPUs, and {len(devices)} are visible. "
            f"Fix: {max(1, len(devices) // parallel)} processes"
        )
    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {}):
        for name in (*_LAUNCHER, *(key for key in os.environ if key.startswith("TORCHELASTIC_"))):
            os.environ.pop(name, None)
        yield
