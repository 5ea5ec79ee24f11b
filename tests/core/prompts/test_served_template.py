"""A saved checkpoint gives whoever sends no system message the prompts of training, and our own
code the model's template back.
"""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import TemplateError

from r1_recipes import generate, grpo, sft
from r1_recipes.data.load import build_prompt, load_dataset
from r1_recipes.models.smoke import VLM_TEMPLATE
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer
from r1_recipes.prompts import CHATML, FORMATS, served_template
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.load import Recipe
from r1_recipes.runs import checkpoints
from r1_recipes.training.callbacks import ServedTemplate
from tests.conftest import metrics

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

    served = copy.deepcopy(tokenizer)
    served_template.set_served_template(served, {"system_prompt": system_prompt})
    served.save_pretrained(folder)
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
    own = (
        None if kind != "gemma" else ""
    )  # a template that takes no system message is trained without one
    if prefill and name == "r1_zero":  # whose turns begin with a space
        prefill = f" {prefill}"
    settings = {"response_format": name, "system_prompt": own, "prefill": prefill}
    folder = model(TEMPLATES[kind])
    tokenizer, fmt = load_tokenizer(
        load(write_recipe("grpo", model_name_or_path=folder, **settings))
    )
    prompt = build_prompt(QUESTION, fmt)
    asked = ids(tokenizer, prompt)
    served = saved(tokenizer, tmp_path / "model", fmt.system_prompt)
    assert ids(served, USER) == asked
    text = served.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    assert text.count(fmt.system_prompt.strip() or QUESTION) == 1 and text.endswith(prefill or "")
    # Who sends a system message, or none of a prompt, gets what the model's own template makes of
    # it.
    assert ids(served, prompt) == asked
    if kind != "gemma":
        other = [{"role": "system", "content": "Be brief."}, *USER]
        assert ids(served, other) == ids(tokenizer, other)
        assert ids(served, [{"role": "system", "content": ""}, *USER]) == asked
    # The next stage finds the model as it was, whatever format it is in.
    again, found = load_tokenizer(load(write_recipe("grpo", model_name_or_path=folder, **settings)))
    assert (
        again.chat_template == tokenizer.chat_template
        and found == fmt
        and ids(again, prompt) == asked
    )
    if not fmt.chat_template:
        bare, _ = load_tokenizer(
            load(
                write_recipe(
                    "grpo",
                    model_name_or_path=folder,
                    response_format="thinking_response",
                    prefill="",
                )
            )
        )
        assert bare.chat_template == TEMPLATES[kind]


