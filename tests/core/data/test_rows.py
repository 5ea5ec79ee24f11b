"""Local files as they stand: golds keep their text, and a file that cannot be read is one line with
file, row and cause.
"""

import json

import pyarrow
import pyarrow.parquet
import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import SkipRow, get_mapper, load_rows

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


TORN = [
    # Empty in one way or another.
    ("empty.jsonl", b"", "holds no rows"),
    ("empty.json", b"", "holds no rows"),
    ("empty.csv", b"", "holds no rows"),
    ("bom.csv", b"\xef\xbb\xbf\n", "holds no rows"),
    ("blank.csv", b"\n\r\n\n", "holds no rows"),
    ("header.csv", b"a,b\n", "holds no rows"),
    ("list.json", b"[]", "holds no rows"),
    (
        "pointer.parquet",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n",
        "a Git LFS pointer, .*Fix: git lfs pull",
    ),
    # JSON that is none.
    (
        "cut.jsonl",
        b'{"a": 1}\n{"a": 2',
        r"line 2: is not JSON: Expecting ',' delimiter \(column 8\)",
    ),
    ("words.jsonl", b'{"a": 1}\n\nnot json\n', r"line 3: is not JSON: Expecting value"),
    ("late.jsonl", b'{"a": "x"}\n' * 12_000 + b'{"a": \n', r"line 12001: is not JSON"),
    ("list.jsonl", b'{"a": 1}\n[1, 2]\n', r"line 2: is not a JSON object: \[1, 2\]"),
    ("null.jsonl", b'{"a": "1"}\nnull\n', r"line 2: is not a JSON object: null"),
    ("scalars.json", b'[{"a": 1}, 5]', "row 1: is not a JSON object: 5"),
    ("cut.json", b'[{"a": 1},\n {"a": ', r"line 2: is not JSON: Expecting value \(column 8\)"),
    ("surrogate.jsonl", b'{"a": "x"}\n{"a": "\\ud83d"}\n', r"contains an unpaired surrogate"),
    ("latin.jsonl", b'{"a": "x"}\n{"a": "caf\xe9"}\n', r"line 2: is not UTF-8. Fix: iconv"),
    ("nuls.jsonl", b"\x00" * 64, "is not JSON"),
    ("utf16.jsonl", '{"a": 1}\n{"a": 2}\n'.encode("utf-16"), r"line 1: is not UTF-8"),
    ("deep.jsonl", b'{"a": 1}\n' + DEEP + b"\n", r"line 2: is nested too deeply"),
    # CSV that is none.
    ("ragged.csv", b"a,b\n1,2\n\n3,4,5\n", r"line 4: has 3 cells, the header 2: .'3', '4', '5'."),
    ("short.csv", b"a,b\n1,2\n3\n4,5\n", r"line 3: has 1 cells, the header 2: .'3'."),
    ("open.csv", b'a,b\n1,2\n1,"2\n3,4\n', r"line 3: a quote is not closed"),
    ("twice.csv", b"a,b,a\n1,2,3\n", "the header has a column twice: 'a'"),
    ("latin.csv", b"a,b\n1,2\n1,caf\xe9\n", r"line 3: is not UTF-8. Fix: iconv -f cp1252 -t utf-8"),
    # Parquet that is none, or that datasets cannot hold.
    ("words.parquet", b"no parquet at all, only words", "Parquet magic bytes not found"),
    (
        "map.parquet",
        parquet(
            arrays(a=pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())))
        ),
        "Arrow type map",
    ),
]


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
