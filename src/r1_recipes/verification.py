r"""Is an answer mathematically equal to the gold? Decided by math-verify, bounded in time and memory, in worker processes.

An answer is model output, so it is reduced to one candidate first (a hedge, a chain or a list of guesses is not an answer). What is
left goes to processes that are killed when they hang: ``\boxed{9^{9^{9^{9}}}}`` keeps a C function busy that no signal handler and
no thread can interrupt, and math-verify's own timeout is a SIGALRM handler, which works on the main thread only.

The workers are plain subprocesses that speak JSON lines. ``multiprocessing`` (and pools built on it) would import the user's
``__main__`` again in every worker, which here is a training script that loads torch.

This module imports neither torch nor transformers, and nor do its workers.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import unicodedata
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import psutil

from r1_recipes.countdown import Verdict, check, scorer_puzzle
from r1_recipes.errors import install_hint
from r1_recipes.formats import boxed_spans

TASK_SECONDS = 5.0
"""Limit of one comparison, in its worker's own processor time, so that an honest answer is not late because the machine is busy.
Ordinary ones take milliseconds; math-verify's own limit is 5 s each to parse and compare."""

BUSY_FACTOR = 6.0
"""Wall-clock limit of one comparison, in units of the above: what sleeps instead of computing, or is starved for good, ends too."""

HURRIED_SECONDS = 1.0
"""The limit once ``PATIENCE`` comparisons of one batch have timed out, so that a batch full of traps ends within about a minute."""

PATIENCE = 3

START_SECONDS = 120.0
"""Limit for a worker to import sympy: about a second, but many ranks may start on one cold network disk."""

MEMORY_BYTES = 2 << 30
"""Address space of a worker (Linux and macOS); a worker at work needs a tenth of it."""

MAX_ANSWER_CHARS = 1000
"""A longer answer is wrong unread: the longest gold of MATH, GSM8K and OpenR1-Math that is one expression is far shorter, and the
parsers take time that grows faster than the length (2,000 nested fractions recurse until they die)."""

MAX_GOLD_WORDS = 12
"""More words without a box or ``####`` are a solution or a proof, of which no part is known to be the gold."""

CACHE_SIZE = 16_384
"""Verdicts remembered: several steps' worth of completions, a few MB."""


@dataclass
class VerificationStats:
    """What verification has cost this process so far; every field only grows.

    Attributes:
        comparisons: verdicts asked of a worker.
        timeouts: comparisons that ran out of time or memory, or took their worker down; each counts as a wrong answer.
        restarts: workers started in place of one that was killed or died.
        seconds: wall-clock time inside :func:`grade` and :func:`score`, worker start-up included.
    """

    comparisons: int = 0
    timeouts: int = 0
    restarts: int = 0
    seconds: float = 0.0

    def copy(self) -> VerificationStats:
        """The present values, to take a difference from later."""
        return dataclasses.replace(self)


STATS = VerificationStats()


def grade(golds: Sequence[str | None], answers: Sequence[str | None], *, whole_text: bool = False) -> list[bool | None]:
    r"""Compare each answer with its gold.

    Args:
        golds: reference answers: plain (``1,080``), LaTeX (``\frac{3}{4}``, ``\text{(C)}``), or a solution text that ends in
            ``\boxed{…}`` or ``#### …``.
        answers: what the model gave as its final answer, aligned with ``golds``; ``None`` where it gave none.
        whole_text: each answer is a whole completion, from which :func:`final_answer` takes the answer first.

    Returns:
        One verdict each. ``None``: the gold is not mathematics, whatever the answer. ``False``: no answer, an answer that cannot be
        read as one value, a different one, or one that took too long. ``True``: equal as math-verify decides (``1080.00`` is
        ``1,080``; ``50%`` is 50 and 0.5; decimals agree to six places).

    Raises:
        ValueError: the two lists differ in length.
        RuntimeError: workers cannot be started here (math-verify is not installed, no processes left). Never because of a text.
    """
    if len(golds) != len(answers):
        raise ValueError(f"grade() got {len(golds)} golds for {len(answers)} answers")
    verdicts: list[bool | None] = [None] * len(golds)
    tasks: dict[int, list] = {}
    read: dict[str, _Gold | None] = {}
    for index, (gold_text, answer) in enumerate(zip(golds, answers, strict=True)):
        if gold_text is None:
            continue
        if gold_text not in read:
            read[gold_text] = _read_gold(gold_text)
        gold = read[gold_text]
        if gold is None:
            continue
        if answer is not None and whole_text:
            answer = final_answer(answer)
        sides = None if answer is None else _read_answer(answer, gold)
        verdict = _settle(gold, sides)
        if verdict is None:
            tasks[index] = ["grade", gold.text, sides]
        else:
            verdicts[index] = verdict
    for index, verdict in _ask(tasks).items():
        verdicts[index] = verdict
    return verdicts


