"""Rows in the schemas that people's data sets have: all of a row's text reaches the prompt, the
target or the rewards, or is named.
"""

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from datasets import Dataset

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import load_dataset
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import RecipeArguments


@dataclass(frozen=True)
class Shape:
    """A row, what it becomes, and what of it is named as left out.

    ``prompt`` is the conversation as ``role: text``; ``target`` the text that SFT trains on.
    """

    row: dict[str, Any]
    prompt: list[str]
    target: str | None = None
    solution: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)
    named: tuple[str, ...] = ()


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def shared(speaker: str, value: str) -> dict[str, str]:
    return {"from": speaker, "value": value}


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


PIRATE, SEVEN, NOTED, ASKED = "You are a pirate.", "My number is 7.", "Noted: 7.", "Add 1 to it."
TALK = [said("system", PIRATE), said("user", SEVEN), said("assistant", NOTED), said("user", ASKED)]
SAID = [f"system: {PIRATE}", f"user: {SEVEN}", f"assistant: {NOTED}", f"user: {ASKED}"]
COLUMNS = {"mapper": "prompt_solution", "prompt_column": "messages", "solution_column": "solution"}
CALL = {"name": "add", "arguments": {"a": 7, "b": 1}}
AS_TEXT = {"name": "add", "arguments": '{"a": 7, "b": 1}'}
CALLED = said("assistant", None, tool_calls=[{"id": "c1", "type": "function", "function": AS_TEXT}])
EIGHT, NINE = said("assistant", "8"), said("assistant", "9")
VERL = {"data_source": "x"}
ALPACA = {"instruction": "Solve it.", "input": "x - 1 = 2", "output": "3"}

PROMPTS = {
    "trl prompt and completion": Shape(
        {"prompt": "1+1?", "completion": "2"}, ["user: 1+1?"], named=("2", "are not used")
    ),
    # OpenAI
    "messages and a solution": Shape(
        {"messages": TALK, "solution": "8"}, SAID, solution="8", keys=COLUMNS
    ),
    "developer": Shape(
        {"prompt": [said("developer", PIRATE), said("user", ASKED)], "solution": 8},
        [f"system: {PIRATE}", f"user: {ASKED}"],
        solution="8",
    ),
    "parts": Shape({"prompt": [said("user", [part("1+"), part("1?")])]}, ["user: 1+1?"]),
    "a name of the speaker": Shape(
        {"prompt": [said("user", ASKED, name="ann")]}, [f"user: {ASKED}"], named=("ann", "'name'")
    ),
    "an answer behind the question": Shape(
        {"messages": [*TALK, said("assistant", "8 it is")], "solution": "8"},
        SAID,
        solution="8",
        keys=COLUMNS,
        named=("8 it is", "answer at the end of a prompt"),
    ),
    "reasoning in parts": Shape(
        {
            "prompt": [
                TALK[1],
                said("assistant", [{"type": "reasoning", "text": "why not"}, part(NOTED)]),
                TALK[3],
            ]
        },
        [f"user: {SEVEN}", f"assistant: <think>\nwhy not\n</think>\n\n{NOTED}", f"user: {ASKED}"],
    ),
    "reasoning in parts of parts": Shape(
        {
            "prompt": [
                TALK[1],
                said(
                    "assistant", [{"type": "thinking", "thinking": [part("why not")]}, part(NOTED)]
                ),
                TALK[3],
            ]
        },
        [f"user: {SEVEN}", f"assistant: <think>\nwhy not\n</think>\n\n{NOTED}", f"user: {ASKED}"],
    ),
    "earlier reasoning": Shape(
        {"prompt": [TALK[1], TALK[2] | {"reasoning_content": "why not"}, TALK[3]]},
        [f"user: {SEVEN}", f"assistant: <think>\nwhy not\n</think>\n\n{NOTED}", f"user: {ASKED}"],
    ),
    # The same in other containers
    "JSON text": Shape({"prompt": json.dumps(TALK), "solution": "8"}, SAID, solution="8"),
    "Python text": Shape({"prompt": str(TALK), "solution": "8"}, SAID, solution="8"),
    "JSON text with numbers": Shape(
        {"prompt": json.dumps([{"id": n, **turn} for n, turn in enumerate(TALK, 1)])},
        SAID,
        named=("'id'",),
    ),
    "lists side by side": Shape(
        {"prompt": {key: [turn[key] for turn in TALK] for key in ("role", "content")}}, SAID
    ),
    # Columns beside the question
    "a column of instructions": Shape(
        {"system_prompt": PIRATE, "question": ASKED, "response": "8"},
        [f"system: {PIRATE}", f"user: {ASKED}"],
        solution="8",
        keys={**COLUMNS, "prompt_column": "question", "solution_column": "response"},
    ),
    # Alpaca and its relatives
    "dolly": Shape(
        {"instruction": "Who?", "context": "Ann came.", "response": "Ann", "category": "qa"},
        ["user: Who?\n\nAnn came."],
        solution="Ann",
        named=("category",),
    ),
    "ms-swift's queries": Shape(
        {"system": PIRATE, "query": ASKED, "response": "8", "history": [[SEVEN, NOTED]]},
        SAID,
        solution="8",
    ),
    "a history of messages": Shape(
        {
            "system": PIRATE,
            "query": ASKED,
            "response": "8",
            "history": [
                {"role": "user", "content": SEVEN},
                {"role": "assistant", "content": NOTED},
            ],
        },
        SAID,
        solution="8",
    ),
    "a history as text": Shape(
        {
            "system": PIRATE,
            "query": ASKED,
            "response": "8",
            "history": json.dumps([[SEVEN, NOTED]]),
        },
        SAID,
        solution="8",
    ),
    # veRL
    "verl": Shape(
        VERL | {"prompt": TALK, "ability": "math", "reward_model": {"ground_truth": "8"}},
        SAID,
        solution="8",
        named=("ability",),
    ),
    "search-r1": Shape(
        VERL | {"prompt": TALK[3:], "reward_model": {"ground_truth": {"target": ["Ann"]}}},
        SAID[3:],
        solution="Ann",
    ),
    "verl as text": Shape(
        VERL | {"prompt": json.dumps(TALK), "reward_model": '{"ground_truth": "Ann"}'},
        SAID,
        solution="Ann",
    ),
}

