"""A sandbox with bubblewrap (``bwrap``) on Linux.

Each run gets new namespaces, without a daemon or an image.
"""

import contextlib
import functools
import glob
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import psutil

from r1_recipes.extras.code.sandbox import Call, Outcome, Sandbox, SandboxError

NOBODY = "65534"
READY = b"\x06"  # The first byte from a sandbox. From then on, the time of the program counts.
START_SECONDS = 60.0  # The limit to start and to end. An idle machine needs milliseconds.
# Wall-clock seconds per second of CPU time in the limit of a call. A program that sleeps must end.
WALL_FACTOR = 2
MAX_THREADS = MAX_FILES = 64
# The stack of the main thread. Deep recursion through functools.lru_cache overflows the usual 8 MB.
STACK_BYTES = 64 << 20
# The whole environment of a program. The seed of hashes is fixed, so that a program always gets the
# same verdict.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}

# Needs Python 3.8 or newer. It sets its own limits, which cannot be raised again, and then runs the
# program. The program can change everything in its memory.
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
        # Soft and hard, so that the kernel kills: a sandbox's first process ignores a signal.
        resource.setrlimit(kind, (value, value))
    os.write(1, b"\x06")
    # An error's kind goes to 3, a function's result to 4. What is written to stderr is dropped.
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

_LAYOUT = (
    "import json, sys, sysconfig; assert sys.version_info >= (3, 8); p = sysconfig.get_paths(); "
    "print(json.dumps([sys.executable, p['stdlib'], p['platstdlib']]))"
)


class Bubblewrap(Sandbox):
    """Runs each call in a new bubblewrap.

    It has a single process of the user ``nobody``, a read-only Python without packages, and
    ``/dev/null``.
    """

    remedy = (
        "Model code runs only in a sandbox. Fix: install bubblewrap (apt-get install "
        "bubblewrap, dnf install bubblewrap). It needs "
        "Linux 5.14 and user namespaces. On Ubuntu 24.04, set sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0, and start a container "
        "with --privileged. Or set code_provider: my_module:MySandbox (docs/rewards.md)"
    )

    def run(self, code: str, call: Call) -> Outcome:
        """Run the program once with limits on output and time, and leave nothing behind."""
        pipe = subprocess.PIPE
        try:
            with input_file(payload(code, call)) as stdin:
                # Start a new session, because Ctrl-C is for the trainer only.
                process = subprocess.Popen(
                    _command(),
                    stdin=stdin,
                    stdout=pipe,
                    stderr=pipe,
                    start_new_session=True,
                    env={},
                )
        except OSError as error:  # No process, memory, disk or descriptor is left.
            raise SandboxError(f"cannot start bwrap: {error}") from error
        assert process.stdout and process.stderr
        with process:
            try:
                output, ended = _read(
                    process.stdout.fileno(), call.output_bytes, WALL_FACTOR * call.cpu_seconds
                )
                if ended:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(START_SECONDS)
            finally:
                if process.poll() is None:
                    _kill(process)
            os.set_blocking(process.stderr.fileno(), False)
            lines = (process.stderr.read(65536) or b"").decode(
                "utf-8", "replace"
            ).strip().splitlines() or [""]
        detail = "".join(char if char.isprintable() else "?" for char in lines[-1])[:200]
        status = process.returncode if ended else None
        if not output.startswith(READY):
            raise SandboxError(
                detail or f"no program started within {START_SECONDS:g} s (exit status {status})"
            )
        output = output.removeprefix(READY)
        if len(output) > call.output_bytes:
            return Outcome("output")
        # The hard limit of CPU time sends SIGKILL.
        if status in (None, 128 + signal.SIGXCPU, 128 + signal.SIGKILL):
            return Outcome("timeout", output)
        return Outcome("ok", output) if status == 0 else Outcome("error", output, detail)


def payload(code: str, call: Call) -> bytes:
    """Return the input of :data:`RUNNER`: the length of the job, the job, and stdin."""
    limits = {
        "RLIMIT_CPU": call.cpu_seconds,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NOFILE": MAX_FILES,
        "RLIMIT_NPROC": MAX_THREADS,
        "RLIMIT_CORE": 0,
        # Pending signals. The default of the kernel grows with the memory of the machine.
        "RLIMIT_SIGPENDING": MAX_FILES,
        "RLIMIT_STACK": STACK_BYTES,
        "RLIMIT_AS": call.memory_mb << 20,
    }
    job = json.dumps({"code": code, "function": call.function, "limits": limits}).encode("ascii")
    return b"%010d" % len(job) + job + call.stdin


