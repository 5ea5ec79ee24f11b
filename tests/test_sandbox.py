"""Programs that try to break out, flood, bomb, hide and cheat; and the refusal where there is no sandbox, which runs everywhere."""

from __future__ import annotations

import base64
import contextlib
import errno
import importlib.machinery
import json
import os
import platform
import signal
import socket
import stat
import struct
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.rewards import sandbox as sandboxes
from r1_recipes.rewards.sandbox import Bubblewrap, Call, Container, Limits, Outcome, Program, SandboxError, seccomp
from r1_recipes.rewards.sandbox import bubblewrap as bubblewrap_module
from r1_recipes.rewards.sandbox.base import MAX_THREADS, READY, RUNNER, leaks, payload, watch

# Time enough for an honest program on a machine that does other things; only those that overrun get less.
ROOM = Limits(cpu_seconds=30, memory_mb=256)
SHORT = Limits(cpu_seconds=1, memory_mb=256)


@pytest.fixture(scope="module")
def bubblewrap() -> Bubblewrap:
    found = Bubblewrap()
    try:
        found.check()
    except RecipeError as error:
        pytest.skip(str(error))
    return found


def run(box: Any, code: str, stdin: bytes = b"", function: str | None = None, limits: Limits = ROOM, room: int = 1 << 16) -> Outcome:
    (outcome,) = box.run(Program(textwrap.dedent(code)), [Call(stdin, room, function)], limits)
    return outcome


class TestHonestPrograms:
    def test_a_program_reads_and_prints(self, bubblewrap):
        assert run(bubblewrap, "print(2 * int(input()))", b"21\n") == Outcome("ok", b"42\n")

    @pytest.mark.parametrize(
        "code", ["def twice(n):\n    print('noise')\n    return [n, n]", "class Solution:\n    def twice(self, n):\n        return (n, n)"]
    )
    def test_a_function_is_called(self, bubblewrap, code):
        assert run(bubblewrap, code, b"[3]", "twice") == Outcome("ok", b"[3, 3]")

    def test_calls_are_separate_and_in_order(self, bubblewrap):
        code = "import builtins\nbuiltins.seen = getattr(builtins, 'seen', 0) + 1\nprint(builtins.seen, input())"
        calls = [Call(f"{number}\n".encode(), 1 << 16) for number in range(3)]
        outcomes = list(bubblewrap.run(Program(code), calls, ROOM))
        assert [outcome.output for outcome in outcomes] == [b"1 0\n", b"1 1\n", b"1 2\n"]

    def test_threads_deep_recursion_and_large_input_work(self, bubblewrap):
        code = """
            import functools, sys, threading
            sys.setrecursionlimit(10**6)
            @functools.lru_cache(None)
            def depth(n):
                return n and 1 + depth(n - 1)
            def main():
                print(depth(20000), len(sys.stdin.read()))
            threading.stack_size(1 << 26)
            worker = threading.Thread(target=main)
            worker.start()
            worker.join()
        """
        assert run(bubblewrap, code, b"x" * 5_000_000) == Outcome("ok", b"20000 5000000\n")

    def test_the_same_program_gets_the_same_answer(self, bubblewrap):
        code = "print(list({str(n) for n in range(50)}))"
        assert run(bubblewrap, code).output == run(bubblewrap, code).output

    @pytest.mark.parametrize(
        ("code", "status", "detail"),
        [
            ("1 / 0", "error", "ZeroDivisionError"),
            ("print(", "error", "SyntaxError"),
            ("print('\ud800')", "error", "UnicodeEncodeError"),
            ("\0", "error", "ValueError"),
            ("raise SystemExit(3)", "error", ""),
            ("exit()", "ok", ""),
            ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
            ("import os; os._exit(0)", "ok", ""),
            ("import os; os.abort()", "error", ""),
            ("import ctypes; ctypes.string_at(0)", "error", ""),
        ],
    )
    def test_how_a_program_ends_is_told(self, bubblewrap, code, status, detail):
        assert run(bubblewrap, code) == Outcome(status, b"", detail)

    def test_another_language_is_the_sandboxs_fault(self, bubblewrap):
        with pytest.raises(SandboxError, match="no cpp"):
            next(bubblewrap.run(Program("int main() {}", "cpp"), [Call(b"", 1)], ROOM))

    def test_a_program_may_use_asyncio_and_a_pipe(self, bubblewrap):
        code = """
            import asyncio, fcntl, os
            async def add(numbers):
                await asyncio.sleep(0)
                return sum(numbers)
            read, write = os.pipe()
            os.write(write, b"4")
            fcntl.fcntl(read, fcntl.F_SETFL, os.O_NONBLOCK)
            print(asyncio.run(add([1, 2])), os.read(read, 9))
        """
        assert run(bubblewrap, code) == Outcome("ok", b"3 b'4'\n")


