"""Every rule of spelling has an example that it rewrites, as it then stands, and a near miss that
it leaves alone.
"""

import pytest

from r1_recipes.verification.spelling import RULES

# By rule: an example, what the rule alone makes of it, and a near miss.
EXAMPLES = {
    "a styled argument": (r"2^\mathrm{n+1}", r"2^{n+1}", r"2\mathrm{n}"),
    "comma between thousands": ("5{,}120", "5120", "3{,}14"),
    "no delimiter": (r"\left.5\right.", " 5 ", r"\left(5\right)"),
    "scientific notation below a stroke": ("3/1.5e3", "3/(1.5e3)", "3/15"),
    "negative thin space": (r"10,\! 080", "10,080", r"10,\;080"),
    "empty box": (r"\phantom{0}72", "72", r"\boxed{0}72"),
    "a styled unit after a number": (r"3 \mathrm{~m} / \mathrm{s}", "3 ", r"3 \mathrm{e}"),
    "styled text": (r"\textbf{72}", " 72 ", r"\frac{7}{2}"),
    "delimiters": (r"\(72\)", " 72 ", r"a \\[2pt]"),
    "per cent": (r"5\%", "5%", "5%"),
    "comma in braces": ("1{,}080", "1,080", "{1,2}"),
    "sizes": (r"\left(1\right)", "(1)", r"\leftarrow"),
    "thin space between thousands": (r"1\,080", "1080", r"1\,08"),
    "space": (r"1,\quad 2", "1,  2", r"a\\ b"),
    "thousands apart": ("1 080 000", "1080000", "7 2"),
    "array": (r"[\begin{array}{rr}1", r"\begin{pmatrix}1", r"\begin{cases}1"),
    "end of an array": (r"1\end{array}]", r"1\end{pmatrix}", r"1\end{cases}"),
    "brackets of a matrix": (r"\begin{bmatrix}", r"\begin{pmatrix}", r"\begin{vmatrix}"),
    "imaginary unit": ("2+3 i", "2+3i", "3 in"),
    "fraction of digits": (r"\frac 3 4", r"\frac{3}{4}", r"\frac{3}{4}"),
    "degree": (r"90\degree", r"90^\circ ", r"\degrees"),
    "styles of fractions": (r"\dfrac{1}{2}", r"\frac{1}{2}", r"\frac{1}{2}"),
    "or equal": (r"x \leqslant 5", r"x \le  5", r"x \le 5"),
    "or equal, typed": ("x >= 5", r"x \ge  5", "x == 5"),
    "less": (r"x \lt 5", "x < 5", r"\ltimes 5"),
    "greater": (r"x \gt 5", "x > 5", r"\gtrsim 5"),
    "blackboard letter": (r"\mathbb Z", r"\mathbb{Z}", r"\mathbb{Z}"),
    "degrees in words": ("60 degrees", r"60^\circ ", "60 degrees celsius"),
    "natural logarithm": (r"\log_e 2", r"\ln 2", r"\log_{ek} 2"),
    "logarithm to base ten": (r"\lg 2", r"\log_{10}2", r"\lgroup 2"),
    "logarithm of a number": (r"\log_2 8", r"\log_{2}8", r"\log_2 x"),
    "base of digits in brackets": ("(4210)_5", "4210_5", "f(3)_5"),
    "dots of a recurring decimal": (r"0.\dot{1}4\dot 2", r"0.\overline{142}", r"\dot{x}"),
    "empty set": (r"\varnothing", r"\emptyset", r"\emptyset"),
    "bold": ("**72** eggs", " 72  eggs", "2**3"),
    "mixed number before a letter": ("3 1/2 x", r"\frac{7}{2} x", "3 1/2"),
    "mixed fraction before a letter": (r"3\frac{1}{2} x", r"\frac{7}{2} x", r"3\frac{1}{2}"),
    "emphasis": ("**72", " 72", "2*10"),
    "Python's power": ("2**10", "2^10", "2*10"),
    "quoted": ("'72'", "72", "x'"),
    "quotes around it": ('"72"', "72", "x'"),
    "end of a sentence": ("72.", "72", "72..."),
    "space around it": (" 72 ", "72", "7 2"),
    "sign before it": ("=> 72", "72", "x = 72"),
    "degrees of temperature": (r"60^\circ C", "60", r"60^\circ"),
    "minus in words": ("minus 60", "-60", "minus sixty"),
    "magnitude in words": ("6万", r"6\cdot 10^{4}", "6 millionaires"),
    "ratio": ("2:4:6", "(1, 2, 3)", "3:00"),
    "recurring decimal": (r"0.\overline{36}", r"\frac{4}{11}", "0.36"),
    "scientific notation": ("1e-05", r"1\cdot 10^{-5}", "2e+3"),
    "function without a backslash": ("sin x", r"\sin  x", r"\sin x"),
    "root of a number": (r"\sqrt13", r"\sqrt{13}", r"\sqrt{13}"),
    "mixed number": ("4 2/3", r"4\frac{2}{3}", "4.2/3"),
    "argument in brackets": ("x^(10)", "x^{10}", "f(10)"),
    "words in brackets after a number": ("9 (apples)", "9 apples ", "9 (a)"),
    "per cent in words": ("28 pct", "28%", "28 percents"),
    "left brace": (r"\lbrace 1", r"\{ 1", r"\lfloor 1"),
    "right brace": (r"1\rbrace", r"1\}", r"1\rfloor"),
    "angle brackets": (r"\langle 1,2\rangle", "( 1,2)", r"\langle x^2\rangle"),
    "braces of a set": ("{1,2}", r"\{1,2\}", "x_{1,2}"),
    "infinity in letters": ("(-inf, 3)", r"(-\infty , 3)", "inf x"),
    "a star that is escaped": (r"2\*x", "2*x", r"2\\x"),
    "colon": (r"1\colon 2", "1: 2", r"1\colonequals 2"),
    "rows of cases": (
        r"\begin{cases}x=1\\y=2\end{cases}",
        "x=1, y=2",
        r"\begin{cases}x&y>1\\1&y<1\end{cases}",
    ),
    "new row": (r"1\cr2", r"1\\2", r"1\cross2"),
    "turned row": ("(1, 2)^T", "(1, 2)", "(1, 2)^t"),
    "brackets turned outwards": ("]1,2[", "(1,2)", "[1,2]"),
    "first bracket turned outwards": ("]1,2]", "(1,2]", "[1,2]"),
    "last bracket turned outwards": ("[1,2[", "[1,2)", "[1,2]"),
    "fraction over a digit": (r"\frac{\sqrt{2}}2", r"\frac{\sqrt{2}}{2}", r"\frac{\sqrt{2}}23"),
    "equal or less": ("x=<3", r"x\le 3", "=<3"),
    "equal or greater": ("x=>3", r"x\ge 3", "=>3"),
    "two signs": ("14 + -1i", "14 -1i", "14 + 1i"),
    "times in letters": ("6.63 x 10^{8}", r"6.63\times 10^{8}", "6 x 1"),
    "base in words": ("25 (base 8)", "25_{8}", "25 (basements)"),
    "ratio in words": ("1 to 2 to 3", "1:2:3", "1 to two"),
    "set-builder": (r"\{x \mid x<3\}", " x<3", r"\{1,2\}"),
    "e of a program": ("2*math.e", "2*e", "2*math.exp"),
    "pi of a program": ("2*Math.PI", r"2*\pi ", "2*math.pin"),
    "index in a command": (r"I_{\max}", "I_{max}", r"I_{\maxi}"),
    "index of the sun": (r"M_{\odot}", "M_{sn}", r"M_{\max}"),
    "index of the earth": (r"M_{\oplus}", "M_{ea}", r"M_{\max}"),
    "fraction before a letter": ("1/2 m", r"\frac{1}{2} m", "1/2m"),
    "sine of degrees": (r"\sin^2 45^\circ", r"\sin^2 \frac{45\pi}{180}", r"45^\circ"),
    "argument in brackets, outside": ("x^(10)", "x^{10}", "f(10)"),
    "unit vectors": (r"2\hat{i}+\hat j", "2 i + j ", r"\hat{x}"),
    "modulus": (r"n\equiv 1 \mod 4", r"n\equiv 1 \pmod{4}", r"7 \mod 4"),
    "power of a number": ("2^10", "2^{10}", "2^{10}"),
}


def test_every_rule_has_an_example():
    names = [name for name, _, _ in RULES]
    assert sorted(names) == sorted(set(names)) == sorted(EXAMPLES)


@pytest.mark.parametrize(
    ("name", "pattern", "replacement"), RULES, ids=[name for name, _, _ in RULES]
)
def test_each_rule_rewrites_its_example_and_leaves_the_near_miss(name, pattern, replacement):
    example, rewritten, near_miss = EXAMPLES[name]
    assert pattern.sub(replacement, example) == rewritten
    assert pattern.sub(replacement, near_miss) == near_miss
