"""Hanging and memory-hungry answers, killed workers, signals, forks: no honest verdict is lost, and
nothing is left behind.
"""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from random import Random

import psutil
import pytest

import r1_recipes.extras.countdown.puzzle  # noqa: F401 (registers its scorer)
from r1_recipes import verification
from r1_recipes.verification import STATS, compare, grade, pool, worker

# A power whose exponent is written out, so that no guard sees its size: 95 million digits, minutes
# inside one C function.
HANGS = "9^{9999*9999}"


@pytest.fixture
def fresh():
    """No workers and no verdicts of earlier tests; gives the statistics before."""
    verification.close()
    verification._verdicts.clear()
    return dataclasses.replace(STATS)


def hanging(n):
    """Answers that never end, each another, so that none is remembered."""
    return [HANGS.replace("}", f"+{i}}}") for i in range(n)]


def surds(n, offset=0):
    """Golds and answers that need a parser: 2√k, with √4k right and √(4k+1) wrong in turn."""
    golds = [rf"2\sqrt{{{k}}}" for k in range(1000 + offset, 1000 + offset + n)]
    return (
        golds,
        [rf"\sqrt{{{4 * (1000 + offset + i) + i % 2}}}" for i in range(n)],
        [i % 2 == 0 for i in range(n)],
    )


def pids() -> set[int]:
    return {worker.pid for worker in verification._pool.workers}


def test_hanging_worker_is_killed_and_the_next_batch_is_normal(monkeypatch, fresh):
    monkeypatch.setattr(pool, "TASK_SECONDS", 1.0)
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


def test_eight_hanging_answers_cost_what_one_does(monkeypatch, fresh):
    monkeypatch.setattr(pool, "worker_count", lambda: 2)
    golds, answers, right = surds(56)
    grade([r"9\sqrt{2}"], ["1"])
    for position, answer in enumerate(hanging(8)):
        golds.insert(8 * position, "5")
        answers.insert(8 * position, answer)
        right.insert(8 * position, False)
    lost, judge = [], pool.Pool._pass

    def noted(*arguments):
        lost.append({})
        for index, limit in judge(*arguments):
            lost[-1][index] = limit
            yield index, limit

    monkeypatch.setattr(pool.Pool, "_pass", noted)
    assert grade(golds, answers) == right  # nothing honest is lost behind them
    # In the workers' processor time, so that it does not depend on what else the machine does: the
    # budget of two workers.
    assert [len(limits) for limits in lost] == [8, 8]
    assert sum(sum(limits.values()) for limits in lost) <= 2 * pool.TASK_SECONDS + 1e-9
    assert STATS.timeouts - fresh.timeouts == 8
    golds, answers, right = surds(64, offset=500)
    assert grade(golds, answers) == right
    before = pids()
    golds, answers, right = surds(64, offset=600)
    assert grade(golds, answers) == right
    assert pids() == before


def test_a_batch_of_nothing_but_hanging_answers_ends(monkeypatch, fresh):
    monkeypatch.setattr(pool, "BUSY_FACTOR", 1.0)
    monkeypatch.setattr(pool, "TASK_SECONDS", 1.0)
    monkeypatch.setattr(pool, "QUICK_SECONDS", 0.1)
    monkeypatch.setattr(pool, "worker_count", lambda: 2)
    grade([r"9\sqrt{2}"], ["1"])
    started = time.monotonic()
    assert True not in grade(["5"] * 40, hanging(40))
    # Budget 2 s of two workers: ten at 0.1 s, thirty hurried at 0.05 s; nothing is left for a
    # second try. In all 1.25 s, and start-up.
    assert time.monotonic() - started < 10
    assert STATS.timeouts - fresh.timeouts == 40


SLOW_AND_RIGHT = {  # what takes more than HURRIED_SECONDS, some of it
    r"\tan(x+\frac{\pi}{4})": r"\frac{1+\tan x}{1-\tan x}",
    r"\log_2 3": r"\frac{\ln 3}{\ln 2}",
    r"\frac{1}{2}\sqrt{3}": r"\sqrt{\frac34}",
    r"(x+1)^5": r"x^5+5x^4+10x^3+10x^2+5x+1",
    r"\sin(2x)": r"2\sin x\cos x",
    r"\frac{n(n+1)}{2}": r"\frac{n^2+n}{2}",
    r"\sqrt{2}+\sqrt{3}": r"\sqrt{5+2\sqrt6}",
}


