"""Distillation with TRL's other trainers: a teacher with a vocabulary of its own, and one behind a
server.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from r1_recipes import distill
from r1_recipes.common.errors import RecipeError
from r1_recipes.recipe import load_recipe
from r1_recipes.training import machine, start
from tests.conftest import SUMS, metrics
from tests.support.loopback import Handler, loopback

GOLD = {"distill_with": "gold", "use_uld_loss": True, "max_completion_length": 8, "max_length": 256}
SERVER = {"distill_with": "server", "max_completion_length": 8, "temperature": 1.0}


@pytest.fixture(scope="module")
def other_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokenizer has merges, and other numbers for each token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    from r1_recipes.models.smoke import build_tiny_model

    folder = build_tiny_model(tmp_path_factory.mktemp("teacher") / "model", {})
    template = AutoTokenizer.from_pretrained(folder).chat_template
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    specials = ["<|im_end|>", "<|endoftext|>", "<|im_start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(
        [f"<think>\n{a}+{b}={a + b}\n</think>\n<answer>\n{a + b}\n</answer>" for a, b in SUMS] * 4,
        trainer,
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    model.get_output_embeddings().weight.data.mul_(20)  # sure of itself, as the student is not yet
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("lmbda", [0.0, 1.0])
def test_a_student_learns_from_a_teacher_of_another_vocabulary(
    write_recipe, tiny_model, other_teacher, tmp_path, lmbda
) -> None:
    from transformers import AutoTokenizer

    text = "<think>\n1+2=3\n</think>"
    student, teacher = (
        AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        for folder in (tiny_model, other_teacher)
    )
    assert len(teacher) < len(student)
    distill.main(
        [
            write_recipe(
                "distill",
                **GOLD,
                lmbda=lmbda,
                teacher_model_name_or_path=str(other_teacher),
                save_strategy="no",
            )
        ]
    )
    losses = [row["loss"] for row in metrics(tmp_path / "run") if "loss" in row]
    assert len(losses) == 6 and sum(losses[-2:]) < sum(losses[:2]), losses
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_keys_are_those_of_the_trainer_that_is_named(write_recipe, other_teacher) -> None:
    teacher = {"teacher_model_name_or_path": str(other_teacher)}
    for changes, told in [
        ({"lmbda": 0.5}, "unknown key 'lmbda' for distill"),
        ({**GOLD, "loss_top_k": 1}, "unknown key 'loss_top_k' for distill"),
        ({**GOLD, "lmbda": "half"}, "lmbda: "),
        ({**GOLD, "lmbda": 2.0}, r"lmbda must be in the range \[0.0, 1.0\]"),
        ({**GOLD, "use_uld_loss": False}, "use_uld_loss: must be true"),
        ({**GOLD, "teacher_model_name_or_path": None}, "teacher_model_name_or_path: missing"),
        ({"distill_with": "golden"}, "distill_with: "),
        (SERVER, "teacher_model_server_url must be set"),
    ]:
        with pytest.raises(RecipeError, match=told):
            load_recipe([write_recipe("distill", **{**teacher, **changes})], "distill")


def test_gold_refuses_quantized_weights(write_recipe, tiny_model) -> None:
    recipe = load_recipe(
        [write_recipe("distill", **GOLD, teacher_model_name_or_path=str(tiny_model))], "distill"
    )
    with pytest.raises(RecipeError, match="load_in_4bit and load_in_8bit: must be false"):
        distill.build_trainer(recipe, None, None, {"quantization_config": object()})


LIKED = 70  # the token that the teacher would always write


@contextlib.contextmanager
def teacher_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What TRL asks of ``vllm serve``: health, the model's name, and log probabilities of given
    tokens.
    """
    seen: list[dict[str, Any]] = []

    class Teacher(Handler):
        def do_GET(self) -> None:
            self.send(200, b'{"data": [{"id": "teacher"}]}')

        def do_POST(self) -> None:
            body = json.loads(self.read())
            seen.append(body)
            liked = {str(LIKED): {"logprob": -0.01, "rank": 1}}
            other = {"logprob": -9.0, "rank": 2}
            rows = [
                [None, *({str(token): other, **liked} for token in tokens[1:])]
                for tokens in body["prompt"]
            ]
            self.send(
                200, json.dumps({"choices": [{"prompt_logprobs": row} for row in rows]}).encode()
            )

    with loopback(Teacher) as url:
        yield url, seen


@pytest.fixture
def with_client(monkeypatch) -> None:
    """TRL's client without vLLM, which it needs for the weights of a student's server alone."""
    monkeypatch.setattr("trl.generation.vllm_client.is_vllm_available", lambda **_: True)
    monkeypatch.setattr(start, "check_generation_backend", lambda recipe: None)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_student_learns_from_a_served_teacher(write_recipe, tmp_path, with_client, beta) -> None:
    with teacher_server() as (url, seen):
        distill.main(
            [
                write_recipe(
                    "distill", **SERVER, beta=beta, teacher_model_server_url=url, save_strategy="no"
                )
            ]
        )
    losses = [row["loss"] for row in metrics(tmp_path / "run") if "loss" in row]
    assert len(losses) == 6 and all(map(math.isfinite, losses))
    assert beta or losses[-1] < losses[0], (
        losses
    )  # that of the reverse KL is of one sampled token each
    assert {body["model"] for body in seen} == {"teacher"} and seen[0]["prompt_logprobs"] == 1


def test_a_missing_teacher_is_named(write_recipe, with_client, monkeypatch, capsys) -> None:
    monkeypatch.setattr("trl.generation.vllm_client.time.sleep", lambda seconds: None)
    monkeypatch.setattr(
        "trl.generation.vllm_client.time.time", iter(range(0, 10_000, 100)).__next__
    )
    with pytest.raises(SystemExit):
        distill.main(
            [write_recipe("distill", **SERVER, teacher_model_server_url="http://127.0.0.1:9")]
        )
    told = capsys.readouterr().err
    assert "teacher_model_server_url: " in told and "can't be reached at http://127.0.0.1:9" in told


def test_without_vllm_a_served_teacher_is_refused(write_recipe, monkeypatch, capsys) -> None:
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    recipe = load_recipe(
        [write_recipe("distill", **SERVER, teacher_model_server_url="http://127.0.0.1:9")],
        "distill",
    )
    with pytest.raises(
        RecipeError, match="distill_with: server: TRL's client needs vLLM, which is not installed"
    ):
        start.check_generation_backend(recipe)
