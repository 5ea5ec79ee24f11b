"""What SFT trains on, token by token, and that the tuned model stops where its turn ends."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from r1_recipes import sft
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import load_dataset
from r1_recipes.models import smoke, tokenizer
from r1_recipes.models.tokenizer import load_tokenizer, turn_end
from r1_recipes.prompts import CHATML, FORMATS, get_response_format
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.training import run
from tests.conftest import SUMS, log_lines, metrics

pytestmark = pytest.mark.usefixtures("offline")

Build = Callable[[str], tuple[Any, Any]]
END = "<|im_end|>\n"
# With the <think> that a base model would have to learn; in no set's words.
TALK = [
    ("user", "1+1?"),
    ("assistant", "<think>\none\n</think>\n2"),
    ("user", "And 2+2?"),
    ("assistant", "<think>\ntwo\n</think>\n4"),
]


def chatml(*turns: tuple[str, str]) -> str:
    return (
        "".join(f"<|im_start|>{role}\n{content}{END}" for role, content in turns)
        + "<|im_start|>assistant\n"
    )


def messages(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def base_like(tiny_model: Path, folder: Path) -> str:
    """The tiny model as base models are: ChatML in the tokenizer, but generation ends at
    ``<|endoftext|>``.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Build:
    """``built(path)``: the trainer and tokenizer that ``sft.main`` would train with."""

    def build(path: str) -> tuple[Any, Any]:
        caught: list[tuple[Any, Any]] = []
        monkeypatch.setattr(run, "train", lambda run, trainer: None)
        monkeypatch.setattr(
            run.weights,
            "save",
            lambda run, trainer: caught.append((trainer, trainer.processing_class)),
        )
        sft.main([path])
        return caught[0]

    return build


def examples(trainer: Any, tokenizer: Any) -> list[tuple[str, str]]:
    """Each example of every batch: the text without loss, then the text with it; loss comes in one
    run at the example's end.
    """
    pairs = []
    for batch in trainer.get_train_dataloader():
        for ids, labels in split(batch):
            learned = [label != -100 for label in labels]
            first = learned.index(True)
            assert not any(learned[:first]) and all(learned[first:])
            assert labels[first:] == ids[first:]
            pairs.append((tokenizer.decode(ids[:first]), tokenizer.decode(ids[first:])))
    return pairs


def split(batch: dict[str, Any]) -> Iterator[tuple[list[int], list[int]]]:
    """The batch's examples without padding, whether they are rows or packed into one."""
    for row, (ids, labels) in enumerate(
        zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)
    ):
        if "attention_mask" in batch:
            length = int(batch["attention_mask"][row].sum())
            assert set(labels[length:]) <= {-100}
            yield ids[:length], labels[:length]
        else:
            positions = batch["position_ids"][row].tolist()
            starts = [index for index, position in enumerate(positions) if position == 0]
            for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
                yield ids[start:end], labels[start:end]


PACKING = {"packing": True, "max_length": 1024, "per_device_train_batch_size": 1}


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("prefill", [None, "<think>\n"])
def test_loss_on_the_assistant_s_turn_and_its_end_for_questions(
    write_recipe: Callable[..., str], built: Build, packing: bool, prefill: str | None
) -> None:
    path = write_recipe(
        "sft", prefill=prefill, system_prompt="Think.", **(PACKING if packing else {})
    )
    trainer, tokenizer = built(path)
    if packing:
        assert len(trainer.train_dataset) < len(SUMS)
    opened = prefill or ""
    expected = []
    for a, b in SUMS:
        target = f"<think>\n{a}+{b}={a + b}\n</think>\n<answer>\n{a + b}\n</answer>{END}"
        expected.append(
            (
                chatml(("system", "Think."), ("user", f"{a}+{b}?")) + opened,
                target.removeprefix(opened),
            )
        )
    assert sorted(examples(trainer, tokenizer)) == sorted(expected)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("schema", ["messages", "conversations", "prompt", "generated"])