def integrals(n):
    """Answers that take seconds each."""
    return [
        rf"\int_0^{{{i + 2}}} \frac{{\sin(x^{{{i % 7 + 2}}})}}{{x+{i}}} e^x dx" for i in range(n)
    ]


@pytest.mark.parametrize("golds", [["5"] * 64, [str(i) for i in range(5, 69)]])
def test_slow_answers_take_no_right_verdict_with_them(golds, monkeypatch, fresh):
    monkeypatch.setattr(pool, "worker_count", lambda: 2)
    verdicts = verification.judge(
        [*golds, *SLOW_AND_RIGHT], [*integrals(64), *SLOW_AND_RIGHT.values()]
    )
    honest = verdicts[64:]
    if len(set(golds)) == 1:  # Slow answers to one question leave the others their time.
        assert [verdict.right for verdict in honest] == [True] * 7
    else:  # Slow answers to all questions do not: what they cost has no verdict, and is judged when it comes again.
        assert {verdict.right for verdict in honest} <= {True, None}
        assert all(
            verdict.refusal is verification.Refusal.HURRIED
            for verdict in honest
            if verdict.right is None
        )
        assert grade([*SLOW_AND_RIGHT], [*SLOW_AND_RIGHT.values()]) == [True] * 7


def test_a_killed_worker_costs_no_verdict(fresh):
    """What the kernel does if memory is short: one worker dies in a batch, then all of them, then
    the fork server between two.
    """
    golds, answers, right = surds(400)
    grade(golds[:2], answers[:2])
    victim = verification._pool.workers[0].pid
    killer = threading.Timer(0.03, os.kill, (victim, signal.SIGKILL))
    killer.start()
    assert grade(golds, answers) == right
    killer.join()
    assert victim not in pids()
    for pid in pids():
        os.kill(pid, signal.SIGKILL)
    golds, answers, right = surds(40, offset=1000)
    assert grade(golds, answers) == right
    os.kill(verification._pool.server.pid, signal.SIGKILL)
    golds, answers, right = surds(8, offset=2000)
    assert grade(golds, answers) == right
    assert STATS.timeouts == fresh.timeouts


