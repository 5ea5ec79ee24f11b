"""How far one row of GSM8K travels: which functions of ours it passes, from its file to its reward."""

import json
import re
import sys
from pathlib import Path

import r1_recipes
from r1_recipes import verification
from r1_recipes.data import load_dataset
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.rewards import get_reward_funcs
from tests.conftest import REPOSITORY

SOURCE = Path(r1_recipes.__file__).parent
ROW = {"question": "3 + 4?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}
COMPLETION = "<think>\n3 + 4 = 7\n</think>\n<answer>\n7\n</answer>"
# 20 functions in 9 files is where this is to go. Lower it when a step goes; never raise it.
MAX_FUNCTIONS = 86
MAX_FILES = 21


def traced(call):
    """What a call returns, and the functions of ours that it passes, as (file, name)."""
    passed = {}

    def note(frame, event, argument):
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE) and not code.co_name.startswith("<"):
            passed[path.relative_to(SOURCE).as_posix(), code.co_qualname] = True

    sys.setprofile(note)
    try:
        return call(), list(passed)
    finally:
        sys.setprofile(None)


def test_a_row_of_gsm8k_reaches_its_reward(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n", encoding="utf-8")
    fmt = get_response_format("think_answer")
    script = GRPORecipeArguments(dataset_name=str(path), mapper="gsm8k", reward_funcs=["accuracy"])
    (accuracy,) = get_reward_funcs(["accuracy"], "think_answer")
    verification.start()
    (rows, _), loading = traced(lambda: load_dataset(script, fmt, "grpo"))
    said = [[{"role": "assistant", "content": COMPLETION}]]
    rewards, judging = traced(
        lambda: accuracy(prompts=[rows[0]["prompt"]], completions=said, solution=rows["solution"])
    )
    assert rewards == [1.0] and rows[0]["solution"] == "7"
    passed = list(dict.fromkeys([*loading, *judging]))
    files = list(dict.fromkeys(file for file, _ in passed))
    listing = "\n".join(f"{file}  {name}" for file, name in passed)
    assert len(passed) <= MAX_FUNCTIONS, listing
    assert len(files) <= MAX_FILES, files
    # The page that shows the way names each file, and the two figures.
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## The way of one row")[1].split("\n## ")[0]
    assert f"{MAX_FUNCTIONS} functions in {MAX_FILES} files" in section
    named = set(re.findall(r"`([\w/]+\.py)`", section))
    folders = set(re.findall(r"`([\w/]+/)`", section))
    assert [
        file
        for file in files
        if file not in named and not any(file.startswith(folder) for folder in folders)
    ] == []
