"""Local files as they stand: golds keep their text, and a file that cannot be read is one line with
file, row and cause.
"""

import datetime
import decimal
import json
import os
import random

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import SkipRow, get_mapper, load_rows
from r1_recipes.data.mappers.base import as_text

AB = [{"a": "1", "b": "2"}]
DEEP = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def arrays(**columns):
    return pyarrow.table(
        {
            name: array if isinstance(array, pyarrow.Array) else pyarrow.array(array)
            for name, array in columns.items()
        }
    )


def parquet(table):
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


WHOLE = parquet(arrays(a=["1"] * 100))
TORN = [
    # Empty in one way or another.
    ("empty.jsonl", b"", "holds no rows"),
    ("empty.json", b"", "holds no rows"),
    ("empty.csv", b"", "holds no rows"),
    ("empty.tsv", b"", "holds no rows"),
    ("empty.parquet", b"", "Parquet file size is 0 bytes"),
    ("bom.jsonl", b"\xef\xbb\xbf", "holds no rows"),
    ("bom.csv", b"\xef\xbb\xbf\n", "holds no rows"),
    ("blank.jsonl", b"\n\n  \n", "holds no rows"),
    ("blank.csv", b"\n\r\n\n", "holds no rows"),
    ("header.csv", b"a,b\n", "holds no rows"),
    ("header.tsv", b"a\tb", "holds no rows"),
    ("list.json", b"[]", "holds no rows"),
    ("data.json", b'{"data": []}', "holds no rows"),
    (
        "pointer.parquet",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n",
        "a Git LFS pointer, .*Fix: git lfs pull",
    ),
    ("objects.jsonl", b"{}\n{}\n", "holds no rows"),
    ("rows.parquet", parquet(arrays(a=pyarrow.array([], "string"))), "holds no rows"),
    ("columns.parquet", parquet(pyarrow.table({})), "holds no rows"),
    # JSON that is none.
    (
        "cut.jsonl",
        b'{"a": 1}\n{"a": 2',
        r"line 2: is not JSON: Expecting ',' delimiter \(column 8\)",
    ),
    ("first.jsonl", b'{"a": 1\n{"a": 2}\n', r"line 1: is not JSON"),
    ("words.jsonl", b'{"a": 1}\n\nnot json\n', r"line 3: is not JSON: Expecting value"),
    ("late.jsonl", b'{"a": "x"}\n' * 12_000 + b'{"a": \n', r"line 12001: is not JSON"),
    ("list.jsonl", b'{"a": 1}\n[1, 2]\n', r"line 2: is not a JSON object: \[1, 2\]"),
    ("lists.jsonl", b"[1]\n[2]\n", r"line 1: is not a JSON object: \[1\]"),
    ("scalar.jsonl", b'{"a": 1}\n7\n', r"line 2: is not a JSON object: 7"),
    ("null.jsonl", b'{"a": "1"}\nnull\n', r"line 2: is not a JSON object: null"),
    ("null.json", b"null", "row 0: is not a JSON object: null"),
    ("text.json", b'"a"', 'row 0: is not a JSON object: "a"'),
    ("scalars.json", b'[{"a": 1}, 5]', "row 1: is not a JSON object: 5"),
    ("cut.json", b'[{"a": 1},\n {"a": ', r"line 2: is not JSON: Expecting value \(column 8\)"),
    (
        "two.jsonl",
        b'{"a": "1"} {"a": "2"}\n{"a": "3"}\n{"a": "4"}\n',
        r"line 1: is not JSON: Extra data",
    ),
    ("surrogate.jsonl", b'{"a": "x"}\n{"a": "\\ud83d"}\n', r"contains an unpaired surrogate"),
    ("surrogate.json", b'[{"a": "\\uDC00"}]', "surrogates not allowed"),
    ("surrogate_key.jsonl", b'{"\\ud83d": "x"}\n{}\n', r"contains an unpaired surrogate"),
    ("latin.jsonl", b'{"a": "x"}\n{"a": "caf\xe9"}\n', r"line 2: is not UTF-8. Fix: iconv"),
    ("latin.json", b'[{"a": "x"},\n{"a": "caf\xe9"}]', r"line 2: is not UTF-8"),
    (
        "nul.jsonl",
        b'{"a": "x"}\n{"a": "\x00"}\n',
        r"line 2: is not JSON: Invalid control character",
    ),
    ("nul_key.jsonl", b'{"a\\u0000b": "1", "a": "2"}\n', r"column 'a\\x00b' has a NUL in its name"),
    ("nul_header.csv", b"a\0b,a\n1,2\n", r"column 'a\\x00b' has a NUL in its name"),
    ("nuls.jsonl", b"\x00" * 64, "is not JSON"),
    ("utf16.jsonl", '{"a": 1}\n{"a": 2}\n'.encode("utf-16"), r"line 1: is not UTF-8"),
    ("gz.jsonl", b"\x1f\x8b\x08\x00garbage\n\xff", r"is not UTF-8"),
    ("deep.jsonl", b'{"a": 1}\n' + DEEP + b"\n", r"line 2: is nested too deeply"),
    ("deep.json", DEEP, "is nested too deeply"),
    # CSV that is none.
    ("ragged.csv", b"a,b\n1,2\n\n3,4,5\n", r"line 4: has 3 cells, the header 2: .'3', '4', '5'."),
    ("short.csv", b"a,b\n1,2\n3\n4,5\n", r"line 3: has 1 cells, the header 2: .'3'."),
    ("ragged_later.csv", b"a,b\n" + b"1,2\n" * 9000 + b"1,2,3\n", r"line 9002: has 3 cells"),
    ("open.csv", b'a,b\n1,2\n1,"2\n3,4\n', r"line 3: a quote is not closed"),
    ("open_first.csv", b'a,b\n"1,2\n3,4\n', r"line 2: a quote is not closed"),
    ("open_header.csv", b'a,"b\n1,2\n', "line 1: a quote is not closed"),
    ("twice.csv", b"a,b,a\n1,2,3\n", "the header has a column twice: 'a'"),
    ("latin.csv", b"a,b\n1,2\n1,caf\xe9\n", r"line 3: is not UTF-8. Fix: iconv -f cp1252 -t utf-8"),
    ("latin_later.csv", b"a,b\n" + b"1,2\n" * 9000 + b"1,caf\xe9\n", r"line 9002: is not UTF-8"),
    ("latin_header.csv", b"a,caf\xe9\n1,2\n", r"line 1: is not UTF-8"),
    ("utf16.csv", "a,b\n1,2\n".encode("utf-16"), "is not UTF-8. Fix: iconv"),
    # Parquet that is none, or that datasets cannot hold.
    ("words.parquet", b"no parquet at all, only words", "Parquet magic bytes not found"),
    ("cut.parquet", WHOLE[:-20], "ArrowInvalid"),
    ("head.parquet", WHOLE[:40], "ArrowInvalid"),
    (
        "map.parquet",
        parquet(
            arrays(a=pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())))
        ),
        "Arrow type map",
    ),
    ("json.parquet", b'{"a": 1}', "ArrowInvalid"),
]
SOUND = [
    ("one.ndjson", b'{"a": "1", "b": "2"}\n', AB),
    ("one.jsonl", b'{"a": "1", "b": "2"}', AB),
    ("bom.jsonl", b'\xef\xbb\xbf{"a": "1", "b": "2"}\r\n\r\n', AB),
    ("spaced.jsonl", b'\n  {"a": "1", "b": "2"}  \n\n', AB),
    ("pretty.json", json.dumps(AB, indent=2).encode(), AB),
    ("lines.json", b'{"a": "1"}\n{"a": "2"}\n', [{"a": "1"}, {"a": "2"}]),
    ("object.json", b'{\n "a": "1",\n "b": "2"\n}', AB),
    ("data.json", b'{"version": 1, "data": [{"a": "1", "b": "2"}]}', AB),
    ("talk.json", b'{"messages": [{"role": "user"}]}', [{"messages": [{"role": "user"}]}]),
    ("ragged.jsonl", b'{"a": "1"}\n{"b": "2"}\n', [{"a": "1", "b": None}, {"a": None, "b": "2"}]),
    (
        "nulls.jsonl",
        b'{"a": null, "b": [null]}\n{"a": {"c": null}, "b": null}\n',
        [{"a": None, "b": [None]}, {"a": {"c": None}, "b": None}],
    ),
    ("nan.jsonl", b'{"a": NaN}\n{"a": 1.5}\n', [{"a": None}, {"a": 1.5}]),
    ("nul.jsonl", b'{"a": "x\\u0000y"}\n', [{"a": "x\0y"}]),
    (
        "nul_inside.jsonl",
        b'{"a": {"b\\u0000c": "1", "b": "2"}}\n',
        [{"a": {"b\0c": "1", "b": "2"}}],
    ),
    ("emoji.jsonl", b'{"a": "\\ud83d\\ude00"}\n', [{"a": "\U0001f600"}]),
    (
        "text.jsonl",
        b'{"a": 72}\n{"a": "72 cm"}\n{"a": true}\n',
        [{"a": "72"}, {"a": "72 cm"}, {"a": "true"}],
    ),
    (
        "text_later.jsonl",
        b'{"a": 72}\n' * 6000 + b'{"a": "007"}\n',
        [{"a": "72"}] * 6000 + [{"a": "007"}],
    ),
    (
        "key_later.jsonl",
        b'{"a": "x"}\n' * 6000 + b'{"b": "y"}\n',
        [{"a": "x", "b": None}] * 6000 + [{"a": None, "b": "y"}],
    ),
    (
        "shapes.jsonl",
        b'{"a": {"x": "007"}}\n{"a": [0.10]}\n{"a": "72"}\n',
        [{"a": {"x": "007"}}, {"a": ["0.10"]}, {"a": "72"}],
    ),
    ("deep.jsonl", b'{"a": ' + b"[" * 90 + b'"x"' + b"]" * 90 + b"}\n", None),
    (
        "huge.jsonl",
        b'{"a": "' + b"x" * 20_000_000 + b'"}\n{"a": "y"}\n',
        [{"a": "x" * 20_000_000}, {"a": "y"}],
    ),
    ("empty.jsonl", b'{"a": {}, "b": []}\n', [{"a": {}, "b": []}]),
    ("key.jsonl", '{"": "1", "é": "2"}\n'.encode(), [{"": "1", "é": "2"}]),
    ("bom.csv", b"\xef\xbb\xbfa,b\r\n1,2\r\n", AB),
    ("lead.csv", b"\n\na,b\n1,2\n", AB),
    ("mac.csv", b"a,b\r1,2\r", AB),
    ("index.csv", b",b,,\n0,2,,\n", [{"b": "2"}]),  # pandas' index; a spreadsheet's empty columns
    ("quoted.csv", b'"a\nx",b\n"1\n2","3""4, 5"\n', [{"a\nx": "1\n2", "b": '3"4, 5'}]),
    ("tail.csv", b'a,b\n1,"2\n3"\n', [{"a": "1", "b": "2\n3"}]),
    (
        "missing.csv",
        b'a,b\nNA,None\nnull,nan\n,""\n',
        [{"a": "NA", "b": "None"}, {"a": "null", "b": "nan"}, {"a": None, "b": None}],
    ),
    ("nul.csv", b"a,b\nx\x00y,2\n", [{"a": "x\0y", "b": "2"}]),
    (
        "huge.csv",
        b"a,b\n1,2\n1," + b"x" * 9_000_000 + b"\n",
        [*AB, {"a": "1", "b": "x" * 9_000_000}],
    ),
    ("comma.csv", b'"a,b"\n1\n', [{"a,b": "1"}]),
    ("semicolon.csv", b"a;b\n1;2\n", AB),
    ("bar.csv", b"a|b\n1|2\n", AB),
    ("tab.csv", b"a\tb\n1\t2\n", AB),
    ("commas.tsv", b"a (x, y, z)\tb\n1\t2\n", [{"a (x, y, z)": "1", "b": "2"}]),
    ("commas.csv", b'"a, x, y";b\n1;2\n', [{"a, x, y": "1", "b": "2"}]),
    ("comma.tsv", b"a,b\n1,2\n", AB),
    ("one.csv", b"a\n1\n\n2\n", [{"a": "1"}, {"a": "2"}]),
    (
        "dictionary.parquet",
        parquet(arrays(a=pyarrow.array(["1", "1"]).dictionary_encode())),
        [{"a": "1"}] * 2,
    ),
    (
        "large.parquet",
        parquet(
            arrays(
                a=pyarrow.array(["1"], "large_string"),
                b=pyarrow.array([[1]], pyarrow.large_list(pyarrow.int64())),
            )
        ),
        [{"a": "1", "b": [1]}],
    ),
    ("struct.parquet", parquet(arrays(a=[{"b": 1, "c": None}])), [{"a": {"b": 1, "c": None}}]),
    (
        "decimal.parquet",
        parquet(arrays(a=[decimal.Decimal("0.10")])),
        [{"a": decimal.Decimal("0.10")}],
    ),
    (
        "date.parquet",
        parquet(arrays(a=[datetime.date(2024, 1, 5)])),
        [{"a": datetime.date(2024, 1, 5)}],
    ),
    ("null.parquet", parquet(arrays(a=[None], b=["x"])), [{"a": None, "b": "x"}]),
]


