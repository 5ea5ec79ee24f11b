"""What all sandboxes share: the interface, the runner inside, and the loop that watches it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from r1_recipes.common.errors import RecipeError

READY = b"\x06"  # the first byte that a sandbox sends; from then on the program runs, and its time
START_SECONDS = 60.0  # limit to start and to end; bubblewrap takes milliseconds and a container a second if the machine is idle
WALL_FACTOR = 2  # wall-clock seconds per processor second of a call's limit: a program that sleeps ends too
MAX_THREADS = MAX_FILES = 64
STACK_BYTES = 64 << 20  # of the main thread: deep recursion through functools.lru_cache overflows the usual 8 MB
# The whole environment of a program. Hashes have no random seed, so that a program always gets the same verdict.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}


class SandboxError(RuntimeError):
    """The sandbox itself failed, so nothing is known about the program."""


@dataclass(frozen=True)
class Call:
    """One run of a program, or of one function of it with arguments and result as JSON."""

    stdin: bytes
    output_bytes: int  # a program that writes more is killed
    function: str | None = None  # function, or method of a class Solution; Python only
    cpu_seconds: int = 20  # of all threads together
    memory_mb: int = 256  # address space; in a container memory


@dataclass(frozen=True)
class Outcome:
    """Result of one call; ``timeout`` stands for a limit of time or memory, ``output`` for one of output."""

    status: Literal["ok", "error", "timeout", "output"]
    output: bytes = b""
    detail: str = ""  # kind of the error, for people: it comes from the program and is not to be trusted


class Sandbox(ABC):
    """A place to run hostile programs."""

    name: str
    allowed: ClassVar[frozenset[str]] = frozenset()  # what TRIAL may find
    remedy: ClassVar[str] = ""  # what a refusal ends with

    @abstractmethod
    def run(self, code: str, calls: Iterable[Call]) -> Generator[Outcome, None, None]:
        """Run the program once per call, in order, until the generator is closed. :class:`SandboxError`: the sandbox itself failed."""

    def check(self) -> None:
        """Run a program that tries to get out; :class:`RecipeError`: it got out, or no program can be run."""
        try:
            if found := self.trial() - self.allowed:
                raise SandboxError(f"it does not hold here: {'; '.join(sorted(found))}")
        except SandboxError as error:
            raise RecipeError(f"code_provider: {self.name}: {error}. {self.remedy}".strip()) from error

    def trial(self) -> set[str]:
        with tempfile.NamedTemporaryFile(prefix="r1-recipes-trial-") as secret:
            os.chmod(secret.name, 0o644)
            call = Call(f"{secret.name}\n".encode(), output_bytes=1 << 16)
            (outcome,) = self.run(TRIAL, [call])
        try:
            return set(json.loads(outcome.output))
        except (ValueError, TypeError):
            raise SandboxError(f"a program for a trial ended with {outcome.status!r} {outcome.detail}".rstrip()) from None


# Python 3.8 or newer. It limits itself for good, then becomes the program: everything in its memory is the program's to change.
RUNNER = r"""
def main():
    import json, os, resource, sys

    # Nothing after the job may be read: the rest of stdin is the program's.
    size, text = int(os.read(0, 10)), b""
    while len(text) < size:
        text += os.read(0, size - len(text)) or os._exit(1)
    job = json.loads(text)
    for name, value in job["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        # Soft and hard, so that the kernel kills: the first process of a sandbox ignores a mere signal.
        resource.setrlimit(kind, (value, value))
    os.write(1, b"\x06")
    # The kind of an error goes to 3, a function's result to 4. What the program writes to stderr is dropped.
    os.dup2(2, 3)
    os.dup2(1, 4)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 2)
    if job["function"]:
        os.dup2(null, 1)
    os.closerange(5, 4096)
    sys.argv = ["solution.py"]
    scope = sys.modules["__main__"].__dict__
    scope.pop("main")
    dumps, loads, write = json.dumps, json.loads, os.write
    try:
        exec(compile(job["code"], "solution.py", "exec"), scope)
        if job["function"]:
            function = scope.get(job["function"])
            if function is None:
                function = getattr(scope["Solution"](), job["function"])
            write(4, dumps(function(*loads(sys.stdin.read()))).encode())
    except SystemExit:
        raise
    except BaseException as error:
        write(3, type(error).__name__.encode("ascii", "replace")[:60])
        os._exit(1)


