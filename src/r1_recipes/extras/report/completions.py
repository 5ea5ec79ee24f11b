"""Pack the sampled completions of runs for the report page."""

import base64
import gzip
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common.messages import clip, words
from r1_recipes.extras.report.read import JsonObject, RunData, finite, is_number, reward_names

# The size of the compressed completions in base64. With 0.6 MB for the page itself and its curves,
# the page stays below 15 MB.
MAX_COMPLETION_BYTES = 13_500_000
# The most rows to read, over all runs: twice 500 steps of 64. More would delay every save.
MAX_COMPLETIONS = 64_000
# The most bytes of completions to read, over all runs. More would not fit into the page, and a byte
# takes about 12 bytes of memory while it is packed.
MAX_BYTES = 100 << 20
# The unpacked completions of a step. A few KB of Parquet can unpack to any number of GB, so only a
# few rows are unpacked at a time.
_MAX_TABLE_BYTES = 256 << 20
_MAX_TABLE_VALUES = 10_000_000  # In all columns: a row of a nested column may hold any number.
_BATCH = 16
_CODECS = ("SNAPPY", "UNCOMPRESSED")  # The codecs that pandas writes.
# The largest growth of a byte of a file: Snappy unpacks 3 bytes to 64, and Python text takes four
# times as much.
_GROWTH = 88
# The completions of training, and of the evaluation during training.
FOLDERS = ("completions", "eval_completions")
_NO_REWARD = {"prompt", "completion", "step", "advantage"}


def pack_completions(runs: Sequence[RunData]) -> tuple[str, int, int]:
    """Pack the completions of all runs, or of evenly spaced steps if there are too many.

    Returns:
        The packed completions, the number of completions in them, and the total number.
    """
    files, total, size = [], 0, 0
    for number, run in enumerate(runs):
        for path, count, unpacked in _files(run):
            files.append((number, path))
            total += count
            size += unpacked
    tables = []
    share = min(MAX_COMPLETIONS / max(1, total), MAX_BYTES / max(1, size))
    for number, path in evenly_spaced(files, share):
        tables.append(_rows(number, runs[number], path))
    share = 1.0
    while True:
        chosen = evenly_spaced(tables, share)
        rows = [*itertools.chain(*chosen)]
        columns = _columns(rows)
        text = json.dumps(columns, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        data = gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)
        packed = base64.b64encode(data).decode("ascii")
        if len(packed) <= MAX_COMPLETION_BYTES or len(chosen) <= 1:
            return packed, len(rows), total
        share *= 0.95 * MAX_COMPLETION_BYTES / len(packed)


def _files(run: RunData) -> Iterator[tuple[Path, int, int]]:
    """Yield the files of a run, one per step, with the rows and the unpacked bytes of each."""
    import pyarrow.parquet

    paths: list[Path] = []
    for folder in FOLDERS:
        paths += (run.path / folder).glob("*.parquet")
    for path in sorted(paths):
        if path.is_symlink() or not path.is_file():
            continue
        with run.reading(f"{path.parent.name}/{path.name}"):
            metadata = pyarrow.parquet.read_metadata(path)
            yield path, metadata.num_rows, _size(metadata, path.stat().st_size)


def _size(metadata: Any, packed_size: int) -> int:
    """Return the unpacked bytes of a file, by its footer and packed size. Raise if too many."""
    size, values, codecs = 0, 0, set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size += group.total_byte_size
        for column in map(group.column, range(group.num_columns)):
            values += column.num_values
            codecs.add(column.compression)
    if max(size, packed_size * 8) > _MAX_TABLE_BYTES:
        raise ValueError(f"has {size} bytes when unpacked, more than {_MAX_TABLE_BYTES}")
    # With another codec, the unpacked size may differ from the footer.
    others = codecs.difference(_CODECS)
    if others:
        raise ValueError(f"has compression {min(others)}, not {' or '.join(_CODECS)}")
    if values > _MAX_TABLE_VALUES:
        raise ValueError(f"has {values} values, more than {_MAX_TABLE_VALUES}")
    return size


