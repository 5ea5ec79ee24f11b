"""The mappers: what each makes of its example rows, and why it leaves a row out."""

import json
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import MAPPERS, Mapper, SkipRow, get_mapper, register_mapper
from r1_recipes.data.mappers.base import last_boxed
from tests.support.needs import by_mapper, needs

GYM_ROW = MAPPERS["reasoning_gym"].examples[0] if "reasoning_gym" in MAPPERS else {}
VERL_ROW = MAPPERS["verl"].examples[0]


# Chats have no gold; the others' are words, or programs.
NO_MATHEMATICS = {
    "environment",
    "preference",
    "safe_rlhf",
    "conversations",
    "reasoning_columns",
    "r1_distill_sft",
    "medical_verifiable",
    "summary",
    "verifiable_code",
}
CALL = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


@pytest.mark.parametrize("name", by_mapper(MAPPERS))
def test_every_mapper_maps_its_own_examples(name):
    mapper = get_mapper(name)
    assert len(mapper.examples) >= 2
    for row in mapper.examples:
        assert mapper.missing(list(row)) == []
        mapped = mapper(row)
        assert isinstance(mapped["question"], str) and mapped["question"]
        if name != "environment":  # which judges itself
            assert any(
                isinstance(mapped.get(key), str) and mapped[key]
                for key in ("solution", "response", "scorer")
            )
        assert isinstance(mapped.get("reasoning", ""), str)
        if "scorer" in mapped:
            assert verification.score(
                [mapped["scorer"]] * 2, [mapped["solution"], "no answer"]
            ) == [bool(mapped["solution"]), False]
        elif name not in NO_MATHEMATICS:
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
    assert get_mapper("gsm8k")({"question": "q", "answer": f"steps\n#### {number:,}"})[
        "solution"
    ] == str(number)


@pytest.mark.parametrize(
    ("answer", "solution"),
    [("1,500", "1500"), ("$1,234,567.5", "$1234567.5"), ("-2,000 km", "-2000 km")]
    # A decimal comma, a pair, a list, and digits that are no groups of three.
    + [(kept, kept) for kept in ("1,5", "(1,2)", "1,2,3", "1,50,000", "1,4500", "0.5,000")],
)
def test_gsm8k_drops_no_comma_but_between_thousands(answer, solution):
    mapped = get_mapper("gsm8k")({"question": "q", "answer": f"steps\n#### {answer}"})
    assert mapped["solution"] == solution


def test_gsm8k_takes_what_follows_the_last_mark():
    assert get_mapper("gsm8k")({"question": "q", "answer": "a #### 1 b\n#### 2"})["solution"] == "2"


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    by_mapper(
        [
            (
                "gsm8k",
                {"question": "q", "answer": "no mark here"},
                "no '#### NUMBER' in column 'answer'",
            ),
            ("preference", {"chosen": "a", "rejected": "b"}, "no user message before the answer"),
            (
                "preference",
                {"prompt": "q", "chosen": "a", "rejected": "a"},
                "chosen and rejected must be different answers to the same conversation",
            ),
            (
                "preference",
                {"prompt": "q", "chosen": "a", "rejected": None},
                "column 'rejected' is empty",
            ),
            (
                "safe_rlhf",
                {"prompt": "q", "response_0": "a", "response_1": "b", "safer_response_id": 2},
                "column 'safer_response_id' is neither 0 nor 1",
            ),
            (
                "safe_rlhf",
                {"prompt": "q", "response_0": "a", "response_1": "", "safer_response_id": 0},
                "column 'response_1' is empty",
            ),
            (
                "gsm8k",
                {"question": "q", "answer": "steps ####  "},
                "no '#### NUMBER' in column 'answer'",
            ),
            ("gsm8k", {"question": "q", "answer": None}, "column 'answer' is empty"),
            ("gsm8k", {"question": " \n", "answer": "#### 1"}, "column 'question' is empty"),
            (
                "math",
                {"problem": "p", "solution": "no box", "answer": ""},
                "no reference answer in column 'answer' and no \\boxed{} in 'solution'",
            ),
            ("math", {"problem": None, "answer": "1"}, "column 'problem' is empty"),
            ("prompt_solution", {"prompt": "", "solution": "1"}, "column 'prompt' is empty"),
            ("prompt_solution", {"prompt": "p", "solution": None}, "column 'solution' is empty"),
            (
                "prompt_solution",
                {"prompt": [{"role": "system", "content": "s"}], "solution": "1"},
                "column 'prompt' is empty",
            ),
            ("reasoning_gym", {**GYM_ROW, "metadata": ""}, "column 'metadata' is empty"),
            ("reasoning_gym", {**GYM_ROW, "question": ""}, "column 'question' is empty"),
            (
                "arithmetic",
                {
                    **GYM_ROW,
                    "metadata": json.dumps(
                        {
                            "source_dataset": "basic_arithmetic",
                            "source_index": 0,
                            "expression": "4 / (2 - 2)",
                        }
                    ),
                },
                "'4 / (2 - 2)' has no steps: not an expression with a value",
            ),
            (
                "countdown",
                {"nums": [7, 4], "target": None},
                "columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more",
            ),
            (
                "countdown",
                {"nums": None, "target": 3},
                "columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more",
            ),
            (
                "countdown",
                {"nums": [7, -4], "target": 3},
                "columns 'nums' and 'target' must hold whole numbers, with 'nums' 0 or more",
            ),
            (
                "countdown",
                {"nums": [7, 4], "target": 11, "expression": "7 - 4"},
                "column 'expression' does not make the target from 'nums'",
            ),
            ("verl", {**VERL_ROW, "data_source": None}, "column 'data_source' is empty"),
            ("verl", {**VERL_ROW, "prompt": []}, "column 'prompt' is empty"),
            (
                "verl",
                {**VERL_ROW, "prompt": " "},
                "column 'prompt' does not end in a user message",
            ),
            (
                "verl",
                {**VERL_ROW, "prompt": CALL},
                "column 'prompt' does not end in a user message",
            ),
            ("verl", {**VERL_ROW, "prompt": 3}, "column 'prompt' is not a list of messages"),
        ]
    ),
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
    mapper = get_mapper(
        "math", prompt_column="question", solution_column="gt", reasoning_column="steps"
    )
    assert mapper({"question": "q", "gt": 7, "steps": "3+4"}) == {
        "question": "q",
        "solution": "7",
        "reasoning": "3+4",
    }
    assert mapper.missing(["question"]) == ["gt"]
    assert get_mapper("math").missing(["problem"]) == ["answer (or solution)"]


