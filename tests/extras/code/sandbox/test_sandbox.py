"""The refusal if there is no sandbox that holds; it needs none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.code.reward import get_sandbox
from r1_recipes.extras.code.sandbox import bubblewrap
from tests.extras.code.sandbox import command

pytestmark = pytest.mark.slow


class TestRefusal:
    @pytest.fixture(autouse=True)
    def untried(self) -> Iterator[None]:
        get_sandbox.cache_clear()
        yield
        get_sandbox.cache_clear()

    def refused(self, *words: str, provider: str = "bubblewrap") -> None:
        with pytest.raises(RecipeError) as refused:
            get_sandbox(provider)
        for word in (f"code_provider: {provider}", *words):
            assert word in str(refused.value)

    def test_without_bubblewrap(self, monkeypatch):
        monkeypatch.setattr(bubblewrap.shutil, "which", lambda name, **_: None)
        self.refused(
            "bwrap is not installed",
            "apt-get install bubblewrap",
            "code_provider: my_module:MySandbox",
        )

    def test_a_bubblewrap_that_holds_nothing_is_found_out(self, commands):
        """It starts the program bare, so this program is the probe's, and no other."""
        command(
            commands,
            "bwrap",
            "import os, sys\nwords = sys.argv[sys.argv.index('--') + 1:]\nos.execv(words[0], "
            "words)",
        )
        self.refused(
            "does not isolate programs",
            "a file of the host can be seen",
            "the program can start processes",
        )
