"""Tools with the chat templates that TRL ships: GRPO starts, a call is read as it was written, and
rewards read what the model wrote.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedModel
from trl.chat_template_utils import parse_response

from r1_recipes.common.messages import completion_texts
from r1_recipes.extras.agents.build import agent
from r1_recipes.models.load import generation_prompt, load_tokenizer
from r1_recipes.recipe import load_recipe

SHIPPED = Path(trl.__file__).parent / "chat_templates"

# The eos_token of these models' tokenizers, and the token after which they stop for a result; the
# others' is <|im_end|>.
ENDS = {
    "gptoss": ("<|return|>", "<|call|>"),
    "glm4moe": ("<|endoftext|>", "<|observation|>"),
    "llama3": ("<|eot_id|>", "<|eot_id|>"),
}
ENDS["gemma4_v2"] = ("<eos>", "<turn|>")
ENDS |= dict.fromkeys(["gemma4", "diffusion"], ("<eos>", "<|tool_response>"))
NAMES = [
    *sorted(path.stem for path in SHIPPED.glob("*.jinja") if not path.stem.endswith("_training")),
    "qwen3_training",
]
# These cannot write tools; the last two write calls that TRL cannot read.
NONE = """
cohere cohere2 deepseek_r1_distill gemma gemma3 idefics3 lfm2 llama3 llava_next phi3 phi3_5
qwen2_5_vl smolvlm deepseekv3 muse_glimmer
"""
CALL = {
    "type": "function",
    "function": {"name": "calculator", "arguments": {"expression": "2 + 2"}},
}
SWITCHES: list[dict[str, bool] | None] = [
    None,
    {"enable_thinking": True},
    {"enable_thinking": False},
]


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model)


@pytest.fixture
def load(write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path) -> Callable[..., Any]:
    def load(template: str, **settings: Any) -> Any:
        shutil.copytree(tiny_model, tmp_path / "model", dirs_exist_ok=True)
        (tmp_path / "model" / "chat_template.jinja").write_text(template, encoding="utf-8")
        settings = {"response_format": "boxed", "tools": ["calculator"]} | settings
        recipe = load_recipe(
            [write_recipe("grpo", model_name_or_path=str(tmp_path / "model"), **settings)], "grpo"
        )
        return recipe, *load_tokenizer(recipe)

    return load


def shipped(name: str) -> str:
    return (SHIPPED / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NONE.split()])
@pytest.mark.parametrize("kwargs", SWITCHES)
def test_a_call_and_its_result_are_the_same_in_training_and_evaluation(
    load: Callable[..., Any],
    tiny: PreTrainedModel,
    tmp_path: Path,
    name: str,
    kwargs: dict[str, bool] | None,
) -> None:
    if kwargs and "enable_thinking" not in shipped(name):
        pytest.skip("has no such switch")
    opens = (
        name in ("qwen3_5_think", "qwen3_6", "qwen3_8")
        or name.startswith("nemotron")
        or (kwargs and name == "qwen3_5_nothink")
    )
    opens = bool(opens) and kwargs != {"enable_thinking": False}
    recipe, tokenizer, fmt = load(
        shipped(name),
        chat_template_kwargs=kwargs,
        response_format="think_boxed" if opens else "boxed",
    )
    eos, end = next(
        (pair for family, pair in ENDS.items() if name.startswith(family)),
        ("<|im_end|>", "<|im_end|>"),
    )
    tokenizer.add_special_tokens({"eos_token": eos})
    tools, _ = agent(recipe, tokenizer)
    options = {
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
    }
    trainer = trl.GRPOTrainer(
        model=tiny,
        args=trl.GRPOConfig(str(tmp_path), **options),
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "2+2?"}]}] * 2),
        processing_class=tokenizer,
        tools=tools,
    )
    assert (
        trainer.chat_template is None
    )  # prompts are those of the tokenizer, which evaluation uses as well
    turn = generation_prompt(tokenizer)
    assert (
        opens == ("<think>" in turn and "</think>" not in turn)
        and (fmt.prefill == "<think>\n") == opens
    )
    closed = "</think>" in turn or "<think>" not in shipped(name)
    for system in ("", "Put the answer into \\boxed{}."):
        question = [
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": "2+2?"},
        ]
        prompt = tokenizer.apply_chat_template(
            question, tools=tools, tokenize=False, add_generation_prompt=True
        )
        prefix = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        assert "calculator" in prompt and system in prompt
        # What the model writes: its thoughts if it is to think, then a call as the template writes
        # one.
        whole = tokenizer.apply_chat_template(
            [*question, {"role": "assistant", "content": "", "tool_calls": [CALL]}], tokenize=False
        )
        call = (
            whole.rpartition(turn.partition("<think>")[0])[2]
            .rpartition("</think>")[2]
            .strip()
            .removesuffix(end)
        )
        thoughts = "" if closed else "<think>\nI add.\n</think>\n\n"[8 * opens :]
        ids = tokenizer(thoughts + call + end * (end == eos), add_special_tokens=False)["input_ids"]
        said = parse_response(tokenizer, ids, prefix=prefix, tools=tools)
        assert said["tool_calls"] == [CALL]
        assert completion_texts([[said]])[0].split() == thoughts.split()
        # The answer: thoughts and all, as without tools, so that the format reads it.
        before = {"gptoss": "<|channel|>final<|message|>"}.get(name, "")
        answer = thoughts + "2 + 2 = 4, so \\boxed{4}."
        ids = tokenizer(before + answer, add_special_tokens=False)["input_ids"]
        text = parse_response(tokenizer, ids, prefix=prefix, tools=tools)["content"]
        assert text.split() == answer.split() and fmt.parse(text).answer == "4"
        assert not opens or fmt.parse(text).well_formed