def test_the_collection_is_a_collection():
    assert len({name for name, *_ in TORN}) == len(TORN) >= 50


@pytest.mark.parametrize(("name", "content", "cause"), TORN, ids=[name for name, *_ in TORN])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name, content, cause):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=cause) as error:
        load_rows(str(path), "train")
    text = str(error.value)
    assert text.startswith(f"dataset_name: {path}: cannot be read: ")
    assert text.count("cannot be read") == len(text.splitlines()) == 1
    assert len(text) < 400 + len(str(path))


@pytest.mark.parametrize(("name", "content", "rows"), SOUND, ids=[name for name, *_ in SOUND])
def test_an_odd_file_is_read_as_it_stands(tmp_path, name, content, rows):
    path = tmp_path / name
    path.write_bytes(content)
    found = load_rows(str(path), "train").to_list()
    assert found == (rows if rows is not None else [json.loads(content)])
    assert [list(map(type, row.values())) for row in found] == [
        list(map(type, row.values())) for row in rows or found
    ]


GOLDS = [
    "72",
    "007",
    "NA",
    "None",
    "9007199254740993",
    "12345678901234567890123",
    "0.10",
    "1e400",
    "2024-01-05",
    "-0",
    "1E5",
    "3.0",
]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_a_gold_reaches_verification_as_it_stands(tmp_path, ending, kind):
    golds = [
        gold for gold in GOLDS if kind == "texts" or gold[0] in "-179" or gold in ("0.10", "3.0")
    ]
    golds = [gold for gold in golds if kind == "texts" or not gold.startswith("2024")]
    path, separator = tmp_path / f"rows.{ending}", "\t" if ending == "tsv" else ","
    if ending in ("csv", "tsv"):  # with an empty cell, which made pandas read 72 as 72.0
        path.write_text(
            "".join(
                f"{q}{separator}{gold}\n"
                for q, gold in [
                    ("prompt", "solution"),
                    *((f"q{g}", g) for g in golds),
                    ("empty", ""),
                ]
            )
        )
    elif ending == "parquet":
        path.write_bytes(parquet(arrays(prompt=golds, solution=[gold.encode() for gold in golds])))
    else:
        written = [
            f'{{"prompt": "q", "solution": {gold if kind == "numbers" else json.dumps(gold)}}}'
            for gold in golds
        ]
        path.write_text("\n".join(written) if ending == "jsonl" else f"[{', '.join(written)}]")
    mapper, found = get_mapper("prompt_solution"), []
    for row in load_rows(str(path), "train"):
        try:
            found.append(mapper(row)["solution"])
        except SkipRow as reason:
            assert str(reason) == "column 'solution' is empty" and ending in ("csv", "tsv")
    assert found == golds


