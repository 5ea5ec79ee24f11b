"""Maths equivalence: what counts as one answer, what counts as equal, and what a hostile text can do."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes import verification
from r1_recipes.verification import STATS, final_answer, grade, score

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
    (r"Half of $144$ is $x=\boxed{72}$.", "72"),  # golds that are whole solutions
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
    grade([r"\frac12"], ["x"])  # start-up is not what is measured
    before, started = STATS.timeouts, time.monotonic()
    for gold in ("72", "x+1", "(1,2)", r"\frac{1}{7}"):
        assert grade([gold] * len(HOSTILE), HOSTILE) == [False] * len(HOSTILE)
        assert grade([gold] * len(HOSTILE), HOSTILE, whole_text=True) == [False] * len(HOSTILE)
    grade(HOSTILE, ["1"] * len(HOSTILE))  # as golds: any verdict will do
    assert time.monotonic() - started < 60
    assert STATS.timeouts - before <= 8


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["72", "x+1", "(1, 2)", r"\text{even}"]))
def test_any_text_gets_a_verdict(text, gold):
    assert grade([gold], [text])[0] in (True, False)
    assert grade([gold], [text], whole_text=True)[0] in (True, False)


@settings(max_examples=40, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{:,}", "{}.0", "{:,}.00", "+{}", "0{}"]))
def test_settling_without_a_parser_agrees_with_math_verify(gold, answer, spelling):
    if answer < 0:
        spelling = spelling.lstrip("+0")
    for value in (answer, gold):
        text = spelling.format(value) if value >= 0 else spelling.lstrip("+0").format(value)
        read = verification._read_gold(str(gold))
        settled = verification._settle(read, verification._read_answer(text, read))
        assert settled is verification._compare(str(gold), [text]) is (value == gold)


def test_hanging_worker_is_killed_and_the_next_batch_is_normal(monkeypatch):
    monkeypatch.setattr(verification, "TASK_SECONDS", 1.0)
    verification.close()  # workers that an earlier test left dead would count here
    before = STATS.copy()
    # Off the main thread, where math-verify's own timeout raises.
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.extend(grade(["5", "5/7"], [HANGS, "10/14"])))
    thread.start()
    thread.join(60)
    assert verdicts == [False, True]
    assert STATS.timeouts == before.timeouts + 1
    assert grade(["5/8", "3/8", "1/8"], ["10/16", "6/16", "3/8"]) == [True, True, False]
    assert STATS.restarts == before.restarts + 1
    started = time.monotonic()
    assert grade(["5"], [HANGS]) == [False]  # remembered, not run again
    assert time.monotonic() - started < 0.5


def test_memory_is_capped(monkeypatch):
    # 2^(8e9 + …) is an integer of over 4 GB: it must fail in the worker, not take the machine down.
    monkeypatch.setattr(verification, "TASK_SECONDS", 3.0)
    assert grade(["5"], ["2^{90*90*90*90*9*99}"]) == [False]


def test_verdicts_are_shared():
    grade(["3/7"], ["6/14"])
    before = STATS.comparisons
    assert grade(["3/7"] * 3, ["6/14", "6/14", r"\boxed{6/14}"]) == [True] * 3
    assert STATS.comparisons == before


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
        print(grade([r"\\frac{1}{2}", "1/3"], ["2/4", "2/5"]))
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
        from r1_recipes.verification import _judge, _score
        _judge("x+1", ["1+x"])  # what a worker imports
        try:
            _score('{"reasoning_gym": "chain_sum", "entry": {"answer": "1"}}', "1")
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
        assert grade(["1/2"], ["2/4"]) == [True]
        child = os.fork()
        verdicts = grade(["1/3", "1/5"], ["2/6", "2/6"])
        assert verdicts == [True, False], verdicts
        if child:
            assert os.waitpid(child, 0)[1] == 0
            assert grade(["1/7"], ["2/14"]) == [True]
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
        verification.grade(["1/2", "1/3"], ["2/4", "2/6"])
        verification.TASK_SECONDS = 3.0
        threading.Thread(target=verification.grade, args=(["5"], ["{HANGS}"]), daemon=True).start()
        time.sleep(1)  # one worker is now deep inside an integer power, the other (if there are two) waits
        print(*(worker.process.pid for worker in verification._pool.workers if worker), flush=True)
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


@pytest.mark.parametrize("task", sorted(verification.RUNS_ANSWERS))
def test_a_scorer_that_runs_the_answer_is_refused(task):
    with pytest.raises(ValueError, match="runs the model's answer as Python"):
        verification.score([json.dumps({"reasoning_gym": task, "entry": {}})], ["1"])


@pytest.mark.parametrize("task", ["n_queens", "binary_matrix", "spiral_matrix", "string_insertion", "countdown"])
def test_no_scorer_of_reasoning_gym_runs_an_answer(task, tmp_path):
    """Each is asked about code that would leave a file, in the shapes that its scorer looks for; none may."""
    reasoning_gym = pytest.importorskip("reasoning_gym")
    entry = reasoning_gym.create_dataset(task, size=1, seed=1)[0]
    if task == "countdown":
        spec = json.dumps({"countdown": {"numbers": entry["metadata"]["numbers"], "target": entry["metadata"]["target"]}})
    else:
        spec = json.dumps({"reasoning_gym": task, "entry": entry}, default=str)
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).write_text('x')"
    answers = [code, f"[{code}]", f"[[{code}]]", f"[[{code}, 1], [0, 1]]"]
    assert verification.score([spec] * len(answers), answers) == [False] * len(answers)
    assert not mark.exists()
    if task != "countdown":  # and what is right still is
        assert verification.score([spec], [str(entry["answer"])]) == [True]
