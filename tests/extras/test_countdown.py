"""The Countdown checker against a brute-force solver, and against everything that a model may
write; the generator's guarantees.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.extras.countdown import check
from r1_recipes.models.load import load_tokenizer
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs

RIGHT, WRONG, MALFORMED = True, False, False


@pytest.mark.parametrize(
    ("answer", "numbers", "target", "verdict"),
    [
        ("7*4+3", [7, 4, 3], 31, RIGHT),
        (r"7 \times 4 + 3", [7, 4, 3], 31, RIGHT),
        ("$7*4+3$", [7, 4, 3], 31, RIGHT),
        ("7*4+3.", [7, 4, 3], 31, RIGHT),
        ("3 - 7 = -4", [3, 7], -4, RIGHT),
        ("8 / (3 - 8 / 3)", [8, 3, 8, 3], 24, RIGHT),  # 8 / (1/3), exactly
        ("-(3 - 7)", [3, 7], 4, RIGHT),
        ("3--5", [3, 5], 8, RIGHT),
        # Wrong: an expression, but not one that solves it.
        ("7*4+3 = 32", [7, 4, 3], 31, WRONG),  # right, and then another value
        ("7+7", [7], 14, WRONG),  # once each
        ("74-3", [7, 4, 3], 71, WRONG),  # numbers are not digits to join
        ("7 / (3 - 3)", [7, 3, 3], 0, WRONG),
        ("1000001 / 1000000", [1000001, 1000000], 1, WRONG),  # within a seed's 1e-5
        ("1 + " * 300 + "1", [1] * 301, 301, WRONG),  # oversize, although it adds up
        ("5 - 3", [5, -3], 2, WRONG),  # a negative number is none that can be written
        # Malformed: no expression of this grammar.
        ("", [7], 7, MALFORMED),
        ("31 = 7*4+3", [7, 4, 3], 31, MALFORMED),
        ("The answer is 7*4+3", [7, 4, 3], 31, MALFORMED),
        *(
            (text, [7, 4, 3], 31, RIGHT)
            for text in (
                r"\boxed{7*4+3}",
                r"\[7*4+3\]",
                "$$7*4+3$$",
                r"$\boxed{7*4+3}.$",
                "**7*4+3**",
                "`7*4+3`",
                "7 ⋅ 4 + 3",
                r"3 + 7 \cdot 4",
            )
        ),
        (r"\boxed{7*4}+3", [7, 4, 3], 31, WRONG),  # a box around a part
        (r"\dfrac{6}{2} \times 5", [6, 2, 5], 15, RIGHT),
        (r"\frac{6}{2}", [6, 3], 3, WRONG),
        ("7**4+3**", [7, 4, 3], 31, MALFORMED),
        ("2**3", [2, 3], 8, MALFORMED),  # three seeds pay powers
        ("1.5*2", [1, 5, 2], 3, MALFORMED),  # TinyZero finds 1, 5 and 2 in it
        ("00", [0], 0, MALFORMED),
        ("3---5", [3, 5], -2, MALFORMED),
        ("2(3)", [2, 3], 6, MALFORMED),
        ("2)+(3", [2, 3], 5, MALFORMED),
        ("２+3", [2, 3], 5, RIGHT),  # full width
        ("2–3", [2, 3], -1, RIGHT),  # a dash
        ("5 if 5 else 5", [5, 5, 5], 5, MALFORMED),
    ],
)
def test_verdicts(answer: str, numbers: list[int], target: int, verdict: bool) -> None:
    assert check(answer, numbers, target) is verdict


@given(answer=st.text(max_size=60) | st.text(alphabet="0123456789+-*/()=. ×÷−·$\\\n", max_size=60))
def test_any_text_gets_a_verdict(answer: str) -> None:
    assert check(answer, [1, 2, 3], 7) in (True, False)


# The brute-force solver: every expression of some numbers, with its exact value, written by code
# that shares nothing with the checker.


def trees(numbers: Sequence[int]) -> Iterator[tuple[str, Fraction | None, int]]:
    """Text, value (``None``: division by zero) and binding of every expression of the numbers in
    this order.
    """
    if len(numbers) == 1:
        yield str(numbers[0]), Fraction(numbers[0]), 9
        return
    for cut in range(1, len(numbers)):
        for (left, a, tight), (right, b, close) in itertools.product(
            trees(numbers[:cut]), trees(numbers[cut:])
        ):
            for sign, binding in (("+", 1), ("-", 1), ("*", 2), ("/", 2)):
                first = f"({left})" if tight < binding else left
                second = (
                    f"({right})"
                    if close < binding or (close == binding and sign in "-/")
                    else right
                )
                yield f"{first}{sign}{second}", apply(a, sign, b), binding


def apply(a: Fraction | None, sign: str, b: Fraction | None) -> Fraction | None:
    if a is None or b is None or (sign == "/" and b == 0):
        return None
    return {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "/": a.__truediv__}[sign](b)


def every_expression(numbers: Sequence[int]) -> dict[str, Fraction | None]:
    orders = sorted(set(itertools.permutations(numbers)))
    return {text: value for order in orders for text, value, _ in trees(order)}


def loosely(text: str, rng: random.Random) -> str:
    """The same expression in other spelling: signs, white space, brackets around numbers, a value
    behind it.
    """
    spelled = {
        "*": ["*", " * ", "×", " × ", "·", r"\times "],
        "/": ["/", " / ", "÷"],
        "-": ["-", " - ", "−"],
        "+": ["+", " + ", "\n+ "],
    }
    pieces = re.findall(r"\d+|\D", text)
    return "".join(
        rng.choice(spelled[piece])
        if piece in spelled
        else f"({piece})"
        if piece.isdigit() and rng.random() < 0.1
        else piece
        for piece in pieces
    )


NUMBERS = (
    "2 3 | 1 1 | 0 5 | 10 4 | 7 7 7 | 1 5 2 | 12 3 4 | 0 6 2 | 25 100 75 | 7 4 3 1 | "
    "8 3 8 3 | 1 2 3 4 | 25 50 75 100 | 6 6 6 6 | 5 5 1 11 | 44 19 35 98 | 0 1 2 3 | "
    "13 2 9 17 | 3 30 33 66 | 1 10 100 99 | 2 12 21 11"
)
PUZZLES = [tuple(map(int, numbers.split())) for numbers in NUMBERS.split("|")]


@pytest.mark.slow
def test_every_expression_of_up_to_four_numbers() -> None:
    """What the solver finds right is right, in any spelling, and what it finds wrong is wrong:
    58,000 distinct strings.
    """
    rng = random.Random(0)
    seen: set[str] = set()
    for numbers in PUZZLES:
        found = every_expression(numbers)
        targets = sorted(
            {int(value) for value in found.values() if value is not None and value.denominator == 1}
        )
        for text, value in found.items():
            target = rng.choice(targets)
            answer = text if rng.random() < 0.5 else loosely(text, rng)
            if value is not None and value.denominator == 1:
                assert check(answer, numbers, int(value)) is RIGHT, (answer, numbers, value)
                assert check(f"{answer} = {value}", numbers, int(value)) is RIGHT, (
                    answer,
                    numbers,
                    value,
                )
            assert check(answer, numbers, target) is (RIGHT if value == target else WRONG), (
                answer,
                numbers,
                target,
            )
            assert check(answer, (*numbers, 1), target) is WRONG  # a number is left over
            seen.add(answer)
    assert len(seen) > 50_000


def test_tinyzeros_parquet_is_read_as_it_is(write_recipe, tmp_path: Path) -> None:
    import datasets

    from r1_recipes.data import load_dataset
    from r1_recipes.data.mappers import example_rows

    rows = example_rows("verl")
    path = str(tmp_path / "train.parquet")
    datasets.Dataset.from_list(list(rows)).to_parquet(path)
    (countdown,) = get_reward_funcs(["countdown"], "think_answer")
    completions = ["<think>a</think><answer>7*4+3</answer>"] * 2  # the first row's answer
    for mapper in ("verl", "auto"):
        script = load_recipe(
            [write_recipe("grpo", dataset_name=path, mapper=mapper)], "grpo"
        ).script
        dataset, report = load_dataset(
            script, get_response_format("think_answer", system_prompt=""), "grpo"
        )
        assert str(report) == "2 of 2 rows kept"
        assert dataset["prompt"][:] == [row["prompt"] for row in rows]
        assert dataset["task"][:] == ["countdown", "countdown"]
        columns = {name: dataset[name][:] for name in dataset.column_names if name != "prompt"}
        assert countdown(completions=completions, **columns) == [1.0, 0.1]


ASKED = (
    "Using the numbers %s, create an equation that equals 98. You can use basic arithmetic "
    "operations (+, -, *, /) and each number can "
    "only be used once. Show your work in <think> </think> tags. And return the final answer "
    "in <answer> </answer> tags, for example "
    "<answer> (1 + 2) / 3 </answer>."
)
TURNS = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}\n<think>"
START = "Let me solve this step by step."
GRPO_ZERO = TURNS.format(
    "You are a helpful assistant. You first think about the reasoning process in your mind "
    "and then provide the user with the answer.",
    ASKED % "[44 19  5]",  # NumPy's, whose arrays the rows of a pandas frame hold
    START,
)
PROMPTS = {
    # countdown.py:59-65 of TinyZero's examples/data_preprocess
    "tinyzero_countdown": "A conversation between User and Assistant. The "
    "user asks a question, and the Assistant "
    "solves it. The assistant first thinks "
    "about the reasoning process in the mind and then provides the user with the answer.\n"
    f"User: {ASKED % [44, 19, 5]}\nAssistant: {START}\n<think>",
    # countdown_task.py:11-21 of GRPO-Zero
    "grpo_zero_countdown": GRPO_ZERO,
    # chapter 11 of the Chinese rl-tutorial
    "grpo_zero_countdown_zh": TURNS.format(
        "你是一个有用的助手。你首先在脑海中思考推理过程，然后为用户提供答案。",
        "使用这些数字 [44 19  5]，创建一个等于 98 的等式。你可以使用基本算术运算（+、-、*、/），每个数字只能使用一次。"
        "在 <think> </think> 标签中展示你的解题过程。并在 <answer> </answer> 标签中返回最终答案，例如 <answer> (1 + 2) "
        "/ 3 </answer>。",
        "让我一步步来解决这个问题。",
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_the_model_sees_the_original_s_prompt_to_the_letter(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    from r1_recipes.data import load_dataset

    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"target": 98, "nums": [44, 19, 5]}) + "\n")
    argv = [
        f"recipes/reproduce/{name}.yaml",
        "--model_name_or_path",
        str(tiny_model),
        "--dataset_name",
        str(rows),
    ]
    recipe = load_recipe(
        [*argv, "--dataset_train_split", "train", "--max_prompt_tokens", "none"], "grpo"
    )
    tokenizer, fmt = load_tokenizer(
        recipe
    )  # the tiny model's chat template writes turns as Qwen2.5's does
    dataset, _ = load_dataset(recipe.script, fmt, "grpo")
    assert (
        tokenizer.apply_chat_template(
            dataset[0]["prompt"], tokenize=False, add_generation_prompt=True
        )
        == PROMPTS[name]
    )
    assert fmt.parse(" 28 + 3 </think>\n<answer> 7*4+3 </answer>").well_formed


def test_every_format_reads_the_answer():
    def scored(completion, fmt):
        (reward,) = get_reward_funcs(["countdown"], fmt)
        return reward(completions=[completion], nums=[[7, 4, 3]], target=[31])[0]

    for fmt in FORMATS.values():
        for answer in ("7 * 4 + 3", "7 × 4 + 3 = 31", r"7 \times 4 + 3"):
            completion = fmt.render_completion("7 times 4 is 28", answer)
            assert scored(completion, fmt) == 1.0, (fmt.name, answer)
    # A format without tags: what follows "answer is" counts where the box is missing, as for every
    # other reward.
    assert scored("The answer is 7*4+3", "boxed") == 1.0 and scored("no idea", "boxed") == 0.0
