"""The rewards of TinyZero's tasks: what each answer is paid, and where the puzzle is read from."""

from __future__ import annotations

import pytest

from r1_recipes.extras.countdown.puzzle import Puzzle
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.rewards import get_reward_funcs

pytestmark = pytest.mark.slow

PUZZLE = Puzzle((7, 4, 3), 31)


def columns_of(puzzle, count):
    return {"nums": [list(puzzle.numbers)] * count, "target": [puzzle.target] * count}


def reward(name="countdown", fmt="think_answer", **params):
    return get_reward_funcs([name], fmt, **params)[0]


def think(answer, reasoning="7*4 is 28"):
    return f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"


def scored(*completions, puzzle=PUZZLE, **params):
    return reward(**params)(completions=list(completions), **columns_of(puzzle, len(completions)))


def test_scores():
    texts = [
        think("7*4 + 3"),
        think("7*4\n+ 3\n= 31"),
        think("7*4 - 3"),
        think("7*4 + 3 = 30"),
        think("no idea"),
        "7*4 + 3",
        "",
        think(""),
    ]
    # Right, also over several lines; wrong; wrong by its own equation; an answer block without an
    # expression. No block, nothing, an empty block.
    assert scored(*texts) == [1.0, 1.0, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0]
    assert scored(*texts, countdown_format_score=0.0) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert scored(*texts, countdown_format_score=0.5)[2] == 0.5


def test_grpo_zeros_total():
    """0.1 x the partial format reward + 1 for a right answer, through the prefill of GRPO-Zero's
    prompt.
    """
    fmt = get_response_format("think_answer", prefill="Let me solve this step by step.\n<think>")
    shape, answer = get_reward_funcs(
        ["format_partial", "countdown"], fmt, countdown_format_score=0.0
    )
    texts = [
        " 28 </think>\n<answer>7*4+3</answer>",
        " 28 </think>\n<answer>7*4</answer>",
        " 28 </think>",
        " 28",
        "</think> so <answer>7*4+3</answer>",
    ]
    columns = columns_of(PUZZLE, len(texts))
    totals = [
        0.1 * a + b
        for a, b in zip(
            shape(completions=texts, **columns), answer(completions=texts, **columns), strict=True
        )
    ]
    # Exact; exact but wrong; reasoning only (0.1 x 0.1); nothing closed; right, but the reasoning
    # is empty and words follow it (0.1 x 0.5).
    assert totals == pytest.approx([1.1, 0.1, 0.01, 0.0, 1.05])


@pytest.mark.parametrize(
    "columns",
    [
        {"nums": [7, 4, 3], "target": 31},
        {"nums": (7, 4, 3), "target": 31.0},
    ],
)
def test_where_the_puzzle_stands(columns):
    batch = {name: [value, value] for name, value in columns.items()}
    assert reward()(completions=[think("7*4+3"), think("7*4-3")], **batch) == [1.0, 0.1]


def test_every_format_reads_the_answer():
    for fmt in FORMATS.values():
        for answer in ("7 * 4 + 3", "7 × 4 + 3 = 31", r"7 \times 4 + 3"):
            completion = fmt.render_completion("7 times 4 is 28", answer)
            assert reward(fmt=fmt)(completions=[completion], **columns_of(PUZZLE, 1)) == [1.0], (
                fmt.name,
                answer,
            )
    # A format without tags: what follows "answer is" counts where the box is missing, as for every
    # other reward.
    assert scored("The answer is 7*4+3", "no idea", fmt="boxed") == [1.0, 0.0]
