"""docker or podman: any image, for other languages and for Python with packages; one container per call."""

from __future__ import annotations

import base64
import contextlib
import shutil
import subprocess
import uuid
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from r1_recipes.rewards.sandbox import base
from r1_recipes.rewards.sandbox.base import Call, Outcome, Sandbox, SandboxError

GRACE_SECONDS = 10  # for a container to start the program on a busy machine
# The program comes as the first line of stdin, which the shell reads byte by byte even from a pipe; the rest is the program's own stdin.
_SHELL = "IFS= read -r code && printf %s \"$code\" | base64 -d > /tmp/solution && code= && printf '\\006' && exec 2>/dev/null && {command}"


@dataclass
class Container(Sandbox):
    """A new container for each call, without network, capabilities or writable image, as the user ``nobody``."""

    name: str  # docker or podman
    image: str  # pulled before the run; has timeout, and python3, or with a command sh and base64
    command: str | None = None  # a shell command that runs /tmp/solution in any language; None: Python
    allowed = frozenset({"the program can start processes", "the environment has other names"})

    def trial(self) -> set[str]:
        if shutil.which(self.name) is None:
            raise SandboxError(f"the command {self.name} is not installed; model code runs in a sandbox or not at all")
        known = subprocess.run([self.name, "image", "inspect", self.image], capture_output=True, text=True, timeout=base.START_SECONDS)
        if known.returncode:
            raise SandboxError(f"code_image {self.image!r} is not here ({known.stderr.strip()[-200:]}). Fix: {self.name} pull {self.image}")
        if self.command is None:
            return super().trial()
        # Another language: only the start can be tried. The flags are the same.
        next(self.run("", [Call(b"", 1 << 16)]))
        return set()

    def run(self, code: str, calls: Iterable[Call]) -> Generator[Outcome, None, None]:
        for call in calls:
            if self.command is None:
                data, inside = base.payload(code, call), ["python3", "-s", "-B", "-c", base.RUNNER]
            else:
                source = base64.b64encode(code.encode("utf-8", "replace"))
                data, inside = source + b"\n" + call.stdin, ["sh", "-c", _SHELL.format(command=self.command)]
            name = f"r1-recipes-{uuid.uuid4().hex}"

            def kill(process: subprocess.Popen[bytes], name: str = name) -> None:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run([self.name, "kill", "--signal", "KILL", name], capture_output=True, timeout=base.START_SECONDS)

            yield base.watch(self._argv(name, call, inside), data, call, kill, spare_seconds=base.START_SECONDS)

    def _argv(self, name: str, call: Call, inside: list[str]) -> list[str]:
        memory, cpu = f"{call.memory_mb}m", call.cpu_seconds
        options = []
        if self.command is not None:  # A compiler needs somewhere to write; its files count as the container's memory.
            options += ["--tmpfs", "/tmp:rw,exec,nosuid,nodev,size=64m,mode=1777"]
        if self.name == "podman":  # Otherwise a read-only container may write to /run and /var/tmp. docker knows no such option.
            options.append("--read-only-tmpfs=false")
        return [
            *(self.name, "run", "--rm", "--interactive", "--name", name, "--pull", "never", "--log-driver", "none"),
            *("--network", "none", "--ipc", "none", "--read-only", *options, "--cap-drop", "ALL"),
            *("--security-opt", "no-new-privileges", "--user", "65534:65534", "--workdir", "/", "--hostname", "sandbox"),
            *(word for key, value in base.ENVIRONMENT.items() if key != "PATH" for word in ("--env", f"{key}={value}")),
            *("--memory", memory, "--memory-swap", memory, "--cpus", "1", "--pids-limit", str(base.MAX_THREADS)),
            *("--ulimit", "core=0:0", "--ulimit", f"nofile={base.MAX_FILES}:{base.MAX_FILES}", "--ulimit", f"cpu={cpu}:{cpu}"),
            *("--ulimit", "nproc=4096:4096"),  # of all containers' nobody together; podman's own default may be more than is allowed
            # The container's first process ends it in time, even if the trainer is killed.
            *("--entrypoint", "timeout", self.image, "-s", "KILL", str(GRACE_SECONDS + base.WALL_FACTOR * cpu), *inside),
        ]
