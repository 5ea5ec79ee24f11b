"""Source rows -> prompts and targets: mapping, selection, mixtures, and the count of what was left
out.
"""

import json
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
from datasets import Dataset

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import MAPPERS, Mapper, load_dataset, register_mapper
from r1_recipes.data.lengths import TokenCounter
from r1_recipes.data.load import LoadReport, build_prompt, drop_overlap
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.recipe.types import RecipeArguments
from tests.support.needs import needs

FMT = get_response_format("think_answer")


def arguments(**keys):
    return RecipeArguments(**{"dataset_name": "rows", **keys})


def gsm8k(number, *, gold=True, words=0):
    question = f"Ana buys {number} pens. " + "More " * words + "How many?"
    return {
        "question": question,
        "answer": f"She buys {number}." + (f"\n#### {number}" if gold else ""),
    }


def golds(dataset):
    return [row["solution"] for row in dataset]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@needs("code")
def test_programs_are_asked_for_by_the_column_that_the_recipe_names():
    info = {"language": "python", "test_cases": [{"input": "1", "output": "2"}]}
    rows = Dataset.from_list(
        [{"prompt_python3": "Add one.", "problem": "Long story.", "verification_info": info}]
    )
    dataset, _ = load_dataset(
        arguments(mapper="verifiable_code", prompt_column="prompt_python3"), FMT, "grpo", rows=rows
    )
    assert (dataset[0]["prompt"][-1]["content"], dataset[0]["verification_info"]) == (
        "Add one.",
        info,
    )
    with pytest.raises(
        RecipeError, match="needs column 'prompt'; the source has the columns prompt_python3"
    ):
        load_dataset(
            arguments(mapper="verifiable_code", prompt_column="prompt"), FMT, "grpo", rows=rows
        )


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """One token a byte, ChatML around the turns."""
    from transformers import AutoTokenizer

    from r1_recipes.models.smoke import build_tiny_model

    return AutoTokenizer.from_pretrained(build_tiny_model(tmp_path_factory.mktemp("tiny"), {}))


def test_grpo_rows_carry_prompt_solution_and_the_source_s_other_columns():
    rows = Dataset.from_list([{**gsm8k(3), "level": 2}, {**gsm8k(4), "level": None}])
    dataset, report = load_dataset(arguments(), FMT, "grpo", rows=rows)
    assert dataset.column_names == ["answer", "level", "prompt", "solution"]
    assert dataset[0] == {
        "answer": "She buys 3.\n#### 3",
        "level": 2,
        "prompt": [
            {"role": "system", "content": FMT.system_prompt},
            {"role": "user", "content": "Ana buys 3 pens. How many?"},
        ],
        "solution": "3",
    }
    assert (report.read, report.kept, dict(report.dropped)) == (2, 2, {})
    assert str(report) == "2 of 2 rows kept"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "mapper", ["gsm8k", "math", pytest.param("arithmetic", marks=needs("reasoning_gym"))]
)
def test_sft_targets_are_what_the_format_renders(name, mapper):
    fmt = FORMATS[name]
    examples = MAPPERS[mapper].examples
    columns = dict.fromkeys(key for row in examples for key in row)
    rows = Dataset.from_list([{key: row.get(key) for key in columns} for row in examples])
    try:
        dataset, _ = load_dataset(arguments(mapper=mapper), fmt, "sft", rows=rows)
    except RecipeError as error:  # a format may be unable to write a row, and says so
        assert f"cannot be written in format {name!r}" in str(error)
        return
    assert dataset.column_names == ["prompt", "completion"]
    mapped = [MAPPERS[mapper]()(row) for row in examples]
    targets = {fmt.render(row["reasoning"], row["solution"]) for row in mapped}
    for row in dataset:
        assert [message["role"] for message in row["completion"]] == ["assistant"]
        assert row["completion"][0]["content"] in targets
        assert row["prompt"][-1]["role"] == "user"


def turn(role, content):
    return {"role": role, "content": content}


ASKED, ANSWERED = turn("user", "2+2?"), turn("assistant", "4")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED, ANSWERED]},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": [ASKED], "completion": [ANSWERED]},
    ],
)
def test_sft_takes_conversations_as_they_are(row):
    empty = {key: [] for key in row}
    rows = Dataset.from_list([{**row, "source": "x"}, {**empty, "source": "y"}])
    # No instruction of the recipe's, no shape that must hold; the last assistant's turn is the
    # target.
    dataset, report = load_dataset(arguments(), FMT, "sft", rows=rows)
    assert [dict(item) for item in dataset] == [{"prompt": [ASKED], "completion": [ANSWERED]}]
    assert (report.read, report.kept, report.first_index) == (
        2,
        1,
        {f"column {next(iter(row))!r} is empty": 1},
    )


def test_sft_takes_pairs_of_texts_as_one_turn_each():
    rows = Dataset.from_list(
        [{"prompt": "2+2?", "completion": "4", "n": 1}, {"prompt": "", "completion": "x", "n": 2}]
    )
    dataset, report = load_dataset(arguments(), FMT, "sft", rows=rows)
    assert [dict(item) for item in dataset] == [{"prompt": [ASKED], "completion": [ANSWERED]}]
    assert report.first_index == {"a message is empty": 1}


def test_the_history_of_a_conversation_is_kept():
    turns = [
        turn("system", "Be brief."),
        ASKED,
        ANSWERED,
        turn("user", "And 3+3?"),
        turn("assistant", "6"),
        turn("user", "Thanks."),
    ]
    rows = Dataset.from_list([{"messages": turns}])
    (row,) = load_dataset(arguments(), FMT, "sft", rows=rows)[0]
    assert row == {"prompt": turns[:4], "completion": [turns[4]]}
    # By name, the mapper brings the recipe's instruction, which replaces the row's own; an empty
    # one leaves it.
    args = arguments(mapper="conversations", mapper_config={"well_formed": False})
    (row,) = load_dataset(args, FMT, "sft", rows=rows)[0]
    assert row == {
        "prompt": [turn("system", FMT.system_prompt), *turns[1:4]],
        "completion": [turns[4]],
    }
    (row,) = load_dataset(args, replace(FMT, system_prompt=""), "sft", rows=rows)[0]
    assert row["prompt"] == turns[:4]
    (row,) = load_dataset(args, FMT, "distill", rows=rows)[0]
    assert row == {"prompt": [turn("system", FMT.system_prompt), *turns[1:4]]}


BOXED = FORMATS["think_boxed"]
THOUGHT = "<think>\n2 and 2.\n</think>\n\\boxed{4}"


