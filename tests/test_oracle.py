"""Every row that the package draws or ships is right, by another way than the code that made it."""

import ast
import collections
import functools
import itertools
import json
import math
import operator
import random
import re
from fractions import Fraction

import pytest

from r1_recipes.common.files import read_yaml
from r1_recipes.data.mappers import MAPPERS, example_rows, get_mapper
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.tools import calculator
from tests.conftest import RECIPES, REPOSITORY

SIGNS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(expression: str) -> Fraction:
    """Return what Python's own parser makes of an expression."""

    def work(node: ast.AST) -> Fraction:
        match node:
            case ast.Expression(body):
                return work(body)
            case ast.BinOp(left, sign, right):
                return SIGNS[type(sign)](work(left), work(right))
            case ast.UnaryOp(ast.USub(), operand):
                return -work(operand)
            case ast.Constant(int() as number):
                return Fraction(number)
        raise ValueError(expression)

    return work(ast.parse(expression.strip(), mode="eval"))


def drawn(name: str) -> list[tuple[str, str, list, list]]:
    """Return each part of a shipped recipe that draws such rows: the recipe, a mapper's keys, and the rows of both splits."""
    parts = []
    for path in RECIPES:
        settings = read_yaml(path)
        for part in (settings.get("dataset_mixture") or {}).get("datasets") or [settings]:
            source = str(part.get("id") or part.get("dataset_name"))
            if source.partition(":")[0] == name:
                config = part.get("task_config") or settings["task_config"]
                splits = [
                    list(load_rows(source, split, task_config=config))
                    for split in ("train", "test")
                ]
                parts.append((path, part.get("mapper_config") or {}, *splits))
    assert parts, f"no recipe draws {name}"
    return parts


@functools.cache
def all_sums():
    return drawn("sums")


def test_sums_have_the_answer_that_python_gives():
    for path, _, train, test in all_sums():
        for row in train + test:
            asked = re.fullmatch(r"Calculate (.+)\.", row["question"])
            assert asked and asked[1] == row["expression"], (path, row)
            assert value(asked[1]) == int(row["answer"]), (path, row)
        questions = [row["question"] for row in train + test]
        assert len(set(questions)) == len(questions), (
            f"{path}: a sum is in both splits, or twice in one"
        )


def test_the_steps_of_a_sum_are_each_right_and_lead_to_its_answer():
    for path, _, train, test in all_sums():
        for row in train + test:
            rest = row["expression"]
            for step in row["steps"].splitlines():
                done, result = step.split(" = ")
                assert value(done) == int(result), (path, row)
                # Put the result where the operation stood: the sum has the same value, because the right operation came first.
                assert rest.count(done) >= 1, (path, row)
                rest = re.sub(rf"(?<![\d-]){re.escape(done)}(?!\d)", result, rest, count=1)
                assert value(rest.replace("+ -", "- ").replace("- -", "+ ")) == int(
                    row["answer"]
                ), (path, row, rest)
            assert rest == row["answer"], (path, row)


def test_what_a_cold_start_learns_is_right_or_says_about():
    for path, config, train, _ in all_sums():
        mapped = [get_mapper("sums", **config)(row) for row in train]
        for row, example in zip(train, mapped, strict=True):
            assert value(row["expression"]) == int(example["solution"])
            if "about" in example["reasoning"]:
                assert abs(int(example["answer"]) - int(example["solution"])) <= 5, (path, example)
            else:
                assert "answer" not in example, (path, example)
            for call, result in itertools.pairwise(example.get("messages", ())[1:]):
                function = call["tool_calls"][0]["function"]
                assert value(function["arguments"]["expression"]) == int(result["content"])
        # The habit must not follow the operators, or GRPO has nothing to choose between.
        by_signs = collections.defaultdict(list)
        for row, example in zip(train, mapped, strict=True):
            by_signs[re.sub(r"[^-+*]", "", row["expression"])].append(
                "about" not in example["reasoning"]
            )
        for signs, worked in by_signs.items():
            share = sum(worked) / len(worked)
            assert abs(share - config.get("worked_share", 1.0)) < 0.15, (path, signs, share)


def reachable(numbers: tuple[int, ...]) -> set[Fraction]:
    """Return each value that all of the numbers give with + - * / and brackets."""

    @functools.cache
    def values(group: tuple[int, ...]) -> frozenset[Fraction]:
        if len(group) == 1:
            return frozenset((Fraction(group[0]),))
        found = set()
        for size in range(1, len(group) // 2 + 1):
            for chosen in itertools.combinations(range(len(group)), size):
                left = values(tuple(group[at] for at in chosen))
                right = values(tuple(number for at, number in enumerate(group) if at not in chosen))
                for a, b in itertools.product(left, right):
                    found |= {a + b, a - b, b - a, a * b}
                    found |= {a / b} if b else set()
                    found |= {b / a} if a else set()
        return frozenset(found)

    return set(values(tuple(sorted(numbers))))


def test_countdown_s_solutions_use_each_number_once_and_meet_the_target():
    for path, config, train, test in drawn("countdown"):
        for row in train + test:
            used = sorted(map(int, re.findall(r"\d+", row["expression"])))
            assert used == sorted(row["nums"]), (path, row)
            assert value(row["expression"]) == row["target"], (path, row)
        for row in (train + test)[::40]:
            assert row["target"] in reachable(tuple(row["nums"])), (path, row)
        puzzles = [(tuple(sorted(row["nums"])), row["target"]) for row in train + test]
        assert len(set(puzzles)) == len(puzzles), path
        mapper = get_mapper("countdown", **config)
        for row in train[:100]:
            for step in re.findall(r"[\d(][^\n=]* = -?\d+", mapper(row).get("reasoning") or ""):
                done, result = step.split(" = ")
                assert value(done) == int(result), (path, step)


def test_the_calculator_gives_what_python_gives():
    rng = random.Random(0)
    for _ in range(2000):
        numbers = [str(rng.randint(0, 999)) for _ in range(rng.randint(2, 5))]
        signs = [rng.choice("+-*/") for _ in numbers[1:]]
        expression = " ".join(
            map(
                "".join,
                itertools.zip_longest(numbers, [f" {sign}" for sign in signs], fillvalue=""),
            )
        )
        try:
            right = value(expression)
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):  # TRL shows the model what a tool raises
                calculator(expression)
            continue
        assert math.isclose(float(calculator(expression)), float(right), rel_tol=1e-9), expression
    assert calculator("3 + 4 * 7") == "31"


