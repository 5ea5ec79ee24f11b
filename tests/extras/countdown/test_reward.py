"""The rewards of TinyZero's tasks: what each answer is paid, where the puzzle is read from, and
what a model may write to break them.
"""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import pytest

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.countdown.puzzle import Puzzle
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.rewards import get_reward_funcs

PUZZLE = Puzzle((7, 4, 3), 31)
GYM = {
    "question": "q",
    "answer": "7*4+3",
    "metadata": {"source_dataset": "countdown", "numbers": [7, 4, 3], "target": 31},
}


def reward(name="countdown", fmt="think_answer", **params):
    return get_reward_funcs([name], fmt, **params)[0]


def think(answer, reasoning="7*4 is 28"):
    return f"<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>"


def scored(*completions, puzzle=PUZZLE, **params):
    return reward(**params)(
        completions=list(completions), scorer=[puzzle.scorer] * len(completions)
    )


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


def test_only_the_final_answer_counts():
    assert scored(
        think(
            "7*4 - 3", reasoning="<answer>7*4+3</answer>"
        ),  # both seeds that search the whole text pay this
        think("7*4+3") + "<answer>7*4-3</answer>",
        "<think><answer>7*4+3</answer>",
        "<answer>7*4+3</answer>" + think("7*4-3"),
    ) == [0.1, 0.0, 0.0, 0.1]


@pytest.mark.parametrize(
    ("answer", "numbers", "target"),
    [
        ("2**3", (2, 3), 8),
        ("1.5*2", (1, 5, 2), 3),
        ("1000001/1000000", (1000001, 1000000), 1),
        ("9**9**9", (9, 9, 9), 1),
        ("7//2", (7, 2), 3),
    ],
)
def test_what_the_seeds_pay_or_hang_on(answer, numbers, target):
    started = time.monotonic()
    assert scored(think(answer), puzzle=Puzzle(numbers, target)) == [0.1]
    assert time.monotonic() - started < 1


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
    columns = {"scorer": [PUZZLE.scorer] * len(texts)}
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
        {"scorer": PUZZLE.scorer},
        {"scorer": json.dumps({"reasoning_gym": "countdown", "entry": GYM})},
        {"nums": [7, 4, 3], "target": 31},
        {"nums": (7, 4, 3), "target": 31.0},
        {"scorer": "", "nums": [7, 4, 3], "target": 31},
        {"scorer": PUZZLE.scorer, "nums": [1], "target": 1},  # the mapper's word goes first
    ],
)
def test_where_the_puzzle_stands(columns):
    batch = {name: [value, value] for name, value in columns.items()}
    assert reward()(completions=[think("7*4+3"), think("7*4-3")], **batch) == [1.0, 0.1]


@pytest.mark.parametrize(
    "columns",
    [
        {"scorer": None},
        {"scorer": ""},
        {"scorer": '{"reasoning_gym": "chain_sum", "entry": {}}', "nums": [7, 4, 3], "target": 31},
        {"scorer": None, "nums": None, "target": 31},
        {"scorer": None, "nums": [7, 4, 3], "target": None},
        {"nums": None, "target": 31},
        {"nums": [7, 4, 3], "target": None},
        {"nums": ["7", "4", "3"], "target": 31},
        {"nums": [7, 4, -3], "target": 31},
    ],
)
def test_a_row_without_a_puzzle_is_not_judged(columns):
    batch = {name: [value] for name, value in columns.items()}
    assert reward()(completions=[think("7*4+3")], **batch) == [None]


def test_rows_of_several_tasks():
    completions = [think("7*4+3"), think("72"), "7*4+3"]
    assert reward()(
        completions=completions,
        scorer=[PUZZLE.scorer, None, PUZZLE.scorer],
        solution=["", "72", ""],
    ) == [1.0, None, 0.0]


