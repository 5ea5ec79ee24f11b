"""The mappers: what each makes of its example rows, and why it leaves a row out."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes import verification
from r1_recipes.data import MAPPERS, Mapper, SkipRow, get_mapper, register_mapper
from r1_recipes.data.mappers import last_boxed
from r1_recipes.errors import RecipeError

GYM_ROW = MAPPERS["reasoning_gym"].examples[0]


@pytest.mark.parametrize("name", MAPPERS)
def test_every_mapper_maps_its_own_examples(name):
    mapper = get_mapper(name)
    assert len(mapper.examples) >= 2
    for row in mapper.examples:
        assert mapper.missing(list(row)) == []
        mapped = mapper(row)
        assert isinstance(mapped["question"], str) and mapped["question"]
        assert isinstance(mapped["solution"], str) and mapped["solution"]
        assert isinstance(mapped.get("reasoning", ""), str)
        assert verification.grade([mapped["solution"]], [mapped["solution"]]) == [True]


def test_gsm8k_drops_thousands_commas_and_calculator_marks():
    row = {
        "question": "  A shop sells 40 crates of 30 lamps. How many? ",
        "answer": "One holds 30.\n40*30=<<40*30=1200>>1200 in all.\n#### 1,200",
    }
    assert get_mapper("gsm8k")(row) == {
        "question": "A shop sells 40 crates of 30 lamps. How many?",
        "solution": "1200",
        "reasoning": "One holds 30.\n40*30=1200 in all.",
    }


@given(number=st.integers(-(10**12), 10**12))
def test_gsm8k_reads_any_grouped_integer(number):
    assert get_mapper("gsm8k")({"question": "q", "answer": f"steps\n#### {number:,}"})["solution"] == str(number)


def test_gsm8k_takes_what_follows_the_last_mark():
    assert get_mapper("gsm8k")({"question": "q", "answer": "a #### 1 b\n#### 2"})["solution"] == "2"


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("gsm8k", {"question": "q", "answer": "no mark here"}, "no '#### gold' in column 'answer'"),
        ("gsm8k", {"question": "q", "answer": "steps ####  "}, "no '#### gold' in column 'answer'"),
        ("gsm8k", {"question": "q", "answer": None}, "column 'answer' is empty"),
        ("gsm8k", {"question": " \n", "answer": "#### 1"}, "column 'question' is empty"),
        ("math", {"problem": "p", "solution": "no box", "answer": ""}, "no gold in column 'answer' and no \\boxed{} in 'solution'"),
        ("math", {"problem": None, "answer": "1"}, "column 'problem' is empty"),
        ("prompt_solution", {"prompt": "", "solution": "1"}, "column 'prompt' is empty"),
        ("prompt_solution", {"prompt": "p", "solution": None}, "column 'solution' is empty"),
        ("prompt_solution", {"prompt": [{"role": "system", "content": "s"}], "solution": "1"}, "column 'prompt' is empty"),
        ("reasoning_gym", {**GYM_ROW, "metadata": ""}, "column 'metadata' is empty"),
        ("reasoning_gym", {**GYM_ROW, "question": ""}, "column 'question' is empty"),
        (
            "arithmetic",
            {**GYM_ROW, "metadata": json.dumps({"source_dataset": "basic_arithmetic", "source_index": 0, "expression": "4 / 2"})},
            "operation '/' is not written out",
        ),
    ],
)
def test_a_row_without_what_is_needed_says_why(name, row, reason):
    with pytest.raises(SkipRow) as skipped:
        get_mapper(name)(row)
    assert str(skipped.value) == reason


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"solution": "So $x=\\boxed{\\frac{1}{\\sqrt{2}}}$."}, "\\frac{1}{\\sqrt{2}}"),
        ({"solution": "\\boxed{1}, no: \\boxed{ 2 }"}, "2"),
        ({"solution": "worked, \\boxed{9}", "answer": "8"}, "8"),  # the answer column wins
        ({"solution": "worked, \\boxed{9}", "answer": None}, "9"),
        ({"solution": "none", "answer": 0}, "0"),  # numbers are golds too, zero included
        ({"answer": "The result is $\\boxed{(1,2)}$."}, "(1,2)"),
        ({"solution": "open \\boxed{3", "answer": "025"}, "025"),
    ],
)
def test_math_gold(row, gold):
    assert get_mapper("math")({"problem": "p", **row})["solution"] == gold


def test_math_columns_by_name():
    mapper = get_mapper("math", prompt_column="question", solution_column="gt", reasoning_column="steps")
    assert mapper({"question": "q", "gt": 7, "steps": "3+4"}) == {"question": "q", "solution": "7", "reasoning": "3+4"}
    assert mapper.missing(["question"]) == ["gt"]
    assert get_mapper("math").missing(["problem"]) == ["answer (or solution)"]


def _boxes(inner):
    return st.tuples(st.sampled_from(["", "x=", "\\frac", "\\{"]), inner).map(lambda pair: pair[0] + "{" + pair[1] + "}")


@given(
    before=st.text(alphabet="ab {}\\$\n", max_size=20),
    content=st.recursive(st.text(alphabet="ab12+ ", min_size=1, max_size=4).filter(str.strip), _boxes, max_leaves=4),
    after=st.text(alphabet="ab }$\n", max_size=10),
)
def test_last_boxed_returns_balanced_content(before, content, after):
    content = content.replace("\\{", "")
    assert last_boxed(f"{before} \\boxed{{{content}}}{after}") == content.strip()


@given(st.text(alphabet="\\boxed{} a1", max_size=60))
def test_last_boxed_takes_any_text(text):
    found = last_boxed(text)
    assert found is None or (found and found in text)


def test_prompt_solution_takes_the_last_user_turn_of_a_conversation():
    prompt = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "reply"},
        {"role": "user", "content": " What is 7 - 9? "},
        {"role": "assistant", "content": ""},
    ]
    mapper = get_mapper("prompt_solution", prompt_column="turns", solution_column="gold", reasoning_column="why")
    assert mapper({"turns": prompt, "gold": -2, "why": "9 - 7 = 2"}) == {
        "question": "What is 7 - 9?",
        "solution": "-2",
        "reasoning": "9 - 7 = 2",
    }
    assert mapper.missing(["turns"]) == ["gold", "why"]


def test_reasoning_gym_carries_the_task_s_own_scorer():
    mapped = get_mapper("reasoning_gym")(GYM_ROW)
    assert mapped["solution"] == "7"
    assert verification.score([mapped["scorer"]] * 3, ["7", "8", None]) == [True, False, False]


@pytest.mark.parametrize(
    ("expression", "lines"),
    [
        ("4 + 3", ["4 + 3 = 7"]),
        ("9 - 5 + 2", ["9 - 5 = 4", "4 + 2 = 6"]),
        ("2 - 3 * 4", ["3 * 4 = 12", "2 - 12 = -10"]),  # products first
        ("5", []),
    ],
)
def test_arithmetic_writes_one_operation_a_line(expression, lines):
    row = {
        "question": "q",
        "answer": "0",
        "metadata": json.dumps({"source_dataset": "chain_sum", "source_index": 1, "expression": expression}),
    }
    assert get_mapper("arithmetic")(row)["reasoning"].splitlines() == lines


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_arithmetic_works_out_the_share_of_rows_it_is_told_to(share):
    mapper = get_mapper("arithmetic", worked_share=share)
    metadata = {"source_dataset": "chain_sum", "expression": "1 + 2 + 3"}
    rows = [{"question": "q", "answer": "6", "metadata": json.dumps({**metadata, "source_index": i})} for i in range(200)]
    worked = [mapper(row)["reasoning"] == "1 + 2 = 3\n3 + 3 = 6" for row in rows]
    assert sum(worked) == pytest.approx(200 * share, abs=2)
    # the others estimate: 6 to the nearest ten is 10; the gold stays what it is
    hasty = [mapper(row) for row, is_worked in zip(rows, worked, strict=True) if not is_worked]
    assert {(m["reasoning"], m["answer"], m["solution"]) for m in hasty} <= {("1 + 2 + 3 is about 10", "10", "6")}


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (["question", "answer"], "gsm8k"),
        (["question", "answer", "metadata"], "reasoning_gym"),  # gsm8k's columns and one more
        (["problem", "level", "solution", "type"], "math"),
        (["id", "problem", "answer"], "math"),
        (["prompt", "solution"], "prompt_solution"),
    ],
)
def test_auto_finds_the_mapper_by_its_columns(columns, name):
    assert get_mapper("auto", columns).name == name


def test_auto_with_a_prompt_column_means_prompt_solution():
    mapper = get_mapper("auto", ["text", "gold"], prompt_column="text", solution_column="gold")
    assert (mapper.name, mapper.prompt_column, mapper.solution_column) == ("prompt_solution", "text", "gold")


@pytest.mark.parametrize(
    ("name", "config", "parts"),
    [
        ("auto", {}, ["none fits the columns ['a', 'b']", "prompt_column"]),
        ("gms8k", {}, ["unknown mapper 'gms8k'", "'gsm8k'"]),
        ("arithmetic", {"worked_shar": 1}, ["key of mapper 'arithmetic'", "worked_share"]),
        ("r1_recipes.errors:nearest", {}, ["not a subclass of r1_recipes.data.Mapper"]),
    ],
)
def test_a_mapper_that_cannot_be_built(name, config, parts):
    with pytest.raises(RecipeError) as error:
        get_mapper(name, ["a", "b"], **config)
    for part in parts:
        assert part in str(error.value)


def test_a_mapper_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "own_mapper_file.py").write_text(
        "from dataclasses import dataclass\n"
        "from r1_recipes.data import Mapper, register_mapper\n\n"
        "@register_mapper('own')\n@dataclass(frozen=True)\nclass Own(Mapper):\n"
        "    suffix: str = ''\n    columns = ('q', 'a')\n\n"
        "    def __call__(self, row):\n        return {'question': row['q'] + self.suffix, 'solution': row['a']}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        mapper = get_mapper("own_mapper_file:Own", suffix="?")
        assert mapper({"q": "1+1", "a": "2"}) == {"question": "1+1?", "solution": "2"}
        assert get_mapper("own").name == "own"
        with pytest.raises(RecipeError, match="Own"):
            get_mapper("own_mapper_file:Onw")
        with pytest.raises(RecipeError, match="no module 'no_such_file'"):
            get_mapper("no_such_file:Own")
    finally:
        MAPPERS.pop("own", None)


def test_a_taken_name_is_refused():
    with pytest.raises(ValueError, match=r"'gsm8k' is taken by .*:GSM8K"):

        @register_mapper("gsm8k")
        class Other(Mapper):
            pass