def _boxes(inner):
    return st.tuples(st.sampled_from(["", "x=", "\\frac", "\\{"]), inner).map(
        lambda pair: pair[0] + "{" + pair[1] + "}"
    )


@given(
    before=st.text(alphabet="ab {}\\$\n", max_size=20),
    content=st.recursive(
        st.text(alphabet="ab12+ ", min_size=1, max_size=4).filter(str.strip), _boxes, max_leaves=4
    ),
    after=st.text(alphabet="ab }$\n", max_size=10),
)
def test_last_boxed_returns_balanced_content(before, content, after):
    content = content.replace("\\{", "")
    assert last_boxed(f"{before} \\boxed{{{content}}}{after}") == content.strip()


@given(st.text(alphabet="\\boxed{} a1", max_size=60))
def test_last_boxed_takes_any_text(text):
    found = last_boxed(text)
    assert found in text


def test_prompt_solution_takes_the_last_user_turn_of_a_conversation():
    prompt = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "reply"},
        {"role": "user", "content": " What is 7 - 9? "},
        {"role": "assistant", "content": ""},
    ]
    lists = {"role": ["user", "assistant"], "content": ["hi", "ho"]}  # as Arrow may hold it
    assert get_mapper("prompt_solution")({"prompt": lists, "solution": "1"})["question"] == "hi"
    with pytest.raises(SkipRow, match="column 'prompt' is not a list of messages"):
        get_mapper("prompt_solution")({"prompt": ["hi"], "solution": "1"})
    mapper = get_mapper(
        "prompt_solution", prompt_column="turns", solution_column="gold", reasoning_column="why"
    )
    assert mapper({"turns": prompt, "gold": -2, "why": "9 - 7 = 2"}) == {
        "question": "What is 7 - 9?",
        "solution": "-2",
        "reasoning": "9 - 7 = 2",
    }
    assert mapper.missing(["turns"]) == ["gold", "why"]


@needs("reasoning_gym")
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
        ("8 / (3 - 1)", ["3 - 1 = 2", "8 / 2 = 4"]),
        ("5", []),
    ],
)
@needs("reasoning_gym")
def test_arithmetic_writes_one_operation_a_line(expression, lines):
    row = {
        "question": "q",
        "answer": "0",
        "metadata": json.dumps(
            {"source_dataset": "chain_sum", "source_index": 1, "expression": expression}
        ),
    }
    assert get_mapper("arithmetic")(row)["reasoning"].splitlines() == lines


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@needs("reasoning_gym")
def test_arithmetic_works_out_the_configured_share_of_rows(share):
    mapper = get_mapper("arithmetic", worked_share=share)
    metadata = {"source_dataset": "chain_sum", "expression": "1 + 2 + 3"}
    rows = [
        {"question": "q", "answer": "6", "metadata": json.dumps({**metadata, "source_index": i})}
        for i in range(200)
    ]
    worked = [mapper(row)["reasoning"] == "1 + 2 = 3\n3 + 3 = 6" for row in rows]
    assert sum(worked) == pytest.approx(200 * share, abs=2)
    # the others estimate: 6 to the nearest ten is 10; the gold stays what it is
    hasty = [mapper(row) for row, is_worked in zip(rows, worked, strict=True) if not is_worked]
    assert {(m["reasoning"], m["answer"], m["solution"]) for m in hasty} <= {
        ("1 + 2 + 3 is about 10", "10", "6")
    }