def score(scorers: Sequence[str], answers: Sequence[str | None]) -> list[bool]:
    """Judge each answer by its task's own scorer: Countdown's here, a reasoning-gym task's under the same limits as :func:`grade`.

    Args:
        scorers: JSON ``{"countdown": {"numbers": […], "target": n}}`` (see :func:`r1_recipes.countdown.check`) or ``{"reasoning_gym": task
            name, "entry": the problem's entry}``.
        answers: final answers, aligned with ``scorers``; ``None`` where there is none.

    Returns:
        ``True`` where the answer is right; of reasoning-gym, where the task's ``score_answer`` gives full marks (1.0): partial credit is
        ``False``.

    Raises:
        ValueError: the two lists differ in length, or a scorer is not such JSON or names no task: a fault of the data.
        RuntimeError: workers cannot be started, or reasoning-gym is not installed.
    """
    if len(scorers) != len(answers):
        raise ValueError(f"score() got {len(scorers)} scorers for {len(answers)} answers")
    tasks = {}
    verdicts = [False] * len(scorers)
    for index, (spec, answer) in enumerate(zip(scorers, answers, strict=True)):
        puzzle = scorer_puzzle(spec)
        if puzzle is not None:
            verdicts[index] = answer is not None and check(answer, puzzle.numbers, puzzle.target) is Verdict.RIGHT
            continue
        _check_scorer(spec)
        if answer is not None and len(answer) <= 8 * MAX_ANSWER_CHARS:  # A task may ask for a whole grid.
            tasks[index] = ["score", spec, answer]
    for index, verdict in _ask(tasks).items():
        verdicts[index] = bool(verdict)
    return verdicts