def generated(response, **columns):
    return {"question": "2+2?", "response": response, "solution": "4", "pass_rate": 1.0, **columns}


def test_a_response_is_the_target_as_it_is():
    response = "<think>two\n\nand two</think>\n\nSo it is  $\\boxed{4}$.\n"
    dataset, _ = load_dataset(
        arguments(), BOXED, "sft", rows=Dataset.from_list([generated(response)])
    )
    assert dataset.column_names == ["prompt", "completion"]
    assert dataset[0] == {
        "prompt": [turn("system", BOXED.system_prompt), turn("user", "2+2?")],
        "completion": [turn("assistant", response)],
    }


def test_a_response_in_another_shape_is_counted_and_kept_only_where_the_recipe_says_so():
    rows = [
        THOUGHT,
        "just \\boxed{4}",
        "<think>cut",
        THOUGHT + "\n\\boxed{5}",
        "",
        None,
        "<think></think>\\boxed{4}",
    ]
    source = Dataset.from_list([generated(response) for response in rows])
    dataset, report = load_dataset(arguments(), BOXED, "sft", rows=source)
    assert [row["completion"][0]["content"] for row in dataset] == [THOUGHT]
    assert report.dropped == {
        "response is not in format 'think_boxed'": 4,
        "no response to train on": 2,
    }
    assert report.first_index == {
        "response is not in format 'think_boxed'": 1,
        "no response to train on": 4,
    }
    dataset, report = load_dataset(
        arguments(mapper="generated", mapper_config={"well_formed": False}),
        BOXED,
        "sft",
        rows=source,
    )
    assert [row["completion"][0]["content"] for row in dataset] == [text for text in rows if text]


@pytest.mark.parametrize(
    ("prefill", "response", "target"),
    [
        ("<think>\n", THOUGHT, THOUGHT),  # it is there already
        ("<think>\n", "<think>2 and 2.</think>\\boxed{4}", "<think>\n2 and 2.</think>\\boxed{4}"),
        (
            "<think>\n",
            "\n<think> \n\n2 and 2.</think>\\boxed{4}",
            "<think>\n2 and 2.</think>\\boxed{4}",
        ),  # white space once
        (
            "<think>\n",
            "2 and 2.\n</think>\n\\boxed{4}",
            THOUGHT,
        ),  # from a server whose template opens the reasoning
        ("<think>", THOUGHT, THOUGHT),
        ("Let me see.\n<think>", THOUGHT, "Let me see.\n" + THOUGHT),
        ("Let me see.\n<think>", "Let me see.\n" + THOUGHT, "Let me see.\n" + THOUGHT),
        ("Let me see.", THOUGHT, None),
        ("<think>\n", "2 and 2 \\boxed{4}", None),
        ("<think>\n", "a <think>b</think> \\boxed{4}", None),
    ],
)
def test_a_target_starts_with_the_prefill_that_the_prompt_ends_in(prefill, response, target):
    fmt = replace(BOXED, prefill=prefill)
    rows = Dataset.from_list([generated(response)])
    if target is None:
        with pytest.raises(RecipeError, match="response does not start with the prefill"):
            load_dataset(
                arguments(mapper="generated", mapper_config={"well_formed": False}),
                fmt,
                "sft",
                rows=rows,
            )
    else:
        assert load_dataset(arguments(), fmt, "sft", rows=rows)[0][0]["completion"] == [
            turn("assistant", target)
        ]


def test_a_verified_generation_is_the_target_and_grpo_takes_every_row():
    (row, _) = MAPPERS["openr1_math"].examples
    wrong = {**row, "correctness_math_verify": [False, False]}
    rows = Dataset.from_list([row, wrong])
    dataset, report = load_dataset(arguments(mapper="openr1_math"), BOXED, "sft", rows=rows)
    assert [item["completion"][0]["content"] for item in dataset] == [row["generations"][1]]
    assert report.first_index == {"no response to train on": 1}
    dataset, _ = load_dataset(arguments(keep_columns=[]), BOXED, "grpo", rows=rows)
    assert dataset.column_names == ["prompt", "solution"] and golds(dataset) == ["4", "4"]


def test_reasoning_and_answer_columns_are_written_in_the_format():
    rows = Dataset.from_list([{"q": "2+2?", "cot": "2 and 2.", "out": "4"}])
    config = {"question_column": "q", "reasoning_column": "cot", "answer_column": "out"}
    (row,) = load_dataset(
        arguments(mapper="reasoning_columns", mapper_config=config), FMT, "sft", rows=rows
    )[0]
    assert row["completion"] == [turn("assistant", FMT.render("2 and 2.", "4"))]


# What a corpus may hold where a conversation should be, each with the reason that it is counted
# under.
STRANGE = (
    "the role of a message must be one of system, user (human), assistant (gpt), got {} in column "
    "'messages'. "
)
STRANGE += "Fix: rename the role, or store the text instead of a mapping"
HOSTILE = [
    (None, "column 'messages' is empty"),
    ([], "column 'messages' is empty"),
    ([ASKED], "no assistant message"),
    ([ANSWERED], "no user message before the answer"),
    ([ASKED, turn("assistant", " \n")], "a message is empty"),
    ([turn("user", ""), ANSWERED], "a message is empty"),
    ([ASKED, turn("assistant", None)], "the content of a message is not text"),
    ([ASKED, turn("narrator", "4")], STRANGE.format("'narrator'")),
    ([ASKED, turn(None, "4")], STRANGE.format(None)),
    ([ASKED, ASKED, ANSWERED], "the messages do not alternate between user and assistant"),
    (
        [ASKED, turn("system", "s"), ANSWERED],
        "the messages do not alternate between user and assistant",
    ),
    ([turn("system", "s")], "no assistant message"),
]


def test_malformed_conversations_are_counted_and_named():
    rows = Dataset.from_list(
        [{"messages": turns} for turns, _ in HOSTILE] + [{"messages": [ASKED, ANSWERED]}]
    )
    dataset, report = load_dataset(arguments(), FMT, "sft", rows=rows)
    assert [dict(row) for row in dataset] == [{"prompt": [ASKED], "completion": [ANSWERED]}]
    first = {}
    for index, (_, reason) in enumerate(HOSTILE):
        first.setdefault(reason, index)
    assert report.first_index == first
    assert sum(report.dropped.values()) == len(HOSTILE)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("text", "column 'messages' is not a list of messages"),
        (["a", "b"], "column 'messages' is not a list of messages"),
        (7, "column 'messages' is not a list of messages"),
        ([{"role": 1, "content": "x"}], STRANGE.format(1)),
        ([{"role": "user", "content": ["x"]}], "the content of a message is not text"),
        (
            {"role": ["user", "assistant"], "content": ["2+2?"]},
            "the content of a message is not text",
        ),
        ({"role": "user", "content": "x"}, "no assistant message"),
    ],
)
def test_a_column_of_another_type_is_counted_too(column, reason):
    with pytest.raises(RecipeError, match="all rows were dropped: 0 of 1 rows kept") as error:
        load_dataset(arguments(), FMT, "sft", rows=Dataset.from_list([{"messages": column}]))
    assert reason in str(error.value)


