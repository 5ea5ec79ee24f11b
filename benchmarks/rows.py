r"""Rows to judge, drawn from a seed: problems in groups of eight completions, as GRPO samples them.

``gsm8k``: golds are numbers. ``math``: half of the golds are numbers or fractions, the others LaTeX
of 13 kinds. ``adversarial``: math rows, an eighth of which never end in math-verify. ``hostile``:
texts that take other judges seconds each.

Of a group, between none and all completions are right. Some right ones spell the answer as the gold
does and some otherwise; some wrong ones agree with each other. All put the answer in ``\boxed{}``
after reasoning of a few hundred characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

# An answer is one of a list, or drawn.
Answers = list[str] | Callable[[Random], str]
# The gold, right answers that spell it otherwise, and wrong answers.
Problem = tuple[str, Answers, Answers]


class Row(NamedTuple):
    """One completion and what it is judged by."""

    completion: str
    gold: str
    answer: str  # what the box holds
    right: bool


def rows(mix: str, seed: int, *, group: int = 8) -> Iterator[Row]:
    """Yield rows of one mix without end, group by group; the same seed draws the same rows."""
    rng = Random(seed)
    if mix == "hostile":
        while True:
            gold = _MATH[rng.randrange(len(_MATH))](rng)[0]
            yield from (Row(text, gold, text, False) for text in hostile_texts(rng))
    while True:
        problem = _gsm8k(rng) if mix == "gsm8k" else _math(rng)
        drawn = _group(problem, rng, group)
        if mix == "adversarial":  # hundreds of millions of digits, of another number each time
            answer = f"9^{{9999*9999+{rng.randrange(10**9)}}}"
            drawn[rng.randrange(group)] = Row(_completion(answer, rng), problem[0], answer, False)
        yield from drawn


def hostile_texts(rng: Random) -> list[str]:
    """Return whole completions that take other judges seconds each, or their stack."""
    salt = str(rng.randrange(10**6))
    return [
        r"\boxed{" + "(" * 50_000 + salt + "}",
        r"\boxed{" + r"\frac{" * 2000 + salt + "}{2}" * 2000 + "}",
        r"\boxed{" + "a" * 100_000 + salt + "}",
        "(" * 50_000 + salt,
        r"\frac{" * 2000 + salt + "}{2}" * 2000,
        "$" + "{" * 990 + salt,
        r"\boxed{" * 3000 + salt + "}" * 3000,
        r"\boxed{" + "x^2y+" * 150 + salt + "}",
    ]


def _draw(answers: Answers, rng: Random) -> str:
    return rng.choice(answers) if isinstance(answers, list) else answers(rng)


def _group(problem: Problem, rng: Random, size: int) -> list[Row]:
    gold, rights, wrongs = problem
    right = rng.randint(0, size)
    shared = _draw(wrongs, rng)
    answers = []
    for index in range(size):
        if index < right:
            answers.append((gold if rng.random() < 0.6 else _draw(rights, rng), True))
        else:
            answers.append((shared if rng.random() < 0.4 else _draw(wrongs, rng), False))
    rng.shuffle(answers)
    return [Row(_completion(answer, rng), gold, answer, verdict) for answer, verdict in answers]


_STEPS = (
    "First we write down what is given and what is asked, and name the unknown. ",
    "Adding both sides of the two relations removes one of the unknowns. ",
    "Of the {n} that were there at the start, {m} are left after the second step. ",
    "Since {n} * {m} = {p}, the amount comes to {p} in all, before anything is taken away. ",
    "Substituting this back gives the same value, so the step was right. ",
    "Now look at the other case: it leads to a contradiction, so only the first one remains. ",
)


def _completion(answer: str, rng: Random) -> str:
    reasoning = ""
    for _ in range(rng.randint(3, 7)):
        n, m = rng.randint(2, 60), rng.randint(2, 60)
        reasoning += rng.choice(_STEPS).format(n=n, m=m, p=n * m)
    return reasoning.strip() + f"\nThe answer is $\\boxed{{{answer}}}$."


def _gsm8k(rng: Random) -> Problem:
    n = rng.choice((rng.randint(1, 100), rng.randint(100, 2000), rng.randint(2000, 200_000)))
    gold = f"{n:,}" if n >= 1000 and rng.random() < 0.5 else str(n)
    rights = [f"{n}", f"{n:,}", f"{n}.00", rf"\${n}", f"{n}", rf"{n} \text{{ dollars}}"]
    return gold, rights, [str(n + off) for off in (-10, -2, -1, 1, 2, 5, 10, 100, n)]


def _math(rng: Random) -> Problem:
    if rng.random() < 0.5:
        return rng.choice((_integer, _integer, _fraction))(rng)
    return rng.choice(_MATH)(rng)


def _integer(rng: Random) -> Problem:
    n = rng.randint(-200, 2000)
    return f"{n}", [f"{n}", f"x={n}", f"{n}.0"], [str(n + off) for off in range(1, 31)]


def _fraction(rng: Random) -> Problem:
    b = rng.randint(2, 40)
    mixed = rng.random() < 0.3
    a = rng.randint(1, 90) * 2 * b + 2 * rng.randint(0, b - 1) + 1 if mixed else rng.randint(1, 200)

    def wrong(rng: Random) -> str:
        near = rf"\frac{{{a + rng.randint(1, 9)}}}{{{b}}}"
        return rng.choice((near, rf"\frac{{{b}}}{{{a}}}" if a != b else "2", str(a)))

    gold = rf"\frac{{{a}}}{{{b}}}"
    return gold, [gold, f"{a}/{b}", rf"\d{gold[1:]}", rf"\frac{{{2 * a}}}{{{2 * b}}}"], wrong


def _root(rng: Random) -> Problem:
    a, b = rng.randint(2, 40), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    rights = [rf"{a} \sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}", rf"{a}\cdot\sqrt{{{b}}}"]
    wrongs = [rf"{a + 1}\sqrt{{{b}}}", rf"\sqrt{{{a * b}}}", rf"{a}\sqrt{{{b + 1}}}", str(a * b)]
    return rf"{a}\sqrt{{{b}}}", rights, wrongs


def _ends(rng: Random, least: int) -> tuple[int, int]:
    a = rng.randint(-least, least)
    return a, a + rng.randint(1, 30)


def _interval(rng: Random) -> Problem:
    a, b = _ends(rng, 30)
    left, right = rng.choice(("[]", "()", "[)", "(]"))
    other = {"[": "(", "(": "["}[left]
    inner = rf"\left{left}{a},{b}\right{right}"
    rights = [f"{left}{a}, {b}{right}", inner, rf"x \in {left}{a},{b}{right}"]
    wrongs = [f"{other}{a},{b}{right}", f"{left}{a},{b + 1}{right}", f"{left}{a - 1},{b}{right}"]
    return f"{left}{a},{b}{right}", rights, [*wrongs, str(a)]


def _union(rng: Random) -> Problem:
    a, b = _ends(rng, 30)
    low, high = rf"(-\infty,{a})", rf"({b},\infty)"
    rights = [rf"(-\infty, {a}) \cup ({b}, \infty)", rf"{high}\cup{low}"]
    closed = rf"(-\infty,{a}]\cup[{b},\infty)"
    return rf"{low}\cup{high}", rights, [closed, low, f"({a},{b})", rf"{low}\cup({b + 1},\infty)"]


def _tuple(rng: Random) -> Problem:
    a, b, c = (rng.randint(-20, 20) for _ in range(3))
    wrongs = [f"({a},{b},{c + 1})", f"({a + 1},{b},{c})", f"({a},{b})"]
    return f"({a},{b},{c})", [f"({a}, {b}, {c})", rf"\left({a},{b},{c}\right)"], wrongs


def _set(rng: Random) -> Problem:
    a, b, c = sorted(rng.sample(range(-40, 40), 3))
    rights = [rf"\{{{a}, {b}, {c}\}}", rf"\{{{c}, {a}, {b}\}}", f"{a}, {b}, {c}"]
    return rf"\{{{a},{b},{c}\}}", rights, [rf"\{{{a},{b}\}}", rf"\{{{a},{b},{c + 1}\}}", str(b)]


def _roots(rng: Random) -> Problem:
    a = rng.randint(-40, 40)
    b = a + rng.randint(1, 20)
    wrongs = [f"{a}, {b + 1}", str(a), f"{a}, {b}, {b + 2}"]
    return f"{a}, {b}", [f"{a},{b}", f"{b}, {a}", f"x={a}, x={b}"], wrongs


def _matrix(rng: Random) -> Problem:
    a, b, c, d = (rng.randint(-9, 9) for _ in range(4))
    begin, end = r"\begin{pmatrix}", r"\end{pmatrix}"
    bodies = rf"{a}&{c + 1}\\{b}&{d}", rf"{a}&{b}\\{c}&{d + 1}", rf"{a + 1}\\{d}"
    right = rf"{begin} {a} & {b} \\ {c} & {d} {end}"
    return rf"{begin}{a}&{b}\\{c}&{d}{end}", [right], [begin + body + end for body in bodies]


def _equation(rng: Random) -> Problem:
    a, b = rng.randint(2, 30), rng.randint(1, 40)
    wrongs = [f"y={a}x-{b}", f"y={a + 1}x+{b}", f"{a}x+{b + 1}", f"y={b}x+{a + b}"]
    return f"y={a}x+{b}", [f"y = {a}x + {b}", f"y={b}+{a}x", f"{a}x+{b}=y"], wrongs


def _inequality(rng: Random) -> Problem:
    a, b = _ends(rng, 40)
    wrongs = [rf"{a}<x<{b}", rf"{a}\le x<{b + 1}", rf"{a + 1}\le x<{b + 1}"]
    return rf"{a}\le x<{b}", [rf"{a} \le x < {b}", rf"{a}\leq x<{b}"], wrongs


def _polynomial(rng: Random) -> Problem:
    a, b = rng.randint(1, 15), rng.randint(1, 15)
    s, p = a + b, a * b
    rights = [f"x^2 + {s}x + {p}", f"(x+{a})(x+{b})", f"{p}+{s}x+x^2"]
    return f"x^2+{s}x+{p}", rights, [f"x^2+{s}x+{p + 1}", f"(x+{a})(x-{b})", f"x^2+{s + 1}x+{p}"]


def _complex(rng: Random) -> Problem:
    a, b = rng.randint(1, 30), rng.randint(2, 30)
    return f"{a}+{b}i", [f"{a} + {b}i", f"{b}i+{a}"], [f"{a}-{b}i", f"{a + 1}+{b}i", str(a)]


def _unit(rng: Random) -> Problem:
    a = rng.randint(2, 900)
    unit = rng.choice((r"\text{ cm}^2", r"\text{ miles per hour}", r"\text{ m}", r"^\circ", r"\%"))
    return f"{a}{unit}", [str(a), f"{a}{unit}"], [f"{a + 1}{unit}", str(a + 3), f"{a * 2}{unit}"]


def _pi(rng: Random) -> Problem:
    a, b = rng.randint(2, 60), rng.choice((3, 4, 6, 7))
    wrongs = [rf"\frac{{{a + 1}\pi}}{{{b}}}", rf"{a}\pi", rf"\frac{{{a}}}{{{b}}}"]
    return rf"\frac{{{a}\pi}}{{{b}}}", [rf"\frac{{{a}}}{{{b}}}\pi", rf"{a}\pi/{b}"], wrongs


_MATH = [
    *(_root, _interval, _union, _tuple, _set, _roots, _matrix),
    *(_equation, _inequality, _polynomial, _complex, _unit, _pi),
]