RUNS_ANSWERS = frozenset({"composite", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"})
"""Tasks of reasoning-gym 0.1.25 whose scorer runs the model's answer as Python (sympy's ``parse_expr``), or may pass it to one."""

# These call eval() on the answer to read a list; in the worker they read literals instead.
_READ_LISTS = ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens")


def _check_scorer(spec: str) -> None:
    try:
        parsed = json.loads(spec)
        if parsed["reasoning_gym"] in RUNS_ANSWERS:
            raise ValueError(f"scorer: reasoning-gym's {parsed['reasoning_gym']!r} runs the model's answer as Python, so it is not used")
        valid = isinstance(parsed["reasoning_gym"], str) and isinstance(parsed["entry"], dict)
    except (json.JSONDecodeError, TypeError, KeyError):
        valid = False
    if not valid:
        raise ValueError(
            f'a scorer must be JSON {{"reasoning_gym": task name, "entry": {{…}}}} or {{"countdown": {{…}}}}, not {spec[:80]!r}'
        )


_ANCHOR = re.compile(r"####|\banswer\s*(?:is\b|:|：)|答案(?:是|为|:|：)", re.IGNORECASE)
_SIGNS = str.maketrans(
    {
        **dict(zip("０１２３４５６７８９＋－＝，．（）％：", "0123456789+-=,.()%:", strict=True)),
        **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", None),
        **dict.fromkeys("€£¥₹₽₩", " "),
        "×": r"\times ",
        "÷": "/",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "°": r"^\circ ",
        "√": r"\sqrt ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "²": "^2",
        "³": "^3",
        "±": r"\pm ",
        "∪": r"\cup ",
    }
)
_STYLED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|emph)\s*\{([^{}]*)\}")
_DELIMITER = re.compile(r"(?<!\\)\\[()\[\]]|\\?\$")
_IGNORED = re.compile(r"\\(?:left|right|displaystyle|bigl?|bigr|Bigl?|Bigr)(?![A-Za-z])")
_THIN_SPACE = re.compile(r"(?<!\\)\\[,!;: ]|~")
_EMPHASIS = re.compile(r"(?<![\w)}])\*\*|\*\*(?![\w(\\{-])|`")
_FUNCTIONS = "arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|sqrt|log|ln|exp|pi|infty"
_BARE_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_MEMBER = re.compile(r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*")  # "x \in [1, 2]"
_NUMBER = re.compile(r"(?P<sign>[-+]?)\s*(?P<digits>(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)\s*(?P<percent>%?)")
_SCIENTIFIC = re.compile(r"(?<=\d)[eE]([-+]?\d{1,3})(?![\w.])")  # str(1e-05), which LaTeX would read as Euler's number
_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?![\d,])")
_MIXED = re.compile(r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])")
# A unit may carry an exponent (cm^2, m2); text in another script is prose too.
_WORD = re.compile(
    r"(?<![A-Za-z\\])(?<!\\begin\{)(?<!\\end\{)"
    r"(?:[A-Za-z]{2,}|(?<=[\d\s])[A-Za-z](?=\^?\{?[23]\}?(?![\d.])\s*$))"
    r"(?:\s*\^?\{?[23]\}?(?![\d.}]))?"
)
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
_HEDGE = re.compile(r"\b(?:or|nor|not|either|neither|maybe|perhaps)\b|\?|？|或|不是", re.IGNORECASE)
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_SEVERAL = re.compile(r"[,;]|\\(?:pm|mp|cup|cap|begin|in|\{)(?![A-Za-z])|\b(?:or|and)\b")
_JOINT = re.compile(r"\s*(?:[,;]\s*)?\b(?:and|or)\b\s*|\s*;\s*")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|leq|geq|lt|gt|ne|neq|in|to|sim)(?![A-Za-z])|\\(?:right|left)arrow")
_EQUALS = re.compile(r"(?<![<>!])=|\\approx(?![A-Za-z])")
# What may stand left of an equals sign without being a second value: x, x_1, f(2), (x, y), \angle A, total cost.
_UNKNOWN = re.compile(r"\s*(?:[A-Za-z]\w*'?\([^()]*\)|(?=[^\d]*[A-Za-z])[^\d=]+(?:_\{?\d+\}?)?)\s*")
# Towers of powers and factorials: each would cost a worker its whole time limit, and no plain gold is answered with one.
_TOWER = re.compile(r"\^[\s{(]*\d+[\s})]*\^|\^\{?-?\d{5,}|\d{5,}\s*!|![\s)}]*!")
_UNSEPARATED = re.compile(
    r"(?:[\d.]|(?<!matrix)\})\s+[\d.]|\d_|\.\.|%\s*[^\s)}]"
)  # two numbers with nothing, or nothing known, between them
_BASE = re.compile(r"[\dA-F]+_\{?(\d+)\}?")
_ALLOWED = re.compile(r"[\w\s\\{}()\[\]+\-*/^.%!|,=<>]*", re.ASCII)
_STRANGE = frozenset(("Nd", "No", "Nl", "Cs", "Cc"))
_COMMANDS = frozenset(
    "\\" + name
    for name in (
        *("frac", "cdot", "times", "div", "sqrt", "pi", "infty", "circ", "degree", "approx", "binom", "angle"),
        *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "ln", "exp"),
        *("alpha", "beta", "gamma", "theta", "lambda", "mu", "phi", "omega"),
    )
)


_COLLECTIONS = frozenset(("\\{", "\\}", "\\\\", "\\cup", "\\pm", "\\begin", "\\end"))


@dataclass(frozen=True)
class _Gold:
    """A gold, reduced: its expression, whether it holds several values, and what it is made of."""

    text: str
    several: bool
    relations: int
    commands: frozenset[str]
    words: str | None = None  # "\text{Evelyn}": a gold that is words, compared as words
    value: Fraction | None = None


