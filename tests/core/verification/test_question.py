"""What an answer may repeat from its question, and which lists a question gives an order."""

import pytest

from r1_recipes.verification import Refusal, judge

OPTIONS = "Which one? (A) Calcium channel blocker (B) Beta-blocker (C) x-1 D) x+1 E) 3/4"
VALUES = r"Choose. $\textbf{(A)}\ \frac{1}{4} \quad \textbf{(B)}\ \frac{3}{4}$"
SINE = r"If $\sin x=\frac{1}{\sqrt{2}}$ and $x$ is acute, find $\cos x$."
ROOT = r"\frac{\sqrt{2}}{2}"


@pytest.mark.parametrize(
    ("question", "gold", "answer"),
    [
        # an option with its text, or the text alone
        (OPTIONS, "B", "(B) Beta-blocker"),
        (OPTIONS, "D", "D) x+1"),
        (OPTIONS, "E", "E) 3/4"),
        (OPTIONS, r"\textbf{(D)}\ x+1", "x+1"),
        (OPTIONS, r"\textbf{(D)}\ x+1", "D) x+1"),
        (OPTIONS, "Beta-blocker", "a beta-blocker"),
        (VALUES, "B", r"\textbf{(B)}\ \frac{3}{4}"),
        (VALUES, "B", "(B) 3/4"),
        (VALUES, r"\textbf{(B)}\ \frac{3}{4}", r"\frac{3}{4}"),
        (VALUES, r"\textbf{(B)}\ \frac{3}{4}", "(B) 3/4"),
        # a value that needs no calculation
        (SINE, ROOT, r"\frac{1}{\sqrt{2}}"),
        ("Ann ate 3/4 of the pie. Which share is it?", "0.75", "3/4"),
        ("At x=-3/4, what is x?", "-0.75", "-3/4"),
        (r"One angle is $120^\circ$. Find the opposite angle.", "120", r"x = 120^\circ"),
        ("The angle is 120. Find the opposite one.", "120", "x = 120"),
        ("Draw the line $2x+3$.", "y = 2x+3", "2x+3"),
    ],
)
def test_an_option_and_a_value_may_stand_in_the_question(question, gold, answer):
    assert judge([gold], [answer], questions=[question])[0].right is True


@pytest.mark.parametrize(
    ("question", "gold", "answer"),
    [
        ("What is 48/2?", "24", "48/2"),
        ("What is 48/2?", "24", r"\frac{48}{2}"),
        ("What is 100/10?", "10", "100/10"),
        ("Reduce 6/8.", r"\frac34", "6/8"),
        ("What is 48/2? (A) 12 (B) 24", "(B) 24", "48/2"),
        ("What is 56.78-43.6? (A) 12 (B) 13.18", "(B) 13.18", "56.78-43.6"),
        ("What is 7/2?", "3.5", "7/2"),
        ("Write 7/3 as a mixed number.", r"2\frac13", "7/3"),
        ("Write 3/4 as a decimal.", "0.75", "3/4"),
        ("What percent is 3/4?", "75%", "3/4"),
        (r"Convert $120^\circ$ to radians.", r"\frac{2\pi}{3}", r"120^\circ"),
        (r"Write $1\frac{3}{4}$ as an improper fraction.", r"\frac74", r"1\frac{3}{4}"),
        (r"Rationalize $\frac{1}{\sqrt{2}}$.", ROOT, r"\frac{1}{\sqrt{2}}"),
        (r"What is $\frac{1}{\sqrt{2}}$?", ROOT, r"\frac{1}{\sqrt{2}}"),
        (r"Simplify $x=\sqrt{50}$.", r"5\sqrt{2}", r"\sqrt{50}"),
        (r"Let $x=\sqrt{144}$. What is $x$?", "12", r"\sqrt{144}"),
        (r"What is $\sin 30^\circ$?", r"\frac12", r"\sin 30^\circ"),
        (r"Find $30^\circ+30^\circ$.", "60", r"30^\circ+30^\circ"),
        ("Expand $(x+1)^2$.", "x^2+2x+1", "(x+1)^2"),
        ("Solve $xy=4$ for $y$.", "y=4/x", "xy=4"),
    ],
)
def test_a_task_that_stands_in_the_question_is_no_answer(question, gold, answer):
    assert judge([gold], [answer], questions=[question])[0].refusal is Refusal.COPIED


@pytest.mark.parametrize(
    ("question", "gold", "answer"),
    [
        (OPTIONS, "B", "(A) Calcium channel blocker"),
        (OPTIONS, "B", "(C) x-1"),
        (OPTIONS, "(D) x+1", "x-1"),
        (OPTIONS, "Beta-blocker", "a calcium channel blocker"),
        (OPTIONS, "Beta-blocker", "not a beta-blocker"),
        (VALUES, "B", r"\textbf{(A)}\ \frac{1}{4}"),
        (VALUES, r"\textbf{(B)}\ \frac{3}{4}", r"\frac{1}{4}"),
    ],
)
def test_another_option_differs(question, gold, answer):
    assert judge([gold], [answer], questions=[question])[0].right is False


@pytest.mark.parametrize(
    ("question", "gold", "answer", "right"),
    [
        ("Solve $x^2-3x+2=0$.", "x_1=1, x_2=2", "x_1=2, x_2=1", True),
        ("Solve $x_{1}+x_{2}=3$, $x_{2}-x_{1}=1$.", "x_1=1, x_2=2", "x_1=1, x_2=2", True),
        ("Solve $x_{1}+x_{2}=3$, $x_{2}-x_{1}=1$.", "x_1=1, x_2=2", "(1,2)", True),
        ("Solve $x_{1}+x_{2}=3$, $x_{2}-x_{1}=1$.", "x_1=1, x_2=2", "x_1=2, x_2=1", False),
        ("Solve $x_{1}+x_{2}=3$, $x_{2}-x_{1}=1$.", "x_1=1, x_2=2", "2, 1", False),
        ("Give the roots in increasing order.", "x=1 or x=2", "1, 2", True),
        ("Give the roots in increasing order.", "x=1 or x=2", "2, 1", False),
    ],
)
def test_unknowns_of_the_question_have_their_order(question, gold, answer, right):
    assert judge([gold], [answer], questions=[question])[0].right is right
