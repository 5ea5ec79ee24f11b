"""Answers that name the gold and say something else: 0 from every reward that compares with it, in
every format, on every thread.
"""

import threading

import pytest

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards import get_reward_funcs

TRICKS = {
    "5": [
        "5t",
    ],
    r"\pm 72": [
        "72",
    ],
    "71": [
        r"2\sqrt{3} \approx 71",
    ],
    r"2\sqrt{3}": [
        r"2\sqrt{3} \approx 71",
    ],
    r"6.63\times10^{-34}": [
        "0.0",
        "0",
        r"6.64\times10^{-34}",
    ],
    "a+b": [
        "c+d and a+b and e+f",
    ],
    "B": [
        "A and B and C and D",
        "(A) then (B)",
        "A oder B",
        "A is wrong, B is right",
        "B and C",
        "A, B",
        "A/B",
        "AB",
        "(A)(B)",
        "A or B",
        "B or A",
        "not B",
        "B is wrong, A is right",
        "either B or C",
        "all but B",
        "A B C D",
        "A, B, C, D",
        "[A] [B]",
        "A) B) C) D)",
        "B? ",
        "options A and B",
        "Anything except B",
        r"\text{A or B}",
        r"\text{A}, \text{B}",
    ],
    "A": [
        "A oder B",
    ],
    r"\text{(B)}": [
        "A and B and C and D",
        "(A) then (B)",
    ],
    r"\text{(A)}": [
        "A oder B",
    ],
    "72": [
        "72?",
        "72 and a half",
        "anything but 72",
        "double 72",
        "minus72",
        "72 lakh",
        "非72",
        r"\boxed{\boxed{72}71}",
        r"\boxed{71\boxed{72}}",
        "triple 72",
        "72 doubled",
        "thrice 72",
        "half 72",
        "72/2",
        "the square of 72",
        "the square root of 72",
        "72 cubed",
        "72 factorial",
        "72!",
        "!72",
        "72%%",
        "neither 71 nor 72",
        "either 71 or 72",
        "72, not 71",
        "71, not 72",
        "no, 72",
        "never 72",
        "72 minus 1",
        "72 plus 1",
        "1 less than 72",
        "72-1",
        "72+0i+1",
        "more than 72",
        "at 72 or so",
        "72 ... 71",
        "72 71",
        "71|72",
        "72 / 71",
        r"72\\71",
        r"72\quad71",
        r"72 \text{ or } 71",
        r"72 \text{and} 71",
        "{71,72}",
        "[71,72]",
        "(71,72)",
        "71-72",
        "71 to 72",
        "70 < x < 72",
        "x > 72",
        r"x \ge 72",
        r"x \ne 72",
        r"\ne 72",
        "≠72",
        "~72~71",
        "72^1^2",
        "72e1",
        "72_{10}1",
        "0x48 72",
        "seventy-two 72 seventy-one 71",
        "72 million",
        "72k",
        "72万",
        "七十一 72 七十三 71",
        "72x",
        "x72",
        "t72",
        r"72\cdot x",
        r"\sqrt{72}",
        "-72",
        r"\pm72",
        r"\frac{72}{2}",
        ".72",
        "7 2",
        "7.2",
        "72.5",
        "1,072",
        "72,000",
        "72:71",
        "72 = 71",
        "71 = 72",
        "y = 71, x = 72",
        "$71$ $72$",
        "$72$ and $71$",
        r"\boxed{71},\boxed{72}",
        r"\boxed{72}, \boxed{71}",
        r"\boxed{71}{72}",
    ],
    "(9,1]": [
        "(5,3]",
        "(8,2]",
    ],
    "25_8": [
        "25",
        "25_9",
        "31",
    ],
    "25": [
        "25_8",
    ],
    "(1,2)": [
        r"\{1,2\}",
        "(1,2),(2,1)",
        "(1,2) or (2,1)",
        "(2,1)",
        "[1,2]",
    ],
    r"\{1,2\}": [
        "(1,2)",
    ],
    r"\text{yes}": [
        "yes and no",
        "no",
    ],
    "Yes": [
        "Yes, no",
        "not yes",
    ],
    "No solution": [
        "solution",
    ],
    "x^2+1": [
        "x^2+1 or x^2-1",
        "x^2-1, x^2+1",
        "x^2-1 and x^2+1",
        "x^2+1 x^2-1",
        r"x^2+1 \quad x^2-1",
        "y=x^2-1=x^2+1",
        "not x^2+1",
        "x^2",
        "x^2+1?",
    ],
    "1,2": [
        "1,2,3",
        "1",
        "1,2 or 3",
        "1,2 not 3",
    ],
    r"\frac{1}{2}": [
        r"\frac{1}{2} or \frac{1}{3}",
        "1/3 1/2",
        "1 1/2",
        "2",
    ],
    r"\{x|-2<x<1\}": [
        "-2",
    ],
    "0.000001": [
        "0",
        "0.000002",
    ],
}
CASES = [(gold, answer) for gold, answers in TRICKS.items() for answer in answers]


def completion(fmt, answer):
    """A response of this format that gives the answer."""
    if fmt.boxed and not fmt.answer_tags and "\\boxed" not in answer:
        answer = rf"\boxed{{{answer}}}"
    elif not fmt.boxed or fmt.answer_tags:
        return fmt.render_completion("Let us see.", answer)
    opening, closing = fmt.reasoning_tags or ("", "")
    return f"{opening}\nLet us see.\n{closing}\n{answer}".removeprefix(fmt.prefill)


def paid(name, fmt):
    (reward,) = get_reward_funcs([name], fmt)
    columns = {
        "completions": [completion(fmt, answer) for _, answer in CASES],
        "prompts": [f"question {index}" for index in range(len(CASES))],
        "completion_ids": [[0] * 10] * len(CASES),
        "solution": [gold for gold, _ in CASES],
    }
    # A right answer is worth at least 0.5 to each of these; alone in its group, length pays nothing
    # for any.
    return [
        case
        for case, value in zip(CASES, reward(**columns), strict=True)
        if value is not None and value > 0.49
    ]


@pytest.mark.parametrize(
    "fmt", [fmt for fmt in FORMATS.values() if not fmt.prose], ids=lambda fmt: fmt.name
)
@pytest.mark.parametrize("name", ["accuracy", "cosine", "answer_match"])
def test_no_trick_scores(name, fmt):
    assert len(CASES) > 120
    assert paid(name, fmt) == []


@pytest.mark.parametrize(
    "trick",
    [
        r"\boxed{Paris}. The answer is London",
        "Paris?",
        "Paris or London",
        "not Paris",
        "Paris, London",
        "非 Paris",
    ],
)
@pytest.mark.parametrize("name", ["exact_match", "answer_match"])
def test_no_trick_with_words_scores(name, trick):
    (reward,) = get_reward_funcs([name], "think_answer")
    texts = [
        FORMATS["think_answer"].render("Let us see.", answer)
        for answer in (trick, "Paris", "The answer is Paris.")
    ]
    assert reward(
        completions=texts, prompts=["?"] * 3, completion_ids=[[0]] * 3, solution=["Paris"] * 3
    ) == [0.0, 1.0, 1.0]


def test_no_trick_scores_on_another_thread():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(paid("accuracy", FORMATS["think_answer"])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[]] * 8
