"""How long a sequence vLLM's engine must hold, and whether its share of a GPU holds one; arithmetic
alone.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

GIB = 2**30
# CUDA's context, CUDA graphs, the peak of vLLM's profiling and NCCL's buffers, by estimate: what
# they usually take, and at the least.
_OVERHEAD = 2 * GIB
_LEAST_OVERHEAD = 0.75 * GIB


class Shortage(NamedTuple):
    """What an engine has too little room for."""

    certain: bool  # even with the least overhead
    said: str


def longest_sequence(value: Callable[[str], Any]) -> int | None:
    """Return the tokens of the longest prompt and completion of a training run, by its keys; None
    if its prompts have no bound.

    TRL's ``max_completion_length`` counts all turns of an episode and what tools say. Two things
    come on top: the text of an environment's ``reset``, at most ``tool_output_chars``; and, in
    ``vllm_mode: server``, the last turn, which TRL cuts only when it has been generated.
    """
    prompt = value("max_prompt_tokens")
    completion = max(value("max_completion_length") or 0, value("eval_max_completion_length") or 0)
    if (
        prompt is None or not completion or value("distill_with") == "gold"
    ):  # whose max_length is its engine's
        return None
    if value("environment"):
        prompt += value("tool_output_chars")
    if value("vllm_mode") == "server" and (value("tools") or value("environment")):
        completion *= 2
    return prompt + completion


def engine_problem(
    *, length: int, share: float, total: int, parameters: int, cache: int, parallel: int = 1
) -> Shortage | None:
    """Return why vLLM would not start, with the keys to type; None if its KV cache holds one
    sequence of ``length`` tokens.

    ``share`` of ``total`` bytes on each of ``parallel`` GPUs has the weights (2 bytes each), an
    overhead and the cache, of ``cache`` values (2 bytes each) a token. vLLM compares one sequence,
    too (v1/core/kv_cache_utils.py, 0.31), with a measured overhead and the layers of every kind.
    """
    weights, per_token = 2 * parameters / parallel, 2 * cache / parallel
    room = share * total - weights - _OVERHEAD
    missing = length * per_token - room
    if missing <= 0:
        return None
    fits = int(max(0.0, room) / per_token) if per_token else 0
    needed = math.ceil((weights + _OVERHEAD + length * per_token) / total * 20) / 20
    fixes = (
        [f"--vllm_max_model_length {fits // 64 * 64} with prompts and completions that short"]
        if fits >= 64
        else []
    )
    fixes += [f"--vllm_gpu_memory_utilization {needed:g}"] if needed <= 0.95 else []
    said = (
        f"vllm_gpu_memory_utilization: {share:g} of {total / GIB:.0f} GiB has room for "
        f"{fits} tokens in the KV cache, beside weights of "
        f"{weights / GIB:.1f} GiB and {_OVERHEAD // GIB} GiB of overhead, but one sequence "
        f"may have {length} "
        f"({length * per_token / GIB:.1f} GiB). Fix: "
        f"{', or '.join([*fixes, 'a larger GPU, or a smaller model'])}"
    )
    return Shortage(missing > _OVERHEAD - _LEAST_OVERHEAD, said)
