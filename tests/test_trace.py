"""How many functions of this package a reader passes: a recipe to its arguments, a row to its
prompt.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r1_recipes import grpo
from r1_recipes.data import load_dataset
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe

REPOSITORY = Path(__file__).parents[1]
SOURCE = str(REPOSITORY / "src" / "r1_recipes")


def called(call: Callable[[], Any]) -> list[str]:
    """The functions of this package that a call enters, as ``FILE:NAME``.

    Bodies of modules and classes, comprehensions and lambdas are parts of what has them.
    """
    seen: dict[str, None] = {}

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & 2 and not code.co_name.startswith("<")  # CO_NEWLOCALS
        if event == "call" and is_function and code.co_filename.startswith(SOURCE):
            seen[f"{Path(code.co_filename).relative_to(SOURCE)}:{code.co_qualname}"] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [*seen]


def check(names: list[str], functions: int, files: int) -> None:
    count = len({name.partition(":")[0] for name in names})
    assert len(names) <= functions and count <= files, "\n".join([f"{count} files", *names])


def test_the_flagship_to_its_arguments() -> None:
    """The budget is 25 in 6 files."""
    path = str(REPOSITORY / "recipes" / "gsm8k_qwen05b.yaml")
    check(called(lambda: load_recipe([path], "grpo")), 27, 9)


def test_a_row_of_gsm8k_to_its_prompt(write_recipe: Callable[..., str], tmp_path: Path) -> None:
    rows = [{"question": f"{n} + 1?", "answer": f"So {n + 1}.\n#### {n + 1}"} for n in range(9)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = load_recipe([write_recipe("grpo", dataset_name=str(path))], "grpo")
    fmt = get_response_format("think_answer")
    made: list[Any] = []
    names = called(lambda: made.append(load_dataset(recipe.script, fmt, "grpo")))
    assert len(made[0][0]) == 9
    check(names, 15, 6)


@pytest.mark.slow
def test_a_smoke_run_of_the_flagship(offline) -> None:
    """The budget is 150 in 30 files; it was 386 in 63, with tags.

    In tags a random model writes no answer. In a box any text may hold one, which is compared
    (170 in 32).
    """
    path = str(REPOSITORY / "recipes" / "gsm8k_qwen05b.yaml")
    tags = ["--response_format", "think_answer", "--reward_funcs", "accuracy", "format"]
    tags += ["--reward_weights", "1", "0.1"]
    check(called(lambda: grpo.main([path, "--smoke", *tags])), 156, 31)
