from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from r1_recipes.extras.code.sandbox import SandboxError
from r1_recipes.extras.code.sandbox import bubblewrap as module
from r1_recipes.extras.code.sandbox.bubblewrap import Bubblewrap


@pytest.fixture(scope="module")
def bubblewrap() -> Bubblewrap:
    found = Bubblewrap()
    try:
        found.check()
    except SandboxError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is first on the path, for commands that are made up."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    # Root would hand over to nobody, who cannot read pytest's folders.
    monkeypatch.setattr(module, "_as_nobody", list)
    module.interpreter.cache_clear()
    yield folder
    module.interpreter.cache_clear()