def test_turns_may_be_lists_side_by_side():
    rows = Dataset.from_list(
        [{"messages": {"role": ["user", "assistant"], "content": ["2+2?", "4"]}}]
    )
    assert load_dataset(arguments(), FMT, "sft", rows=rows)[0][0] == {
        "prompt": [ASKED],
        "completion": [ANSWERED],
    }


def test_turns_with_columns_of_both_kinds():
    mixed = [
        {"role": None, "from": "human", "content": None, "value": "2+2?"},
        {"role": "assistant", "from": None, "content": "4", "value": None},
    ]
    (row,) = load_dataset(arguments(), FMT, "sft", rows=Dataset.from_list([{"messages": mixed}]))[0]
    assert row == {"prompt": [ASKED], "completion": [ANSWERED]}


class ByJSON(Mapper):
    """Reads what Arrow cannot hold."""

    def __call__(self, row):
        fields = json.loads(row["data"])
        return {"question": fields["question"], "solution": "1", "note": fields.get("note")}


def test_a_row_that_a_mapper_fails_on_is_counted(caplog):
    good = '{"question": "q", "note": "n"}'
    data = [good, "no json", '{"other": 1}', '{"question"', "[]"]
    dataset, report = load_dataset(
        arguments(mapper=f"{__name__}:ByJSON"),
        FMT,
        "grpo",
        rows=Dataset.from_list([{"data": text} for text in data]),
    )
    assert len(dataset) == 1
    line = ByJSON.__call__.__code__.co_firstlineno
    assert report.failed == 4 and report.dropped == {
        f"mapper 'ByJSON' fails with JSONDecodeError ({__file__}:{line + 1})": 2,
        f"mapper 'ByJSON' fails with KeyError ({__file__}:{line + 2})": 1,
        f"mapper 'ByJSON' fails with TypeError ({__file__}:{line + 2})": 1,
    }
    assert [*report.first_index.values()] == [1, 2, 4]
    assert (
        "dataset_name: row 1: JSONDecodeError: Expecting value" in caplog.text
        and "row 3" not in caplog.text
    )


class Returning(Mapper):
    """Returns what no mapper should, in the second row."""

    def __call__(self, row):
        return {"question": row["data"]} if row["data"] == "0" else RETURNED[row["data"]][0]


RETURNED = {
    "none": (None, "got None for row 1"),
    "keys": (
        {"frage": "1+1?", "antwort": "2"},
        "got one with the keys 'frage', 'antwort' for row 1",
    ),
    "empty": ({}, "got one with the keys none for row 1"),
    "text": ("1+1?", "got '1+1?' for row 1"),
    "number": ({"question": 7, "solution": "7"}, "got question 7 for row 1"),
    "nothing": ({"question": None}, "got question None for row 1"),
}


@pytest.mark.parametrize("kind", RETURNED)
@pytest.mark.parametrize("method", ["grpo", "sft", "generate"])
def test_what_a_mapper_of_ones_own_returns_is_checked(kind, method):
    told = RETURNED[kind][1]
    rows = Dataset.from_list([{"data": "0"}, {"data": kind}])
    with pytest.raises(RecipeError) as refused:
        load_dataset(arguments(mapper=f"{__name__}:Returning"), FMT, method, rows=rows)
    place = (
        f"mapper 'Returning' ({__file__}:{Returning.__call__.__code__.co_firstlineno}): must "
        f"return a dict"
    )
    assert (
        str(refused.value).startswith(place)
        and told in str(refused.value)
        and "raise SkipRow" in str(refused.value)
    )


def test_distillation_takes_prompts_alone():
    dataset, _ = load_dataset(
        arguments(), FMT, "distill", rows=Dataset.from_list([{**gsm8k(3), "level": 2}])
    )
    assert dataset.column_names == ["prompt"]
    assert dataset[0]["prompt"][-1] == turn("user", "Ana buys 3 pens. How many?")


def test_rows_to_generate_from_keep_every_field():
    rows = Dataset.from_list([{**gsm8k(3), "level": 2}])
    dataset, _ = load_dataset(arguments(), FMT, "generate", rows=rows)
    assert dataset[0] == {
        "answer": "She buys 3.\n#### 3",
        "level": 2,
        "prompt": build_prompt("Ana buys 3 pens. How many?", FMT),
        "question": "Ana buys 3 pens. How many?",
        "solution": "3",
        "reasoning": "She buys 3.",
    }


@pytest.mark.parametrize(
    ("template", "asked"),
    [
        ("Rewrite: {question}", "Rewrite: 2+2?"),
        (
            "{question}\nDraft: {response}\nGold: {solution}",
            "2+2?\nDraft: see {solution} and {question}\nGold: 4",
        ),  # filled once
        (
            r"Put {question} in \boxed{} as $\frac{1}{2}$, {unknown}",
            r"Put 2+2? in \boxed{} as $\frac{1}{2}$, {unknown}",
        ),
        ("{question} {level} {nothing} {tags}", '2+2? 3  ["é"]'),
        ("{{question}}", "{2+2?}"),
        ("{ question } {question}", "{ question } 2+2?"),
    ],
)
def test_a_prompt_template_is_filled_by_name(template, asked):
    rows = Dataset.from_list(
        [generated("see {solution} and {question}", level=3, nothing=None, tags=["é"])]
    )
    (row,) = load_dataset(arguments(prompt_template=template), FMT, "generate", rows=rows)[0]
    assert row["prompt"][-1] == turn("user", asked)
    assert (row["question"], row["response"]) == ("2+2?", "see {solution} and {question}")


def test_a_prompt_template_without_question_is_refused():
    with pytest.raises(
        RecipeError,
        match=r"prompt_template: must contain \{question\}, .*got 'Say \{answer\}'",
    ):
        load_dataset(
            arguments(prompt_template="Say {answer}"),
            FMT,
            "generate",
            rows=Dataset.from_list([gsm8k(1)]),
        )


