"""The public cases of test_cases.py once more, each by its command: what the model is asked, or what
the refusal says.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from r1_recipes import grpo, sft

TALK = [
    {"role": "system", "content": "You are a pirate."},
    {"role": "user", "content": "My number is 7."},
    {"role": "assistant", "content": "Noted: 7."},
    {"role": "user", "content": "Add 1 to it."},
]
ASKED = {"role": "user", "content": "1+2?"}
STORY = "SUBREDDIT: r/x\nPOST: a story\nTL;DR:"
COLUMNS = {"prompt_column": "question", "solution_column": "answer"}
WRAPPED = "<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n<think>"

PROMPTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = {
    "earlier turns": ({"prompt": TALK, "solution": "8"}, {}, TALK),
    "prompts alone": ({"prompt": STORY}, {}, [{"role": "user", "content": STORY}]),
    "a list of one answer": ({"question": "1+2?", "answer": ["3"]}, COLUMNS, [ASKED]),
    "ms-swift": ({"messages": [ASKED], "solution": "3"}, {"prompt_column": "messages"}, [ASKED]),
    "an empty explanation": (
        {"question": "1+2?", "answer": "3", "why": ""},
        COLUMNS | {"reasoning_column": "why"},
        [ASKED],
    ),
}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a template inside": (
        {"prompt": WRAPPED, "solution": "3"},
        {},
        "Fix: the column without templ",
    ),
    "two answers": ({"question": "1+2?", "answer": ["3", "three"]}, COLUMNS, "holds 2 values"),
    "a shell's variable": ({"prompt": "1"}, {"run_name": "x${NO_SUCH}"}, "run_name: ${NO_SUCH}"),
    "Axolotl": ({}, {"base_model": "x", "micro_batch_size": 1}, "keys of Axolotl"),
    "LLaMA-Factory": ({}, {"stage": "sft", "cutoff_len": 512}, "keys of LLaMA-Factory"),
}
TARGETS = {
    "plain": {"prompt": [ASKED], "completion": [{"role": "assistant", "content": "3."}]},
    "reasoned": {
        "messages": [ASKED, {"role": "assistant", "content": "3", "reasoning_content": "1, 2"}]
    },
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
    row, keys, prompt = PROMPTS[name]
    grpo.main([written("grpo", row, mapper="prompt_solution", log_completions=True, **keys)])
    (table,) = (tmp_path / "run" / "completions").iterdir()
    assert pyarrow.parquet.read_table(table).to_pylist()[0]["prompt"] == prompt


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_or_a_file_is_refused(
    written: Callable[..., str], capsys: pytest.CaptureFixture, name: str
) -> None:
    row, keys, said = REFUSED[name]
    with pytest.raises(SystemExit) as refused:
        grpo.main([written("grpo", row, mapper="prompt_solution", **keys)])
    assert refused.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("name", TARGETS)
def test_a_row_is_learned(written: Callable[..., str], tmp_path: Path, name: str) -> None:
    sft.main([written("sft", TARGETS[name], mapper="auto")])
    assert (tmp_path / "run" / "model.safetensors").exists()
