"""Completions by Transformers, what a server's reply becomes, vLLM's engine, and the store."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.common.chat_client import Reply
from r1_recipes.common.errors import RecipeError
from r1_recipes.evaluate import for_generation
from r1_recipes.generation import (
    Completion,
    ServerGenerator,
    TransformersGenerator,
    complete,
    get_generator,
    load_format,
)
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.types import SamplingSettings

MADE = Completion("7", 1, True)


def ask(*questions):
    prompts = [[{"role": "user", "content": question}] for question in questions]
    return Dataset.from_list([{"prompt": prompt} for prompt in prompts])


def test_transformers_gives_what_plain_generation_gives(tmp_path):
    """Prompts of different lengths in one padded batch; greedy, and almost greedy samples."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from r1_recipes.models.smoke import build_tiny_model

    folder = build_tiny_model(tmp_path, {})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # A random model's logits are nearly flat; larger weights make its path sure of itself and
    # dependent on the prompt.
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data *= 12
    model.save_pretrained(folder)
    sampling = SamplingSettings(max_completion_length=12, use_cpu=True)
    model_settings = SimpleNamespace(
        model_name_or_path=str(folder), model_revision=None, dtype="float32",
        attn_implementation=None,
    )  # fmt: skip
    generate = TransformersGenerator(
        SimpleNamespace(model=model_settings, training=sampling), tokenizer
    )
    rows = ask("x", "hello, you", "4 + 1")
    greedy, sampled = generate(rows, 0.0, 1), generate(rows, 1e-4, 2)
    expected = []
    for prompt in rows["prompt"]:
        inputs = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        ids = ids[0, inputs["input_ids"].shape[1] :].tolist()
        end = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
        expected.append(tokenizer.decode(ids[:end], skip_special_tokens=True))
    assert [[made.text for made in group] for group in greedy] == [[text] for text in expected]
    assert [[made.text for made in group] for group in sampled] == [[text] * 2 for text in expected]
    assert len(set(expected)) > 1
    calls, plain = [], generate.model.generate
    generate.model.generate = lambda ids, **options: calls.append(len(ids)) or plain(ids, **options)
    sampling.generation_batch_size = 1
    assert generate(rows.select([0]), 1e-4, 3) == [[*sampled[0], sampled[0][0]]]
    assert calls == [1, 1, 1]
    # As in the recipes of base models that train with vLLM
    sampling.generation_kwargs = {"stop_token_ids": list(range(1, len(tokenizer)))}
    stopped = TransformersGenerator(
        SimpleNamespace(model=model_settings, training=sampling), tokenizer
    )(rows, 0.0, 1)
    assert [made.tokens for group in stopped for made in group] == [1] * 3
    for made in (made for group in greedy + sampled for made in group):
        assert 0 < made.tokens <= 12 and (made.finished or made.tokens == 12)


