"""Maths equivalence: what counts as one answer, what counts as equal, and what a hostile text can do."""

import json
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
from hypothesis import given, settings
from hypothesis import strategies as st

import r1_recipes.tasks.countdown  # noqa: F401 (registers its scorer)
from r1_recipes import verification
from r1_recipes.verification import STATS, final_answer, grade, pool, score, worker
from r1_recipes.verification.numbers import read_value
from r1_recipes.verification.reading import read_answer, read_gold

VERDICTS = Path(__file__).parents[2].parent / "shared" / "data" / "verdicts" / "gsm8k_6b.jsonl"

# 9^(9^9) with the inner power written out, so that no guard sees a tower: 370 million digits, minutes inside one C function.
HANGS = "9^{9*9*9*9*9*9*9*9*9}"

RIGHT = [
    # Plain spellings of 1080: currency sign, thousands comma, decimals, a unit, a full stop, Markdown, a sentence.
    *(("1080", text) for text in ("$1,080", "1080.00", "1,080 dollars", "1080.", "**1080**", "+1080", "1080 cm^2", "1080 km/h")),
    *(("1080", text) for text in ("The total is **1,080**.", "一共1080个", "1080元", "１０８０", "1080m2", "TOTAL: 1080")),
    # LaTeX spellings.
    *(("1080", text) for text in (r"\boxed{1080}", "$1080$", r"\(1080\)", r"\[1080\]", r"\text{1080 eggs}", r"1\,080", r"$1{,}080$")),
    # An unknown on the left is no second value; an equation whose sides are all 1080 says it twice.
    *(("1080", text) for text in ("x = 1080", "x=1080", r"\text{Total} = 1080", "f(2) = 1080", "540 + 540 = 1080", "2*540")),
    ("1,080", "1080"),  # a gold with a comma
    ("18", "18 eggs"),
    ("-5", "$-5"),
    ("-5", "-$5"),
    ("025", "25"),  # AIME writes three digits
    ("25", "025"),
    ("50%", "50%"),
    ("50%", "50\\%"),
    ("50", "50%"),  # math-verify takes n% for n as well as for n/100
    ("0.5", "50%"),
    (r"\frac{1}{2}", "0.5"),
    ("0.5", r"\frac{1}{2}"),
    ("0.5", "1/2"),
    (r"\frac{3}{4}", "3/4"),
    (r"\frac{14}{3}", "4 2/3"),  # 4 + 2/3 = 14/3
    (r"1\frac{1}{2}", "1.5"),
    ("1/3", "0.333333"),  # 1/3 rounds to 0.333333 at math-verify's six places
    ("1024", "2**10"),  # both powers are 2^10, not LaTeX's 2^1 0
    ("1024", "2^10"),
    ("0.00001", "1e-05"),  # how Python writes it
    ("1500", "1.5e3"),
    (r"(3, \frac{\pi}{2})", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"(3, \frac{\pi}{2})", "(3, pi/2)"),
    ("(1,2)", "(1, 2)"),
    ("(1,2)", "1,2"),  # math-verify reads the gold as an open interval or a pair, and a bare pair as that pair
    ("1, 2", "x = 1 or x = 2"),  # a gold of two values; a set has no order
    ("1, 2", "2, 1"),
    (r"\{1,2\}", "{1,2}"),
    ("x=1, y=2", "x = 1 and y = 2"),
    (r"\text{(C)}", "C"),
    (r"\text{(C)}", "(C)"),
    (r"\text{Evelyn}", "Evelyn"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(x+1)^4", "x^4+4x^3+6x^2+4x+1"),
    ("y=2x+3", "y = 3 + 2x"),
    ("x>3", "3<x"),
    ("25_8", "25_{8}"),
    ("[1,2]", r"x \in [1,2]"),
    (r"3\sqrt{2}", "3√2"),
    (r"\sqrt{2}", "sqrt(2)"),
    (r"\infty", "∞"),
    (r"90^\circ", "90°"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"(-\infty, 2)\cup(3,\infty)", r"(-\infty,2) \cup (3,\infty)"),
    # Letters that stand together are a product, in a gold with variables; a power of one is no unit.
    *((r"3x^2", text) for text in ("3*x^2", r"3\cdot x^2", "x^2*3", "3 x^2", "the answer is 3x^2")),
    *(("a^2 - b^2", text) for text in ("(a-b)(a+b)", "a^2-b^2")),
    ("1+2x+3x^2", "3x^2+2x+1"),
    (r"4\pi r^2", r"4\cdot\pi\cdot r^2"),
    ("y = x^2", "y=x^2"),
    ("y=x^2", "y = x^2"),
    *(("2xy", text) for text in ("2*x*y", "2x y", "2yx")),
    *((text, text) for text in ("ab", "-xy", "y=mx+b", "ab+bc+ca", r"2\pi rh", "n(n+1)/2", "3abc")),
    (r"\frac{ab}{c}", "ab/c"),
    ("x^2+2xy+y^2", "(x+y)^2"),
    (r"5\text{ cm}^2", "5 cm^2"),
    *(("60", text) for text in (r"60 \text{ m/s}", r"60\mathrm{m/s}", "60°C", "60 km/h", "60kg", "= 60", "60 m^2")),
    # A root of more than one digit.
    *((r"\sqrt{13}", text) for text in ("√13", "sqrt13", r"\sqrt13")),
    (r"\frac{\sqrt{15}}{2}", "√15/2"),
    ("12", "√144"),
    # Words that are part of the number.
    *(("-60", text) for text in ("minus 60", "negative 60", "负60")),
    *(("60000", text) for text in ("60 thousand", "6万", "6万元")),
    ("3500000", "3.5 million"),
    ("3.14", "≈ 3.14"),
    ("10", "#### 10"),
    ("x^4", "x⁴"),
    ("100000", "10⁵"),
    ("1/2", "½"),
    ("3.5", "3½"),
    (r"\emptyset", "∅"),
    ("1:2:3", "2:4:6"),
    (r"0.\overline{36}", r"\frac{4}{11}"),
    (r"0.1\overline{6}", "1/6"),
    # A 2 or 3 after a word is a number, and no exponent of a unit.
    *((str(n), text.format(n)) for n in (2, 3) for text in ("The total is {}.", "She has {} eggs", "Total: {}", "eggs {}")),
    (r"Half of $144$ is $x=\boxed{72}$.", "72"),  # golds that are whole solutions
    (r"It is $\boxed {72}$ or $\fbox{72}$.", "72"),
    ("He sold 48/2 = 24.\n#### 72", "72"),
]

WRONG = [
    ("72", None),
    ("72", ""),
    ("72", "71"),
    ("72", "-72"),
    # Chains: every side has to be the answer.
    ("72", "1=2=3=72"),
    ("72", r"\boxed{1=2=3=72}"),
    ("72", "71 = 72"),
    ("72", "x = 71 = 72"),
    # Several guesses, or none.
    ("72", "71 or 72"),
    ("72", "72 or seventy-one"),
    ("72", "71, 72"),
    ("72", "72 / 71?"),
    ("72", "72?"),
    ("72", "not 72"),
    ("72", "71 72"),
    ("72", "72 ٧١"),  # Arabic-Indic 71
    ("72", "71或72"),
    ("72", r"\pm 72"),
    ("72", r"\boxed{71} or \boxed{72}"),
    ("72", r"\boxed{72} or \boxed{71}"),
    ("72", "5 hours 72 minutes"),
    ("1.5", "1,5"),  # for a gold of one value a comma is thousands or a list
    # math-verify's verdict: a closed interval is neither the open one nor the point.
    ("(1,2)", "[1,2]"),
    ("[1,2]", "(1,2)"),
    ("(1,2)", "(2,1)"),
    ("C", "B"),
    (r"\text{even}", "odd"),
    (r"\pi", "3.14"),
    ("25_8", "25_9"),
    # A gold of several values takes no more than it names, and no separator hides one.
    ("1, 2", "1, 2, 3"),
    ("1, 2", "1"),
    ("1, 2", "1, 2 # 3"),
    ("1, 2", r"1, 2 \quad 3"),
    ("1, 2", "1, 2 | 3"),
    ("1, 2", "1, 2?"),
    ("1, 2", "0 = 1, 2"),
    ("72", "7" * 1001),  # too long to be read
    *(("3x^2", text) for text in ("3", "3x^3", "3y^2", "3 cm^2", "x^2")),
    ("1 - x^2", "1"),
    *(("a^2 - b^2", text) for text in ("a^2", "a^2 - c^2")),
    (r"4\pi r^2", r"4\pi"),
    ("y = 2x^2", "y = 2"),
    ("x^2 - 9y^2", "x^2-9"),
    *(("2xy", text) for text in ("2", "2ab", "2x")),
    ("12mn", "12ab"),
    ("1080", "1080 x^2"),
    *(("3", text) for text in ("√13", r"\sqrt13")),
    ("44", "√144"),
    *(("5", text) for text in ("5 million", "minus 5", "5万", "5 hundred")),
    *(("60", text) for text in ("less than 60", "square root of 60", "60 squared", "half of 60", "60 factorial")),
    ("1:2:3", "1:3:2"),
    ("1:2:3", "1/6"),
    ("12:30:45", "12:45:30"),
    (r"0.\overline{36}", "0.36"),
]


@pytest.mark.parametrize(("cases", "verdict"), [(RIGHT, True), (WRONG, False)], ids=["right", "wrong"])
def test_verdicts(cases, verdict):
    golds, answers = zip(*cases, strict=True)
    verdicts = grade(golds, answers)
    assert [case for case, found in zip(cases, verdicts, strict=True) if found is not verdict] == []


def test_gold_that_is_no_maths_is_nobodys_to_judge():
    golds = ["Pancreas", "5 apples and 3 pears", "", "  ", None, r"\frac{1}{", "a" * 2000]
    # Whatever the answer, the identical text included: otherwise some completions of a group would be judged and others not.
    assert grade(golds, golds) == [None] * 7
    assert grade(golds, [None] * 7) == [None] * 7


SEPARATORS = [
    *(" ", " or ", " and ", " to ", " vs ", " mod ", "a", "x", "\n", "\n\n", "\t", "\0", "'", '"', "`", "**", " ** "),
    *(
        ",",
        ", ",
        ";",
        "; ",
        "/",
        " / ",
        "|",
        " | ",
        "#",
        " # ",
        " @ ",
        "&",
        " & ",
        "->",
        " -> ",
        "~",
        "..",
        "...",
        "_",
        "^",
        "!",
        "%",
    ),
    *("{}", "}{", ")(", "] [", ":", " : ", "?", "? ", "<", ">", "=", " = ", "==", "=:", " = x = ", "$ $", "$$", "$, $", "$ or $"),
    *("→", "…", "，", "、", "或", "和", "？", "≈", "≠", "≡", "±", "∪", "∈", "(not ", "["),
    *(r"\quad ", r"\\", r"\ ", r"\,", r"\;", r"\!", r" \text{ or } ", r"\lor ", r"\mid ", r"\to ", r"\ne ", r"\approx "),
    *(r"\cup ", r"\pm ", r"\in ", r"\mod ", r"\pmod ", r"\%", r"\&", r"\#", r"\newline ", r"\hline ", r"\overline ", r"\sim "),
    *(r"\equiv ", r"\phantom", r"\hspace{1cm}", r"\color{red}", r"\cancel", r"\text{x}"),
]


def test_no_separator_smuggles_in_a_second_guess():
    answers = [
        shape.replace("@", pair)
        for separator in SEPARATORS
        for pair in (f"71{separator}72", f"72{separator}71")
        for shape in ("@", "$@$", r"\boxed{@}", r"\text{@}")
    ]
    paid = [answer for answer, verdict in zip(answers, grade(["72"] * len(answers), answers), strict=True) if verdict is not False]
    # A box commits to what it holds: here the pair ends it, and 72 alone stands in it.
    assert paid == [r"\boxed{72}{71}"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{72}, so again \boxed{72}.", "72"),
        (r"\boxed{71} no, \boxed{72}", None),  # contradicting boxes
        (r"\boxed{72", None),  # a box that never closes
        ("The answer is 5. Wait.\nThe final answer is: 72.\nI hope so 3", "72."),
        ("He has 48 + 24.\n#### 72", "72"),
        ("**Answer:**\n72", "72"),
        ("**Final Answer**: $72$", "$72$"),
        ("The final answer is $72$. I hope it is correct.", "$72$"),
        ("The final answer is 72. No, 71.", "72. No, 71."),
        ("The answer is:\n$$\n72\n$$", "72"),
        ("So it is\n\\[\n72\n\\]\n", "72"),
        (r"So \boxed {72}", "72"),
        ("答案是72", "72"),
        ("First 48, then 24.\n\n$72$\n", "$72$"),
        ("First 48, then 24.\nHe sold 72 clips", None),  # a sentence commits to nothing
        ("", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_whole_text():
    texts = [r"So \boxed{72}", "The answer is $72.", "#### 71", "72 is 72 is a number", None]
    assert grade(["72"] * 5, texts, whole_text=True) == [True, True, False, False, False]


HOSTILE = [
    "9**9**9**9",
    r"\boxed{9^{9^{9^{9}}}}",
    "1" * 200_000,
    "1" * 999,
    r"\boxed{" * 3000,
    r"\boxed{" * 3000 + "72" + "}" * 3000,
    "(" * 50_000,
    r"\frac{" * 2000 + "1" + "}{2}" * 2000,
    "a" * 100_000,
    "\ud800" * 10,
    "72\ud800",
    "\0",
    "72\0",
    "{" * 990,
    r"\sqrt{" * 100 + "2" + "}" * 100,
    "sin(" * 100 + "1" + ")" * 100,
    "+".join(["x^2y"] * 180),
    "-" * 900 + "1",
    "9!!!!",
    "(99999!)!",
    "1e999999999",
    "10^999999999",
    "$" * 900,
    "\\" * 900,
    "answer is " * 20_000,
    "<answer>" * 20_000,
    "__import__('os').system('true')",
]


def test_hostile_texts_are_wrong_within_seconds():
    grade([r"\sqrt2"], ["x"])  # start-up is not what is measured
    before, started = STATS.timeouts, time.monotonic()
    for gold in ("72", "x+1", "(1,2)", r"\frac{1}{7}"):
        assert grade([gold] * len(HOSTILE), HOSTILE) == [False] * len(HOSTILE)
        assert grade([gold] * len(HOSTILE), HOSTILE, whole_text=True) == [False] * len(HOSTILE)
    assert STATS.timeouts - before <= 2
    grade(HOSTILE, ["1"] * len(HOSTILE))  # as golds: any verdict will do
    assert time.monotonic() - started < 60


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["72", "x+1", "(1, 2)", r"\text{even}"]))
def test_any_text_gets_a_verdict(text, gold):
    assert grade([gold], [text])[0] in (True, False)
    assert grade([gold], [text], whole_text=True)[0] in (True, False)


WHOLE = st.one_of(st.integers(0, 12), st.integers(0, 3000), st.integers(0, 10**14), st.integers(0, 10**30))


@st.composite
def numbers_alike(draw):
    """Two spellings of numbers that are equal, or close enough to be taken for it."""
    value = draw(WHOLE)
    spellings = []
    for _ in range(2):
        n = draw(st.sampled_from([value, value, -value, value + 1, value * 10, value * 100]))
        m = draw(st.integers(0, 12))
        tail = draw(st.sampled_from(["", "0", "00", "5", "333333", "3333333", "000001", "0000001", "00001"]))
        shapes = ["{n}", "{n:,}", "+{n}", "- {n}", "00{n}", "-00{n}", ".{n}", "-.{n}", "{n}.{tail}", "{n:,}.{tail}", "{n}%", "{n}.{tail}%"]
        shapes += [
            "{n}/{m}",
            "-{n}/{m}",
            r"\frac{{{n}}}{{{m}}}",
            r"-\frac{{{n}}}{{{m}}}",
            r"\frac{{-{n}}}{{{m}}}",
            "{d:.3f}",
            "{d:.6f}",
            "{d:.7f}",
        ]
        shape = draw(st.sampled_from(shapes))
        spellings.append(shape.format(n=abs(n), m=m, tail=tail, d=abs(n) % 10**6 / (m or 3)))
    return spellings


@settings(max_examples=300, deadline=None)
@given(numbers_alike())
def test_numbers_settled_here_are_settled_as_math_verify_does(pair):
    left, right = map(read_value, pair)
    equal = left.equals(right) if left and right else None
    if equal is not None:
        assert worker.compare(pair[0], [pair[1]]) is equal
        assert right.equals(left) is equal


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("1080", "1,080.00", True),
        ("-0.5", "-.5", True),
        ("7", "007", True),
        ("0.5", r"\frac{2}{4}", True),
        ("-3/4", r"-\frac{75}{100}", True),
        ("50%", "50", True),  # a per cent is a hundredth, and against an integer also its own number
        ("50%", r"\frac{100}{2}", True),
        ("50%", "0.5", True),
        ("50%", "50.0", False),  # math-verify's verdict
        ("5000%", "50", True),
        ("50%", "5000", False),
        ("1/3", "0.33", False),  # 0.00333… apart
        ("1/3", "0.333333", None),  # within 1e-5: a question of rounding
        ("1/0", "1/0", None),
        ("--1", "1", None),
        ("0.5%", "0.005", None),  # a per cent that is no whole number
        ("0.1234567890123456", "0.1234567890123456", None),  # 16 decimals are more than a float holds
        ("x", "x", None),
    ],
)
def test_settling(gold, answer, equal):
    left, right = read_value(gold), read_value(answer)
    assert (left.equals(right) if left and right else None) is equal


