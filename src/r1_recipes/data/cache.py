"""Tables in files of the datasets cache, mapped into memory."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import datasets
import pyarrow


def cached_path(name: str) -> Path:
    return Path(datasets.config.HF_DATASETS_CACHE, "r1_recipes", f"{name}.arrow")


def write_cached(tables: Iterable[pyarrow.Table], schema: pyarrow.Schema, name: str | None = None) -> datasets.Dataset:
    """Write tables of one schema to the cache, one at a time.

    Args:
        name: the file's name; by default the hash of its content, so that processes that write the same rows get the same dataset.
    """
    folder = cached_path("").parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
        try:
            with pyarrow.ipc.new_stream(file, schema) as writer:
                for table in tables:
                    writer.write_table(table)
        except BaseException:
            os.unlink(file.name)
            raise
        if name is None:
            file.seek(0)
            name = hashlib.file_digest(file, "blake2b").hexdigest()[:16]
    os.replace(file.name, cached_path(name))
    return read_cached(name)


def read_cached(name: str) -> datasets.Dataset:
    return datasets.Dataset(datasets.table.MemoryMappedTable.from_file(str(cached_path(name))), fingerprint=name)