# reasoning_gym's rows; any text with another; any text
def test_only_fields_that_end_in_column_name_columns():
    @dataclass(frozen=True)
    class Own(Mapper):
        columns = ("problem", "answer")
        problem_columns: str = ""
        answer_columns: tuple[str, ...] = ()

    own = Own(problem_columns="p1", answer_columns=("a", "b"))
    assert own.missing(["problem", "answer"]) == []
    assert own({"problem": "3 + 4?", "answer": "7"}) == {"question": "3 + 4?", "solution": "7"}


BY_NAME_ONLY = {"arithmetic", "summary", "reverse_text"}


@pytest.mark.parametrize(
    ("name", "row"),
    [(name, row) for name in MAPPERS if name not in BY_NAME_ONLY for row in MAPPERS[name].examples],
)
def test_auto_finds_the_mapper_of_every_example_row(name, row):
    assert get_mapper("auto", list(row)).name == name


@pytest.mark.parametrize(
    ("columns", "name"),
    by_mapper(
        [
            (["question", "answer"], "gsm8k"),
            (["question", "answer", "metadata"], "reasoning_gym"),  # gsm8k's columns and one more
            (["problem", "level", "solution", "type"], "math"),
            (["id", "problem", "answer"], "math"),
            (["prompt", "solution"], "prompt_solution"),
            (
                ["problem", "solution", "messages"],
                "math",
            ),  # NuminaMath-TIR: what has a gold goes first
            (
                [
                    "problem",
                    "answer",
                    "solution",
                    "generations",
                    "correctness_math_verify",
                    "messages",
                ],
                "openr1_math",
            ),
            (["messages", "num_tokens", "source"], "conversations"),  # Mixture-of-Thoughts
            (["system", "conversations"], "conversations"),  # OpenThoughts
            (["question", "pass_rate", "solution"], "generated"),  # prompt-only
            (["id", "problem", "answer", "url", "year"], "math"),  # AIME
            (
                [
                    "id",
                    "reannotated_assistant_content",
                    "source",
                    "reannotated_messages",
                    "messages",
                ],
                "r1_distill_sft",
            ),  # v1
            (["problem", "deepseek_reasoning", "deepseek_solution", "domain"], "openthoughts"),
            (
                [
                    "prompt",
                    "solution",
                    "data_source",
                    "source_prompt",
                    "ability",
                    "reward_model",
                    "extra_info",
                ],
                "dapo",
            ),
            (
                ["data_source", "prompt", "ability", "reward_model", "extra_info"],
                "verl",
            ),  # the original DAPO set, too
            # Generated from gsm8k's rows, and from reasoning_gym's, whose columns stay beside ours.
            (
                ["question", "answer", "pass_rate", "response", "solution", "tokens", "scores"],
                "generated",
            ),
            (["question", "answer", "metadata", "pass_rate", "scorer", "solution"], "generated"),
            (["nums", "target"], "countdown"),  # Countdown-Tasks-3to4
            (
                [
                    "target",
                    "nums",
                    "data_source",
                    "prompt",
                    "ability",
                    "reward_model",
                    "extra_info",
                ],
                "verl",
            ),  # TinyZero keeps the raw columns
        ]
    ),
)
def test_auto_finds_the_mapper_by_its_columns(columns, name):
    assert get_mapper("auto", columns).name == name


def thought(text, answer):
    return f"<|begin_of_thought|>\n\n{text}\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n{answer}\n\n<|end_of_solution|>"


def test_conversations_reads_both_schemas_alike():
    from_value = [{"from": "human", "value": "2+2?"}, {"from": "GPT ", "value": "4"}]
    wanted = {"question": "2+2?", "response": "4", "messages": CALL[:1], "well_formed": True}
    assert get_mapper("conversations")({"messages": CALL}) == wanted
    assert get_mapper("conversations")({"conversations": from_value, "system": None}) == wanted
    assert get_mapper("conversations")({"conversations": from_value, "messages": None}) == wanted
    assert get_mapper("conversations", well_formed=False)(
        {"messages": CALL, "conversations": []}
    ) == {**wanted, "well_formed": False}
    assert get_mapper("conversations").missing(["text"]) == ["messages (or conversations)"]


