"""Tables in files of the datasets cache, mapped into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import datasets
import pyarrow


def cached_path(name: str) -> Path:
    return Path(datasets.config.HF_DATASETS_CACHE, "r1_recipes", f"{name}.arrow")


def write_cached(tables: Iterable[pyarrow.Table], schema: pyarrow.Schema, name: str | None = None) -> datasets.Dataset:
    """Write tables of one schema to the cache, one at a time; without a name, the same rows get the same dataset."""
    part = cached_path(uuid4().hex).with_suffix(".part")  # other processes may be writing the same rows
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("w+b") as file:
            with pyarrow.ipc.new_stream(file, schema) as writer:
                for table in tables:
                    writer.write_table(table)
            file.seek(0)
            name = name or hashlib.file_digest(file, "blake2b").hexdigest()[:16]
        part.replace(cached_path(name))
    finally:
        part.unlink(missing_ok=True)
    return read_cached(name)


def read_cached(name: str) -> datasets.Dataset:
    return datasets.Dataset(datasets.table.MemoryMappedTable.from_file(str(cached_path(name))), fingerprint=name)
