"""Where rows come from: every local shape, the hubs (none is reached), and
reasoning-gym's tasks.
"""

import gzip
import json
import sys
import types
import zipfile

import datasets
import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper, load_rows
from r1_recipes.data.rows import plain_features
from r1_recipes.models.weights import model_path
from tests.support.needs import needs

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


@pytest.mark.parametrize(
    "split",
    ["trian", "trian[:-1]", "Train", "train+test", "trian[-1:]", "[:-1]", "", "train ", "anything"],
)
def test_no_local_set_takes_an_unknown_split_for_all_its_rows(tmp_path, split):
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(str(tmp_path / "saved"))
    write_jsonl(tmp_path / "folder" / "train.jsonl")
    write_jsonl(tmp_path / "two" / "a.jsonl")
    write_jsonl(tmp_path / "two" / "b.jsonl")
    for name in (
        str(write_jsonl(tmp_path / "rows.jsonl")),
        *(str(tmp_path / name) for name in ("saved", "folder", "two")),
    ):
        with pytest.raises(RecipeError, match=r"is not in .*, which has 'train'") as refused:
            load_rows(name, split)
        assert ("Did you mean 'train'" in str(refused.value)) == ("r" in split)


def test_an_edited_file_is_read_anew(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl")
    assert len(load_rows(str(path), "train")) == 2
    write_jsonl(path, ROWS * 3)
    assert len(load_rows(str(path), "train")) == 6


def test_folder_with_a_file_a_split(tmp_path):
    write_jsonl(tmp_path / "set" / "train.jsonl")
    write_jsonl(tmp_path / "set" / "test.jsonl", ROWS[:1])
    assert as_list(load_rows(str(tmp_path / "set"), "train")) == ROWS
    assert as_list(load_rows(str(tmp_path / "set"), "test")) == ROWS[:1]
    with pytest.raises(
        RecipeError, match=r"split 'validation' is not in .*set, which has 'train', 'test'"
    ):
        load_rows(str(tmp_path / "set"), "validation")


def test_sub_folder_as_configuration(tmp_path):
    write_jsonl(tmp_path / "set" / "main" / "train.jsonl")
    write_jsonl(tmp_path / "set" / "socratic" / "train.jsonl", ROWS[1:])
    assert as_list(load_rows(str(tmp_path / "set"), "train", config="main")) == ROWS
    assert as_list(load_rows(str(tmp_path / "set"), "train", config="socratic")) == ROWS[1:]


def test_a_configuration_with_a_name_beyond_ascii(tmp_path):
    write_jsonl(tmp_path / "set" / "a.jsonl")
    write_jsonl(tmp_path / "set" / "b.jsonl", ROWS[1:])
    lines = ["configs:"]
    for name, file in (("default", "a.jsonl"), ("über", "b.jsonl")):
        lines += [f"- config_name: {name}", f"  data_files: {file}"]
    card = "\n".join(["---", *lines, "---", ""])
    (tmp_path / "set" / "README.md").write_text(card, encoding="utf-8")
    assert as_list(load_rows(str(tmp_path / "set"), "train", config="über")) == ROWS[1:]


def test_the_home_of_a_user_that_is_unknown_is_no_file():
    with pytest.raises(RecipeError, match="no such file"):
        load_rows("~nobody-of-that-name/rows.jsonl", "train")


def test_a_configuration_that_is_no_sub_folder_is_the_folder_itself(tmp_path):
    # A hub recipe (dataset_config: main) runs on a plain local copy.
    write_jsonl(tmp_path / "set" / "train.jsonl")
    assert as_list(load_rows(str(tmp_path / "set"), "train", config="main")) == ROWS


def test_save_to_disk_folders(tmp_path):
    single = datasets.Dataset.from_list(ROWS)
    single.save_to_disk(str(tmp_path / "single"))
    datasets.DatasetDict({"train": single, "test": single.select([0])}).save_to_disk(
        str(tmp_path / "splits")
    )
    assert as_list(load_rows(str(tmp_path / "single"), "train")) == ROWS
    assert as_list(load_rows(str(tmp_path / "splits"), "test")) == ROWS[:1]
    with pytest.raises(RecipeError, match="which has 'train', 'test'"):
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
        "a/b/c",
    ):
        with pytest.raises(RecipeError, match="no such file or folder") as error:
            load_rows(name, "train")
        assert name in str(error.value)
        assert ("Did you mean" in str(error.value)) == ("gs" in name or "gms" in name)


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.jsonl", '{"a": 1\nnot json'), ("rows.parquet", "no parquet"), ("rows.json", "")],
)
def test_an_unreadable_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(RecipeError, match=f"{name}: cannot be read: "):
        load_rows(str(tmp_path / name), "train")


