"""Complete all rows by a generator, and keep the completions in a file: a kill loses a part."""

import dataclasses
import json
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from r1_recipes.common import processes
from r1_recipes.common.console import bar
from r1_recipes.common.errors import RecipeError
from r1_recipes.generation import Completion, Generator, Messages, TransformersGenerator
from r1_recipes.recipe.types import Recipe, namespace_value

logger = logging.getLogger(__name__)

Plan = tuple[float, int]  # a temperature (0 is greedy), and the number of completions of each row
# Settings that a completion depends on, beside its prompt, its plan, the weights and the template.
SHAPING = [
    "model_name_or_path",
    "model_revision",
    "dtype",
    "tools",
    "environment",
    "max_tool_calling_iterations",
    "seed",
    "max_completion_length",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "chat_template_kwargs",
    "prefill",
]
# An engine refills its batch by itself, and waits for the longest completion only at the end of a
# part. So it gets this many batches at once.
_BATCHES_OF_ENGINES = 8


def made_by(recipe: Recipe, tokenizer: Any, backend: str, plans: Sequence[Plan]) -> dict[str, Any]:
    """Return everything beside the prompts that completions depend on."""
    facts = {name: namespace_value(recipe, name) for name in SHAPING}
    weights = Path(str(recipe.model.model_name_or_path)).glob("*.safetensors")
    facts["weights"] = max((path.stat().st_mtime_ns for path in weights), default=None)
    facts["chat_template"] = tokenizer and zlib.crc32(tokenizer.chat_template.encode())
    facts |= {"backend": backend, "plans": plans}
    return json.loads(json.dumps(facts, default=str))


def complete(
    make: Callable[[], Generator],
    rows: Any,
    plans: Sequence[Plan],
    path: Path | None = None,
    facts: dict[str, Any] | None = None,
    at_once: int = 64,
    label: str = "rows",
) -> list[list[Completion]]:
    """Complete every row by every plan, and keep the completions in a file.

    The file is JSON lines: first the ``facts``, then a record per row. A run that was killed
    resumes: it loses a part, and generates no other row again.

    Args:
        make: Returns the generator. It is not called if all rows are in the file.
        rows: A dataset with a column ``prompt``.
        plans: A temperature and a count each, in the order of the completions.
        path: The file. ``None`` keeps nothing.
        facts: From :func:`made_by`. RecipeError if the file has others, or other rows.
        at_once: Completions of a batch, ``generation_batch_size``.
        label: What the progress bar says.
    """
    from transformers import set_seed

    if processes.world_size() > 1:  # each would do everything, and write into one file
        raise RecipeError(
            "generate and evaluate are one process. Fix: start it with python -m; for several GPUs "
            "vllm_tensor_parallel_size, or `vllm serve --data-parallel-size N` and backend: openai"
        )
    prompts = rows["prompt"]
    done = _stored(path, facts, prompts) if path else {}
    # The longest first, so that a lack of memory shows at once. Similar lengths share a batch,
    # because padding costs time.
    pending = sorted(set(range(len(rows))) - done.keys(), key=lambda i: (-len(str(prompts[i])), i))
    if pending and done:
        logger.info("%s: %d of %d rows are already complete", label, len(done), len(rows))
    generate: Any = make() if pending else None
    size = max(1, at_once // max(count for _, count in plans))
    if not isinstance(generate, TransformersGenerator):
        size *= _BATCHES_OF_ENGINES
    with bar(len(pending), label, miniters=size) as shown:
        for start in range(0, len(pending), size):
            part = pending[start : start + size]
            # Of its place, so that a resumed run draws what the whole run would have drawn.
            set_seed(((facts or {}).get("seed") or 0) + len(done))
            groups = [generate(rows.select(part), *plan) for plan in plans]
            done |= {i: [*chain(*made)] for i, *made in zip(part, *groups, strict=True)}
            if path:
                _append(path, [_record(index, prompts[index], done[index]) for index in part])
            shown.update(len(part))
    if hasattr(generate, "close"):
        generate.close()
    return [done[index] for index in range(len(rows))]


def _record(index: int, prompt: Messages, completions: Sequence[Completion]) -> dict[str, Any]:
    made = [*map(dataclasses.asdict, completions)]
    return {"index": index, "prompt": prompt, "completions": made}


def _append(path: Path, records: Sequence[dict[str, Any]]) -> None:
    # ASCII escapes can hold lone surrogates and control characters, which UTF-8 cannot.
    with path.open("a", encoding="ascii") as file:
        file.write("".join(json.dumps(record, default=str) + "\n" for record in records))


def _stored(path: Path, facts: Any, prompts: Sequence[Messages]) -> dict[int, list[Completion]]:
    """Return the completions in a file by their row. Create the file if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):  # the process ended while it wrote this line
        os.truncate(path, sum(map(len, lines[:-1])))
        del lines[-1]
    if not lines:
        _append(path, [{"made_by": facts}])
        return {}
    head, *records = map(json.loads, lines)
    then, fix = head["made_by"], "Fix: choose another output folder, or delete the file"
    changed = [key for key in facts if then.get(key) != facts[key]]
    if changed:
        parts = ", ".join(f"{key}: {then.get(key)!r} then, {facts[key]!r} now" for key in changed)
        raise RecipeError(f"{path}: holds completions of other settings or weights: {parts}. {fix}")
    done = {}
    for record in records:
        index = record["index"]
        if index < len(prompts) and record["prompt"] != prompts[index]:
            raise RecipeError(f"{path}: holds completions of other rows (row {index}). {fix}")
        done[index] = [Completion(**made) for made in record["completions"]]
    return {index: made for index, made in done.items() if index < len(prompts)}