main()
"""

# Prints what it could do.
TRIAL = r"""
import json, os, socket, threading

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
attempt("the environment has other names", lambda: set(os.environ) - {"PATH", "PYTHONHASHSEED", "LC_ALL", "PWD", "LC_CTYPE"})
attempt("the program is root", lambda: os.getuid() == 0)
attempt("the program can start processes", lambda: os.fork() or os._exit(0))
threading.Thread(target=int).start()
print(json.dumps(sorted(found)))
"""


def payload(code: str, call: Call, **more_limits: int) -> bytes:
    """What :data:`RUNNER` reads: the length of the job, the job, and the program's own stdin."""
    bounds = {
        "RLIMIT_CPU": call.cpu_seconds,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NOFILE": MAX_FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_SIGPENDING": MAX_FILES,  # signals that wait; the kernel's default grows with its memory
        "RLIMIT_STACK": STACK_BYTES,
        "RLIMIT_AS": call.memory_mb << 20,
    }
    job = json.dumps({"code": code, "function": call.function, "limits": bounds | more_limits}).encode("ascii")
    return b"%010d" % len(job) + job + call.stdin


@contextlib.contextmanager
def input_file(data: bytes) -> Iterator[int]:
    """A descriptor that reads ``data`` and cannot write. A file, so that a program that never reads blocks no writer."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with open(file.name, "rb") as reader:
            yield reader.fileno()


def watch(
    argv: Sequence[str],
    data: bytes,
    call: Call,
    kill: Callable[[subprocess.Popen[bytes]], None],  # ends everything in the sandbox
    spare_seconds: float = 0.0,  # if the sandbox itself ends the program and takes long to clean up
    **options: Any,  # for subprocess.Popen
) -> Outcome:
    """Run a sandbox's command line on ``data`` with bounded output and time, and leave nothing behind."""
    pipe = subprocess.PIPE
    try:
        with input_file(data) as stdin:  # a session of its own, since Ctrl-C is for the trainer
            process = subprocess.Popen(argv, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True, **options)
    except OSError as error:  # no process, memory, disk or descriptor left, or the command is gone
        raise SandboxError(f"{argv[0]} cannot be started: {error}") from error
    assert process.stdout and process.stderr
    with process.stdout as stdout, process.stderr as stderr:
        try:
            output, ended = _read(stdout.fileno(), call.output_bytes, WALL_FACTOR * call.cpu_seconds + spare_seconds)
            if ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(START_SECONDS)
        finally:
            if process.poll() is None:
                kill(process)
                process.kill()
                process.wait()
        os.set_blocking(stderr.fileno(), False)
        lines = (stderr.read(65536) or b"").decode("utf-8", "replace").strip().splitlines() or [""]
    detail = "".join(char if char.isprintable() else "?" for char in lines[-1])[:200]
    return read_outcome(output, process.returncode if ended else None, call.output_bytes, detail)


def _read(descriptor: int, limit: int, seconds: float) -> tuple[bytes, bool]:
    """What the sandbox writes, up to a little over ``limit`` bytes, and whether it ended by itself."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    output = bytearray()
    deadline = time.monotonic() + START_SECONDS
    while len(output) <= len(READY) + limit and (left := deadline - time.monotonic()) > 0:
        if poller.poll(1000 * left):
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return bytes(output), True
            if not output:
                deadline = time.monotonic() + seconds
            output += chunk
    return bytes(output), False


def read_outcome(output: bytes, exit_status: int | None, limit: int, detail: str = "") -> Outcome:
    """Turn what a sandbox wrote, and its exit status as a shell counts it (``None``: killed from outside), into an outcome."""
    if not output.startswith(READY):
        raise SandboxError(detail or f"it did not start a program within {START_SECONDS:g} s (exit status {exit_status})")
    output = output.removeprefix(READY)
    if len(output) > limit:
        return Outcome("output")
    if exit_status in (None, 128 + signal.SIGXCPU, 128 + signal.SIGKILL):  # the hard limit of processor time is a SIGKILL
        return Outcome("timeout", output)
    return Outcome("ok", output) if exit_status == 0 else Outcome("error", output, detail)
