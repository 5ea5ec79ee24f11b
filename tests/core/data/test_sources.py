"""Where rows come from: every local shape, the hubs (none is reached), and what is drawn."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import datasets
import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper, load_rows
from r1_recipes.extras.countdown import check

ROWS = [
    {"question": 'Say "2, 3"\tplus 1', "answer": "a\n#### 6"},
    {"question": "二加二?", "answer": "#### 4"},
]


def write_jsonl(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_one_file_is_every_split(tmp_path: Path, ending: str) -> None:
    path, source = tmp_path / f"rows.{ending}", datasets.Dataset.from_list(ROWS)
    if ending == "jsonl":
        write_jsonl(path)
    elif ending == "json":
        path.write_text(json.dumps(ROWS), encoding="utf-8")
    elif ending == "parquet":
        source.to_parquet(str(path))
    else:
        source.to_csv(str(path), sep="\t" if ending == "tsv" else ",", index=False)
    for split in ("train", "test", "validation"):
        assert load_rows(str(path), split).to_list() == ROWS
    assert load_rows(str(path), "train[-1:]").to_list() == ROWS[1:]
    assert load_rows(str(path), "train[:-1]").to_list() == ROWS[:1]
    with pytest.raises(RecipeError, match=r"split 'dev'"):
        load_rows(str(path), "dev")


def read(path: Path, text: str) -> list[dict[str, Any]]:
    path.write_text(text, encoding="utf-8")
    return load_rows(str(path), "train").to_list()


def test_every_cell_of_a_csv_file_is_a_text(tmp_path: Path) -> None:
    golds = ["007", "NA", "None", "0.10", "9007199254740993", "1E5", "-0", "2024-01-05", '"1,080"']
    rows = read(
        tmp_path / "a.csv", "\ufeffq,a\n" + "".join(f"q,{gold}\n" for gold in golds) + "q,\n"
    )
    assert [row["a"] for row in rows] == [*(gold.strip('"') for gold in golds), None]
    assert read(tmp_path / "b.csv", "frage;antwort\nWie viel, etwa?;1,5\n\n") == [
        {"frage": "Wie viel, etwa?", "antwort": "1,5"}
    ]
    assert read(tmp_path / "c.csv", "a,,b\n1,2,3\n") == [{"a": "1", "b": "3"}]  # pandas' index


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a,b\n1,080,2\n", "line 2 does not fit the header"),  # pandas would shift the columns
        ("a,b\n1,2\n\n3,4,5\n", "line 4 does not fit"),
        ("a,b\n1,2\n3\n", "line 3 does not fit"),
        ("a,b,a\n1,2,3\n", "line 2 does not fit the header. Fix: one name a column"),
        ('a,b\n1,2\n1,"2\n3,4\n', "unexpected end of data"),
        ("a,b\n", "holds no rows"),
        ("", "holds no rows"),
    ],
)
def test_a_csv_file_that_loses_a_cell_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(RecipeError, match=f"rows.csv, split 'train': cannot be read: .*{cause}"):
        read(tmp_path / "rows.csv", text)


@pytest.mark.parametrize(
    ("name", "text"),
    [("cut.jsonl", '{"a": 1}\n{"a": 2'), ("empty.jsonl", ""), ("words.parquet", "only words")],
)
def test_another_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(RecipeError, match=f"dataset_name: .*{name}, split 'train': cannot be read"):
        read(tmp_path / name, text)


def test_folders(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "set" / "train.jsonl")
    write_jsonl(tmp_path / "set" / "test.jsonl", ROWS[:1])
    single = datasets.Dataset.from_list(ROWS)
    single.save_to_disk(str(tmp_path / "single"))
    both = datasets.DatasetDict({"train": single, "test": single.select([0])})
    both.save_to_disk(str(tmp_path / "splits"))
    for name in ("set", "splits"):
        assert load_rows(str(tmp_path / name), "train").to_list() == ROWS
        assert load_rows(str(tmp_path / name), "test").to_list() == ROWS[:1]
        with pytest.raises(RecipeError, match=r"split 'dev': cannot be read: "):
            load_rows(str(tmp_path / name), "dev")
    assert load_rows(str(tmp_path / "single"), "train[1:]").to_list() == ROWS[1:]


def test_a_misspelt_path_names_its_neighbour(tmp_path: Path, monkeypatch: Any) -> None:
    write_jsonl(tmp_path / "data" / "gsm8k.jsonl")
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "data" / "gsm8.jsonl"), "./data/gsm8k.json", "data/gms8k.jsonl"):
        with pytest.raises(
            RecipeError, match=r"no such file .*Did you mean .*gsm8k.jsonl"
        ) as error:
            load_rows(name, "train")
        assert name in str(error.value)


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: Any) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(RecipeError, match=r"nobody/numbers \(main\), split 'train'") as error:
        load_rows("nobody/numbers", "train", config="main")
    assert "\n" not in str(error.value)


def test_modelscope(monkeypatch: Any, tmp_path: Path) -> None:
    """A stand-in for the package; test_clients.py has the package itself."""
    calls = []

    def download(name: str, **options: Any) -> str:
        calls.append((name, options["revision"]))
        return str(tmp_path / name)

    package: Any = types.ModuleType("modelscope")
    package.dataset_snapshot_download = download
    monkeypatch.setitem(sys.modules, "modelscope", package)
    write_jsonl(tmp_path / "ms" / "sums" / "main" / "train.jsonl")
    rows = load_rows("ms/sums", "train[1:]", config="main", revision="v2", hub="modelscope")
    assert rows.to_list() == ROWS[1:] and calls == [("ms/sums", "v2")]


def test_countdown_splits_share_no_puzzle_and_every_puzzle_is_solved() -> None:
    bounds = {"min_value": 1, "max_value": 20, "min_target": 1, "max_target": 60}
    config = bounds | {"train": {"size": 200, "seed": 1}, "test": {"size": 50, "seed": 1}}
    train, test = (
        load_rows("countdown:2-4", split, task_config=config) for split in ("train", "test")
    )
    assert (len(train), len(test)) == (200, 50)
    # Those of the test split are not in the training split in any order of their numbers.
    assert len({(*sorted(row["nums"]), row["target"]) for row in (*train, *test)}) == 250
    assert {len(row["nums"]) for row in train} == {2, 3, 4}
    assert all(check(row["expression"], row["nums"], row["target"]) for row in (*train, *test))
    assert load_rows("countdown:2-4", "train", task_config=config).to_list() == train.to_list()
    mapper = get_mapper("auto", train.column_names)
    assert str(train[0]["target"]) in mapper(train[0])["question"]
    with pytest.raises(RecipeError, match="task_config: train: must be"):
        load_rows("countdown:2", "train", task_config=config | {"train": {"sise": 2, "seed": 1}})
    narrow = bounds | {"max_value": 2, "max_target": 4, "test": {"size": 99, "seed": 1}}
    with pytest.raises(RecipeError, match="there are only"):
        load_rows("countdown:2", "test", task_config=narrow)