@pytest.mark.parametrize(
    "golds",
    [
        ["1", "2"],
        ["1.5", "2.5"],
        ["1", "2.5"],
        ["1", "1.0"],
        ["0.3333333333333333", "1e-05"],
        ["0.1", "0.10"],
    ],
)
def test_a_column_of_numbers_gives_back_what_was_written(tmp_path, golds):
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"a": {gold}}}\n' for gold in golds))
    assert [str(row["a"]) for row in load_rows(str(tmp_path / "rows.jsonl"), "train")] == golds


def test_numbers_stay_numbers_where_nothing_is_lost(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"level": 3, "rate": 0.5, "nums": [1, 2], "ok": true}\n{"level": null, "rate": 1.0, '
        '"nums": [], "ok": false}\n'
    )
    rows = load_rows(str(tmp_path / "rows.jsonl"), "train")
    assert rows.to_list() == [
        {"level": 3, "rate": 0.5, "nums": [1, 2], "ok": True},
        {"level": None, "rate": 1.0, "nums": [], "ok": False},
    ]
    assert {name: feature.dtype for name, feature in rows.features.items() if name != "nums"} == {
        "level": "int64",
        "rate": "float64",
        "ok": "bool",
    }


def test_nested_columns_come_back_as_they_were_written(tmp_path):
    rng = random.Random(0)

    def value(depth):
        texts = ["72", "é\n", "", "2024-01-05", "-0", "\U0001f600", None]
        if depth == 3:
            return rng.choice(texts)
        return {
            "t": rng.choice(texts),
            "n": rng.choice([0, -7, 10**17, None]),
            "l": [value(depth + 1) for _ in range(rng.randrange(3))],
        }

    rows = [
        {**value(0), "flag": rng.choice([True, None]), **rng.choice([{}, {"late": [1.5]}])}
        for _ in range(1300)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows),
        encoding="utf-8",
    )
    assert load_rows(str(path), "train").to_list() == [
        {**row, "late": row.get("late")} for row in rows
    ]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'a,b\nx,1\ny,"2\nz,3\n', r"line 3"),
        (b'a,b\nx,1\n"y,2\nz,3\n', r"line 3"),
        (b'a,b\n"x\ny",1\n"x,1\ny,2\n"z",3\n', r"line 4"),  # the next cell's quote closes it
        (b'a,b\nx,"1\n2" \t\r\n', r"line 2"),
    ],
)
def test_a_quote_that_is_not_closed_is_an_error(tmp_path, content, place):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=rf"{place}: a quote is not closed"):
        load_rows(str(path), "train")