WORKED = [
    {"question": "1+1?", "reasoning": "One and one.", "answer": "2"},
    {"question": ODD, "reasoning": "It is odd.", "answer": "0"},
]
CASES: dict[str, dict[str, Any]] = {
    "system prompt": {"response_format": "think_answer", "system_prompt": None},
    "none": {"response_format": "boxed", "system_prompt": ""},
    "prefill": {
        "response_format": "think_answer",
        "system_prompt": "Think.",
        "prefill": "<think>\n",
    },
    "switch": {
        "response_format": "boxed",
        "system_prompt": None,
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "worked turns": {"response_format": "think_answer", "system_prompt": None, "few_shot": WORKED},
    "worked turns alone": {
        "response_format": "boxed",
        "system_prompt": "",
        "few_shot": WORKED[:1],
        "prefill": "Well: ",
    },
}
# As Qwen3's: a turn to come begins with an empty block if the model is not to think.
SWITCHED = CHATML.replace(
    "assistant\\n' }}{% endif",
    "assistant\\n' }}{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif",
)
TALK = [
    *USER,
    {"role": "assistant", "content": "<think>\n2 and 2\n</think>\n4"},
    {"role": "user", "content": "And 3?"},
]


def served_folder(recipe: Recipe, tokenizer: Any, fmt: Any, folder: Path) -> Path:
    """The model with the tokenizer that a run of this recipe would leave."""
    rows, _ = load_dataset(recipe.script, fmt, "grpo")
    opening = served_template.prompt_prefix(fmt, rows, recipe.script.few_shot)
    shutil.copytree(recipe.model.model_name_or_path, folder)
    served = copy.deepcopy(tokenizer)
    served_template.set_served_template(served, opening)
    served.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_generate_and_a_pipeline_ask_alike(
    write_recipe: Callable[..., str],
    model: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    from transformers import GenerationMixin, pipeline

    asked, generate_ids = [], GenerationMixin.generate

    def recorded(self: Any, inputs: Any = None, **options: Any) -> Any:
        ids = options.get("input_ids", inputs)
        asked.append(ids[0][ids.shape[1] - int(options["attention_mask"][0].sum()) :].tolist())
        return generate_ids(self, inputs, **options)

    settings = {
        "model_name_or_path": model(SWITCHED),
        "num_generations": 1,
        "max_completion_length": 4,
        "output_dir": str(tmp_path / "made"),
    }
    keys = ("dataset_name", "mapper", "dtype", "use_cpu", "seed")
    base = yaml.safe_load(Path(write_recipe("grpo")).read_text(encoding="utf-8"))
    (tmp_path / "made.yaml").write_text(
        yaml.safe_dump({key: base[key] for key in keys} | settings | CASES[case]), encoding="utf-8"
    )
    monkeypatch.setattr(GenerationMixin, "generate", recorded)
    generate.main([str(tmp_path / "made.yaml"), "--max_samples", "1"])
    recipe = load(
        write_recipe(
            "grpo", **{**CASES[case], "model_name_or_path": settings["model_name_or_path"]}
        )
    )
    tokenizer, fmt = load_tokenizer(recipe)
    folder = served_folder(recipe, tokenizer, fmt, tmp_path / "served")
    pipe = pipeline("text-generation", model=str(folder), device="cpu")
    assert pipe(USER, max_new_tokens=4, return_full_text=False)
    assert max(asked[:-1], key=len) == asked[-1]  # generate reads all but the last token first
    # In a conversation, what was put in front stays, and an earlier turn of the assistant is as the
    # client sends it.
    served = from_folder(folder)
    opening = build_prompt(QUESTION, fmt, recipe.script.few_shot)[:-1]
    assert ids(served, TALK) == ids(tokenizer, [*opening, *TALK])
    text = served.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    assert (
        text.count("2 and 2") == 1
        and text.endswith(fmt.prefill)
        and text.count(fmt.prefill or "And 3?") <= 2 + len(opening)
    )
    again, found = load_tokenizer(
        load(write_recipe("grpo", **{**CASES[case], "model_name_or_path": str(folder)}))
    )
    assert again.chat_template == tokenizer.chat_template and found == fmt


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
    added = {"response_format": "boxed", "prefill": prefill, "system_prompt": system_prompt}
    tokenizer.chat_template = served_template.wrap(LLAMA, **added)
    assert (
        tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
        == plain + prefill
    )
    assert served_template.unwrap(tokenizer.chat_template) == (
        LLAMA,
        served_template.Added(**added),
    )
    assert served_template.wrap(tokenizer.chat_template, prefill="", system_prompt="") == LLAMA


def test_parts_tools_and_a_developer_s_message(model: Callable) -> None:
    from transformers import AutoTokenizer

    seen = "{% for m in messages %}{{ m }}\n{% endfor %}{{ tools }}"
    tokenizer = AutoTokenizer.from_pretrained(model(served_template.wrap(seen, system_prompt="S")))

    def text(messages: list, **options: Any) -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, **options).partition("\n")[0]

    parts = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    worked = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    few = from_folder(
        Path(model(served_template.wrap(seen, system_prompt="S", few_shot=worked), "few"))
    )
    first, *turns = few.apply_chat_template(parts, tokenize=False).splitlines()[:3]
    assert first == str({"role": "system", "content": [{"type": "text", "text": "S"}]})
    assert turns == [
        str(turn | {"content": [{"type": "text", "text": turn["content"]}]}) for turn in worked
    ]
    assert text(parts) == str({"role": "system", "content": [{"type": "text", "text": "S"}]})
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert text(USER, tools=tools) == str({"role": "system", "content": "S"})
    developer = {"role": "developer", "content": "D"}
    assert text([developer, *USER]) == str(developer)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"prefill": 1}', '{"other": "x"}', "[" * 100_000, '{"prefill": "x"}']
)
def test_a_template_that_another_program_changed_is_not_unwrapped(text: str) -> None:
    template = f"{{#- r1_recipes.prompts.served_template {text} #}}\n{CHATML}"
    assert served_template.unwrap(template) == (template, served_template.Added())


def test_named_templates_are_wrapped_one_by_one(
    write_recipe: Callable[..., str], model: Callable, tmp_path: Path
) -> None:
    folder = model({"default": CHATML, "tool_use": QWEN})
    tokenizer, fmt = load_tokenizer(
        load(
            write_recipe("grpo", model_name_or_path=folder, prefill="<think>\n", system_prompt=None)
        )
    )
    assert ids(saved(tokenizer, tmp_path / "model", fmt.system_prompt), USER) == ids(
        tokenizer, build_prompt(QUESTION, fmt)
    )
    again, _ = load_tokenizer(load(write_recipe("grpo", model_name_or_path=folder, prefill="")))
    assert again.chat_template == {"default": CHATML, "tool_use": QWEN}


