"""Source rows become prompts and targets: what is selected, mixed, limited and counted."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import SkipRow, load_dataset
from r1_recipes.data.mappers import get_mapper
from r1_recipes.data.prompt import build_prompt
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import RecipeArguments

FMT = get_response_format("think_answer")


def arguments(**keys: Any) -> RecipeArguments:
    return RecipeArguments(**{"dataset_name": "rows", "mapper": "gsm8k", **keys})


def gsm8k(number: int, words: int = 0) -> dict[str, str]:
    question = f"Ana buys {number} pens. " + "More " * words + "How many?"
    return {"question": question, "answer": f"She buys {number}.\n#### {number}"}


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Any:
    """One token a byte, ChatML around the turns."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


def test_grpo_rows_carry_prompt_solution_and_the_source_s_other_columns() -> None:
    rows = Dataset.from_list([{**gsm8k(3), "level": 2}, {**gsm8k(4), "level": None}])
    dataset, report = load_dataset(arguments(), FMT, "grpo", rows=rows)
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
    assert str(report) == "2 of 2 rows kept" and report.unused == ["level"]


def test_chats_of_which_only_a_late_one_has_earlier_turns() -> None:
    """datasets types a column by the first thousand rows."""
    talk = [{"role": role, "content": "Hi"} for role in ("user", "assistant") * 2]
    rows = [{"messages": talk[:2]}] * 1005 + [{"messages": talk}]
    dataset, _ = load_dataset(
        arguments(mapper="conversations"), FMT, "generate", rows=Dataset.from_list(rows)
    )
    again = get_mapper("generated")
    assert "messages" not in again({**dataset[0], "pass_rate": 1.0})
    assert again({**dataset[-1], "pass_rate": 1.0})["messages"] == talk[:3]


@pytest.mark.parametrize("config", [{"well_formed": True}, {"wel_formed": True}])
def test_sft_on_chats_takes_its_mapper_config(config: dict[str, Any]) -> None:
    talk = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    script = arguments(mapper="auto", mapper_config=config)
    rows = Dataset.from_list([{"messages": talk}])
    # No tags; an unknown key
    with pytest.raises(RecipeError, match=r"all rows were dropped|'wel_formed'"):
        load_dataset(script, FMT, "sft", rows=rows)


def own(row: dict[str, Any]) -> Any:
    if row["data"] == "skipped":
        raise SkipRow("I do not want it")
    return RETURNED[row["data"]]


RETURNED = {
    "good": {"question": "1+1?", "solution": "2"},
    "none": None,
    "keys": {"frage": "1+1?", "antwort": "2"},
    "text": "1+1?",
}


@pytest.mark.parametrize("kind", ["none", "keys", "text"])
def test_what_a_mapper_of_ones_own_returns_is_checked(kind: str) -> None:
    rows = Dataset.from_list([{"data": "good"}, {"data": kind}])
    with pytest.raises(RecipeError, match=r"must return .* or raise SkipRow\('why'\)"):
        load_dataset(arguments(mapper=f"{__name__}:own"), FMT, "grpo", rows=rows)


def test_a_mapper_of_ones_own_skips_rows_and_its_errors_pass() -> None:
    rows = Dataset.from_list([{"data": name} for name in ("good", "skipped", "skipped")])
    dataset, report = load_dataset(arguments(mapper=f"{__name__}:own"), FMT, "grpo", rows=rows)
    assert len(dataset) == 1 and report.dropped == {"I do not want it": 2}
    rows = Dataset.from_list([{"data": "missing"}])
    with pytest.raises(KeyError, match="missing"):
        load_dataset(arguments(mapper=f"{__name__}:own"), FMT, "grpo", rows=rows)


def test_what_a_trainer_caches_belongs_to_the_rows_and_not_to_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Dataset.from_list([{"data": "good"}])
    load = lambda: load_dataset(arguments(mapper=f"{__name__}:own"), FMT, "grpo", rows=rows)[0]  # noqa: E731
    first, again = load()._fingerprint, load()._fingerprint
    monkeypatch.setitem(RETURNED, "good", {"question": "1+1?", "solution": "3"})
    assert first == again != load()._fingerprint


@pytest.mark.parametrize(
    ("template", "asked"),
    [
        # filled once
        ("{question}\nDraft: {response}\nGold: {solution}", "2+2?\nDraft: see {solution}\nGold: 4"),
        (
            r"{question} in \boxed{} as $\frac{1}{2}$, {x}",
            r"2+2? in \boxed{} as $\frac{1}{2}$, {x}",
        ),
        ("{question} {level} {nothing} {tags}", '2+2? 3  ["é"]'),
        ("{{question}}", "{2+2?}"),
    ],
)
def test_a_prompt_template_is_filled_by_name(template: str, asked: str) -> None:
    row = {"question": "2+2?", "response": "see {solution}", "solution": "4", "pass_rate": 1.0}
    rows = Dataset.from_list([row | {"level": 3, "nothing": None, "tags": ["é"]}])
    args = arguments(mapper="generated", prompt_template=template)
    (made,) = load_dataset(args, FMT, "generate", rows=rows)[0]
    assert made["prompt"][-1]["content"] == asked
    assert (made["question"], made["response"]) == ("2+2?", "see {solution}")


def test_prompt_tokens_are_those_of_the_rendered_prompt(tokenizer: Any) -> None:
    rows = Dataset.from_list([gsm8k(5)])
    prompt = build_prompt([{"role": "user", "content": gsm8k(5)["question"]}], FMT)
    encoded = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    size = len(encoded["input_ids"])
    args = arguments(max_prompt_tokens=size)
    assert len(load_dataset(args, FMT, "grpo", rows=rows, tokenizer=tokenizer)[0]) == 1
    args = arguments(max_prompt_tokens=size - 1)
    with pytest.raises(RecipeError, match=f"all rows .* prompt over max_prompt_tokens {size - 1}"):
        load_dataset(args, FMT, "grpo", rows=rows, tokenizer=tokenizer)


