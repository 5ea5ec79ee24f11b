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

from r1_recipes import grpo, reward, sft
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer
from r1_recipes.prompts import CHATML, FORMATS, leaves_open, served_template
from r1_recipes.recipe import load_recipe
from tests.core.prompts.test_served_template import from_folder

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
                    RecipeError, match=r"an empty reasoning block, .* Fix: response_format: boxed"
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
    "kwargs, message",
    [
        ({"enable_thinkin": False}, "enable_thinkin: the chat template of .* has no variable"),
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
