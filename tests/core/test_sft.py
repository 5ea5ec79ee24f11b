"""What SFT trains on, token by token, and that the tuned model stops where its turn ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from r1_recipes import sft
from r1_recipes.prompts import CHATML
from tests.conftest import SUMS, log_lines, metrics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]

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
        caught: list[Any] = []
        monkeypatch.setattr(sft, "train", lambda trainer, run: None)
        monkeypatch.setattr(sft, "save", lambda trainer, run: caught.append(trainer))
        sft.main([path])
        return caught[0], caught[0].processing_class

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
    def row(talk: list[tuple[str, str]]) -> dict[str, Any]:
        if schema == "messages":
            return {"messages": messages(talk)}
        if schema == "prompt":
            return {"prompt": messages(talk[:-1]), "completion": messages(talk[-1:])}
        names = {"user": "human", "assistant": "gpt"}
        return {"conversations": [{"from": names[role], "value": text} for role, text in talk]}

    if schema == "generated":
        rows = [
            {"question": text, "response": reply, "pass_rate": 1.0}
            for (_, text), (_, reply) in (TALK[:2], TALK[2:])
        ]
        expected = [(chatml(("user", row["question"])), row["response"] + END) for row in rows]
    else:
        rows = [row(TALK), row(TALK[:2])]
        expected = [(chatml(*TALK[:3]), TALK[3][1] + END), (chatml(TALK[0]), TALK[1][1] + END)]
    path = write_recipe(
        "sft",
        dataset_name=write_rows(tmp_path / "rows.jsonl", rows),
        mapper="generated" if schema == "generated" else None,
        mapper_config={"well_formed": False} if schema == "generated" else None,
        **(PACKING if packing else {}),
    )
    assert sorted(examples(*built(path))) == sorted(expected)


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
# A turn opens with more once an answer stands in it, as in Zephyr's template.
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


# Where the turn ends


def test_the_tuned_model_stops_by_itself(
    write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = write_recipe(
        "sft",
        model_name_or_path=base_like(tiny_model, tmp_path / "base"),
        max_samples=2,
        per_device_train_batch_size=2,
        max_steps=100,
        lr_scheduler_type="linear",
        save_strategy="no",
    )
    sft.main([path])
    run = tmp_path / "run"
    said = [line for line in log_lines(run) if line.startswith("eos_token is '<|im_end|>'")]
    assert said and metrics(run)[-1]["loss"] < 0.1
    tokenizer, model = AutoTokenizer.from_pretrained(run), AutoModelForCausalLM.from_pretrained(run)
    end, old = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>"))
    assert tokenizer.eos_token_id == model.config.eos_token_id == end
    assert model.generation_config.eos_token_id == [end, old]
    assert tokenizer.pad_token == "<|endoftext|>" and tokenizer.chat_template == CHATML
    for a, b in SUMS[:2]:
        answer = f"<think>\n{a}+{b}={a + b}\n</think>\n<answer>\n{a + b}\n</answer><|im_end|>"
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"{a}+{b}?"}],
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        # Nothing but what the folder says stops it.
        made = model.generate(**prompt, max_new_tokens=200, do_sample=False)
        assert tokenizer.decode(made[0, prompt["input_ids"].shape[1] :]) == answer


def test_examples_that_are_cut_are_counted(
    write_recipe: Callable[..., str], built: Build, tmp_path: Path
) -> None:
    sizes = (10, 300, 400)  # of which two reach past 200 tokens of one byte
    rows = [{"messages": messages([("user", "?"), ("assistant", "a" * n)])} for n in sizes]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    built(write_recipe("sft", dataset_name=path, mapper=None, max_length=200))
    assert any("200 cuts up to 2 of 3 examples" in line for line in log_lines(tmp_path / "run"))
