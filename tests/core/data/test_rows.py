"""Local files as they stand: golds keep their text, and a file that cannot be read is one line."""

import json

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper, load_rows

TORN = {
    "empty.csv": b"",
    "header.csv": b"a,b\n",
    "list.json": b"[]",
    "cut.jsonl": b'{"a": 1}\n{"a": 2',
    "words.jsonl": b'{"a": 1}\n\nnot json\n',
    "words.parquet": b"no parquet at all, only words",
    "ragged.csv": b"a,b\n1,2\n\n3,4,5\n",
    "short.csv": b"a,b\n1,2\n3\n4,5\n",
    "twice.csv": b"a,b,a\n1,2,3\n",
    "latin.csv": b"a,b\n1,2\n1,caf\xe9\n",
    "utf16.jsonl": '{"a": 1}\n{"a": 2}\n'.encode("utf-16"),
}


@pytest.mark.parametrize("name", TORN)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(TORN[name])
    with pytest.raises(RecipeError) as error:
        load_rows(str(path), "train")
    assert str(error.value).startswith(f"dataset_name: {path}")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_gold_reaches_verification_as_it_stands(tmp_path, ending):
    """pandas reads 007 as 7, NA as nothing and, beside an empty cell, 72 as 72.0."""
    golds = ["72", "007", "NA", "None", "9007199254740993", "0.10", "1e400", "-0", "1E5", "3.0"]
    path, separator = tmp_path / f"rows.{ending}", "\t" if ending == "tsv" else ","
    if ending == "jsonl":
        lines = [json.dumps({"prompt": "q", "solution": gold}) for gold in [*golds, ""]]
    else:
        lines = [separator.join(cells) for cells in [("prompt", "solution")]]
        lines += [f"q{separator}{gold}" for gold in [*golds, ""]]
    path.write_text("\n".join(lines) + "\n")
    mapper = get_mapper("prompt_solution")
    assert [mapper(row)["solution"] for row in load_rows(str(path), "train")] == [*golds, ""]


def test_a_whole_number_beside_decimals_keeps_its_value(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "q", "solution": {gold}}}\n' for gold in ["72", "2.5"]))
    mapper = get_mapper("prompt_solution")
    assert [mapper(row)["solution"] for row in load_rows(str(path), "train")] == ["72", "2.5"]
