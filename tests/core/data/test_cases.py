"""What public bug reports of this field tried: rows and chat templates that trained on something
else than their files hold, or were refused without need.
"""

import dataclasses
import datetime
import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl
import yaml
from datasets import Dataset

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import load_dataset
from r1_recipes.extras import init
from r1_recipes.models.load import check_targets, load_tokenizer
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.types import GRPORecipeArguments, RecipeArguments
from r1_recipes.training.train import load_splits

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
ASKED = {"role": "user", "content": "1+1?"}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def grpo(row: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """What GRPO gets of a row."""
    fmt = get_response_format(keys.pop("response_format", "think_answer"), system_prompt="")
    rows = Dataset.from_list([row], on_mixed_types="use_json")
    args = RecipeArguments(dataset_name="rows", mapper="prompt_solution", **keys)
    return load_dataset(args, fmt, "grpo", rows=rows)[0][0]


# A prompt that already has the model's turns around it


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Callable[[str], str]:
    """A tiny model with one of the templates that TRL knows, and its turn tokens."""
    from transformers import AutoTokenizer

    def make(name: str) -> str:
        folder = tmp_path / name
        shutil.copytree(tiny_model, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokens = ["<｜User｜>", "<｜Assistant｜>", "<|start_header_id|>", "<|eot_id|>"]
        tokens += ["<start_of_turn>", "<end_of_turn>"]
        tokenizer.add_special_tokens({"additional_special_tokens": tokens})
        tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
        tokenizer.bos_token = "<|endoftext|>"
        tokenizer.save_pretrained(folder)
        return str(folder)

    return make


def rendered(path: str, method: str, row: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The recipe, its tokenizer, and its dataset of one row."""
    recipe = load_recipe([path], method)
    tokenizer, fmt = load_tokenizer(recipe)
    rows = Dataset.from_list([row, row], on_mixed_types="use_json")
    made, _ = load_dataset(recipe.script, fmt, method, tokenizer=tokenizer, rows=rows)
    return recipe, tokenizer, made


WRAPPED = {
    "qwen3": "<|im_start|>system\nReason.<|im_end|>\n<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n<think>",
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\n1+2?<|eot_id|>",
    "deepseek_r1_distill": "<｜User｜>1+2?<｜Assistant｜><think>\n",
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_prompt_with_the_template_around_it_is_refused_or_passed_through(
    write_recipe: Callable[..., str], model: Callable[[str], str], name: str
) -> None:
    keys = {"model_name_or_path": model(name), "mapper": "prompt_solution", "prefill": ""}
    row = {"prompt": WRAPPED[name], "solution": "3"}
    path = write_recipe("grpo", response_format="boxed", **keys)
    with pytest.raises(
        RecipeError, match=r"Fix: the column without template; or, .* chat_template"
    ):
        rendered(path, "grpo", row)
    template = "{{ messages[-1]['content'] }}"
    path = write_recipe("grpo", response_format="boxed", **keys, chat_template=template)
    _, tokenizer, made = rendered(path, "grpo", row)
    prompt = made[0]["prompt"]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    assert text == WRAPPED[name]


def test_a_target_that_ends_in_the_token_of_a_turn_is_refused(
    write_recipe: Callable[..., str], model: Callable[[str], str]
) -> None:
    path = write_recipe("sft", model_name_or_path=model("qwen3"), mapper="auto")
    row = {"messages": [ASKED, {"role": "assistant", "content": "2<|im_end|>"}]}
    with pytest.raises(RecipeError, match=r"a text holds '<\|im_end\|>'"):
        rendered(path, "sft", row)


# Targets of SFT and the templates of 2026

PLAIN = {"prompt": [ASKED], "completion": [{"role": "assistant", "content": "It is 2."}]}
REASONED = {
    "messages": [ASKED, {"role": "assistant", "content": "2", "reasoning_content": "one more"}]
}
TRAINED = [
    # template, variables, row, where the prompt ends, and what is trained
    ("qwen3", None, PLAIN, "assistant\n", "<think>\n\n</think>\n\nIt is 2.<|im_end|>"),
    ("qwen3_5_nothink", None, PLAIN, "<think>\n\n</think>\n\n", "It is 2.<|im_end|>"),
    ("qwen3_5_think", None, PLAIN, "<think>\n", "\n</think>\n\nIt is 2.<|im_end|>"),
    ("qwen3_5_think", False, PLAIN, "<think>\n\n</think>\n\n", "It is 2.<|im_end|>"),
    ("qwen3_5_think", None, REASONED, "<think>\n", "one more\n</think>\n\n2<|im_end|>"),
    ("qwen3_5_nothink", True, REASONED, "<think>\n", "one more\n</think>\n\n2<|im_end|>"),
    # It reads reasoning from a field alone, and would write an empty block before one in the text.
    ("qwen3_8", None, REASONED, "<think>\n", "one more\n</think>\n\n2<|im_end|>"),
    ("llama3", None, REASONED, "\n\n", "<think>\none more\n</think>\n\n2<|eot_id|>"),
    # It raises an error for a system message.
    ("gemma", None, PLAIN, "model\n", "It is 2.<end_of_turn>"),
]


@pytest.mark.parametrize(("name", "thinks", "row", "end", "trained"), TRAINED)
def test_a_target_meets_every_kind_of_template(
    write_recipe: Callable[..., str],
    model: Callable[[str], str],
    name: str,
    thinks: bool | None,
    row: dict[str, Any],
    end: str,
    trained: str,
) -> None:
    variables = None if thinks is None else {"enable_thinking": thinks}
    path = write_recipe(
        "sft", model_name_or_path=model(name), mapper="auto", chat_template_kwargs=variables
    )
    recipe, tokenizer, made = rendered(path, "sft", row)
    check_targets(recipe, tokenizer, made)
    prompt, completion = made[0]["prompt"], made[0]["completion"]
    opened = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(prompt + completion, tokenize=False)
    assert opened.endswith(end) and whole.startswith(opened)
    assert whole[len(opened) :].rstrip() == trained


@pytest.mark.parametrize(
    ("name", "keys", "fix"),
    [
        ("qwen3_5_nothink", {}, "chat_template_kwargs: {enable_thinking: true}"),
        ("deepseek_r1_distill", {}, "assistant_only_loss: true"),
    ],
)
def test_what_a_template_removes_is_refused_with_the_key_that_mends_it(
    write_recipe: Callable[..., str],
    model: Callable[[str], str],
    name: str,
    keys: dict[str, Any],
    fix: str,
) -> None:
    keys = {"model_name_or_path": model(name), "mapper": "auto"}
    with pytest.raises(RecipeError, match=fix.replace("{", r"\{")):
        recipe, tokenizer, made = rendered(write_recipe("sft", **keys), "sft", REASONED)
        check_targets(recipe, tokenizer, made)
    keys |= (
        yaml.safe_load(f"{{{fix}}}")
        if name == "deepseek_r1_distill"
        else {"chat_template_kwargs": {"enable_thinking": True}}
    )
    recipe, tokenizer, made = rendered(write_recipe("sft", **keys), "sft", REASONED)
    if recipe.training.assistant_only_loss:
        from r1_recipes.models.load import train_template

        train_template(tokenizer)
    check_targets(recipe, tokenizer, made)


def test_a_template_without_a_system_role_writes_the_instruction_before_the_question(
    write_recipe: Callable[..., str], model: Callable[[str], str]
) -> None:
    path = write_recipe("sft", model_name_or_path=model("gemma"), system_prompt="Be brief.")
    recipe, tokenizer, made = rendered(path, "sft", {"question": "1+1?", "answer": "a\n#### 2"})
    check_targets(recipe, tokenizer, made)
    text = tokenizer.apply_chat_template(made[0]["prompt"], tokenize=False)
    assert "<start_of_turn>user\nBe brief.\n\n1+1?<end_of_turn>" in text


def test_turns_that_a_template_refuses_are_dropped_by_name_before_the_run(
    write_recipe: Callable[..., str], model: Callable[[str], str]
) -> None:
    """GRPO would end in the middle of a run, each time at the same row."""
    recipe = load_recipe([write_recipe("grpo", model_name_or_path=model("gemma"))], "grpo")
    tokenizer, fmt = load_tokenizer(recipe)
    good = {"prompt": [ASKED], "solution": "2"}
    bad = {"prompt": [ASKED, ASKED], "solution": "2"}
    answered = {"role": "assistant", "content": "2"}
    whole = [{"messages": [ASKED, answered]}, {"messages": [ASKED, answered, answered]}]
    script = dataclasses.replace(recipe.script, mapper="auto")
    kept, _ = load_dataset(script, fmt, "sft", tokenizer=tokenizer, rows=Dataset.from_list(whole))
    assert len(kept) == 1
    script = dataclasses.replace(recipe.script, mapper="prompt_solution")
    rows = Dataset.from_list([good, bad])
    made, report = load_dataset(script, fmt, "grpo", tokenizer=tokenizer, rows=rows)
    assert len(made) == 1 and "the chat template cannot write it" in str(report)


def call_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": name, "parameters": arguments}}
    called = {"type": "function", "function": {"name": name, "arguments": arguments}}
    turns = [ASKED, {"role": "assistant", "content": "", "tool_calls": [called]}]
    return {"messages": turns, "tools": [tool]}


def test_a_call_in_parquet_has_the_arguments_of_its_own_row(tmp_path: Path) -> None:
    """Parquet has every key in every struct: {"city": "Rome", "a": null} would be trained on."""
    given = [{"city": "Rome"}, {"a": 1}]
    rows = [call_of(name, arguments) for name, arguments in zip("xy", given, strict=True)]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "rows.parquet"))
    args = RecipeArguments(dataset_name=str(tmp_path / "rows.parquet"))
    made, _ = load_dataset(args, get_response_format("boxed"), "sft")
    calls = [row["completion"][-1]["tool_calls"][0]["function"]["arguments"] for row in made]
    assert calls == given
    assert [row["tools"][0]["function"]["parameters"] for row in made] == given


def test_a_call_without_arguments_and_a_row_without_tools_are_kept() -> None:
    rows = [call_of("now", {}), {"messages": [ASKED, {"role": "assistant", "content": "2"}]}]
    rows[0]["messages"][1]["tool_calls"][0]["function"]["arguments"] = ""
    rows = [{**row, "tools": json.dumps(row["tools"]) if "tools" in row else ""} for row in rows]
    rows = [{**row, "messages": json.dumps(row["messages"])} for row in rows]
    args, rows = RecipeArguments(dataset_name="rows"), Dataset.from_list(rows)
    made, _ = load_dataset(args, get_response_format("boxed"), "sft", rows=rows)
    [call] = made[0]["completion"][-1]["tool_calls"]
    assert call["function"]["arguments"] == {} and made[1]["tools"] is None


def test_parallel_calls_of_a_message_each_are_one_turn() -> None:
    """ms-swift's shape; a turn that ends after the first call would be learned."""
    calls = [json.dumps({"name": name, "arguments": {}}) for name in "xy"]
    turns = [ASKED, *({"role": "tool_call", "content": call} for call in calls)]
    turns += [{"role": "tool_response", "content": "1"}] * 2
    rows = Dataset.from_list([{"messages": [*turns, {"role": "assistant", "content": "2"}]}])
    args = RecipeArguments(dataset_name="rows")
    [row], _ = load_dataset(args, get_response_format("boxed"), "sft", rows=rows)
    roles = [turn["role"] for turn in row["completion"]]
    assert roles == ["assistant", "tool", "tool", "assistant"]
    assert [call["function"]["name"] for call in row["completion"][0]["tool_calls"]] == ["x", "y"]


@pytest.mark.parametrize("empty", [None, ""])
def test_a_conversation_whose_question_is_empty_is_dropped(empty: str | None) -> None:
    turns = [{"role": "user", "content": empty}, {"role": "assistant", "content": "2"}]
    rows = Dataset.from_list([{"messages": turns}, {"messages": [ASKED, turns[1]]}])
    args = RecipeArguments(dataset_name="rows")
    made, report = load_dataset(args, get_response_format("boxed"), "sft", rows=rows)
    assert len(made) == 1 and "an empty message of the user" in str(report)


def test_max_samples_are_rows_that_have_an_answer() -> None:
    rows = [{"prompt": f"{n}?", "solution": str(n) if n % 2 else ""} for n in range(20)]
    keys = {"mapper": "prompt_solution", "reward_funcs": ["accuracy"], "max_samples": 6}
    args = GRPORecipeArguments(dataset_name="rows", **keys)
    rows = Dataset.from_list(rows)
    made, report = load_dataset(args, get_response_format("boxed"), "grpo", rows=rows)
    assert made["solution"] == ["1", "3", "5", "7", "9", "11"] and "10 dropped" in str(report)


def test_the_tools_of_a_recipe_are_in_the_rows_that_sft_gets() -> None:
    """Else the model would learn to call what its prompt never names."""
    rows = Dataset.from_list([{"messages": [ASKED, {"role": "assistant", "content": "2"}]}])
    args = RecipeArguments(dataset_name="rows", tools=["calculator"])
    made, _ = load_dataset(args, get_response_format("boxed"), "sft", rows=rows)
    assert json.loads(made[0]["tools"])[0]["function"]["name"] == "calculator"


@pytest.mark.parametrize("turns", [1, 2])
def test_a_conversation_without_an_answer_is_dropped(turns: int) -> None:
    rows = Dataset.from_list([{"messages": [ASKED] * turns}])
    with pytest.raises(RecipeError, match="no assistant message"):
        load_dataset(
            RecipeArguments(dataset_name="rows"), get_response_format("boxed"), "sft", rows=rows
        )


@pytest.mark.parametrize("key", ["system_prompt", "prompt_template"])
def test_an_instruction_that_whole_conversations_would_lose_is_refused(key: str) -> None:
    rows = Dataset.from_list([{"messages": [ASKED, {"role": "assistant", "content": "2"}]}])
    keys: dict[str, Any] = {key: "Now: {question}"}
    fmt = get_response_format("boxed", system_prompt=keys.get("system_prompt"))
    with pytest.raises(RecipeError, match=f"{key}.*mapper: conversations"):
        load_dataset(RecipeArguments(dataset_name="rows", **keys), fmt, "sft", rows=rows)
    keys |= {"mapper": "conversations", "mapper_config": {"well_formed": False}}
    args = RecipeArguments(dataset_name="rows", **keys)
    made, _ = load_dataset(args, fmt, "sft", rows=rows)
    assert any("Now: " in message["content"] for message in made[0]["prompt"])


def test_a_number_that_lost_its_last_digits_is_no_reference_answer() -> None:
    numbers = [float(2**64), float(2**53), 1e23, 2432902008176640000.0, 72.0]
    rows = Dataset.from_list([{"prompt": "?", "solution": number} for number in numbers])
    args = RecipeArguments(dataset_name="rows", mapper="prompt_solution")
    made, report = load_dataset(args, get_response_format("boxed"), "grpo", rows=rows)
    assert [row["solution"] for row in made] == ["1e+23", "2.43290200817664e+18", "72"]
    assert "digits" in str(report)


def test_a_slot_that_is_no_column_is_named(caplog: pytest.LogCaptureFixture) -> None:
    row = {"prompt": "1+1?", "hint": "Add."}
    made = grpo(row, prompt_template="{question} {Hnt} {提示} {hint} {x}")
    assert made["prompt"][0]["content"] == "1+1? {Hnt} {提示} Add. {x}"
    assert all((slot in caplog.text) is said for slot, said in (("{Hnt}", True), ("{x}", False)))
    assert "{提示}" in caplog.text


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [("gemma", {}, True), ("qwen3", {}, False), ("qwen3", {"tools": ["calculator"]}, True)],
)
def test_tools_that_no_prompt_shows_are_named(
    write_recipe: Callable[..., str],
    model: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    name: str,
    keys: dict[str, Any],
    said: bool,
) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    row = {"messages": [ASKED, {"role": "assistant", "content": "2"}], "tools": [tool]}
    keys = {"model_name_or_path": model(name), "mapper": "auto", **keys}
    rendered(write_recipe("sft", **keys), "sft", row)
    assert ("column tools" in caplog.text) is said


# Rows without a reference answer


def length(completions: list[Any], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "SUBREDDIT: r/x\nPOST: a story\nTL;DR:"},
        {"prompt": [ASKED], "level": 3},
        {"prompt": "1+1?", "solution": None},
    ],
)
def test_prompts_alone_train_where_no_reward_compares(
    write_recipe: Callable[..., str], tmp_path: Path, row: dict[str, Any]
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [row] * 8)

    def train_rows(reward: str) -> Dataset:
        keys = {"dataset_name": rows, "mapper": "prompt_solution", "reward_funcs": [reward]}
        recipe = load_recipe([write_recipe("grpo", **keys)], "grpo")
        return load_splits(recipe, get_response_format("boxed"), None).train

    assert len(train_rows(f"{__name__}:length")) == 8
    with pytest.raises(RecipeError, match=r"'accuracy' compares\. Fix: solution_column"):
        train_rows("accuracy")


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_column_that_grpo_does_not_read_costs_no_row(empty: str | None) -> None:
    row = {"prompt": "1+1?", "solution": "2", "explanation": "one more"}
    rows = Dataset.from_list([row, row | {"explanation": empty}])
    keys = {"mapper": "prompt_solution", "reasoning_column": "explanation"}
    args = GRPORecipeArguments(dataset_name="rows", reward_funcs=["accuracy"], **keys)
    fmt = get_response_format("think_answer")
    assert len(load_dataset(args, fmt, "grpo", rows=rows)[0]) == 2
    made, report = load_dataset(args, fmt, "sft", rows=rows)
    assert len(made) == 1 and report.dropped == {"no reasoning to train on": 1}


