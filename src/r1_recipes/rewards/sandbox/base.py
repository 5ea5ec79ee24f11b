"""What every sandbox has in common: the interface, the runner that goes into it, and the loop that watches a process from outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

READY = b"\x06"
"""The first byte that a sandbox sends: from here on what happens is the program's doing, and its time runs."""

START_SECONDS = 60.0
"""Limit for a sandbox to come up. bubblewrap takes milliseconds and a container a second; a busy machine may take long."""

WALL_FACTOR = 2
"""Wall-clock limit of one call, in units of its processor seconds: what sleeps instead of computing ends too."""

MAX_THREADS = 64
"""Threads of one program; a process of its own it may not have at all (bubblewrap), or counts as one of these (container)."""

MAX_FILES = 64

STACK_BYTES = 64 << 20
"""Of the main thread: recursion through ``functools.lru_cache``, common in such programs, overflows the usual 8 MB and dies."""

ALLOWED_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
"""All that a program sees as its environment. Hashes without a random seed: the same program gets the same verdict."""


class SandboxError(RuntimeError):
    """The sandbox itself failed, so nothing is known about the program. The message says what it answered."""


@dataclass(frozen=True)
class Program:
    """Source text, and the language it is in as a fence of Markdown names it."""

    code: str
    language: str = "python"


@dataclass(frozen=True)
class Call:
    """One run of a program.

    Attributes:
        stdin: what it reads; with ``function``, a JSON list of arguments.
        output_bytes: of more output than this nothing is known, and the program is killed.
        function: the function (or method of a class ``Solution``) that is called, whose result is the output, as JSON, instead of
            what the program prints. Python only.
    """

    stdin: bytes
    output_bytes: int
    function: str | None = None


@dataclass(frozen=True)
class Limits:
    """Of one call.

    Attributes:
        cpu_seconds: whole seconds of processor time, all threads together; the wall clock allows :data:`WALL_FACTOR` times as many.
        memory_mb: address space (bubblewrap, E2B) or memory (container).
    """

    cpu_seconds: int
    memory_mb: int


@dataclass(frozen=True)
class Outcome:
    """What became of one call.

    Attributes:
        status: ``ok``: ended by itself with exit status 0; ``error``: otherwise; ``timeout``: killed for its time (or by the
            kernel, for its memory); ``output``: killed for printing too much.
        output: what it printed or returned.
        detail: for people, from the program and not to be trusted: the kind of error.
    """

    status: Literal["ok", "error", "timeout", "output"]
    output: bytes = b""
    detail: str = ""


class Sandbox(Protocol):
    """Somewhere to run a program that is out to do harm."""

    name: str

    def check(self) -> None:
        """Make sure, once a process, that programs can run here and that it holds.

        Raises:
            RecipeError: it does not; the message says what to install or to write instead.
        """

    def run(self, program: Program, calls: Iterable[Call], limits: Limits) -> Iterator[Outcome]:
        """Run the program once a call, in order; whoever has seen enough closes the generator.

        Raises:
            SandboxError: the sandbox, not the program, failed.
        """


RUNNER = r"""
def main():
    import builtins, json, os, resource, sys

    def read(size):
        data = b""
        while len(data) < size:
            part = os.read(0, size - len(data))
            if not part:
                os._exit(1)
            data += part
        return data

    job = json.loads(read(int(read(10))))
    for name, wanted in job["limits"]:
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            wanted = [min(value, hard) for value in wanted]
        resource.setrlimit(kind, wanted)
    os.write(1, b"\x06")
    errors = os.dup(2)
    result = os.dup(1) if job["function"] else errors
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 2)
    if job["function"]:
        os.dup2(null, 1)
    first = 3
    for kept in sorted({errors, result}):
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, 4096)
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
            text = dumps(function(*loads(sys.stdin.read()))).encode()
            while text:
                text = text[write(result, text):]
    except SystemExit:
        raise
    except BaseException as error:
        write(errors, type(error).__name__.encode("ascii", "replace")[:60])
        os._exit(1)


main()
"""
"""Python 3.8 or newer, inside the sandbox: sets its own limits for good, then becomes the program. What it holds is the program's."""


def payload(program: Program, call: Call, limits: Limits, *, own_user: bool = True) -> bytes:
    """What :data:`RUNNER` reads from its stdin: the length of the job, the job, and the program's own stdin.

    Args:
        own_user: the kernel counts this program's threads apart from all others'; else something outside must bound their number.
    """
    seconds = limits.cpu_seconds
    job = {
        "code": program.code,
        "function": call.function,
        "limits": [
            # Both, so that the kernel kills: the first process of a sandbox does not hear a mere signal.
            ["RLIMIT_CPU", [seconds, seconds]],
            ["RLIMIT_FSIZE", [0, 0]],
            ["RLIMIT_NOFILE", [MAX_FILES, MAX_FILES]],
            *([["RLIMIT_NPROC", [MAX_THREADS, MAX_THREADS]]] if own_user else []),
            ["RLIMIT_CORE", [0, 0]],
            ["RLIMIT_SIGPENDING", [MAX_FILES, MAX_FILES]],  # of signals that wait; the kernel's default grows with its memory
            ["RLIMIT_STACK", [STACK_BYTES, STACK_BYTES]],
            ["RLIMIT_AS", [limits.memory_mb << 20] * 2],
        ],
    }
    data = json.dumps(job).encode("ascii")
    return b"%010d" % len(data) + data + call.stdin