def test_an_ending_that_is_not_known_is_named(tmp_path):
    (tmp_path / "rows.xlsx").write_text("x")
    with pytest.raises(
        RecipeError, match=r"\.xlsx is not one of \.jsonl, \.json, \.csv, \.tsv, \.parquet"
    ):
        load_rows(str(tmp_path / "rows.xlsx"), "train")


def test_a_folder_without_data_is_named(tmp_path):
    with pytest.raises(RecipeError, match="cannot be read"):
        load_rows(str(tmp_path), "train")


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
    for part in (
        "'nobody/numbers' (main)",
        "split 'train'",
        "huggingface",
        "--dataset_name PATH",
        "Did you mean nobody/number?",
    ):
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


def test_modelscope_s_own_words_on_failure(modelscope):
    with pytest.raises(
        RecipeError,
        match=r"'nobody/nothing', split 'train' cannot be loaded from modelscope: RuntimeError: no "
        r"such repository\. ",
    ):
        load_rows("nobody/nothing", "train", hub="modelscope")
    with pytest.raises(RecipeError, match="model_name_or_path: 'nobody/nothing'"):
        model_path("nobody/nothing", "modelscope")


def test_without_modelscope_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", None)
    for call in (
        lambda: load_rows("a/b", "train", hub="modelscope"),
        lambda: model_path("a/b", "modelscope"),
    ):
        with pytest.raises(RecipeError, match=r"-e '.\[modelscope\]'"):
            call()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_of_a_local_split_are_cut_as_a_hubs_are(tmp_path, ending):
    rows = [{"nums": [i, 1], "target": i + 1} for i in range(10)]
    path = tmp_path / f"rows.{ending}"
    source = datasets.Dataset.from_list(rows)
    if ending == "parquet":
        source.to_parquet(str(path))
    else:
        write_jsonl(path, rows)
    assert as_list(load_rows(str(path), "train[:-3]")) == rows[:-3]
    assert as_list(load_rows(str(path), "train[-3:]")) == rows[-3:]
    assert as_list(load_rows(str(path), "train[2:4]")) == rows[2:4]
    source.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": source, "test": source.select([0])}).save_to_disk(
        str(tmp_path / "splits")
    )
    write_jsonl(tmp_path / "folder" / "train.jsonl", rows)
    for name in ("saved", "splits", "folder"):
        assert as_list(load_rows(str(tmp_path / name), "train[-3:]")) == rows[-3:]
    for split in ("train[:10%]", "train[0]", "train[1:2]+test", "train["):
        with pytest.raises(
            RecipeError, match=r"by row number only\. Fix: for example train\[:-128\]"
        ):
            load_rows(str(path), split)
    with pytest.raises(RecipeError, match="split 'dev' is not in"):
        load_rows(str(tmp_path / "splits"), "dev[-3:]")


def countdown_config(train=200, test=50, **keys):
    limits = {"min_value": 1, "max_value": 20, "min_target": 1, "max_target": 60}
    return {
        **limits,
        "train": {"size": train, "seed": 1},
        "test": {"size": test, "seed": 1},
        **keys,
    }


@needs("countdown")
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
    assert mapper.name == "countdown"
    assert (
        verification.score([row["scorer"] for row in golds], [row["solution"] for row in golds])
        == [True] * 250
    )
    assert {
        len(row["nums"])
        for row in load_rows("countdown:6", "test", task_config=countdown_config(test=5))
    } == {6}


