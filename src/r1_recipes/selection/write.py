"""The dataset of what was kept, written row by row."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.rewards.judge import without_surrogates

if TYPE_CHECKING:
    from r1_recipes.selection.select import Selection, YieldReport

# Type (None: as the values are) and meaning of the columns that are not the source dataset's.
_COLUMNS = {
    "question": ("string", "the question"),
    "response": ("string", "the assistant's whole turn"),
    "solution": ("string", "the reference answer"),
    "scorer": (None, "the task's own scorer, JSON text"),
    "pass_rate": ("float64", "share of the question's completions that are correct, of those that can be judged"),
    "tokens": ("int64", "generated tokens"),
    "scores": ("string", "rewards by name, JSON text"),
}
_OWN_TYPES = {name: kind for name, (kind, _) in _COLUMNS.items() if kind}
# Rows whose values are held to find the types of their columns.
_BATCH = 256


def write_dataset(selection: Selection, folder: str | Path, *, recipe_settings: Mapping[str, Any], title: str) -> Path:
    """Go through a selection and write a dataset that ``datasets.load_dataset(folder)`` and the Hub read.

    ``folder`` gets ``train.jsonl``, ``README.md`` (the dataset card) and ``yield.json``, all of them or none; a dataset that an earlier
    selection left there is replaced. ``verdicts.jsonl``, of all completions, goes beside it. ``scorer`` is left out if no row has one.
    Lone surrogates, which UTF-8 has no bytes for, become U+FFFD; NULs stay.

    Raises:
        RecipeError: nothing was kept (the verdicts are written all the same), the folder holds something else, the values of a column
            are not of one kind, or as :class:`~r1_recipes.selection.select.Selection`.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and not (folder / "yield.json").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"{folder}: holds something that is no dataset of an earlier selection; move it, or choose another output_dir")
    building, old = (folder.with_name(f".{folder.name}.{state}") for state in ("new", "old"))
    for leftover in (building, old):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    building.mkdir()
    try:
        verdicts, train, columns = building / "verdicts.jsonl", building / "train.jsonl", _Columns()
        with verdicts.open("w", encoding="utf-8", newline="\n") as told, train.open("w", encoding="utf-8", newline="\n") as written:
            for outcome in selection:
                told.writelines(_line({**dataclasses.asdict(verdict), "kept": verdict.kept}) for verdict in outcome.verdicts)
                written.writelines(map(_line, outcome.rows))
                columns.add(outcome.rows)
        columns.merge()
        verdicts.replace(folder.parent / "verdicts.jsonl")
        if not columns.rows:
            raise RecipeError(f"keep: no completion is left of {selection.report.completions}:\n{selection.report.table()}")
        if "scorer" in columns.types and not columns.has_scorer:
            del columns.types["scorer"]
            _drop_column(train, "scorer")
        with train.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        (building / "README.md").write_text(_card(selection.report, columns, recipe_settings, title, digest), encoding="utf-8")
        report = json.dumps(selection.report.as_dict(), indent=2, ensure_ascii=False)
        (building / "yield.json").write_text(report + "\n", encoding="utf-8")
        if folder.exists():
            folder.replace(old)
        building.replace(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


class _Columns:
    """The columns of the rows so far: how many rows, and each column's type."""

    def __init__(self) -> None:
        self.types: dict[str, Any] = {}
        self.rows = 0
        self.has_scorer = False
        self._waiting: list[dict[str, Any]] = []

    def add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.rows += 1
            self.has_scorer |= bool(row.get("scorer"))
            self._waiting.append({name: value for name, value in row.items() if name not in _OWN_TYPES})
            for name in row:
                self.types.setdefault(name, None)
        if len(self._waiting) >= _BATCH:
            self.merge()

    def merge(self) -> None:
        """Find the types of the values that wait, as they will be read back, and unite them with those before."""
        import pyarrow as pa

        waiting, self._waiting = self._waiting, []
        for name in dict.fromkeys(name for row in waiting for name in row):
            values = [json.loads(_line(row.get(name))) for row in waiting]
            try:
                kinds = [kind for kind in (self.types[name], pa.array(values).type) if kind is not None]
                schemas = [pa.schema([(name, kind)]) for kind in kinds]
                self.types[name] = pa.unify_schemas(schemas, promote_options="permissive").field(name).type
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise RecipeError(f"column {name!r}: {first_line(error)} Leave it out: keep_columns names those to keep.") from error

    def features(self) -> list[dict[str, Any]]:
        """The types, as a dataset card names them."""
        import pyarrow as pa
        from datasets import DatasetInfo, Features
        from datasets.info import DatasetInfosDict
        from huggingface_hub import DatasetCardData

        types = {name: pa.type_for_alias(_OWN_TYPES[name]) if name in _OWN_TYPES else kind for name, kind in self.types.items()}
        card = DatasetCardData()
        info = DatasetInfo(features=Features.from_arrow_schema(pa.schema(list(types.items()))))
        DatasetInfosDict({"default": info}).to_dataset_card_data(card)
        return card.to_dict()["dataset_info"]["features"]


def _line(value: Any) -> str:
    return without_surrogates(json.dumps(value, ensure_ascii=False, default=str)) + "\n"


def _drop_column(path: Path, name: str) -> None:
    slim = path.with_name("slim")
    with path.open(encoding="utf-8") as lines, slim.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            row = json.loads(line)
            del row[name]
            file.write(_line(row))
    slim.replace(path)


def _card(report: YieldReport, columns: _Columns, recipe_settings: Mapping[str, Any], title: str, digest: str) -> str:
    config = {"config_name": "default", "data_files": [{"split": "train", "path": "train.jsonl"}]}
    # Where a card names the files, datasets (5.2) knows its cached copy by the folder's last name and this header alone: without
    # the digest it would give back the rows of an earlier selection, or those of another run.
    config["description"] = f"sha256 {digest}"
    # Types are said outright, since a reader of JSON takes text such as 2024-01-01 for a time.
    header = {"pretty_name": title, "configs": [config], "dataset_info": {"features": columns.features()}}
    settings = yaml.safe_dump(json.loads(json.dumps(dict(recipe_settings), default=str)), sort_keys=False, allow_unicode=True)
    # A judge's prompt may hold a fence itself.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", settings)), default=0))
    table = "\n".join(f"| `{name}` | {_COLUMNS.get(name, (None, 'from the source dataset'))[1]} |" for name in columns.types)
    card = f"""---
{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---

# {title}

{columns.rows} rows, generated and selected by `python -m r1_recipes.generate` (rejection sampling as in DeepSeek-R1, arXiv:2501.12948, \
section 2.3.3). The source dataset's licence and the terms of the model that wrote the completions apply.

## Yield

{report.table()}

A completion is counted under the first reason that applies; prompts are those that lost one for it.

## Columns

| column | what it holds |
|---|---|
{table}

## Recipe

{fence}yaml
{settings}{fence}
"""
    return without_surrogates(card)
