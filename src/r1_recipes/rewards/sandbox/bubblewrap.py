"""bubblewrap (``bwrap``): namespaces of its own for each run, without a daemon or an image. Linux, on x86_64 and aarch64."""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards.sandbox import seccomp
from r1_recipes.rewards.sandbox.base import (
    ALLOWED_ENVIRONMENT,
    RUNNER,
    Call,
    Limits,
    Outcome,
    Program,
    SandboxError,
    input_file,
    leaks,
    payload,
    probe,
    watch,
)

NOBODY = 65534

REFUSAL = (
    "Model code runs in a sandbox or not at all. Install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap); it needs user "
    "namespaces: on Ubuntu 24.04 set sysctl kernel.apparmor_restrict_unprivileged_userns=0, and start a container with --privileged. "
    "Else code_provider: podman or docker with code_image, or e2b with E2B_API_KEY (docs/code_reward.md)"
)

_LAYOUT = (
    "import json, sys, sysconfig; p = sysconfig.get_paths(); "
    "print(json.dumps([list(sys.version_info[:2]), sys.executable, p['stdlib'], p['platstdlib']]))"
)


class Interpreter(NamedTuple):
    """A Python, and all that it is made of.

    Attributes:
        executable: its path, without links.
        files: what it needs: executable, standard library, shared libraries.
        hidden: folders inside those that hold installed packages.
    """

    executable: str
    files: tuple[str, ...]
    hidden: tuple[str, ...]


@dataclass
class Bubblewrap:
    """One bubblewrap a call.

    In it there are: one process, with threads, of a user that owns nothing; a Python interpreter with its standard library, read-only;
    ``/dev/null``; its code and its input. There is no network, no ``/proc``, no file that can be written, no environment, no other
    process, and no Python package. Where this process is root, bubblewrap runs as ``nobody``: the kernel does not count root's threads.
    """

    name: str = "bubblewrap"
    _checked: bool = False

    def check(self) -> None:
        if self._checked:
            return
        reason = self._missing()
        if reason is None:
            try:
                found = probe(self)
            except SandboxError as error:
                reason = f"it does not work here: {error}"
            else:
                said = leaks(found)
                if found["fork"]:
                    said.append("the program can start processes")
                if not set(found["environment"]) <= {*ALLOWED_ENVIRONMENT, "PWD", "LC_CTYPE"}:
                    said.append("the host's environment can be seen")
                if not found["thread"]:
                    said.append("the program cannot start a thread (a kernel before 5.14 counts all of the user's)")
                reason = f"it does not hold here: {'; '.join(said)}" if said else None
        if reason is not None:
            raise RecipeError(f"code_provider: bubblewrap: {reason}. {REFUSAL}")
        self._checked = True

    def _missing(self) -> str | None:
        if not sys.platform.startswith("linux") or not seccomp.supported():
            return f"there is none for {sys.platform} on {os.uname().machine}"
        if shutil.which("bwrap") is None:
            return "the command bwrap is not installed"
        if os.geteuid() == 0 and shutil.which("setpriv") is None:
            return "the command setpriv (util-linux) is not installed, which root needs to run it as nobody"
        try:
            interpreter()
        except RecipeError as error:
            return str(error)
        return None

    def run(self, program: Program, calls: Iterable[Call], limits: Limits) -> Iterator[Outcome]:
        self.check_language(program)
        for call in calls:
            with input_file(seccomp.program()) as filter_file:
                yield watch(
                    _command(filter_file),
                    payload(program, call, limits),
                    call,
                    limits,
                    kill=_kill,
                    environment={},
                    descriptors=[filter_file],
                )

    @staticmethod
    def check_language(program: Program) -> None:
        if program.language != "python":
            raise SandboxError(f"bubblewrap has a Python interpreter and no {program.language}")


def _command(filter_file: int) -> list[str]:
    python = interpreter()
    binds = [word for path in python.files for word in ("--ro-bind", path, path)]
    hidden = [word for path in python.hidden for word in ("--tmpfs", path, "--remount-ro", path)]
    environment = [word for name, value in ALLOWED_ENVIRONMENT.items() for word in ("--setenv", name, value)]
    return [
        *_as_nobody(),
        shutil.which("bwrap"),
        *("--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
        *("--die-with-parent", "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--seccomp", str(filter_file)),
        *("--clearenv", *environment),
        *(*binds, *hidden, "--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/", "--chdir", "/"),
        *("--", python.executable, "-s", "-B", "-c", RUNNER),
    ]


def _as_nobody() -> list[str]:
    if os.geteuid() != 0:
        return []
    return [shutil.which("setpriv"), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--no-new-privs", "--"]


def _kill(process: subprocess.Popen) -> None:
    """The program before bubblewrap itself, so that bubblewrap buries it."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children():
            child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    process.kill()
    process.wait()


@functools.cache
def interpreter() -> Interpreter:
    """The Python that model code gets: this one's base installation, or the system's where ``nobody`` cannot read that one.

    Raises:
        RecipeError: there is none.
    """
    candidates = [os.path.realpath(getattr(sys, "_base_executable", sys.executable))]
    system = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if system is not None:
        candidates.append(os.path.realpath(system))
    for executable in candidates:
        found = _layout(executable)
        if found is not None:
            return found
    raise RecipeError(
        f"{' and '.join(dict.fromkeys(candidates))} cannot be run by the user nobody, as root has it do; install Python outside of root's "
        "home (apt-get install python3), or train as an ordinary user"
    )


def _layout(executable: str) -> Interpreter | None:
    # setpriv itself still looks its command up with root's rights; env does not.
    command = [*_as_nobody(), "/usr/bin/env", executable, "-I", "-c", _LAYOUT]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=60, env={}, cwd="/", stdin=subprocess.DEVNULL)
        version, executable, library, platform_library = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if version < [3, 8]:
        return None
    folders = dict.fromkeys((library, platform_library))
    modules = [path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/lib-dynload/*.so")]
    files = [*folders, executable, *_shared_libraries(executable, modules)]
    hidden = [path for folder in folders for name in ("site-packages", "dist-packages") if os.path.isdir(path := f"{folder}/{name}")]
    return Interpreter(executable, tuple(dict.fromkeys(files)), tuple(hidden))


def _shared_libraries(executable: str, modules: list[str]) -> list[str]:
    """What the dynamic loader would load for these, at the paths where it looks: its own answer, as ``ldd`` asks it."""
    asked = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_PRELOAD": ":".join(modules), "LC_ALL": "C"}
    listing = subprocess.run([executable, "-c", ""], capture_output=True, text=True, env=asked, cwd="/", stdin=subprocess.DEVNULL)
    paths = set()
    for line in listing.stdout.splitlines():
        # "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)", or "/lib64/ld-linux-x86-64.so.2 (0x…)", the loader
        name, arrow, found = line.strip().partition(" => ")
        path = (found if arrow else name).rpartition(" (")[0]
        if path.startswith("/"):
            paths.add(os.path.normpath(path))
    return sorted(paths - set(modules))
