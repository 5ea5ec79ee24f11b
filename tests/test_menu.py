"""The menu of recipes: each file has one row, the row says what the file and its header say, and the Chinese menu says the same."""

import re

import pytest
import yaml

from tests.conftest import RECIPES, REPOSITORY, method_of

FOLDER = REPOSITORY / "recipes"
NAMES = {path: path.relative_to(FOLDER).as_posix() for path in RECIPES}
TRAINING = [path for path in RECIPES if method_of(path) != "evaluate"]
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
COUNTS = {"one": "1", "two": "2"}
COLUMNS = ["recipe", "what it is", "follows", "model", "data", "hardware", "time", "expected result", "run"]


def tables(path):
    """A document's tables: the headings' cells, and a list of cells a row."""
    found, rows = [], []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").replace("\\|", "\0").split("|")])
        elif rows:
            found.append((rows[0], rows[2:]))
            rows = []
    return found


def menu_rows(path=FOLDER / "README.md"):
    """The nine-column rows by the recipe that they link first."""
    return {LINK.search(row[0])[2]: row for heading, rows in tables(path) if len(heading) == len(COLUMNS) for row in rows}


ROWS = menu_rows()
SETTINGS = {NAMES[path]: yaml.safe_load(path.read_text(encoding="utf-8")) for path in RECIPES}


def header_of(path):
    """A recipe's header: its fields, each one line."""
    fields, key = {}, None
    for line in path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()[1:]:
        field = re.match(r"# ([A-Z][a-z]+): *(.*)", line)
        if field:
            key = field[1]
            fields[key] = field[2]
        elif key and line.strip("# "):
            fields[key] += " " + line.strip("# ")
        else:
            key = None
    return fields


def named(value):
    """How the menu writes a model or data set: its last name, or a link to the recipe that leaves it."""
    if value.startswith("outputs/"):
        leaves = [
            name
            for name, values in SETTINGS.items()
            if value == values.get("output_dir") or value.startswith(f"{values.get('output_dir')}/")
        ]
        assert len(leaves) == 1, f"{value}: left by {leaves}"
        return f"[{leaves[0].removesuffix('.yaml')}]({leaves[0]})"
    if value.endswith("/train.parquet"):
        return "/".join(value.split("/")[-2:])
    return value.removeprefix("embedded:").rpartition("/")[2]


def data_of(settings):
    mixture = settings.get("dataset_mixture")
    ids = [part["id"] for part in mixture["datasets"]] if mixture else [settings["dataset_name"]]
    return ", ".join(dict.fromkeys(map(named, ids)))


def test_the_menu_has_one_row_for_each_recipe_and_none_besides():
    assert sorted(ROWS) == sorted(NAMES[path] for path in TRAINING)
    linked = [link for heading, rows in tables(FOLDER / "README.md") if len(heading) == 9 for row in rows for link in LINK.findall(row[0])]
    assert len(linked) == len(ROWS)
    assert all(heading == COLUMNS for heading, _ in tables(FOLDER / "README.md") if len(heading) == 9)


