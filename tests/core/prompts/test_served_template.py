"""A saved checkpoint gives whoever sends no system message the prompts of training, and our own
code the model's template back.
"""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r1_recipes import grpo, sft
from r1_recipes.data.load import build_prompt
from r1_recipes.models.smoke import VLM_TEMPLATE
from r1_recipes.models.tokenizer import load_tokenizer
from r1_recipes.prompts import CHATML, FORMATS, served
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.load import Recipe
from r1_recipes.runs import checkpoints
from tests.conftest import metrics

pytestmark = pytest.mark.slow

QUESTION = "2+2?"
USER = [{"role": "user", "content": QUESTION}]
QWEN = (
    "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + "
    "messages[0]['content'] + '<|im_end|>\\n' }}\n"
    "{%- else %}\n    {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}\n{%- endif %}\n"
    "{%- for message in messages if message.role != 'system' %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' "
    "}}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
# White space at both edges that is part of the prompt.
LLAMA = (
    "\n  {{ '<|begin|>' }}{% if messages[0]['role'] == 'system' %}{% set system = "
    "messages[0]['content']|trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ 'Today is "
    "Friday.\\n' + system }}"
    "{% macro head(role) %}[{{ role }} of {{ messages|length }}]{% endmacro %}"
    "{% for message in messages %}{{ head(message['role']) + message['content']|trim }}{% endfor %}"
    "{% if add_generation_prompt %}{{ head('assistant') }}{% endif %}\n  "
)
GEMMA = (
    "{{ bos_token or '' }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System "
    "role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\\n' + "
    "message['content'] + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}\n"
)
TEMPLATES = {"chatml": CHATML, "qwen": QWEN, "llama": LLAMA, "gemma": GEMMA, "parts": VLM_TEMPLATE}
ODD = 'A "quote", \\boxed{}, {{x}} {% y %} {# z #}, 思考🤔\n'


def load(path: str) -> Recipe:
    return load_recipe([path], "grpo")


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Callable[[str | dict], str]:
    from transformers import AutoTokenizer

    def make(template: str | dict, name: str = "model") -> str:
        shutil.copytree(tiny_model, tmp_path / name)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return make


def saved(tokenizer: Any, folder: Path, system_prompt: str) -> Any:
    from transformers import AutoTokenizer

    copied = copy.deepcopy(tokenizer)
    served.add_system_prompt(copied, system_prompt)
    copied.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def ids(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True, **options
    )["input_ids"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", TEMPLATES)
@pytest.mark.parametrize("prefill", [None, "Well.\n<think>"])
def test_a_question_alone_gets_the_prompt_of_training(
    write_recipe: Callable[..., str],
    model: Callable,
    tmp_path: Path,
    name: str,
    kind: str,
    prefill: str | None,
) -> None:
    if prefill and name == "r1_zero":  # whose turns begin with a space
        prefill = f" {prefill}"
    settings = {"response_format": name, "system_prompt": None, "prefill": prefill}
    folder = model(TEMPLATES[kind])
    tokenizer, fmt = load_tokenizer(
        load(write_recipe("grpo", model_name_or_path=folder, **settings))
    )
    prompt = build_prompt(QUESTION, fmt)
    asked = ids(tokenizer, prompt)
    left = saved(tokenizer, tmp_path / "left", fmt.system_prompt)
    assert ids(left, USER) == asked
    text = left.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    assert text.count(fmt.system_prompt.strip() or QUESTION) == 1 and text.endswith(prefill or "")
    # Who sends a system message, or none of a prompt, gets what the model's own template makes of
    # it.
    assert ids(left, prompt) == asked
    if kind != "gemma":
        other = [{"role": "system", "content": "Be brief."}, *USER]
        assert ids(left, other) == ids(tokenizer, other)
        assert ids(left, [{"role": "system", "content": ""}, *USER]) == asked
    # The next stage finds the model as it was, whatever format it is in.
    again, found = load_tokenizer(load(write_recipe("grpo", model_name_or_path=folder, **settings)))
    assert (
        again.chat_template == tokenizer.chat_template
        and found == fmt
        and ids(again, prompt) == asked
    )


@pytest.mark.parametrize("system_prompt", [ODD, "short"])
@pytest.mark.parametrize("prefill", ["", ODD])
def test_any_text_is_written_as_it_is(model: Callable, system_prompt: str, prefill: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model(LLAMA))
    plain = tokenizer.apply_chat_template(
        [{"role": "system", "content": system_prompt}, *USER],
        tokenize=False,
        add_generation_prompt=True,
    )
    tokenizer.chat_template = served.with_prefill(LLAMA, prefill) if prefill else LLAMA
    served.add_system_prompt(tokenizer, system_prompt)
    assert (
        tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
        == plain + prefill
    )
    assert served.own_template(tokenizer.chat_template) == LLAMA


def from_folder(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_checkpoints_and_the_final_model_serve_the_prompts_of_training_and_a_second_stage_trains_on(
    write_recipe: Callable[..., str], tmp_path: Path, method: str
) -> None:
    main = {"grpo": grpo.main, "sft": sft.main}[method]
    settings = {"system_prompt": "Think first.", "prefill": "<think>\n", "max_steps": 4, "seed": 3}
    path = write_recipe(method, **settings)
    tokenizer, fmt = load_tokenizer(load_recipe([path], method))
    asked = ids(tokenizer, build_prompt(QUESTION, fmt))
    main([path])
    run = tmp_path / "run"
    for folder in (run, run / "checkpoint-2", run / "checkpoint-4"):
        assert ids(from_folder(folder), USER) == asked
        assert folder == run or checkpoints.manifest_mismatch(folder) is None
    # From half way: the same prompts, so the same steps.
    resumed = tmp_path / "resumed"
    main(
        [path, "--output_dir", str(resumed), "--resume_from_checkpoint", str(run / "checkpoint-2")]
    )
    losses = [
        [entry["loss"] for entry in metrics(folder) if "loss" in entry][-2:]
        for folder in (run, resumed)
    ]
    assert losses[0] == losses[1]
    assert ids(from_folder(resumed), USER) == asked
    # A second stage that asks otherwise.
    second = write_recipe(
        method,
        name="second",
        model_name_or_path=str(run),
        output_dir=str(tmp_path / "second"),
        max_steps=2,
        prefill="",
    )
    tokenizer, fmt = load_tokenizer(load_recipe([second], method))
    assert tokenizer.chat_template == CHATML and ids(tokenizer, build_prompt(QUESTION, fmt)) == ids(
        tokenizer, USER
    )
    main([second])
    assert from_folder(tmp_path / "second").chat_template == CHATML