def test_quotes_that_are_closed(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b'a,b\nx,"he said\n""hi"""\n3" pipe,2\n')
    assert load_rows(str(path), "train").to_list() == [
        {"a": "x", "b": 'he said\n"hi"'},
        {"a": '3" pipe', "b": "2"},
    ]


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": [{"role": "user"}], "completion": [{"role": "x"}]}',
        '{"a": [1, 2]}',
        '{"q": "x", "a": [1]}',
        '{"a": [], "b": []}',
    ],
)
def test_one_object_is_one_row(tmp_path, row):
    path = tmp_path / "rows.json"
    path.write_text(row)
    assert load_rows(str(path), "train").to_list() == [json.loads(row)]


@pytest.mark.parametrize("folder", ["a{b,c}", "with space"])
@pytest.mark.parametrize(
    "inside",
    ["train.jsonl", "train[1].jsonl", "data/train-00000-of-00001.jsonl", "main/train.jsonl"],
)
def test_odd_names_of_folders_and_files(tmp_path, folder, inside):
    path = tmp_path / folder / inside
    path.parent.mkdir(parents=True)
    path.write_text('{"a": "1", "b": "2"}\n')
    config = "main" if inside.startswith("main") else None
    assert load_rows(str(tmp_path / folder), "train", config=config).to_list() == AB
    assert load_rows(str(path), "train").to_list() == AB
    with pytest.raises(RecipeError, match=r"split 'test' is not in .*, which has 'train'"):
        load_rows(str(tmp_path / folder), "test", config=config)


