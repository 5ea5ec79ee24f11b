"""A saved model gives whoever sends no system message the prompts of training, and a later
run the model's own template. The recipe's switches reach every prompt of training.
"""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import AutoTokenizer

from r1_recipes.data.prompt import build_prompt
from r1_recipes.extras.images import TINY_TEMPLATE
from r1_recipes.models.load import generation_prompt, load_tokenizer
from r1_recipes.prompts import CHATML, FORMATS, served
from r1_recipes.recipe import load_recipe

SHIPPED = Path(trl.__file__).parent / "chat_templates"
QUESTION = "2+2?"
USER = [{"role": "user", "content": QUESTION}]
ODD = 'A "quote", \\boxed{}, {{x}} {% y %} {# z #}, #} %}, 思考🤔\n'
OFF, EMPTY = {"enable_thinking": False}, "<think>\n\n</think>\n\n"
QWEN = (
    "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + "
    "messages[0]['content'] + '<|im_end|>\\n' }}\n"
    "{%- else %}\n    {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}\n{%- endif %}\n"
    "{%- for message in messages if message.role != 'system' %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
# White space at both edges is part of the prompt.
LLAMA = (
    "\n  {{ '<|begin|>' }}{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content']|trim %}{% set messages = messages[1:] %}"
    "{% else %}{% set system = '' %}{% endif %}{{ 'Today is Friday.\\n' + system }}"
    "{% macro head(role) %}[{{ role }} of {{ messages|length }}]{% endmacro %}"
    "{% for message in messages %}{{ head(message['role']) + message['content']|trim }}{% endfor %}"
    "{% if add_generation_prompt %}{{ head('assistant') }}{% endif %}\n  "
)
GEMMA = (
    "{{ bos_token or '' }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] + '<end_of_turn>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}\n"
)
TEMPLATES = {"chatml": CHATML, "qwen": QWEN, "llama": LLAMA, "gemma": GEMMA, "parts": TINY_TEMPLATE}
# As Qwen3's: a turn to come begins with an empty block if the model is not to think.
SWITCH = CHATML.replace(
    "assistant\\n' }}{% endif",
    "assistant\\n' }}{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif",
)


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Callable[..., str]:
    """``model(template)``: a folder with the tiny model and this chat template."""

    def make(template: str | dict[str, str], name: str = "model") -> str:
        shutil.copytree(tiny_model, tmp_path / name)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return make


@pytest.fixture
def loaded(write_recipe: Callable[..., str]) -> Callable[..., tuple[Any, Any]]:
    """``loaded(key=value, …)``: the tokenizer and the format of a recipe with these keys."""
    return lambda method="grpo", **keys: load_tokenizer(
        load_recipe([write_recipe(method, **keys)], method)
    )


def saved(tokenizer: Any, folder: Path | str, system_prompt: str) -> Any:
    """The tokenizer as a run saves it and another program loads it."""
    kept = copy.deepcopy(tokenizer)
    served.add_system_prompt(kept, system_prompt)
    kept.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def text(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", TEMPLATES)
@pytest.mark.parametrize("prefill", [None, "Well.\n<think>"])
def test_a_question_alone_gets_the_prompt_of_training(
    model: Callable, loaded: Callable, name: str, kind: str, prefill: str | None
) -> None:
    if prefill and name == "r1_zero":  # whose turns begin with a space
        prefill = f" {prefill}"
    keys = {"response_format": name, "system_prompt": None, "prefill": prefill}
    folder = model(TEMPLATES[kind])
    tokenizer, fmt = loaded(model_name_or_path=folder, **keys)
    prompt = build_prompt(USER, fmt)
    asked = text(tokenizer, prompt)
    after = saved(tokenizer, folder, fmt.system_prompt)
    assert text(after, USER) == text(after, prompt) == asked
    assert asked.count(fmt.system_prompt.strip() or QUESTION) == 1
    assert asked.endswith(prefill or "")
    other = [{"role": "system", "content": "Be brief."}, *USER]
    assert text(after, other) == text(tokenizer, other)
    # The next stage finds the model as it was, whatever format it is in.
    again, found = loaded(model_name_or_path=folder, **keys)
    assert (again.chat_template, found) == (tokenizer.chat_template, fmt)
    if not fmt.chat_template and kind != "gemma":
        bare, _ = loaded(model_name_or_path=folder, response_format="boxed", prefill="")
        assert bare.chat_template == TEMPLATES[kind]


@pytest.mark.parametrize("system_prompt", [ODD, "short"])
@pytest.mark.parametrize("prefill", ["", ODD])
def test_any_text_is_written_as_it_is(
    model: Callable, loaded: Callable, system_prompt: str, prefill: str
) -> None:
    folder = model(LLAMA)
    plain = AutoTokenizer.from_pretrained(folder)
    expected = text(plain, [{"role": "system", "content": system_prompt}, *USER]) + prefill
    tokenizer, _ = loaded(model_name_or_path=folder, response_format="boxed", prefill=prefill)
    after = saved(tokenizer, folder, system_prompt)
    assert text(after, USER) == expected
    assert served.own_template(after.chat_template) == LLAMA


def test_a_message_in_parts_and_a_developer_s_message(model: Callable) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model("{% for m in messages %}{{ m }}\n{% endfor %}"))
    served.add_system_prompt(tokenizer, "S")
    parts = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    system = {"role": "system", "content": [{"type": "text", "text": "S"}]}
    assert text(tokenizer, parts).splitlines()[0] == str(system)
    developer = {"role": "developer", "content": "D"}
    assert text(tokenizer, [developer, *USER]).splitlines()[0] == str(developer)


def test_the_next_recipe_decides_about_the_prefill(model: Callable, loaded: Callable) -> None:
    folder = model(CHATML)

    def opened(**keys: Any) -> tuple[str, str]:
        tokenizer, fmt = loaded(model_name_or_path=folder, **keys)
        return generation_prompt(tokenizer).removeprefix("<|im_start|>assistant\n"), fmt.prefill

    saved(loaded(model_name_or_path=folder, prefill="Well.\n<think>")[0], folder, "S")
    # A benchmark says nothing of it.
    assert opened() == opened(response_format="think_boxed") == ("Well.\n<think>",) * 2
    assert opened(response_format="boxed") == ("", "")
    assert opened(prefill="") == opened(response_format="boxed", prefill="") == ("", "")
    assert opened(prefill="Well.") == ("Well.", "Well.")
    opens = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n<think>' }}{% endif")
    assert opened(chat_template=opens) == ("<think>", "<think>")


def test_variables_are_of_training_and_are_not_saved(model: Callable, loaded: Callable) -> None:
    folder = model(SWITCH)
    tokenizer, _ = loaded(
        model_name_or_path=folder, response_format="boxed", chat_template_kwargs=OFF
    )
    assert text(tokenizer, USER).endswith(EMPTY)
    assert not text(tokenizer, USER, enable_thinking=True).endswith(EMPTY)
    assert saved(tokenizer, folder, "").chat_template == SWITCH
