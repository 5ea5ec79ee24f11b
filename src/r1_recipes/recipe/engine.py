"""Compute how long a sequence vLLM's engine must hold."""

from collections.abc import Callable
from typing import Any


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
