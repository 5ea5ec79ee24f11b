"""Write the tables of README.md and README.zh.md from the recipes' headers and settings: ``make
menu``.

Which recipe stands in which table, and in which order, the pages themselves say; a row's cells come
from the recipe. Its header's ``Menu:`` and ``菜单:`` hold what it is, whom it follows and what to
expect, in each language.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from r1_recipes.extras.catalog.header import hardware_of, header_of

FOLDER = Path(__file__).parent
PAGES = {"README.md": "Menu", "README.zh.md": "菜单"}
ROW = re.compile(r"^\| \[[^\]]+\]\(([\w/]+\.yaml)\) \|(?:[^|\n]*\|){8}$", re.MULTILINE)
CHINESE = [
    (r"(\d+) CPU cores", r"\1 个 CPU 核"),
    (r"(\d+) minutes", r"\1 分钟"),
    (r"(\d+) hours? on (\d+) (\w+), reported", r"\2 张 \3 上 \1 小时（对方公布）"),
    (r"not reported", "未公布"),
]


RECIPES = {
    path.relative_to(FOLDER).as_posix(): path
    for path in sorted(FOLDER.rglob("*.yaml"))
    if path.parent.name != "pipelines"
}
SETTINGS = {
    name: yaml.safe_load(path.read_text(encoding="utf-8")) for name, path in RECIPES.items()
}


def named(value: str) -> str:
    """Return the last name of a model or data set, or a link to the recipe that makes it."""
    makers = [
        name
        for name, its in SETTINGS.items()
        if (folder := its.get("output_dir")) and f"{value}/".startswith(f"{folder}/")
    ]
    if makers:
        return f"[{makers[0].removesuffix('.yaml')}]({makers[0]})"
    if value.endswith("/train.parquet"):
        return "/".join(value.split("/")[-2:])
    return value.removeprefix("embedded:").rpartition("/")[2]


def data_of(settings: dict[str, Any]) -> str:
    """Return the names of a recipe's data sets."""
    mixture = settings.get("dataset_mixture")
    ids = [part["id"] for part in mixture["datasets"]] if mixture else [settings["dataset_name"]]
    return ", ".join(dict.fromkeys(map(named, ids)))


def row_of(name: str, field: str) -> str:
    """Return a recipe's row; ``field`` is the header's, and so the language."""
    header, settings = header_of(RECIPES[name]), SETTINGS[name]
    what, follows, expected = (cell.strip() for cell in header[field].split(" | "))
    hardware = hardware_of(header)
    minutes = re.search(r"about (\d+ minutes)", header["Hardware"])
    time = (
        header["Time"].partition(";")[0]
        if "Time" in header
        else minutes[1]
        if minutes
        else "not reported"
    )
    command = re.search(
        r"(?:accelerate_configs/(\w+)\.yaml ((?:--\w+ " r"\w+ )*))?-m r1_recipes\.(\w+)",
        header["Run"],
    )
    run = f"`{command[3]}`" + (
        (f", `{command[1]}{' ' + command[2].strip() if command[2] else ''}`") if command[1] else ""
    )
    for english, chinese in CHINESE if field == "菜单" else ():
        hardware, time = re.sub(english, chinese, hardware), re.sub(english, chinese, time)
    cells = [
        f"[{name.removesuffix('.yaml')}]({name})",
        what,
        follows,
        named(settings["model_name_or_path"]),
        data_of(settings),
    ]
    return "| " + " | ".join([*cells, hardware, time, expected, run]) + " |"


def page(name: str) -> str:
    """Return a page with the rows of its tables written anew."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return ROW.sub(lambda row: row_of(row[1], PAGES[name]), text)


def main() -> None:
    """Write the pages that change, and say which."""
    for name in PAGES:
        path, text = FOLDER / name, page(name)
        changed = text != path.read_text(encoding="utf-8")
        if changed:
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}: {'written anew' if changed else 'unchanged'}\n")


if __name__ == "__main__":
    main()
