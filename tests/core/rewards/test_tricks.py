"""Answers that name the gold and say something else: 0 from every reward that compares with it, in
every format, on every thread.
"""

import pytest

from r1_recipes.prompts import FORMATS
from r1_recipes.rewards import get_reward_funcs

TRICKS = {
    "B": ["A is wrong, B is right", "A or B", "A) B) C) D)"],
    "72": ["anything but 72", "72 ... 71", r"72 \text{ or } 71", "71 = 72", "$71$ $72$", "72x"],
    "x^2+1": ["x^2-1, x^2+1", "y=x^2-1=x^2+1"],
    r"\frac{1}{2}": ["1/3 1/2"],
    "(1,2)": [r"\{1,2\}", "[1,2]"],
    "Yes": ["Yes, no", "not yes"],
    "0.000001": ["0", "0.000002"],
    r"\pm 72": ["72"],
    "a+b": ["c+d and a+b and e+f"],
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
    assert paid(name, fmt) == []