def test_a_prompt_template_wraps_the_last_of_several_questions():
    turns = [ASKED, ANSWERED, turn("user", "And 3+3?"), turn("assistant", "6")]
    (row,) = load_dataset(
        arguments(prompt_template="Now: {question}", mapper="conversations"),
        FMT,
        "generate",
        rows=Dataset.from_list([{"messages": turns}]),
    )[0]
    assert row["prompt"] == [
        turn("system", FMT.system_prompt),
        ASKED,
        ANSWERED,
        turn("user", "Now: And 3+3?"),
    ]
    assert (row["question"], row["response"]) == ("And 3+3?", "6")
    assert "messages" not in row and "well_formed" not in row


def test_sft_limits_hold_for_conversations_too(tokenizer):
    def talk(question, answer):
        return {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }

    rows = Dataset.from_list(
        [
            talk("q" * 500, "a"),
            talk("q", "a" * 500),
            talk("q", "first"),
            talk("q", "second"),
            talk("q", "third"),
        ]
    )
    args = arguments(max_prompt_tokens=100, max_solution_tokens=100, max_samples=2)
    dataset, report = load_dataset(args, FMT, "sft", rows=rows, tokenizer=tokenizer)
    assert [row["completion"][0]["content"] for row in dataset] == ["first", "second"]
    assert (report.read, report.kept) == (5, 2)
    assert report.first_index == {
        "prompt over max_prompt_tokens 100": 0,
        "solution over max_solution_tokens 100": 1,
    }


def test_text_golds_stay_text_whatever_the_source_column_was():
    # A source column named solution, of numbers, must not lend its type: 007 is a gold, and so is
    # 1/2 in row 1,500.
    rows = Dataset.from_list([{"prompt": f"p{i}", "solution": i, "unit": "m"} for i in range(1500)])
    dataset, _ = load_dataset(arguments(), FMT, "grpo", rows=rows)
    assert golds(dataset)[:3] == ["0", "1", "2"]
    mixed = Dataset.from_list(
        [
            {"question": "q", "answer": f"#### {'007' if i < 1500 else '1/2'}", "solution": i}
            for i in range(1501)
        ]
    )
    dataset, _ = load_dataset(arguments(), FMT, "grpo", rows=mixed)
    assert (dataset[0]["solution"], dataset[1500]["solution"]) == ("007", "1/2")


def test_reserved_source_columns_do_not_reach_the_rewards():
    row = {
        "problem": "p",
        "answer": "1",
        "messages": [],
        "images": None,
        "trainer_state": 1,
        "level": 3,
    }
    dataset, _ = load_dataset(arguments(), FMT, "grpo", rows=Dataset.from_list([row]))
    assert set(dataset.column_names) == {"prompt", "solution", "answer", "problem", "level"}


def test_a_long_run_of_unusable_rows_in_front_does_no_harm():
    rows = Dataset.from_list([gsm8k(i, gold=i >= 2300) for i in range(2305)])
    dataset, report = load_dataset(arguments(), FMT, "grpo", rows=rows)
    assert golds(dataset) == ["2300", "2301", "2302", "2303", "2304"]
    assert report.dropped == {"no '#### NUMBER' in column 'answer'": 2300}


def test_the_report_counts_each_reason_and_where_it_began(tokenizer):
    rows = [
        gsm8k(0),
        gsm8k(1, gold=False),
        {"question": "", "answer": "#### 2"},
        gsm8k(3, gold=False),
        gsm8k(4, words=500),
    ]
    dataset, report = load_dataset(
        arguments(max_prompt_tokens=600),
        FMT,
        "grpo",
        rows=Dataset.from_list(rows),
        tokenizer=tokenizer,
    )
    assert golds(dataset) == ["0"]
    assert (report.read, report.kept) == (5, 1)
    assert report.dropped == {
        "no '#### NUMBER' in column 'answer'": 2,
        "column 'question' is empty": 1,
        "prompt over max_prompt_tokens 600": 1,
    }
    assert report.first_index == {
        "no '#### NUMBER' in column 'answer'": 1,
        "column 'question' is empty": 2,
        "prompt over max_prompt_tokens 600": 4,
    }
    assert "2 dropped: no '#### NUMBER' in column 'answer' (first: row 1)" in str(report)


def test_prompt_tokens_are_those_of_the_rendered_prompt(tokenizer):
    row = gsm8k(5)
    prompt = build_prompt(row["question"], FMT)
    size = len(
        tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
    )
    rows = Dataset.from_list([row])
    assert (
        len(
            load_dataset(
                arguments(max_prompt_tokens=size), FMT, "grpo", rows=rows, tokenizer=tokenizer
            )[0]
        )
        == 1
    )
    with pytest.raises(
        RecipeError,
        match=rf"all rows were dropped: 0 of 1 rows kept; 1 dropped: prompt over max_prompt_tokens "
        rf"{size - 1}",
    ):
        load_dataset(
            arguments(max_prompt_tokens=size - 1), FMT, "grpo", rows=rows, tokenizer=tokenizer
        )


@pytest.mark.parametrize(
    ("method", "text"), [("sft", FMT.render("She buys 7.", "7")), ("grpo", "7")]
)
def test_solution_tokens_are_those_of_the_target_or_the_gold(tokenizer, method, text):
    rows, size = (
        Dataset.from_list([gsm8k(7)]),
        len(tokenizer.encode(text, add_special_tokens=False)),
    )
    assert (
        len(
            load_dataset(
                arguments(max_solution_tokens=size), FMT, method, rows=rows, tokenizer=tokenizer
            )[0]
        )
        == 1
    )
    with pytest.raises(RecipeError, match=f"solution over max_solution_tokens {size - 1}"):
        load_dataset(
            arguments(max_solution_tokens=size - 1), FMT, method, rows=rows, tokenizer=tokenizer
        )


@pytest.mark.parametrize(
    "few_shot", [None, [{"question": "1+1?", "reasoning": "r", "answer": "2"}]]
)
def test_prompts_measured_together_have_the_lengths_of_each_alone(tokenizer, few_shot):
    odd = [
        "",
        "x",
        "  x  ",
        "<|im_end|>",
        "<|im_start|>user",
        "二加二?",
        "\U0001f600" * 9,
        "a\n\n  b",
        "<think>",
        *(f"q {i}" for i in range(90)),
    ]
    prompts = [build_prompt(question, FMT, few_shot) for question in odd]
    counter = TokenCounter(tokenizer)
    alone = [
        len(
            tokenizer.apply_chat_template(
                p, add_generation_prompt=True, tokenize=True, return_dict=True
            )["input_ids"]
        )
        for p in prompts
    ]
    for limit in sorted({size + step for size in alone for step in (-1, 0, 1)}):
        assert counter.prompts_over(prompts, limit) == [
            index for index, size in enumerate(alone) if size > limit
        ]
        plain = prompts[9:]
        assert counter.prompts_over(plain, limit) == [
            index for index, size in enumerate(alone[9:]) if size > limit
        ]