def test_conversations_takes_the_last_assistant_s_turn_and_keeps_the_history():
    turns = [
        *CALL,
        {"role": "user", "content": " And 3+3? "},
        {"role": "assistant", "content": " 6\n"},
        {"role": "user", "content": "Thanks."},
    ]
    mapped = get_mapper("conversations")({"messages": turns, "system": "Be brief."})
    assert (
        mapped
        == {
            "question": "And 3+3?",
            "response": " 6\n",  # as it is
            "messages": [{"role": "system", "content": "Be brief."}, *turns[:3]],
            "well_formed": True,
        }
    )
    own = [{"role": "system", "content": "Own."}, *turns]
    assert (
        get_mapper("conversations")({"messages": own, "system": "Be brief."})["messages"][0][
            "content"
        ]
        == "Own."
    )


def test_conversations_writes_thought_wrappers_as_think():
    turns = [
        {"from": "user", "value": "6*7?"},
        {"from": "assistant", "value": thought("42", "\\boxed{42}")},
        {"from": "user", "value": "8*9?"},
        {"from": "assistant", "value": thought("It is\n72.", "So\n\\boxed{72}")},
    ]
    mapped = get_mapper("conversations")(
        {"system": "Write <|begin_of_thought|> first.", "conversations": turns}
    )
    assert mapped["response"] == "<think>\nIt is\n72.\n</think>\nSo\n\\boxed{72}"
    assert mapped["messages"] == [
        {"role": "user", "content": "6*7?"},
        {"role": "assistant", "content": "<think>\n42\n</think>\n\\boxed{42}"},
        {"role": "user", "content": "8*9?"},
    ]


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ("<|begin_of_thought|>a<|end_of_thought|>b", "<think>\na\n</think>\nb"),
        (
            "<|begin_of_thought|>a<|end_of_thought|><|begin_of_solution|>cut",
            "<think>\na\n</think>\ncut",
        ),
        # Broken: as it is, for the response format to refuse.
        ("<|begin_of_thought|>a", None),
        ("Hm. <|begin_of_thought|>a<|end_of_thought|>b", None),
        ("<|begin_of_thought|>a<|end_of_thought|>x<|begin_of_solution|>b<|end_of_solution|>", None),
        ("<|begin_of_thought|>a<|end_of_thought|><|begin_of_solution|>b<|end_of_solution|>c", None),
        (
            "<|begin_of_thought|>a<|end_of_thought|><|begin_of_solution|>b<|begin_of_solution|>c<|end_of_solution|>",
            None,
        ),
        ("<|end_of_thought|>a<|begin_of_thought|>b", None),
        ("<think>\na\n</think>\nb", None),
    ],
)
def test_broken_wrappers_stay(text, response):
    row = {"messages": [CALL[0], {"role": "assistant", "content": text}]}
    assert get_mapper("conversations")(row)["response"] == (text if response is None else response)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value"]), inner, max_size=4)
    ),
    max_leaves=12,
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "human", "assistant", "system", "tool"]),
            "content": st.sampled_from(["a", "b", "", None]),
        }
    ),
    max_size=5,
)


@given(value=JSON | TURNS, system=JSON)
def test_conversations_maps_or_skips_whatever_is_there(value, system):
    try:
        mapped = get_mapper("conversations")({"messages": value, "system": system})
    except SkipRow as reason:
        assert str(reason)
        return
    assert mapped["response"].strip() and mapped["messages"][-1]["role"] == "user"
    roles = [turn["role"] for turn in mapped["messages"] if turn["role"] != "system"]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def openr1(**columns):
    texts = ["first", "second", "third"]
    return {
        "problem": "2+2?",
        "answer": "4",
        "solution": "It is $\\boxed{5}$.",
        "generations": texts,
        "correctness_math_verify": None,
    } | columns


@pytest.mark.parametrize(
    ("columns", "response"),
    [
        (
            {"correctness_math_verify": [False, True, True], "is_reasoning_complete": [True] * 3},
            "second",
        ),
        (
            {
                "correctness_math_verify": [True, True, True],
                "is_reasoning_complete": [False, False, True],
            },
            "third",
        ),
        # llama speaks only where math_verify does not.
        ({"correctness_llama": [False, True, True], "is_reasoning_complete": [True] * 3}, "second"),
        (
            {
                "correctness_math_verify": [False, None, True],
                "correctness_llama": [True, True, True],
                "is_reasoning_complete": [True] * 3,
            },
            "second",
        ),
        (
            {
                "correctness_math_verify": [False] * 3,
                "correctness_llama": [True] * 3,
                "is_reasoning_complete": [True] * 3,
            },
            "",
        ),
        ({"correctness_math_verify": [True] * 3, "is_reasoning_complete": None}, ""),
        (
            {
                "correctness_math_verify": [True] * 3,
                "is_reasoning_complete": None,
                "generations": ["<think>a", "<think>a</think>b", "c"],
            },
            "<think>a</think>b",
        ),
        (
            {"correctness_math_verify": [True], "is_reasoning_complete": [False, True, True]},
            "",
        ),  # lists of other lengths
        (
            {
                "correctness_math_verify": [True] * 9,
                "is_reasoning_complete": [True] * 9,
                "generations": [None, " ", "x"],
            },
            "x",
        ),
        (
            {
                "correctness_math_verify": [True] * 3,
                "is_reasoning_complete": [True] * 3,
                "generations": None,
            },
            "",
        ),
        ({"correctness_math_verify": "yes", "is_reasoning_complete": 1, "generations": "text"}, ""),
    ],
)
def test_openr1_math_takes_the_first_complete_and_correct_generation(columns, response):
    assert get_mapper("openr1_math")(openr1(**columns)) == {
        "question": "2+2?",
        "solution": "4",
        "response": response,
    }