@contextlib.contextmanager
def input_file(data: bytes) -> Iterator[int]:
    """Yield a read-only descriptor of a file with ``data``.

    A pipe would block the writer if the program never reads.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with open(file.name, "rb") as reader:
            yield reader.fileno()


def _read(descriptor: int, limit: int, seconds: float) -> tuple[bytes, bool]:
    """Return the output of the sandbox, and whether it ended by itself.

    Reading stops a little above ``limit`` bytes.
    """
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    output = bytearray()
    deadline = time.monotonic() + START_SECONDS
    while len(output) <= len(READY) + limit and (seconds_left := deadline - time.monotonic()) > 0:
        if poller.poll(1000 * seconds_left):
            if not (chunk := os.read(descriptor, 65536)):
                return bytes(output), True
            if not output:
                deadline = time.monotonic() + seconds
            output += chunk
    return bytes(output), False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the program before bubblewrap, so that bubblewrap reaps it."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children():
            child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    process.kill()
    process.wait()


def _command() -> list[str]:
    bwrap = _tool("bwrap")
    python, mounts = interpreter()
    return [
        *_as_nobody(),
        bwrap,
        *(
            "--unshare-all",
            "--unshare-user",
            "--uid",
            NOBODY,
            "--gid",
            NOBODY,
            "--hostname",
            "sandbox",
        ),
        *(
            "--die-with-parent",
            "--as-pid-1",
            "--new-session",
            "--cap-drop",
            "ALL",
            "--clearenv",
        ),
        *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *(*mounts, "--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/", "--chdir", "/"),
        *("--", python, "-s", "-B", "-c", RUNNER),
    ]


def _tool(name: str) -> str:
    if (path := shutil.which(name)) is None:
        raise SandboxError(f"the command {name} is not installed")
    return path


def _as_nobody() -> list[str]:
    """Return the prefix of a command for root, because the kernel does not limit root's threads."""
    if os.geteuid() != 0:
        return []
    return [
        _tool("setpriv"),
        "--reuid",
        NOBODY,
        "--regid",
        NOBODY,
        "--clear-groups",
        "--no-new-privs",
        "--",
    ]


@functools.cache
def interpreter() -> tuple[str, list[str]]:
    """Return the Python for programs, and the arguments of bwrap that mount it.

    This is the base of the running Python, or the Python of the system if ``nobody`` cannot read
    the first.
    """
    paths = (
        getattr(sys, "_base_executable", sys.executable),
        shutil.which("python3", path="/usr/local/bin:/usr/bin"),
    )
    candidates = dict.fromkeys(os.path.realpath(path) for path in paths if path)
    for executable in candidates:
        # setpriv would search its command with the rights of root. env does not.
        command = [*_as_nobody(), "/usr/bin/env", executable, "-I", "-c", _LAYOUT]
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            python, *folders = json.loads(_output(command))
            return python, _mounts(python, list(dict.fromkeys(folders)))
    raise SandboxError(
        f"the user nobody, who runs programs for root, cannot run {' and '.join(candidates)}. "
        f"Fix: install Python outside of the home "
        "of root (apt-get install python3), or train as an ordinary user"
    )


def _mounts(python: str, folders: list[str]) -> list[str]:
    """Return the arguments of bwrap that mount the interpreter and the standard library.

    Installed packages are left out, and shared libraries that both load are included.
    """
    modules = [
        path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/lib-dynload/*.so")
    ]
    # Ask the dynamic loader, as ldd does. It prints "libc.so.6 => /lib/libc.so.6 (0x…)", or
    # "/lib64/ld-linux-x86-64.so.2 (0x…)".
    listing = _output(
        [python, "-c", ""], LD_TRACE_LOADED_OBJECTS="1", LD_PRELOAD=":".join(modules), LC_ALL="C"
    )
    libraries = {
        os.path.normpath(path)
        for path in re.findall(r"^\s*(?:.* => )?(/.*) \(", listing, re.MULTILINE)
    }
    words = [
        word
        for path in (*folders, python, *sorted(libraries - {*modules}))
        for word in ("--ro-bind", path, path)
    ]
    for packages in (
        f"{folder}/{name}" for folder in folders for name in ("site-packages", "dist-packages")
    ):
        if os.path.isdir(packages):
            words += ["--tmpfs", packages, "--remount-ro", packages]
    return words


def _output(command: list[str], **environment: str) -> str:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
    ).stdout
