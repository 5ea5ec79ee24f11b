"""Spellings of one reference answer that score, and near misses that do not."""

import pytest

from r1_recipes.verification import grade

# The reference answer, what scores, and what does not.
ROWS = (
    # a rounding of one significant digit is no rounding
    ("0.01", "0.01 | 0.010 | 1%", "0.0051 | 0.0149"),
    ("0.05", r"0.05 | 1/20 | x=0.05", "0.0549 | 0.046 | x=0.0549"),
    ("0.001", "0.001 | 1e-3", "0.0006"),
    (r"\$0.05", r"\$0.05", r"\$0.0549"),
    ("0.05, 0.07", "0.07, 0.05", "0.0549, 0.07"),
    ("[0.05, 0.07]", "[0.05, 0.07]", "[0.0549, 0.07]"),
    ("0.012", "0.0121", "0.0131"),
    # an unknown that the reference answer repeats
    (
        r"x=\pm 2",
        r"\pm 2 | 2,-2 | x=\pm2 | x=2 or x=-2",
        r"2 | 2,2 | \pm 3 | y=\pm 2 | (2,-2) | [2,-2]",
    ),
    (
        "x=1 or x=2",
        r"1, 2 | 2 and 1 | x=1,2 | \{1,2\} | x\in\{1,2\} | 1 or 2",
        r"1, 3 | 1, 2, 3 | 1,2,1 | (1,2) | \{(1,2)\} | 1<x<2 | x=1, x>2 | x=1, x\ne 2 | x=1, y=2 | "
        r"x=1 | x^2=1, 2 | 1=1, 2=2 | 1, x | x=1, 2=x | 1,2,\ldots | not 1, 2 | the mean of 1, 2",
    ),
    (r"z=1\pm i", r"1\pm i | z=1+i, z=1-i | 1-i, 1+i", r"1+i | 2\pm i | w=1\pm i"),
    ("x=-2, 3", "x=-2 or x=3 | 3, -2", "x=2 or x=3 | x=-2 | (-2,3)"),
    ("x=2a or x=3a", "2a, 3a", "2b, 3b | 2, 3"),
    ("x=1,000 or x=2", "x=1,000 or x=2", "1, 0, 2"),
    ("xy=4, xy=9", "xy=9, xy=4", "4, 9"),
    # roots of one unknown
    (
        "x_{1}=-3, x_{2}=5",
        r"x=-3 or x=5 | x=-3, x=5 | 5,-3 | \{-3,5\} | x_1=5, x_2=-3 | x_1=-3, x_2=5",
        "x=3, x=5 | -3 | y=-3, y=5 | -3, 5, 5",
    ),
    ("x_1=1, x_2=2, y=3", "1, 2, 3", "2, 1, 3"),
    ("F_1=1, F_2=2", "1, 2", "2, 1"),
    # an equals sign in brackets
    (
        r"\frac12",
        r"P(X=1) = 1/2 | P(X\le 1)=0.5 | \Pr(X=1)=\frac12 | P(\text{heads})=1/2 | f(1/2)=1/2",
        "P(X=1) = 1/3 | P(X=1/2)=1/3 | P(X=1/2) | 1 - P(X=1) = 1/2 | 2P(X=1) = 1/2 | "
        "not P(X=1) = 1/2 | P(X=1)=1/2 or 1/3 | P(X=1)=0.5=1/3",
    ),
    (
        "72",
        "f(x=2)=72",
        r"f(x=72)=71 | (71=72) | (71 = 72 | 71) = 72 | f(71=72 | f(1)=71=72 | f(1)+2=72 | "
        r"P(X=72) | f(1)=-72 | f(1)<=72 | f(1)\ne 72 | -f(1)=72 | x(71)=72, 71 | f(1)=72?",
    ),
    ("2", r"\log_2 4 = 2 | \log_2 4", r"\log_2 8 = 2 | \log_{24}"),
    # powers of ten as programs write them
    ("1000000", "1e6 | 1E6 | 10^6 | 1e6 m", "1e7 | -1e6 | 1e6+1 | 1e-6"),
    ("3e8", "3E8 | 300000000", "3e7 | 24e"),
    ("0.005", "5e-3", "5e-4 | -5e-3 | 5e"),
    ("2e-1", "-1+2e | 2e - 1", "0.2 | 0.20"),  # Euler's number
    # per cent
    (r"12.5\%", r"12.5 | 12.5% | 0.125 | 12\frac12", "12.6 | 1250 | 12.5 people | -12.5 | 0.00125"),
    ("12.5", "12.5% | 1250%", "12.6% | 12.5‰"),
    ("7.5%", "7.5", "7.6"),
    ("50%", "50 | 50.0 | 0.5", "5000 | 50.5 | 50.0 people"),
    (r"33\frac13\%", r"33\frac13 | \frac13 | \frac{100}{3}\%", r"33.3 | 33 | 3\frac13"),
    (r"33\frac13", r"33\frac13\%", r"\frac13\%"),
    ("0.5", "50%", "0.5%"),
    ("0.5%", "0.005", "0.5"),
    ("55", "55%", "5+50%"),
    # several units
    (
        "3 hours 30 minutes",
        "3 hours and 30 minutes | 3 hours, 30 minutes | 3 h 30 min",
        "3 h 20 min | 30 h 3 min | 3 h 20 min 30 min | -3 h 30 min | 3 h or 30 min | 3 h | "
        "less than 3 h 30 min | 3 h 30 s | 3 h 30 min late",
    ),
    ("5 feet 6 inches", "5 ft 6 in", "5 ft 7 in | 5 m 6 cm"),
    # no result, in words
    (
        "No solution",
        r"There is no solution. | no solutions | \emptyset",
        "There is one solution. | no problem | none | no solution? | no solutions except 2 | "
        "There is no unique solution",
    ),
    (r"\emptyset", "There is no solution.", "There is a solution. | 0"),
    ("does not exist", "the limit does not exist | DNE", "exists | 0 | does exist"),
    ("all real numbers", r"\mathbb{R}", "no real numbers"),
    # single notations
    ("4210_5", "(4210)_5", "(4210)_6 | 4210"),
    (r"\sqrt[3]{5}", r"\sqrt[3]5", r"\sqrt[4]5 | \sqrt5"),
    (r"\frac13", r"0.\dot{3}", r"0.\dot{4} | 0.33"),
    (r"\ln 2", r"\log_e 2", r"\log_{10} 2"),
    (r"\log_{10} 2", r"\lg 2", r"\lg 3 | \ln 2"),
    (
        "A",
        "A is correct | Option A is correct.",
        "B is correct | A or B is correct | A is incorrect | A is not correct | A, C is correct | "
        "A. C is correct | none but A is correct",
    ),
)


@pytest.mark.parametrize(("gold", "right", "wrong"), ROWS, ids=[row[0] for row in ROWS])
def test_spellings_score_and_near_misses_do_not(gold, right, wrong):
    rights, wrongs = right.split(" | "), wrong.split(" | ")
    answers = rights + wrongs
    found = grade([gold] * len(answers), answers)
    wanted = [True] * len(rights) + [False] * len(wrongs)
    differ = [
        (answer, right)
        for answer, right, want in zip(answers, found, wanted, strict=True)
        if right is not want
    ]
    assert differ == []
