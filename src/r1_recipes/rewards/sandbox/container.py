"""docker or podman: any image, for other languages and for Python with packages; a container a call."""

from __future__ import annotations

import base64
import contextlib
import functools
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards.sandbox.base import (
    ALLOWED_ENVIRONMENT,
    MAX_FILES,
    MAX_THREADS,
    RUNNER,
    START_SECONDS,
    WALL_FACTOR,
    Call,
    Limits,
    Outcome,
    Program,
    SandboxError,
    leaks,
    payload,
    probe,
    watch,
)

GRACE_SECONDS = 10
"""For the first process of a container to start the program, on a busy machine."""

SOLUTION = "/tmp/solution"
"""Where ``code_command`` finds the program."""

# The first line of stdin is the program, since `read` takes exactly one line even of a pipe; the rest is its own stdin.
_SHELL = "IFS= read -r code && printf %s \"$code\" | base64 -d > /tmp/solution && code= && printf '\\006' && exec 2>/dev/null && {command}"


@dataclass
class Container:
    """A fresh container of an image, without network, capabilities or writable image, of the user ``nobody``.

    Attributes:
        name: ``docker`` or ``podman``: the command.
        image: must be there already; nothing is pulled during a run. It has ``timeout``, and ``python3`` or, with ``command``, ``sh``
            and ``base64``, as nearly all have.
        command: a shell command that runs (or compiles and runs) :data:`SOLUTION` in any language; ``None``: Python.
    """

    name: str
    image: str | None
    command: str | None = None
    _checked: bool = False

    def check(self) -> None:
        if self._checked:
            return
        where = f"code_provider: {self.name}"
        if shutil.which(self.name) is None:
            raise RecipeError(f"{where}: the command {self.name} is not installed; model code runs in a sandbox or not at all")
        known = subprocess.run([self.name, "image", "inspect", self.image], capture_output=True, text=True, timeout=START_SECONDS)
        if known.returncode:
            said = (known.stderr.strip().splitlines() or [""])[-1]
            raise RecipeError(f"{where}: code_image {self.image!r} is not here ({said[:200]}); {self.name} pull {self.image}")
        try:
            if self.command is None:
                said = leaks(probe(self))
            else:
                # Of a program in another language only the start can be tried; the flags are the same.
                next(self.run(Program("", "any"), [Call(b"", 1 << 16)], Limits(cpu_seconds=20, memory_mb=256)))
                said = []
        except SandboxError as error:
            raise RecipeError(f"{where}: code_image {self.image!r} cannot be run: {error}") from error
        if said:
            raise RecipeError(f"{where}: it does not hold here: {'; '.join(said)}")
        self._checked = True

    def run(self, program: Program, calls: Iterable[Call], limits: Limits) -> Iterator[Outcome]:
        for call in calls:
            name = f"r1-recipes-{uuid.uuid4().hex}"
            if self.command is None:
                data, inside = payload(program, call, limits, own_user=False), ["python3", "-s", "-B", "-c", RUNNER]
            else:
                source = base64.b64encode(program.code.encode("utf-8", "replace"))
                data, inside = source + b"\n" + call.stdin, ["sh", "-c", _SHELL.format(command=self.command)]
            kill = functools.partial(self._kill, name)
            yield watch(self._command(name, limits, inside), data, call, limits, kill=kill, environment=None, spare_seconds=START_SECONDS)

    def _command(self, name: str, limits: Limits, inside: list[str]) -> list[str]:
        memory = f"{limits.memory_mb}m"
        environment = [word for key, value in ALLOWED_ENVIRONMENT.items() if key != "PATH" for word in ("--env", f"{key}={value}")]
        # A compiler needs somewhere to write; what stands there counts as the container's memory.
        writable = [] if self.command is None else ["--tmpfs", "/tmp:rw,exec,nosuid,nodev,size=64m,mode=1777"]
        # podman lets a read-only container write to /run and /var/tmp unless told otherwise; docker knows no such option.
        sealed = ["--read-only", *(["--read-only-tmpfs=false"] if self.name == "podman" else [])]
        # The container's first process ends it in time, even should the trainer be killed.
        timeout = ["timeout", "-s", "KILL", str(GRACE_SECONDS + WALL_FACTOR * limits.cpu_seconds)]
        return [
            *(self.name, "run", "--rm", "--interactive", "--name", name, "--pull", "never", "--log-driver", "none"),
            *("--network", "none", "--ipc", "none", *sealed, *writable, "--cap-drop", "ALL"),
            *("--security-opt", "no-new-privileges", "--user", "65534:65534", "--workdir", "/", "--hostname", "sandbox", *environment),
            *("--memory", memory, "--memory-swap", memory, "--cpus", "1", "--pids-limit", str(MAX_THREADS)),
            *("--ulimit", "core=0:0", "--ulimit", f"nofile={MAX_FILES}:{MAX_FILES}"),
            *("--ulimit", "nproc=4096:4096"),  # of all containers' nobody together; podman's own default may be more than is allowed
            *("--ulimit", f"cpu={limits.cpu_seconds}:{limits.cpu_seconds}"),
            *("--entrypoint", timeout[0], self.image, *timeout[1:], *inside),
        ]

    def _kill(self, name: str, process: subprocess.Popen) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([self.name, "kill", "--signal", "KILL", name], capture_output=True, timeout=START_SECONDS)
        process.kill()
        process.wait()
