"""Every name of an extra that a recipe or a command line may use, and where it is defined.

A place is ``module:attribute`` below ``r1_recipes.extras``, and is imported when it is used. Your
own reward, mapper, tool or environment needs no entry: write ``my_module:NAME`` or
``my_file.py:NAME`` in the recipe.
"""

import importlib
from typing import Any

NAMES: dict[str, dict[str, str]] = {
    "reward": {
        "answer_match": "choices:answer_match",
        "binary_code": "code:binary_code",
        "choice_match": "choices:choice_match",
        "code": "code:code",
        "code_format": "code:code_format",
        "countdown": "countdown:countdown",
        "exact_match": "choices:exact_match",
    },
    "mapper": {
        "countdown": "countdown:countdown_row",
        "environment": "agents.rows:environment_row",
        "image_question": "images:image_question",
        "multiple_choice": "choices:multiple_choice",
        "openthoughts": "datasets:openthoughts",
        "r1_distill_sft": "datasets:r1_distill_sft",
        "safe_rlhf": "datasets:safe_rlhf",
        "sums": "sums:sums",
        "verifiable_code": "code:verifiable_code",
        "verl": "datasets:verl",
    },
    "tool": {
        "calculator": "tools:calculator",
        "python": "tools:python",
    },
    "environment": {},
    # The first part of dataset_name, and what makes its rows: (rest, split, task_config) -> Dataset
    "dataset": {
        "countdown": "countdown:countdown_rows",
        "environment": "agents.rows:environment_rows",
        "sums": "sums:sums_rows",
    },
    # A model_name_or_path, and what returns its folder
    "model": {"embedded:SmolLM2-135M-Instruct": "demo:smollm2_checkpoint"},
}


def load(kind: str, name: str) -> Any:
    """Import what a name stands for."""
    module, _, attribute = NAMES[kind][name].partition(":")
    return getattr(importlib.import_module(f"r1_recipes.extras.{module}"), attribute)
