"""bubblewrap (``bwrap``): new namespaces for each run, without a daemon or an image. Linux on
x86_64 and aarch64.
"""

import contextlib
import functools
import glob
import json
import os
import platform
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

from r1_recipes.extras.code.sandbox import Call, Outcome, Sandbox, SandboxError, seccomp

NOBODY = "65534"
READY = b"\x06"  # the first byte that a sandbox sends; from then on the program runs, and its time
START_SECONDS = 60.0  # limit to start and to end; it takes milliseconds if the machine is idle
WALL_FACTOR = (
    2  # wall-clock seconds per processor second of a call's limit: a program that sleeps ends too
)
MAX_THREADS = MAX_FILES = 64
STACK_BYTES = (
    64 << 20
)  # of the main thread: deep recursion through functools.lru_cache overflows the usual 8 MB
# The whole environment of a program. Hashes have no random seed, so that a program always gets the
# same verdict.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}

# Python 3.8 or newer. It limits itself for good, then becomes the program: everything in its memory
# is the program's to change.
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
    """One bubblewrap per call, with one process of the user ``nobody``, a Python without packages,
    read-only, and ``/dev/null``.
    """

    remedy = (
        "Model code runs in a sandbox or not at all. Install bubblewrap (apt-get install "
        "bubblewrap, dnf install bubblewrap); it needs "
        "Linux 5.14 and user namespaces: on Ubuntu 24.04 set sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0, and start a container "
        "with --privileged. Else code_provider: my_module:MySandbox (docs/code_reward.md)"
    )

    def run(self, code: str, call: Call) -> Outcome:
        """Run the program once with bounded output and time, and leave nothing behind."""
        if sys.platform != "linux" or platform.machine() not in seccomp.ARCHITECTURES:
            raise SandboxError(f"there is none for {sys.platform} on {platform.machine()}")
        pipe = subprocess.PIPE
        try:
            with (
                input_file(payload(code, call)) as stdin,
                input_file(seccomp.program()) as seccomp_file,
            ):
                # A session of its own, since Ctrl-C is for the trainer.
                process = subprocess.Popen(
                    _command(seccomp_file),
                    stdin=stdin,
                    stdout=pipe,
                    stderr=pipe,
                    start_new_session=True,
                    env={},
                    pass_fds=[seccomp_file],
                )
        except OSError as error:  # no process, memory, disk or descriptor left
            raise SandboxError(f"bwrap cannot be started: {error}") from error
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
                detail
                or f"it did not start a program within {START_SECONDS:g} s (exit status {status})"
            )
        output = output.removeprefix(READY)
        if len(output) > call.output_bytes:
            return Outcome("output")
        if status in (
            None,
            128 + signal.SIGXCPU,
            128 + signal.SIGKILL,
        ):  # the hard limit of processor time is a SIGKILL
            return Outcome("timeout", output)
        return Outcome("ok", output) if status == 0 else Outcome("error", output, detail)


def payload(code: str, call: Call) -> bytes:
    """What :data:`RUNNER` reads: the length of the job, the job, and the program's own stdin."""
    limits = {
        "RLIMIT_CPU": call.cpu_seconds,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NOFILE": MAX_FILES,
        "RLIMIT_NPROC": MAX_THREADS,
        "RLIMIT_CORE": 0,
        # Signals that wait; the kernel's default grows with its memory
        "RLIMIT_SIGPENDING": MAX_FILES,
        "RLIMIT_STACK": STACK_BYTES,
        "RLIMIT_AS": call.memory_mb << 20,
    }
    job = json.dumps({"code": code, "function": call.function, "limits": limits}).encode("ascii")
    return b"%010d" % len(job) + job + call.stdin


@contextlib.contextmanager
def input_file(data: bytes) -> Iterator[int]:
    """A descriptor that reads ``data`` and cannot write. A file, so that a program that never reads
    blocks no writer.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with open(file.name, "rb") as reader:
            yield reader.fileno()


def _read(descriptor: int, limit: int, seconds: float) -> tuple[bytes, bool]:
    """What the sandbox writes, up to a little over ``limit`` bytes, and whether it ended
    by itself.
    """
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    output = bytearray()
    deadline = time.monotonic() + START_SECONDS
    while len(output) <= len(READY) + limit and (left := deadline - time.monotonic()) > 0:
        if poller.poll(1000 * left):
            if not (chunk := os.read(descriptor, 65536)):
                return bytes(output), True
            if not output:
                deadline = time.monotonic() + seconds
            output += chunk
    return bytes(output), False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the program before bubblewrap, so that bubblewrap reaps it."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children():
            child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    process.kill()
    process.wait()


def _command(seccomp_file: int) -> list[str]:
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
            "--seccomp",
            str(seccomp_file),
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
    """What root puts before a command: the kernel does not count root's threads."""
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
    """The path of the Python that programs get, and what mounts it: this one's base, or the
    system's if ``nobody`` cannot read that.
    """
    found = (
        getattr(sys, "_base_executable", sys.executable),
        shutil.which("python3", path="/usr/local/bin:/usr/bin"),
    )
    candidates = dict.fromkeys(os.path.realpath(path) for path in found if path)
    for executable in candidates:
        # setpriv itself still looks its command up with root's rights; env does not.
        command = [*_as_nobody(), "/usr/bin/env", executable, "-I", "-c", _LAYOUT]
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            python, *folders = json.loads(_output(command))
            return python, _mounts(python, list(dict.fromkeys(folders)))
    raise SandboxError(
        f"{' and '.join(candidates)} cannot be run by the user nobody, as root has it do; "
        f"install Python outside of root's "
        "home (apt-get install python3), or train as an ordinary user"
    )


def _mounts(python: str, folders: list[str]) -> list[str]:
    """Words for bwrap: interpreter, standard library without installed packages, and the shared
    libraries that both load.
    """
    modules = [
        path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/lib-dynload/*.so")
    ]
    # The dynamic loader's own answer, as ldd asks for it: "libc.so.6 => /lib/libc.so.6 (0x…)", or
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
