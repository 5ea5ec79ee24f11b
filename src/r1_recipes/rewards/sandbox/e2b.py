"""E2B (https://e2b.dev): a hosted virtual machine for each program, by key. Not tried against the live service yet."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.rewards.sandbox.base import READY, RUNNER, START_SECONDS, WALL_FACTOR, Call, Limits, Outcome, Program, SandboxError, payload

logger = logging.getLogger(__name__)

TEMPLATE = "code-interpreter-v1"
"""E2B's own template with Python, the one open-r1 uses; ``code_image`` names another."""

# Of the pipeline the first command is the program, whose exit status is what counts.
_COMMAND = (
    'timeout -s KILL {seconds} python3 -s -B -c "$(cat /tmp/runner.py)" < /tmp/payload 2>/dev/null | head -c {size} | base64 -w0; '
    "exit ${{PIPESTATUS[0]}}"
)


@dataclass
class E2B:
    """One virtual machine a program, without internet access; its calls run there one after the other.

    Attributes:
        template: of E2B; ``None``: :data:`TEMPLATE`.
    """

    template: str | None = None
    name: str = "e2b"
    _checked: bool = False

    def check(self) -> None:
        if self._checked:
            return
        if importlib.util.find_spec("e2b") is None:
            raise RecipeError("code_provider: e2b: its client is not installed; pip install e2b")
        if not os.environ.get("E2B_API_KEY"):
            raise RecipeError("code_provider: e2b: the environment variable E2B_API_KEY is not set; or use code_provider: bubblewrap")
        try:
            (outcome,) = self.run(Program("print(input())"), [Call(b"trial\n", 100)], Limits(cpu_seconds=20, memory_mb=256))
        except SandboxError as error:
            raise RecipeError(f"code_provider: e2b: {error}") from error
        if (outcome.status, outcome.output) != ("ok", b"trial\n"):
            raise RecipeError(f"code_provider: e2b: a program for a trial ended with {outcome.status!r} in template {self._template!r}")
        self._checked = True

    @property
    def _template(self) -> str:
        return self.template or TEMPLATE

    def run(self, program: Program, calls: Iterable[Call], limits: Limits) -> Iterator[Outcome]:
        import e2b

        if program.language != "python":
            raise SandboxError(f"e2b runs Python here and no {program.language}")
        try:
            # Where this process dies, the service ends the machine by itself.
            machine = e2b.Sandbox.create(template=self._template, timeout=300, allow_internet_access=False)
        except Exception as error:  # no credit, no network, a wrong key: the client's own words say which
            raise SandboxError(f"no machine: {first_line(error)}") from error
        try:
            machine.files.write("/tmp/runner.py", RUNNER)
            for call in calls:
                machine.files.write("/tmp/payload", payload(program, call, limits, own_user=False))
                yield self._call(machine, call, limits)
        except SandboxError:
            raise
        except Exception as error:
            raise SandboxError(f"the machine failed: {first_line(error)}") from error
        finally:
            try:
                machine.kill()
            except Exception as error:  # a reward never raises, and the service ends the machine by itself
                logger.warning("e2b: a machine could not be ended: %s", first_line(error))

    @staticmethod
    def _call(machine: object, call: Call, limits: Limits) -> Outcome:
        import base64

        import e2b

        seconds = WALL_FACTOR * limits.cpu_seconds
        command = _COMMAND.format(seconds=seconds, size=call.output_bytes + len(READY) + 1)
        try:
            result = machine.commands.run(command, timeout=START_SECONDS + seconds)
        except e2b.CommandExitException as error:
            result = error
        except e2b.TimeoutException:
            return Outcome("timeout")
        output = base64.b64decode(result.stdout)
        if not output.startswith(READY):
            raise SandboxError(f"no program was started (exit status {result.exit_code})")
        output = output[len(READY) :]
        if len(output) > call.output_bytes:
            return Outcome("output")
        if result.exit_code in (124, 128 + 9, 128 + 24):
            return Outcome("timeout", output)
        return Outcome("ok" if result.exit_code == 0 else "error", output)