class TestBreakingOut:
    """Each program says ``out`` where it got through; that it did not is seen from outside too, where there is something to see."""

    def test_no_network(self, bubblewrap):
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0)
            code = f"""
                import socket, _socket
                for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):
                    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
                        try:
                            _socket.socket(family, kind)
                        except PermissionError:
                            continue
                        print("out")
                try:
                    socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 5)
                    print("out")
                except PermissionError:
                    print("held")
            """
            assert run(bubblewrap, code) == Outcome("ok", b"held\n")
            with pytest.raises(BlockingIOError):
                server.accept()

    def test_no_host_files(self, bubblewrap, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text("secret")
        for folder in (tmp_path, *tmp_path.parents):
            # The folders of pytest are the user's alone; even a file that everybody may read is not to be found.
            if folder.owner() == Path.home().owner() and folder != folder.parent:
                with contextlib.suppress(PermissionError):
                    folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
        places = [secret, Path(__file__), Path.home(), "/etc", "/proc", "/sys", "/home", "/root/.ssh", "/var", "/tmp", "/run", "/dev/shm"]
        places += ["/dev/tty", "/dev/sda", "/dev/vda", "/dev/mem", "/dev/kmsg", "/dev/fd", "/bin/sh"]
        code = f"""
            import os
            python = os.path.dirname(os.__file__)
            for place in {list(map(str, places))!r}:
                if os.path.lexists(place) and not python.startswith(place + "/"):
                    print("out", place)
            found = [os.path.join(folder, name) for folder, _, names in os.walk("/") for name in names]
            strange = [path for path in found if not path.startswith(python) and ".so" not in path and "/bin/python" not in path]
            print(strange)
        """
        assert run(bubblewrap, code) == Outcome("ok", b"['/dev/null']\n")

    def test_no_installed_packages(self, bubblewrap):
        code = (
            "import importlib.util\nprint([name for name in ('pytest', 'psutil', 'torch', 'r1_recipes') if importlib.util.find_spec(name)])"
        )
        assert run(bubblewrap, code).output == b"[]\n"

    def test_no_environment(self, bubblewrap, monkeypatch):
        monkeypatch.setenv("E2B_API_KEY", "a-key")
        monkeypatch.setenv("PYTHONSTARTUP", "/x")
        assert json.loads(run(bubblewrap, "import os, json\nprint(json.dumps(dict(os.environ)))").output) == {
            "PATH": "/usr/bin:/bin",
            "PYTHONHASHSEED": "0",
            "LC_ALL": "C.UTF-8",
            "PWD": "/",
        }

    def test_nothing_can_be_written(self, bubblewrap):
        code = """
            import os, tempfile
            for folder, _, names in os.walk("/"):
                for path in [folder + "/new", *(f"{folder}/{name}" for name in names)]:
                    if path == "/dev/null":
                        continue
                    try:
                        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
                        print("out", path)
                    except OSError:
                        pass
            try:
                tempfile.TemporaryFile()
                print("out")
            except OSError:
                print("held")
        """
        assert run(bubblewrap, code) == Outcome("ok", b"held\n")

    def test_no_descriptor_of_the_host(self, bubblewrap):
        code = """
            import os
            for number in range(4096):
                try:
                    kind = os.fstat(number).st_mode
                except OSError:
                    continue
                print(number, oct(kind & 0o170000))
        """
        with open(os.devnull) as inherited:
            os.set_inheritable(inherited.fileno(), True)
            output = run(bubblewrap, code).output.decode().split("\n")[:-1]
        # stdin is a sealed file of its own, stdout and what errors are named on are pipes, stderr is /dev/null
        assert output == ["0 0o100000", "1 0o10000", "2 0o20000", "3 0o10000"]

    def test_its_input_cannot_be_written(self, bubblewrap):
        code = """
            import os
            for at in (0, 5):
                try:
                    os.pwrite(0, b"x", at)
                    print("out")
                except OSError:
                    print("held")
        """
        assert run(bubblewrap, code, b"some input").output == b"held\nheld\n"

    def test_it_sees_no_other_process_and_ends_none(self, bubblewrap):
        code = """
            import os, signal
            print(os.getpid(), os.getppid(), os.getuid(), os.getgroups())
            for target in [os.getppid(), -1, *range(2, 3000)]:
                try:
                    os.kill(target, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue
                if target > 1:
                    print("out", target)
            print("held")
        """
        output = run(bubblewrap, code).output.decode().split("\n")
        assert output[0].split()[:3] == ["1", "0", "65534"] and output[1:] == ["held", ""]

    def test_doors_of_the_kernel_are_shut(self, bubblewrap):
        """By their numbers, since the C library has no function for most."""
        column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
        numbers = {name: pair[column] for name, pair in seccomp._DENIED.items() if pair[column] is not None}
        code = f"""
            import ctypes
            libc = ctypes.CDLL(None, use_errno=True)
            for name, number in {numbers!r}.items():
                result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
                if (result, ctypes.get_errno()) != (-1, {errno.EPERM}):
                    print("out", name, result, ctypes.get_errno())
            # clone3, clone of a process, prctl(PR_SET_PDEATHSIG)
            for number, first in {[(435, 0), ((56, 220)[column], int(signal.SIGCHLD)), ((157, 167)[column], 1)]!r}:
                result = libc.syscall(number, first, 0, 0, 0, 0)
                print(result, ctypes.get_errno())
        """
        held = f"-1 {errno.ENOSYS}\n-1 {errno.EPERM}\n-1 {errno.EPERM}\n"
        assert run(bubblewrap, code) == Outcome("ok", held.encode())

    def test_limits_cannot_be_raised(self, bubblewrap):
        code = """
            import resource
            for name in ("CPU", "AS", "FSIZE", "NOFILE", "NPROC", "CORE", "SIGPENDING"):
                kind = getattr(resource, "RLIMIT_" + name)
                soft, hard = resource.getrlimit(kind)
                try:
                    resource.setrlimit(kind, (hard + 1, hard + 1))
                    print("out", name)
                except (ValueError, PermissionError):
                    pass
            print("held")
        """
        assert run(bubblewrap, code) == Outcome("ok", b"held\n")


class TestFlooding:
    def test_endless_computing_is_ended(self, bubblewrap):
        before = time.monotonic()
        assert run(bubblewrap, "while True: pass", limits=SHORT).status == "timeout"
        assert time.monotonic() - before < 30

    @pytest.mark.parametrize(
        "code",
        [
            "import time\ntime.sleep(1000)",
            "import signal\nfor n in {*range(1, 65)} - {9, 19, 32, 33}: signal.signal(n, signal.SIG_IGN)\nwhile True: signal.pause()",
            "import os, time\nos.close(0); os.close(1); os.close(2)\ntime.sleep(1000)",
            "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
        ],
        ids=["sleeper", "deaf", "closed", "thread"],
    )
    def test_sleepers_are_ended_and_buried(self, bubblewrap, code):
        before = time.monotonic()
        assert run(bubblewrap, code, limits=SHORT).status == "timeout"
        assert time.monotonic() - before < 30
        assert _descendants() == []

    def test_fork_bomb(self, bubblewrap):
        bomb = """
            import os, subprocess
            for start in (os.fork, lambda: subprocess.Popen(["/bin/true"]), lambda: os.posix_spawn("/bin/true", ["true"], {}), os.forkpty):
                try:
                    start()
                    print("out")
                except OSError:
                    print("held")
        """
        assert run(bubblewrap, bomb) == Outcome("ok", b"held\n" * 4)
        assert _descendants() == []

    def test_thread_bomb(self, bubblewrap):
        code = """
            import _thread, threading
            threading.stack_size(1 << 15)
            gate, count = threading.Lock(), 1
            gate.acquire()
            try:
                while count < 5000:
                    _thread.start_new_thread(gate.acquire, ())
                    count += 1
            except RuntimeError:
                pass
            print(count, flush=True)
            import os
            os._exit(0)
        """
        # The program's own first thread is one of them.
        assert run(bubblewrap, code) == Outcome("ok", f"{MAX_THREADS}\n".encode())

    def test_memory(self, bubblewrap):
        code = """
            import mmap
            kept = []
            for take in (lambda: bytearray(1 << 20), lambda: mmap.mmap(-1, 1 << 20)):
                try:
                    while True:
                        kept.append(take())
                except (MemoryError, OSError):
                    pass
            print(len(kept) < 256)
        """
        assert run(bubblewrap, code) == Outcome("ok", b"True\n")

    def test_memory_in_pipes(self, bubblewrap):
        """Pages given to a pipe stay there when they are unmapped, and no limit of the process counts them."""
        number = {"x86_64": 278, "aarch64": 75}[platform.machine()]
        code = f"""
            import ctypes, fcntl, mmap, os
            libc = ctypes.CDLL(None, use_errno=True)
            kept, size = 0, 64 << 20
            pipes = []
            try:
                while True:
                    pipes.append(os.pipe())
            except OSError:
                pass
            for _, end in pipes:
                try:
                    slots = fcntl.fcntl(end, 1031, 1 << 20) // 4096
                except OSError:
                    slots = 16
                os.set_blocking(end, False)
                for start in range(0, slots, 16):
                    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                    area.madvise(mmap.MADV_HUGEPAGE)
                    at = ctypes.addressof(view := ctypes.c_char.from_buffer(area))
                    at += -at % (2 << 20)
                    vectors = (ctypes.c_size_t * 32)()
                    for slot in range(16):
                        ctypes.memset(at + slot * (2 << 20), 1, 1)
                        vectors[2 * slot : 2 * slot + 2] = [at + slot * (2 << 20), 1]
                    kept += max(0, libc.syscall({number}, end, vectors, 16, 0))
                    del view
                    area.close()
            print(kept)
        """
        assert run(bubblewrap, code) == Outcome("ok", b"0\n")

    def test_a_pair_of_sockets_holds_little(self, bubblewrap):
        """No descriptors, which would be past their limit, and no more bytes than the kernel's default."""
        code = """
            import os, socket
            ours, theirs = socket.socketpair()
            for action in (
                lambda: socket.send_fds(ours, [b"x"], list(os.pipe())),
                lambda: ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24),
            ):
                try:
                    action()
                    print("out")
                except PermissionError:
                    print("held")
        """
        assert run(bubblewrap, code) == Outcome("ok", b"held\nheld\n")

    def test_signals_that_wait_are_few(self, bubblewrap):
        code = """
            import ctypes, signal, os
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
            value = ctypes.c_void_p(0)
            libc = ctypes.CDLL(None)
            count = 0
            while count < 10_000 and libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), value) == 0:
                count += 1
            print(count)
        """
        assert run(bubblewrap, code) == Outcome("ok", b"64\n")

    def test_endless_output(self, bubblewrap):
        before = psutil.Process().memory_info().rss
        assert run(bubblewrap, "while True: print('x' * (1 << 20))") == Outcome("output")
        assert run(bubblewrap, "import os\nwhile True: os.write(3, b'x' * 4096)", limits=SHORT).status == "timeout"
        assert psutil.Process().memory_info().rss - before < 100 << 20

    def test_as_much_output_as_there_is_room_for(self, bubblewrap):
        assert run(bubblewrap, "print('x' * 9, end='')", room=9) == Outcome("ok", b"x" * 9)
        assert run(bubblewrap, "print('x' * 10, end='')", room=9) == Outcome("output")

    def test_nothing_outlives_a_killed_trainer(self, bubblewrap, tmp_path):
        trainer = """
            from r1_recipes.sandbox import Bubblewrap, Call, Limits, Program
            code = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0); time.sleep(1000)"
            next(Bubblewrap().run(Program(code), [Call(b"", 100)], Limits(500, 256)))
        """
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(trainer)], cwd=tmp_path)
        inside: list[psutil.Process] = []
        try:
            deadline = time.monotonic() + 60
            # bubblewrap, and the program that it has become the parent of
            while len(inside) < 2 and time.monotonic() < deadline:
                inside = psutil.Process(process.pid).children(recursive=True)
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        assert len(inside) == 2
        _, alive = psutil.wait_procs(inside, timeout=30)
        assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


