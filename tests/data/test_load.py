"""Source rows -> prompts and targets: mapping, selection, mixtures, and the count of what was left out."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from datasets import Dataset

from r1_recipes import verification
from r1_recipes.data import MAPPERS, load_dataset
from r1_recipes.data.load import LoadReport, build_prompt, drop_overlap
from r1_recipes.errors import RecipeError
from r1_recipes.formats import FORMATS, get_response_format

FMT = get_response_format("think_answer")
DEFAULTS = {
    "dataset_name": "rows",
    "dataset_config": None,
    "dataset_revision": None,
    "dataset_train_split": "train",
    "dataset_test_split": "test",
    "dataset_mixture": None,
    "task_config": None,
    "hub": "huggingface",
    "mapper": "auto",
    "mapper_config": None,
    "prompt_column": None,
    "solution_column": None,
    "reasoning_column": None,
    "keep_columns": None,
    "max_prompt_tokens": None,
    "max_solution_tokens": None,
    "max_samples": None,
    "max_eval_samples": None,
    "few_shot": None,
}


def arguments(**keys):
    assert set(keys) <= set(DEFAULTS)
    return SimpleNamespace(**{**DEFAULTS, **keys})


def gsm8k(number, *, gold=True, words=0):
    question = f"Ana buys {number} pens. " + "More " * words + "How many?"
    return {"question": question, "answer": f"She buys {number}." + (f"\n#### {number}" if gold else "")}


def golds(dataset):
    return [row["solution"] for row in dataset]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """One token a byte, ChatML around the turns."""
    from transformers import AutoTokenizer

    from r1_recipes.smoke import build_tiny_model

    return AutoTokenizer.from_pretrained(build_tiny_model(tmp_path_factory.mktemp("tiny"), {}))


def test_the_arguments_of_these_tests_are_the_recipe_s():
    from r1_recipes.arguments import RecipeArguments

    actual = vars(RecipeArguments(dataset_name="rows"))
    assert DEFAULTS.items() <= actual.items()


def test_grpo_rows_carry_prompt_solution_and_the_source_s_other_columns():
    rows = Dataset.from_list([{**gsm8k(3), "level": 2}, {**gsm8k(4), "level": None}])
    dataset, report = load_dataset(arguments(), FMT, "grpo", rows=rows)
    assert dataset.column_names == ["answer", "level", "prompt", "solution"]
    assert dataset[0] == {
        "answer": "She buys 3.\n#### 3",
        "level": 2,
        "prompt": [{"role": "system", "content": FMT.system_prompt}, {"role": "user", "content": "Ana buys 3 pens. How many?"}],
        "solution": "3",
    }
    assert (report.read, report.kept, dict(report.dropped)) == (2, 2, {})
    assert str(report) == "2 of 2 rows kept"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mapper", ["gsm8k", "math", "arithmetic"])
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


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": [{"role": "user", "content": "2+2?"}], "completion": [{"role": "assistant", "content": "4"}]},
    ],
)
def test_sft_takes_conversations_as_they_are(row):
    empty = {key: type(value)() for key, value in row.items()}
    rows = Dataset.from_list([{**row, "source": "x"}, {**empty, "source": "y"}])
    dataset, report = load_dataset(arguments(), FMT, "sft", rows=rows)
    assert [dict(item) for item in dataset] == [row]
    assert (report.read, report.kept, report.first_index) == (2, 1, {f"column {next(iter(row))!r} is empty": 1})


def test_sft_limits_hold_for_conversations_too(tokenizer):
    def talk(question, answer):
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    rows = Dataset.from_list([talk("q" * 500, "a"), talk("q", "a" * 500), talk("q", "first"), talk("q", "second"), talk("q", "third")])
    args = arguments(max_prompt_tokens=100, max_solution_tokens=100, max_samples=2)
    dataset, report = load_dataset(args, FMT, "sft", rows=rows, tokenizer=tokenizer)
    assert [row["messages"][-1]["content"] for row in dataset] == ["first", "second"]
    assert (report.read, report.kept) == (4, 2)
    assert report.first_index == {"prompt over max_prompt_tokens 100": 0, "solution over max_solution_tokens 100": 1}


def test_text_golds_stay_text_whatever_the_source_column_was():
    # A source column named solution, of numbers, must not lend its type: 007 is a gold, and so is 1/2 in row 1,500.
    rows = Dataset.from_list([{"prompt": f"p{i}", "solution": i, "unit": "m"} for i in range(1500)])
    dataset, _ = load_dataset(arguments(), FMT, "grpo", rows=rows)
    assert golds(dataset)[:3] == ["0", "1", "2"]
    mixed = Dataset.from_list([{"question": "q", "answer": f"#### {'007' if i < 1500 else '1/2'}", "solution": i} for i in range(1501)])
    dataset, _ = load_dataset(arguments(), FMT, "grpo", rows=mixed)
    assert (dataset[0]["solution"], dataset[1500]["solution"]) == ("007", "1/2")


def test_reserved_source_columns_do_not_reach_the_rewards():
    row = {"problem": "p", "answer": "1", "messages": [], "images": None, "trainer_state": 1, "level": 3}
    dataset, _ = load_dataset(arguments(), FMT, "grpo", rows=Dataset.from_list([row]))
    assert set(dataset.column_names) == {"prompt", "solution", "answer", "problem", "level"}


def test_a_long_run_of_unusable_rows_in_front_does_no_harm():
    rows = Dataset.from_list([gsm8k(i, gold=i >= 2300) for i in range(2305)])
    dataset, report = load_dataset(arguments(), FMT, "grpo", rows=rows)
    assert golds(dataset) == ["2300", "2301", "2302", "2303", "2304"]
    assert report.dropped == {"no '#### gold' in column 'answer'": 2300}


def test_the_report_counts_each_reason_and_where_it_began(tokenizer):
    rows = [gsm8k(0), gsm8k(1, gold=False), {"question": "", "answer": "#### 2"}, gsm8k(3, gold=False), gsm8k(4, words=500)]
    dataset, report = load_dataset(arguments(max_prompt_tokens=600), FMT, "grpo", rows=Dataset.from_list(rows), tokenizer=tokenizer)
    assert golds(dataset) == ["0"]
    assert (report.read, report.kept) == (5, 1)
    assert report.dropped == {
        "no '#### gold' in column 'answer'": 2,
        "column 'question' is empty": 1,
        "prompt over max_prompt_tokens 600": 1,
    }
    assert report.first_index == {
        "no '#### gold' in column 'answer'": 1,
        "column 'question' is empty": 2,
        "prompt over max_prompt_tokens 600": 4,
    }
    assert "2 dropped: no '#### gold' in column 'answer' (first: row 1)" in str(report)


def test_prompt_tokens_are_those_of_the_rendered_prompt(tokenizer):
    row = gsm8k(5)
    prompt = build_prompt(row["question"], FMT)
    size = len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"])
    rows = Dataset.from_list([row])
    assert len(load_dataset(arguments(max_prompt_tokens=size), FMT, "grpo", rows=rows, tokenizer=tokenizer)[0]) == 1
    with pytest.raises(RecipeError, match=rf"no row is left: 0 of 1 rows kept; 1 dropped: prompt over max_prompt_tokens {size - 1}"):
        load_dataset(arguments(max_prompt_tokens=size - 1), FMT, "grpo", rows=rows, tokenizer=tokenizer)


def test_solution_tokens_are_those_of_the_worked_solution(tokenizer):
    rows = Dataset.from_list([gsm8k(7)])
    size = len(b"She buys 7.\n7")  # one token a byte: reasoning, a line break, the gold
    assert len(load_dataset(arguments(max_solution_tokens=size), FMT, "grpo", rows=rows, tokenizer=tokenizer)[0]) == 1
    with pytest.raises(RecipeError, match=f"solution over max_solution_tokens {size - 1}"):
        load_dataset(arguments(max_solution_tokens=size - 1), FMT, "grpo", rows=rows, tokenizer=tokenizer)


@pytest.mark.parametrize("limit", [1, 5, 120])
def test_max_samples_is_the_first_rows_that_fit_and_reading_stops_there(limit, tokenizer):
    # Every third row is too long, so the first N that fit reach to about row 1.5 N.
    rows = Dataset.from_list([gsm8k(i, words=120 if i % 3 == 0 else 0) for i in range(2500)])
    limits = {"max_prompt_tokens": 500}
    everything, _ = load_dataset(arguments(**limits), FMT, "grpo", rows=rows.select(range(400)), tokenizer=tokenizer)
    dataset, report = load_dataset(arguments(max_samples=limit, **limits), FMT, "grpo", rows=rows, tokenizer=tokenizer)
    assert golds(dataset) == golds(everything)[:limit]
    assert (report.kept, report.read) == (limit, 1000)  # of 2,500


def test_reading_goes_on_until_there_is_enough():
    rows = Dataset.from_list([gsm8k(i, gold=i in (5, 1005, 2405, 2406)) for i in range(2500)])
    dataset, report = load_dataset(arguments(max_samples=3), FMT, "grpo", rows=rows)
    assert golds(dataset) == ["5", "1005", "2405"]
    assert (report.read, report.kept) == (2500, 3)
    assert report.first_index == {"no '#### gold' in column 'answer'": 0}


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
    assert str(error.value) == "dataset rows: mapper 'gsm8k' needs column 'question', 'answer'; the columns there are: text, label"
    with pytest.raises(RecipeError, match=r"needs column 'gold'; the columns there are: text, label"):
        load_dataset(arguments(prompt_column="text", solution_column="gold"), FMT, "grpo", rows=rows)
    dataset, _ = load_dataset(arguments(prompt_column="text", solution_column="label"), FMT, "grpo", rows=rows)
    assert golds(dataset) == ["1"]


def test_keep_columns():
    rows = Dataset.from_list([{**gsm8k(1), "level": 1, "source": "x"}])
    dataset, _ = load_dataset(arguments(keep_columns=["level"]), FMT, "grpo", rows=rows)
    assert set(dataset.column_names) == {"prompt", "solution", "level"}
    dataset, _ = load_dataset(arguments(keep_columns=[]), FMT, "grpo", rows=rows)
    assert set(dataset.column_names) == {"prompt", "solution"}
    with pytest.raises(RecipeError, match=r"keep_columns: dataset rows: unknown column 'levle'. Did you mean 'level'"):
        load_dataset(arguments(keep_columns=["levle"]), FMT, "grpo", rows=rows)


def test_few_shot_turns_are_written_in_the_format():
    turn = {"question": "1+1?", "reasoning": "1 and 1 is 2.", "answer": 2}
    dataset, _ = load_dataset(arguments(few_shot=[turn]), FMT, "grpo", rows=Dataset.from_list([gsm8k(8)]))
    assert [message["role"] for message in dataset[0]["prompt"]] == ["system", "user", "assistant", "user"]
    assert dataset[0]["prompt"][2]["content"] == FMT.render("1 and 1 is 2.", "2")


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([{"question": "q", "answer": "1"}], "few_shot: entry 1 needs question, reasoning and answer"),
        (["1+1=2"], "few_shot: entry 1 needs question, reasoning and answer, found '1[+]1=2'"),
        (
            [{"question": "q", "reasoning": "r", "answer": "1"}, {"question": "q", "reasoning": "</think>", "answer": "1"}],
            "few_shot: entry 2: ",
        ),
        ([{"question": "q", "reasoning": "r", "answer": "1", "note": "n"}], "few_shot: entry 1 needs"),
    ],
)
def test_a_few_shot_turn_that_cannot_be_used_is_refused(turns, message):
    with pytest.raises(RecipeError, match=message):
        load_dataset(arguments(few_shot=turns), FMT, "grpo", rows=Dataset.from_list([gsm8k(8)]))


def test_an_empty_system_prompt_sends_no_system_message():
    dataset, _ = load_dataset(arguments(), replace(FMT, system_prompt=""), "grpo", rows=Dataset.from_list([gsm8k(8)]))
    assert [message["role"] for message in dataset[0]["prompt"]] == ["user"]


def test_sft_needs_reasoning():
    rows = Dataset.from_list([{"prompt": "p", "solution": "1"}])
    with pytest.raises(RecipeError, match="no reasoning to train on"):
        load_dataset(arguments(), FMT, "sft", rows=rows)


def test_an_empty_source_is_an_error_too():
    with pytest.raises(RecipeError, match="no row is left: 0 of 0 rows kept"):
        load_dataset(arguments(), FMT, "grpo", rows=Dataset.from_list([gsm8k(1)]).select([]))


@pytest.fixture
def parts(tmp_path):
    """40 grade-school rows and 20 competition rows, in two files."""
    first = write_jsonl(tmp_path / "first.jsonl", [gsm8k(i) for i in range(40)])
    second = write_jsonl(tmp_path / "second.jsonl", [{"problem": f"Problem {i}", "answer": str(i), "level": 1} for i in range(100, 120)])
    return first, second


def mixture_arguments(parts, first=None, second=None, **keys):
    datasets = [{"id": parts[0], **(first or {})}, {"id": parts[1], **(second or {})}]
    return arguments(dataset_name=None, dataset_mixture={"datasets": datasets, **keys})


def test_mixture_takes_a_share_of_each_and_shuffles_by_its_seed(parts):
    args = mixture_arguments(parts, {"weight": 0.25}, {"columns": ["problem", "answer"], "weight": 0.5}, seed=3)
    dataset, report = load_dataset(args, FMT, "grpo")
    numbers = [int(gold) for gold in golds(dataset)]
    assert (sum(n < 40 for n in numbers), sum(n >= 100 for n in numbers)) == (10, 10)
    assert numbers != sorted(numbers)
    assert dataset.column_names == ["prompt", "solution"]
    assert (report.read, report.kept) == (20, 20)
    assert golds(load_dataset(args, FMT, "grpo")[0]) == golds(dataset)
    args.dataset_mixture["seed"] = 4
    assert golds(load_dataset(args, FMT, "grpo")[0]) != golds(dataset)


@pytest.mark.parametrize(("size", "count"), [(0.1, 6), (7, 7)])
def test_mixture_test_split_is_disjoint_and_stable(parts, size, count):
    args = mixture_arguments(parts, test_split_size=size)
    train, test = (load_dataset(args, FMT, "grpo", split=split)[0] for split in ("train", "test"))
    assert (len(train), len(test)) == (60 - count, count)
    assert not set(golds(train)) & set(golds(test))
    assert golds(load_dataset(args, FMT, "grpo", split="test")[0]) == golds(test)
    args.max_samples, args.max_eval_samples = 5, 2
    assert golds(load_dataset(args, FMT, "grpo")[0]) == golds(train)[:5]
    assert golds(load_dataset(args, FMT, "grpo", split="test")[0]) == golds(test)[:2]


def test_mixture_of_tasks_each_with_its_own_config_and_scorer(parts):
    sizes = {"train": {"size": 5, "seed": 1}, "test": {"size": 2, "seed": 9}}
    datasets = [
        {"id": "reasoning_gym:chain_sum", "task_config": {**sizes, "min_terms": 2}},
        {"id": "reasoning_gym:gcd", "task_config": {**sizes, "max_numbers": 2}},
        {"id": parts[0], "weight": 0.1},
    ]
    dataset, _ = load_dataset(arguments(dataset_name=None, dataset_mixture={"datasets": datasets}), FMT, "grpo")
    assert len(dataset) == 14
    scored = [row for row in dataset if row["scorer"]]
    assert len(scored) == 10
    assert all(verification.score([row["scorer"] for row in scored], golds(scored)))


def test_mixture_keeps_only_the_columns_it_is_told_to(tmp_path, parts):
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
        (lambda m: m["datasets"][0].update(wieght=1), "dataset 1: unknown key 'wieght'. Did you mean 'weight'"),
        (lambda m: m["datasets"][0].update(weight=1.5), r"dataset 1 \(.*first.jsonl\): weight is the share of its rows.*found 1.5"),
        (lambda m: m["datasets"][1].update(weight=0), "dataset 2 .*found 0"),
        (lambda m: m["datasets"][1].update(weight="half"), "found 'half'"),
        (lambda m: m["datasets"][1].update(weight=0.001), r"dataset 2 \(.*second.jsonl, weight 0.001\): no row is left"),
        (lambda m: m["datasets"][1].update(columns=["problm"]), "unknown column of .*second.jsonl 'problm'. Did you mean 'problem'"),
        (lambda m: m["datasets"][1].pop("id"), "dataset 2: needs id"),
        (lambda m: m.update(datasets=[]), "needs datasets: a list of mappings with id"),
        (lambda m: m.update(datasets="a, b"), "needs datasets"),
        (lambda m: m.update(test_split_size=60), "test_split_size 60 leaves no rows on one side of 60"),
        (lambda m: m.update(test_split_size=0.0), "leaves no rows on one side"),
        (lambda m: m.update(test_split_size="0.1"), "test_split_size: a share below 1 or a number of rows, found '0.1'"),
        (lambda m: m.update(seed=None), "seed: a whole number, found None"),
    ],
)
def test_a_mixture_that_cannot_be_made_names_the_fault(parts, change, message):
    args = mixture_arguments(parts)
    change(args.dataset_mixture)
    with pytest.raises(RecipeError, match=message):
        load_dataset(args, FMT, "grpo")


def test_a_mixture_without_test_split_has_none(parts):
    with pytest.raises(RecipeError, match="evaluation is on, but test_split_size is not set"):
        load_dataset(mixture_arguments(parts), FMT, "grpo", split="test")


def test_a_mixture_of_conversations_and_rows_is_refused(tmp_path, parts):
    talks = write_jsonl(tmp_path / "talks.jsonl", [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}])
    with pytest.raises(RecipeError, match="hold different columns"):
        load_dataset(mixture_arguments((parts[0], talks)), FMT, "sft")


@pytest.mark.parametrize("shape", ["messages", "text", "prompt"])
def test_drop_overlap_leaves_out_questions_of_the_held_out_set(shape):
    def row(question):
        user = {"role": "user", "content": question}
        if shape == "messages":
            return {"messages": [{"role": "system", "content": question}, user, {"role": "assistant", "content": "x"}]}
        return {"prompt": question} if shape == "text" else {"prompt": [{"role": "system", "content": "s"}, user], "level": 1}

    train = Dataset.from_list([row(q) for q in ("one  two", "three", "four")])
    kept, dropped = drop_overlap(train, Dataset.from_list([row(q) for q in ("one\ntwo ", "five")]))
    assert (len(kept), dropped) == (2, 1)
    assert [dict(item) for item in kept] == [row("three"), row("four")]
    assert drop_overlap(train, Dataset.from_list([row("six")])) == (train, 0)


def test_an_unused_report_reads_well():
    assert str(LoadReport()) == "0 of 0 rows kept"