@pytest.mark.parametrize(
    ("name", "split", "config", "parts"),
    [
        (
            "countdown:",
            "train",
            countdown_config(),
            ["from 2 to 6. Fix: for example countdown:3-4"],
        ),
        ("countdown:1-3", "train", countdown_config(), ["countdown:1-3", "from 2 to 6"]),
        ("countdown:4-3", "train", countdown_config(), ["from 2 to 6"]),
        ("countdown:3-7", "train", countdown_config(), ["from 2 to 6"]),
        (
            "countdown:3",
            "dev",
            countdown_config(),
            ["split 'dev': puzzles of countdown:3 have only"],
        ),
        (
            "countdown:3",
            "train",
            countdown_config(max_values=9),
            ["unknown key of countdown 'max_values'", "'max_value'"],
        ),
        (
            "countdown:3",
            "train",
            {"min_value": 1},
            ["task_config: max_value: must be a whole number, at least 1, got None"],
        ),
        (
            "countdown:3",
            "train",
            countdown_config(min_value=0),
            ["task_config: min_value: must be a whole number, at least 1, got 0"],
        ),
        (
            "countdown:3",
            "train",
            countdown_config(max_target="9"),
            ["task_config: max_target: must be a whole number, at least 1, got '9'"],
        ),
        (
            "countdown:3",
            "train",
            countdown_config(min_value=30),
            ["task_config: max_value: must be a whole number, at least 30, got 20"],
        ),
        (
            "countdown:3",
            "train",
            countdown_config(train=0),
            ["task_config: train: size: must be a whole number, at least 1, got 0"],
        ),
        ("countdown:3", "train", countdown_config(test=None), ["task_config: test: size"]),
        # Of 1 and 2 there are seven puzzles: 1 1 makes 1 and 2, 1 2 makes 1, 2 and 3, 2 2 makes 1
        # and 4. The test split takes three.
        (
            "countdown:2",
            "train",
            countdown_config(5, 3, max_value=2),
            ["train: size: there are only 4 distinct puzzles of countdown:2, not 5"],
        ),
        (
            "countdown:2",
            "train",
            countdown_config(9, 9, min_target=59, max_value=2),
            ["test: size: there are only 0 distinct puzzles of countdown:2, not 9"],
        ),
    ],
)
@needs("countdown")
def test_puzzles_that_cannot_be_drawn(name, split, config, parts):
    with pytest.raises(RecipeError) as error:
        load_rows(name, split, task_config=config)
    for part in parts:
        assert part in str(error.value)


def test_a_folder_of_a_hub_repository_is_named_with_a_slash(monkeypatch):
    asked, rows = [], datasets.Dataset.from_list(ROWS)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *names, **options: asked.append((names, options)) or rows
    )
    assert load_rows("nobody/data", "train", config="level3/") is rows
    assert load_rows("nobody/data", "train", config="main", revision="v1") is rows
    assert asked == [
        (("nobody/data",), {"data_dir": "level3", "split": "train", "revision": None}),
        (("nobody/data",), {"name": "main", "split": "train", "revision": "v1"}),
    ]


@pytest.fixture
def opened(monkeypatch):
    """The paths that decoding a picture asks for."""
    paths = []
    monkeypatch.setattr(
        datasets.Image, "decode_example", lambda self, value, **_: paths.append(value["path"])
    )
    return paths


@pytest.mark.parametrize("shape", ["parquet", "saved", "splits", "folder", "hub"])
def test_a_path_in_a_row_is_never_opened(tmp_path, monkeypatch, opened, shape):
    picture, value = datasets.Image(), {"bytes": None, "path": "http://localhost:9/x"}
    features = {
        "a": picture,
        "b": {"c": picture},
        "d": datasets.List(picture),
        "e": datasets.Value("string"),
    }
    rows = datasets.Dataset.from_dict(
        {"a": [value], "b": [{"c": value}], "d": [[value]], "e": ["x"]},
        features=datasets.Features({name: plain_features(kind) for name, kind in features.items()}),
    )
    rows = datasets.Dataset(
        rows.data,
        info=datasets.DatasetInfo(features=datasets.Features(features), builder_name="imagefolder"),
    )
    name = str(tmp_path / "set")
    (tmp_path / "set").mkdir()
    if shape in ("saved", "splits"):
        bare = datasets.Dataset(
            pyarrow.table(rows.data.table.columns, rows.column_names)
        )  # saving pictures would open them
        (bare if shape == "saved" else datasets.DatasetDict({"train": bare})).save_to_disk(name)
        told = tmp_path / "set" / ("train" if shape == "splits" else "") / "dataset_info.json"
        told.write_text(
            json.dumps({"features": rows.features.to_dict(), "builder_name": "imagefolder"})
        )
    elif shape in ("parquet", "folder"):
        pyarrow.parquet.write_table(rows.data.table, f"{name}/train.parquet")
        name += "/train.parquet" if shape == "parquet" else ""
    elif shape == "hub":
        name = "nobody/numbers"
        plain = datasets.Dataset(
            rows.data, info=datasets.DatasetInfo(features=rows.features, builder_name="parquet")
        )
        monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: plain)
    loaded = load_rows(name, "train")
    assert as_list(loaded) == [{"a": value, "b": {"c": value}, "d": [value], "e": "x"}]
    assert as_list(loaded.map(lambda row: {"f": 1}))[0]["a"] == value
    assert opened == []


def test_pictures_as_files_are_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "0.png").write_bytes(b"x")
    with pytest.raises(RecipeError, match=r"contains 0\.png, .*save it as Parquet"):
        load_rows(str(tmp_path), "train")


