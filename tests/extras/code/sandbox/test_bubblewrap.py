"""Programs that try to break out, flood, bomb, hide and cheat."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from r1_recipes.extras.code.sandbox import Call, Outcome, seccomp
from r1_recipes.extras.code.sandbox.bubblewrap import MAX_THREADS
from tests.extras.code.sandbox import SHORT, run


class TestHonestPrograms:
    def test_a_program_reads_and_prints(self, bubblewrap):
        assert run(bubblewrap, "print(2 * int(input()))", b"21\n") == Outcome("ok", b"42\n")

    @pytest.mark.parametrize(
        "code",
        [
            "def twice(n):\n    print('noise')\n    return [n, n]",
            "class Solution:\n    def twice(self, n):\n        return (n, n)",
        ],
    )
    def test_a_function_is_called(self, bubblewrap, code):
        assert run(bubblewrap, code, b"[3]", "twice") == Outcome("ok", b"[3, 3]")

    def test_calls_are_separate(self, bubblewrap):
        code = (
            "import builtins\nbuiltins.seen = getattr(builtins, 'seen', 0) + "
            "1\nprint(builtins.seen, input())"
        )
        calls = [Call(f"{number}\n".encode(), 1 << 16) for number in range(3)]
        outcomes = [bubblewrap.run(code, call) for call in calls]
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
    def test_how_a_program_ends_is_reported(self, bubblewrap, code, status, detail):
        assert run(bubblewrap, code) == Outcome(status, b"", detail)

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
    """Each program says ``out`` where it got through; that it did not is seen from outside too,
    where there is something to see.
    """

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
            # The folders of pytest are the user's alone; even a file that everybody may read is not
            # to be found.
            if folder.owner() == Path.home().owner() and folder != folder.parent:
                with contextlib.suppress(PermissionError):
                    folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
        places = [
            secret,
            Path(__file__),
            Path.home(),
            "/etc",
            "/proc",
            "/sys",
            "/home",
            "/root/.ssh",
            "/var",
            "/tmp",
            "/run",
            "/dev/shm",
        ]
        places += [
            "/dev/tty",
            "/dev/sda",
            "/dev/vda",
            "/dev/mem",
            "/dev/kmsg",
            "/dev/fd",
            "/bin/sh",
        ]
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
            "import importlib.util\nprint([name for name in ('pytest', 'psutil', 'torch', "
            "'r1_recipes') if importlib.util.find_spec(name)])"
        )
        assert run(bubblewrap, code).output == b"[]\n"

    def test_no_environment(self, bubblewrap, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "a-key")
        monkeypatch.setenv("PYTHONSTARTUP", "/x")
        assert json.loads(
            run(bubblewrap, "import os, json\nprint(json.dumps(dict(os.environ)))").output
        ) == {
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
        # stdin is a file of its own, stderr /dev/null; pipes for stdout, the kind of an error and,
        # as stdout again, a function's result
        assert output == ["0 0o100000", "1 0o10000", "2 0o20000", "3 0o10000", "4 0o10000"]

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
        code = f"""
            import ctypes
            libc = ctypes.CDLL(None, use_errno=True)
            for number in {seccomp.denied_numbers()!r} + [*range(424, 480)]:
                result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
                if (result, ctypes.get_errno()) != (-1, {errno.EPERM} if number < 424 else {errno.ENOSYS}):
                    print("out", number, result, ctypes.get_errno())
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
            "import signal\nfor n in {*range(1, 65)} - {9, 19, 32, 33}: signal.signal(n, "
            "signal.SIG_IGN)\nwhile True: signal.pause()",
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
        """Pages given to a pipe stay there when they are unmapped, and no limit of the process
        counts them.
        """
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
        """No descriptors, which would be past their limit, and no more bytes than the kernel's
        default.
        """
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
        assert (
            run(bubblewrap, "import os\nwhile True: os.write(3, b'x' * 4096)", limits=SHORT).status
            == "timeout"
        )
        assert psutil.Process().memory_info().rss - before < 100 << 20

    def test_as_much_output_as_there_is_room_for(self, bubblewrap):
        assert run(bubblewrap, "print('x' * 9, end='')", room=9) == Outcome("ok", b"x" * 9)
        assert run(bubblewrap, "print('x' * 10, end='')", room=9) == Outcome("output")

    def test_nothing_outlives_a_killed_trainer(self, bubblewrap, tmp_path):
        trainer = """
            from r1_recipes.extras.code.sandbox import Call
            from r1_recipes.extras.code.sandbox.bubblewrap import Bubblewrap
            code = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0); time.sleep(1000)"
            Bubblewrap().run(code, Call(b"", 100, None, 500))
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
    """Processes of ours that are bubblewrap or live in it, the dead that nobody buried
    among them.
    """
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if "bwrap" in one.name() or one.status() == psutil.STATUS_ZOMBIE
    ]


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