def test_columns_that_hold_no_puzzles_are_named():
    with pytest.raises(RecipeError, match=r"'countdown' needs the puzzles: .*'scorer'.*: solution"):
        reward()(completions=["x"], prompts=["p"], solution=["1"], trainer_state=None)
    with pytest.raises(ValueError, match="Countdown scorer"):
        reward()(completions=["x"], scorer=['{"countdown": {"numbers": []}}'])


def test_logging():
    extra = {}
    reward()(
        completions=[think("7*4+3"), think("7*4"), think("?"), "", think("1")],
        scorer=[*[PUZZLE.scorer] * 4, None],
        log_extra=extra.__setitem__,
    )
    asked = f"{PUZZLE.target} of {', '.join(map(str, PUZZLE.numbers))}"
    assert extra == {
        "answer_parsed": ["7*4+3", "7*4", "?", "", "1"],
        "solution": [*[asked] * 4, ""],
    }


HOSTILE = [
    "9**9**9",
    "(" * 100_000,
    "(" * 500_000 + "5" + ")" * 499_999,
    "1" * 1_000_000,
    "٣+٤",
    "７＋３",
    "7∗4+3",
    "__import__('os').abort()",
]
HOSTILE += [
    "1_000",
    "0x10",
    "1e3",
    "--5",
    "",
    "\0",
    "\ud800",
    "7*4+3\n</think>",
    "<answer>" * 1000,
    "=" * 1000,
    "$" * 1000,
    "7*4+3 = 31 = 31",
]


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_completions(name):
    fmt = FORMATS[name]
    completions = [
        *HOSTILE,
        *(fmt.layout.replace("{reasoning}", "x").replace("{answer}", text) for text in HOSTILE),
    ]
    completions += [[], [{"role": "assistant", "content": None}]]
    count = len(completions)
    started = time.monotonic()
    assert set(reward(fmt=name)(completions=completions, scorer=[PUZZLE.scorer] * count)) == {
        0.0,
        0.1,
    }
    assert time.monotonic() - started < 10


def test_every_format_reads_the_answer():
    for fmt in FORMATS.values():
        for answer in ("7 * 4 + 3", "7 × 4 + 3 = 31", r"7 \times 4 + 3"):
            completion = fmt.render_completion("7 times 4 is 28", answer)
            assert reward(fmt=fmt)(completions=[completion], scorer=[PUZZLE.scorer]) == [1.0], (
                fmt.name,
                answer,
            )
    # A format without tags: what follows "answer is" counts where the box is missing, as for every
    # other reward.
    assert scored("The answer is 7*4+3", "no idea", fmt="boxed") == [1.0, 0.0]


def test_accuracy_and_what_is_built_on_it_judge_puzzles():
    completions = [think("7*4 + 3 = 31"), think("7*4-3"), think("31"), ""]
    columns = {"completions": completions, "scorer": [PUZZLE.scorer] * 4, "solution": ["7*4+3"] * 4}
    before = verification.STATS.comparisons
    assert reward("accuracy")(**columns) == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]  # "31" equals the solution, and uses no number
    ids = [[1] * 10] * 4
    assert reward("cosine", cosine_max_len=10)(completion_ids=ids, **columns) == pytest.approx(
        [0.5, -0.5, -0.5, -0.5]
    )
    assert verification.STATS.comparisons == before  # decided here, without a worker
    assert reward("accuracy")(completions=completions, scorer=[PUZZLE.scorer] * 4) == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]


def test_reasoning_gyms_countdown_does_not_run_its_answers(tmp_path: Path):
    """reasoning-gym's own scorer would: sympy's parse_expr evaluates them as Python."""
    spec = json.dumps({"reasoning_gym": "countdown", "entry": GYM})
    proof = tmp_path / "ran"
    answers = ["7*4+3", f"__import__('pathlib').Path({str(proof)!r}).touch()", "7*4+3", None, "7*4"]
    assert verification.score([spec] * 5, answers) == [True, False, True, False, False]
    assert not proof.exists()


def test_picklable_with_a_name():
    again = pickle.loads(pickle.dumps(reward()))
    assert again == reward()
    assert again.__name__ == "countdown"
