"""500 rows of ten shapes, as people write them who have not read the code: preflight and a step of
training take them, and each text of a row is in what a trainer gets, or named.
"""

import contextlib
import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r1_recipes.data import load_dataset
from r1_recipes.data.messages import parsed
from r1_recipes.models.load import load_tokenizer
from r1_recipes.recipe import load_recipe
from tests.core.data.test_shapes import leaves

Rng = random.Random
WORDS = [
    "apples",
    "3 + 4",
    "苹果有几个？",
    "¿cuántas?",
    "  two  spaces",
    "{x}",
    "$\\frac{1}{2}$",
    "🙂",
]


def words(rng: Rng, tag: str) -> str:
    return f"{tag} {' '.join(rng.sample(WORDS, 3))}"


def turn(rng: Rng, role: str, tag: str, **more: Any) -> dict[str, Any]:
    content: Any = words(rng, tag)
    if rng.random() < 0.3:
        content = [{"type": "text", "text": part} for part in (content[:9], content[9:])]
    return {"role": role, "content": content, **more}


def chat(rng: Rng, tag: str, **last: Any) -> list[dict[str, Any]]:
    turns = [turn(rng, rng.choice(["system", "developer"]), f"{tag}a")] * (rng.random() < 0.5)
    for n in range(rng.randrange(3)):
        turns += [turn(rng, "user", f"{tag}b{n}"), turn(rng, "assistant", f"{tag}c{n}")]
    return [*turns, turn(rng, "user", f"{tag}d"), turn(rng, "assistant", f"{tag}e", **last)]


def messages(rng: Rng, tag: str) -> dict[str, Any]:
    name = rng.choice([None, "", f"{tag}name"])
    return {"messages": chat(rng, tag, name=name, tool_calls=None), "source": f"{tag}s"}


def reasoned(rng: Rng, tag: str) -> dict[str, Any]:
    key, thought = rng.choice(["reasoning_content", "thinking"]), rng.choice(["", f"{tag}why"])
    return {"messages": chat(rng, tag, **{key: thought})}


def sharegpt(rng: Rng, tag: str) -> dict[str, Any]:
    speakers = [rng.choice(["human", "user"]), rng.choice(["gpt", "assistant"])]
    turns = [{"from": who, "value": words(rng, tag + who)} for who in speakers * rng.choice([1, 2])]
    return {"system": rng.choice(["", None, f"{tag}sys"]), "conversations": turns}


def alpaca(rng: Rng, tag: str) -> dict[str, Any]:
    about = rng.choice(["", None, words(rng, f"{tag}in")])
    return {"instruction": words(rng, tag), "input": about, "output": words(rng, f"{tag}out")}


def swift(rng: Rng, tag: str) -> dict[str, Any]:
    history = [[f"{tag}h{n}", f"{tag}g{n}"] for n in range(rng.randrange(3))]
    row = {"system": f"{tag}s", "query": words(rng, tag), "response": f"{tag}r"}
    return row | {"history": history or None}


def verl(rng: Rng, tag: str) -> dict[str, Any]:
    gold: Any = f"{tag}gold"
    rule = {"style": "rule", "ground_truth": rng.choice([gold, [gold], {"target": [gold]}])}
    row = {"data_source": f"{tag}set", "prompt": [turn(rng, "user", tag)], "ability": f"{tag}math"}
    return row | {"reward_model": json.dumps(rule, ensure_ascii=False)}


def completion(rng: Rng, tag: str) -> dict[str, Any]:
    *asked, said = chat(rng, tag)
    return {"prompt": asked, "completion": [said]}


def as_text(rng: Rng, tag: str) -> dict[str, Any]:
    write = rng.choice([json.dumps, str])
    return {"messages": write(chat(rng, tag)), "id": f"{tag}id"}


def answers(rng: Rng, tag: str) -> dict[str, Any]:
    gold = rng.choice([[f"{tag}x"], [], [f"{tag}p", f"{tag}q"]])
    return {"问题": words(rng, tag), "答案": gold, "解释": rng.choice(["", None, f"{tag}why"])}


def table(rng: Rng, tag: str) -> dict[str, Any]:
    return {"prompt": words(rng, tag), "solution": rng.choice(["007", "NA", "", f"{tag}1,5"])}