@pytest.mark.parametrize(
    ("folder", "other"),
    [("data[1]", "data1"), ("da*ta", "da_ta"), ("what?", "whats"), ("[!a]", "b")],
)
def test_a_folder_s_name_that_is_a_pattern_reads_no_other_folder(tmp_path, folder, other):
    for name in (folder, other):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text('{"a": "1", "b": "2"}\n')
    with pytest.raises(RecipeError, match="outside of the folder"):
        load_rows(str(tmp_path / folder), "train")
    assert load_rows(str(tmp_path / folder / "train.jsonl"), "train").to_list() == AB


def test_the_files_of_a_folder_are_one_dataset(tmp_path):
    for number, row in enumerate(['{"a": 1, "b": {"x": 1}}', '{"a": "2 cm", "c": 3}']):
        (tmp_path / f"train-{number}.jsonl").write_text(row + "\n")
    (tmp_path / "README.md").write_text("Notes.")
    assert load_rows(str(tmp_path), "train").to_list() == [
        {"a": "1", "b": {"x": 1}, "c": None},
        {"a": "2 cm", "b": None, "c": 3},
    ]
    (tmp_path / "train-1.jsonl").write_text("{")
    with pytest.raises(RecipeError, match=r"train-1.jsonl: cannot be read: line 1: is not JSON"):
        load_rows(str(tmp_path), "train")


def test_csv_and_parquet_files_of_a_folder_need_not_have_the_same_columns(tmp_path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "parquet").mkdir()
    for number, columns in enumerate(({"a": ["1"], "b": ["2"]}, {"b": ["3"], "c": ["4"]})):
        datasets.Dataset.from_dict(columns).to_csv(
            str(tmp_path / "csv" / f"train-{number}.csv"), index=False
        )
        datasets.Dataset.from_dict(columns).to_parquet(
            str(tmp_path / "parquet" / f"train-{number}.parquet")
        )
    datasets.Dataset.from_dict({"a": [1]}).to_parquet(str(tmp_path / "test-0.parquet"))
    datasets.Dataset.from_dict({"a": ["x"]}).to_parquet(str(tmp_path / "test-1.parquet"))
    with pytest.raises(RecipeError, match=r"test-1.parquet: cannot be read: "):
        load_rows(str(tmp_path), "test")
    for folder in ("csv", "parquet"):
        rows = load_rows(str(tmp_path / folder), "train").to_list()
        assert rows == [{"a": "1", "b": "2", "c": None}, {"a": None, "b": "3", "c": "4"}]