@pytest.mark.parametrize("path", TRAINING, ids=NAMES.get)
def test_a_row_says_what_the_recipe_says(path):
    name, header, settings = NAMES[path], header_of(path), SETTINGS[NAMES[path]]
    recipe, what, follows, model, data, hardware, time, expected, run = ROWS[name]
    assert recipe == f"[{name.removesuffix('.yaml')}]({name})" and what
    assert model == named(settings["model_name_or_path"])
    assert data == data_of(settings)
    # Whom it follows stands in the header, with the address.
    for text, address in LINK.findall(follows) or [(part, "") for part in follows.split(", ")]:
        assert text.lower() in header["Follows"].lower()
        assert address.replace("https://arxiv.org/abs/", "arXiv:") in header["Follows"]
    count, unit, memory = re.search(r"\b(one|two|\d+) (GPU|CPU core)s?(?: with (\d+) GB)?", header["Hardware"]).groups()
    assert hardware == (f"{COUNTS.get(count, count)} CPU cores" if unit == "CPU core" else f"{COUNTS.get(count, count)} x {memory} GB")
    minutes = re.search(r"about (\d+ minutes)", header["Hardware"])
    assert time == (header["Time"].partition(";")[0] if "Time" in header else minutes[1] if minutes else "not reported")
    # Measured here, or by those it follows: every number of the cell stands in the header.
    measured = "docs/results.md" in header["Expect"]
    assert expected.startswith("measured") == measured
    assert measured or "ot measured here" in header["Expect"]
    if not measured:
        assert expected == "not measured here" or (expected.startswith("reported: ") and NUMBER.search(expected))
    assert set(NUMBER.findall(LINK.sub("", expected))) <= set(NUMBER.findall(header["Expect"]))
    method, _, config = run.replace("`", "").partition(", ")
    command = f"-m r1_recipes.{method} recipes/{name}"
    if config:
        file, _, flags = config.partition(" ")
        assert (REPOSITORY / "accelerate_configs" / f"{file}.yaml").exists()
        command = f"accelerate launch -q --config_file accelerate_configs/{file}.yaml {flags + ' ' if flags else ''}{command}"
    assert command in header["Run"]
    assert method == method_of(path)


@pytest.mark.parametrize("path", [path for path in RECIPES if path not in TRAINING], ids=NAMES.get)
def test_a_benchmark_s_row_says_how_many_samples(path):
    [row] = [row for heading, rows in tables(FOLDER / "README.md") if len(heading) == 4 for row in rows if f"({NAMES[path]})" in row[0]]
    assert row[2] == str(SETTINGS[NAMES[path]]["num_samples"])


@pytest.mark.parametrize("path", TRAINING, ids=NAMES.get)
def test_a_header_gives_an_address_and_what_was_measured(path):
    header = header_of(path)
    assert re.search(r"https://|arXiv:|recipes/|\.yaml|grpo_demo|TinyZero|nothing published", header["Follows"])
    assert "Arithmetic" in header and "Override" in header
    assert NAMES[path] in header["Run"]


# A document and its Chinese twin.
TWINS = [("README.md", "README.zh.md"), ("recipes/README.md", "recipes/README.zh.md")]


def in_english(target):
    """A link without its place in the page, to the English page."""
    return target.partition("#")[0].replace(".zh.md", ".md")


def structure(name):
    """What two languages must share: the levels of headings, commands, tables' shapes, links' targets, code, and the numbers in tables."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    rows = [row for _, rows in tables(REPOSITORY / name) for row in rows]
    return {
        "headings": [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)],
        # Comments are translated, commands are not.
        "commands": [(kind, [re.split(r"\s+#|^#", line)[0].rstrip() for line in block.splitlines()]) for kind, block in blocks],
        "tables": [(len(heading), len(rows)) for heading, rows in tables(REPOSITORY / name)],
        "cells": [[sorted(re.findall(r"`[^`]+`", cell)) for cell in row] for row in rows],
        "links": [[in_english(target) for _, target in LINK.findall(cell)] for row in rows for cell in row],
        "numbers": [[sorted(NUMBER.findall(LINK.sub("", cell))) for cell in row] for row in rows],
        "all links": sorted(in_english(target) for _, target in LINK.findall(prose)),
    }


@pytest.mark.parametrize(("english", "chinese"), TWINS)
def test_the_chinese_documents_keep_step(english, chinese):
    ours, theirs = structure(english), structure(chinese)
    for what, value in ours.items():
        assert theirs[what] == value, what
    text = (REPOSITORY / chinese).read_text(encoding="utf-8")
    assert len(re.findall(r"[\u4e00-\u9fff]", text)) > 500


def test_the_chinese_menu_names_the_same_models_data_and_runs():
    chinese = menu_rows(FOLDER / "README.zh.md")
    assert list(chinese) == list(ROWS)
    for name, row in ROWS.items():
        assert [chinese[name][column] for column in (0, 3, 4, 8)] == [row[column] for column in (0, 3, 4, 8)]