# Each question of an example row, and its answer worked out here. A question that is not here fails the test below.
PRIME = next(n for n in itertools.count(21) if all(n % d for d in range(2, n)))
WORKED = {
    "What is 6*7?": 6 * 7,
    "What is 8*9?": 8 * 9,
    "And twice that?": 2 * (2 + 3),
    "Find the least prime above 20.": PRIME,
    "How many subsets has a set of 5 elements?": 2**5,
    "Ana has 3 boxes of 4 pens. How many pens does she have?": 3 * 4,
    "A shop sells 40 crates of 30 lamps. How many lamps is that?": 40 * 30,
    "Solve $2x=6$.": Fraction(6, 2),
    "Solve the equation below.": 2 + 1,  # x - 1 = 2
    r"Find $\frac12+\frac14$.": Fraction(1, 2) + Fraction(1, 4),
    "Find $2+2$.": 2 + 2,
    r"Find $\sqrt{81}$.": math.isqrt(81),
    r"What is $6\cdot7$?": 6 * 7,
    "What is $2^5$?": 2**5,
    "What is 7 - 9?": 7 - 9,
    "What is 50-8?": 50 - 8,
    "Find $3^4$.": 3**4,
    r"Simplify $\frac{6}{8}$.": Fraction(6, 8),
    "What is 7 * 6?": 7 * 6,
    "What is 3+4?": 3 + 4,
    "What is 2*6?": 2 * 6,
}
# Read by a person: nothing to work out.
FACTS = {
    "Name the capital of France.": "paris",
    "Which organ makes insulin?": "pancreas",
    "Which vitamin deficiency causes scurvy?": "vitamin c",
    "Which of these melts first when a candle is lit?": "the wax",
    "Which planet is the largest?": "Jupiter",
}


@pytest.mark.parametrize("name", sorted(MAPPERS))
def test_the_reference_answers_of_example_rows_are_right(name):
    mapper = get_mapper(name)
    for row in example_rows(name):
        mapped = mapper(row)
        question, gold = mapped.get("question"), mapped.get("solution")
        if (
            question is None or not gold or name in ("countdown", "verifiable_code")
        ):  # tested above and below
            continue
        question = re.sub(r"<\|im_\w+\|>(user|assistant)?\n?", "", question).split("\n")[0].strip()
        if question in FACTS and name != "multiple_choice":
            assert FACTS[question] in gold.lower(), (name, row)
        elif question.startswith("Calculate "):
            assert value(question.removeprefix("Calculate ").rstrip(".")) == int(gold), (name, row)
        elif name == "multiple_choice":
            letter, _, option = gold.partition(") ")
            assert option == row["choices"]["text"]["ABCDE".index(letter)], (name, row)
            assert option == FACTS.get(question) or int(option) == WORKED[question], (name, row)
        elif name == "image_question":
            assert row["image"]["bytes"].startswith(b"P5 %d " % int(gold)), (name, row)
        elif added := re.fullmatch(
            r"What do you get if you add (\d+) to the number (\d+)\?", question
        ):
            assert sum(map(int, added.groups())) == int(gold) and gold in row["response"], (
                name,
                row,
            )
        else:
            number = Fraction(re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", gold).replace(",", ""))
            assert number == WORKED[question], (name, row)


def test_gsm8k_s_calculator_marks_are_right():
    for row in example_rows("gsm8k"):
        for done, result in re.findall(r"<<([^=<>]+)=([^<>]+)>>", row["answer"]):
            assert value(done) == Fraction(result)


def test_the_test_cases_of_the_example_programs_are_what_they_print(tmp_path):
    import subprocess
    import sys

    for row in example_rows("verifiable_code"):
        program = re.search(r"```python\n(.*?)\n```", row["gold_standard_solution"], re.S)[1]
        for case in row["verification_info"]["test_cases"]:
            printed = subprocess.run(
                [sys.executable, "-c", program],
                input=case["input"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert printed.stdout == case["output"]


def test_general_questions_are_asked_once_and_have_nothing_to_work_out():
    """Their forty answers were read by a person; what a person cannot check at a glance has no place in them."""
    lines = (
        (REPOSITORY / "recipes/cpu/r1_mini/general.jsonl").read_text(encoding="utf-8").splitlines()
    )
    rows = [json.loads(line)["messages"] for line in lines]
    assert [[message["role"] for message in row] for row in rows] == [["user", "assistant"]] * 40
    assert len({row[0]["content"] for row in rows}) == 40
    assert not [row for row in rows if re.search(r"\d", json.dumps(row))]