def final_answer(text: str) -> str | None:
    r"""The final answer of a whole completion, or ``None`` where it commits to none.

    The last ``\boxed{…}``, unless boxes with other contents contradict it; without a box what follows the last "answer is",
    "answer:" or ``####``; else the last line where that is nothing but one expression. Linear in the length.
    """
    if "\\boxed" in text:
        boxes = {text[start:end].strip() for start, end in boxed_spans(text)}
        return boxes.pop() if len(boxes) == 1 else None
    *_, anchor = [None, *_ANCHOR.finditer(text)]
    if anchor is not None:
        line = next((line for line in text[anchor.end() :].splitlines() if line.strip(" \t*_:：")), "")
        return line.strip(" \t*_:：") or None
    line = text.rstrip()[-MAX_ANSWER_CHARS:].rpartition("\n")[2]
    cleaned = _clean(line)
    return line if cleaned and not _WORD.search(cleaned) and not _FOREIGN.search(cleaned) else None


def _clean(text: str) -> str:
    """Text with wrappers, styling, currency signs and typographic variants taken off, so that one LaTeX-like spelling is left."""
    text = text.translate(_SIGNS)
    text = _STYLED.sub(r" \1 ", text)
    text = _DELIMITER.sub(" ", text).replace("\\%", "%").replace("{,}", ",")
    text = _IGNORED.sub("", text)
    text = re.sub(r"(?<=\d)(?:\\[,!;: ])(?=\d{3}(?!\d))", ",", text)  # 1\,080
    text = _THIN_SPACE.sub(" ", text)
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _EMPHASIS.sub(" ", text).replace("**", "^").strip(" \t\r\n*_\"'")
    text = re.sub(r"[.。,;:]+$", "", text).strip()
    text = _SCIENTIFIC.sub(r"\\cdot 10^{\1}", text)
    text = _BARE_FUNCTION.sub(r"\\\1 ", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    # LaTeX reads 2^10 as 2^1 0; whoever writes it means 2^{10}.
    text = re.sub(r"(\^|\\sqrt)\s*\(([^()]*)\)", r"\1{\2}", text)
    text = _MEMBER.sub("", text)
    return re.sub(r"\^\s*(-?\d+(?:\.\d+)?)", r"^{\1}", text)


def _plain_number(text: str) -> Fraction | None:
    """The exact value of a plain decimal number (no percent sign, no exponent)."""
    match = _NUMBER.fullmatch(text)
    if match is None or match["percent"]:
        return None
    value = Fraction(match["digits"].replace(",", "").removesuffix("."))
    return -value if match["sign"] == "-" else value


def _without_words(text: str) -> str | None:
    """``text`` without its prose: the one piece that says something mathematical, or ``None`` where there are several or none."""
    pieces = [piece.strip() for piece in _FOREIGN.sub("\0", _WORD.sub("\0", text)).split("\0")]
    if len(pieces) == 1:
        return text
    telling = [piece for piece in pieces if re.search(r"\d|\\[A-Za-z]", piece)]
    if len(telling) != 1:
        return None
    # The slash of km/h, the hyphen of 10-year, the comma and colon of a sentence and the sign of "Total = 72" belong to the word.
    return telling[0].lstrip("= \t\r\n").strip(" \t\r\n,:;").removesuffix("/").removesuffix("-").strip()


def _read_gold(text: str) -> _Gold | None:
    boxes = [text[start:end] for start, end in boxed_spans(text)]
    if boxes:
        text = boxes[-1]
    elif "####" in text:
        text = text.rpartition("####")[2]
    if len(text) > MAX_ANSWER_CHARS or len(text.split()) > MAX_GOLD_WORDS:
        return None
    cleaned = _clean(text)
    if re.search(r"\\text|\\mathrm|\\mbox", text) and re.fullmatch(r"[A-Za-z][A-Za-z\s'-]+", cleaned):
        return _Gold(cleaned, False, 0, frozenset(), words=_words(cleaned))
    several = bool(_SEVERAL.search(_THOUSANDS.sub(r"\1", cleaned)))
    if several:
        cleaned = _JOINT.sub(", ", cleaned)
    expression = _without_words(cleaned)
    if not expression:
        return None
    return _Gold(
        text=expression,
        several=several,
        relations=len(_EQUALS.findall(expression)),
        commands=frozenset(_COMMAND.findall(expression)),
        value=_plain_number(expression),
    )


def _words(text: str) -> str:
    return " ".join(text.split()).casefold()


def _read_answer(text: str, gold: _Gold) -> list[str] | None:
    """The expressions that all have to equal the gold for this answer to be right; ``None`` where it is no single answer."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    for _ in range(3):  # A box in a box is a slip; more is a trap.
        boxes = {text[start:end].strip() for start, end in boxed_spans(text)}
        if not boxes:
            break
        if len(boxes) > 1:
            return None
        text = boxes.pop()
    if "\\boxed" in text:
        return None
    if any(map(_is_strange, text.translate(_SIGNS))):
        return None
    cleaned = _clean(text)
    if gold.words is not None:
        return [_words(cleaned)]
    if gold.several:
        if "?" in cleaned:
            return None
        cleaned = _JOINT.sub(", ", cleaned)
    elif _HEDGE.search(cleaned):
        return None
    expression = _without_words(cleaned)
    if not expression or not _is_one_expression(expression, gold):
        return None
    parts = _split(expression, ",") if gold.several else [expression]
    if gold.relations:
        return [expression] if len(_EQUALS.findall(expression)) <= gold.relations else None
    sides = [[side.strip() for side in _EQUALS.split(part)] for part in parts]
    for part in sides:
        if len(part) > 1 and _UNKNOWN.fullmatch(part[0]):
            del part[0]  # "x = 72"
    if not gold.several:
        # "36 + 36 = 72" says 72 twice; "71 = 72" says two things.
        return sides[0] if all(sides[0]) and len(sides[0]) <= 4 else None
    return [", ".join(part[0] for part in sides)] if all(len(part) == 1 for part in sides) else None


def _is_one_expression(expression: str, gold: _Gold) -> bool:
    """Whether a parser would have to read all of this as one value.

    latex2sympy reads as far as it understands and drops the rest, so ``2**3`` counts as 2. Hence only known signs may occur.
    """
    # Honest answers are about as long and as deep as their gold; the parsers take seconds for the rest.
    if len(expression) > max(300, 4 * len(gold.text)) or _depth(expression) > max(10, 2 * _depth(gold.text)) or "---" in expression:
        return False
    unseparated = _THOUSANDS.sub(r"\1", expression)
    if not gold.several and "," in unseparated:
        return False
    if _UNSEPARATED.search(unseparated) and not _UNSEPARATED.search(gold.text):
        return False
    if not set(_ALLOWED.sub("", expression)) <= set(gold.text):
        return False
    if not set(_COMMAND.findall(expression)) <= _COMMANDS | gold.commands | (_COLLECTIONS if gold.several else set()):
        return False
    bases = _BASE.fullmatch(expression), _BASE.fullmatch(gold.text)
    if all(bases) and bases[0][1] != bases[1][1]:
        return False  # math-verify drops the subscript of 25_8
    if _RELATION.search(expression) and not _RELATION.search(gold.text):
        return False
    return expression.count("|") % 2 == 0 and not (_TOWER.search(expression) and not _TOWER.search(gold.text))


def _depth(text: str) -> int:
    """How deeply brackets nest."""
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _is_strange(char: str) -> bool:
    """Digits of other scripts (a second value that nothing here would count), control characters and lone surrogates."""
    return unicodedata.category(char) in _STRANGE and not ("0" <= char <= "9" or char.isspace())


def _split(text: str, separator: str) -> list[str]:
    """Split at the separators that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _settle(gold: _Gold, sides: list[str] | None) -> bool | None:
    """The verdict where it needs no parser; ``None``: ask a worker."""
    if gold.words is not None:
        return sides == [gold.words]
    if gold.value is None:
        return None
    if sides is None:
        return False
    values = [_plain_number(side) for side in sides]
    if None in values:
        return None
    # math-verify compares decimals rounded to six places; only clear cases are settled here.
    gaps = [abs(value - gold.value) for value in values]
    if not any(gaps):
        return True
    return False if max(gaps) > Fraction(1, 100_000) else None


class _Worker:
    """One subprocess that answers one task at a time."""

    def __init__(self) -> None:
        # The parent's own path, since it may have been set up in code, and the folder of this package.
        path = [*(entry for entry in sys.path if entry), str(Path(__file__).resolve().parents[1])]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from r1_recipes.verification import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.ready = False
        self._usage = psutil.Process(self.process.pid)

    def await_ready(self) -> None:
        """Block until the worker has imported what it needs.

        Raises:
            RuntimeError: it could not; the message says why.
        """
        if self.ready:
            return
        reply, _ = self._receive(START_SECONDS)
        if reply != "ready":
            self.kill()
            reason = reply or "it died, or took too long, while importing math-verify"
            raise RuntimeError(f"a verification worker could not start: {reason}")
        self.ready = True

    def ask(self, task: list, seconds: float) -> tuple[Any, bool]:
        """The worker's reply (``None`` where it hung or died; then it is gone), and whether it ran out of time."""
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps([seconds * BUSY_FACTOR, *task]).encode() + b"\n")
            self.process.stdin.flush()
        return self._receive(seconds)

    def _receive(self, seconds: float) -> tuple[Any, bool]:
        answered = threading.Event()
        late = False

        def watch() -> None:
            nonlocal late
            began, used = time.monotonic(), self._processor_seconds()
            left = seconds
            while not answered.wait(left):
                left = min(seconds - (self._processor_seconds() - used), seconds * BUSY_FACTOR - (time.monotonic() - began))
                if left <= 0:
                    late = True
                    self.process.kill()
                    return
                left = max(left, 0.05)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            reply = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            reply = None
        answered.set()
        watcher.join()
        if reply is None or late:
            self.kill()  # a reply that came with the deadline counts, but the next task must not meet a dead worker
        return reply, late

    def _processor_seconds(self) -> float:
        try:
            times = self._usage.cpu_times()
        except psutil.Error:  # it has ended; whoever reads its pipe will know
            return 0.0
        return times.user + times.system

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class _Pool:
    """The workers of this process."""

    def __init__(self) -> None:
        self.workers: list[_Worker | None] = [None] * _worker_count()

    def run(self, tasks: dict[int, list]) -> dict[int, Any]:
        """Replies by key; ``None`` for a task that ran out of time.

        Raises:
            RuntimeError: workers cannot be started.
        """
        queue = deque(tasks.items())
        replies: dict[int, Any] = {}
        errors: list[BaseException] = []
        late: list[int] = []
        retried: set[int] = set()

        def drain(slot: int) -> None:
            try:
                while queue and not errors:
                    worker = self._worker(slot)
                    try:
                        key, task = queue.popleft()
                    except IndexError:
                        return
                    seconds = TASK_SECONDS if len(late) < PATIENCE else HURRIED_SECONDS
                    reply, timed_out = worker.ask(task, seconds)
                    if reply is None and key not in retried and not timed_out:
                        # It died by itself. Perhaps the kernel wanted its memory; then the task is innocent.
                        retried.add(key)
                        queue.append((key, task))
                        continue
                    if reply is None:
                        late.append(key)
                    replies[key] = reply
            except BaseException as error:
                errors.append(error)

        slots = range(min(len(self.workers), len(tasks)))
        for slot in slots:  # All at once: importing takes a second.
            if self.workers[slot] is None:
                self.workers[slot] = _Worker()
        threads = [threading.Thread(target=drain, args=(slot,), daemon=True) for slot in slots]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: leave no thread that still talks to a worker.
            queue.clear()
            self.close()
            raise
        if errors:
            raise RuntimeError(str(errors[0])) from errors[0]
        STATS.comparisons += len(tasks)
        STATS.timeouts += len(late)
        return replies

    def _worker(self, slot: int) -> _Worker:
        worker = self.workers[slot]
        if worker is None or not worker.alive:
            if worker is not None:
                worker.kill()
                STATS.restarts += 1
            worker = self.workers[slot] = _Worker()
        worker.await_ready()
        return worker

    def close(self) -> None:
        for worker in self.workers:
            if worker is not None:
                worker.kill()