def test_the_same_file_is_the_same_dataset_again(tmp_path):
    """Processes that load the same rows share what a trainer caches of them."""
    args = arguments(
        dataset_name=write_jsonl(tmp_path / "rows.jsonl", [gsm8k(i) for i in range(9)])
    )
    first, second = (load_dataset(args, FMT, "grpo")[0] for _ in range(2))
    assert first.cache_files == second.cache_files != []
    assert first._fingerprint == second._fingerprint
    other, _ = load_dataset(args, BOXED, "grpo")
    assert other._fingerprint != first._fingerprint


def test_source_rows_and_mapped_rows_are_written_once_each(tmp_path):
    args = arguments(
        dataset_name=write_jsonl(tmp_path / "rows.jsonl", [gsm8k(i) for i in range(9)])
    )
    load_dataset(args, FMT, "grpo")
    folder = Path(datasets.config.HF_DATASETS_CACHE)
    files = {path for path in folder.rglob("*") if path.is_file()}
    assert len(files) == 2
    load_dataset(args, FMT, "grpo")
    assert {path for path in folder.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("limit", [1, 5, 120])
def test_max_samples_is_the_first_rows_that_fit_and_reading_stops_there(limit, tokenizer):
    # Every third row is too long, so the first N that fit reach to about row 1.5 N.
    rows = Dataset.from_list([gsm8k(i, words=120 if i % 3 == 0 else 0) for i in range(2500)])
    limits = {"max_prompt_tokens": 500}
    everything, _ = load_dataset(
        arguments(**limits), FMT, "grpo", rows=rows.select(range(400)), tokenizer=tokenizer
    )
    dataset, report = load_dataset(
        arguments(max_samples=limit, **limits), FMT, "grpo", rows=rows, tokenizer=tokenizer
    )
    assert golds(dataset) == golds(everything)[:limit]
    assert (report.kept, report.read) == (limit, 1000)  # of 2,500


def test_reading_goes_on_until_there_is_enough():
    rows = Dataset.from_list([gsm8k(i, gold=i in (5, 1005, 2405, 2406)) for i in range(2500)])
    dataset, report = load_dataset(arguments(max_samples=3), FMT, "grpo", rows=rows)
    assert golds(dataset) == ["5", "1005", "2405"]
    assert (report.read, report.kept) == (2500, 3)
    assert report.first_index == {"no '#### NUMBER' in column 'answer'": 0}


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("sft", {}),
        ("grpo", {"keep_columns": []}),
        ("distill", {}),
        ("generate", {"keep_columns": []}),
    ],
)
def test_a_batch_of_rows_that_cannot_be_used_is_no_end(method, keys):
    """Rows are mapped 1,000 at a time."""
    for used in ({0, 999}, {1000}, {5, 2100}):
        rows = Dataset.from_list([gsm8k(i, gold=i in used) for i in range(2101)])
        dataset, report = load_dataset(arguments(**keys), FMT, method, rows=rows)
        assert (len(dataset), report.read, report.kept) == (len(used), 2101, len(used))
        assert report.dropped == {"no '#### NUMBER' in column 'answer'": 2101 - len(used)}


@pytest.mark.parametrize("method", ["grpo", "generate"])
def test_a_column_that_first_comes_late_is_there_from_the_start(method):
    class Late(Mapper):
        columns = ("question",)

        def __call__(self, row):
            number = int(row["question"])
            late = {"task": "late", "level": [number], "meta": {"a": "x", "b": 1}}
            return {"question": str(number), "solution": "1"} | (
                late if number >= 1500 else {"level": [], "meta": {"a": None, "b": 1}}
            )

    register_mapper("late")(Late)
    try:
        rows = Dataset.from_list([{"question": str(i)} for i in range(1600)])
        dataset, report = load_dataset(arguments(mapper="late"), FMT, method, rows=rows)
    finally:
        del MAPPERS._objects["late"]
    assert (dataset["task"][0], dataset["task"][1599], dataset["level"][1599], report.read) == (
        None,
        "late",
        [1599],
        1600,
    )
    assert (dataset["level"][0], dataset["meta"][0], dataset["meta"][1599]) == (
        [],
        {"a": None, "b": 1},
        {"a": "x", "b": 1},
    )


def test_the_test_split_has_a_limit_of_its_own(tmp_path):
    (tmp_path / "set").mkdir()
    write_jsonl(tmp_path / "set" / "train.jsonl", [gsm8k(i) for i in range(9)])
    write_jsonl(tmp_path / "set" / "held.jsonl", [gsm8k(100)])
    write_jsonl(tmp_path / "set" / "test.jsonl", [gsm8k(i) for i in range(20, 29)])
    args = arguments(dataset_name=str(tmp_path / "set"), max_samples=2, max_eval_samples=3)
    assert golds(load_dataset(args, FMT, "grpo")[0]) == ["0", "1"]
    assert golds(load_dataset(args, FMT, "grpo", split="test")[0]) == ["20", "21", "22"]


def test_a_missing_column_names_column_dataset_and_what_there_is():
    rows = Dataset.from_list([{"text": "q", "label": "1"}])
    with pytest.raises(RecipeError) as error:
        load_dataset(arguments(mapper="gsm8k"), FMT, "grpo", rows=rows)
    assert str(error.value) == (
        "dataset rows: mapper 'gsm8k' needs column 'question', 'answer'; the source has "
        "the columns text, label"
    )
    with pytest.raises(
        RecipeError, match=r"needs column 'gold'; the source has the columns text, label"
    ):
        load_dataset(
            arguments(prompt_column="text", solution_column="gold"), FMT, "grpo", rows=rows
        )
    dataset, _ = load_dataset(
        arguments(prompt_column="text", solution_column="label"), FMT, "grpo", rows=rows
    )
    assert golds(dataset) == ["1"]


def test_keep_columns():
    rows = Dataset.from_list([{**gsm8k(1), "level": 1, "source": "x"}])
    dataset, _ = load_dataset(arguments(keep_columns=["level"]), FMT, "grpo", rows=rows)
    assert set(dataset.column_names) == {"prompt", "solution", "level"}
    dataset, _ = load_dataset(arguments(keep_columns=[]), FMT, "grpo", rows=rows)
    assert set(dataset.column_names) == {"prompt", "solution"}
    with pytest.raises(
        RecipeError,
        match=r"keep_columns: dataset rows: unknown column 'levle'. Did you mean 'level'",
    ):
        load_dataset(arguments(keep_columns=["levle"]), FMT, "grpo", rows=rows)


