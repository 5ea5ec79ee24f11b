"""Where rows come from: every local shape, the hubs (none is reached), and what is drawn."""

import json
import sys
import types

import datasets
import huggingface_hub.constants
import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import MAPPERS, get_mapper, load_rows
from r1_recipes.extras.countdown.puzzle import solves
from r1_recipes.models.weights import model_path

ROWS = [
    {"question": 'Say "2, 3"\tplus 1', "answer": "a\n#### 6"},
    {"question": "二加二?", "answer": "#### 4"},
]


def write_jsonl(path, rows=ROWS):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def as_list(rows):
    return [dict(row) for row in rows]


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_one_file_is_every_split(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    source = datasets.Dataset.from_list(ROWS)
    if ending == "jsonl":
        write_jsonl(path)
    elif ending == "json":
        path.write_text(json.dumps(ROWS), encoding="utf-8")
    elif ending == "parquet":
        source.to_parquet(str(path))
    else:
        source.to_csv(str(path), sep="\t" if ending == "tsv" else ",", index=False)
    for split in ("train", "test", "validation"):
        assert as_list(load_rows(str(path), split)) == ROWS


def test_folder_with_a_file_a_split(tmp_path):
    write_jsonl(tmp_path / "set" / "train.jsonl")
    write_jsonl(tmp_path / "set" / "test.jsonl", ROWS[:1])
    assert as_list(load_rows(str(tmp_path / "set"), "train")) == ROWS
    assert as_list(load_rows(str(tmp_path / "set"), "test")) == ROWS[:1]
    with pytest.raises(RecipeError, match=r"validation.*train.*test"):
        load_rows(str(tmp_path / "set"), "validation")


def test_save_to_disk_folders(tmp_path):
    single = datasets.Dataset.from_list(ROWS)
    single.save_to_disk(str(tmp_path / "single"))
    datasets.DatasetDict({"train": single, "test": single.select([0])}).save_to_disk(
        str(tmp_path / "splits")
    )
    assert as_list(load_rows(str(tmp_path / "single"), "train")) == ROWS
    assert as_list(load_rows(str(tmp_path / "splits"), "test")) == ROWS[:1]
    with pytest.raises(RecipeError, match="which has train, test"):
        load_rows(str(tmp_path / "splits"), "dev")


def test_a_misspelt_path_names_its_neighbour(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "data" / "gsm8k.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in (
        str(tmp_path / "data" / "gsm8.jsonl"),
        "./data/gsm8k.json",
        "data/gms8k.jsonl",
        "~/no/such/folder",
    ):
        with pytest.raises(RecipeError, match="no such file or folder") as error:
            load_rows(name, "train")
        assert name in str(error.value)
        assert ("Did you mean" in str(error.value)) == ("gs" in name or "gms" in name)


def test_a_hub_that_cannot_be_reached_is_one_clear_error(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "number").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as error:
        load_rows("nobody/numbers", "train", config="main")
    text = str(error.value)
    for part in ("nobody/numbers (main)", "split 'train'", "Did you mean nobody/number?"):
        assert part in text
    assert "\n" not in text


@pytest.fixture
def modelscope(monkeypatch, tmp_path):
    """A stand-in for the package that records how it is called; tests/core/data/test_clients.py has
    the package itself.
    """
    calls = []

    def snapshot_download(name, **options):
        calls.append((name, options))
        if name == "nobody/nothing":
            raise RuntimeError("no such repository\nlong trace")
        return str(tmp_path / "cache" / name)

    package = types.ModuleType("modelscope")
    package.snapshot_download = package.dataset_snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "modelscope", package)
    return calls


def test_modelscope_dataset(modelscope, tmp_path):
    folder = tmp_path / "cache" / "ms" / "sums"
    write_jsonl(folder / "main" / "train.jsonl")
    write_jsonl(folder / "test.jsonl", ROWS[1:])
    configs = [
        "configs:",
        "- config_name: b",
        "  data_files: test.jsonl",
        "- config_name: c",
        "  data_files: main/*.jsonl",
    ]
    (folder / "README.md").write_text("\n".join(["---", *configs, "---", ""]))
    assert as_list(load_rows("ms/sums", "train[1:]", config="main", hub="modelscope")) == ROWS[1:]
    assert (
        as_list(load_rows("ms/sums", "train", config="b", revision="v2", hub="modelscope"))
        == ROWS[1:]
    )
    assert (
        as_list(load_rows("ms/sums", "train", config="c", hub="modelscope"))
        == as_list(load_rows(str(folder), "train", config="c"))
        == ROWS
    )
    with pytest.raises(RecipeError, match="cannot be read: ValueError: Config name is missing"):
        load_rows("ms/sums", "train", hub="modelscope")
    assert [(name, options["revision"]) for name, options in modelscope][:2] == [
        ("ms/sums", None),
        ("ms/sums", "v2"),
    ]


def test_modelscope_model(modelscope, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached = str(tmp_path / "cache" / "qwen" / "tiny")
    assert model_path("qwen/tiny", "modelscope") == cached
    assert (
        model_path("qwen/tiny", "modelscope", "main") == cached
    )  # TRL's default revision; ModelScope has no 'main'
    assert model_path("qwen/tiny", "modelscope", "v1") == cached
    assert [options["revision"] for _, options in modelscope] == [None, None, "v1"]
    assert model_path(str(tmp_path), "modelscope") == str(tmp_path)
    assert model_path("qwen/tiny", "huggingface") == "qwen/tiny"
    assert len(modelscope) == 3


def countdown_config(train=200, test=50, **keys):
    limits = {"min_value": 1, "max_value": 20, "min_target": 1, "max_target": 60}
    return {
        **limits,
        "train": {"size": train, "seed": 1},
        "test": {"size": test, "seed": 1},
        **keys,
    }


def test_countdown_splits_share_no_puzzle_and_every_puzzle_is_solved():
    config = countdown_config()
    train, test = (
        load_rows("countdown:2-4", split, task_config=config) for split in ("train", "test")
    )
    assert (len(train), len(test)) == (200, 50)
    # The same seed draws the same puzzles; those of the test split are not in the training split in
    # any order of their numbers.
    keys = [(*sorted(row["nums"]), row["target"]) for row in (*train, *test)]
    assert len(set(keys)) == 250
    assert {len(row["nums"]) for row in train} == {2, 3, 4}
    assert as_list(load_rows("countdown:2-4", "train", task_config=config)) == as_list(train)
    other = load_rows(
        "countdown:2-4", "train", task_config=config | {"train": {"size": 200, "seed": 2}}
    )
    assert as_list(other) != as_list(train)
    mapper = get_mapper("auto", train.column_names)
    golds = [mapper(row) for row in (*train, *test)]
    assert mapper.func is MAPPERS["countdown"]
    assert [solves(row["solution"], row["nums"], row["target"]) for row in golds] == [True] * 250
    assert {
        len(row["nums"])
        for row in load_rows("countdown:6", "test", task_config=countdown_config(test=5))
    } == {6}