# Reference answers that are no text


@pytest.mark.parametrize(
    ("answer", "solution"),
    [
        (["3"], "3"),
        ([3], "3"),
        ('["204"]', "204"),
        (204, "204"),
        (18.0, "18"),
        (0.5, "0.5"),
        (0, "0"),
        (True, "True"),
        (datetime.date(2024, 1, 5), "2024-01-05"),
        (datetime.datetime(2024, 1, 5, 10, 30), "2024-01-05 10:30:00"),
        ("[1, 2]", "[1, 2]"),  # an interval, or a list of numbers
    ],
)
def test_a_reference_answer_of_any_type_is_a_text(answer: Any, solution: str) -> None:
    assert grpo({"prompt": "1+2?", "solution": answer})["solution"] == solution


@pytest.mark.parametrize("gold", ["2024-01-05", "2024-01-01T10:00:00", "2024-01-01 10:00"])
def test_a_date_in_a_file_stays_as_it_is_written(tmp_path: Path, gold: str) -> None:
    rows = [{"prompt": f"Day {n}?", "solution": gold, "others": [gold]} for n in (5, 6)]
    rows.append({"prompt": "Day 7?", "solution": None, "others": []})
    args = RecipeArguments(dataset_name=write_rows(tmp_path / "days.jsonl", rows), mapper="auto")
    made, _ = load_dataset(args, get_response_format("boxed"), "grpo")
    assert made["solution"][:] == [gold, gold, ""] and made["others"][:] == [[gold], [gold], []]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (["Paris", "City of Paris"], r"holds a list .* Fix: .*row\['solution'\]\["),
        ('["Paris", "City of Paris"]', "holds a list"),
        ({"value": "3", "unit": "cm"}, "holds a dict"),
        (b"3", "holds a bytes"),
    ],
)
def test_what_is_no_single_answer_is_refused_by_name(answer: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=f"column 'solution' {said}"):
        grpo({"prompt": "Capital?", "solution": answer})