def test_few_shot_turns_are_written_in_the_format():
    turn = {"question": "1+1?", "reasoning": "1 and 1 is 2.", "answer": 2}
    dataset, _ = load_dataset(
        arguments(few_shot=[turn]), FMT, "grpo", rows=Dataset.from_list([gsm8k(8)])
    )
    assert [message["role"] for message in dataset[0]["prompt"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert dataset[0]["prompt"][2]["content"] == FMT.render("1 and 1 is 2.", "2")


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        (
            [{"question": "q", "answer": "1"}],
            "few_shot: entry 1: must have question, reasoning and answer",
        ),
        (["1+1=2"], "few_shot: entry 1: must have question, reasoning and answer, got '1[+]1=2'"),
        (
            [
                {"question": "q", "reasoning": "r", "answer": "1"},
                {"question": "q", "reasoning": "</think>", "answer": "1"},
            ],
            "few_shot: entry 2: ",
        ),
        (
            [{"question": "q", "reasoning": "r", "answer": "1", "note": "n"}],
            "few_shot: entry 1: must have",
        ),
    ],
)
def test_a_few_shot_turn_that_cannot_be_used_is_refused(turns, message):
    with pytest.raises(RecipeError, match=message):
        load_dataset(arguments(few_shot=turns), FMT, "grpo", rows=Dataset.from_list([gsm8k(8)]))


def test_an_empty_system_prompt_sends_no_system_message():
    dataset, _ = load_dataset(
        arguments(), replace(FMT, system_prompt=""), "grpo", rows=Dataset.from_list([gsm8k(8)])
    )
    assert [message["role"] for message in dataset[0]["prompt"]] == ["user"]


def test_sft_needs_reasoning():
    rows = Dataset.from_list([{"prompt": "p", "solution": "1"}])
    with pytest.raises(RecipeError, match="no reasoning to train on"):
        load_dataset(arguments(), FMT, "sft", rows=rows)


def test_an_empty_source_is_an_error_too():
    with pytest.raises(RecipeError, match="all rows were dropped: 0 of 0 rows kept"):
        load_dataset(arguments(), FMT, "grpo", rows=Dataset.from_list([gsm8k(1)]).select([]))


@pytest.fixture
def parts(tmp_path):
    """40 grade-school rows and 20 competition rows, in two files."""
    first = write_jsonl(tmp_path / "first.jsonl", [gsm8k(i) for i in range(40)])
    second = write_jsonl(
        tmp_path / "second.jsonl",
        [{"problem": f"Problem {i}", "answer": str(i), "level": 1} for i in range(100, 120)],
    )
    return first, second


def mixture_arguments(parts, first=None, second=None, **keys):
    datasets = [{"id": parts[0], **(first or {})}, {"id": parts[1], **(second or {})}]
    return arguments(dataset_name=None, dataset_mixture={"datasets": datasets, **keys})


def test_each_data_set_of_a_mixture_names_its_own_columns(tmp_path):
    first = write_jsonl(tmp_path / "first.jsonl", [{"q": "1?", "a": "1"}])
    second = write_jsonl(tmp_path / "second.jsonl", [{"frage": "2?", "antwort": "2"}])
    args = mixture_arguments(
        (first, second),
        {"mapper_config": {"prompt_column": "q", "solution_column": "a"}},
        {"mapper_config": {"prompt_column": "frage", "solution_column": "antwort"}},
    )
    args.mapper = "prompt_solution"
    args.prompt_column = "prompt"  # of the recipe, for data sets that name none
    dataset, _ = load_dataset(args, FMT, "grpo")
    questions = {row["prompt"][-1]["content"]: row["solution"] for row in dataset}
    assert questions == {"1?": "1", "2?": "2"}


def test_mixture_takes_a_share_of_each_and_shuffles_by_its_seed(parts):
    args = mixture_arguments(
        parts, {"weight": 0.25}, {"columns": ["problem", "answer"], "weight": 0.5}, seed=3
    )
    dataset, report = load_dataset(args, FMT, "grpo")
    numbers = [int(gold) for gold in golds(dataset)]
    assert (sum(n < 40 for n in numbers), sum(n >= 100 for n in numbers)) == (10, 10)
    assert numbers != sorted(numbers)
    assert dataset.column_names == ["prompt", "solution"]
    assert (report.read, report.kept) == (20, 20)
    assert golds(load_dataset(args, FMT, "grpo")[0]) == golds(dataset)
    args.dataset_mixture["seed"] = 4
    assert golds(load_dataset(args, FMT, "grpo")[0]) != golds(dataset)


@pytest.mark.parametrize(("size", "counts"), [(0.1, range(2, 12)), (7, [7])])
def test_mixture_test_split_is_disjoint_and_stable(parts, size, counts):
    args = mixture_arguments(parts, test_split_size=size)
    train, test = (load_dataset(args, FMT, "grpo", split=split)[0] for split in ("train", "test"))
    assert len(train) + len(test) == 60 and len(test) in counts
    assert not set(golds(train)) & set(golds(test))
    assert golds(load_dataset(args, FMT, "grpo", split="test")[0]) == golds(test)
    args.max_samples, args.max_eval_samples = 5, 2
    assert golds(load_dataset(args, FMT, "grpo")[0]) == golds(train)[:5]
    assert golds(load_dataset(args, FMT, "grpo", split="test")[0]) == golds(test)[:2]


@pytest.mark.parametrize("size", [0.5, 15])
def test_rows_that_training_drops_move_none_of_its_rows_to_the_test_split(
    parts, tokenizer, tmp_path, size
):
    """An evaluation lifts the limits, so it has more rows to draw from."""
    long = write_jsonl(tmp_path / "long.jsonl", [gsm8k(i, words=400 * (i % 3)) for i in range(60)])
    args = mixture_arguments((long, parts[1]), test_split_size=size, seed=7)
    args.max_prompt_tokens = 1500
    train, report = load_dataset(args, FMT, "grpo", tokenizer=tokenizer)
    assert report.dropped
    args.max_prompt_tokens = None
    test, _ = load_dataset(args, FMT, "grpo", split="test")
    questions = {row["prompt"][-1]["content"] for row in train}
    assert len(test) and questions.isdisjoint(row["prompt"][-1]["content"] for row in test)


