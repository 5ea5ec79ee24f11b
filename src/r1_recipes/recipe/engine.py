"""Compute how long a sequence vLLM's engine must hold, and whether its share of a GPU holds one."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

GIB = 2**30
# Estimated memory for CUDA's context, CUDA graphs, the peak of vLLM's profiling and NCCL's buffers:
# the usual amount, and the least.
_OVERHEAD = 2 * GIB
_MIN_OVERHEAD = 0.75 * GIB


class Shortage(NamedTuple):
    """A KV cache that is too small, and the message about it."""

    certain: bool  # too small even with the least overhead
    message: str


def longest_sequence(value: Callable[[str], Any]) -> int | None:
    """Return the most tokens of a prompt and its completion in a training run.

    Return None if no key limits the prompts. TRL's ``max_completion_length`` counts all assistant
    turns of an episode and all tool results. Two things come on top. The text of an environment's
    ``reset`` adds at most ``tool_output_chars``. With ``vllm_mode: server``, the last message can
    add a full completion, because TRL cuts it only after it has been generated.
    """
    prompt = value("max_prompt_tokens")
    completion = max(value("max_completion_length") or 0, value("eval_max_completion_length") or 0)
    # With distill_with: gold, max_length limits the engine.
    if prompt is None or not completion or value("distill_with") == "gold":
        return None
    if value("environment"):
        prompt += value("tool_output_chars")
    if value("vllm_mode") == "server" and (value("tools") or value("environment")):
        completion *= 2
    return prompt + completion


def engine_problem(
    *, length: int, share: float, total: int, parameters: int, cache: int, parallel: int = 1
) -> Shortage | None:
    """Return why vLLM would not start and which keys help.

    Return None if the KV cache holds one sequence of ``length`` tokens. ``share`` of ``total``
    bytes on each of ``parallel`` GPUs holds the weights (2 bytes per parameter), an overhead and
    the cache (``cache`` values of 2 bytes per token). vLLM checks one sequence too
    (v1/core/kv_cache_utils.py, 0.31), with a measured overhead and the layers of all types.
    """
    weights = 2 * parameters / parallel
    per_token = 2 * cache / parallel
    room = share * total - weights - _OVERHEAD
    missing = length * per_token - room
    if missing <= 0:
        return None
    fits = int(max(0.0, room) / per_token) if per_token else 0
    needed = math.ceil((weights + _OVERHEAD + length * per_token) / total * 20) / 20
    fixes = ["a larger GPU, or a smaller model"]
    if needed <= 0.95:
        fixes.insert(0, f"--vllm_gpu_memory_utilization {needed:g}")
    if fits >= 64:
        shorter = f"--vllm_max_model_length {fits // 64 * 64}"
        fixes.insert(0, f"{shorter} with prompts and completions that short")
    message = (
        f"vllm_gpu_memory_utilization: {share:g} of {total / GIB:.0f} GiB holds "
        f"{fits} tokens in the KV cache, besides weights of "
        f"{weights / GIB:.1f} GiB and {_OVERHEAD // GIB} GiB of overhead, but one sequence "
        f"may have {length} tokens "
        f"({length * per_token / GIB:.1f} GiB). Fix: {', or '.join(fixes)}"
    )
    return Shortage(missing > _OVERHEAD - _MIN_OVERHEAD, message)