def test_folders_that_hold_no_data(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "LICENSE").write_text("x")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "loop" / "train.jsonl").write_text('{"a": "1", "b": "2"}\n')
    os.symlink(tmp_path / "self", tmp_path / "self")
    (tmp_path / "empty[1]").mkdir()
    for name in ("text", "empty[1]"):
        with pytest.raises(RecipeError) as error:
            load_rows(str(tmp_path / name), "train")
        assert str(error.value).startswith(f"dataset_name: {tmp_path / name}: cannot be read: ")
        assert "\n" not in str(error.value)
    with pytest.raises(RecipeError, match=r"self: is a link to .*self, which does not exist"):
        load_rows(str(tmp_path / "self"), "train")
    assert load_rows(str(tmp_path / "loop"), "train").to_list() == AB


@pytest.mark.parametrize("harm", ["state", "arrow", "cut", "info"])
def test_a_torn_save_to_disk_folder(tmp_path, harm):
    datasets.Dataset.from_list(AB).save_to_disk(str(tmp_path / "set"))
    if harm == "state":
        (tmp_path / "set" / "state.json").write_text("{")
    elif harm == "info":
        (tmp_path / "set" / "dataset_info.json").unlink()
    elif harm != "none":
        (file,) = (tmp_path / "set").glob("*.arrow")
        file.unlink() if harm == "arrow" else file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RecipeError) as error:
        load_rows(str(tmp_path / "set"), "train")
    assert str(error.value).startswith(f"dataset_name: {tmp_path / 'set'}: cannot be read: ")
    assert len(str(error.value).splitlines()) == 1


def test_a_changed_file_is_never_taken_from_the_cache(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a\n1\n")
    stamp = path.stat()
    assert load_rows(str(path), "train")["a"] == ["1"]
    path.write_text("a\n2\n")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert load_rows(str(path), "train")["a"] == ["2"]


def test_a_cell_as_text():
    assert [
        as_text(value, "a")
        for value in (None, float("nan"), 0, b" 72 ", decimal.Decimal("0.10"), " x ", "#5!")
    ] == [
        "",
        "",
        "0",
        "72",
        "0.10",
        "x",
        "#5!",
    ]
    assert {
        as_text(value, "a")
        for value in ("#N/A", "#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!")
    } == {""}  # spreadsheets
    for value, reason in (
        (b"\xff", "bytes that are not UTF-8"),
        (["72"], "a list, not text"),
        ({"a": 1}, "a dict, not text"),
    ):
        with pytest.raises(SkipRow, match=f"column 'a' holds {reason}"):
            as_text(value, "a")


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_any_damage_is_one_line(tmp_path, ending):
    rng = random.Random(ending)
    whole = {
        "jsonl": b'{"a": "1", "b": [{"x": null, "y": "z"}], "n": '
        b'12}\n{"a": "two\\n", "b": [], "n": '
        b'-3}\n{"a": "3", "b": null}\n',
        "json": b'[{"a": 1, "b": {"c": [1.5, "x"]}},\n {"a": "2"}]',
        "csv": b'a,b\n1,"x, ""y"""\n2,"multi\nline"\n3,4\n',
        "parquet": WHOLE,
    }[ending]
    marks = [
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b"\n",
        b"null",
        b"\\",
        b"\0",
        b"\xff",
        b"1e999",
        b"-0",
        b"\\ud800",
        b"\r",
    ]
    refused = 0
    for number in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            place = rng.randrange(len(damaged) + 1)
            damaged[place : place + rng.randrange(3)] = rng.choice([b"", *marks])
        path = tmp_path / f"{number}.{ending}"
        path.write_bytes(damaged)
        try:
            load_rows(str(path), "train").to_list()
        except RecipeError as error:
            refused += 1
            assert str(error).startswith(f"dataset_name: {path}: cannot be read: "), bytes(damaged)
            assert str(error).count("cannot be read") == len(str(error).splitlines()) == 1, bytes(
                damaged
            )
    assert refused > 10
