"""What a test of the core uses that is no part of the core."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import r1_recipes


def needs(extra: str) -> pytest.MarkDecorator:
    """Mark a test that uses an extra; where the extra is deleted, the test is skipped."""
    folder = Path(r1_recipes.__file__).parent / "extras" / extra
    return pytest.mark.skipif(not folder.is_dir(), reason=f"needs the extra {extra}")


_EXTRA_OF_MAPPER = {
    "arithmetic": "reasoning_gym",
    "countdown": "countdown",
    "environment": "agents",
    "image_question": "images",
    "multiple_choice": "choices",
    "reasoning_gym": "reasoning_gym",
    "reverse_text": "reverse_text",
    "summary": "summary",
    "verifiable_code": "code",
    "verifiers": "verifiers",
}


def by_mapper(cases: Iterable[Any]) -> list[Any]:
    """Mark each case of a parametrized test that names a mapper of an extra."""
    marked = []
    for case in cases:
        values = (case,) if isinstance(case, str) else tuple(case)
        names = [value for value in values if isinstance(value, str)]
        extra = next((_EXTRA_OF_MAPPER[name] for name in names if name in _EXTRA_OF_MAPPER), None)
        if case == "verl":  # one of its example rows is a puzzle
            extra = "countdown"
        marked.append(pytest.param(*values, marks=needs(extra) if extra else ()))
    return marked