# init


def written(tmp_path: Path, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The recipe that init writes for rows, and what it prints."""
    path = write_rows(tmp_path / "rows.jsonl", rows)
    unsaid = dict.fromkeys(("question", "answer", "reasoning", "method", "model"))
    made = tmp_path / "made"
    printed = init.write(Namespace(data=path, cpu=False, output=made, words=[path], **unsaid))
    return yaml.safe_load(next(made.glob("*.yaml")).read_text(encoding="utf-8")), printed


SHAPES: dict[str, tuple[Callable[[int], dict[str, Any]], dict[str, Any], str]] = {
    "alpaca": (
        lambda n: {
            "instruction": f"Task {n}: solve it.",
            "input": f"x - {n} = 2" if n % 3 else "",
            "output": str(n + 2),
        },
        {"mapper": "alpaca"},
        "left out: none",
    ),
    "ms-swift's queries": (
        lambda n: {"query": f"1+{n}?", "response": str(n + 1), "source": "x"},
        {"mapper": "alpaca"},
        "left out: 'source'",
    ),
    "ms-swift's messages": (
        lambda n: {"messages": [{"role": "user", "content": f"1+{n}?"}], "solution": str(n + 1)},
        {"mapper": "prompt_solution", "prompt_column": "messages", "solution_column": "solution"},
        "left out: none",
    ),
    "sharegpt with answers": (
        lambda n: {"conversations": [{"from": "human", "value": f"1+{n}?"}], "answer": str(n + 1)},
        {"prompt_column": "conversations", "solution_column": "answer"},
        "left out: none",
    ),
    "a column that no recipe needs": (
        lambda n: {"question": f"1+{n}?", "answer": str(n + 1), "author": "Ann"},
        {"prompt_column": "question"},
        "left out: 'author'",
    ),
    "answers in lists of one": (
        lambda n: {"question": f"1+{n}?", "final_answer": [str(n + 1)]},
        {"solution_column": "final_answer"},
        "12 numbers",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_init_knows_the_shape(tmp_path: Path, name: str) -> None:
    row, keys, said = SHAPES[name]
    rows = [row(number) for number in range(12)]
    recipe, printed = written(tmp_path, rows)
    assert {key: recipe.get(key) for key in keys} == keys and said in printed
    known = {field.name for field in dataclasses.fields(GRPORecipeArguments)}
    keys = {key: recipe[key] for key in recipe.keys() & known} | {"dataset_train_split": "train"}
    args = GRPORecipeArguments(**keys)
    made, _ = load_dataset(args, get_response_format("boxed", system_prompt=""), "grpo")
    assert len(made) == 12 and made["solution"][0] == str(2 if name == "alpaca" else 1)
    if name == "alpaca":
        assert made[1]["prompt"][-1]["content"] == "Task 1: solve it.\n\nx - 1 = 2"
        assert made[0]["prompt"][-1]["content"] == "Task 0: solve it."


def test_a_template_writes_cells_as_answers_are_read(caplog: pytest.LogCaptureFixture) -> None:
    template = "{question} {price} {day} {none} {nums} \\boxed{answer}"
    day = datetime.date(2024, 1, 5)
    row = {"prompt": "q", "price": 72.0, "day": day, "none": None, "nums": [1, 2], "answer": "7"}
    made = grpo(row, prompt_template=template, solution_column="answer")
    assert made["prompt"][-1]["content"] == "q 72 2024-01-05  [1, 2] \\boxed7"
    assert "prompt_template: {answer} writes the reference answer" in caplog.text


def test_init_says_all_reasons(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": ""}] * 3 + [{"question": "", "answer": "1"}] * 3
    with pytest.raises(RecipeError, match="all rows were dropped") as error:
        written(tmp_path, rows)
    assert "3 dropped: no reference answer" in str(error.value)
    assert "3 dropped: column 'question' is empty" in str(error.value)


def test_init_names_what_prompts_alone_lack(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--answer COLUMN; for prompts without answers"):
        written(tmp_path, [{"prompt": f"POST: {n}"} for n in range(6)])


# Own mappers


def test_a_mapper_of_ones_own_is_a_function_with_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_quiz.py").write_text(
        "def quiz(row, suffix=''):\n"
        "    return {'question': row['frage'] + suffix, 'solution': row['antwort']}\n"
    )
    monkeypatch.chdir(tmp_path)
    rows = Dataset.from_list([{"frage": "1+1", "antwort": "2", "quelle": "x"}])
    keys = {"dataset_name": "rows", "mapper": "own_quiz.py:quiz", "mapper_config": {"suffix": "?"}}
    fmt = get_response_format("boxed", system_prompt="")
    made, report = load_dataset(RecipeArguments(**keys), fmt, "grpo", rows=rows)
    assert made[0]["prompt"] == [ASKED] and made[0]["solution"] == "2"
    assert report.unused == ["quelle"] and made[0]["quelle"] == "x"
    zeros = Dataset.from_list([{"frage": "1-1", "antwort": 0, "quelle": ""}])
    compared = Namespace(**vars(RecipeArguments(**keys)), reward_funcs=["accuracy"])
    assert load_dataset(compared, fmt, "grpo", rows=zeros)[0]["solution"][:] == [0]
    keys["mapper_config"] = {"sufix": "?"}
    with pytest.raises(RecipeError, match="Did you mean 'suffix'"):
        load_dataset(RecipeArguments(**keys), fmt, "grpo", rows=rows)
