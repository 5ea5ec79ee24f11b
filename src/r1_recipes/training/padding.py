"""Micro-batches without the padding that TRL computes: it pads each of them to the longest prompt
and the longest completion of the whole generation.

Heavy: imports torch and TRL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from trl.trainer.utils import (
    split_pixel_values_by_grid,
    split_tensor_dict,
    unsplit_pixel_values_by_grid,
)

Rows = dict[str, Any]  # a micro-batch as TRL's trainer hands it to its loss

# What TRL hands over by token, by the part of the row that its columns stand for; the rest has no
# column for a token. tests/core/training/test_padding.py compares with TRL's source.
OF_PROMPT = ("prompt_ids", "prompt_mask")
OF_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)
OF_BOTH = ("token_type_ids", "mm_token_type_ids")


def keeps_row_order(trainer: Any) -> str | None:
    """Return the key for which a row's place in a micro-batch changes the loss, or ``None``.

    These terms are means over the tokens of one micro-batch; all other losses add up row by row.
    """
    if trainer.loss_type == "bnpo":
        return "loss_type: bnpo"
    if trainer.top_entropy_quantile < 1.0:
        return "top_entropy_quantile"
    if trainer.args.entropy_coef or trainer.args.use_adaptive_entropy:
        return "entropy_coef"
    return "router_aux_loss_coef" if trainer.aux_loss_enabled else None


def without_padding(batches: list[Rows], window: int, multiple: int | None) -> list[Rows]:
    """Sort rows by length and cut what is padding in every row of a micro-batch.

    Args:
        batches: The micro-batches of one generation, in the order in which they are trained on.
        window: Rows move among so many consecutive micro-batches, whose gradients one optimizer
            step adds up; 1 keeps each row where it is.
        multiple: ``pad_to_multiple_of``.

    Returns:
        As many micro-batches of as many rows, the longest of each window first, so that what does
        not fit into memory fails at once.
    """
    ordered: list[Rows] = []
    for start in range(0, len(batches), window):
        ordered += _by_length(batches[start : start + window])
    return [_trimmed(batch, multiple or 1) for batch in ordered]


def _by_length(batches: list[Rows]) -> list[Rows]:
    if len(batches) == 1:
        return batches
    parts = [split_pixel_values_by_grid(batch) for batch in batches]
    masks = [torch.cat([part["prompt_mask"], part["completion_mask"]], 1) for part in parts]
    order = torch.cat(masks).sum(1).argsort(descending=True, stable=True)
    moved = {}
    for key in parts[0]:
        moved[key] = _in_order([part[key] for part in parts], order)
    return [unsplit_pixel_values_by_grid(part) for part in split_tensor_dict(moved, len(batches))]


def _in_order(values: list[Any], order: torch.Tensor) -> Any:
    """Join what the micro-batches have of one key, with the rows in a new order."""
    first = values[0]
    if isinstance(first, list):
        rows = [row for value in values for row in value]
        return [rows[row] for row in order.tolist()]
    if isinstance(first, torch.Tensor) and first.ndim > 0:
        return torch.cat(values)[order]
    return first


def _trimmed(batch: Rows, multiple: int) -> Rows:
    """Cut the columns that are padding in every row: on the left of prompts, on the right of
    completions.
    """
    width = batch["prompt_ids"].size(1)
    kept = batch["completion_ids"].size(1)
    first = width - _used(batch["prompt_mask"], width, multiple)
    last = _used(batch["completion_mask"], kept, multiple)
    groups = (
        (OF_PROMPT, width, slice(first, None)),
        (OF_COMPLETION, kept, slice(last)),
        (OF_BOTH, width + kept, slice(first, width + last)),
    )
    trimmed = dict(batch)
    for keys, size, part in groups:
        for key in keys:
            value = batch.get(key)
            # A ratio by sequence has one column.
            if value is not None and value.size(1) == size:
                trimmed[key] = value[:, part]
    return trimmed


def _used(mask: torch.Tensor, width: int, multiple: int) -> int:
    """Return how many columns the longest row needs, at least one."""
    longest = max(1, int(mask.sum(1).max()))
    return min(width, math.ceil(longest / multiple) * multiple)


def chunks_by_length(
    attention_mask: torch.Tensor, kept: int, size: int
) -> Iterator[tuple[torch.Tensor, slice, int]]:
    """Yield chunks of rows of about one length: their indices, the columns that they need, and how
    many of the last ``kept`` columns, which are the completions', are among them.
    """
    start = attention_mask.size(1) - kept
    for rows in attention_mask.sum(1).argsort(descending=True, stable=True).split(size):
        used = attention_mask[rows].any(0).nonzero()
        last = max(int(used[-1]) + 1, start + 1)
        yield rows, slice(int(used[0]), last), last - start