def test_loss_on_the_last_message_only_for_every_column_of_conversations(
    write_recipe: Callable[..., str], built: Build, tmp_path: Path, packing: bool, schema: str
) -> None:
    (_, question), (_, answer) = TALK[:2]
    long = {
        "messages": {"messages": messages(TALK)},
        "conversations": {
            "conversations": [
                {"from": {"user": "human"}.get(role, "gpt"), "value": text} for role, text in TALK
            ]
        },
        "prompt": {"prompt": messages(TALK[:3]), "completion": messages(TALK[3:])},
    }
    short = {
        "messages": {"messages": messages(TALK[:2])},
        "conversations": {
            "conversations": [
                {"from": "human", "value": question},
                {"from": "gpt", "value": answer},
            ]
        },
        "prompt": {"prompt": messages(TALK[:1]), "completion": messages(TALK[1:2])},
    }
    if schema == "generated":
        rows = [
            {"question": text, "response": reply, "pass_rate": 1.0}
            for (_, text), (_, reply) in (TALK[:2], TALK[2:])
        ]
        expected = [(chatml(("user", row["question"])), row["response"] + END) for row in rows]
    else:
        rows = [long[schema], short[schema]]
        expected = [(chatml(*TALK[:3]), TALK[3][1] + END), (chatml(TALK[0]), TALK[1][1] + END)]
    path = write_recipe(
        "sft",
        dataset_name=write_rows(tmp_path / "rows.jsonl", rows),
        mapper="generated" if schema == "generated" else None,
        mapper_config={"well_formed": False} if schema == "generated" else None,
        **(PACKING if packing else {}),
    )
    assert sorted(examples(*built(path))) == sorted(expected)


@pytest.mark.parametrize("packing", [{}, {**PACKING, "packing_strategy": "wrapped"}])
def test_loss_on_every_token_of_a_chat_if_the_recipe_says_so(
    write_recipe: Callable[..., str], built: Build, tmp_path: Path, packing: dict[str, Any]
) -> None:
    """As TRL trains on a column ``messages``, which open-r1's runs leave to it."""
    rows = [{"messages": messages(TALK)}, {"messages": messages(TALK[:2])}]
    data = {
        "dataset_name": write_rows(tmp_path / "rows.jsonl", rows),
        "mapper": "conversations",
        "mapper_config": {"well_formed": False},
    }
    trainer, tokenizer = built(write_recipe("sft", completion_only_loss=False, **data, **packing))
    batches = [
        pair
        for batch in trainer.get_train_dataloader()
        for pair in zip(batch["input_ids"], batch["labels"], strict=True)
    ]
    chats = [chatml(*turns).removesuffix("<|im_start|>assistant\n") for turns in (TALK, TALK[:2])]
    learned = [tokenizer.decode(labels[labels != -100]) for _, labels in batches]
    assert sorted(learned) == (["".join(chats)] if packing else sorted(chats))


@pytest.mark.parametrize("packing", [False, True])
def test_a_mixture_trains_on_both_types_of_conversations(
    write_recipe: Callable[..., str], built: Build, tmp_path: Path, sums: Path, packing: bool
) -> None:
    chats = write_rows(
        tmp_path / "chats.jsonl",
        [{"messages": messages([("user", "Hi."), ("assistant", "Hello!")])}],
    )
    datasets = [
        {"id": str(sums), "mapper": "gsm8k", "system_prompt": "Think.", "task": "sums"},
        {
            "id": chats,
            "mapper": "conversations",
            "mapper_config": {"well_formed": False},
            "system_prompt": "",
        },
    ]
    path = write_recipe(
        "sft",
        dataset_name=None,
        mapper=None,
        dataset_mixture={"datasets": datasets},
        **(PACKING if packing else {}),
    )
    pairs = examples(*built(path))
    assert len(pairs) == len(SUMS) + 1
    assert (chatml(("user", "Hi.")), f"Hello!{END}") in pairs
    assert (
        chatml(("system", "Think."), ("user", "2+3?")),
        f"<think>\n2+3=5\n</think>\n<answer>\n5\n</answer>{END}",
    ) in pairs