def test_openr1_math_gold_where_the_answer_is_empty():
    assert get_mapper("openr1_math")(openr1(answer=None))["solution"] == "5"


def test_reasoning_columns_by_default_and_by_name():
    row = {"Question": " q ", "Complex_CoT": "why", "Response": "a"}
    assert get_mapper("reasoning_columns")(row) == {
        "question": "q",
        "reasoning": "why",
        "solution": "a",
    }
    config = {
        "question_column": "problem",
        "reasoning_column": "deepseek_reasoning",
        "answer_column": "deepseek_solution",
    }
    mapper = get_mapper("reasoning_columns", **config)
    row = {"problem": "q", "deepseek_reasoning": "why", "deepseek_solution": "a"}
    assert mapper(row) == {"question": "q", "reasoning": "why", "solution": "a"}
    assert mapper.missing(["problem", "Response"]) == ["deepseek_solution", "deepseek_reasoning"]


def test_generated_reads_what_generate_writes():
    row = {
        "question": "q",
        "response": " text\n",
        "solution": 4,
        "scorer": None,
        "task": "sums",
        "pass_rate": 0.5,
        "tokens": 3,
        "scores": {},
    }
    mapped = {
        "question": "q",
        "response": " text\n",
        "solution": "4",
        "scorer": "",
        "task": "sums",
        "well_formed": True,
    }
    assert get_mapper("generated")(row) == mapped
    # Prompt-only data has no response, and general data no gold.
    assert get_mapper("generated", well_formed=False)({"question": "q"}) == {
        "question": "q",
        "solution": "",
        "well_formed": False,
    }
    assert get_mapper("generated")({"question": "q", "response": None})["response"] == ""
    assert get_mapper("generated").missing(["response"]) == ["question"]


def test_generated_rows_of_another_format_are_written_anew():
    mapper = get_mapper("generated", written_in="special_token")
    row = {
        "question": "q",
        "response": "|special_token|9 times 8|special_token|Summary: 72",
        "solution": "72",
    }
    assert mapper(row) == {
        "question": "q",
        "solution": "72",
        "well_formed": True,
        "reasoning": "9 times 8",
        "answer": "72",
    }
    with pytest.raises(SkipRow, match="special_token"):
        mapper({**row, "response": "<think>\n9 times 8\n</think>\n<answer>\n72\n</answer>"})
    with pytest.raises(RecipeError, match="Did you mean 'special_token'"):
        get_mapper("generated", written_in="special_tokens")


def countdown_scorer(numbers, target):
    return json.dumps({"countdown": {"numbers": numbers, "target": target}})


@needs("countdown")
def test_countdown_asks_and_says_how_it_is_judged():
    row = {"nums": [44, 19, 35], "target": 98}
    mapped = get_mapper("countdown")(row)
    assert mapped == {
        "question": "Make 98 out of the numbers [44, 19, 35]. Use "
        "each of them exactly once, with +, -, "
        "*, / and brackets as needed. "
        "Answer with the expression alone.",
        "solution": "",
        "scorer": countdown_scorer([44, 19, 35], 98),
        "task": "countdown",
    }
    assert verification.score([mapped["scorer"]] * 3, ["44 + 19 + 35", "98", None]) == [
        True,
        False,
        False,
    ]
    own = get_mapper("countdown", template="{target} from {numbers}: {a} \\frac{1}{2}")
    assert own(row)["question"] == "98 from [44, 19, 35]: {a} \\frac{1}{2}"
    array = get_mapper("countdown", template="{target}: {numbers}", array=True)
    assert [array({"nums": nums, "target": 98})["question"] for nums in ([5, 9], [34, 2, 100])] == [
        "98: [5 9]",
        "98: [ 34   2 100]",
    ]
    assert get_mapper("countdown").missing(["nums", "question"]) == ["target"]


@needs("countdown")
def test_countdown_works_a_solution_out():
    mapped = get_mapper("countdown")({"nums": [8, 2, 4], "target": 24, "expression": "(8 - 2) * 4"})
    assert mapped["solution"] == "(8 - 2) * 4"
    assert mapped["reasoning"].splitlines() == ["8 - 2 = 6", "6 * 4 = 24"]
    assert "answer" not in mapped
    assert (
        get_mapper("countdown")({"nums": [3, 5], "target": 15, "expression": "3 * 5"})["reasoning"]
        == "3 * 5 = 15"
    )
    assert "reasoning" not in get_mapper("countdown")(
        {"nums": [3, 5], "target": 15, "expression": None}
    )