@needs("reasoning_gym")
def test_mixture_of_tasks_each_with_its_own_config_and_scorer(parts):
    sizes = {"train": {"size": 5, "seed": 1}, "test": {"size": 2, "seed": 9}}
    datasets = [
        {"id": "reasoning_gym:chain_sum", "task_config": {**sizes, "min_terms": 2}},
        {"id": "reasoning_gym:gcd", "task_config": {**sizes, "max_numbers": 2}},
        {"id": parts[0], "weight": 0.1},
    ]
    dataset, _ = load_dataset(
        arguments(dataset_name=None, dataset_mixture={"datasets": datasets}), FMT, "grpo"
    )
    assert len(dataset) == 14
    scored = [row for row in dataset if row["scorer"]]
    assert len(scored) == 10
    assert all(verification.score([row["scorer"] for row in scored], golds(scored)))


def test_mixture_keeps_only_the_columns_in_keep_columns(tmp_path, parts):
    dataset, _ = load_dataset(mixture_arguments(parts), FMT, "grpo")
    assert dataset.column_names == ["prompt", "solution"]
    again = write_jsonl(tmp_path / "third.jsonl", [{"problem": "p", "answer": "1", "level": 5}])
    args = mixture_arguments((parts[1], again))
    args.keep_columns = ["level"]
    assert sorted(load_dataset(args, FMT, "grpo")[0]["level"]) == [1] * 20 + [5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(sed=1), "dataset_mixture: unknown key 'sed'. Did you mean 'seed'"),
        (
            lambda m: m["datasets"][0].update(wieght=1),
            "dataset 1: unknown key 'wieght'. Did you mean 'weight'",
        ),
        (
            lambda m: m["datasets"][0].update(weight=1.5),
            r"dataset 1: weight: must be the share of its rows, in \(0, 1\], got 1.5",
        ),
        (lambda m: m["datasets"][1].update(weight=0), "dataset 2: weight: .*got 0"),
        (
            lambda m: m["datasets"][1].update(weight="half"),
            r"dataset 2: weight: must be the share of its rows, in \(0, 1\], got 'half'",
        ),
        (
            lambda m: m["datasets"][1].update(weight=0.001),
            r"dataset 2 \(.*second.jsonl, weight 0.001\): all rows were dropped",
        ),
        (
            lambda m: m["datasets"][1].update(columns=["problm"]),
            "unknown column of .*second.jsonl 'problm'. Did you mean 'problem'",
        ),
        (lambda m: m["datasets"][1].pop("id"), "dataset 2: id: missing"),
        (lambda m: m.update(datasets=[]), "datasets: must be a list of mappings of id, "),
        (lambda m: m.update(datasets="a, b"), "datasets: must be a list of mappings of id, "),
        (
            lambda m: m.update(test_split_size=60),
            "test_split_size 60 leaves either the training or the test split of 60 rows empty",
        ),
        (lambda m: m.update(test_split_size=0.0), "test_split_size 0.0 leaves either"),
        (lambda m: m.update(test_split_size="0.1"), "test_split_size: must be a number, got '0.1'"),
        (lambda m: m.update(seed="one"), "seed: must be a whole number, got 'one'"),
        (lambda m: m["datasets"][1].update(task=3), "dataset 2: task: must be some text, got 3"),
        (
            lambda m: m["datasets"][0].update(system_prompt=1),
            "system_prompt: must be some text, got 1",
        ),
    ],
)
def test_a_mixture_that_cannot_be_made_names_the_fault(parts, change, message):
    args = mixture_arguments(parts)
    change(args.dataset_mixture)
    with pytest.raises(RecipeError, match=message):
        load_dataset(args, FMT, "grpo")


def test_a_mixture_without_test_split_has_none(parts):
    with pytest.raises(RecipeError, match="test_split_size: must be set"):
        load_dataset(mixture_arguments(parts), FMT, "grpo", split="test")


TALKS = [
    {
        "conversations": [
            {"from": "human", "value": f"chat {i}"},
            {"from": "gpt", "value": f"reply {i}"},
        ]
    }
    for i in range(4)
]


def test_a_mixture_of_shapes_becomes_prompts_and_completions(tmp_path, parts):
    talks = write_jsonl(tmp_path / "talks.jsonl", [{"system": "Be kind.", **row} for row in TALKS])
    pairs = write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": "2+2?", "completion": "4"}])
    turns = write_jsonl(tmp_path / "turns.jsonl", [{"messages": [ASKED, ANSWERED]}])
    named = {"mapper": "conversations", "mapper_config": {"well_formed": False}}
    datasets = [
        {"id": parts[0], "weight": 0.1},
        {"id": talks, **named, "system_prompt": ""},
        {"id": talks, **named, "system_prompt": "Chat."},
        {"id": talks},
        {"id": talks, "system_prompt": "Talk."},
        {"id": pairs},
        {"id": turns},
    ]
    dataset, report = load_dataset(
        arguments(dataset_name=None, dataset_mixture={"datasets": datasets}), FMT, "sft"
    )
    assert dataset.column_names == ["prompt", "completion"]
    assert (report.kept, report.read) == (4 + 4 * 4 + 2, 4 + 4 * 4 + 2)
    systems = [
        row["prompt"][0]["content"] if row["prompt"][0]["role"] == "system" else None
        for row in dataset
    ]
    # The recipe's instruction for sums; none, so the row's own; the part's; the row's own as it is;
    # the part's; none.
    assert sorted(map(str, systems)) == sorted(
        [FMT.system_prompt] * 4 + ["Be kind."] * 8 + ["Chat."] * 4 + ["Talk."] * 4 + ["None"] * 2
    )
    assert sum(row["completion"] == [ANSWERED] and row["prompt"] == [ASKED] for row in dataset) == 2


def test_the_instruction_of_a_part_is_its_own(parts):
    args = mixture_arguments(parts, {"system_prompt": ""}, {"system_prompt": "Hard ones."})
    dataset, _ = load_dataset(args, FMT, "grpo")
    for row in dataset:
        hard = int(row["solution"]) >= 100
        assert [message["role"] for message in row["prompt"]] == ["system", "user"][not hard :]
        assert not hard or row["prompt"][0]["content"] == "Hard ones."


@pytest.mark.parametrize("method", ["grpo", "generate"])
def test_a_part_names_its_task(parts, method):
    dataset, _ = load_dataset(mixture_arguments(parts, second={"task": "hard"}), FMT, method)
    assert {(int(row["solution"]) >= 100, row["task"]) for row in dataset} == {
        (True, "hard"),
        (False, ""),
    }
    assert set(dataset.column_names) == {"prompt", "solution", "task"} | (
        {"question", "reasoning"} if method == "generate" else set()
    )