def _worker_count() -> int:
    """A few processes are plenty; the ranks of a node share its cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, min(4, cores // ranks))


_lock = threading.Lock()
_pool: _Pool | None = None
_verdicts: OrderedDict[bytes, bool | None] = OrderedDict()


def _ask(tasks: dict[int, list]) -> dict[int, bool | None]:
    """Verdicts of these tasks, each distinct one computed once in this process."""
    global _pool
    if not tasks:
        return {}
    started = time.perf_counter()
    with _lock:
        try:
            keys = {index: hashlib.blake2b(json.dumps(task).encode(), digest_size=16).digest() for index, task in tasks.items()}
            known = {key: _verdicts[key] for key in keys.values() if key in _verdicts}
            unknown = {key: index for index, key in keys.items() if key not in known}
            if unknown:
                _pool = _pool or _Pool()
                replies = _pool.run({index: tasks[index] for index in unknown.values()})
                for key, index in unknown.items():
                    reply = replies[index]
                    if isinstance(reply, str):
                        raise (RuntimeError if reply.startswith("ModuleNotFoundError") else ValueError)(reply)
                    known[key] = False if reply is None else reply[0]
            for key, verdict in known.items():
                _verdicts[key] = verdict
                _verdicts.move_to_end(key)
            while len(_verdicts) > CACHE_SIZE:
                _verdicts.popitem(last=False)
            return {index: known[key] for index, key in keys.items()}
        finally:
            STATS.seconds += time.perf_counter() - started


def close() -> None:
    """Stop the workers; the next call starts new ones. Runs by itself at exit."""
    global _pool
    pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def _forget_parents_pool() -> None:
    # After a fork the pipes belong to the parent: two processes reading one would take each other's replies.
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_pool)


def _serve() -> None:
    """The worker's main loop: a JSON task a line on stdin, a JSON reply a line on stdout; ends when the parent does."""
    import logging
    import signal

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Whatever a library writes must not look like a reply.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    logging.disable(logging.CRITICAL)
    try:
        _compare(r"\frac{1}{2}", ["0.5"])  # Imports, and compiles math-verify's patterns.
        reply = "ready"
    except Exception as error:
        reply = f"{type(error).__name__}: {error}"
    while True:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        line = sys.stdin.readline()
        if not line:
            return
        seconds, kind, *arguments = json.loads(line)
        # The parent kills a worker that hangs. Should the parent itself be killed meanwhile, the default action of SIGALRM ends the
        # worker, whatever C function it is in (a thread that watches the parent would not get the interpreter lock).
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + 1)
        reply = (_score if kind == "score" else _judge)(*arguments)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _judge(gold: str, sides: list[str] | None) -> list[bool | None]:
    try:
        return [_compare(gold, sides)]
    except Exception:  # RecursionError and MemoryError too: sympy on a hostile text.
        return [False]