@pytest.mark.parametrize(
    "where", ["{outside}/secret.jsonl", "../outside/secret.jsonl", "{inside}/../outside/*"]
)
@pytest.mark.parametrize("readme", ["README.md", ".huggingface.yaml"])
def test_a_folder_reads_no_file_outside_of_it(tmp_path, where, readme):
    write_jsonl(tmp_path / "outside" / "secret.jsonl")
    write_jsonl(tmp_path / "set" / "train.jsonl")
    where = where.format(outside=tmp_path / "outside", inside=tmp_path / "set")
    text = json.dumps(
        {"configs": [{"config_name": "default", "data_files": [{"split": "train", "path": where}]}]}
    )
    (tmp_path / "set" / readme).write_text(f"---\n{text}\n---\n" if readme == "README.md" else text)
    with pytest.raises(RecipeError, match="outside of the folder"):
        load_rows(str(tmp_path / "set"), "train")


@pytest.mark.parametrize("where", ["http://localhost:9/x.jsonl", "simplecache::/x.jsonl"])
def test_a_folder_asks_no_url(tmp_path, monkeypatch, where):
    write_jsonl(tmp_path / "set" / "train.jsonl")
    (tmp_path / "set" / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files: {where}\n---\n"
    )
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_: pytest.fail("is asked"))
    with pytest.raises(RecipeError, match=r"README\.md reads data from a URL\. Fix: download"):
        load_rows(str(tmp_path / "set"), "train")


def test_links_in_a_folder_are_followed(tmp_path):
    write_jsonl(tmp_path / "blobs" / "x")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").symlink_to(tmp_path / "blobs" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "set")
    for name in ("set", "link"):
        assert as_list(load_rows(str(tmp_path / name), "train")) == ROWS


def test_a_saved_set_reads_no_file_outside_of_it(tmp_path):
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(str(tmp_path / "other"))
    for name in ("single", "splits"):
        folder = tmp_path / name
        (rows if name == "single" else datasets.DatasetDict({"train": rows})).save_to_disk(
            str(folder)
        )
        state = folder / ("state.json" if name == "single" else "train/state.json")
        arrow = next((tmp_path / "other").glob("*.arrow"))
        told = json.loads(state.read_text()) | {
            "_data_files": [{"filename": f"{'../' * (1 + (name == 'splits'))}other/{arrow.name}"}]
        }
        state.write_text(json.dumps(told))
        with pytest.raises(RecipeError, match="outside of the folder"):
            load_rows(str(folder), "train")
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["../other"]}')
    with pytest.raises(RecipeError, match=r"reads data from \.\./other, outside of the folder"):
        load_rows(str(tmp_path / "splits"), "../other")


@pytest.mark.parametrize(
    "name", ["train.csv.bak", "train.csv.gz", "train.jsonl.gz", "train.zip", "train.txt"]
)
@pytest.mark.parametrize("beside", [True, False])
def test_a_folder_s_text_in_another_form_is_refused(tmp_path, name, beside):
    text = (
        b"question,answer\nx,007\n"
        if "csv" in name or "zip" in name
        else b'{"question": "x", "answer": "007"}\n'
    )
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    if name == "train.zip":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("train.csv", text)
    if beside:
        (
            tmp_path
            / name.replace(".zip", ".csv")
            .replace(".txt", ".text")
            .removesuffix(".bak")
            .removesuffix(".gz")
        ).write_bytes(text)
    with pytest.raises(
        RecipeError,
        match=rf"contains {name}, whose ending is none of .*Fix: unpack the file, save it as Parquet, or "
        rf"move",
    ):
        load_rows(str(tmp_path), "train")


@pytest.mark.parametrize("split", ["train[2:]", "train[5:]", "train[:-128]", "train[1:1]"])
def test_a_split_that_leaves_no_row_says_how_many_there_are(tmp_path, split):
    path = write_jsonl(tmp_path / "rows.jsonl")
    with pytest.raises(RecipeError, match=r"selects no rows: .*rows.jsonl has 2"):
        load_rows(str(path), split)


def test_endings_in_capitals_and_of_office_programs(tmp_path):
    for name, text in (
        ("a.CSV", "a,b\n1,2\n"),
        ("a.TSV", "a\tb\n1\t2\n"),
        ("a.JSONL", '{"a": "1", "b": "2"}\n'),
    ):
        (tmp_path / name).write_text(text)
        assert as_list(load_rows(str(tmp_path / name), "train")) == [{"a": "1", "b": "2"}]
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(RecipeError, match="Fix: save the file as CSV"):
        load_rows(str(tmp_path / "a.xlsx"), "train")
