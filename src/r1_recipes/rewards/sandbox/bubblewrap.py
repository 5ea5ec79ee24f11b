"""bubblewrap (``bwrap``): new namespaces for each run, without a daemon or an image. Linux on x86_64 and aarch64."""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterable

import psutil

from r1_recipes.rewards.sandbox import base, seccomp
from r1_recipes.rewards.sandbox.base import Call, Outcome, Sandbox, SandboxError

NOBODY = "65534"

_LAYOUT = (
    "import json, sys, sysconfig; assert sys.version_info >= (3, 8); p = sysconfig.get_paths(); "
    "print(json.dumps([sys.executable, p['stdlib'], p['platstdlib']]))"
)


class Bubblewrap(Sandbox):
    """One bubblewrap per call, with one process of the user ``nobody``, a Python without packages, read-only, and ``/dev/null``."""

    name = "bubblewrap"
    remedy = (
        "Model code runs in a sandbox or not at all. Install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap); it needs "
        "Linux 5.14 and user namespaces: on Ubuntu 24.04 set sysctl kernel.apparmor_restrict_unprivileged_userns=0, and start a container "
        "with --privileged. Else code_provider: podman or docker with code_image, or e2b with E2B_API_KEY (docs/code_reward.md)"
    )

    def trial(self) -> set[str]:
        if sys.platform != "linux" or platform.machine() not in seccomp.ARCHITECTURES:
            raise SandboxError(f"there is none for {sys.platform} on {platform.machine()}")
        for command in ("bwrap", *_as_nobody()[:1]):
            if shutil.which(command) is None:
                raise SandboxError(f"the command {command} is not installed")
        return super().trial()

    def run(self, code: str, calls: Iterable[Call]) -> Generator[Outcome, None, None]:
        for call in calls:
            data = base.payload(code, call, RLIMIT_NPROC=base.MAX_THREADS)
            with base.input_file(seccomp.program()) as filter_file:
                yield base.watch(_command(filter_file), data, call, _kill, env={}, pass_fds=[filter_file])


def _command(filter_file: int) -> list[str]:
    python, mounts = interpreter()
    return [
        *_as_nobody(),
        shutil.which("bwrap") or "bwrap",
        *("--unshare-all", "--unshare-user", "--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox"),
        *("--die-with-parent", "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--seccomp", str(filter_file), "--clearenv"),
        *(word for name, value in base.ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *(*mounts, "--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/", "--chdir", "/"),
        *("--", python, "-s", "-B", "-c", base.RUNNER),
    ]


def _as_nobody() -> list[str]:
    """What root puts before a command: the kernel does not count root's threads."""
    if os.geteuid() != 0:
        return []
    return [shutil.which("setpriv") or "setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs", "--"]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the program before bubblewrap, so that bubblewrap reaps it."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children():
            child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)


@functools.cache
def interpreter() -> tuple[str, list[str]]:
    """The path of the Python that programs get, and what mounts it: this one's base, or the system's if ``nobody`` cannot read that."""
    own = getattr(sys, "_base_executable", sys.executable)
    candidates = [os.path.realpath(path) for path in (own, shutil.which("python3", path="/usr/local/bin:/usr/bin")) if path]
    for executable in candidates:
        # setpriv itself still looks its command up with root's rights; env does not.
        command = [*_as_nobody(), "/usr/bin/env", executable, "-I", "-c", _LAYOUT]
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            python, *folders = json.loads(_output(command))
            return python, _mounts(python, list(dict.fromkeys(folders)))
    raise SandboxError(
        f"{' and '.join(dict.fromkeys(candidates))} cannot be run by the user nobody, as root has it do; install Python outside of root's "
        "home (apt-get install python3), or train as an ordinary user"
    )


def _mounts(python: str, folders: list[str]) -> list[str]:
    """Words for bwrap: interpreter, standard library without installed packages, and the shared libraries that both load."""
    modules = [path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/lib-dynload/*.so")]
    # The dynamic loader's own answer, as ldd asks for it: "libc.so.6 => /lib/libc.so.6 (0x…)", or "/lib64/ld-linux-x86-64.so.2 (0x…)".
    listing = _output([python, "-c", ""], LD_TRACE_LOADED_OBJECTS="1", LD_PRELOAD=":".join(modules), LC_ALL="C")
    libraries = {os.path.normpath(path) for path in re.findall(r"^\s*(?:.* => )?(/.*) \(", listing, re.MULTILINE)}
    words = [word for path in (*folders, python, *sorted(libraries - {*modules})) for word in ("--ro-bind", path, path)]
    for packages in (f"{folder}/{name}" for folder in folders for name in ("site-packages", "dist-packages")):
        if os.path.isdir(packages):
            words += ["--tmpfs", packages, "--remount-ro", packages]
    return words


def _output(command: list[str], **environment: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd="/", stdin=subprocess.DEVNULL).stdout
