"""Programs that try to break out, flood, bomb, hide and cheat."""

from __future__ import annotations

import contextlib
import socket
import stat
import time
from pathlib import Path

import psutil
import pytest

from r1_recipes.extras.code.sandbox import Outcome
from tests.extras.code.sandbox import SHORT, run

pytestmark = pytest.mark.slow


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


class TestFlooding:
    def test_endless_computing_is_ended(self, bubblewrap):
        before = time.monotonic()
        assert run(bubblewrap, "while True: pass", limits=SHORT).status == "timeout"
        assert time.monotonic() - before < 30

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

    def test_endless_output(self, bubblewrap):
        before = psutil.Process().memory_info().rss
        assert run(bubblewrap, "while True: print('x' * (1 << 20))") == Outcome("output")
        assert (
            run(bubblewrap, "import os\nwhile True: os.write(3, b'x' * 4096)", limits=SHORT).status
            == "timeout"
        )
        assert psutil.Process().memory_info().rss - before < 100 << 20


def _descendants() -> list[psutil.Process]:
    """Processes of ours that are bubblewrap or live in it, the dead that nobody buried
    among them.
    """
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if "bwrap" in one.name() or one.status() == psutil.STATUS_ZOMBIE
    ]
