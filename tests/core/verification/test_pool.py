"""Hanging and memory-hungry answers, killed workers: no honest verdict is lost, and nothing is
left.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from r1_recipes import verification
from r1_recipes.verification import STATS, grade, pool

pytestmark = pytest.mark.slow

# A power whose exponent is written out, so that no guard sees its size: 95 million digits, minutes
# inside one C function.
HANGS = "9^{9999*9999}"


@pytest.fixture
def fresh():
    """No workers and no verdicts of earlier tests; gives the statistics before."""
    verification.close()
    verification._decided.clear()
    verification._read.cache_clear()
    return dataclasses.replace(STATS)


def surds(n, offset=0):
    """Golds and answers that need a parser: 2√k, with √4k right and √(4k+1) wrong in turn."""
    golds = [rf"2\sqrt{{{k}}}" for k in range(1000 + offset, 1000 + offset + n)]
    return (
        golds,
        [rf"\sqrt{{{4 * (1000 + offset + i) + i % 2}}}" for i in range(n)],
        [i % 2 == 0 for i in range(n)],
    )


def pids() -> set[int]:
    server = pool.workers_of(os.getpid())[1].pid
    return set(map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split()))


def test_hanging_worker_is_killed_and_the_next_batch_is_normal(fresh):
    # Off the main thread, where math-verify's own timeout raises.
    verdicts = []
    thread = threading.Thread(
        target=lambda: verdicts.extend(grade(["5", r"5\sqrt{7}"], [HANGS, r"\sqrt{175}"]))
    )
    thread.start()
    thread.join(60)
    assert verdicts == [False, True]
    assert STATS.timeouts == fresh.timeouts + 1
    golds, answers, right = surds(3)
    assert grade(golds, answers) == right
    assert STATS.timeouts == fresh.timeouts + 1
    started = time.monotonic()
    assert grade(["5"], [HANGS]) == [False]  # remembered, not run again
    assert time.monotonic() - started < 0.5


def test_a_killed_worker_costs_no_verdict(fresh):
    """What the kernel does if memory is short: one worker dies in a batch, then all of them, then
    the fork server between two.
    """
    golds, answers, right = surds(400)
    grade(golds[:2], answers[:2])
    victim = min(pids())
    killer = threading.Timer(0.03, os.kill, (victim, signal.SIGKILL))
    killer.start()
    assert grade(golds, answers) == right
    killer.join()
    assert victim not in pids()
    for pid in pids():
        os.kill(pid, signal.SIGKILL)
    golds, answers, right = surds(40, offset=1000)
    assert grade(golds, answers) == right
    pool.workers_of(os.getpid())[1].kill()
    golds, answers, right = surds(8, offset=2000)
    assert grade(golds, answers) == right
    assert STATS.timeouts == fresh.timeouts


def test_memory_is_capped():
    # 2^(8e9 + …) is an integer of over 4 GB: it must fail in the worker, not take the machine down.
    assert grade(["5"], ["2^{90*90*90*90*9*99}"]) == [False]


def run_script(
    tmp_path: Path, script: str, *arguments: str, **kwargs
) -> subprocess.CompletedProcess:
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, *(arguments or ["script.py"])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        **kwargs,
    )


@pytest.mark.parametrize("arguments", [["script.py"], ["-m", "script"]], ids=["file", "module"])
def test_main_is_not_imported_again(tmp_path, arguments):
    # A stand-in for torch that notes who imports it; the script has no __main__ guard.
    (tmp_path / "torch.py").write_text(
        "import os\nopen('imports', 'a').write(f'{os.getpid()}\\n')\n"
    )
    done = run_script(
        tmp_path,
        """
        import torch
        from r1_recipes.verification import grade
        print(grade(["(1,2)", "(1,3)"], ["(1, 2)", "(1, 2)"]))
        """,
        *arguments,
    )
    assert (done.stdout, done.returncode) == ("[True, False]\n", 0), done.stderr
    assert len((tmp_path / "imports").read_text().splitlines()) == 1


def test_imports_no_torch(tmp_path):
    done = run_script(
        tmp_path,
        """
        import sys
        import r1_recipes.rewards.accuracy, r1_recipes.verification
        from r1_recipes.verification import expressions, judge
        expressions.enter_worker()  # what a worker imports
        judge(["x+1"], ["1+x"])
        print(sorted({"torch", "transformers", "trl"} & set(sys.modules)))
        """,
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_die_with_the_parent(tmp_path):
    done = run_script(
        tmp_path,
        f"""
        import os, signal, sys, threading, time
        from r1_recipes import verification
        verification.grade(["(1,2)", "(1,3)"], ["(1, 2)", "(1, 3)"])
        threading.Thread(target=verification.grade, args=(["5"], ["{HANGS}"]), daemon=True).start()
        time.sleep(1)  # one worker is now deep inside an integer power, the other (if there are two) waits
        server = verification.pool.workers_of(os.getpid())[1].pid
        children = open(f"/proc/{{server}}/task/{{server}}/children").read().split()
        print(server, *children, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    pids = done.stdout.split()
    assert pids, done.stderr

    def alive(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except FileNotFoundError:
            return False

    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [pid for pid in pids if alive(pid)]
