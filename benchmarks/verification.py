r"""How fast answers are judged: the reward ``accuracy`` here, TRL's ``accuracy_reward``, and
math-verify called row by row.

Run:  python benchmarks/verification.py [--seconds 8] [--data gsm8k_verdicts.jsonl]        or, with
everything else, make bench

Each judge runs in a process of its own, on its main thread, as in training. They take turns batch
by batch, on the same rows, so that a machine which slows down slows all of them; what the layer
remembers of earlier batches is forgotten before each. What is timed is the call of the reward
function, with completions as TRL hands them over. A judge that does not answer a batch of bad
answers within ``--patience`` seconds is killed, and the table says so. The mixes are those of
rows.py, drawn from a seed; ``--data`` adds labelled rows of a file (JSON lines with ``gold`` and
``solution``, whose answer follows the last ``A:``), with the same judges.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from rows import Row, rows

JUDGES = ("r1_recipes", "trl", "math_verify")
BATCHES = {16: 100, 64: 100, 1024: 10}
MIXES = ("gsm8k", "math")


def real_rows(path: Path) -> Iterator[Row]:
    """Labelled solutions as completions in the format ``boxed``, over and over; :func:`run` asks
    for each once.
    """
    labelled = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in itertools.cycle(labelled):
        steps, _, answer = row["solution"].rpartition("A:")
        answer = answer.strip().replace("$", r"\$")
        yield Row(
            f"{steps}The answer is $\\boxed{{{answer}}}$.", row["gold"], answer, row["is_correct"]
        )


class Judge:
    """One of ``JUDGES``, in this process."""

    def __init__(self, name: str, workers: int | None) -> None:
        self.second, self.remembered = None, {}
        if name == "r1_recipes":
            from r1_recipes import verification
            from r1_recipes.rewards import get_reward_funcs
            from r1_recipes.verification import pool

            if workers:
                pool.worker_count = lambda: workers
            self.first, self.second = get_reward_funcs(["accuracy", "cosine"], "boxed")
            self.remembered = verification._verdicts
            # As a training run does before it loads its model; the import of math-verify is part of
            # being ready, as it is for the others.
            verification.start()
            verification.grade(["(1, 2)"], ["(1, 3)"])
        elif name == "trl":
            from trl.rewards import accuracy_reward

            self.first = accuracy_reward
        else:
            self.first = _math_verify

    def judge(self, batch: list[Row]) -> dict[str, Any]:
        """Seconds of the first reward and of a second one on the same rows, and the verdicts."""
        columns = {
            "completions": [[{"role": "assistant", "content": row.completion}] for row in batch],
            "prompts": [[{"role": "user", "content": "?"}]] * len(batch),
            "completion_ids": [[0] * 100] * len(batch),
            # TRL's parser reads LaTeX between dollars only; the same text goes to everyone.
            "solution": [
                row.gold if row.gold.replace(",", "").isdigit() else f"${row.gold}$"
                for row in batch
            ],
        }
        self.remembered.clear()
        started = time.perf_counter()
        verdicts = self.first(**columns)
        first = time.perf_counter() - started
        started = time.perf_counter()
        if self.second is not None:
            self.second(**columns)
        return {"seconds": first, "second": time.perf_counter() - started, "verdicts": verdicts}

    def memory(self) -> dict[str, float]:
        """MB (10^6 bytes) of this process, and of the processes that judge for it, shared pages
        counted once.
        """
        own = psutil.Process()
        helpers = own.children(recursive=True)
        return {
            "own": _proportional(own) / 1e6,
            "helpers": sum(_proportional(child) for child in helpers) / 1e6,
        }


def _proportional(process: psutil.Process) -> int:
    full = process.memory_full_info()
    return getattr(full, "pss", full.uss)


def _math_verify(completions: list, solution: list[str], **columns: Any) -> list[float]:
    from math_verify import parse, verify

    return [
        float(verify(parse(gold), parse(completion[0]["content"])))
        for completion, gold in zip(completions, solution, strict=True)
    ]


def serve(name: str, workers: int | None) -> None:
    """Judge what batches the other side asks for, a JSON line each, until it closes the pipe."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    judge = Judge(name, workers)
    streams: dict[str, Iterator[Row]] = {}
    replies.write(json.dumps("ready") + "\n")
    replies.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "memory":
            reply = judge.memory()
        elif asked == "settled":
            reply = settled(4000)
        else:
            key = json.dumps(asked)
            if key not in streams:
                path = asked["data"]
                streams[key] = (
                    real_rows(Path(path))
                    if path
                    else rows(asked["mix"], asked["seed"], group=asked["group"])
                )
            batch = list(itertools.islice(streams[key], asked["size"]))
            reply = judge.judge(batch)
            reply["promised"] = [row.right for row in batch]
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def settled(count: int) -> dict[str, int]:
    """Of the rows of both mixes: how many comparisons need no parser, and for how many of those
    math-verify says the same.
    """
    from r1_recipes.verification import compare, gold, reading, worker

    worker.parse_in_two_stages()
    found = {"rows": 0, "settled": 0, "equal": 0}
    for mix in MIXES:
        for row in itertools.islice(rows(mix, 5), count // 2):
            wanted = gold.read_gold(row.gold)
            answer = reading.read_answer(row.answer, wanted)
            verdict = reading.settle(wanted, answer)
            found["rows"] += 1
            if answer.sides and verdict is not None:
                found["settled"] += 1
                found["equal"] += compare.compare(wanted.text, wanted.raw, answer) is verdict
    return found


def own_texts(path: Path) -> str:
    """Of the golds that TRL pays for their own text in a box: the share that ``accuracy`` pays; and
    why it judges by none of the others.
    """
    from r1_recipes import verification
    from r1_recipes.rewards import get_reward_funcs

    golds = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [row["gold"] for row in golds]
    (accuracy,) = get_reward_funcs(["accuracy"], "boxed")
    values = accuracy(
        completions=[f"So the answer is \\boxed{{{text}}}." for text in texts], solution=texts
    )
    paid = [value == 1.0 for value, row in zip(values, golds, strict=True) if row["trl"] == 1.0]
    unjudged = [
        verdict.refusal for verdict in verification.judge(texts, texts) if verdict.right is None
    ]
    return (
        f"paid {sum(paid)} of {len(paid)} ({sum(paid) / len(paid):.2%}); not judged: "
        f"{dict(collections.Counter(map(str, unjudged)))}"
    )


class Process:
    """A judge in its own process."""

    def __init__(self, name: str, workers: int | None = None) -> None:
        started = time.perf_counter()
        self.name, self.workers, self.deaths = name, workers, 0
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        command = [
            sys.executable,
            __file__,
            "--serve",
            name,
            *(["--workers", str(workers)] if workers else []),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said
        )
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self._read(600)
        self.start_seconds = time.perf_counter() - started

    def ask(self, request: Any, patience: float = 600) -> dict[str, Any] | None:
        """The judge's reply; ``None`` where it took longer than ``patience`` seconds, or died: then
        it is gone.
        """
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self._read(patience)

    def _read(self, patience: float) -> dict[str, Any] | None:
        if self.selector.select(patience):
            line = self.process.stdout.readline()
            if line:
                return json.loads(line)
        self.end()
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """After it died over a batch: what it said last goes to stderr, and the death is
        counted.
        """
        self.said.seek(0)
        sys.stderr.write(f"{self.name} died: {self.said.read()[-500:]}\n")
        deaths = self.deaths + 1
        self.__init__(self.name, self.workers)
        self.deaths = deaths


def request(
    mix: str, size: int, seed: int = 1, group: int = 8, data: Path | None = None
) -> dict[str, Any]:
    return {
        "mix": mix,
        "size": size,
        "seed": seed,
        "group": group,
        "data": str(data) if data else None,
    }


def throughput(
    judges: dict[str, Process], asked: dict[str, Any], seconds: float, most: int
) -> dict[str, Any]:
    """Batches in turn, at most ``most``, until every judge has had its fill: completions/s, the
    slowest batch, agreement.
    """
    taken: dict[str, list[float]] = {name: [] for name in judges}
    second: list[float] = []
    right: dict[str, int] = dict.fromkeys(judges, 0)
    promised = dict.fromkeys(judges, 0)
    for judge in judges.values():
        # Start-up is not what is measured here; rows that are measured later are not among these.
        if judge.ask(request(MIXES[0], 8, seed=0)) is None:
            judge.start_again()
    while (
        len(taken["r1_recipes"]) < most
        and min(map(sum, taken.values())) < seconds
        and max(map(sum, taken.values())) < 4 * seconds
    ):
        for name, judge in judges.items():
            reply = judge.ask(asked)
            if reply is None:
                judge.start_again()
                continue
            taken[name].append(reply["seconds"])
            pairs = zip(reply["verdicts"], reply["promised"], strict=True)
            right[name] += sum(
                expected is not None and bool(verdict) is expected for verdict, expected in pairs
            )
            promised[name] += sum(expected is not None for expected in reply["promised"])
            if name == "r1_recipes":
                second.append(reply["second"])
    cell: dict[str, Any] = {
        "batch": asked["size"],
        "batches": len(second),
        "second_reward": sum(second) / sum(taken["r1_recipes"]),
    }
    for name, times in taken.items():
        cell[name] = {
            "completions_per_second": asked["size"] * len(times) / sum(times),
            "slowest_seconds": max(times),
            "as_promised": right[name] / promised[name],
            "deaths": judges[name].deaths,
        }
    return cell


def bad_answers(mix: str, patience: float) -> dict[str, Any]:
    """A batch of 64 with eight answers that hang, or of hostile texts alone, ten ordinary batches
    before it and the one after it.
    """
    found: dict[str, Any] = {}
    for name in JUDGES:
        judge = Process(name)
        judge.ask(request("math", 64, seed=6))  # start-up
        before = [judge.ask(request("math", 64, seed=7))["seconds"] for _ in range(10)]
        started = time.perf_counter()
        reply = judge.ask(request(mix, 64, seed=8), patience)
        found[name] = {"seconds": time.perf_counter() - started, "finished": reply is not None}
        found[name] |= {
            "before_seconds": statistics.median(before),
            "slowest_before_seconds": max(before),
        }
        if reply is not None:
            found[name]["next_seconds"] = judge.ask(request("math", 64, seed=9))["seconds"]
        judge.end()
    return found


def flood(batches: int) -> dict[str, Any]:
    """Hostile completions in batches of 256: memory before and after, and zombies left."""
    judge = Process("r1_recipes")
    judge.ask(request("hostile", 256, seed=10))
    before = judge.ask("memory")
    seconds = sum(judge.ask(request("hostile", 256, seed=11))["seconds"] for _ in range(batches))
    after = judge.ask("memory")
    zombies = [
        p.pid
        for p in psutil.Process(judge.process.pid).children(recursive=True)
        if p.status() == psutil.STATUS_ZOMBIE
    ]
    judge.end()
    return {
        "completions": 256 * batches,
        "seconds": seconds,
        "before_mb": before,
        "after_mb": after,
        "zombies": len(zombies),
    }


def run(seconds: float, patience: float, data: Path | None) -> dict[str, Any]:
    """Every measurement, as one JSON-able dictionary."""
    judges = {name: Process(name) for name in JUDGES}
    found: dict[str, Any] = {
        "cores": len(psutil.Process().cpu_affinity()),
        "start_up": {},
        "throughput": {},
    }
    for name, judge in judges.items():
        started = time.perf_counter()
        judge.ask(request("math", 16, seed=2))
        found["start_up"][name] = {
            "process_seconds": judge.start_seconds,
            "first_batch_seconds": time.perf_counter() - started,
        }
    for mix, group in (("gsm8k", 8), ("math", 8), ("math", 1)):
        for size in BATCHES:
            key = f"{mix}{'' if group == 8 else ', no groups'}"
            asked = request(mix, size, seed=100 * group + size, group=group)
            found["throughput"].setdefault(key, []).append(
                throughput(judges, asked, seconds, BATCHES[size])
            )
    if data:
        once = max(1, len(data.read_text(encoding="utf-8").splitlines()) // 64)
        found["throughput"][f"real rows ({data.name})"] = [
            throughput(judges, request("", 64, data=data), seconds, once)
        ]
    found["memory_mb"] = {name: judge.ask("memory") for name, judge in judges.items()}
    if (counts := judges["r1_recipes"].ask("settled")) is None:
        judges["r1_recipes"].start_again()  # says why it died
        raise SystemExit("the judge died over the rows that need no parser")
    found["settled"] = counts
    for judge in judges.values():
        judge.end()
    found["workers"] = workers(seconds)
    found["adversarial"] = bad_answers("adversarial", patience)
    found["hostile"] = bad_answers("hostile", patience)
    found["flood"] = flood(40)
    return found


def workers(seconds: float) -> list[dict[str, float]]:
    """Batches of 1,024 of the mix ``math`` with 1 to as many workers as there are cores,
    in turn.
    """
    counts = range(1, len(psutil.Process().cpu_affinity()) + 1)
    judges = {count: Process("r1_recipes", count) for count in counts}
    taken: dict[int, list[float]] = {count: [] for count in counts}
    for judge in judges.values():
        judge.ask(request("math", 64, seed=3))
    while min(map(sum, taken.values())) < seconds / 2 or len(taken[1]) < 5:
        for count, judge in judges.items():
            taken[count].append(judge.ask(request("math", 1024, seed=4, group=1))["seconds"])
    for judge in judges.values():
        judge.end()
    return [
        {"workers": count, "completions_per_second": 1024 * len(times) / sum(times)}
        for count, times in taken.items()
    ]


def table(found: dict[str, Any]) -> str:
    """The measurements for a terminal."""
    lines = [f"verification, {found['cores']} cores", ""]
    lines.append(
        f"{'rows':<26}{'batch':>6}{'batches':>8}{'r1_recipes/s':>14}{'trl/s':>9}{'math_verify/s':>15}{'x TRL':>8}"
        "   slowest batch, ms (r1 / trl / mv)"
    )
    for mix, cells in found["throughput"].items():
        for cell in cells:
            rates = [cell[name]["completions_per_second"] for name in JUDGES]
            tails = " / ".join(f"{1000 * cell[name]['slowest_seconds']:.1f}" for name in JUDGES)
            lines.append(
                f"{mix:<26}{cell['batch']:>6}{cell['batches']:>8}{rates[0]:>14,.0f}{rates[1]:>9,.0f}{rates[2]:>15,.0f}"
                f"{rates[0] / rates[1]:>8.1f}   {tails}"
            )
    lines += [
        "",
        "a second reward on the same rows, share of the first's time; verdicts as the rows "
        "were drawn",
    ]
    for mix, cells in found["throughput"].items():
        for cell in cells:
            drawn = " / ".join(f"{100 * cell[name]['as_promised']:.1f}" for name in JUDGES)
            lines.append(
                f"{mix:<26}{cell['batch']:>6}{100 * cell['second_reward']:>13.1f} %      {drawn} %"
            )
    last = list(found["throughput"].values())[-1][-1]  # deaths are counted over all cells
    lines += [
        f"{name} died {last[name]['deaths']} time(s) over ordinary rows and was started again"
        for name in JUDGES
        if last[name]["deaths"]
    ]
    lines.append("")
    for entry in found["workers"]:
        lines.append(
            f"{entry['workers']} worker(s): {entry['completions_per_second']:,.0f} "
            f"completions/s (math, no groups, batches of 1,024)"
        )
    counts = found["settled"]
    lines.append(
        f"settled without a parser: {counts['settled']} of {counts['rows']} rows; "
        f"math-verify agrees on {counts['equal']}"
    )
    for name in JUDGES:
        start, memory = found["start_up"][name], found["memory_mb"][name]
        lines.append(
            f"{name}: ready after {start['process_seconds']:.2f} s, first batch of 16 "
            f"{start['first_batch_seconds']:.2f} s; "
            f"{memory['own']:.0f} MB, its helpers {memory['helpers']:.0f} MB"
        )
    for title, key in (
        ("64 rows, 8 of them hanging", "adversarial"),
        ("64 hostile texts", "hostile"),
    ):
        for name in JUDGES:
            cell = found[key][name]
            took = (
                f"{cell['seconds']:.2f} s"
                if cell["finished"]
                else f"killed after {cell['seconds']:.0f} s"
            )
            after = (
                f"; ten before {1000 * cell['before_seconds']:.0f} ms in the middle, "
                f"{1000 * cell['slowest_before_seconds']:.0f} ms at "
                f"most; the next {1000 * cell['next_seconds']:.0f} ms"
                if cell["finished"]
                else ""
            )
            lines.append(f"{title}, {name}: {took}{after}")
    cell = found["flood"]
    lines.append(
        f"{cell['completions']:,} hostile completions: {cell['seconds']:.1f} s; own memory "
        f"{cell['before_mb']['own']:.0f} -> "
        f"{cell['after_mb']['own']:.0f} MB, helpers {cell['before_mb']['helpers']:.0f} -> "
        f"{cell['after_mb']['helpers']:.0f} MB, "
        f"{cell['zombies']} zombies"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=8,
        help="judging time of each cell, for the fastest judge, at most (default 8)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="a judge that takes longer over a bad batch is killed (default 60)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="labelled rows to judge besides: JSON lines with gold, solution and is_correct",
    )
    parser.add_argument(
        "--golds",
        type=Path,
        help="only tell how many golds are paid for their own text: JSON lines with gold and trl",
    )
    parser.add_argument("--serve", choices=JUDGES, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.workers)
    elif options.golds:
        sys.stdout.write(own_texts(options.golds) + "\n")
    else:
        sys.stdout.write(table(run(options.seconds, options.patience, options.data)) + "\n")


if __name__ == "__main__":
    main()
