"""Data: each mapper reads its data set's true schema, files of every kind are read as they are, and prompts are what the recipe says."""

import csv
import json
import re

import pytest
import yaml

from conftest import HERE, metrics, read, recipe, resolved, write_rows

MAPPERS = {f"{number}-{case['mapper']}": case for number, case in enumerate(yaml.safe_load((HERE / "mappers.yaml").read_text()))}
TARGETS = yaml.safe_load((HERE / "sft_rows.yaml").read_text())
SHORT = {"num_generations": 1, "max_completion_length": 1, "reward_funcs": None}


def made(folder):
    """The rows of the data set that a generate command left."""
    return [json.loads(line) for line in read(folder / "dataset/train.jsonl").splitlines()]


@pytest.fixture(scope="module")
def mapped(commands, lab):
    calls = []
    for name, case in MAPPERS.items():
        write_rows(lab / f"{name}.jsonl", [case["row"]])
        keys = SHORT | {"dataset_name": f"{name}.jsonl", "mapper": case["mapper"]} | case.get("keys", {})
        calls.append(("generate", recipe(lab, name, "generate", **keys), {"cwd": lab}))
    return dict(zip(MAPPERS, commands.each(calls), strict=True))


@pytest.mark.parametrize("name", MAPPERS)
def test_mapper(mapped, lab, name):
    mapped[name].ok()
    case, (row,) = MAPPERS[name], made(lab / name)
    assert all(text in row["question"] for text in case["question"]), row["question"]
    assert not any(text in row["question"] for text in case.get("not", [])), row["question"]
    assert "solution" not in case or row["solution"] == case["solution"]


@pytest.fixture(scope="module")
def learnt(commands, lab):
    """What a tiny model says to each row's question after it learned the rows by heart: the targets of SFT."""
    mixture = {"datasets": []}
    for number, case in enumerate(TARGETS):
        write_rows(lab / f"sft{number}.jsonl", [case["row"]])
        mixture["datasets"].append({"id": f"sft{number}.jsonl", "mapper": case["mapper"], "split": "train"})
    keys = {"dataset_name": None, "mapper": None, "dataset_mixture": mixture, "response_format": "think_prose"}
    training = {"per_device_train_batch_size": len(TARGETS), "learning_rate": 1e-2, "max_steps": 150, "lr_scheduler_type": "cosine", "logging_steps": 50}
    commands("sft", recipe(lab, "by_heart", "sft", **keys, **training), cwd=lab).ok()
    asking = SHORT | keys | {"model_name_or_path": "by_heart", "max_completion_length": 80, "temperature": 0}
    commands("generate", recipe(lab, "said", "generate", **asking), cwd=lab).ok()
    return {row["question"][0]: " ".join(row["response"].split()) for row in made(lab / "said")}


@pytest.mark.parametrize("number", range(len(TARGETS)), ids=[case["mapper"] for case in TARGETS])
def test_target_of_sft(learnt, number):
    assert learnt["ABCDEFG"[number]] == TARGETS[number]["target"]


ROWS = [
    {"question": "Wie viel ist 1000 + 234,5?", "answer": "1.234,5", "nr": "007"},
    {"question": "Wie viel ist NA, in Zahlen?", "answer": "0,10", "nr": "008"},
]
FILES = ["komma.csv", "semikolon.csv", "tab.tsv", "zeilen.jsonl", "liste.json", "spalten.parquet", "ordner", "gespeichert"]


@pytest.fixture(scope="module")
def files(commands, lab, ask):
    for name, separator in (("komma.csv", ","), ("semikolon.csv", ";"), ("tab.tsv", "\t")):
        with open(lab / name, "w", newline="") as file:
            writer = csv.DictWriter(file, ROWS[0], delimiter=separator)
            writer.writeheader()
            writer.writerows(ROWS)
    write_rows(lab / "zeilen.jsonl", ROWS)
    (lab / "liste.json").write_text(json.dumps(ROWS))
    (lab / "ordner").mkdir()
    write_rows(lab / "ordner/train.jsonl", ROWS)
    ask(
        """
        from datasets import Dataset
        rows = Dataset.from_list(data[0])
        rows.save_to_disk(data[1] + "/gespeichert")
        answer = rows.to_parquet(data[1] + "/spalten.parquet")""",
        [ROWS, str(lab)],
    )
    keys = SHORT | {"mapper": "prompt_solution", "prompt_column": "question", "solution_column": "answer"}
    calls = [("generate", recipe(lab, f"read-{name}", "generate", dataset_name=name, **keys), {"cwd": lab}) for name in FILES]
    return dict(zip(FILES, commands.each(calls), strict=True))


@pytest.mark.parametrize("name", FILES)
def test_files_are_read_as_they_are(files, lab, name):
    files[name].ok()
    got = [(row["question"], row["solution"], row["nr"]) for row in made(lab / f"read-{name}")]
    assert got == [(row["question"], row["answer"], row["nr"]) for row in ROWS]


SIZES = {"train": {"size": 6, "seed": 1}, "test": {"size": 4, "seed": 2}}


def test_countdown_puzzles_can_be_solved(commands, lab):
    bounds = {"min_value": 1, "max_value": 20, "min_target": 10, "max_target": 60}
    keys = SHORT | {"dataset_name": "countdown:3-4", "mapper": "countdown", "task_config": SIZES | bounds}
    commands("generate", recipe(lab, "puzzles", "generate", **keys), cwd=lab).ok()
    rows = made(lab / "puzzles")
    assert len(rows) == 6
    for row in rows:
        assert len(row["nums"]) in (3, 4) and str(row["target"]) in row["question"]
        assert eval(row["expression"]) == pytest.approx(row["target"])
        assert sorted(map(int, re.findall(r"\d+", row["expression"]))) == sorted(row["nums"])


