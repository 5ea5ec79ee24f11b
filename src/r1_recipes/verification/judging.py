"""What a worker process does with a task: asks math-verify, or a task's own scorer. Nothing here is imported by the trainer's process."""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

from r1_recipes.common.errors import install_hint
from r1_recipes.verification.exact import NUMBER, plain_spelling
from r1_recipes.verification.gym import SCORERS

PARSED_REMEMBERED = 4096
"""Parsed expressions that a worker keeps, golds above all: a few KB each."""

WARMING = (
    *(r"\frac{1}{2}", r"-\frac{3\pi}{4}", r"3\sqrt{13}", "x^{2}+2x+1", "(x+1)(x-2)", "y=2x+3", r"x=\frac{1}{2}", r"2+3i", r"90^\circ"),
    *("(1,2)", "[1,2]", r"(-\infty,2)\cup[3,\infty)", r"\{1,2,3\}", "1,2", r"1\le x<5", "x>3", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    *(r"\sin(x)", r"\log_2(3)", r"|x-1|", r"\binom{5}{2}", "25_8", "a^{n+1}", r"(1,\frac{\pi}{2},-3)", r"5\%", "x = 1, x = -2"),
)
"""One expression of each common kind: parsing it fills the parser's tables, so that the first answer of its kind is as fast as the next."""


def compare(gold: str, sides: list[str] | None) -> bool | None:
    """Whether math-verify finds every side equal to the gold; ``None`` where it cannot read the gold."""
    from math_verify import verify

    target = parse(gold)
    if not target:
        return None
    if not sides:
        return False
    for side in sides:
        parsed = parse(side)
        if not parsed or not verify(target, parsed, timeout_seconds=None):
            return False
    return True


@functools.lru_cache(PARSED_REMEMBERED)
def parse(text: str) -> list:
    """What math-verify makes of an expression: plain numbers as such (decimals get its tolerance), everything else as LaTeX."""
    from math_verify import parse as math_verify_parse

    plain = NUMBER.fullmatch(text)
    text, configs = (plain_spelling(plain), _configs()[0]) if plain else (f"${text}$", _configs()[1])
    return math_verify_parse(text, configs, fallback_mode="no_fallback", parsing_timeout=None)


@functools.cache
def _configs() -> tuple[list, list]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    return [ExprExtractionConfig()], [LatexExtractionConfig()]


def parse_in_two_stages() -> None:
    """Let latex2sympy's parser try ANTLR's faster prediction mode first, and its usual one only where that finds a syntax error.

    By ANTLR's documentation of ``PredictionMode.SLL`` a parse that succeeds in it is the one that the usual mode finds: the same verdicts
    for a fiftieth of the time on intervals, tuples, sets and equations (latex2sympy2_extended 1.11, antlr4 4.13).
    """
    from antlr4 import CommonTokenStream
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

    class TwoStageParser(latex2sympy2.PSParser):
        def math(self) -> Any:
            self._interp.predictionMode = PredictionMode.SLL
            try:
                return super().math()
            except Exception:  # What latex2sympy's error listener raises; a RecursionError would come again.
                lexer = self._input.tokenSource
                lexer.reset()
                self.setTokenStream(CommonTokenStream(lexer))
                self._interp.predictionMode = PredictionMode.LL
                return super().math()

    latex2sympy2.PSParser = TwoStageParser


def judge(gold: str, sides: list[str] | None) -> bool | None:
    """:func:`compare`, where whatever goes wrong makes the answer wrong."""
    try:
        return compare(gold, sides)
    except Exception:  # RecursionError and MemoryError too: sympy on a hostile text.
        return False


_RUNS_TEXT = frozenset(("compile", "exec", "import", "open", "os.system", "pickle.find_class", "subprocess.Popen"))
_scoring = False


def _refuse_code(event: str, arguments: tuple) -> None:
    if _scoring and event in _RUNS_TEXT:
        raise RuntimeError(f"a scorer wanted to {event}")


@functools.cache
def load_scorers() -> Any:
    """The package reasoning_gym, whose scorers can from now on run no text as code, in whatever version it is installed.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    import reasoning_gym

    sys.addaudithook(_refuse_code)
    return reasoning_gym


def score(spec: str, answer: str) -> bool | str:
    """Whether the scorer that ``spec`` names gives the answer full marks; a text says what is wrong with the scorer itself."""
    global _scoring
    parsed = json.loads(spec)
    try:
        scorer = _scorer(parsed["reasoning_gym"])
    except ModuleNotFoundError as error:
        return f"ModuleNotFoundError: {error}; the column 'scorer' needs it: {install_hint('demo')}"
    except ValueError as error:
        return f"scorer: {error}"
    _scoring = True
    try:
        return bool(scorer(answer=answer, entry=parsed["entry"]) >= 1.0 - 1e-9)
    except Exception:  # A scorer that chokes on the text has not found it right.
        return False
    finally:
        _scoring = False


@functools.cache
def _scorer(task: str) -> Any:
    if task not in SCORERS:
        raise ValueError(f"{task!r} is not one that was checked")
    return load_scorers().get_score_answer_fn(task)
