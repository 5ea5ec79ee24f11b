"""Programs in the sandbox: what runs, what is stopped, and that nothing is left behind."""

import json
import shutil
import subprocess
import time

import pytest

from r1_recipes.extras import sandbox
from r1_recipes.extras.code import get_run
from r1_recipes.extras.tools import python

needs_bwrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")

RECURSION = """
import sys
sys.setrecursionlimit(10**6)
def depth(n):
    return n and 1 + depth(n - 1)
print(depth(50_000))
"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor
import time
with ThreadPoolExecutor(32) as pool:
    print(sum(pool.map(lambda n: (time.sleep(0.01), n)[1], range(64))))
"""
FORK_BOMB = """
import ctypes, time
fork, started = ctypes.CDLL(None).fork, 0
while (child := fork()) >= 0:
    if child == 0:
        time.sleep(99)
    started += 1
print(started)
"""
WRITE = """
for path in ("/x", "/usr/x", "/dev/x"):
    try:
        open(path, "w")
        print("written", path)
    except OSError:
        pass
"""
DATACLASS = """
from __future__ import annotations
import dataclasses, pickle
@dataclasses.dataclass
class Point:
    x: int
if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(Point(3))))
    exit()
"""
SOLUTION = (
    "class Solution:\n    def add(self, a, b):\n        print('noise')\n        return [a + b]"
)

# Name: program, stdin, further arguments, status, output, detail.
PROGRAMS = {
    "reads stdin": ("print(input()[::-1])", b"\xc3\xa9a\n", {}, "ok", "aé\n", ""),
    "a function": ("def f(a):\n    return a * 2", b"[[1]]", {"function": "f"}, "ok", "[1, 1]", ""),
    "a method": (SOLUTION, b"[1, 2]", {"function": "add"}, "ok", "[3]", ""),
    "a class": (DATACLASS, b"", {}, "ok", "Point(x=3)\n", ""),
    "recursion of 50,000": (RECURSION, b"", {}, "ok", "50000\n", ""),
    "32 threads": (THREADS, b"", {}, "ok", "2016\n", ""),
    "an error": ("print(1)\n1 / 0", b"", {}, "error", "1\n", "ZeroDivisionError"),
    "no such function": ("x = 1", b"[]", {"function": "f"}, "error", "", "KeyError"),
    "an exit status": ("raise SystemExit(1)", b"", {}, "error", "", ""),
    "an endless loop": ("while True: pass", b"", {"seconds": 1}, "timeout", "", ""),
    "sleep": ("import time; time.sleep(99)", b"", {"seconds": 1}, "timeout", "", ""),
    "8 GB": ("x = bytearray(8 << 30)", b"", {}, "error", "", "MemoryError"),
    "a flood": ("while True: print('x' * 999)", b"", {"output_bytes": 99}, "error", "x" * 99, "OSError"),
    "a fork bomb": (FORK_BOMB, b"", {}, "ok", "63\n", ""),
    "the network": ("import socket\nsocket.create_connection(('192.0.2.1', 80), 1)", b"", {}, "error", "", "OSError"),
    "writing": (WRITE, b"", {}, "ok", "", ""),
}  # fmt: skip


@needs_bwrap
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name):
    code, stdin, given, status, output, detail = PROGRAMS[name]
    outcome = sandbox.run(code, stdin, **given)
    assert (outcome.status, outcome.output.decode(), outcome.detail) == (status, output, detail)


@needs_bwrap
def test_no_process_is_left_behind():
    marked = FORK_BOMB.replace("print(started)", "time.sleep(99)  # left behind")
    assert sandbox.run(marked, seconds=1).status == "timeout"
    time.sleep(0.2)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "MALLOC_ARENA_MAX" not in running


@needs_bwrap
def test_the_tool_python():
    assert python("print(6 * 7)") == "42\n"
    assert python("x = 1") == "(printed nothing)"
    with pytest.raises(RuntimeError, match="error NameError before"):
        python("print('before')\nx")


@needs_bwrap
def test_a_provider_of_ones_own_has_the_signature_of_run(tmp_path, monkeypatch):
    (tmp_path / "my_machine.py").write_text(
        "from r1_recipes.extras.sandbox import Outcome\n"
        "def run(code, stdin=b'', *, function=None, seconds=5, memory_mb=512, output_bytes=1):\n"
        "    return Outcome('ok', stdin.upper())\n"
    )
    monkeypatch.chdir(tmp_path)
    assert get_run("my_machine:run")("x", b"a").output == b"A"
    assert json.loads(sandbox.run("def f(): return 'a'", b"[]", function="f").output) == "a"