def test_a_mixture_by_shares(commands, lab):
    write_rows(lab / "other.jsonl", [{"frage": f"Was ist {n}?", "antwort": str(n)} for n in range(20)])
    parts = [
        {"id": "rows.jsonl", "mapper": "gsm8k", "split": "train", "weight": 0.25},
        {"id": "other.jsonl", "mapper": "own_code:Quiz", "split": "train[:10]", "weight": 0.5},
    ]
    keys = SHORT | {"dataset_name": None, "mapper": None, "dataset_mixture": {"datasets": parts, "seed": 1}}
    commands("generate", recipe(lab, "mixture", "generate", **keys), cwd=lab).ok()
    questions = [row["question"] for row in made(lab / "mixture")]
    assert sum(text.startswith("What") for text in questions) == 6  # a quarter of 24
    german = [text for text in questions if text.startswith("Was")]
    assert len(german) == 5 and set(german) <= {f"Was ist {n}?" for n in range(10)}  # half of ten


def test_modelscope_is_a_hub(commands, lab):
    commands("generate", recipe(lab, "modelscope", "generate", hub="modelscope", max_samples=1, **SHORT), cwd=lab).ok()


def test_rows_that_cannot_be_used_are_counted(commands, lab):
    rows = [
        {"question": "What is 1 + 1?", "answer": "#### 2"},
        {"question": "What is 1 + 2?", "answer": "three"},
        {"question": "What is " + "1 + " * 200 + "1?", "answer": "#### 201"},
    ]
    write_rows(lab / "unusable.jsonl", rows)
    commands("generate", recipe(lab, "usable", "generate", dataset_name="unusable.jsonl", max_prompt_tokens=100, **SHORT), cwd=lab).ok().says("1 of 3")
    assert [row["solution"] for row in made(lab / "usable")] == ["2"]


def test_questions_of_the_test_split_are_not_trained_on(commands, lab, parquet):
    keys = {"dataset_test_split": "train[:23]", "eval_strategy": "epoch", "log_completions": True, "per_device_eval_batch_size": 4}
    commands("grpo", recipe(lab, "overlap", **keys), cwd=lab).ok()
    assert {row["prompt"][0]["content"] for row in parquet(*(lab / "overlap/completions").glob("*.parquet"))} == {"What is 7 + 9?"}


@pytest.fixture(scope="module")
def prompted(commands, lab, parquet):
    """The first prompt of a run, as messages, for each way to change it."""
    write_rows(lab / "fragen.jsonl", [{"frage": f"Was ist {n} + 1?", "antwort": str(n + 1), "level": "easy"} for n in range(4)])
    shot = {"question": "1+1?", "reasoning": "one and one", "answer": "2"}
    ways = {
        "own": {},
        "asked": {"system_prompt": None},
        "template": {"prompt_template": "{question} ({level})"},
        "shots": {"system_prompt": None, "few_shot": [shot]},
        "prefilled": {"system_prompt": None, "prefill": "<think>\n"},
        "replaced": {"system_prompt": "Use <think></think> and <answer></answer>, in German."},
    }
    keys = {"dataset_name": "fragen.jsonl", "mapper": "own_code:Quiz", "max_steps": 1, "log_completions": True}
    calls = [("grpo", recipe(lab, f"prompt-{name}", **keys | way), {"cwd": lab}) for name, way in ways.items()]
    results = dict(zip(ways, commands.each(calls), strict=True))
    return lambda name: (results[name].ok(), parquet(*(lab / f"prompt-{name}/completions").glob("*.parquet"))[0])[1]


def test_a_mapper_and_a_reward_of_ones_own(prompted):
    row = prompted("own")
    (message,) = row["prompt"]
    assert message["role"] == "user" and message["content"] == f"Was ist {int(row['solution']) - 1} + 1?" and 0 <= row["letters"] <= 1


def test_the_format_asks_for_its_tags(prompted):
    system, user = prompted("asked")["prompt"]
    assert system["role"] == "system" and "<think>" in system["content"] and "<answer>" in system["content"] and user["content"].startswith("Was ist")


def test_the_template_wraps_the_question(prompted):
    assert prompted("template")["prompt"][0]["content"].endswith("+ 1? (easy)")


def test_worked_examples_come_first(prompted):
    messages = prompted("shots")["prompt"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[1]["content"] == "1+1?" and messages[2]["content"] == "<think>\none and one\n</think>\n<answer>\n2\n</answer>"


def test_the_system_prompt_is_replaced(prompted):
    assert prompted("replaced")["prompt"][0]["content"] == "Use <think></think> and <answer></answer>, in German."


def test_the_prefill_is_in_the_saved_template(prompted, lab, ask):
    prompted("prefilled")
    text = ask(
        """
        from transformers import AutoTokenizer
        messages, tokenizer = [{"role": "user", "content": "Was?"}], AutoTokenizer.from_pretrained(data)
        answer = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)""",
        str(lab / "prompt-prefilled"),
    )
    assert text.endswith("<think>\n") and "Was?" in text and resolved(lab / "prompt-prefilled")["prefill"] == "<think>\n"


def test_sft_trains_on_the_answer_alone_unless_told_otherwise(commands, lab):
    paths = [recipe(lab, f"loss{whole}", "sft", max_steps=1, completion_only_loss=not whole) for whole in (0, 1)]
    assert all(result.ok() for result in commands.each([("sft", path, {"cwd": lab}) for path in paths]))
    assert metrics(lab / "loss0")[0]["loss"] != pytest.approx(metrics(lab / "loss1")[0]["loss"], abs=1e-3)
