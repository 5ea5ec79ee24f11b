"""The way of one row, from a file to its reward: how many functions of ours a reader follows."""

import json
import re
import sys
from pathlib import Path

import pytest

import r1_recipes
import r1_recipes.data.rows  # imported at the first row; importing is not the way
from r1_recipes.data import load_dataset
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs
from tests.conftest import REPOSITORY

SOURCE = Path(r1_recipes.__file__).parent
# Ceilings, reached on the way to 20 functions in 9 files. Lower them when the way gets shorter.
MAX_FUNCTIONS, MAX_FILES = 64, 19
MAX_OUTSIDE_VERIFICATION, MAX_FILES_OUTSIDE_VERIFICATION = 51, 14


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Load the row, judge a right completion, and return ``(file, function)`` as first called."""
    folder = tmp_path_factory.mktemp("way")
    (folder / "row.jsonl").write_text(json.dumps({"question": "3 + 4?", "answer": "#### 7"}))
    # JSON is YAML.
    settings = {
        "model_name_or_path": "none",
        "dataset_name": str(folder / "row.jsonl"),
        "mapper": "gsm8k",
        "response_format": "think_answer",
        "reward_funcs": ["accuracy"],
        "output_dir": str(folder / "run"),
        "use_cpu": True,
        "bf16": False,
    }
    (folder / "way.yaml").write_text(json.dumps(settings))
    recipe = load_recipe([str(folder / "way.yaml")], "grpo")
    [accuracy] = get_reward_funcs(["accuracy"], "think_answer")
    calls = {}

    def note(frame, event, argument):
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and path.is_relative_to(SOURCE) and not name.endswith(">"):
            calls.setdefault((path.relative_to(SOURCE).as_posix(), name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        rows, _ = load_dataset(recipe.script, accuracy.response_format, "grpo")
        text = "<think>3 and 4 are 7.</think>\n<answer>7</answer>"
        values = accuracy(
            prompts=rows["prompt"][:],
            completions=[[{"role": "assistant", "content": text}]],
            completion_ids=[[1]],
            solution=rows["solution"][:],
            log_extra=lambda column, entries: None,
            log_metric=lambda name, value: None,
        )
    finally:
        sys.setprofile(before)
    assert rows["solution"][:] == ["7"] and values == [1.0]
    return [*calls]


def test_the_way_of_one_row_is_short(followed):
    outside = [(file, name) for file, name in followed if not file.startswith("verification/")]
    counts = [len(followed), len({file for file, _ in followed})]
    counts += [len(outside), len({file for file, _ in outside})]
    allowed = [MAX_FUNCTIONS, MAX_FILES, MAX_OUTSIDE_VERIFICATION, MAX_FILES_OUTSIDE_VERIFICATION]
    assert all(count <= most for count, most in zip(counts, allowed, strict=True)), (
        counts,
        followed,
    )


def test_the_page_lists_the_functions_in_order(followed):
    """What the page must hold is in the message of the failure."""
    listed = {}
    for file, name in followed:
        if not file.startswith("verification/"):
            listed.setdefault(file, []).append(f"`{name}`")
    listed["verification/"] = ["`judge`", "and what it calls"]
    lines = [f"| `{file}` | {', '.join(names)} |" for file, names in listed.items()]
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert ("verification/__init__.py", "judge") in followed
    table = "\n".join(lines)
    assert table in page, table


def test_what_the_page_points_at_is_there():
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| `([\w/]+\.py)`: (.*)\|$", page, re.MULTILINE)
    assert len(rows) > 8
    for file, names in rows:
        source = (SOURCE / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(?:def|class) {name}\b", source, re.MULTILINE), (file, name)