@needs("countdown")
def test_countdown_searches_for_a_solution():
    mapped = get_mapper("countdown", reasoning="search")(
        {"nums": [5, 3], "target": 8, "expression": "3 + 5"}
    )
    # The answer is the one that the search ends with.
    assert (mapped["reasoning"], mapped["answer"]) == ("5 + 3 = 8, yes", "5 + 3")
    with pytest.raises(SkipRow, match="no steps in whole numbers"):
        get_mapper("countdown", reasoning="search")(
            {"nums": [3, 5], "target": -2, "expression": "3 - 5"}
        )


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@needs("countdown")
def test_countdown_works_out_the_configured_share_of_rows(share):
    mapper = get_mapper("countdown", worked_share=share)
    rows = [
        {"nums": [a, b], "target": a + b, "expression": f"{a} + {b}"}
        for a in range(20)
        for b in range(20)
    ]
    mapped = [mapper(row) for row in rows]
    hasty = [fields for fields in mapped if "answer" in fields]
    # 400 independent draws: within 4 standard deviations (at most 0.025 each).
    assert len(rows) - len(hasty) == pytest.approx(400 * share, abs=0 if share in (0, 1) else 40)
    assert mapped == [mapper(row) for row in rows]
    for fields in hasty:
        assert fields["reasoning"].startswith(f"Perhaps {fields['answer']} is ")
    # A guess uses the numbers in their order with one sign of three: a third of them adds, and is
    # right.
    right = verification.score(
        [fields["scorer"] for fields in hasty], [fields["answer"] for fields in hasty]
    )
    assert not hasty or 0.25 < sum(right) / len(hasty) < 0.45


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"template": "Make {target}."},
            "mapper_config: template: must contain {numbers} and {target}, got 'Make {target}.'",
        ),
        ({"worked_shar": 1}, "unknown key of mapper 'countdown' 'worked_shar'"),
        (
            {"reasoning": "serch"},
            "mapper_config: unknown reasoning 'serch'. Did you mean 'search'?",
        ),
    ],
)
@needs("countdown")
def test_a_countdown_mapper_that_cannot_be_built(config, message):
    with pytest.raises(RecipeError) as error:
        get_mapper("countdown", **config)
    assert message in str(error.value)


def verl_row(truth, prompt=None, source="yolo/multiply-3_digit"):
    prompt = prompt or [{"role": "user", "content": " 12*34?\n<think>"}]
    return {
        "data_source": source,
        "prompt": prompt,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
    }


@pytest.mark.parametrize(
    ("truth", "solution"),
    [(408, "408"), (0, "0"), (" 408 ", "408"), ("\\frac{1}{2}", "\\frac{1}{2}"), (0.5, "0.5")],
)
def test_verl_takes_plain_ground_truths_as_solutions(truth, solution):
    mapped = {
        "question": " 12*34?\n<think>",
        "task": "yolo/multiply-3_digit",
        "solution": solution,
    }  # the question verbatim
    assert get_mapper("verl")(verl_row(truth)) == mapped


@needs("countdown")
def test_verl_takes_puzzles_for_countdown():
    mapped = get_mapper("verl")(verl_row({"target": 31, "numbers": [7, 4, 3]}, source="countdown"))
    assert mapped == {
        "question": " 12*34?\n<think>",
        "task": "countdown",
        "solution": "",
        "scorer": countdown_scorer([7, 4, 3], 31),
    }
    assert verification.score([mapped["scorer"]], ["7*4+3"]) == [True]


@pytest.mark.parametrize(
    "truth",
    [
        None,
        "",
        " ",
        True,
        [],
        ["408"],
        {},
        {"target": 31, "numbers": None},
        {"target": 31, "numbers": ["7"]},
    ],
)
def test_verl_leaves_other_ground_truths_out(truth):
    with pytest.raises(SkipRow, match="no ground_truth that is a number"):
        get_mapper("verl")(verl_row(truth))
    with pytest.raises(SkipRow, match="no ground_truth"):
        get_mapper("verl")({**VERL_ROW, "reward_model": truth})


def test_verl_keeps_earlier_turns_and_reads_a_text():
    turns = [{"role": "system", "content": "Be brief."}, *CALL, {"role": "user", "content": "3+3?"}]
    mapped = get_mapper("verl")(verl_row("6", turns))
    assert (mapped["question"], mapped["messages"]) == ("3+3?", turns)
    assert get_mapper("verl")(verl_row("6", "3+3?\n")) == {
        "question": "3+3?\n",
        "task": "yolo/multiply-3_digit",
        "solution": "6",
    }