@pytest.mark.skipif(not VERDICTS.exists(), reason="shared/data/verdicts lies beside a checkout in the project's workplace only")
def test_real_rows_are_settled_as_math_verify_does():
    rows = [json.loads(line) for line in VERDICTS.read_text(encoding="utf-8").splitlines()]
    settled = 0
    for row in rows[::3]:  # a third of the rows: math-verify takes a millisecond a comparison
        gold = read_gold(row["gold"])
        sides = read_answer(row["solution"].rpartition("A:")[2], gold)
        verdict = verification.settle(gold, sides)
        if sides is not None and verdict is not None:
            settled += 1
            assert worker.compare(gold.text, sides) is verdict, row
    assert settled > 0.95 * len(rows) / 3  # golds and answers of GSM8K are numbers


@pytest.fixture
def fresh():
    """No workers and no verdicts of earlier tests; gives the statistics before."""
    verification.close()
    verification._verdicts.clear()
    return STATS.copy()


def hanging(n):
    """Answers that never end, each another, so that none is remembered."""
    return [HANGS.replace("}", f"+{i}}}") for i in range(n)]


def surds(n, offset=0):
    """Golds and answers that need a parser: 2√k, with √4k right and √(4k+1) wrong in turn."""
    golds = [rf"2\sqrt{{{k}}}" for k in range(1000 + offset, 1000 + offset + n)]
    return golds, [rf"\sqrt{{{4 * (1000 + offset + i) + i % 2}}}" for i in range(n)], [i % 2 == 0 for i in range(n)]