def test_the_next_recipe_decides_about_the_prefill(
    write_recipe: Callable[..., str], model: Callable, tmp_path: Path
) -> None:
    folder = model(CHATML)

    def opened(**settings: Any) -> tuple[str, str]:
        tokenizer, fmt = load_tokenizer(
            load(write_recipe("grpo", model_name_or_path=folder, **settings))
        )
        return generation_prompt(tokenizer).removeprefix("<|im_start|>assistant\n"), fmt.prefill

    tokenizer, _ = load_tokenizer(
        load(write_recipe("grpo", model_name_or_path=folder, prefill="Well.\n<think>"))
    )
    saved(tokenizer, tmp_path / "model", "S")
    assert opened() == opened(prefill="Well.\n<think>") == ("Well.\n<think>",) * 2
    assert (
        opened(response_format="think_boxed") == ("Well.\n<think>",) * 2
    )  # a benchmark that says nothing of it
    assert (
        opened(response_format="boxed")
        == opened(prefill="")
        == opened(response_format="reasoning_answer")
        == ("", "")
    )
    assert opened(prefill="<think>\n") == ("<think>\n", "<think>\n")
    opens = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n<think>' }}{% endif")
    assert opened(chat_template=opens) == ("<think>", "<think>")


def test_a_system_message_that_the_template_refuses_is_not_put(
    write_recipe: Callable[..., str], model: Callable
) -> None:
    tokenizer, fmt = load_tokenizer(
        load(write_recipe("grpo", model_name_or_path=model(GEMMA), system_prompt=None))
    )
    with pytest.raises(TemplateError, match="System role not supported"):  # as a run is refused
        ids(tokenizer, build_prompt(QUESTION, fmt))


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


def test_conversations_taken_as_they_are_are_served_as_they_are(
    write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    from datasets import Dataset

    talk = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "hey"}]
    Dataset.from_list([{"messages": talk}] * 8).to_json(tmp_path / "talks.jsonl")
    sft.main(
        [
            write_recipe(
                "sft",
                dataset_name=str(tmp_path / "talks.jsonl"),
                mapper=None,
                system_prompt=None,
                max_steps=1,
            )
        ]
    )
    assert from_folder(tmp_path / "run").chat_template == CHATML


def test_what_is_saved_on_the_way_serves_alike() -> None:
    class Holder:
        chat_template = CHATML

        def save_pretrained(self, folder: str) -> None:
            folders.append((folder, self.chat_template))

    class Args:
        output_dir, should_save = "run", True

    class State:
        global_step = 5

    folders: list[tuple[str, str]] = []
    holder, callback = Holder(), ServedTemplate({"system_prompt": "S"})
    callback.on_save(Args, State, None, processing_class=holder)
    served = served_template.wrap(CHATML, system_prompt="S")
    assert (
        folders == [("run/checkpoint-5", served)]
        and served != CHATML
        and holder.chat_template == CHATML
    )


def starts_with_bos(folder: Path, tokenizer: Any) -> Path:
    """A copy of a checkpoint whose tokenizer starts plain texts with a token, as Llama's does."""
    from tokenizers.processors import TemplateProcessing

    start = tokenizer.pad_token
    tokenizer.bos_token = start
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, tokenizer.pad_token_id)]
    )
    tokenizer.save_pretrained(folder)
    return folder


def test_a_format_s_template_starts_as_the_tokenizer_starts_plain_text(
    write_recipe, tiny_model, tmp_path, caplog
) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "llama"
    shutil.copytree(tiny_model, folder)
    starts_with_bos(folder, AutoTokenizer.from_pretrained(folder))
    asked = [{"role": "user", "content": "2+2?"}]
    for model, count in ((tiny_model, 0), (folder, 1)):
        for name in ("r1_zero", "think_answer"):  # with a template of its own, and without
            path = write_recipe("grpo", model_name_or_path=str(model), response_format=name)
            tokenizer, _ = load_tokenizer(load_recipe([path], "grpo"))
            ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
            own = count if name == "r1_zero" else 0  # ChatML has no such token
            assert ids.count(tokenizer.pad_token_id) == own
            assert ids[:own] == [tokenizer.bos_token_id] * own
    for template, warnings in ((CHATML, 1), ("{{ bos_token }}" + CHATML, 0)):
        caplog.clear()
        path = write_recipe("grpo", model_name_or_path=str(folder), chat_template=template)
        load_tokenizer(load_recipe([path], "grpo"))
        assert caplog.text.count("chat_template: ") == warnings
    # What was trained is asked in the same way.
    path = write_recipe("grpo", model_name_or_path=str(folder), response_format="r1_zero")
    tokenizer, _ = load_tokenizer(load_recipe([path], "grpo"))
    tokenizer.save_pretrained(folder)
    again, _ = load_tokenizer(load_recipe([path], "grpo"))
    assert again.chat_template == tokenizer.chat_template