def _compare(gold: str, sides: list[str] | None) -> bool | None:
    from math_verify import verify

    target = _parse(gold)
    if not target:
        return None
    if not sides:
        return False
    for side in sides:
        parsed = _parse(side)
        if not parsed or not verify(target, parsed, timeout_seconds=None):
            return False
    return True


def _parse(text: str) -> list:
    """What math-verify makes of an expression: plain numbers as such (decimals get its tolerance), everything else as LaTeX."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    plain = _NUMBER.fullmatch(text)
    if plain:
        text = plain["sign"].replace("+", "") + plain["digits"].removesuffix(".") + plain["percent"]
        return parse(text, [ExprExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
    return parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)


def _score(spec: str, answer: str) -> list[bool] | str:
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        return f"ModuleNotFoundError: {error}; the column 'scorer' needs it: {install_hint('demo')}"
    import ast
    import importlib

    for name in _READ_LISTS:
        importlib.import_module(f"reasoning_gym.{name}").eval = ast.literal_eval
    parsed = json.loads(spec)
    try:
        scorer = reasoning_gym.get_score_answer_fn(parsed["reasoning_gym"])
    except ValueError as error:
        return f"scorer: {error}"
    try:
        return [scorer(answer=answer, entry=parsed["entry"]) >= 1.0 - 1e-9]
    except Exception:  # A scorer that chokes on the text has not found it right.
        return [False]
