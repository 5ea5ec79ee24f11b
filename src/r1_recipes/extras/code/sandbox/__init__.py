"""The base class of sandboxes, and the test that each must pass.

A sandbox gets a program and its inputs, but never the expected outputs.
"""

import os
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal


class SandboxError(RuntimeError):
    """Raised if the sandbox itself fails, so that nothing is known about the program."""


@dataclass(frozen=True)
class Call:
    """A run of a program, or of a function in it with arguments and result as JSON."""

    stdin: bytes
    output_bytes: int  # A program that writes more is killed.
    function: str | None = None  # A function, or a method of a class Solution. Python only.
    cpu_seconds: int = 20  # For all threads together.
    memory_mb: int = 256  # Of address space.


@dataclass(frozen=True)
class Outcome:
    """The result of a call.

    ``timeout`` means that the program reached a limit of time or memory, ``output`` that it wrote
    too much.
    """

    status: Literal["ok", "error", "timeout", "output"]
    output: bytes = b""
    # The type of the error. It comes from the program, so it cannot be trusted.
    detail: str = ""


class Sandbox(ABC):
    """Base class of sandboxes."""

    remedy: ClassVar[str] = ""  # The last sentence of the error if the sandbox does not work.

    @abstractmethod
    def run(self, code: str, call: Call) -> Outcome:
        """Run the program once. Raise :class:`SandboxError` if the sandbox itself fails."""

    def check(self) -> None:
        """Run a program that tries to escape.

        Raises:
            SandboxError: The program escaped, or no program can run.
        """
        with tempfile.NamedTemporaryFile(prefix="r1-recipes-trial-") as secret:
            os.chmod(secret.name, 0o644)
            outcome = self.run(TRIAL, Call(f"{secret.name}\n".encode(), output_bytes=1 << 16))
        if outcome != Outcome("ok", b"held\n"):
            problem = outcome.output.decode("utf-8", "replace").strip()[:500]
            problem = problem or outcome.detail or outcome.status
            raise SandboxError(f"the sandbox does not isolate programs on this machine: {problem}")


# Prints what it was able to do.
TRIAL = r"""
import os, socket, threading

found = set()


def attempt(words, action):
    try:
        if action():
            found.add(words)
    except BaseException:
        pass


path = input()
attempt("a file of the host can be seen", lambda: os.stat(path))
for folder in ("", "/tmp", "/var/tmp", "/run", "/dev", "/dev/shm"):
    attempt("files can be written", lambda: open(folder + "/written", "w"))
attempt("there is a network", lambda: [name for _, name in socket.if_nameindex() if name != "lo"])
attempt("16 GB of memory can be had", lambda: bytearray(1 << 34))
names = {"PATH", "PYTHONHASHSEED", "LC_ALL", "PWD", "LC_CTYPE"}
attempt("the environment has other names", lambda: set(os.environ) - names)
attempt("the program is root", lambda: os.getuid() == 0)
threading.Thread(target=int).start()
print("; ".join(sorted(found)) or "held")
"""
