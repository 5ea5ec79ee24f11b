"""Templates and prefills that a recipe sets, and models that are not there."""

import json
from pathlib import Path

import pytest
import trl

from r1_recipes.common.errors import RecipeError
from r1_recipes.models.load import generation_prompt, load_tokenizer, train_template
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs

pytestmark = pytest.mark.slow


def loaded(path):
    return load_tokenizer(load_recipe([path], "grpo"))


@pytest.mark.parametrize(
    "prefill",
    [
        "<think>\n",
        "Let me solve this step by step.\n<think>",
        'Ok: "q" \\ 思考🤔 {{x}} {% y %}\n<think>',
    ],
)
def test_a_prefill_starts_the_turn_and_is_read_back(write_recipe, prefill):
    tokenizer, fmt = loaded(write_recipe("grpo", prefill=prefill))
    assert generation_prompt(tokenizer) == "<|im_start|>assistant\n" + prefill
    assert fmt.prefill == prefill
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    assert prefill not in tokenizer.apply_chat_template(messages, tokenize=False)
    (reward,) = get_reward_funcs(["format"], fmt)
    assert reward(completions=["2+2=4\n</think>\n<answer>\n4\n</answer>"]) == [1.0]


@pytest.mark.parametrize("prefill", ["", "<think>\n"])
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])  # one ends in a line break
def test_a_prefill_stays_in_the_template_for_training(write_recipe, name, prefill):
    template = Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja"
    tokenizer, _ = loaded(write_recipe("grpo", chat_template=str(template), prefill=prefill))
    opened = generation_prompt(tokenizer)
    train_template(tokenizer)
    assert "{% generation %}" in tokenizer.chat_template
    assert opened == generation_prompt(tokenizer) and opened.endswith(prefill)


def test_a_chat_template_as_text_and_as_a_file(write_recipe, tmp_path):
    template = (
        "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
        "{% if add_generation_prompt %}[{% endif %}"
    )
    (tmp_path / "chat.jinja").write_text(template)
    for given in (template, str(tmp_path / "chat.jinja")):
        assert loaded(write_recipe("grpo", chat_template=given))[0].chat_template == template
    missing = write_recipe("grpo", chat_template=str(tmp_path / "chta.jinja"))
    with pytest.raises(RecipeError, match=r"chat_template: must be Jinja text or .*chta\.jinja"):
        loaded(missing)


@pytest.mark.parametrize("part", [{"modules_to_save": ["lm_head"]}, {"use_dora": True}])
def test_adapters_that_would_be_read_in_part_are_refused(write_recipe, tmp_path, part):
    facts = {"base_model_name_or_path": "m", "modules_to_save": None, "use_dora": False}
    (tmp_path / "adapter_config.json").write_text(json.dumps(facts | part, indent=2))
    with pytest.raises(RecipeError, match=f"Fix: python -m r1_recipes.adapters {tmp_path}"):
        loaded(write_recipe("grpo", model_name_or_path=str(tmp_path)))


def test_a_missing_model(write_recipe, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found = {"nobody/no-such-model": r"model_name_or_path: '{}' cannot be loaded"}
    found[str(tmp_path / "nowhere")] = "model_name_or_path: {}: no such folder"
    for name, said in found.items():
        with pytest.raises(RecipeError, match=said.format(name)) as error:
            loaded(write_recipe("grpo", model_name_or_path=name))
        assert "\n" not in str(error.value)