TARGETS = {
    "openai": Shape(
        {"messages": [*TALK, said("assistant", "8")], "id": "a1"}, SAID, "8", named=("id",)
    ),
    "openai with empty fields": Shape(
        {"messages": [said("user", "1+1?"), said("assistant", "2", refusal=None, annotations=[])]},
        ["user: 1+1?"],
        "2",
    ),
    "openai with citations": Shape(
        {"messages": [said("user", "1+1?"), said("assistant", "2", annotations=[{"url": "u"}])]},
        ["user: 1+1?"],
        "2",
        named=("'annotations'",),
    ),
    "reasoning_content": Shape(
        {"messages": [said("user", "1+2?"), said("assistant", "3", reasoning_content="1, 2: 3.")]},
        ["user: 1+2?"],
        "<think>\n1, 2: 3.\n</think>\n\n3",
    ),
    "parts of thinking": Shape(
        {
            "messages": [
                TALK[3],
                said("assistant", [{"type": "thinking", "thinking": "hm"}, part("8")]),
            ]
        },
        SAID[3:],
        "<think>\nhm\n</think>\n\n8",
    ),
    "a column of instructions beside another": Shape(
        {
            "conversations": [shared("system", PIRATE), shared("human", ASKED), shared("gpt", "8")],
            "system": "Be brief.",
        },
        [f"system: {PIRATE}", f"user: {ASKED}"],
        "8",
        named=("Be brief.", "left out beside a system message"),
    ),
    "calls with arguments as text": Shape(
        {"messages": [TALK[3], CALLED, said("tool", "eight", tool_call_id="c1"), EIGHT]},
        SAID[3:],
        "8",
    ),
    "llama-factory's calls": Shape(
        {
            "conversations": [
                shared("human", ASKED),
                shared("function_call", json.dumps(CALL)),
                shared("observation", "eight"),
                shared("gpt", "8"),
            ]
        },
        SAID[3:],
        "8",
    ),
    "ms-swift's calls": Shape(
        {
            "messages": [
                TALK[3],
                said("tool_call", json.dumps(CALL)),
                said("tool_response", "eight"),
                EIGHT,
            ]
        },
        SAID[3:],
        "8",
    ),
    "alpaca": Shape(ALPACA, ["user: Solve it.\n\nx - 1 = 2"], "3"),
    "trl prompt and completion": Shape({"prompt": "1+1?", "completion": "2"}, ["user: 1+1?"], "2"),
    "a word after the answer": Shape(
        {"messages": [said("user", "1+1?"), said("assistant", "2"), said("user", "Thanks.")]},
        ["user: 1+1?"],
        "Thanks.",
        named=("", "after the last one of the assistant are trained on"),
    ),
}

PAIRS = {
    "texts": {"prompt": ASKED, "chosen": "8", "rejected": "9"},
    "whole conversations": {"chosen": [TALK[3], EIGHT], "rejected": [TALK[3], NINE]},
    "a prompt beside them": {
        "prompt": ASKED,
        "chosen": [TALK[3], EIGHT],
        "rejected": [TALK[3], NINE],
    },
}