@contextlib.contextmanager
def input_file(data: bytes) -> Iterator[int]:
    """A descriptor that reads ``data``. A file needs no writer, so a program that never reads cannot hold one up."""
    if hasattr(os, "memfd_create"):
        import fcntl

        descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(descriptor, "w+b", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
            file.seek(0)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            yield file.fileno()
    else:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            yield file.fileno()


def watch(
    argv: Sequence[str],
    data: bytes,
    call: Call,
    limits: Limits,
    *,
    kill: Callable[[subprocess.Popen], None],
    environment: Mapping[str, str] | None,
    descriptors: Sequence[int] = (),
    spare_seconds: float = 0.0,
) -> Outcome:
    """Run a sandbox's command line and watch it: output bounded, time bounded, nothing left behind.

    Args:
        argv: what starts the sandbox; its stdout is the program's.
        data: its stdin.
        kill: ends the process and everything in its sandbox.
        environment: of the command itself; ``None``: this process's, for a client that needs it.
        descriptors: open in the command too.
        spare_seconds: more time by the clock, where the sandbox itself ends the program and takes long to clear up.

    Raises:
        SandboxError: it did not come up.
    """
    try:
        with input_file(data) as stdin:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the trainer
            )
    except OSError as error:  # No process, no memory, no descriptor left; or the command is gone.
        raise SandboxError(f"{argv[0]} cannot be started: {error}") from error
    try:
        started, status, output = _read(process, call.output_bytes, WALL_FACTOR * limits.cpu_seconds + spare_seconds)
        if status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(START_SECONDS)
        if process.poll() is None:
            kill(process)
        words = _errors(process)
    finally:
        if process.poll() is None:
            kill(process)
        for pipe in (process.stdout, process.stderr):
            pipe.close()
    if not started:
        raise SandboxError(words or f"it did not start a program within {START_SECONDS:g} s (exit status {process.returncode})")
    if status is not None:
        return Outcome(status)
    code = process.returncode
    if code == 0:
        return Outcome("ok", output)
    # A shell's way to say that a signal ended the program; the hard limit of processor time is a SIGKILL.
    if code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL):
        return Outcome("timeout", output)
    return Outcome("error", output, words)


def _read(process: subprocess.Popen, limit: int, seconds: float) -> tuple[bool, Literal["timeout", "output"] | None, bytes]:
    """Whether the program was started, why it has to be killed (``None``: it ended), and what it printed."""
    descriptor = process.stdout.fileno()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    output = bytearray()
    started = False
    deadline = time.monotonic() + START_SECONDS
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return started, "timeout", b""
        if not poller.poll(1000 * left):
            continue
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return started, None, bytes(output)
        if not started:
            if not chunk.startswith(READY):
                return False, "output", b""
            started, chunk = True, chunk[len(READY) :]
            deadline = time.monotonic() + seconds
        output += chunk
        if len(output) > limit:
            return True, "output", b""


def _errors(process: subprocess.Popen) -> str:
    """The last line of stderr, printable and short: the sandbox's own words, or the program's."""
    os.set_blocking(process.stderr.fileno(), False)
    data = process.stderr.read(65536) or b""
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return "".join(char if char.isprintable() else "?" for char in lines[-1])[:200] if lines else ""


PROBE = r"""
import json, os, sys, threading

found = {"environment": sorted(os.environ), "root": sorted(os.listdir("/")), "uid": os.getuid()}


def attempt(name, action):
    try:
        action()
    except BaseException as error:
        found[name] = None
    else:
        found[name] = True


def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def interfaces():
    import socket

    assert [name for _, name in socket.if_nameindex() if name != "lo"]


def thread():
    worker = threading.Thread(target=int)
    worker.start()
    worker.join()


path = input()
attempt("host_file", lambda: os.stat(path))
for folder in ("", "/tmp", "/var/tmp", "/run", "/dev", "/dev/shm"):
    if not found.get("write"):
        attempt("write", lambda: open(folder + "/written", "w").write("x"))
attempt("network", interfaces)
attempt("memory", lambda: bytearray(1 << 34))
attempt("fork", fork)
attempt("thread", thread)
print(json.dumps(found))
"""


def probe(sandbox: Sandbox) -> dict[str, Any]:
    """What a program finds when it tries: ``True`` where it got through.

    Raises:
        SandboxError: no program can be run, or what it prints does not come back.
    """
    with tempfile.NamedTemporaryFile(prefix="r1-recipes-probe-") as secret:
        os.chmod(secret.name, 0o644)
        call = Call(stdin=f"{secret.name}\n".encode(), output_bytes=1 << 16)
        (outcome,) = sandbox.run(Program(PROBE), [call], Limits(cpu_seconds=20, memory_mb=256))
    with contextlib.suppress(ValueError):
        found = json.loads(outcome.output)
        if outcome.status == "ok" and isinstance(found, dict):
            return found
    raise SandboxError(f"a program for a trial ended with {outcome.status!r} {outcome.detail}".rstrip())


def leaks(found: Mapping[str, Any]) -> list[str]:
    """What of :func:`probe`'s finds a sandbox must not allow, in words; empty: it holds."""
    words = {
        "host_file": "a file of the host can be seen",
        "write": "files can be written",
        "network": "there is a network",
        "memory": "16 GB of memory can be had",
    }
    said = [text for key, text in words.items() if found.get(key)]
    if found.get("uid") == 0:
        said.append("the program is root")
    return said
