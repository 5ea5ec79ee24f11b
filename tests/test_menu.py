"""The menu of recipes is what recipes/menu.py writes of their headers, a header says what it may,
and Chinese pages keep step.
"""

import re

import pytest

from recipes import menu
from tests.conftest import RECIPES, REPOSITORY, method_of
from tests.support.pages import tables

FOLDER = REPOSITORY / "recipes"
NAMES = {path: path.relative_to(FOLDER).as_posix() for path in RECIPES}
TRAINING = [path for path in RECIPES if method_of(path) != "evaluate"]
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@pytest.mark.parametrize("name", menu.PAGES)
def test_the_pages_are_what_the_headers_say(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text == menu.page(name), "make menu writes it anew"
    assert sorted(menu.ROW.findall(text)) == sorted(
        NAMES[path] for path in TRAINING
    )  # one row for each recipe and none besides


@pytest.mark.parametrize("path", TRAINING, ids=NAMES.get)
def test_a_menu_line_says_what_the_header_says(path):
    name, header = NAMES[path], menu.header_of(path)
    what, follows, expected = header["Menu"].split(" | ")
    assert what
    # Whom it follows stands in the header, with the address.
    for text, address in LINK.findall(follows) or [(part, "") for part in follows.split(", ")]:
        assert text.lower() in header["Follows"].lower()
        assert address.replace("https://arxiv.org/abs/", "arXiv:") in header["Follows"]
    # Measured here, or by those it follows: every number of the cell stands in the header.
    measured = "docs/results.md" in header["Expect"]
    assert expected.startswith("measured") == measured
    assert measured or "ot measured here" in header["Expect"]
    if not measured:
        assert expected == "not measured here" or (
            expected.startswith("reported: ") and NUMBER.search(expected)
        )
    assert set(NUMBER.findall(LINK.sub("", expected))) <= set(NUMBER.findall(header["Expect"]))
    run = menu.row_of(name, "Menu").split(" | ")[-1].rstrip(" |").replace("`", "")
    method, _, config = run.partition(", ")
    command = f"-m r1_recipes.{method} recipes/{name}"
    if config:
        file, _, flags = config.partition(" ")
        assert (REPOSITORY / "accelerate_configs" / f"{file}.yaml").exists()
        command = (
            f"accelerate launch -q --config_file accelerate_configs/{file}.yaml "
            f"{flags + ' ' if flags else ''}{command}"
        )
    assert command in header["Run"]
    assert method == method_of(path)


@pytest.mark.parametrize("path", [path for path in RECIPES if path not in TRAINING], ids=NAMES.get)
def test_a_benchmark_s_row_says_how_many_samples(path):
    [row] = [
        row
        for heading, rows in tables(FOLDER / "README.md")
        if len(heading) == 4
        for row in rows
        if f"({NAMES[path]})" in row[0]
    ]
    assert row[2] == str(menu.SETTINGS[NAMES[path]]["num_samples"])


@pytest.mark.parametrize("path", TRAINING, ids=NAMES.get)
def test_a_header_gives_an_address_and_what_was_measured(path):
    header = menu.header_of(path)
    assert re.search(
        r"https://|arXiv:|recipes/|\.yaml|grpo_demo|TinyZero|nothing published", header["Follows"]
    )
    assert "Arithmetic" in header and "Override" in header
    assert NAMES[path] in header["Run"]


# A document and its Chinese twin.
TWINS = [("README.md", "README.zh.md"), ("recipes/README.md", "recipes/README.zh.md")]


def in_english(target):
    """A link without its place in the page, to the English page."""
    return target.partition("#")[0].replace(".zh.md", ".md")


def structure(name):
    """What two languages must share: the levels of headings, commands, tables' shapes, links'
    targets, code, and the numbers in tables.
    """
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    rows = [row for _, rows in tables(REPOSITORY / name) for row in rows]
    return {
        "headings": [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)],
        # Comments are translated, commands are not.
        "commands": [
            (kind, [re.split(r"\s+#|^#", line)[0].rstrip() for line in block.splitlines()])
            for kind, block in blocks
        ],
        "tables": [(len(heading), len(rows)) for heading, rows in tables(REPOSITORY / name)],
        "cells": [[sorted(re.findall(r"`[^`]+`", cell)) for cell in row] for row in rows],
        "links": [
            [in_english(target) for _, target in LINK.findall(cell)] for row in rows for cell in row
        ],
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


def test_every_data_set_that_a_recipe_makes_is_read_by_another():
    """Or stands in a comment of the recipe that could read it."""
    texts = [path.read_text(encoding="utf-8") for path in RECIPES]
    made = [settings["output_dir"] for settings in menu.SETTINGS.values() if "keep" in settings]
    assert [
        folder for folder in made if not any(f"{folder}/dataset" in text for text in texts)
    ] == []


def test_writing_the_pages_says_which_changed_and_touches_no_other(tmp_path, monkeypatch, capsys):
    pages = {name: menu.page(name) for name in menu.PAGES}
    monkeypatch.setattr(menu, "page", pages.get)
    monkeypatch.setattr(menu, "FOLDER", tmp_path)
    old, same = menu.PAGES
    (tmp_path / old).write_text("old", encoding="utf-8")
    (tmp_path / same).write_text(pages[same], encoding="utf-8")
    (tmp_path / same).chmod(0o400)
    before = (tmp_path / same).stat().st_mtime_ns
    menu.main()
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / old}: written anew",
        f"{tmp_path / same}: unchanged",
    ]
    assert (tmp_path / old).read_text(encoding="utf-8") == pages[old] and (
        tmp_path / same
    ).stat().st_mtime_ns == before


def test_the_readme_counts_recipes_by_status():
    """Each row of its table, and of the one in docs/results.md, names files and folders, and counts
    what is measured, reported, neither.
    """
    status = {}
    for path in TRAINING:
        expected = menu.header_of(path)["Menu"].split(" | ")[2]
        known = [word for word in ("measured", "reported") if expected.startswith(word)]
        status[NAMES[path]] = known[0] if known else "neither"
    for name in ("README.md", "README.zh.md", "docs/results.md"):
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        (rows,) = (rows for heading, rows in tables(REPOSITORY / name) if "`r1/`" in str(rows))
        left = dict(status)
        for cells in rows:
            starts = tuple(word.rstrip("*") for word in re.findall(r"`([^`]+)`", cells[0]))
            kinds = [left.pop(recipe) for recipe in list(left) if recipe.startswith(starts)]
            counts = [kinds.count(kind) for kind in ("measured", "reported", "neither")]
            assert list(map(int, re.findall(r"\d+", cells[-1]))) == counts, (name, cells[0])
        assert left == {}
        measured = list(status.values()).count("measured")
        for note in text.splitlines():
            if note.startswith(("> **Status", "> **现状")):
                assert {str(measured), str(len(status))} <= set(re.findall(r"\d+", note))
