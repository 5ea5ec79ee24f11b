"""Models that can think or not: the recipe's switch reaches every prompt, and no format misreads
what the template writes for it.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import PreTrainedTokenizerBase

from r1_recipes import evaluate, generate, grpo, reward, sft
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import check_target, generation_prompt, load_tokenizer, turn_end
from r1_recipes.prompts import CHATML, FORMATS, leaves_open, served_template
from r1_recipes.recipe import load_recipe
from tests.core.prompts.test_served_template import from_folder
from tests.support.chat_server import chat_server, reply

SHIPPED = Path(trl.__file__).parent / "chat_templates"
TEMPLATES = sorted(
    path.stem for path in SHIPPED.glob("*.jinja") if "think" in path.read_text(encoding="utf-8")
)
ORIGINAL = [
    name for name in TEMPLATES if not name.endswith("_training") or name == "qwen3_training"
]  # the others add loss masks
USER = [{"role": "user", "content": "2+2?"}]
THINK, OFF = ("<think>", "</think>"), {"enable_thinking": False}
# As Qwen3's: a turn to come begins with an empty block if the model is not to think.
SWITCH = CHATML.replace(
    "assistant\\n' }}{% endif",
    "assistant\\n' }}{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif",
)
EMPTY = "<think>\n\n</think>\n\n"


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Callable[[str], str]:
    def make(template: str, name: str = "thinker") -> str:
        shutil.copytree(tiny_model, tmp_path / name)
        (tmp_path / name / "chat_template.jinja").write_text(template, encoding="utf-8")
        return str(tmp_path / name)

    return make


def test_trl_ships_the_templates_that_these_tests_are_about() -> None:
    families = (
        "qwen3",
        "qwen3_5_think",
        "qwen3_5_nothink",
        "qwen3_6",
        "qwen3_8",
        "gptoss",
        "glm4moe",
        "deepseekv3",
        "nemotron_3_nano",
    )
    assert {
        *families,
        *(f"{name}_training" for name in families),
        "deepseek_r1_distill",
        "lfm2_2_5",
    } <= {*TEMPLATES}


@pytest.mark.parametrize("name", ORIGINAL)
def test_what_the_switch_says_is_rendered_and_every_format_reads_it_or_is_refused(
    write_recipe: Callable[..., str], folder: Callable[[str], str], tmp_path: Path, name: str
) -> None:
    own = (SHIPPED / f"{name}.jinja").read_text(encoding="utf-8")
    recipe = load_recipe([write_recipe("grpo", model_name_or_path=folder(own))], "grpo")
    plain = from_folder(Path(recipe.model.model_name_or_path))
    effort = [{"reasoning_effort": "low"}] if "reasoning_effort" in own else []
    for variables in [
        None,
        *effort,
        *([{"enable_thinking": True}, OFF] if "enable_thinking" in own else []),
    ]:
        expected = plain.apply_chat_template(
            USER, tokenize=False, add_generation_prompt=True, **(variables or {})
        )
        turn = generation_prompt(plain) if not variables else expected[-24:]
        recipe.training.chat_template_kwargs = variables
        opens = leaves_open(turn, THINK)
        # In an opened block a format with other tags starts at the wrong place, which preflight
        # tells.
        for fmt in map(
            FORMATS.get,
            ["think_answer", "think_boxed"] + ["reasoning_answer", "boxed"] * (not opens),
        ):
            recipe.script.response_format = fmt.name
            if "</think>" in turn and fmt.reasoning_tags == THINK:
                with pytest.raises(
                    RecipeError,
                    match=r"an empty reasoning block, .* Fix: response_format: boxed",
                ):
                    load_tokenizer(recipe)
                continue
            tokenizer, found = load_tokenizer(recipe)
            assert (
                tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
                == expected
            )
            assert found.prefill == ("<think>\n" if opens else "")
            read = found.parse(found.render_completion("2+2=4", "4"))
            assert (read.reasoning, read.answer, read.well_formed) == ("2+2=4", "4", True)
        # Whoever loads the saved checkpoint gets the same, and may still say otherwise.
        served_template.set_served_template(tokenizer, {})
        tokenizer.save_pretrained(tmp_path / "saved")
        again = from_folder(tmp_path / "saved")
        assert (
            again.apply_chat_template(USER, tokenize=False, add_generation_prompt=True) == expected
        )
        for other in ({"enable_thinking": True}, OFF):
            asked = [
                each.apply_chat_template(USER, tokenize=False, add_generation_prompt=True, **other)
                for each in (again, plain)
            ]
            assert asked[0] == asked[1] or variables in effort
        assert served_template.unwrap(again.chat_template) == (
            own,
            served_template.Added(variables=variables or {}),
        )


@pytest.mark.parametrize(
    "name",
    [
        "qwen3",
        "qwen3_5_nothink",
        "qwen3_5_think",
        "qwen3_6",
        "qwen3_8",
        "glm4moe",
        "nemotron_3_nano",
    ],
)
@pytest.mark.parametrize("fmt, thinking", [("boxed", False), ("think_boxed", True)])
def test_sft_targets_stand_right_after_the_prompt(
    write_recipe: Callable[..., str],
    folder: Callable[[str], str],
    name: str,
    fmt: str,
    thinking: bool,
) -> None:
    template = (SHIPPED / f"{name}.jinja").read_text(encoding="utf-8")
    kwargs = {"enable_thinking": thinking}
    path = write_recipe(
        "sft", model_name_or_path=folder(template), response_format=fmt, chat_template_kwargs=kwargs
    )
    tokenizer, found = load_tokenizer(load_recipe([path], "sft"))
    target = found.full_text(found.render_completion("2+2=4", "4"))
    check_target(
        name, tokenizer, {"prompt": USER, "completion": [{"role": "assistant", "content": target}]}
    )
    assert (
        name == "glm4moe" or turn_end(name, tokenizer) == "<|im_end|>"
    )  # GLM's turns end where the next begins


def test_a_system_prompt_that_the_template_changes_is_refused(
    write_recipe: Callable[..., str], folder: Callable[[str], str]
) -> None:
    strips = folder(
        CHATML.replace("message['content']", "message['content'].replace('/think', '')")
    )  # as SmolLM3's does
    path = write_recipe(
        "grpo", model_name_or_path=strips, response_format="think_boxed", system_prompt=None
    )
    with pytest.raises(
        RecipeError,
        match=r"system_prompt: the chat template of .* changes this text\. Fix: a system_prompt "
        r"without /think",
    ):
        load_tokenizer(load_recipe([path], "grpo"))
    load_tokenizer(load_recipe([path, "--system_prompt", ""], "grpo"))


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (
            {"enable_thinkin": False},
            "enable_thinkin: the chat template of .* has no variable",
        ),
        (
            {"enable_thinking": None},
            "enable_thinking: must be true, false, a number or a text, got None",
        ),
    ],
)
@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_a_switch_without_effect_is_refused(
    write_recipe: Callable[..., str],
    folder: Callable[[str], str],
    method: str,
    kwargs: dict[str, Any],
    message: str,
) -> None:
    path = write_recipe(method, model_name_or_path=folder(SWITCH), chat_template_kwargs=kwargs)
    with pytest.raises(RecipeError, match=f"tiny.yaml: chat_template_kwargs: {message}"):
        load_tokenizer(load_recipe([path], method))


def test_any_text_is_a_default_as_it_is(tiny_model: Path) -> None:
    from jinja2 import meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    tokenizer = from_folder(tiny_model)
    values = {"a": 'A "quote", {{x}} {% y %} {# z #}, 思考🤔\n', "b": True, "c": -1.5}
    own = (
        "{% macro m() %}{{ a }}|{{ b }}|{{ c }}{% endmacro %}{% for message in messages %}{{ m() "
        "}}{% endfor %}"
    )
    tokenizer.chat_template = served_template.wrap(own, variables=values)
    assert tokenizer.apply_chat_template(USER, tokenize=False) == "|".join(
        map(str, values.values())
    )
    assert tokenizer.apply_chat_template(USER, tokenize=False, a="x", b=0) == "x|0|-1.5"
    assert served_template.unwrap(tokenizer.chat_template) == (
        own,
        served_template.Added(variables=values),
    )
    # vLLM passes on those of a request's chat_template_kwargs that Jinja calls undeclared.
    assert {"a", "b", "c"} <= meta.find_undeclared_variables(
        ImmutableSandboxedEnvironment().parse(tokenizer.chat_template)
    )


@pytest.mark.parametrize("method", ["grpo", "sft", "reward"])
def test_training_and_the_checkpoint_prompt_as_the_recipe_says(
    write_recipe: Callable[..., str],
    folder: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    main = {"grpo": grpo, "sft": sft, "reward": reward}[method].main
    settings: dict[str, Any] = {
        "response_format": "boxed",
        "chat_template_kwargs": OFF,
        "max_prompt_tokens": 80,
        "max_steps": 1,
    }
    if method == "reward":
        pairs = [{"prompt": "2+2?", "chosen": "4", "rejected": "5"}] * 4
        (tmp_path / "pairs.jsonl").write_text(
            "".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8"
        )
        settings |= {
            "dataset_name": str(tmp_path / "pairs.jsonl"),
            "mapper": "preference",
            "max_length": 64,
        }
    asked, render = [], PreTrainedTokenizerBase.apply_chat_template

    def recorded(self: Any, *arguments: Any, **options: Any) -> Any:
        made = render(self, *arguments, **options)
        if options.get("add_generation_prompt") and options.get("tokenize", True):
            rows = made["input_ids"]
            asked.extend(map(self.decode, rows if isinstance(rows[0], list) else [rows]))
        return made

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", recorded)
    qwen3 = folder((SHIPPED / "qwen3.jinja").read_text(encoding="utf-8"))
    main([write_recipe(method, model_name_or_path=qwen3, save_strategy="no", **settings)])
    run = tmp_path / "run"
    text = from_folder(run).apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    assert text.endswith(f"<|im_start|>assistant\n{EMPTY}")
    assert (asked or method == "reward") and all(prompt.endswith(EMPTY) for prompt in asked)
    # A later recipe that says nothing keeps it; one that says otherwise, or writes an empty
    # mapping, does not.
    for kwargs, expected in [(None, EMPTY), ({}, ""), ({"enable_thinking": True}, "")]:
        path = write_recipe(
            "sft",
            name="next",
            model_name_or_path=str(run),
            response_format="boxed",
            chat_template_kwargs=kwargs,
        )
        tokenizer, _ = load_tokenizer(load_recipe([path], "sft"))
        assert generation_prompt(tokenizer) == f"<|im_start|>assistant\n{expected}"


def test_the_empty_block_counts_in_max_prompt_tokens(
    write_recipe: Callable[..., str], folder: Callable[[str], str]
) -> None:
    from r1_recipes.data.load import load_dataset

    path = write_recipe("grpo", model_name_or_path=folder(SWITCH), response_format="boxed")
    longest = []
    for kwargs in ("{}", '{"enable_thinking": false}'):
        recipe = load_recipe([path, "--chat_template_kwargs", kwargs], "grpo")
        tokenizer, fmt = load_tokenizer(recipe)
        rows, _ = load_dataset(recipe.script, fmt, "grpo")
        texts = [
            tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
            for row in rows
        ]
        longest.append(
            max(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
        )
        recipe.script.max_prompt_tokens = longest[-1]
        assert len(load_dataset(recipe.script, fmt, "grpo", tokenizer=tokenizer)[0]) == len(rows)
        recipe.script.max_prompt_tokens = longest[-1] - 1
        with pytest.raises(RecipeError, match="prompt over max_prompt_tokens"):  # all of one length
            load_dataset(recipe.script, fmt, "grpo", tokenizer=tokenizer)
    assert longest[0] < longest[1]


@pytest.mark.parametrize("kwargs", [None, OFF])
def test_evaluate_and_generate_ask_alike_and_tell_a_server(
    write_recipe: Callable[..., str],
    folder: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kwargs: dict[str, Any] | None,
) -> None:
    from r1_recipes.completions import transformers as here

    model, asked, settings = (
        folder(SWITCH),
        [],
        {"response_format": "boxed", "chat_template_kwargs": kwargs, "reward_funcs": ["accuracy"]},
    )
    path = write_recipe("grpo", model_name_or_path=model, **settings)
    complete = here.complete
    monkeypatch.setattr(
        here,
        "complete",
        lambda *arguments, **options: asked.append(arguments[1]) or complete(*arguments, **options),
    )
    evaluate.main([path, "--model", model, "--dataset_test_split", "train"])
    own = [
        "per_device_train_batch_size",
        "learning_rate",
        "lr_scheduler_type",
        "max_steps",
        "logging_steps",
        "save_strategy",
        "save_steps",
    ]
    own += ["bf16", "gradient_checkpointing", "disable_tqdm", "report_to"]
    made = write_recipe(
        "generate", name="made", model_name_or_path=model, max_completion_length=8, **settings, **dict.fromkeys(own)
    )  # fmt: skip
    generate.main([made])
    assert {generation_prompt(tokenizer).partition("\n")[2] for tokenizer in asked} == {
        EMPTY if kwargs else ""
    } and len(asked) >= 2
    with chat_server(lambda _body, _before: reply("\\boxed{4}")) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        evaluate.main(
            [path, "--model", "served", "--backend", "openai", "--dataset_test_split", "train"]
        )
        generate.main([made, "--backend", "openai", "--output_dir", str(tmp_path / "asked")])
    assert seen and all(body.get("chat_template_kwargs") == kwargs for body in seen)


def test_what_is_left_open() -> None:
    assert [
        leaves_open(turn, THINK) for turn in ("", "<think>\n", EMPTY, "<think></think>", "</think>")
    ] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert leaves_open("|special_token|", ("|special_token|",) * 2)