def test_max_samples_are_the_first_rows_that_fit(tokenizer: Any) -> None:
    rows = Dataset.from_list([gsm8k(i, words=120 if i % 3 == 0 else 0) for i in range(30)])
    args = arguments(max_samples=5, max_prompt_tokens=500)
    dataset, report = load_dataset(args, FMT, "grpo", rows=rows, tokenizer=tokenizer)
    assert dataset["solution"][:] == ["1", "2", "4", "5", "7"] and report.kept == 5


def test_a_worked_solution_in_a_box_starts_with_the_prefill() -> None:
    boxed = dataclasses.replace(get_response_format("boxed"), prefill="Let me see. ")
    row = {"problem": "1+1?", "solution": r"So \boxed{2}.", "answer": "2"}
    dataset, _ = load_dataset(arguments(mapper="math"), boxed, "sft", rows=Dataset.from_list([row]))
    assert dataset["completion"][0][0]["content"] == r"Let me see. So \boxed{2}."


def test_a_worked_example_without_its_parts_is_refused() -> None:
    args = arguments(few_shot=[{"question": "1+1?"}])
    with pytest.raises(RecipeError, match="few_shot: entry 1: must be a mapping of question"):
        load_dataset(args, FMT, "grpo", rows=Dataset.from_list([gsm8k(8)]))


# Mixtures


@pytest.fixture
def mixture(tmp_path: Path) -> Callable[..., RecipeArguments]:
    """40 grade-school rows and 20 competition rows, in two files."""
    first = write_jsonl(tmp_path / "first.jsonl", [gsm8k(i) for i in range(40)])
    harder = [{"problem": f"Problem {i}", "answer": str(i), "level": 1} for i in range(100, 120)]
    second = write_jsonl(tmp_path / "second.jsonl", harder)

    def make(first_keys: Any = None, second_keys: Any = None, **keys: Any) -> RecipeArguments:
        parts = [{"id": first, **(first_keys or {})}, {"id": second, **(second_keys or {})}]
        settings = {"datasets": parts, **keys}
        return arguments(dataset_name=None, mapper="auto", dataset_mixture=settings)

    return make


def test_a_mixture_is_shuffled_by_its_seed(mixture: Callable) -> None:
    parts = [{"weight": 0.25}, {"columns": ["problem", "answer"], "weight": 0.5}]
    one, again, other = (
        load_dataset(mixture(*parts, seed=seed), FMT, "grpo")[0]["solution"][:]
        for seed in (3, 3, 4)
    )
    assert len(one) == 20 and one == again != other != one != sorted(one, key=int)


def test_a_mixture_is_split_by_its_seed_whatever_is_too_long(
    mixture: Callable, tokenizer: Any
) -> None:
    """An evaluation has no limit of length, and must not see rows of the training."""
    args = mixture(seed=1, test_split_size=12)
    test = load_dataset(args, FMT, "grpo", split="test")[0]["solution"][:]
    longer = build_prompt(
        [{"role": "user", "content": gsm8k(10)["question"]}], FMT
    )  # than those of Ana's first ten purchases
    encoded = tokenizer.apply_chat_template(longer, add_generation_prompt=True, return_dict=True)
    args.max_prompt_tokens = len(encoded["input_ids"]) - 1
    train, report = load_dataset(args, FMT, "grpo", tokenizer=tokenizer)
    assert len(test) == 12 and not {*test} & {*train["solution"]}
    assert 0 < sum(report.dropped.values()) < 48


FAULTS = [
    ({"sed": 1}, {}, "dataset_mixture: unknown key 'sed'. Did you mean 'seed'"),
    ({"test_split_size": 60}, {}, "dataset_mixture: test_size=60"),
    ({}, {"weight": 1.5}, r"dataset 2: weight: must be .*, in \(0, 1\], got 1.5"),
    ({}, {"weight": 0.001}, r"dataset 2 \(.*\): all rows were dropped"),
    ({}, {"id": ...}, "dataset 2: .* missing .*'id'"),
    ({}, {"mapper": "gsm8k"}, "dataset 2 .* needs column 'question'"),
]


@pytest.mark.parametrize(("keys", "second", "message"), FAULTS)
def test_a_mixture_that_cannot_be_made_names_the_fault(
    mixture: Callable, keys: dict, second: dict, message: str
) -> None:
    args = mixture(None, second, **keys)
    parts = args.dataset_mixture["datasets"]
    parts[1] = {key: value for key, value in parts[1].items() if value is not ...}
    with pytest.raises((RecipeError, ValueError), match=message):
        load_dataset(args, FMT, "grpo")


def test_each_part_of_a_mixture_has_a_split_of_its_own(mixture: Callable) -> None:
    args = mixture({"split": "train[:3]"}, {"split": "train[:2]"})
    assert len(load_dataset(args, FMT, "grpo")[0]) == 5
    args.dataset_train_split = "train[:9]"  # would be ignored
    with pytest.raises(RecipeError, match="dataset_train_split: must be unset"):
        load_dataset(args, FMT, "grpo")


@pytest.mark.parametrize("method", ["grpo", "generate"])
def test_a_part_names_its_task_and_its_instruction(mixture: Callable, method: str) -> None:
    args = mixture(None, {"task": "hard", "system_prompt": ""})
    dataset, _ = load_dataset(args, FMT, method)
    found = {(int(row["solution"]) >= 100, row["task"], len(row["prompt"])) for row in dataset}
    assert found == {(True, "hard", 1), (False, "", 2)}