def _descendants() -> list[psutil.Process]:
    """Processes of ours that are bubblewrap or live in it, the dead that nobody buried among them."""
    return [one for one in psutil.Process().children(recursive=True) if "bwrap" in one.name() or one.status() == psutil.STATUS_ZOMBIE]


class TestFilter:
    """The system call filter, read as the kernel reads it: on any machine, for both architectures."""

    @pytest.mark.parametrize(
        ("machine", "architecture", "fork", "clone", "read"), [("x86_64", 0xC000003E, 57, 56, 0), ("aarch64", 0xC00000B7, None, 220, 63)]
    )
    def test_verdicts(self, monkeypatch, machine, architecture, fork, clone, read):
        monkeypatch.setattr(platform, "machine", lambda: machine)
        lines = list(struct.iter_unpack("=HBBI", seccomp.program()))
        allow, kill, eperm, enosys = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS

        def verdict(number: int, first: int = 0, second: int = 0, called_as: int = architecture) -> int:
            data = struct.pack("=IIQ6Q", number, called_as, 0, first, second, *[0] * 4)
            at, value = 0, 0
            while True:
                operation, true, false, k = lines[at]
                at += 1
                if operation == 0x20:
                    (value,) = struct.unpack_from("=I", data, k)
                elif operation == 0x06:
                    return k
                else:
                    holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[operation]
                    at += true if holds else false

        assert verdict(read) == allow
        if fork is not None:
            assert verdict(fork) == eperm
            assert verdict(0x40000000 | read) == kill
        for pair in seccomp._DENIED.values():
            number = pair[machine == "aarch64"]
            assert number is None or verdict(number) == eperm
        assert verdict(435) == enosys
        # CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID: the C library's thread
        assert verdict(clone, 0x3D0F00) == allow
        assert verdict(clone, signal.SIGCHLD) == verdict(clone, 0x10000000) == eperm
        prctl, fcntl = {"x86_64": (157, 72), "aarch64": (167, 25)}[machine]
        assert verdict(prctl, 1) == verdict(prctl, 22) == eperm and verdict(prctl, 15) == allow
        assert verdict(fcntl, 1, 1031) == eperm and verdict(fcntl, 1, 1) == verdict(fcntl, 1031) == allow
        # as a 32-bit program would call it
        assert verdict(read, called_as=0x40000003) == kill

    def test_every_number_is_one_of_its_architecture(self):
        for column in (0, 1):
            numbers = [pair[column] for pair in seccomp._DENIED.values() if pair[column] is not None]
            assert len(numbers) == len(set(numbers))


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is first on the path, for commands that are made up."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    # Root would hand over to nobody, who cannot read pytest's folders.
    monkeypatch.setattr(bubblewrap_module, "_as_nobody", list)
    bubblewrap_module.interpreter.cache_clear()
    yield folder
    bubblewrap_module.interpreter.cache_clear()