def test_tasks_of_sft_parts_and_of_rows(tmp_path, parts):
    made = [generated(FMT.render("2 and 2.", "4"), task=task) for task in ("code", "", None)]
    made = write_jsonl(tmp_path / "made.jsonl", made)
    args = mixture_arguments((parts[0], made), {"task": "sums", "weight": 0.1})
    dataset, _ = load_dataset(args, FMT, "sft")
    assert sorted(dataset["task"]) == ["", "", "code", *["sums"] * 4]
    # What the part says goes over what the rows say, and no part need say anything.
    args.dataset_mixture["datasets"][1]["task"] = "all"
    assert sorted(load_dataset(args, FMT, "sft")[0]["task"]) == [*["all"] * 3, *["sums"] * 4]
    args = mixture_arguments((parts[0], made), {"weight": 0.1})
    assert sorted(load_dataset(args, FMT, "sft")[0]["task"]) == ["", "", "", "", "", "", "code"]
    assert load_dataset(args, FMT, "distill")[0].column_names == ["prompt"]


def test_a_dropped_row_of_a_mixture_is_named_by_its_place_in_its_own_file(tmp_path, parts):
    third = write_jsonl(tmp_path / "third.jsonl", [gsm8k(i, gold=i != 7) for i in range(8)])
    args = mixture_arguments((parts[0], third), second={"weight": 0.99}, seed=5)
    _, report = load_dataset(args, FMT, "grpo")
    assert report.first_index == {f"{third}: no '#### NUMBER' in column 'answer'": 7}
    assert "(first: row 7)" in str(report)


def test_a_mixture_of_rows_given_is_taken_whole(parts):
    args = mixture_arguments(
        parts, {"weight": 0.001, "task": "a"}, {"columns": ["no"], "task": "b"}, test_split_size=0.5
    )
    rows = [Dataset.from_list([gsm8k(1)]), Dataset.from_list([gsm8k(2)])]
    dataset, _ = load_dataset(args, FMT, "grpo", rows=rows)
    assert sorted(zip(dataset["task"], golds(dataset), strict=True)) == [("a", "1"), ("b", "2")]


def test_one_question_about_two_pictures_is_no_overlap():
    # They differ late, as files with the same header do.
    pictures = [{"bytes": b"x" * 9999 + bytes([number]), "path": None} for number in range(3)]
    prompt = [{"role": "user", "content": "Find x."}]
    rows = Dataset.from_dict({"prompt": [prompt] * 3, "image": pictures})
    left, dropped = drop_overlap(rows, rows.select([1]))
    assert (len(left), dropped) == (2, 1)


def test_conversations_that_stay_as_they_are_take_no_settings_in_silence():
    messages = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "1"}]
    rows = Dataset.from_list([{"problem": "2?", "solution": "2", "messages": messages}])
    with pytest.raises(RecipeError, match="mapper_config: dataset rows: has no effect"):
        load_dataset(arguments(mapper_config={"whole": True}), FMT, "sft", rows=rows)
    named = arguments(
        prompt_column="problem", solution_column="solution", reasoning_column="solution"
    )
    dataset, _ = load_dataset(named, FMT, "sft", rows=rows)
    assert dataset[0]["prompt"][-1]["content"] == "2?"


def test_drop_overlap_leaves_out_questions_of_the_held_out_set():
    def row(question):
        return {
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": question}],
            "level": 1,
        }

    train = Dataset.from_list([row(q) for q in ("one  two", "three", "four")])
    kept, dropped = drop_overlap(train, Dataset.from_list([row(q) for q in ("one\ntwo ", "five")]))
    assert (len(kept), dropped) == (2, 1)
    assert [dict(item) for item in kept] == [row("three"), row("four")]
    assert drop_overlap(train, Dataset.from_list([row("six")])) == (train, 0)


def test_games_with_the_same_question_are_distinguished_by_their_columns():
    def games(*numbers):
        return Dataset.from_list(
            [
                {
                    "prompt": build_prompt("Find it.", FMT),
                    "environment": "guess_number",
                    "number": n,
                }
                for n in numbers
            ]
        )

    kept, dropped = drop_overlap(games(1, 2, 3), games(2, 4))
    assert (kept["number"][:], dropped) == ([1, 3], 1)


def test_drop_overlap_goes_by_the_whole_conversation():
    train = Dataset.from_list(
        [
            {"prompt": [turn("user", first), turn("assistant", "a"), turn("user", "Go on.")]}
            for first in ("one", "two")
        ]
    )
    held_out = Dataset.from_list(
        [{"prompt": [turn("user", "two"), turn("assistant", "b"), turn("user", "Go on.")]}]
    )
    assert drop_overlap(train, held_out)[0]["prompt"] == [train[0]["prompt"]]


def test_an_unused_report_reads_well():
    assert str(LoadReport()) == "0 of 0 rows kept"


@pytest.mark.parametrize("with_a_list", [False, True])
def test_golds_of_several_kinds_in_one_column(tmp_path, with_a_list):
    golds = [
        "72",
        '"72 cm"',
        "0.10",
        "12345678901234567890123",
        '"007"',
        *(['["1"]'] if with_a_list else []),
    ]
    metas = ["1", "{}", "[2.5]", "null", '{"x": [{"y": "z"}]}', "0.5"]
    lines = [
        f'{{"prompt": "q", "solution": {gold}, "meta": {meta}}}'
        for gold, meta in zip(golds, metas, strict=False)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    args = arguments(
        dataset_name=str(tmp_path / "rows.jsonl"), mapper="prompt_solution", keep_columns=["meta"]
    )
    rows, report = load_dataset(args, FMT, "grpo")
    assert rows["solution"] == ["72", "72 cm", "0.10", "12345678901234567890123", "007"]
    assert rows["meta"] == [json.loads(meta) for meta in metas[:5]]
    assert report.dropped == (
        {"column 'solution' holds a list, not text": 1} if with_a_list else {}
    )


@needs("agents")
def test_every_row_has_one_of_several_environments():
    rows = Dataset.from_list(
        [{"question": "?", "environment": name, "number": 3} for name in ("guess_number", "chess")]
    )
    args = arguments(mapper="environment", environment={"guess_number": "guess_number"})
    with pytest.raises(
        RecipeError, match=r"row 1: column 'environment' must be one of guess_number, got 'chess'"
    ):
        load_dataset(args, FMT, "grpo", rows=rows)
    assert len(load_dataset(args, FMT, "grpo", rows=rows.select([0]))[0]) == 1
