"""Where rows come from: every local shape, the hubs (none is reached), and what is drawn."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
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


def test_cells_of_a_csv_file_on_a_hub_are_texts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(tmp_path, {"train": "007", "test": "NA"})
    hub = SimpleNamespace(dataset_snapshot_download=lambda *_, **__: str(tmp_path))
    monkeypatch.setitem(sys.modules, "modelscope", hub)
    for split, cell in (("train", "007"), ("test", "NA")):
        assert load_rows("us/them", split, hub="modelscope").to_list() == [{"a": cell}]
    (tmp_path / "test.csv").unlink()
    (tmp_path / "README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: a\n    dtype:\n      class_label:\n        "
        "names:\n          '0': 'no'\n          '1': 'yes'\n  - name: q\n    dtype: int64\n---\n"
    )
    (tmp_path / "train.csv").write_text("a,q\n1,07\n")
    rows = load_rows("us/them", "train", hub="modelscope")
    assert rows.to_list() == [{"q": "07", "a": "yes"}]


def test_texts_beside_numbers_are_as_they_stand_in_the_file(tmp_path: Path) -> None:
    """datasets 5.2 reads 01003 as 1003, - as 0 and null as nothing in such a column."""
    cells = ["01003", "-", "null", 4, "1.10", {"k": 1}, "2024-01-05T10:00:00", 'say "x"']
    rows = [{"a": cell, "when": "2024-01-05T10:00:00"} for cell in cells]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    texts = [cell if isinstance(cell, str) else json.dumps(cell) for cell in cells]
    found = read(tmp_path / "rows.jsonl", text)
    assert [row["a"].replace(" ", "") for row in found] == [text.replace(" ", "") for text in texts]
    assert {row["when"] for row in found} == {"2024-01-05T10:00:00"}


def test_a_folder_of_csv_files_has_the_cells_of_its_files(tmp_path: Path) -> None:
    tables(tmp_path, {"train_1": "007", "train_2": "NA", "test": "1.0", ".hidden/train": "x"})
    assert load_rows(str(tmp_path), "train").to_list() == [{"a": "007"}, {"a": "NA"}]
    assert load_rows(str(tmp_path), "test").to_list() == [{"a": "1.0"}]
    assert load_rows(str(tmp_path), "train[1:]").to_list() == [{"a": "NA"}]


def test_a_folder_of_csv_files_keeps_its_splits_and_configurations_apart(tmp_path: Path) -> None:
    """Rows of test/ would be trained on, and rows of another configuration."""
    tables(tmp_path, {"de/train/0": "007", "de/test/0": "2", "en/latest": "03"})
    for config, split, cell in (
        ("de", "train", "007"),
        ("de", "test", "2"),
        ("en/", "train", "03"),
    ):
        assert load_rows(str(tmp_path), split, config=config).to_list() == [{"a": cell}]


def test_of_several_kinds_of_files_none_is_left_out(tmp_path: Path) -> None:
    tables(tmp_path, {"a": "1"})
    (tmp_path / "b.jsonl").write_text('{"a": "2"}\n', encoding="utf-8")
    with pytest.raises(RecipeError, match=r"several kinds: .*Fix: one per folder"):
        load_rows(str(tmp_path), "train")


def test_a_class_is_its_name(tmp_path: Path) -> None:
    kinds = datasets.ClassLabel(names=["negative", "positive"])
    features = datasets.Features({"text": datasets.Value("string"), "label": kinds})
    rows = [{"text": "good", "label": 1}, {"text": "?", "label": -1}, {"text": "", "label": None}]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path))
    found = load_rows(str(tmp_path), "train")
    assert found["label"] == ["positive", None, None] and found["text"] == ["good", "?", ""]


def test_a_file_of_another_encoding_says_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("frage;lösung\n1;2\n".encode("cp1252"))
    with pytest.raises(RecipeError, match="Fix: iconv -f windows-1252 -t utf-8"):
        load_rows(str(tmp_path / "a.csv"), "train")


def tables(folder: Path, cells: dict[str, str]) -> None:
    for name, cell in cells.items():
        file = folder / f"{name}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"a\n{cell}\n", encoding="utf-8")


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


def test_a_folder_with_splits(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(str(tmp_path))
    assert load_rows(str(tmp_path), "train").to_list() == ROWS
    assert load_rows(str(tmp_path), "test").to_list() == ROWS[:1]
    with pytest.raises(RecipeError, match=r"split 'dev': cannot be read: "):
        load_rows(str(tmp_path), "dev")


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: Any) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(RecipeError, match=r"nobody/numbers \(main\), split 'train'") as error:
        load_rows("nobody/numbers", "train", config="main")
    assert "\n" not in str(error.value)


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
    narrow = bounds | {"max_value": 2, "max_target": 4, "test": {"size": 99, "seed": 1}}
    with pytest.raises(RecipeError, match="there are only"):
        load_rows("countdown:2", "test", task_config=narrow)