def command(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    (folder / name).chmod(0o755)


class TestRefusal:
    def test_without_bubblewrap(self, monkeypatch):
        monkeypatch.setattr(bubblewrap_module.shutil, "which", lambda name, **_: None)
        with pytest.raises(RecipeError) as refused:
            Bubblewrap().check()
        for word in ("bwrap is not installed", "apt-get install bubblewrap", "code_provider: podman or docker", "E2B_API_KEY"):
            assert word in str(refused.value)

    def test_on_another_system(self, monkeypatch):
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
        with pytest.raises(RecipeError, match="there is none for"):
            Bubblewrap().check()

    def test_where_namespaces_are_forbidden(self, commands):
        command(commands, "bwrap", "import sys\nsys.exit('bwrap: setting up uid map: Permission denied')")
        with pytest.raises(RecipeError) as refused:
            Bubblewrap().check()
        for word in ("does not work here: bwrap: setting up uid map: Permission denied", "user namespaces", "--privileged"):
            assert word in str(refused.value)

    def test_a_bubblewrap_that_holds_nothing_is_found_out(self, commands):
        """It starts the program bare, so this program is the probe's, and no other."""
        command(commands, "bwrap", "import os, sys\nwords = sys.argv[sys.argv.index('--') + 1:]\nos.execv(words[0], words)")
        box = Bubblewrap()
        with pytest.raises(RecipeError) as refused:
            box.check()
        for word in ("does not hold here", "a file of the host can be seen", "the program can start processes"):
            assert word in str(refused.value)

    def test_a_sandbox_that_answers_nothing(self, commands):
        command(commands, "bwrap", "")
        with pytest.raises(RecipeError, match="did not start a program"):
            Bubblewrap().check()

    def test_one_that_talks_before_it_starts(self, commands):
        command(commands, "bwrap", "print('welcome')")
        with pytest.raises(SandboxError):
            run(Bubblewrap(), "print(1)")

    @pytest.mark.parametrize("found", ["host_file", "write", "network", "memory"])
    def test_each_leak_is_named(self, found):
        assert len(leaks({"uid": 65534, found: True})) == 1
        assert leaks({"uid": 65534, found: None}) == []
        assert leaks({"uid": 0}) == ["the program is root"]

    @pytest.mark.parametrize(
        ("provider", "words"),
        [
            ("local", ["it ran model code bare", "code_provider: bubblewrap"]),
            ("morph", ["code_provider: e2b"]),
            ("piston", ["docker or podman"]),
            ("bubblewarp", ["unknown value 'bubblewarp'", "Did you mean 'bubblewrap'", "bubblewrap, docker, e2b, podman"]),
        ],
    )
    def test_unknown_providers(self, provider, words):
        with pytest.raises(RecipeError) as refused:
            sandboxes.get_sandbox(provider)
        assert all(word in str(refused.value) for word in words)

    def test_one_sandbox_a_kind(self):
        assert sandboxes.get_sandbox("bubblewrap") is sandboxes.get_sandbox("bubblewrap", None, None)
        assert sandboxes.get_sandbox("docker", "a") is not sandboxes.get_sandbox("docker", "b")


class TestContainer:
    """The command line, against a client that notes it down. What an engine makes of it was tried by hand: docs/code_reward.md."""

    @pytest.fixture
    def engine(self, commands: Path) -> Path:
        notes = commands / "notes"
        command(
            commands,
            "docker",
            f"""
            import json, subprocess, sys, time
            with open({str(notes)!r}, "a") as sink:
                sink.write(json.dumps(sys.argv[1:]) + "\\n")
            if sys.argv[1] == "image":
                sys.exit("no such image" if sys.argv[3] == "absent" else 0)
            if sys.argv[1] == "run":
                sys.stdout.write("\\x06")
                sys.stdout.flush()
                if "asleep" in sys.argv:
                    time.sleep(1000)
                data = sys.stdin.buffer.read()
                print(len(data))
            """,
        )
        return notes

    @staticmethod
    def noted(notes: Path) -> list[list[str]]:
        return [json.loads(line) for line in notes.read_text().splitlines()]

    @pytest.mark.parametrize("name", ["docker", "podman"])
    def test_what_a_container_may(self, engine, name):
        engine.with_name(name).write_bytes(engine.with_name("docker").read_bytes())
        engine.with_name(name).chmod(0o755)
        box = Container(name, "python:3.12-slim")
        job = payload(Program("print(1)"), Call(b"in", 100), ROOM, own_user=False)
        assert run(box, "print(1)", b"in", room=100) == Outcome("ok", f"{len(job)}\n".encode())
        (words,) = self.noted(engine)
        line = " ".join(words)
        for flag in (
            "run --rm --interactive",
            "--network none",
            "--ipc none",
            "--read-only",
            "--cap-drop ALL",
            "--security-opt no-new-privileges",
            "--user 65534:65534",
            "--memory 256m --memory-swap 256m",
            "--cpus 1",
            "--pids-limit 64",
            "--ulimit cpu=30:30",
            "--pull never",
        ):
            assert flag in line
        assert ("--read-only-tmpfs=false" in words) == (name == "podman")
        assert not {"--tmpfs", "--volume", "-v", "--privileged", "--env-file"} & set(words)
        # grace 10 s + twice 30 s
        assert words[-8:] == ["python:3.12-slim", "-s", "KILL", "70", "python3", "-s", "-B", "-c", RUNNER][-8:]
        assert words[words.index("--entrypoint") + 1] == "timeout"

    def test_another_language_has_a_command(self, engine):
        box = Container("docker", "gcc:14", "g++ -x c++ /tmp/solution -o /tmp/a && /tmp/a")
        source = base64.b64encode(b"int main() {}")
        assert run(box, "int main() {}", b"1 2\n").output == f"{len(source) + 1 + 4}\n".encode()
        (words,) = self.noted(engine)
        assert words[-3:-1] == ["sh", "-c"] and words[-1].endswith("&& g++ -x c++ /tmp/solution -o /tmp/a && /tmp/a")
        assert "--tmpfs" in words

    def test_the_shell_hands_program_and_input_over(self, tmp_path):
        """The line that a container's shell gets, in a shell of ours, with a path of ours and a command that does no harm."""
        from r1_recipes.rewards.sandbox.container import _SHELL

        solution = tmp_path / "solution"
        line = _SHELL.format(command=f"cat {solution} -").replace("/tmp/solution", str(solution), 1)
        stdin = base64.b64encode(b"program\n") + b"\nfirst\nsecond"
        done = subprocess.run(["sh", "-c", line], input=stdin, capture_output=True, timeout=60)
        assert done.stdout == READY + b"program\nfirst\nsecond"

    def test_a_sleeper_is_killed_by_name(self, engine, monkeypatch):
        from r1_recipes.rewards.sandbox import container

        monkeypatch.setattr(container, "START_SECONDS", 0.5)
        assert run(Container("docker", "asleep"), "", limits=SHORT).status == "timeout"
        started, killed = self.noted(engine)
        assert killed == ["kill", "--signal", "KILL", started[started.index("--name") + 1]]

    def test_refusals(self, engine):
        with pytest.raises(RecipeError, match=r"'absent' is not here .*no such image.*docker pull absent"):
            Container("docker", "absent").check()
        with pytest.raises(RecipeError, match="no-such-engine is not installed"):
            Container("no-such-engine", "absent").check()
        with pytest.raises(RecipeError, match="cannot be run"):
            Container("docker", "python:3.12-slim").check()  # what it prints is no answer of the probe's

    def test_a_command_is_tried_once(self, engine):
        box = Container("docker", "gcc:14", "true")
        box.check()
        box.check()
        assert [words[0] for words in self.noted(engine)] == ["image", "run"]


class TestE2B:
    @pytest.fixture
    def service(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """The client's calls that are used here, as e2b 2.63 has them; it runs nothing and answers what a trial expects."""
        seen: list[Any] = []

        class CommandExitException(Exception):
            def __init__(self, code: int, stdout: str) -> None:
                self.exit_code, self.stdout = code, stdout

        class Machine:
            def __init__(self) -> None:
                self.files = self.commands = self

            def write(self, path: str, data: str | bytes) -> None:
                seen.append(("write", path, data))

            def run(self, line: str, timeout: float) -> Any:
                seen.append(("run", line))
                reply = answers.pop(0)
                if isinstance(reply, BaseException):
                    raise reply
                return types.SimpleNamespace(exit_code=0, stdout=base64.b64encode(reply).decode())

            def kill(self) -> None:
                seen.append(("kill",))

        def create(**options: Any) -> Machine:
            seen.append(("create", options))
            return Machine()

        module = types.ModuleType("e2b")
        module.__spec__ = importlib.machinery.ModuleSpec("e2b", None)
        module.Sandbox = types.SimpleNamespace(create=create)
        module.CommandExitException, module.TimeoutException = CommandExitException, type("TimeoutException", (Exception,), {})
        answers: list[Any] = []
        seen.append(answers)
        monkeypatch.setitem(sys.modules, "e2b", module)
        monkeypatch.setenv("E2B_API_KEY", "a-key")
        return seen

    def test_refusals(self, service, monkeypatch):
        monkeypatch.delenv("E2B_API_KEY")
        with pytest.raises(RecipeError, match="E2B_API_KEY is not set"):
            sandboxes.E2B().check()
        monkeypatch.delitem(sys.modules, "e2b")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(RecipeError, match="pip install e2b"):
            sandboxes.E2B().check()

    def test_a_machine_a_program_without_internet(self, service):
        answers, *_ = service
        answers += [READY + b"trial\n"]
        box = sandboxes.E2B()
        box.check()
        box.check()
        assert [entry[0] for entry in service[1:]] == ["create", "write", "write", "run", "kill"]
        assert service[1][1] == {"template": "code-interpreter-v1", "timeout": 300, "allow_internet_access": False}
        assert service[3][2].endswith(b"trial\n")

    def test_outcomes(self, service):
        answers, *_ = service
        client = sys.modules["e2b"]
        late = client.CommandExitException(137, base64.b64encode(READY + b"half").decode())
        wrong = client.CommandExitException(1, base64.b64encode(READY).decode())
        answers += [READY + b"7\n", late, wrong, READY + b"x" * 11, client.TimeoutException()]
        calls = [Call(b"", 10)] * 5
        outcomes = list(sandboxes.E2B("mine").run(Program("print(7)"), calls, ROOM))
        assert [one.status for one in outcomes] == ["ok", "timeout", "error", "output", "timeout"] and outcomes[0].output == b"7\n"
        assert [entry[0] for entry in service[1:]].count("create") == 1 and service[-1] == ("kill",)

    def test_what_the_service_fails_is_not_the_programs(self, service):
        answers, *_ = service
        client = sys.modules["e2b"]
        answers += [RuntimeError("gone")]
        with pytest.raises(SandboxError, match="RuntimeError: gone"):
            run(sandboxes.E2B(), "print(7)")
        answers += [b""]
        with pytest.raises(SandboxError, match="no program was started"):
            run(sandboxes.E2B(), "print(7)")
        # A machine that cannot be ended ends by itself; the program was judged all the same.
        machine = client.Sandbox.create()
        type(machine).kill = lambda self: 1 / 0
        client.Sandbox.create = lambda **options: machine
        answers += [READY + b"7\n"]
        assert run(sandboxes.E2B(), "print(7)").output == b"7\n"
        client.Sandbox.create = lambda **options: 1 / 0
        with pytest.raises(SandboxError, match="no machine: ZeroDivisionError"):
            run(sandboxes.E2B(), "print(7)")


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.ENOENT, errno.EMFILE])
def test_a_command_that_cannot_be_started_is_the_sandbox_s_failure(monkeypatch, number):
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    call = Call(b"", 1 << 10)
    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(SandboxError, match=f"a-sandbox cannot be started: .*{os.strerror(number)}"):
        watch(["a-sandbox"], b"", call, ROOM, kill=lambda process: None, environment={})


def test_many_at_once_do_not_disturb_each_other(bubblewrap):
    found: dict[int, bytes] = {}

    def work(number: int) -> None:
        found[number] = run(bubblewrap, "print(int(input()) ** 2)", f"{number}\n".encode()).output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number**2}\n".encode() for number in range(8)}
    assert _descendants() == []
