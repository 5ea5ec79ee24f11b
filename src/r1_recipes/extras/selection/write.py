"""Write the selected completions as a dataset, row by row."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import without_surrogates
from r1_recipes.extras.selection.rules import KeepRules, check_keep  # noqa: F401 (used by the core)
from r1_recipes.extras.selection.select import Selection, YieldReport

if TYPE_CHECKING:
    import pyarrow as pa

# The types of columns whose values may all be missing.
_TYPES = {"solution": "string", "pass_rate": "float64"}


def write_dataset(
    selection: Selection, folder: Path, *, recipe_settings: Mapping[str, Any], title: str
) -> Path:
    """Write a dataset that ``datasets.load_dataset(folder)`` and the Hub can read.

    ``folder`` gets ``train.jsonl``, ``README.md`` (the dataset card) and ``yield.json``. They are
    written together and replace those of an earlier selection. ``verdicts.jsonl`` describes all
    completions. It goes beside the folder, even if no completion is kept.

    Returns:
        The folder.

    Raises:
        RecipeError: No completion is kept, or the folder holds other files.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and not (folder / "yield.json").is_file():
        raise RecipeError(
            f"{folder}: contains files, but not the dataset of an earlier selection. Fix: move "
            f"the folder, or choose another output_dir"
        )
    building = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(building, ignore_errors=True)  # Left by a killed process.
    building.mkdir()
    try:
        count, schema = _write_lines(selection, building)
        (building / "verdicts.jsonl").replace(folder.parent / "verdicts.jsonl")
        report = selection.report
        if not count:
            raise RecipeError(
                f"keep: all {report.completions['generated']} completions were dropped:\n"
                f"{report.table()}"
            )
        card = _card(report, count, schema, building / "train.jsonl", recipe_settings, title)
        (building / "README.md").write_text(card, encoding="utf-8")
        (building / "yield.json").write_text(
            json.dumps(vars(report), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        shutil.rmtree(folder, ignore_errors=True)
        building.replace(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _write_lines(selection: Selection, folder: Path) -> tuple[int, pa.Schema]:
    """Write the verdicts and the rows. Return the number of rows and the types of columns."""
    import pyarrow as pa

    count, schema = 0, pa.schema([])
    path = folder / "train.jsonl"
    with (
        (folder / "verdicts.jsonl").open("w", encoding="utf-8") as verdicts,
        path.open("w", encoding="utf-8") as train,
    ):
        for candidates, rows in selection:
            verdicts.writelines(_line(candidate.verdict()) for candidate in candidates)
            lines = [_line(row) for row in rows]
            train.writelines(lines)
            count += len(lines)
            try:
                for row in map(json.loads, lines):
                    row_schema = pa.schema(
                        [
                            (name, _TYPES.get(name) or pa.array([value]).type)
                            for name, value in row.items()
                        ]
                    )
                    schema = pa.unify_schemas([schema, row_schema], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise RecipeError(
                    f"keep_columns: a column has values of several types: {first_line(error)}"
                ) from error
    return count, schema


def _line(value: Any) -> str:
    return without_surrogates(json.dumps(value, ensure_ascii=False, default=str)) + "\n"


def _card(
    report: YieldReport,
    count: int,
    schema: pa.Schema,
    train: Path,
    recipe_settings: Mapping[str, Any],
    title: str,
) -> str:
    from datasets import DatasetInfo, Features
    from datasets.info import DatasetInfosDict
    from huggingface_hub import DatasetCardData

    # datasets (5.2) finds its cached copy only by the name of the folder and this header. Without
    # the digest, it would return the rows of an earlier selection or of another run.
    with train.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = {
        "config_name": "default",
        "data_files": [{"split": "train", "path": "train.jsonl"}],
        "description": f"sha256 {digest}",
    }
    # Name the types, because JSON readers turn text such as 2024-01-01 into a time.
    data = DatasetCardData()
    DatasetInfosDict(
        {"default": DatasetInfo(features=Features.from_arrow_schema(schema))}
    ).to_dataset_card_data(data)
    features = data.to_dict()["dataset_info"]["features"]
    header = {"pretty_name": title, "configs": [config], "dataset_info": {"features": features}}
    settings = yaml.safe_dump(
        json.loads(json.dumps(dict(recipe_settings), default=str)),
        sort_keys=False,
        allow_unicode=True,
    )
    card = f"""---
{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---

# {title}

{count} rows, generated and selected by `python -m r1_recipes.generate` (rejection sampling as in DeepSeek-R1, arXiv:2501.12948, \
section 2.3.3). The source dataset's licence and the terms of the model that wrote the completions apply.

## Yield

{report.table()}

A completion counts under the first reason that applies. A prompt counts under each reason for which it lost a completion.

## Columns

`response` is the whole assistant message. `pass_rate` is the share of correct completions of the question, among those with a score.
`tokens` is the number of generated tokens. `scores` holds the rewards by name as JSON text. Other columns come from the source dataset.

## Recipe

~~~~~~yaml
{settings}~~~~~~
"""  # noqa: E501 (the card)
    return without_surrogates(card)
