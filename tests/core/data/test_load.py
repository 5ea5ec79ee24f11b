"""Source rows -> prompts and targets: mapping, selection, mixtures, and the count of what was left
out.
"""

import json

import pytest
from datasets import Dataset

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper, load_dataset
from r1_recipes.data.load import build_prompt, drop_overlap
from r1_recipes.data.mappers import example_rows
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.recipe.types import RecipeArguments

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
@pytest.mark.parametrize("mapper", ["gsm8k", "math"])
def test_sft_targets_are_what_the_format_renders(name, mapper):
    fmt = FORMATS[name]
    examples = example_rows(mapper)
    columns = dict.fromkeys(key for row in examples for key in row)
    rows = Dataset.from_list([{key: row.get(key) for key in columns} for row in examples])
    try:
        dataset, _ = load_dataset(arguments(mapper=mapper), fmt, "sft", rows=rows)
    except RecipeError as error:  # a format may be unable to write a row, and says so
        assert f"cannot be written in format {name!r}" in str(error)
        return
    assert dataset.column_names == ["prompt", "completion"]
    mapped = [get_mapper(mapper)(row) for row in examples]
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


def generated(response, **columns):
    return {"question": "2+2?", "response": response, "solution": "4", "pass_rate": 1.0, **columns}


def test_reasoning_and_answer_columns_are_written_in_the_format():
    rows = Dataset.from_list([{"q": "2+2?", "cot": "2 and 2.", "out": "4"}])
    config = {"question_column": "q", "reasoning_column": "cot", "answer_column": "out"}
    (row,) = load_dataset(
        arguments(mapper="reasoning_columns", mapper_config=config), FMT, "sft", rows=rows
    )[0]
    assert row["completion"] == [turn("assistant", FMT.render("2 and 2.", "4"))]


def returning(row):
    """Return what no mapper should, in the second row."""
    return {"question": row["data"]} if row["data"] == "0" else RETURNED[row["data"]]


RETURNED = {
    "none": None,
    "keys": {"frage": "1+1?", "antwort": "2"},
    "empty": {},
    "text": "1+1?",
    "number": {"question": 7, "solution": "7"},
    "nothing": {"question": None},
}


@pytest.mark.parametrize("kind", RETURNED)
@pytest.mark.parametrize("method", ["grpo", "generate"])
def test_what_a_mapper_of_ones_own_returns_is_checked(kind, method):
    rows = Dataset.from_list([{"data": "0"}, {"data": kind}])
    with pytest.raises(RecipeError, match="mapper: must return") as refused:
        load_dataset(arguments(mapper=f"{__name__}:returning"), FMT, method, rows=rows)
    assert repr(RETURNED[kind])[:20] in str(refused.value)
    assert "raise SkipRow" in str(refused.value)


def test_distillation_takes_prompts_alone():
    dataset, _ = load_dataset(
        arguments(), FMT, "distill", rows=Dataset.from_list([{**gsm8k(3), "level": 2}])
    )
    assert dataset.column_names == ["prompt"]
    assert dataset[0]["prompt"][-1] == turn("user", "Ana buys 3 pens. How many?")


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


@pytest.mark.parametrize("limit", [1, 120])
def test_max_samples_is_the_first_rows_that_fit(limit, tokenizer):
    rows = Dataset.from_list([gsm8k(i, words=120 if i % 3 == 0 else 0) for i in range(400)])
    limits = {"max_prompt_tokens": 500}
    everything, _ = load_dataset(arguments(**limits), FMT, "grpo", rows=rows, tokenizer=tokenizer)
    dataset, report = load_dataset(
        arguments(max_samples=limit, **limits), FMT, "grpo", rows=rows, tokenizer=tokenizer
    )
    assert golds(dataset) == golds(everything)[:limit]
    assert report.kept == limit


def test_a_missing_column_names_column_dataset_and_what_there_is():
    rows = Dataset.from_list([{"text": "q", "label": "1"}])
    with pytest.raises(RecipeError) as error:
        load_dataset(arguments(mapper="gsm8k"), FMT, "grpo", rows=rows)
    said = str(error.value)
    assert all(word in said for word in ("gsm8k", "'question'", "text, label"))
    with pytest.raises(RecipeError, match=r"solution_column: .*'gold'.*label, text"):
        load_dataset(
            arguments(prompt_column="text", solution_column="gold"), FMT, "grpo", rows=rows
        )
    dataset, _ = load_dataset(
        arguments(prompt_column="text", solution_column="label"), FMT, "grpo", rows=rows
    )
    assert golds(dataset) == ["1"]


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
        (lambda m: m["datasets"][1].pop("id"), "dataset 2: id: missing"),
        (lambda m: m.update(datasets=[]), "datasets: must be a list of mappings"),
        (lambda m: m.update(test_split_size=60), "test_split_size: test_size=60"),
        (lambda m: m["datasets"][1].update(task=3), "different types in one column"),
    ],
)
def test_a_mixture_that_cannot_be_made_names_the_fault(parts, change, message):
    args = mixture_arguments(parts)
    change(args.dataset_mixture)
    with pytest.raises(RecipeError, match=message):
        load_dataset(args, FMT, "grpo")


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