def pids() -> set[int]:
    return {worker.pid for worker in verification._pool.workers}


def test_hanging_worker_is_killed_and_the_next_batch_is_normal(monkeypatch, fresh):
    monkeypatch.setattr(pool, "TASK_SECONDS", 1.0)
    # Off the main thread, where math-verify's own timeout raises.
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.extend(grade(["5", r"5\sqrt{7}"], [HANGS, r"\sqrt{175}"])))
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
        lost.append(judge(*arguments))
        return lost[-1]

    monkeypatch.setattr(pool.Pool, "_pass", noted)
    assert grade(golds, answers) == right  # nothing honest is lost behind them
    # In the workers' processor time, so that it does not depend on what else the machine does: the budget of two workers.
    assert [len(limits) for limits in lost] == [8, 8]
    assert sum(sum(limits.values()) for limits in lost) <= 2 * pool.TASK_SECONDS
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
    assert grade(["5"] * 40, hanging(40)) == [False] * 40
    # Budget 2 s of two workers: ten at 0.1 s, thirty hurried at 0.05 s; nothing is left for a second try. In all 1.25 s, and start-up.
    assert time.monotonic() - started < 10
    assert STATS.timeouts - fresh.timeouts == 40


def test_a_killed_worker_costs_no_verdict(fresh):
    """What the kernel does if memory is short: one worker dies in a batch, then all of them, then the fork server between two."""
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
    os.kill(verification._pool.fork_server.process.pid, signal.SIGKILL)
    golds, answers, right = surds(8, offset=2000)
    assert grade(golds, answers) == right
    assert STATS.timeouts == fresh.timeouts