def test_an_interrupted_batch_answers_no_later_one(monkeypatch, fresh):
    golds, answers, right = surds(40)
    monkeypatch.setattr(pool.json, "loads", lambda text: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        verification._ask([("r1_recipes.verification.compare:judge", golds[0], (answers[1],))])
    monkeypatch.undo()
    assert grade(golds, answers) == right


def test_a_flood_of_hostile_answers_leaves_no_memory_and_no_zombie_behind(fresh):
    signs = [
        "x",
        "2",
        "(",
        ")",
        "^",
        "{",
        "}",
        "+",
        "/",
        r"\frac",
        r"\sqrt",
        ",",
        "=",
        "|",
        "!",
        r"\pi",
        "_",
    ]
    rng = Random(0)

    def flood(n):
        answers = ["".join(rng.choices(signs, k=rng.randint(1, 30))) for _ in range(n)]
        assert not any(grade([r"7\sqrt{11}"] * n, answers))

    flood(500)
    server = psutil.Process(verification._pool.server.pid)
    before = psutil.Process().memory_info().rss
    flood(4500)
    assert (
        psutil.Process().memory_info().rss - before < 40 << 20
    )  # 9,000 remembered verdicts are a few MB
    workers = server.children()
    assert len(workers) <= pool.worker_count()
    assert all(child.memory_info().rss < worker.RETIRE_BYTES for child in workers)
    deadline = time.monotonic() + 5
    while (
        any(child.status() == psutil.STATUS_ZOMBIE for child in server.children())
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert [
        child.status() for child in server.children() if child.status() == psutil.STATUS_ZOMBIE
    ] == []
    assert server.memory_info().rss < worker.RETIRE_BYTES


def test_workers_retire(tmp_path):
    # Imported by the fork server too, which gets this process's path.
    (tmp_path / "sitecustomize.py").write_text(
        "import r1_recipes.verification.worker as s\ns.RETIRE_TASKS = 3\n"
    )
    done = run_script(
        tmp_path,
        r"""
        from r1_recipes import verification
        from r1_recipes.verification import pool
        pids = set()
        start = pool.Pool.start_worker
        def noted(self):
            worker = start(self)
            pids.add(worker.pid)
            return worker
        pool.Pool.start_worker = noted
        pool.worker_count = lambda: 1
        golds = [rf"2\sqrt{{{k}}}" for k in range(50, 60)]
        print(verification.grade(golds, [rf"\sqrt{{{4 * k}}}" for k in range(50, 60)]), len(pids), verification.STATS.timeouts)
        """,
    )
    # Ten tasks, three a worker; retiring is not a fault.
    assert done.stdout == f"{[True] * 10} 4 0\n", done.stderr


def test_memory_is_capped(monkeypatch):
    # 2^(8e9 + …) is an integer of over 4 GB: it must fail in the worker, not take the machine down.
    monkeypatch.setattr(pool, "TASK_SECONDS", 3.0)
    assert grade(["5"], ["2^{90*90*90*90*9*99}"]) == [False]


def test_verdicts_are_shared(fresh):
    # Two spellings of one answer in a batch are compared once; each is known from then on.
    assert (
        grade([r"3\sqrt{7}"] * 3, [r"\sqrt{63}", r"\sqrt{63}", r"\boxed{\sqrt{63}}"]) == [True] * 3
    )
    assert (STATS.comparisons - fresh.comparisons, STATS.cache_hits - fresh.cache_hits) == (1, 2)
    assert grade([r"3\sqrt{7}"] * 2, [r"\sqrt{63}", r"\boxed{\sqrt{63}}"]) == [True] * 2
    assert (STATS.comparisons - fresh.comparisons, STATS.cache_hits - fresh.cache_hits) == (1, 4)


def test_plain_numbers_need_no_worker():
    before = STATS.comparisons
    golds = [str(n) for n in range(64)]
    started = time.monotonic()
    assert grade(golds, [f"${n}.00" for n in golds]) == [True] * 64
    assert time.monotonic() - started < 0.5
    assert STATS.comparisons == before


def test_lists_must_align():
    with pytest.raises(ValueError, match="shorter"):
        grade(["1", "2"], ["1"])


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
        from r1_recipes.verification.compare import judge
        judge("x+1", "x+1", ["1+x"], [], None, 6, False, ())  # what a worker imports
        try:
            from r1_recipes.extras.reasoning_gym.worker import score
            score('{"reasoning_gym": "chain_sum", "entry": {"answer": "1"}}', "1")
        except ImportError:
            pass
        print(sorted({"torch", "transformers", "trl"} & set(sys.modules)))
        """,
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_starts_its_own_workers(tmp_path):
    done = run_script(
        tmp_path,
        """
        import os
        from r1_recipes.verification import grade
        assert grade(["(1,2)"], ["(1, 2)"]) == [True]
        child = os.fork()
        verdicts = grade(["(1,3)", "(1,5)"], ["(1, 3)", "(1, 3)"])
        assert verdicts == [True, False], verdicts
        if child:
            assert os.waitpid(child, 0)[1] == 0
            assert grade(["(1,7)"], ["(1, 7)"]) == [True]
            print("both")
        """,
    )
    assert done.stdout == "both\n", done.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_die_with_the_parent(tmp_path):
    done = run_script(
        tmp_path,
        f"""
        import os, signal, sys, threading, time
        from r1_recipes import verification
        verification.grade(["(1,2)", "(1,3)"], ["(1, 2)", "(1, 3)"])
        verification.pool.TASK_SECONDS = 3.0
        threading.Thread(target=verification.grade, args=(["5"], ["{HANGS}"]), daemon=True).start()
        time.sleep(1)  # one worker is now deep inside an integer power, the other (if there are two) waits
        print(verification._pool.server.pid, *(worker.pid for worker in verification._pool.workers), flush=True)
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


@pytest.mark.parametrize("name", ["exit()", "x.y", r"\text{exit()}"])
def test_only_numbers_reach_what_evaluates_text(name, monkeypatch):
    """latex2sympy makes a number of its text by sympy's parse_expr, which is Python's eval."""
    import sympy.parsing.sympy_parser as sympy_parser

    for text in worker.WARMING:  # sympy's own units are made of text, once
        compare.judge(text, text, [text + "+1"], [], None, 6, False, ())
    asked = []
    parse_expr = sympy_parser.parse_expr
    monkeypatch.setattr(
        sympy_parser,
        "parse_expr",
        lambda text, *rest, **options: (asked.append(text), parse_expr(text, *rest, **options))[1],
    )
    shapes = r"""
        @ \sqrt[@]{2} \log_{@}(3) 25_{@} \binom{@}{2} \int_0^1@dx \lim_{x\to@}x \sum_{n=@}^{3}n \sum_{@=1}^{3}n \text{@} \overline{@}
        f_{@}(x) @' x_{@} x^{@} \mathrm{@} |@| \{@,1\} (@,1) [1,@) @! \operatorname{@}(2) \@ @\% @^\circ \frac{@}{2} \frac{d}{d@}x
        \sin(@) \lfloor@\rfloor x=@ @=2 @<x<3 x\in\{@\} \mathbb{@} 1@ 0.\overline{@} 1.@ \gcd(@,2) \det(@) \hat{@} {@}_{2} 1@_{16}
        \pm@ \begin{pmatrix}@&1\\2&3\end{pmatrix}"""
    compare.parse.cache_clear()
    for shape in ("12", *shapes.split()):
        compare.judge(shape.replace("@", name), "", ["x+12"], [], None, 6, False, ())
        compare.judge("x+12", "", [shape.replace("@", name)], [], None, 6, False, ())
    assert "12" in asked
    assert [text for text in asked if not re.fullmatch(r"[0-9.]+", str(text))] == []


def test_the_processes_that_judge_have_no_key(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-token")
    found = pool.Pool(1)
    try:
        assert found.run(
            [
                (
                    "r1_recipes.verification.compare:judge",
                    "(1,2)",
                    "(1,2)",
                    ("(1, 2)",),
                    (),
                    None,
                    6,
                    False,
                    (),
                )
            ]
        ) == [True]
        for pid in (found.server.pid, found.workers[0].pid):
            names = set(psutil.Process(pid).environ())
            assert "PYTHONPATH" in names
            assert names <= {
                *pool.KEPT_ENVIRONMENT,
                "PYTHONPATH",
                "PYTHONUTF8",
                "OMP_NUM_THREADS",
                "OPENBLAS_NUM_THREADS",
            }
    finally:
        found.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_it_starts_do_not_end_the_fork_server(number):
    found = pool.Pool(1)
    server = found.server
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.002):
            os.kill(found.server.pid, number)

    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        assert found.run(
            [
                (
                    "r1_recipes.verification.compare:judge",
                    "(1,2)",
                    "(1,2)",
                    ("(1, 2)",),
                    (),
                    None,
                    6,
                    False,
                    (),
                )
            ]
        ) == [True]
    finally:
        over.set()
        sender.join()
        found.close()
    assert found.server is server
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # the trainer still hears it


def test_a_fork_server_that_is_killed_twice_in_a_row_is_replaced(monkeypatch):
    killed = []
    start = pool.Pool.start_server

    def killing(self) -> None:
        start(self)
        if len(killed) < 2:
            killed.append(self.server.pid)
            self.server.kill()

    monkeypatch.setattr(pool.Pool, "start_server", killing)
    found = pool.Pool(1)
    try:
        assert found.run(
            [
                (
                    "r1_recipes.verification.compare:judge",
                    "(1,2)",
                    "(1,2)",
                    ("(1, 2)",),
                    (),
                    None,
                    6,
                    False,
                    (),
                )
            ]
        ) == [True]
        assert len(killed) == 2
        # and a working one, with its worker
        killed.clear()
        found.server.kill()
        found.server.wait()
        assert found.run(
            [
                (
                    "r1_recipes.verification.compare:judge",
                    "(1,3)",
                    "(1,3)",
                    ("(1, 2)",),
                    (),
                    None,
                    6,
                    False,
                    (),
                )
            ]
        ) == [False]
        assert len(killed) == 2
    finally:
        found.close()


def test_fork_servers_that_are_always_killed_end_the_batch(monkeypatch):
    start = pool.Pool.start_server
    monkeypatch.setattr(
        pool.Pool, "start_server", lambda self: (start(self), self.server.kill())[0]
    )
    found = pool.Pool(1)
    try:
        with pytest.raises(
            RuntimeError, match=f"could not start: {pool.MAX_STARTS} times in a row"
        ):
            found.run(
                [
                    (
                        "r1_recipes.verification.compare:judge",
                        "(1,2)",
                        "(1,2)",
                        ("(1, 2)",),
                        (),
                        None,
                        6,
                        False,
                        (),
                    )
                ]
            )
    finally:
        found.close()
