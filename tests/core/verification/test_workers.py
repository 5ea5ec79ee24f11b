"""Hanging and memory-hungry answers, killed workers: no honest verdict is lost, nothing is left."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from r1_recipes.verification import Refusal, grade, judge, pool

pytestmark = pytest.mark.slow


def hangs(number):
    """A power whose exponent is written out, so that no rule sees its size: 95 million digits,
    minutes inside one C function.
    """
    return f"9^{{9999*9999+{number}}}"


def surds(first, count):
    """Golds and answers that need math-verify, every second one wrong: 2√k against √4k, √(4k+1)."""
    ks = range(first, first + count)
    answers = [rf"\sqrt{{{4 * k + k % 2}}}" for k in ks]
    return [rf"2\sqrt{{{k}}}" for k in ks], answers, [k % 2 == 0 for k in ks]


def server():
    return pool.workers_of(os.getpid())[1]


def workers():
    pid = server().pid
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def processor_seconds(pids):
    ticks = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15] for pid in pids
    ]
    return sum(int(tick) for pair in ticks for tick in pair) / os.sysconf("SC_CLK_TCK")


def test_a_batch_of_64_with_8_that_hang():
    golds, answers, right = surds(1000, 64)
    for row in range(3, 64, 8):
        answers[row], right[row] = hangs(row), False
    assert grade([r"\sqrt{8}"], [r"2\sqrt{2}"]) == [True]  # start-up is not what is measured
    started, busy = time.monotonic(), os.times()
    verdicts = judge(golds, answers)
    taken = time.monotonic() - started
    assert [verdict.right for verdict in verdicts] == right
    assert sum(verdict.refusal is Refusal.SLOW for verdict in verdicts) == 8
    assert os.times().user - busy.user < 0.5  # this process only waits
    idle = os.getloadavg()[0] < 0.5 and os.cpu_count() >= 2
    assert taken < (5.5 if idle else 120)


@pytest.mark.parametrize("victims", ["one", "all", "idle", "server"])
def test_a_killed_process_costs_no_other_verdict(victims):
    first = 2000 + 1000 * ["one", "all", "idle", "server"].index(victims)
    golds, answers, right = surds(first, 400)
    assert grade(golds[:2], answers[:2]) == right[:2]
    pids = {server().pid} if victims == "server" else workers()
    pids = {min(pids)} if victims != "all" else pids
    killer = threading.Timer(
        0 if victims == "idle" else 0.03, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids]
    )
    killer.start()
    if victims == "idle":
        killer.join()
        time.sleep(0.2)
    verdicts = judge(golds, answers)
    killer.join()
    lost = [verdict.refusal is Refusal.SLOW for verdict in verdicts]
    assert sum(lost) <= len(pids)  # the comparison that the process was at
    assert all(
        gone or verdict.right == wanted
        for gone, verdict, wanted in zip(lost, verdicts, right, strict=True)
    )
    assert not pids & workers()


def test_memory_is_capped():
    # 2^(8e9 + …) is an integer of over 4 GB: it must fail in the worker, not take the machine down.
    assert grade(["5"], ["2^{90*90*90*90*9*99}"]) == [False]


def test_an_interrupt_leaves_no_reply_for_the_next_answer():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        judge(["1"] * 4, [hangs(number) for number in range(100, 104)])
    signal.signal(signal.SIGALRM, before)
    golds, answers, right = surds(7000, 8)
    assert grade(golds, answers) == right


def test_a_fork_of_the_trainer_has_workers_of_its_own():
    golds, answers, right = surds(8000, 20)
    assert grade(golds[:4], answers[:4]) == right[:4]
    child = os.fork()
    if not child:
        os._exit(grade(golds[4:], answers[4:]) != right[4:])
    assert grade(golds[4:], answers[4:]) == right[4:]
    assert os.waitpid(child, 0)[1] == 0


def test_closed_workers_end_and_come_back():
    golds, answers, right = surds(9000, 4)
    assert grade(golds[:2], answers[:2]) == right[:2]
    pids = workers()
    pool.workers_of.cache_clear()  # stops them
    wait_for(pids)
    assert grade(golds[2:], answers[2:]) == right[2:]


def wait_for(pids):
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if alive(pid)]


def run_script(tmp_path, script, *arguments, **environment):
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    command = [sys.executable, *(arguments or ["script.py"])]
    return subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("arguments", [["script.py"], ["-m", "script"]], ids=["file", "module"])
def test_main_is_not_imported_again(tmp_path, arguments):
    # A stand-in for torch that notes who imports it; the script has no __main__ guard.
    (tmp_path / "torch.py").write_text(
        "import os\nopen('imports', 'a').write(f'{os.getpid()}\\n')\n"
    )
    script = r"""
        import torch
        from r1_recipes.verification import grade
        print(grade([r"2\sqrt{3}"] * 2, [r"\sqrt{12}", r"\sqrt{13}"]))
        """
    done = run_script(tmp_path, script, *arguments)
    assert (done.stdout, done.returncode) == ("[True, False]\n", 0), done.stderr
    assert len((tmp_path / "imports").read_text().splitlines()) == 1


def test_nothing_here_imports_torch(tmp_path):
    script = r"""
        import sys
        import r1_recipes.verification
        from r1_recipes.verification import expressions, judge
        assert "sympy" not in sys.modules  # the trainer's process needs none of it
        expressions.enter_worker()  # what a worker imports
        judge(["x+1"], ["1+x"])
        print(sorted({"torch", "transformers", "trl"} & set(sys.modules)))
        """
    done = run_script(tmp_path, script)
    assert done.stdout == "[]\n", done.stderr


def test_workers_die_with_the_parent(tmp_path):
    script = rf"""
        import os, signal, threading, time
        from r1_recipes import verification
        verification.grade([r"2\sqrt{{3}}"], [r"\sqrt{{12}}"])
        threading.Thread(target=verification.grade, args=(["5"], ["{hangs(1)}"]), daemon=True).start()
        time.sleep(0.5)  # one worker is deep inside an integer power, the other waits
        pid = verification.pool.workers_of(os.getpid())[1].pid
        print(pid, *open(f"/proc/{{pid}}/task/{{pid}}/children").read().split(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    done = run_script(tmp_path, script)
    assert done.stdout, done.stderr
    wait_for(done.stdout.split())
