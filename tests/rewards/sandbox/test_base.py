"""The refusal if there is no sandbox that holds; it needs none."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards.sandbox import Bubblewrap, Container, bubblewrap, get_sandbox
from r1_recipes.rewards.sandbox.base import Call, Outcome, Sandbox, SandboxError, watch
from tests.rewards.sandbox import command, run


class TestRefusal:
    def test_without_bubblewrap(self, monkeypatch):
        monkeypatch.setattr(bubblewrap.shutil, "which", lambda name, **_: None)
        with pytest.raises(RecipeError) as refused:
            Bubblewrap().check()
        for word in ("bwrap is not installed", "apt-get install bubblewrap", "code_provider: podman or docker", "E2B_API_KEY"):
            assert word in str(refused.value)

    def test_on_another_system(self, monkeypatch):
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
        with pytest.raises(RecipeError, match="there is none for"):
            Bubblewrap().check()

    def test_where_namespaces_are_forbidden(self, commands):
        command(commands, "bwrap", "import sys\nsys.exit('bwrap: setting up uid map: Permission denied')")
        with pytest.raises(RecipeError) as refused:
            Bubblewrap().check()
        for word in ("bubblewrap: bwrap: setting up uid map: Permission denied", "user namespaces", "--privileged"):
            assert word in str(refused.value)

    def test_a_bubblewrap_that_holds_nothing_is_found_out(self, commands):
        """It starts the program bare, so this program is the probe's, and no other."""
        command(commands, "bwrap", "import os, sys\nwords = sys.argv[sys.argv.index('--') + 1:]\nos.execv(words[0], words)")
        box = Bubblewrap()
        with pytest.raises(RecipeError) as refused:
            box.check()
        for word in ("does not hold here", "a file of the host can be seen", "the program can start processes"):
            assert word in str(refused.value)

    def test_a_sandbox_that_answers_nothing(self, commands):
        command(commands, "bwrap", "")
        with pytest.raises(RecipeError, match="did not start a program"):
            Bubblewrap().check()

    def test_one_that_talks_before_it_starts(self, commands):
        command(commands, "bwrap", "print('welcome')")
        with pytest.raises(SandboxError):
            run(Bubblewrap(), "print(1)")

    def test_each_leak_is_named_unless_it_is_allowed(self):
        class Leaky(Sandbox):
            name, allowed, found = "leaky", frozenset({"allowed"}), '["one", "two", "allowed"]'

            def missing(self) -> None:
                return None

            def run(self, code: str, calls: Iterable[Call]) -> Iterator[Outcome]:
                yield from [Outcome("ok", self.found.encode()) for _ in calls]

        box = Leaky()
        with pytest.raises(RecipeError, match="code_provider: leaky: it does not hold here: one; two"):
            box.check()
        box.found = '["allowed"]'
        box.check()
        for box.found in ("rubbish", "7", ""):
            with pytest.raises(RecipeError, match="leaky: a program for a trial ended"):
                box.check()

    def test_unknown_providers(self):
        with pytest.raises(RecipeError, match=r"unknown value 'bubblewarp'\. Did you mean 'bubblewrap'.*bubblewrap, docker, e2b, podman"):
            get_sandbox("bubblewarp")

    def test_one_sandbox_per_kind_is_tried_once(self, monkeypatch):
        tried = []
        monkeypatch.setattr(Container, "check", lambda self: tried.append(self))
        first, again, other = get_sandbox("docker", "a"), get_sandbox("docker", "a"), get_sandbox("docker", "b")
        assert first is again and tried == [first, other]
        get_sandbox.cache_clear()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.ENOENT, errno.EMFILE])
def test_a_command_that_cannot_be_started_is_the_sandbox_s_failure(monkeypatch, number):
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    call = Call(b"", 1 << 10)
    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(SandboxError, match=f"a-sandbox cannot be started: .*{os.strerror(number)}"):
        watch(["a-sandbox"], b"", call, kill=lambda process: None, env={})
