"""The refusal if there is no sandbox that holds; it needs none."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.code.reward import get_sandbox
from r1_recipes.extras.code.sandbox import Call, Outcome, Sandbox, SandboxError, bubblewrap
from r1_recipes.extras.code.sandbox.bubblewrap import Bubblewrap
from tests.extras.code.sandbox import command, run


class Leaky(Sandbox):
    """What ``code_provider: module:Leaky`` names in these tests."""

    outcome = Outcome("ok", b"one; two")
    tried = 0

    def run(self, code: str, call: Call) -> Outcome:
        type(self).tried += 1
        return self.outcome


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

    def test_on_another_system(self, monkeypatch):
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
        self.refused("bubblewrap does not support")

    def test_where_namespaces_are_forbidden(self, commands):
        command(
            commands,
            "bwrap",
            "import sys\nsys.exit('bwrap: setting up uid map: Permission denied')",
        )
        self.refused(
            "bubblewrap: bwrap: setting up uid map: Permission denied",
            "user namespaces",
            "--privileged",
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

    def test_a_sandbox_that_answers_nothing(self, commands):
        command(commands, "bwrap", "")
        self.refused("no program started")

    def test_one_that_talks_before_it_starts(self, commands):
        command(commands, "bwrap", "print('welcome')")
        with pytest.raises(SandboxError):
            run(Bubblewrap(), "print(1)")

    def test_a_sandbox_of_ones_own_passes_the_same_trial_once(self, monkeypatch):
        provider = f"{__name__}:Leaky"
        self.refused("does not isolate programs on this machine: one; two", provider=provider)
        for outcome, word in (
            (Outcome("ok"), "ok"),
            (Outcome("error", b"", "NameError"), "NameError"),
            (Outcome("timeout"), "timeout"),
        ):
            monkeypatch.setattr(Leaky, "outcome", outcome)
            self.refused(f"does not isolate programs on this machine: {word}", provider=provider)
        monkeypatch.setattr(Leaky, "outcome", Outcome("ok", b"held\n"))
        before = Leaky.tried
        assert isinstance(get_sandbox(provider), Leaky) and get_sandbox(provider) is get_sandbox(
            provider
        )
        assert Leaky.tried == before + 1

    def test_what_is_no_sandbox(self):
        self.refused(
            "must be a subclass of r1_recipes.extras.code.sandbox.Sandbox",
            provider="fractions:Fraction",
        )
        with pytest.raises(RecipeError, match="no module 'no_such_module'"):
            get_sandbox("no_such_module:Box")


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.ENOENT, errno.EMFILE])
def test_a_command_that_cannot_be_started_is_the_sandbox_s_failure(monkeypatch, number):
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(bubblewrap, "_command", lambda seccomp_file: ["bwrap"])
    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(SandboxError, match=f"cannot start bwrap: .*{os.strerror(number)}"):
        run(Bubblewrap(), "print(1)")