@given(prompt=JSON | TURNS, rule=JSON, truth=JSON)
def test_verl_maps_or_skips_whatever_is_there(prompt, rule, truth):
    for held in (rule, {"ground_truth": truth}):
        try:
            mapped = get_mapper("verl")(
                {"data_source": "x", "prompt": prompt, "reward_model": held}
            )
        except SkipRow as reason:
            assert str(reason)
        else:
            assert mapped["question"].strip() and mapped["solution"] + mapped.get("scorer", "")


def test_auto_with_a_prompt_column_means_prompt_solution():
    mapper = get_mapper("auto", ["text", "gold"], prompt_column="text", solution_column="gold")
    assert (mapper.name, mapper.prompt_column, mapper.solution_column) == (
        "prompt_solution",
        "text",
        "gold",
    )


@pytest.mark.parametrize(
    ("name", "config", "parts"),
    by_mapper(
        [
            ("auto", {}, ["no mapper fits the columns ['a', 'b']", "prompt_column"]),
            ("gms8k", {}, ["unknown mapper 'gms8k'", "'gsm8k'"]),
            ("arithmetic", {"worked_shar": 1}, ["key of mapper 'arithmetic'", "worked_share"]),
            (
                "r1_recipes.common.errors:nearest",
                {},
                ["must be a subclass of r1_recipes.data.Mapper", "Fix: class NAME(Mapper)"],
            ),
        ]
    ),
)
def test_a_mapper_that_cannot_be_built(name, config, parts):
    with pytest.raises(RecipeError) as error:
        get_mapper(name, ["a", "b"], **config)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("decorated", ["", "@dataclass(frozen=True)\n"])
def test_a_mapper_from_the_working_directory(tmp_path, monkeypatch, decorated):
    (tmp_path / "own_mapper_file.py").write_text(
        "from dataclasses import dataclass\n"
        "from r1_recipes.data import Mapper, register_mapper\n\n"
        f"@register_mapper('own')\n{decorated}class Own(Mapper):\n"
        "    suffix: str = ''\n    columns = ('q', 'a')\n\n"
        "    def __call__(self, row):\n        return {'question': row['q'] + self.suffix, "
        "'solution': row['a']}\n"
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
        MAPPERS._objects.pop("own", None)
        sys.modules.pop("own_mapper_file", None)


def test_a_taken_name_is_refused():
    with pytest.raises(ValueError, match=r"'gsm8k' is taken by .*:GSM8K"):

        @register_mapper("gsm8k")
        class Other(Mapper):
            pass


@pytest.mark.parametrize("value", [7, 2.5, 0])
def test_a_question_may_be_a_number(value):
    assert get_mapper("prompt_solution")({"prompt": value, "solution": "1"})["question"] == str(
        value
    )
    with pytest.raises(SkipRow, match="column 'prompt' is empty"):
        get_mapper("prompt_solution")({"prompt": float("nan"), "solution": "1"})


def _said(role, words):
    return {"role": role, "content": words}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Rain?", "chosen": "Water.", "rejected": "No."},
        {
            "prompt": [_said("user", "Rain?")],
            "chosen": [_said("assistant", "Water.")],
            "rejected": [_said("assistant", "No.")],
        },
        # The whole conversation on both sides; Zephyr's UltraFeedback has its prompt beside it,
        # too.
        {
            "chosen": [_said("user", "Rain?"), _said("assistant", "Water.")],
            "rejected": [_said("user", "Rain?"), _said("assistant", "No.")],
        },
        {
            "prompt": "Rain?",
            "chosen": [_said("user", "Rain?"), _said("assistant", "Water.")],
            "rejected": [_said("user", "Rain?"), _said("assistant", "No.")],
        },
    ],
)
def test_preference_pairs_of_every_shape(row):
    mapped = get_mapper("preference")(row)
    assert (mapped["question"], mapped["response"], mapped["rejected"]) == (
        "Rain?",
        "Water.",
        "No.",
    )
    assert mapped["messages"] == [_said("user", "Rain?")]


def test_a_pair_after_a_dialogue_keeps_its_system_message_and_its_wrappers():
    opening = [
        _said("system", "Be brief."),
        _said("user", "Rain?"),
        _said("assistant", "Water."),
        _said("user", "Why?"),
    ]
    wrapped = "<|begin_of_thought|>a<|end_of_thought|><|begin_of_solution|>b<|end_of_solution|>"
    row = {
        "prompt": opening,
        "chosen": [_said("assistant", wrapped)],
        "rejected": [_said("assistant", "c")],
    }
    mapped = get_mapper("preference")(row)
    assert mapped["messages"] == opening and mapped["response"] == wrapped


