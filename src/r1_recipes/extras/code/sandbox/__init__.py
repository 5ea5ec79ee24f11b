"""What a sandbox is, and the trial that each must pass. It gets a program and its inputs, never the
expected outputs.
"""

import os
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal


class SandboxError(RuntimeError):
    """The sandbox itself failed, so nothing is known about the program."""


@dataclass(frozen=True)
class Call:
    """One run of a program, or of one function of it with arguments and result as JSON."""

    stdin: bytes
    output_bytes: int  # a program that writes more is killed
    function: str | None = None  # function, or method of a class Solution; Python only
    cpu_seconds: int = 20  # of all threads together
    memory_mb: int = 256  # address space


@dataclass(frozen=True)
class Outcome:
    """Result of one call; ``timeout`` stands for a limit of time or memory, ``output`` for one of
    output.
    """

    status: Literal["ok", "error", "timeout", "output"]
    output: bytes = b""
    detail: str = (
        ""  # kind of the error, for people: it comes from the program and is not to be trusted
    )


class Sandbox(ABC):
    remedy: ClassVar[str] = ""  # what a refusal ends with

    @abstractmethod
    def run(self, code: str, call: Call) -> Outcome:
        """Run the program once. :class:`SandboxError`: the sandbox itself failed."""

    def check(self) -> None:
        """Run a program that tries to get out; :class:`SandboxError`: it got out, or no program can
        be run.
        """
        with tempfile.NamedTemporaryFile(prefix="r1-recipes-trial-") as secret:
            os.chmod(secret.name, 0o644)
            outcome = self.run(TRIAL, Call(f"{secret.name}\n".encode(), output_bytes=1 << 16))
        if outcome != Outcome("ok", b"held\n"):
            said = outcome.output.decode("utf-8", "replace").strip()[:500]
            raise SandboxError(f"it does not hold here: {said or outcome.detail or outcome.status}")


# Prints what it could do.
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
attempt("the program can start processes", lambda: os.fork() or os._exit(0))
threading.Thread(target=int).start()
print("; ".join(sorted(found)) or "held")
"""
