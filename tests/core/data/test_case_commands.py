"""Cases of test_cases.py by the command: what the model is asked, or what the refusal says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from r1_recipes import grpo

TALK = [
    {"role": "system", "content": "You are a pirate."},
    {"role": "user", "content": "My number is 7."},
    {"role": "assistant", "content": "Noted: 7."},
    {"role": "user", "content": "Add 1 to it."},
]
STORY = "SUBREDDIT: r/x\nPOST: a story\nTL;DR:"

PROMPTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "earlier turns": ({"prompt": TALK, "solution": "8"}, TALK),
    "prompts alone": ({"prompt": STORY}, [{"role": "user", "content": STORY}]),
}


@pytest.fixture
def written(write_recipe: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    def write(method: str, row: dict[str, Any], **keys: Any) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_text((json.dumps(row) + "\n") * 8, encoding="utf-8")
        given = {"dataset_name": str(path), "max_steps": 1, "save_strategy": "no"}
        return write_recipe(method, **{**given, **keys})

    return write


@pytest.mark.parametrize("name", PROMPTS)
def test_a_row_is_asked(written: Callable[..., str], tmp_path: Path, name: str) -> None:
    row, prompt = PROMPTS[name]
    grpo.main([written("grpo", row, mapper="prompt_solution", log_completions=True)])
    (table,) = (tmp_path / "run" / "completions").iterdir()
    assert pyarrow.parquet.read_table(table).to_pylist()[0]["prompt"] == prompt


def test_a_row_with_a_template_inside_is_refused(
    written: Callable[..., str], capsys: pytest.CaptureFixture
) -> None:
    row = {"prompt": "<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n<think>"}
    with pytest.raises(SystemExit) as refused:
        grpo.main([written("grpo", row, mapper="prompt_solution")])
    assert refused.value.code == 2
    assert "Fix: the column without templ" in capsys.readouterr().err