def test_the_safer_response_is_chosen():
    row = {
        "prompt": "q",
        "response_0": "a",
        "response_1": "b",
        "better_response_id": 0,
        "safer_response_id": 1,
    }
    assert get_mapper("safe_rlhf")(row) == {"question": "q", "response": "b", "rejected": "a"}
    asked = {"prompt": "q", "response_0": "a", "response_1": "b"}
    assert [
        get_mapper("safe_rlhf")({**asked, "safer_response_id": value})["response"]
        for value in (1.0, "1", "0", 0.0)
    ] == [*"bbaa"]
    with pytest.raises(SkipRow, match="the responses are equal"):
        get_mapper("safe_rlhf")({**asked, "response_1": "a", "safer_response_id": 1})


def test_turns_in_the_cells_of_a_table():
    chosen, rejected = (
        [_said("user", "Rain?"), _said("assistant", words)] for words in ("Water.", "No.")
    )
    mapped = get_mapper("preference")(
        {"chosen": json.dumps(chosen), "rejected": json.dumps(rejected), "system": "Be brief."}
    )
    assert (
        mapped["messages"] == [_said("system", "Be brief."), _said("user", "Rain?")]
        and mapped["rejected"] == "No."
    )
    assert get_mapper("conversations")({"messages": json.dumps(chosen)})["response"] == "Water."
    with pytest.raises(SkipRow, match="column 'chosen' holds messages as text that is not JSON"):
        get_mapper("preference")(
            {"prompt": "Rain?", "chosen": str(chosen), "rejected": str(rejected)}
        )
    one = {
        "prompt": _said("user", "Rain?"),
        "chosen": _said("assistant", '{"score": 8}'),
        "rejected": '[{"name": 1}]',
    }
    assert get_mapper("preference")(one)["rejected"] == '[{"name": 1}]'  # an answer in JSON


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_prompt_of_another_conversation(side):
    other = [_said("user", "Snow?"), _said("assistant", "No.")]
    row = {
        "prompt": "Rain?",
        **{
            key: [_said("user", "Rain?"), _said("assistant", key)] for key in ("chosen", "rejected")
        },
    }
    assert (
        get_mapper("preference")({**row, "prompt": [_said("system", "s"), _said("user", "Rain?")]})[
            "messages"
        ][0]["content"]
        == "s"
    )
    with pytest.raises(SkipRow, match="do not start with column 'prompt'"):
        get_mapper("preference")({**row, side: other})


def test_calls_of_tools_are_not_lost_in_silence():
    called = {**_said("assistant", None), "tool_calls": [{"function": {"name": "look"}}]}
    turns = [
        _said("user", "Rain?"),
        called,
        {**_said("tool", "Wet."), "name": "look"},
        _said("assistant", "Yes."),
        _said("user", "Ah."),
    ]
    for whole in (False, True):
        found = get_mapper("conversations", whole=whole)({"messages": turns, "system": "Look."})[
            "turns"
        ]
        expected = turns if whole else [_said("system", "Look."), *turns[:4]]
        assert found == [{**turn, "content": turn["content"] or ""} for turn in expected]
    with pytest.raises(SkipRow, match="a message has tool_calls, which would be lost"):
        get_mapper("preference")({"chosen": turns, "rejected": turns})
    assert (
        get_mapper("conversations")(
            {"messages": [{**turn, "tool_calls": None} for turn in turns[::3]]}
        )["response"]
        == "Yes."
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"answer": "notfound", "solution": r"so \boxed{4}"}, "4"),
        ({"answer": "notfound", "solution": "so"}, "no reference answer"),
        ({"answer": "proof", "solution": r"so \boxed{4}"}, "a proof"),
    ],
)
def test_words_that_numina_math_has_in_place_of_an_answer(row, expected):
    if len(expected) == 1:
        assert get_mapper("math")({"problem": "2+2?", **row})["solution"] == expected
    else:
        with pytest.raises(SkipRow, match=expected):
            get_mapper("math")({"problem": "2+2?", **row})


@pytest.mark.parametrize("key", ["thinking", "reasoning", "reasoning_content"])
def test_reasoning_beside_a_message_is_not_lost_in_silence(key):
    answer = {"role": "assistant", "content": "4", key: "two and two"}
    with pytest.raises(SkipRow, match=f"a message has {key}, which would be lost"):
        get_mapper("conversations")({"messages": [{"role": "user", "content": "2+2?"}, answer]})


def test_arguments_of_a_call_are_those_that_were_written():
    """OpenAI has them as text. A null that was written stays: the call had it."""
    functions = [
        {"name": "weather", "arguments": '{"city": "Rome"}'},
        {"name": "weather", "arguments": {"city": "Rome", "x": None}},
        {"name": "weather", "arguments": "Rome"},
    ]
    calls = [{"type": "function", "function": function} for function in functions]
    messages = [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "Rain."},
        {"role": "assistant", "content": "Rain."},
    ]
    turns = get_mapper("conversations", whole=True)({"messages": messages})["turns"]
    arguments = [call["function"]["arguments"] for call in turns[1]["tool_calls"]]
    assert arguments == [{"city": "Rome"}, {"city": "Rome", "x": None}, "Rome"]