@pytest.mark.parametrize("prefilled", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, fmt in FORMATS.items()
        if fmt.reasoning_tags and not fmt.answer_tags and not fmt.boxed
    ],
)
def test_reasoning_that_the_server_moved_out_is_put_back_in_front(name, prefilled, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    prefill = FORMATS[name].tags[0] if prefilled else ""
    fmt = get_response_format(name, prefill=prefill)
    model = SimpleNamespace(model_name_or_path="m")
    server = ServerGenerator(SimpleNamespace(model=model, training=SamplingSettings()), fmt)
    said = "Summary: 4" if name == "special_token" else "4"
    reply = Reply(said, reasoning="2 and 2\n", tokens=3, finish_reason="stop")
    parsed = fmt.parse(server.read(reply).text)
    assert (parsed.reasoning, parsed.answer, parsed.well_formed) == ("2 and 2", "4", True)


def test_vllm_gets_its_own_share_precision_and_length(monkeypatch, write_recipe):
    """For an evaluation with a recipe that trained with an engine of its own."""
    started: list[dict[str, Any]] = []
    module = ModuleType("vllm")
    module.LLM = lambda model, **options: started.append(options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    find, spec = importlib.util.find_spec, importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: spec if name == "vllm" else find(name)
    )
    further = {"generation_kwargs": {"stop_token_ids": [7]}}
    changes = {
        **further,
        "vllm_gpu_memory_utilization": 0.3,
        "max_prompt_tokens": 100,
        "bf16": True,
    }
    recipe = load_recipe([write_recipe("grpo", **changes), "--use_vllm", "true"], "grpo")
    recipe = for_generation(recipe, recipe.model.model_name_or_path, "vllm")
    assert recipe.training.generation_kwargs == {"stop_token_ids": [7]}
    tokenizer, fmt = load_format(recipe, "vllm")
    get_generator(recipe, tokenizer, fmt, "vllm", ask("short", "a longer one"))
    [engine] = started
    assert engine["gpu_memory_utilization"] == 0.9 and engine["dtype"] == "bfloat16"
    assert engine["max_model_len"] == -1  # what the model and the memory hold


def completed(path, texts, calls=None, hidden=None, **settings):
    """Complete a row for each text, which a generator takes from its prompt.

    ``hidden`` is what an environment's rows have beside it.
    """

    def generate(rows, temperature, count):
        if calls is not None:
            calls.extend(prompt[0]["content"] for prompt in rows["prompt"])
        return [
            [Completion(f"{prompt[0]['content']} {temperature}", 1, True)] * count
            for prompt in rows["prompt"]
        ]

    settings = {"seed": 1, "generation_batch_size": 2, **settings}
    recipe = SimpleNamespace(
        model=SimpleNamespace(model_name_or_path="m"), script=SimpleNamespace(environment=bool(hidden)), reward_params={},
        training=SamplingSettings(**settings),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("r1_recipes.generation.get_generator", lambda *_: generate)
        rows = ask(*texts)
        rows = rows.add_column("number", [hidden] * len(rows)) if hidden else rows
        return complete(recipe, None, None, "openai", rows, [(0.0, 1), (1.0, 2)], path)


@given(cut=st.integers(0, 1000), texts=st.lists(st.text(), min_size=1, max_size=20, unique=True))
@settings(max_examples=60, deadline=None)
def test_a_file_cut_anywhere_is_completed(tmp_path_factory, cut, texts):
    texts = [text.encode(errors="replace").decode() for text in texts]
    path = tmp_path_factory.mktemp("cut") / "completions.jsonl"
    made = completed(path, texts)
    assert [[one.text for one in group] for group in made] == [
        [f"{text} 0.0", f"{text} 1.0", f"{text} 1.0"] for text in texts
    ]
    content = path.read_bytes()
    path.write_bytes(content[: max(0, len(content) - cut)])
    whole = max(0, path.read_bytes().count(b"\n") - 1)  # the first line says what made them
    calls: list[str] = []
    assert completed(path, texts, calls) == made
    assert len(calls) == 2 * (len(texts) - whole)  # two plans for each row that was lost
    calls.clear()
    assert completed(path, texts, calls) == made and not calls


def test_a_file_of_other_rows_or_settings_is_refused(tmp_path):
    path = tmp_path / "completions.jsonl"
    completed(path, ["a", "b"])
    with pytest.raises(RecipeError, match=r"other settings or weights: seed: 1 then, 2 now. Fix"):
        completed(path, ["a", "b"], seed=2)
    with pytest.raises(RecipeError, match=r"other rows"):
        completed(path, ["a", "c"])
    played = tmp_path / "episodes.jsonl"
    completed(played, ["Guess!"], hidden=1)
    with pytest.raises(RecipeError, match=r"other rows"):
        completed(played, ["Guess!"], hidden=2)
    calls: list[str] = []
    assert len(completed(path, ["a"], calls)) == 1  # fewer rows
    completed(path, ["a", "b", "c"], calls)  # more rows
    assert calls == ["c", "c"]