def _rows(number: int, run: RunData, path: Path) -> list[JsonObject]:
    import pyarrow.parquet

    names, factors = run.settings.get("reward_funcs"), run.settings.get("reward_weights")
    # Rewards may log further numbers, which are no rewards.
    weights = dict.fromkeys(reward_names(run), 1.0)
    if isinstance(names, list) and isinstance(factors, list):
        for name, factor in zip(names, factors, strict=False):
            if is_number(factor):
                weights[str(name).rpartition(":")[2]] = factor
    kind = FOLDERS.index(path.parent.name)
    with run.reading(f"{path.parent.name}/{path.name}"), pyarrow.parquet.ParquetFile(path) as file:
        rows, size = [], 0
        # A single row may unpack to the whole file, and the footer may understate its size.
        at_once = _MAX_TABLE_BYTES // (_GROWTH * path.stat().st_size)
        for batch in file.iter_batches(max(1, min(_BATCH, at_once))):
            # A value that is stored once may repeat in every row. The footer does not show this.
            size += batch.nbytes
            if size > _MAX_TABLE_BYTES:
                raise ValueError(f"has more than {_MAX_TABLE_BYTES} bytes when unpacked")
            rows += [_row(number, kind, values, weights) for values in batch.to_pylist()]
        return rows
    return []


def evenly_spaced(items: list[Any], share: float) -> list[Any]:
    """Return a share of the items, evenly spaced, with the first and the last item."""
    count = max(1, round(len(items) * share))
    if count >= len(items):
        return items
    last, gaps = len(items) - 1, max(1, count - 1)
    return [items[round(number * last / gaps)] for number in range(count)]


def _row(run: int, kind: int, values: JsonObject, weights: Mapping[str, float]) -> JsonObject:
    scores, extra, weighted = {}, {}, []
    for key, value in values.items():
        if key in _NO_REWARD or value is None:
            continue
        if not is_number(value):
            extra[key] = clip(words(value) or str(value))
            continue
        score = scores[key] = finite(value)
        if score is not None and (key in weights or not weights):
            weighted.append(weights.get(key, 1.0) * score)
    prompt, step = values.get("prompt"), values.get("step")
    return {
        "run": run,
        "kind": kind,
        "step": step if isinstance(step, int) else None,
        "prompt": (clip(words(prompt, roles=True)), clip(_question(prompt))),
        "text": clip(words(values.get("completion"))),
        "reward": finite(sum(weighted)) if weighted else None,
        "advantage": finite(values.get("advantage")),
        "scores": scores,
        "extra": extra,
    }


def _question(prompt: Any) -> str:
    """Return the last user message."""
    if not isinstance(prompt, list):
        return words(prompt)
    question = None
    for message in prompt:
        if isinstance(message, dict) and message.get("role") == "user":
            question = message.get("content")
    return words(question)


def _columns(rows: Sequence[JsonObject]) -> JsonObject:
    """Return the rows as the lists that the page reads.

    ``scores`` and ``extra`` have a list for each name. A prompt is an index into ``prompts``, which
    holds its whole text and its question.
    """
    prompts: dict[Any, int] = {}
    table: JsonObject = {"prompt": []}
    for row in rows:
        index = prompts.setdefault(row["prompt"], len(prompts))
        table["prompt"].append(index)
    for name in ("run", "kind", "step", "text", "reward", "advantage"):
        table[name] = [row[name] for row in rows]
    rewards, table["scores"] = _by_name([row["scores"] for row in rows])
    extras, table["extra"] = _by_name([row["extra"] for row in rows])
    return {"rewards": rewards, "extras": extras, "prompts": list(prompts), "rows": table}


def _by_name(mappings: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    names = list(dict.fromkeys(itertools.chain(*mappings)))
    return names, [[mapping.get(name) for mapping in mappings] for name in names]