def test_an_interrupted_batch_answers_no_later_one(monkeypatch, fresh):
    golds, answers, right = surds(40)
    monkeypatch.setattr(pool.json, "loads", lambda text: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        verification._ask([("r1_recipes.verification.worker:judge", golds[0], (answers[1],))])
    monkeypatch.undo()
    assert grade(golds, answers) == right


def test_a_flood_of_hostile_answers_leaves_no_memory_and_no_zombie_behind(fresh):
    signs = ["x", "2", "(", ")", "^", "{", "}", "+", "/", r"\frac", r"\sqrt", ",", "=", "|", "!", r"\pi", "_"]
    rng = Random(0)

    def flood(n):
        answers = ["".join(rng.choices(signs, k=rng.randint(1, 30))) for _ in range(n)]
        assert not any(grade([r"7\sqrt{11}"] * n, answers))

    flood(500)
    server = psutil.Process(verification._pool.fork_server.process.pid)
    before = psutil.Process().memory_info().rss
    flood(4500)
    assert psutil.Process().memory_info().rss - before < 40 << 20  # 9,000 remembered verdicts are a few MB
    workers = server.children()
    assert len(workers) <= pool.worker_count()
    assert all(child.memory_info().rss < worker.RETIRE_BYTES for child in workers)
    deadline = time.monotonic() + 5
    while any(child.status() == psutil.STATUS_ZOMBIE for child in server.children()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [child.status() for child in server.children() if child.status() == psutil.STATUS_ZOMBIE] == []
    assert server.memory_info().rss < worker.RETIRE_BYTES


def test_workers_retire(tmp_path):
    # Imported by the fork server too, which gets this process's path.
    (tmp_path / "sitecustomize.py").write_text("import r1_recipes.verification.worker as s\ns.RETIRE_TASKS = 3\n")
    done = run_script(
        tmp_path,
        r"""
        from r1_recipes import verification
        from r1_recipes.verification import pool
        pids = set()
        fork = pool.ForkServer.fork
        def noted(self, modules):
            worker = fork(self, modules)
            pids.add(worker.pid)
            return worker
        pool.ForkServer.fork = noted
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
    assert grade([r"3\sqrt{7}"] * 3, [r"\sqrt{63}", r"\sqrt{63}", r"\boxed{\sqrt{63}}"]) == [True] * 3
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
    with pytest.raises(ValueError, match="2 golds for 1 answers"):
        grade(["1", "2"], ["1"])


def test_reasoning_gym_scorer():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=3)[0]
    spec = json.dumps({"reasoning_gym": "chain_sum", "entry": entry})
    answers = [entry["answer"], "x", None, "9**9**9**9", "\ud800", "1" * 200_000]
    assert score([spec] * 6, answers) == [True, False, False, False, False, False]


def test_countdown_scorer():
    spec = '{"countdown": {"numbers": [7, 4, 3], "target": 31}}'
    before = STATS.copy()
    answers = ["7*4 + 3", "7 × 4 + 3 = 31", "31", "7*4-3", None, "9**9**9**9", "\ud800", "1" * 200_000, ""]
    assert score([spec] * len(answers), answers) == [True, True, False, False, False, False, False, False, False]
    assert STATS.comparisons == before.comparisons  # no worker was asked
    with pytest.raises(ValueError, match="Countdown scorer must be JSON"):
        score(['{"countdown": {"numbers": "7", "target": 31}}'], ["1"])


def test_scorers_of_several_kinds_in_one_batch():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=3)[0]
    specs = [json.dumps({"reasoning_gym": "chain_sum", "entry": entry}), '{"countdown": {"numbers": [5], "target": 5}}']
    assert score(specs * 2, [entry["answer"], "5", entry["answer"] + "0", "5 5"]) == [True, True, False, False]


@pytest.mark.parametrize("spec", ["chain_sum", "{}", "[1]", '{"reasoning_gym": "chain_sum"}', '{"reasoning_gym": "no_such", "entry": {}}'])
def test_a_bad_scorer_is_the_datas_fault(spec):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match="scorer"):
        score([spec], ["1"])


def run_script(tmp_path: Path, script: str, *arguments: str, **kwargs) -> subprocess.CompletedProcess:
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, *(arguments or ["script.py"])], cwd=tmp_path, capture_output=True, text=True, timeout=120, **kwargs
    )


@pytest.mark.parametrize("arguments", [["script.py"], ["-m", "script"]], ids=["file", "module"])
def test_main_is_not_imported_again(tmp_path, arguments):
    # A stand-in for torch that notes who imports it; the script has no __main__ guard.
    (tmp_path / "torch.py").write_text("import os\nopen('imports', 'a').write(f'{os.getpid()}\\n')\n")
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
        from r1_recipes.verification.worker import judge
        judge("x+1", ["1+x"])  # what a worker imports
        try:
            from r1_recipes.verification.gym_worker import score
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
        print(verification._pool.fork_server.process.pid, *(worker.pid for worker in verification._pool.workers), flush=True)
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
        worker.judge(text, [text + "+1"])
    asked = []
    parse_expr = sympy_parser.parse_expr
    monkeypatch.setattr(
        sympy_parser, "parse_expr", lambda text, *rest, **options: (asked.append(text), parse_expr(text, *rest, **options))[1]
    )
    shapes = r"""
        @ \sqrt[@]{2} \log_{@}(3) 25_{@} \binom{@}{2} \int_0^1@dx \lim_{x\to@}x \sum_{n=@}^{3}n \sum_{@=1}^{3}n \text{@} \overline{@}
        f_{@}(x) @' x_{@} x^{@} \mathrm{@} |@| \{@,1\} (@,1) [1,@) @! \operatorname{@}(2) \@ @\% @^\circ \frac{@}{2} \frac{d}{d@}x
        \sin(@) \lfloor@\rfloor x=@ @=2 @<x<3 x\in\{@\} \mathbb{@} 1@ 0.\overline{@} 1.@ \gcd(@,2) \det(@) \hat{@} {@}_{2} 1@_{16}
        \pm@ \begin{pmatrix}@&1\\2&3\end{pmatrix}"""
    worker.parse.cache_clear()
    for shape in ("12", *shapes.split()):
        worker.judge(shape.replace("@", name), ["x+12"])
        worker.judge("x+12", [shape.replace("@", name)])
    assert "12" in asked
    assert [text for text in asked if not re.fullmatch(r"[0-9.]+", str(text))] == []


def test_the_processes_that_judge_have_no_key(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-token")
    found = pool.Pool(1)
    try:
        assert found.run([("r1_recipes.verification.worker:judge", "(1,2)", ("(1, 2)",))]) == [True]
        for pid in (found.fork_server.process.pid, found.workers[0].pid):
            names = set(psutil.Process(pid).environ())
            assert "PYTHONPATH" in names
            assert names <= {*pool.KEPT_ENVIRONMENT, "PYTHONPATH", "PYTHONUTF8", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    finally:
        found.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_it_starts_do_not_end_the_fork_server(number):
    found = pool.Pool(1)
    server = found.fork_server
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.002):
            os.kill(found.fork_server.process.pid, number)

    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        assert found.run([("r1_recipes.verification.worker:judge", "(1,2)", ("(1, 2)",))]) == [True]
    finally:
        over.set()
        sender.join()
        found.close()
    assert found.fork_server is server
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # the trainer still hears it


def test_a_fork_server_that_is_killed_twice_in_a_row_is_replaced(monkeypatch):
    killed = []
    start = pool.ForkServer.__init__

    def killing(self) -> None:
        start(self)
        if len(killed) < 2:
            killed.append(self.process.pid)
            self.process.kill()

    monkeypatch.setattr(pool.ForkServer, "__init__", killing)
    found = pool.Pool(1)
    try:
        assert found.run([("r1_recipes.verification.worker:judge", "(1,2)", ("(1, 2)",))]) == [True]
        assert len(killed) == 2
        # and a working one, with its worker
        killed.clear()
        found.fork_server.process.kill()
        found.fork_server.process.wait()
        assert found.run([("r1_recipes.verification.worker:judge", "(1,3)", ("(1, 2)",))]) == [False]
        assert len(killed) == 2
    finally:
        found.close()


def test_fork_servers_that_are_always_killed_end_the_batch(monkeypatch):
    start = pool.ForkServer.__init__
    monkeypatch.setattr(pool.ForkServer, "__init__", lambda self: (start(self), self.process.kill())[0])
    found = pool.Pool(1)
    try:
        with pytest.raises(RuntimeError, match=f"could not start, {pool.MAX_STARTS} times in a row"):
            found.run([("r1_recipes.verification.worker:judge", "(1,2)", ("(1, 2)",))])
    finally:
        found.close()
