"""E2B (https://e2b.dev): a hosted virtual machine per program. Not tried against the live service yet."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from r1_recipes.common.errors import first_line
from r1_recipes.rewards.sandbox import base
from r1_recipes.rewards.sandbox.base import Call, Outcome, Sandbox, SandboxError

# The status is that of the pipeline's first command, the program.
_COMMAND = (
    'timeout -s KILL {seconds} python3 -s -B -c "$(cat /tmp/runner.py)" < /tmp/payload 2>/dev/null | head -c {size} | base64 -w0; '
    'echo " ${{PIPESTATUS[0]}}"'
)


@dataclass
class E2B(Sandbox):
    """One virtual machine per program, without internet access; its calls run there one after the other."""

    template: str = "code-interpreter-v1"  # of E2B, with Python; this one open-r1 uses
    name = "e2b"

    def trial(self) -> set[str]:
        if importlib.util.find_spec("e2b") is None:
            raise SandboxError("its client is not installed; pip install e2b")
        if not os.environ.get("E2B_API_KEY"):
            raise SandboxError("the environment variable E2B_API_KEY is not set; or use code_provider: bubblewrap")
        super().trial()
        return set()  # nothing of this machine is in reach, and the program's own machine ends with it

    def run(self, code: str, calls: Iterable[Call]) -> Generator[Outcome, None, None]:
        import e2b

        machine = None
        try:
            # If this process dies, the service ends the machine after 300 s.
            machine = e2b.Sandbox.create(template=self.template, timeout=300, allow_internet_access=False)
            machine.files.write("/tmp/runner.py", base.RUNNER)
            for call in calls:
                seconds = base.WALL_FACTOR * call.cpu_seconds
                machine.files.write("/tmp/payload", base.payload(code, call))
                command = _COMMAND.format(seconds=seconds, size=len(base.READY) + call.output_bytes + 1)
                output, status = machine.commands.run(command, timeout=base.START_SECONDS + seconds).stdout.split(" ")
                yield base.read_outcome(base64.b64decode(output), int(status), call.output_bytes)
        except Exception as error:  # no credit, no network, a wrong key: the client's own words say which
            raise SandboxError(f"the machine failed: {first_line(error)[:-1]}") from error
        finally:
            if machine is not None:
                with contextlib.suppress(Exception):  # the service ends it by itself
                    machine.kill()
