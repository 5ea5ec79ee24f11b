r"""Rows to judge, drawn from a seed: problems in groups of eight completions, as GRPO samples them.
Nothing here is anyone's data.

``gsm8k``: golds are numbers. ``math``: half of the golds are numbers or fractions, the others are
LaTeX: roots, intervals and unions, tuples, sets, matrices, equations, inequalities, polynomials,
quantities with units. ``adversarial``: math rows, an eighth of which (one a group of eight) never
end in math-verify. ``hostile``: the texts that take other judges seconds each.

Of a group, between none and all completions are right; of the right ones some spell the answer as
the gold does and some otherwise, and of the wrong ones some agree with each other. All put the
answer in ``\boxed{}`` after reasoning of a few hundred characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

GROUP = 8


@dataclass(frozen=True)
class Row:
    """One completion and what it is judged by.

    Attributes:
        completion: the text of the whole response, in the response format ``boxed``.
        gold: the reference answer.
        answer: what the box holds.
        right: whether the row was drawn as a right one; ``None`` where nothing is promised.
    """

    completion: str
    gold: str
    answer: str
    right: bool | None


@dataclass(frozen=True)
class _Problem:
    gold: str
    right: Callable[[Random], str]
    wrong: Callable[[Random], str]


def rows(mix: str, seed: int, *, group: int = GROUP) -> Iterator[Row]:
    """An endless stream of rows of one mix, group by group.

    Args:
        mix: ``gsm8k``, ``math``, ``adversarial`` or ``hostile``.
        seed: the same seed draws the same rows.
        group: completions a problem; 1 leaves no answer to share.
    """
    rng = Random(seed)
    if mix == "hostile":
        while True:
            gold = _MATH[rng.randrange(len(_MATH))](rng).gold
            for text in hostile_texts(rng):
                yield Row(text, gold, text, False)
    draw = {"gsm8k": _gsm8k, "math": _math, "adversarial": _math}[mix]
    while True:
        problem = draw(rng)
        group_rows = _group(problem, rng, group)
        if mix == "adversarial":
            answer = hanging(rng)
            group_rows[rng.randrange(group)] = Row(
                _completion(answer, rng), problem.gold, answer, False
            )
        yield from group_rows


def hanging(rng: Random) -> str:
    """An answer whose value has hundreds of millions of digits; every one is another, so that none
    is remembered.
    """
    return f"9^{{9999*9999+{rng.randrange(10**9)}}}"


def hostile_texts(rng: Random) -> list[str]:
    """Whole completions that take other judges seconds each, or their stack."""
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


def _group(problem: _Problem, rng: Random, size: int) -> list[Row]:
    right = rng.randint(0, size)
    shared = problem.wrong(rng)
    answers = []
    for index in range(size):
        if index < right:
            answers.append((problem.gold if rng.random() < 0.6 else problem.right(rng), True))
        else:
            answers.append((shared if rng.random() < 0.4 else problem.wrong(rng), False))
    rng.shuffle(answers)
    return [
        Row(_completion(answer, rng), problem.gold, answer, verdict) for answer, verdict in answers
    ]


_STEPS = (
    "First we write down what is given and what is asked, and name the unknown. ",
    "Adding both sides of the two relations removes one of the unknowns. ",
    "Of the {n} that were there at the start, {m} are left after the second step. ",
    "Since {n} * {m} = {p}, the amount comes to {p} in all, before anything is taken away. ",
    "Substituting this back gives the same value, so the step was right. ",
    "Now look at the other case: it leads to a contradiction, so only the first one remains. ",
)


def _completion(answer: str, rng: Random) -> str:
    reasoning = []
    for _ in range(rng.randint(3, 7)):
        n, m = rng.randint(2, 60), rng.randint(2, 60)
        reasoning.append(rng.choice(_STEPS).format(n=n, m=m, p=n * m))
    return "".join(reasoning).strip() + f"\nThe answer is $\\boxed{{{answer}}}$."


def _gsm8k(rng: Random) -> _Problem:
    value = rng.choice((rng.randint(1, 100), rng.randint(100, 2000), rng.randint(2000, 200_000)))
    gold = f"{value:,}" if value >= 1000 and rng.random() < 0.5 else str(value)

    def right(rng: Random) -> str:
        return rng.choice(
            (
                str(value),
                f"{value:,}",
                f"{value}.00",
                f"\\${value}",
                f"{value}",
                f"{value} \\text{{ dollars}}",
            )
        )

    def wrong(rng: Random) -> str:
        return str(value + rng.choice((-10, -2, -1, 1, 2, 5, 10, 100, value)))

    return _Problem(gold, right, wrong)


def _math(rng: Random) -> _Problem:
    if rng.random() < 0.5:
        return rng.choice((_integer, _integer, _fraction))(rng)
    return rng.choice(_MATH)(rng)


def _constant(gold: str, rights: list[str], wrongs: list[str]) -> _Problem:
    return _Problem(gold, lambda rng: rng.choice(rights), lambda rng: rng.choice(wrongs))


def _integer(rng: Random) -> _Problem:
    n = rng.randint(-200, 2000)
    return _Problem(
        str(n),
        lambda rng: rng.choice((str(n), f"x={n}", f"{n}.0")),
        lambda rng: str(n + rng.randint(1, 30)),
    )


def _fraction(rng: Random) -> _Problem:
    b = rng.randint(2, 40)
    a = (
        rng.randint(1, 90) * 2 * b + 2 * rng.randint(0, b - 1) + 1
        if rng.random() < 0.3
        else rng.randint(1, 200)
    )
    spellings = [
        rf"\frac{{{a}}}{{{b}}}",
        f"{a}/{b}",
        rf"\dfrac{{{a}}}{{{b}}}",
        rf"\frac{{{2 * a}}}{{{2 * b}}}",
    ]
    return _Problem(
        spellings[0],
        lambda rng: rng.choice(spellings),
        lambda rng: rng.choice(
            (
                rf"\frac{{{a + rng.randint(1, 9)}}}{{{b}}}",
                rf"\frac{{{b}}}{{{a}}}" if a != b else "2",
                str(a),
            )
        ),
    )


def _root(rng: Random) -> _Problem:
    a, b = rng.randint(2, 40), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    return _constant(
        rf"{a}\sqrt{{{b}}}",
        [rf"{a} \sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}", rf"{a}\cdot\sqrt{{{b}}}"],
        [rf"{a + 1}\sqrt{{{b}}}", rf"\sqrt{{{a * b}}}", rf"{a}\sqrt{{{b + 1}}}", str(a * b)],
    )


def _interval(rng: Random) -> _Problem:
    a = rng.randint(-30, 30)
    b = a + rng.randint(1, 30)
    left, right = rng.choice(("[]", "()", "[)", "(]"))
    other = {"[": "(", "(": "["}[left]
    return _constant(
        f"{left}{a},{b}{right}",
        [
            f"{left}{a}, {b}{right}",
            rf"\left{left}{a},{b}\right{right}",
            rf"x \in {left}{a},{b}{right}",
        ],
        [
            f"{other}{a},{b}{right}",
            f"{left}{a},{b + 1}{right}",
            f"{left}{a - 1},{b}{right}",
            str(a),
        ],
    )


def _union(rng: Random) -> _Problem:
    a = rng.randint(-30, 30)
    b = a + rng.randint(1, 30)
    return _constant(
        rf"(-\infty,{a})\cup({b},\infty)",
        [rf"(-\infty, {a}) \cup ({b}, \infty)", rf"({b},\infty)\cup(-\infty,{a})"],
        [
            rf"(-\infty,{a}]\cup[{b},\infty)",
            rf"(-\infty,{a})",
            rf"({a},{b})",
            rf"(-\infty,{a})\cup({b + 1},\infty)",
        ],
    )


def _tuple(rng: Random) -> _Problem:
    a, b, c = (rng.randint(-20, 20) for _ in range(3))
    return _constant(
        f"({a},{b},{c})",
        [f"({a}, {b}, {c})", rf"\left({a},{b},{c}\right)"],
        [f"({a},{b},{c + 1})", f"({a + 1},{b},{c})", f"({a},{b})"],
    )


def _set(rng: Random) -> _Problem:
    a, b, c = sorted(rng.sample(range(-40, 40), 3))
    return _constant(
        rf"\{{{a},{b},{c}\}}",
        [rf"\{{{a}, {b}, {c}\}}", rf"\{{{c}, {a}, {b}\}}", f"{a}, {b}, {c}"],
        [rf"\{{{a},{b}\}}", rf"\{{{a},{b},{c + 1}\}}", str(b)],
    )


def _roots(rng: Random) -> _Problem:
    a = rng.randint(-40, 40)
    b = a + rng.randint(1, 20)
    return _constant(
        f"{a}, {b}",
        [f"{a},{b}", f"{b}, {a}", f"x={a}, x={b}"],
        [f"{a}, {b + 1}", str(a), f"{a}, {b}, {b + 2}"],
    )


def _matrix(rng: Random) -> _Problem:
    a, b, c, d = (rng.randint(-9, 9) for _ in range(4))
    begin, end = r"\begin{pmatrix}", r"\end{pmatrix}"
    return _constant(
        rf"{begin}{a}&{b}\\{c}&{d}{end}",
        [rf"{begin} {a} & {b} \\ {c} & {d} {end}"],
        [
            rf"{begin}{a}&{c + 1}\\{b}&{d}{end}",
            rf"{begin}{a}&{b}\\{c}&{d + 1}{end}",
            rf"{begin}{a + 1}\\{d}{end}",
        ],
    )


def _equation(rng: Random) -> _Problem:
    a, b = rng.randint(2, 30), rng.randint(1, 40)
    return _constant(
        f"y={a}x+{b}",
        [f"y = {a}x + {b}", f"y={b}+{a}x", f"{a}x+{b}=y"],
        [f"y={a}x-{b}", f"y={a + 1}x+{b}", f"{a}x+{b + 1}", f"y={b}x+{a + b}"],
    )


def _inequality(rng: Random) -> _Problem:
    a = rng.randint(-40, 40)
    b = a + rng.randint(1, 30)
    return _constant(
        rf"{a}\le x<{b}",
        [rf"{a} \le x < {b}", rf"{a}\leq x<{b}"],
        [rf"{a}<x<{b}", rf"{a}\le x<{b + 1}", rf"{a + 1}\le x<{b + 1}"],
    )


def _polynomial(rng: Random) -> _Problem:
    a, b = rng.randint(1, 15), rng.randint(1, 15)
    return _constant(
        f"x^2+{a + b}x+{a * b}",
        [f"x^2 + {a + b}x + {a * b}", f"(x+{a})(x+{b})", f"{a * b}+{a + b}x+x^2"],
        [f"x^2+{a + b}x+{a * b + 1}", f"(x+{a})(x-{b})", f"x^2+{a + b + 1}x+{a * b}"],
    )


def _complex(rng: Random) -> _Problem:
    a, b = rng.randint(1, 30), rng.randint(2, 30)
    return _constant(
        f"{a}+{b}i", [f"{a} + {b}i", f"{b}i+{a}"], [f"{a}-{b}i", f"{a + 1}+{b}i", str(a)]
    )


def _unit(rng: Random) -> _Problem:
    a = rng.randint(2, 900)
    unit = rng.choice((r"\text{ cm}^2", r"\text{ miles per hour}", r"\text{ m}", r"^\circ", r"\%"))
    return _constant(
        f"{a}{unit}", [str(a), f"{a}{unit}"], [f"{a + 1}{unit}", str(a + 3), f"{a * 2}{unit}"]
    )


def _pi(rng: Random) -> _Problem:
    a, b = rng.randint(2, 60), rng.choice((3, 4, 6, 7))
    return _constant(
        rf"\frac{{{a}\pi}}{{{b}}}",
        [rf"\frac{{{a}}}{{{b}}}\pi", rf"{a}\pi/{b}"],
        [rf"\frac{{{a + 1}\pi}}{{{b}}}", rf"{a}\pi", rf"\frac{{{a}}}{{{b}}}"],
    )


_MATH = [
    _root,
    _interval,
    _union,
    _tuple,
    _set,
    _roots,
    _matrix,
    _equation,
    _inequality,
    _polynomial,
    _complex,
    _unit,
    _pi,
]