COLUMNS = {"prompt_column": "问题", "solution_column": "答案", "reasoning_column": "解释"}
SHAPES: dict[Callable[[Rng, str], dict[str, Any]], dict[str, Any]] = {
    messages: {"mapper": "conversations", "mapper_config": {"well_formed": False}},
    reasoned: {"mapper": "conversations", "mapper_config": {"well_formed": False}},
    sharegpt: {"mapper": "conversations", "mapper_config": {"well_formed": False}},
    as_text: {"mapper": "conversations", "mapper_config": {"well_formed": False}},
    alpaca: {"mapper": "auto"},
    swift: {"mapper": "auto"},
    completion: {"mapper": "prompt_completion"},
    verl: {"mapper": "verl"},
    answers: {"mapper": "prompt_solution", "mapper_config": COLUMNS},
    table: {"mapper": "prompt_solution"},
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """50 rows of each shape, by file."""
    folder, found = tmp_path_factory.mktemp("newcomers"), {}
    for shape in SHAPES:
        rng = Rng(shape.__name__)
        rows = [shape(rng, f"{shape.__name__}{n:02}") for n in range(50)]
        path = folder / f"{shape.__name__}.{'csv' if shape is table else 'jsonl'}"
        with path.open("w", encoding="utf-8", newline="") as file:
            if shape is table:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
            else:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        found[str(path)] = rows
    return found


@pytest.fixture
def recipe(write_recipe: Callable[..., str], sources: dict[str, Any]) -> Callable[[str], str]:
    def write(method: str) -> str:
        pairs = zip(sources, SHAPES.items(), strict=True)
        parts = [
            {"id": path, **keys}
            for path, (shape, keys) in pairs
            if method == "grpo" or shape not in (verl, table)  # which have no answer to learn
        ]
        keys = {"dataset_name": None, "dataset_mixture": {"datasets": parts, "seed": 1}}
        keys |= {"response_format": "boxed", "system_prompt": "", "save_strategy": "no"}
        return write_recipe(method, mapper=None, max_steps=1, **keys)

    return write


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_every_text_of_a_row_arrives_or_is_named(
    recipe: Callable[..., str],
    sources: dict[str, list[dict[str, Any]]],
    method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = load_recipe([recipe(method)], method)
    tokenizer, fmt = load_tokenizer(loaded)
    made, report = load_dataset(loaded.script, fmt, method, tokenizer=tokenizer)
    assert report.read == (500 if method == "grpo" else 400)
    assert len(made) == report.kept == report.read - sum(report.dropped.values())
    texts = [json.dumps(row, ensure_ascii=False) for row in made]
    unused = [name.rpartition(": ")[2] for name in report.unused]
    arrived = 0
    for path, rows in sources.items():
        for number, row in enumerate(rows):
            tag = f"{Path(path).stem}{number:02}"
            written = [text for text in texts if tag in text]
            arrived += bool(written)
            for column, value in row.items() if written else ():
                if method == "grpo" and column in ("completion", "output", "解释"):
                    continue  # GRPO samples answers of its own, which is said once
                value = parsed(value) if isinstance(value, str) and value[:2] == "[{" else value
                if method == "grpo" and column in ("messages", "conversations"):
                    value = value[:-1]
                for leaf in leaves(value) if column not in [*unused, "reward_model"] else ():
                    named = leaf == f"{tag}name" and "'name'" in caplog.text
                    piece = json.dumps(leaf, ensure_ascii=False)[1:-1].strip()
                    assert named or piece in written[0], (tag, column, leaf)
    assert arrived == len(made)
    assert method == "sft" or "the answers of the rows are not used" in caplog.text


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_preflight_and_a_step_of_training_take_them(
    recipe: Callable[..., str], method: str, capsys: pytest.CaptureFixture
) -> None:
    from r1_recipes import grpo, sft
    from r1_recipes.extras.preflight import __main__ as preflight

    path = recipe(method)
    with contextlib.suppress(SystemExit):  # 1: a random model has no answer right
        preflight.main([path])
    assert "rows kept" in capsys.readouterr().out
    {"grpo": grpo, "sft": sft}[method].main([path])
