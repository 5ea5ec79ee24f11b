"""Pack the sampled completions of runs for the report page."""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from r1_recipes.common.messages import clip, words
from r1_recipes.extras.report.read import RunData, finite, is_number

# The size of the compressed completions in base64. With 0.6 MB for the page itself and its curves,
# the page stays below 15 MB.
MAX_COMPLETION_BYTES = 13_500_000
# The most rows to read, over all runs: twice 500 steps of 64. More would delay every save.
MAX_COMPLETIONS = 64_000
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
    files = [(number, *file) for number, run in enumerate(runs) for file in _files(run)]
    total = sum(count for *_, count in files)
    tables = [
        _rows(number, runs[number], path)
        for number, path, _ in evenly_spaced(files, MAX_COMPLETIONS / max(1, total))
    ]
    share = 1.0
    while True:
        chosen = evenly_spaced(tables, share)
        rows = [row for table in chosen for row in table]
        text = json.dumps(
            _columns(rows), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        packed = base64.b64encode(
            gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)
        ).decode("ascii")
        if len(packed) <= MAX_COMPLETION_BYTES or len(chosen) <= 1:
            return packed, len(rows), total
        share *= 0.95 * MAX_COMPLETION_BYTES / len(packed)


def _files(run: RunData) -> Iterator[tuple[Path, int]]:
    """Yield the files of a run, one per step, and the number of rows in each."""
    import pyarrow.parquet

    for path in sorted(
        path for folder in FOLDERS for path in (run.path / folder).glob("*.parquet")
    ):
        if path.is_symlink() or not path.is_file():
            continue
        with run.reading(f"{path.parent.name}/{path.name}"):
            metadata = pyarrow.parquet.read_metadata(path)
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            columns = [
                group.column(number) for group in groups for number in range(group.num_columns)
            ]
            size = sum(group.total_byte_size for group in groups)
            if max(size, path.stat().st_size * 8) > _MAX_TABLE_BYTES:
                raise ValueError(f"has {size} bytes when unpacked, more than {_MAX_TABLE_BYTES}")
            # With another codec, the unpacked size may differ from the footer.
            if others := {column.compression for column in columns}.difference(_CODECS):
                raise ValueError(f"has compression {min(others)}, not {' or '.join(_CODECS)}")
            values = sum(column.num_values for column in columns)
            if values > _MAX_TABLE_VALUES:
                raise ValueError(f"has {values} values, more than {_MAX_TABLE_VALUES}")
            yield path, metadata.num_rows


def _rows(number: int, run: RunData, path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    names, factors = run.settings.get("reward_funcs"), run.settings.get("reward_weights")
    pairs = (
        zip(names, factors, strict=False)
        if isinstance(names, list) and isinstance(factors, list)
        else ()
    )
    weights = {str(name).rpartition(":")[2]: factor for name, factor in pairs if is_number(factor)}
    with run.reading(f"{path.parent.name}/{path.name}"), pyarrow.parquet.ParquetFile(path) as file:
        rows, size = [], 0
        # A single row may unpack to the whole file, and the footer may understate its size.
        at_once = _MAX_TABLE_BYTES // (_GROWTH * path.stat().st_size)
        for batch in file.iter_batches(max(1, min(_BATCH, at_once))):
            # A value that is stored once may repeat in every row. The footer does not show this.
            size += batch.nbytes
            if size > _MAX_TABLE_BYTES:
                raise ValueError(f"has more than {_MAX_TABLE_BYTES} bytes when unpacked")
            rows += [
                _row(number, FOLDERS.index(path.parent.name), values, weights)
                for values in batch.to_pylist()
            ]
        return rows
    return []


def evenly_spaced(items: list[Any], share: float) -> list[Any]:
    """Return a share of the items, evenly spaced, with the first and the last item."""
    count = max(1, round(len(items) * share))
    if count >= len(items):
        return items
    return [items[round(i * (len(items) - 1) / max(1, count - 1))] for i in range(count)]


def _row(
    run: int, kind: int, values: dict[str, Any], weights: Mapping[str, float]
) -> dict[str, Any]:
    others = {
        key: value for key, value in values.items() if key not in _NO_REWARD and value is not None
    }
    scores = {key: finite(value) for key, value in others.items() if is_number(value)}
    prompt = values.get("prompt")
    turns = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    questions = [
        message.get("content")
        for message in turns
        if isinstance(message, dict) and message.get("role") == "user"
    ]
    weighted = [weights.get(key, 1.0) * score for key, score in scores.items() if score is not None]
    return {
        "run": run,
        "kind": kind,
        "step": values["step"] if isinstance(values.get("step"), int) else None,
        "prompt": (clip(words(prompt, roles=True)), clip(words(questions[-1:]))),
        "text": clip(words(values.get("completion"))),
        "reward": finite(sum(weighted)) if weighted else None,
        "advantage": finite(values.get("advantage")),
        "scores": scores,
        "extra": {
            key: clip(words(value) or str(value))
            for key, value in others.items()
            if key not in scores
        },
    }


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows as the lists that the page reads.

    ``scores`` and ``extra`` have a list for each name. A prompt is an index into ``prompts``, which
    holds its whole text and its question.
    """
    prompts = {
        prompt: index for index, prompt in enumerate(dict.fromkeys(row["prompt"] for row in rows))
    }
    rewards, extras = (
        list(dict.fromkeys(name for row in rows for name in row[kind]))
        for kind in ("scores", "extra")
    )
    table: dict[str, Any] = {
        name: [row[name] for row in rows]
        for name in ("run", "kind", "step", "text", "reward", "advantage")
    }
    table["prompt"] = [prompts[row["prompt"]] for row in rows]
    table["scores"] = [[row["scores"].get(name) for row in rows] for name in rewards]
    table["extra"] = [[row["extra"].get(name) for row in rows] for name in extras]
    return {"rewards": rewards, "extras": extras, "prompts": list(prompts), "rows": table}
