"""E2B against a stand-in for its client."""

from __future__ import annotations

import base64
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards.sandbox import E2B
from r1_recipes.rewards.sandbox.base import READY, Call, SandboxError
from tests.rewards.sandbox import run


class TestE2B:
    @pytest.fixture
    def service(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """The client's calls that are used here, as e2b 2.63 has them; it runs nothing and answers what a trial expects."""
        seen: list[Any] = []

        class Machine:
            def __init__(self) -> None:
                self.files = self.commands = self

            def write(self, path: str, data: str | bytes) -> None:
                seen.append(("write", path, data))

            def run(self, line: str, timeout: float) -> Any:
                seen.append(("run", line))
                reply = answers.pop(0)
                if isinstance(reply, BaseException):
                    raise reply
                status, output = reply if isinstance(reply, tuple) else (0, reply)
                return types.SimpleNamespace(stdout=f"{base64.b64encode(output).decode()} {status}\n")

            def kill(self) -> None:
                seen.append(("kill",))

        def create(**options: Any) -> Machine:
            seen.append(("create", options))
            return Machine()

        module = types.ModuleType("e2b")
        module.__spec__ = importlib.machinery.ModuleSpec("e2b", None)
        module.Sandbox = types.SimpleNamespace(create=create)
        answers: list[Any] = []
        seen.append(answers)
        monkeypatch.setitem(sys.modules, "e2b", module)
        monkeypatch.setenv("E2B_API_KEY", "a-key")
        return seen

    def test_refusals(self, service, monkeypatch):
        monkeypatch.delenv("E2B_API_KEY")
        with pytest.raises(RecipeError, match="E2B_API_KEY is not set"):
            E2B().check()
        monkeypatch.delitem(sys.modules, "e2b")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(RecipeError, match="pip install e2b"):
            E2B().check()

    def test_a_machine_a_program_without_internet(self, service):
        answers, *_ = service
        answers += [READY + b'["there is a network"]\n']
        E2B().check()
        assert [entry[0] for entry in service[1:]] == ["create", "write", "write", "run", "kill"]
        assert service[1][1] == {"template": "code-interpreter-v1", "timeout": 300, "allow_internet_access": False}
        assert service[3][2].startswith(b"000")

    def test_outcomes(self, service):
        answers, *_ = service
        answers += [READY + b"7\n", (137, READY + b"half"), (1, READY), READY + b"x" * 11]
        calls = [Call(b"", 10)] * 4
        outcomes = list(E2B("mine").run("print(7)", calls))
        assert [one.status for one in outcomes] == ["ok", "timeout", "error", "output"] and outcomes[0].output == b"7\n"
        assert [entry[0] for entry in service[1:]].count("create") == 1 and service[-1] == ("kill",)

    def test_what_the_service_fails_is_not_the_programs(self, service):
        answers, *_ = service
        client = sys.modules["e2b"]
        answers += [RuntimeError("gone")]
        with pytest.raises(SandboxError, match="RuntimeError: gone"):
            run(E2B(), "print(7)")
        answers += [b""]
        with pytest.raises(SandboxError, match="did not start a program"):
            run(E2B(), "print(7)")
        # A machine that cannot be ended ends by itself; the program was judged all the same.
        machine = client.Sandbox.create()
        type(machine).kill = lambda self: 1 / 0
        client.Sandbox.create = lambda **options: machine
        answers += [READY + b"7\n"]
        assert run(E2B(), "print(7)").output == b"7\n"
        client.Sandbox.create = lambda **options: 1 / 0
        with pytest.raises(SandboxError, match="the machine failed: ZeroDivisionError"):
            run(E2B(), "print(7)")