def loaded(
    shape: Shape, method: str, caplog: pytest.LogCaptureFixture
) -> tuple[dict[str, Any], str]:
    """The only row that a shape gives, and everything that is said about it."""
    caplog.set_level(logging.INFO)
    rows = Dataset.from_list([shape.row], on_mixed_types="use_json")
    fmt = get_response_format("boxed", system_prompt="")
    args = RecipeArguments(dataset_name="rows", **shape.keys)
    dataset, report = load_dataset(args, fmt, method, rows=rows)
    return dataset[0], f"{caplog.text} {report.unused}"


def conversation(messages: list[dict[str, Any]]) -> list[str]:
    return [f"{turn['role']}: {turn['content']}" for turn in messages]


def leaves(value: Any) -> list[str]:
    """Every text in a row."""
    if isinstance(value, dict):
        value = [item for key, item in value.items() if key not in ("role", "from", "type")]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value in (None, "") else [str(value)]


def nothing_is_lost(shape: Shape, row: dict[str, Any], words: str) -> None:
    """Every text of the source is in the row that a trainer gets, or named."""
    made = json.dumps(row, ensure_ascii=False)
    for column, value in shape.row.items():
        if isinstance(value, str) and value.startswith(("[{", "{")):
            continue  # the same messages as text
        for leaf in leaves(value):
            written = json.dumps(leaf, ensure_ascii=False)[1:-1]
            assert written in made or leaf in shape.named or f"'{column}'" in words, leaf


@pytest.mark.parametrize("name", PROMPTS)
def test_a_row_becomes_a_prompt(name: str, caplog: pytest.LogCaptureFixture) -> None:
    shape = PROMPTS[name]
    row, words = loaded(shape, "grpo", caplog)
    assert conversation(row["prompt"]) == shape.prompt
    assert row.get("solution") == shape.solution
    assert all(part in words for part in shape.named[-1:])
    nothing_is_lost(shape, row, words)


@pytest.mark.parametrize("name", TARGETS)
def test_a_row_becomes_a_target(name: str, caplog: pytest.LogCaptureFixture) -> None:
    shape = TARGETS[name]
    row, words = loaded(shape, "sft", caplog)
    assert conversation(row["prompt"]) == shape.prompt
    assert row["completion"][-1]["content"] == shape.target
    assert all(part in words for part in shape.named[-1:])
    if "call" in name:
        call, result = row["completion"][:2]
        assert call["tool_calls"][0]["function"] == CALL and result["content"] == "eight"
    else:
        nothing_is_lost(shape, row, words)


@pytest.mark.parametrize("name", PAIRS)
def test_a_row_becomes_a_pair(name: str, caplog: pytest.LogCaptureFixture) -> None:
    row, _ = loaded(Shape(PAIRS[name], []), "reward", caplog)
    texts = [conversation(row[key]) for key in ("prompt", "chosen", "rejected")]
    assert texts == [[f"user: {ASKED}"], ["assistant: 8"], ["assistant: 9"]]


REFUSED = {
    "a call as the answer": (
        {"messages": [TALK[3], CALLED]},
        "a call of a tool, which only sft can use",
    ),
    "an image": (
        {"prompt": [said("user", [{"type": "image_url", "image_url": "u"}])]},
        "image_url",
    ),
    "an unknown role": ({"prompt": [said("narrator", "Once.")]}, "narrator"),
    "no user": ({"prompt": [said("system", PIRATE)]}, "no message of the user"),
    "a list of texts": ({"prompt": ["1+1?", "2+2?"]}, "holds no messages"),
    "calls before a question": (
        {"prompt": [TALK[3], CALLED, said("tool", "8"), TALK[1]]},
        "which only sft can use",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_cannot_be_used_says_why(name: str, caplog: pytest.LogCaptureFixture) -> None:
    row, reason = REFUSED[name]
    mapper = "conversations" if "messages" in row else "prompt_solution"
    with pytest.raises(RecipeError, match=reason):
        loaded(Shape(row, [], keys={"mapper": mapper}), "grpo", caplog)


def test_both_instructions_reach_the_model() -> None:
    """That of the row says who answers, that of the recipe how."""
    fmt = get_response_format("boxed")
    rows = Dataset.from_list([{"prompt": TALK, "solution": "8"}])
    dataset, _ = load_dataset(RecipeArguments(dataset_name="rows"), fmt, "grpo", rows=rows)
    assert dataset[0]["prompt"][0]["content"] == f"{PIRATE}\n\n{fmt.system_prompt}"
    assert len(dataset[0]["prompt"]) == 4