# Other projects' files

CHATS = [
    messages([*TALK, ("user", "Thanks. ")]),
    messages([("system", "Add."), ("user", " 1+1?"), ("user", "Please."), ("assistant", "2 ")]),
    messages(
        [
            ("user", "3+3?"),
            ("tool", "6"),
            (
                "assistant",
                "<|begin_of_thought|>six<|end_of_thought|><|begin_of_solution|>6<|end_of_solution|>",
            ),
        ]
    ),
]
# A turn opens with more once an answer stands in it, as alignment-handbook's Zephyr template has
# it.
TURNS = (
    "{% for message in messages %}{{ '<' + message['role'] + '>\\n' + message['content'] + "
    "eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
THEIRS = {
    "mapper": None,
    "response_format": None,
    "system_prompt": None,
    "overwrite_output_dir": True,
}


@pytest.mark.parametrize(
    "keys", [{}, {"packing": True, "max_length": 64}, {"chat_template": TURNS}]
)
def test_another_project_s_file_trains_on_the_tokens_that_trl_does(
    write_recipe: Callable[..., str], built: Build, tmp_path: Path, keys: dict[str, Any]
) -> None:
    from trl import SFTConfig, SFTTrainer

    rows = [{"messages": chat} for chat in CHATS]
    trainer, tokenizer = built(
        write_recipe(
            "sft", dataset_name=write_rows(tmp_path / "chats.jsonl", rows), **THEIRS, **keys
        )
    )
    found = trainer.train_dataset
    # As TRL 0.18.0 does: the chat template's text first, then its tokens, and of packed rows pieces
    # of equal length.
    expected = [
        tokenizer(tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False)[
            "input_ids"
        ]
        for chat in CHATS
    ]
    if keys.get("packing"):
        joined = [token for tokens in expected for token in tokens]
        expected = [joined[start : start + 64] for start in range(0, len(joined), 64)]
    assert found["input_ids"][:] == found["labels"][:] == expected
    # And as today's does.
    settings = {key: value for key, value in keys.items() if key != "chat_template"} | {
        "packing_strategy": "wrapped"
    }
    args = SFTConfig(
        str(tmp_path / "theirs"),
        use_cpu=True,
        bf16=False,
        report_to="none",
        eos_token=tokenizer.eos_token,
        **settings,
    )
    theirs = SFTTrainer(
        trainer.model, args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    assert theirs.train_dataset["input_ids"][:] == expected


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def schema(name: str, *arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": argument} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": [*arguments]}
    return {
        "type": "function",
        "function": {"name": name, "description": f"To {name}.", "parameters": parameters},
    }


# Arguments of another kind in each; the last one ends in its call.
TRANSCRIPTS = [
    [
        *messages(TALK[:1]),
        called("add", a=1, b=[1.5]),
        {"role": "tool", "name": "add", "content": "2"},
        *messages(TALK[1:2]),
    ],
    [
        *messages([("system", "Be brief."), *TALK]),
        *[
            *messages([("user", "Paris?")]),
            called("look", place={"city": "Paris"}),
            {"role": "tool", "name": "look", "content": "Rain."},
        ],
        *[
            called("look", place=None),
            {"role": "tool", "name": "look", "content": "Sun."},
            *messages([("assistant", "Rain.")]),
        ],
    ],
    [*messages([("user", "Oslo?")]), called("look", place="Oslo")],
]
TOOLS = [
    [schema("add", "a", "b")],
    [schema("look", "place"), schema("add", "a", "b")],
    [schema("look", "place")],
]


@pytest.mark.parametrize("as_text", [False, True], ids=["lists", "text"])
def test_transcripts_with_calls_train_on_the_tokens_that_trl_does(
    write_recipe: Callable[..., str], built: Build, tmp_path: Path, as_text: bool
) -> None:
    """The model's turns alone have loss, after the last question or, as TRL has it, everywhere;
    calls and results reach the template.
    """
    from datasets import Features, Json, List, Value
    from trl import SFTConfig, SFTTrainer
    from trl.chat_template_utils import qwen3_instruct_2507_chat_template

    rows = [
        {"messages": turns, "tools": json.dumps(tools) if as_text else tools}
        for turns, tools in zip(TRANSCRIPTS, TOOLS, strict=True)
    ]
    rows.append({"messages": messages(TALK), "tools": None})
    data = {
        "dataset_name": write_rows(tmp_path / "rows.jsonl", rows),
        "mapper": "auto",
        "chat_template": qwen3_instruct_2507_chat_template,
    }
    data |= {"assistant_only_loss": True, "max_length": 4096}  # of single bytes
    trainer, tokenizer = built(write_recipe("sft", completion_only_loss=False, **data))
    features = Features({"messages": List(Json()), "tools": Value("string") if as_text else Json()})
    settings = {
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "assistant_only_loss": True,
        "max_length": 4096,
    }
    source = Dataset.from_list(rows, features=features)
    args = SFTConfig(str(tmp_path / "theirs"), eos_token=tokenizer.eos_token, **settings)
    theirs = SFTTrainer(
        trainer.model, args, train_dataset=source, processing_class=tokenizer
    ).train_dataset
    for column in ("input_ids", "labels"):
        assert trainer.train_dataset[column][:] == theirs[column][:]
    assert "null" not in tokenizer.decode(
        theirs["input_ids"][0]
    ) and '"city": "Paris"' in tokenizer.decode(theirs["input_ids"][1])

    trainer, _ = built(write_recipe("sft", output_dir=str(tmp_path / "last"), **data))
    learned = [
        tokenizer.decode([token for token in row if token != -100])
        for row in trainer.train_dataset["labels"]
    ]
    look = '<tool_call>\n{"name": "look", "arguments": {"place": %s}}\n</tool_call><|im_end|>\n'
    assert learned[1:] == [
        look % '{"city": "Paris"}' + look % "null" + f"Rain.{END}",
        look % '"Oslo"',
        f"{TALK[3][1]}{END}",
    ]


def test_calls_need_a_template_that_writes_them_and_the_recipe_s_format(
    write_recipe: Callable[..., str], capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    from trl.chat_template_utils import qwen3_instruct_2507_chat_template

    path = write_rows(tmp_path / "rows.jsonl", [{"messages": turns} for turns in TRANSCRIPTS])
    with pytest.raises(SystemExit):
        sft.main([write_recipe("sft", dataset_name=path, mapper="auto")])
    assert (
        "3 dropped: a tool call, which the chat template cannot write (first: row 0)"
        in capsys.readouterr().err
    )
    recipe = load_recipe(
        [
            write_recipe(
                "sft",
                dataset_name=path,
                mapper="conversations",
                chat_template=qwen3_instruct_2507_chat_template,
                system_prompt="Add.",
            )
        ],
        "sft",
    )
    tokenizer, fmt = load_tokenizer(recipe)
    rows, report = load_dataset(recipe.script, fmt, "sft", tokenizer=tokenizer)
    assert (
        str(report)
        == "1 of 3 rows kept; 2 dropped: response is not in format 'think_answer' (first: row 0)"
    )
    assert [turn["role"] for turn in rows[0]["prompt"]] == ["system", "user"] and rows[0]["prompt"][
        0
    ]["content"] == "Add."


def test_alignment_handbook_s_shares_empty_system_messages_and_columns_for_the_template(
    write_recipe: Callable[..., str], built: Build, tmp_path: Path
) -> None:
    mixer = {}
    for name, share in (("a", 0.5), ("b", 1.0), ("c", 0)):
        for split in ("train", "test"):
            rows = [
                {
                    "messages": messages(
                        [("user", f"{name} {split} {index}"), ("assistant", "Yes.")]
                    ),
                    "chat_template_kwargs": {"mood": "calm"},
                }
                for index in range(3)
            ]
            (tmp_path / name).mkdir(exist_ok=True)
            write_rows(tmp_path / name / f"{split}.jsonl", rows)
        mixer[str(tmp_path / name)] = share
    template = (
        "{{ mood }}:{% for message in messages %}{{ message['role'] + '|' + message['content'] + "
        "eos_token }}{% endfor %}"
    )
    template += "{# system #}{% if add_generation_prompt %}assistant|{% endif %}"
    path = write_recipe(
        "sft", **THEIRS | {"dataset_name": None, "chat_template": template, "evaluation_strategy": "epoch"},
        dataset_mixer=mixer, dataset_splits=["train", "test"], packing=False,
    )  # fmt: skip
    trainer, tokenizer = built(path)

    def texts(asked: list[str]) -> list[str]:
        return [
            f"calm:system|<|im_end|>user|{question}<|im_end|>assistant|Yes.<|im_end|>"
            for question in asked
        ]

    assert sorted(map(tokenizer.decode, trainer.train_dataset["input_ids"])) == texts(
        ["a train 0", *(f"b train {n}" for n in range(3))]
    )
    assert sorted(map(tokenizer.decode, trainer.eval_dataset["input_ids"])) == texts(
        [f"{name} test {n}" for name in "ab" for n in range(3)]
    )


# Where the turn ends


def test_the_end_of_the_turn_becomes_the_eos_token_everywhere(
    write_recipe: Callable[..., str], built: Build, tiny_model: Path, tmp_path: Path
) -> None:
    path = write_recipe("sft", model_name_or_path=base_like(tiny_model, tmp_path / "base"))
    trainer, tokenizer = built(path)
    end, old = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>"))
    assert tokenizer.eos_token_id == trainer.model.config.eos_token_id == end
    assert trainer.model.generation_config.eos_token_id == [end, old]
    assert tokenizer.pad_token == "<|endoftext|>"
    assert [
        line for line in log_lines(tmp_path / "run") if line.startswith("eos_token is '<|im_end|>'")
    ]


def test_a_model_with_the_right_eos_token_is_not_changed(
    write_recipe: Callable[..., str], built: Build, tiny_model: Path, tmp_path: Path
) -> None:
    from transformers import GenerationConfig

    trainer, tokenizer = built(write_recipe("sft"))
    assert tokenizer.eos_token == "<|im_end|>"
    eos = trainer.model.generation_config.eos_token_id
    assert eos in (tokenizer.eos_token_id, [tokenizer.eos_token_id])
    assert GenerationConfig.from_pretrained(tiny_model).eos_token_id == tokenizer.eos_token_id
    assert not [line for line in log_lines(tmp_path / "run") if line.startswith("eos_token is")]


@pytest.mark.parametrize("schema", ["question", "messages"])
def test_the_tuned_model_stops_by_itself(
    write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path, sums: Path, schema: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = base_like(tiny_model, tmp_path / "base")
    if schema == "question":
        data = {"max_samples": 2}
        rows = {
            f"{a}+{b}?": f"<think>\n{a}+{b}={a + b}\n</think>\n<answer>\n{a + b}\n</answer>"
            for a, b in SUMS[:2]
        }
    else:
        rows = {"1+1?": "two", "Hi.": "hey"}
        talks = [
            {"messages": messages([("user", question), ("assistant", answer)])}
            for question, answer in rows.items()
        ]
        data = {"dataset_name": write_rows(tmp_path / "talks.jsonl", talks), "mapper": None}
    path = write_recipe(
        "sft",
        model_name_or_path=base,
        per_device_train_batch_size=2,
        max_steps=100,
        lr_scheduler_type="linear",
        save_strategy="no",
        **data,
    )
    sft.main([path])
    run = tmp_path / "run"
    assert metrics(run)[-1]["loss"] < 0.1
    tokenizer, model = AutoTokenizer.from_pretrained(run), AutoModelForCausalLM.from_pretrained(run)
    assert (
        tokenizer.eos_token == "<|im_end|>" and model.config.eos_token_id == tokenizer.eos_token_id
    )
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id
    assert tokenizer.chat_template == CHATML
    for question, answer in rows.items():
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        # Nothing but what the folder says stops it.
        output = model.generate(**prompt, max_new_tokens=200, do_sample=False)[
            0, prompt["input_ids"].shape[1] :
        ]
        assert tokenizer.decode(output) == answer + "<|im_end|>"


def test_r1_zero_ends_in_the_tokenizer_s_own_token(
    write_recipe: Callable[..., str], built: Build, tiny_model: Path, tmp_path: Path
) -> None:
    base = base_like(tiny_model, tmp_path / "base")
    trainer, tokenizer = built(
        write_recipe("sft", model_name_or_path=base, response_format="r1_zero", max_samples=1)
    )
    ((prompt, target),) = examples(trainer, tokenizer)
    assert (prompt, target.rstrip("\n")) == (
        "User: 2+2?\nAssistant:",
        " <think> 2+2=4 </think> <answer> 4 </answer><|endoftext|>",
    )
    assert tokenizer.eos_token == "<|endoftext|>"


def refused(capsys: pytest.CaptureFixture, path: str) -> str:
    with pytest.raises(SystemExit) as ended:
        sft.main([path])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_tokenizer_without_chatml_s_tokens_cannot_be_trained_on_chatml(
    write_recipe: Callable[..., str],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(tiny_model, folder)
    for file in folder.glob("*.json"):
        file.write_text(
            file.read_text(encoding="utf-8")
            .replace("<|im_start|>", "<s>")
            .replace("<|im_end|>", "</s>"),
            encoding="utf-8",
        )
    (folder / "chat_template.jinja").unlink()
    path = write_recipe("sft", model_name_or_path=str(folder))
    error = refused(capsys, path)
    assert f"{folder} has no chat template" in error
    assert "Fix: response_format: r1_zero (plain text, for base models)" in error
    assert (
        "ends the assistant's turn in '<|im_end|>', which does not start with a special token"
        in refused(
            capsys, write_recipe("sft", model_name_or_path=str(folder), chat_template=CHATML)
        )
    )


OPEN_ENDED = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if "
    "add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"chat_template": OPEN_ENDED},
            "ends the assistant's turn in '', which does not start with a special token",
        ),
        ({"eos_token": "<|endoftext|>"}, ", '<|im_end|>', got '<|endoftext|>'"),
        ({"eos_token": "a"}, ", '<|im_end|>', got 'a'"),
        (
            {"chat_template_path": "templates/chat.jinja"},
            "chat_template_path: is not supported",
        ),
        (
            {
                "chat_template": CHATML
                + (
                    "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system') "
                    "}}{% endif %}"
                )
            },
            "cannot write a training row: TemplateError: no system",
        ),
        # Gemma's way: the turn to come is opened with what a turn that is there does not have.
        (
            {"chat_template": CHATML.replace("assistant\\n'", "assistant\\nHm. '")},
            "ends a prompt in 'Hm. ', but writes other tokens there",
        ),
    ],
)
def test_a_template_that_would_teach_something_else_is_refused(
    write_recipe: Callable[..., str],
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    message: str,
) -> None:
    # A template that raises does so wherever it is used; here it is the training rows that count.
    monkeypatch.setattr(tokenizer, "generation_prompt", lambda tokenizer: "")
    assert message in refused(capsys, write_recipe("sft", **changes))


def test_the_recipe_s_own_eos_token_may_be_a_later_one(
    write_recipe: Callable[..., str], built: Build
) -> None:
    # As Phi-3 has it: one token for the turn, another for the conversation.
    both = CHATML.replace(
        "{% if add", "{% if not add_generation_prompt %}<|endoftext|>{% endif %}{% if add"
    )
    assert built(write_recipe("sft", chat_template=both))[0].args.eos_token == "<|im_end|>"
    path = write_recipe(
        "sft", name="later", chat_template=both, eos_token="<|endoftext|>", output_dir="unused"
    )
    loaded = load_recipe([path], "sft")
    loaded_tokenizer, _ = load_tokenizer(loaded)
    assert turn_end("m", loaded_tokenizer, "<|endoftext|>") == "<|endoftext|>"


def test_a_prefill_that_merges_with_what_follows_is_refused(
    write_recipe: Callable[..., str],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    folder = tmp_path / "merging"
    shutil.copytree(tiny_model, folder)
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    # One token for ">\n", as Qwen's vocabulary has; it takes the place of a byte that no text here
    # has.
    spec["pre_tokenizer"]["use_regex"] = False
    number = spec["model"]["vocab"].pop("ÿ")
    spec["model"]["vocab"][">Ċ"] = number
    spec["model"]["merges"] = [[">", "Ċ"]]
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    error = refused(
        capsys, write_recipe("sft", model_name_or_path=str(folder), prefill="Let me see.\n<think>")
    )
    assert "ends a prompt in '>', but writes other tokens there when an answer follows" in error
    assert str(folder) in error and "end prefill in a line break" in error
    sft.main(
        [write_recipe("sft", model_name_or_path=str(folder), prefill="<think>\n", max_steps=1)]
    )


def test_every_part_of_the_data_is_checked(
    write_recipe: Callable[..., str], capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    # A template that drops reasoning: rows without any pass, and the one row with some is not the
    # first.
    stripping = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
    plain = {"messages": messages([("user", "Hi."), ("assistant", "Hello!")])}
    rows = write_rows(tmp_path / "rows.jsonl", [plain, plain, {"messages": messages(TALK[:2])}])
    assert "cuts the reasoning out of the assistant's turn" in refused(
        capsys, write_recipe("sft", dataset_name=rows, mapper=None, chat_template=stripping)
    )


@pytest.mark.parametrize("packing", [False, True])
def test_examples_that_are_cut_are_counted(
    write_recipe: Callable[..., str],
    built: Build,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    packing: bool,
) -> None:
    # 2 of 3 targets reach past 200 tokens of one byte.
    rows = [
        {"messages": messages([("user", "?"), ("assistant", "a" * size)])}
        for size in (10, 300, 400)
    ]
    data = {
        "dataset_name": write_rows(tmp_path / "rows.jsonl", rows),
        "mapper": None,
        "max_length": 200,
        "packing": packing,
    }
    with caplog.at_level(logging.WARNING, "r1_recipes"):
        trainer, _ = built(write_recipe("sft", **data))
    assert "max_length 200 cuts up to 2 of 3 examples" in caplog.text
    trainer.args.max_length = 1000
    assert sft.warn_about_cuts(trainer) == 0


def test_liger_is_passed_on(write_recipe: Callable[..., str]) -> None:
    # The kernels are not installed here: what is ours is that the key arrives.
    assert (
        load_recipe([write_recipe("sft", use_liger_kernel=True)], "sft").training.use_liger_kernel
        is True
    )
    assert load_recipe([write_recipe("sft")], "sft").training.use_liger_kernel is False


# Recipes and their examples

RECIPES = [
    path
    for path in sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))
    if re.findall(r"-m r1_recipes\.(\w+)", path.read_text(encoding="utf-8"))[:1] == ["sft"]
]


def test_there_are_sft_recipes() -> None:
    assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_example_rows_of_a_recipe_are_in_its_format(path: Path) -> None:
    loaded = load_recipe([str(path), "--smoke"], "sft", smoke=smoke.smoke_overrides)
    tokenizer, fmt = load_tokenizer(loaded)
    script = loaded.script
    parts = (script.dataset_mixture or {}).get("datasets") or [{}]
    rows = smoke.example_rows(script, "sft")
    for part, source in zip(parts, rows if isinstance(rows, list) else [rows], strict=True):
        config = part.get("mapper_config") or script.mapper_config or {}
        if (
            config.get("well_formed") is not False
            and (part.get("mapper") or script.mapper) != "auto"
        ):
            assert assert_well_formed(source, script, fmt, part)
    # And all parts together are what the trainer takes.
    assert len(load_dataset(script, fmt, "sft", tokenizer=tokenizer, rows=rows)[0])


def assert_well_formed(source: Dataset, script: Any, fmt: Any, part: dict[str, Any]) -> int:
    from types import SimpleNamespace

    own = {"dataset_mixture": None, "mapper": part.get("mapper") or script.mapper}
    own["mapper_config"] = part.get("mapper_config") or script.mapper_config
    dataset, _ = load_dataset(SimpleNamespace(**{**vars(script), **own}), fmt, "sft", rows=source)
    (reward,) = get_reward_funcs(["format"], fmt)
    targets = [row["completion"][-1]["content"] for row in dataset]
    assert all(target.startswith(fmt.prefill) for target in targets)
    scores = reward(completions=[target.removeprefix(fmt.prefill) for target in targets])
    assert scores == [1.0] * len(targets)
    return len(targets)


@pytest.mark.parametrize(
    ("mapper", "name", "config"),
    [
        ("conversations", "think_boxed", None),
        ("conversations", "think_answer", None),
        ("conversations", "think_answer", {"well_formed": False}),
        ("openr1_math", "think_boxed", None),
        (
            "reasoning_columns",
            "think_answer",
            {"question_column": "q", "reasoning_column": "cot", "answer_column": "out"},
        ),
        *[("generated", name, None) for name in FORMATS],
    ],
)
def test_example_rows_train_in_the_formats_that_their_data_has(
    mapper: str, name: str, config: dict[str, Any] | None
) -> None:
    from r1_recipes.recipe.types import RecipeArguments

    script = RecipeArguments(dataset_name="x", mapper=mapper, mapper_config=config)
    fmt = get_response_format(name)
    rows = smoke.example_rows(script, "sft")
    assert isinstance(rows, Dataset)
    dataset, _ = load_dataset(script, fmt, "sft", rows=rows)
    assert len(dataset) >= 2
    if not config or config.get("well_formed", True):
        assert assert_well_formed(rows, script, fmt, {}) == len(dataset)


def test_a_mixture_goes_through_a_smoke_run(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    datasets = [
        {
            "id": "some/traces",
            "mapper": "conversations",
            "weight": 0.001,
            "task": "maths",
            "columns": ["messages"],
        },
        {"id": "some/chats", "mapper_config": {}, "system_prompt": ""},
    ]
    mixture = {"datasets": datasets, "seed": 1, "test_split_size": 100}
    path = write_recipe(
        "sft",
        dataset_name=None,
        mapper=None,
        dataset_mixture=mixture,
        response_format="think_boxed",
    )
    sft.main([path, "--smoke", "--output_dir", str(tmp_path / "smoke")])
    assert [entry["step"] for entry in metrics(tmp_path / "smoke")] == [1]


def test_turn_end_is_read_from_the_template(tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert turn_end("m", tokenizer) == "<|im_end|>"
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }} <|endoftext|>\n{% endfor %}"
    )
    assert turn_end("m", tokenizer) == "<|endoftext|>"
    tokenizer.chat_template = OPEN_ENDED
    with pytest.raises(
        RecipeError, match="chat_template: that of m ends the assistant's turn in ''"
    ):
        turn_end("m", tokenizer)
