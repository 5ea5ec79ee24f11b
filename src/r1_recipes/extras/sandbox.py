"""Run a Python program of a model in bubblewrap: no network, no files, bounded time and memory.

This is for programs that a model writes in training, not for attackers: they have all system calls
of the kernel. Against those, ``code_provider: my_module:run`` can use another machine.

A program sets its own limits, which nothing can raise again:

- ``RLIMIT_CPU``: its seconds, of all threads together. By the clock it has twice that and five
  seconds more, so that a program that sleeps ends too.
- ``RLIMIT_AS``: its memory, as address space.
- ``RLIMIT_FSIZE``: its output. Standard output is a file, so nothing blocks, and what goes beyond
  the limit is an error of the program.
- ``RLIMIT_NPROC``: its threads and processes together. 64 are enough for the largest pool that
  Python starts by itself (32 threads). The runner refuses to start processes; a program that goes
  around it with ``ctypes`` gets 63, each with ``memory_mb``. All of them end with the first one.
"""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from itertools import chain
from typing import NamedTuple

from r1_recipes.common.errors import RecipeError

REMEDY = (
    "Fix: apt-get install bubblewrap (Linux 5.14 or newer). In a container, start it with "
    "--privileged. On Ubuntu 24.04, sysctl kernel.apparmor_restrict_unprivileged_userns=0. Or "
    "code_provider: my_module:run (docs/rewards.md)"
)
READY = b"ready\n"  # the first line on stderr: from here on, a failure is the program's

# What runs inside. It reads the length of the job, the job, and leaves the rest of stdin to the
# program. It needs Python 3.8.
RUNNER = r"""
import builtins, json, os, resource, sys, types

def refuse(event, arguments):
    if event in ("os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"):
        raise PermissionError("a program may not start processes")

size, text = int(os.read(0, 10)), b""
while len(text) < size:
    text += os.read(0, size - len(text))
job = json.loads(text)
for name, value in job["limits"].items():
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # Soft and hard: at the soft limit the kernel sends a signal, which a first process ignores.
    resource.setrlimit(kind, (value, value))
sys.addaudithook(refuse)
main = sys.modules["__main__"] = types.ModuleType("__main__")
builtins.exit = builtins.quit = sys.exit  # -S leaves them out
scope, out = vars(main), os.dup(1)
if job["function"]:
    os.dup2(2, 1)  # what the function prints is not its result
os.write(2, b"ready\n")
try:
    exec(compile(job["code"], "solution.py", "exec"), scope)
    if job["function"]:
        function = scope.get(job["function"]) or getattr(scope["Solution"](), job["function"])
        os.write(out, json.dumps(function(*json.load(sys.stdin))).encode())
    sys.stdout.flush()
except Exception as error:
    os.write(2, f"\n{type(error).__name__}".encode())
    try:
        sys.stdout.flush()
    finally:
        os._exit(1)
"""


class SandboxError(RecipeError):
    """The sandbox itself failed, so nothing is known about the program."""


class Outcome(NamedTuple):
    """What became of a program.

    Attributes:
        status: ``"ok"``, ``"error"`` or ``"timeout"``.
        output: What it printed, or what its function returned, as JSON.
        detail: The type of the error, as the program tells it.
    """

    status: str
    output: bytes = b""
    detail: str = ""


def run(
    code: str,
    stdin: bytes = b"",
    *,
    function: str | None = None,
    seconds: int = 5,
    memory_mb: int = 512,
    output_bytes: int = 1 << 16,
) -> Outcome:
    """Run a program on stdin. Your own ``code_provider`` has the same arguments.

    Args:
        code: The program.
        stdin: Its input. For a function, a JSON list of its arguments.
        function: The name of a function, or of a method of a class ``Solution``, to call.
        seconds: The processor time it may take.
        memory_mb: The memory it may take.
        output_bytes: The output it may write.

    Raises:
        SandboxError: The program did not start.
    """
    limits = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": memory_mb << 20,
        "RLIMIT_NPROC": 64,
        "RLIMIT_FSIZE": output_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_STACK": 64 << 20,  # deep recursion needs more than the usual 8 MB
    }
    job = json.dumps({"code": code, "function": function, "limits": limits}).encode()
    # coreutils' timeout waits in the kernel. subprocess' own looks 20 times a second.
    words = ("timeout", "--signal=KILL", str(2 * seconds + 5), *command())
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        # A session of its own: Ctrl-C is for the trainer.
        status = subprocess.run(
            words,
            input=b"%010d" % len(job) + job + stdin,
            stdout=out,
            stderr=errors,
            env={},
            start_new_session=True,
            check=False,
        ).returncode
        out.seek(0)
        errors.seek(0)
        printed, said = out.read(), errors.read()
    last = said.removeprefix(READY).decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    if not said.startswith(READY):
        raise SandboxError(f"no program started: {last or f'exit status {status}'}. {REMEDY}")
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL, 128 + signal.SIGXCPU):
        return Outcome("timeout", printed)
    return Outcome("ok", printed) if status == 0 else Outcome("error", printed, last)


@functools.cache
def command() -> tuple[str, ...]:
    """Return the command line of bubblewrap, with the Python of the system and nothing else."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError(f"the command bwrap is not installed. {REMEDY}")
    python, folders = "/usr/bin/python3", ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"]
    if not os.path.exists(python):
        python = sys.executable
        folders.append(sys.base_prefix)
    mounts = [("--ro-bind", path, path) for path in folders if os.path.exists(path)]
    # The kernel does not limit the processes of root.
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --" if os.geteuid() == 0 else ""
    isolation = (
        "--unshare-all --unshare-user --uid 65534 --gid 65534 --die-with-parent --as-pid-1 "
        "--new-session --cap-drop ALL --dev-bind /dev/null /dev/null --remount-ro / --chdir / "
        # A program has the same verdict each time: its sets are in the same order. All threads
        # share one arena of malloc, since each arena takes 64 MB of address space.
        "--clearenv --setenv PYTHONHASHSEED 0 --setenv MALLOC_ARENA_MAX 1"
    )
    runner = (os.path.realpath(python), "-s", "-S", "-B", "-c", RUNNER)
    return (*nobody.split(), bwrap, *chain(*mounts), *isolation.split(), "--", *runner)


def check() -> None:
    """Raise SandboxError unless a program runs here and sees neither files nor a network."""
    code = "import os, socket\nprint(os.path.exists('/etc/passwd'), len(socket.if_nameindex()))"
    outcome = run(code)
    if outcome.output.split() != [b"False", b"1"]:
        raise SandboxError(f"programs are not isolated on this machine: {outcome}. {REMEDY}")
