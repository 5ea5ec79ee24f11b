"""Docstrings start with a capital letter, and those of functions with an imperative verb."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY

SOURCE = REPOSITORY / "src" / "r1_recipes"
# Its docstring begins with its command, of which --help shows the rest.
NOT_DONE = ("extras/init/__main__.py",)
# Add a verb here when a docstring needs a new one.
VERBS = set(
    re.findall(
        r"\w+",
        """
    Accept Add Answer Apply Ask Assign Build Call Change Check Clip Close Collect Combine
    Compare Complete Compute Concatenate Connect Convert Copy Count Create Cut Decide Delete
    Derive Describe Destroy Divide Download Draw Drop End Escape Estimate Evaluate Explain Find
    Fit Flag Format Generate Get Give Group Guess Handle Hide Ignore Import Initialize Join
    Judge Keep Kill Name Work Leave Let Limit List Load Lock Log Look Make Map Mark Mask Match Measure
    Merge Move Open Pack Parse Pass Play Prefix Prepare Preserve Print Put Quote Raise Read
    Reason Receive Record Refresh Refuse Register Remember Remove Rename Render Replace Report
    Request Require Reset Resolve Restore Return Rewrite Run Sample Save Say Score Search Select
    Send Set Shorten Show Skip Sort Split Start Stop Strip Sum Tell Train Translate Try Turn
    Undo Unlock Update Use Verify Wait Warn Write Yield
    """,
    )
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield node, text


def faults(source: str) -> list[str]:
    found = []
    for node, text in documented(ast.parse(source)):
        word = text.split()[0].rstrip(".,:")
        line = getattr(node, "lineno", 1)
        if not text[0].isupper():
            found.append(f"{line}: starts with {word!r}, not with a capital letter")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and word not in VERBS:
            found.append(f"{line}: {node.name}: starts with {word!r}, not with a verb of VERBS")
    return found


def test_what_is_a_fault():
    assert faults('"""a module."""\n\ndef f():\n    """The value."""\n') == [
        "1: starts with 'a', not with a capital letter",
        "3: f: starts with 'The', not with a verb of VERBS",
    ]
    assert faults('"""A module."""\n\nclass A:\n    """A class."""\n\ndef f(): pass\n') == []
    assert faults('def f():\n    """Return: nothing."""\n') == []


@pytest.mark.parametrize(
    "path",
    [
        name
        for name in sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))
        if not name.startswith(NOT_DONE)
    ],
)
def test_docstrings_start_with_a_capital_letter_and_a_verb(path):
    assert faults((SOURCE / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("place", NOT_DONE)
def test_exceptions_exist(place):
    assert (SOURCE / place).exists()
