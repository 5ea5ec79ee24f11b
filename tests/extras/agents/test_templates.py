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

from r1_recipes import grpo, sft
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.completions.turns import read_completion, written_prompt
from r1_recipes.completions.types import Request
from r1_recipes.models.agent import agent
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer
from r1_recipes.prompts import leaves_open, served_template
from r1_recipes.recipe import load_recipe
from tests.conftest import REPOSITORY
from tests.core.prompts.test_served_template import from_folder
from tests.core.prompts.test_thinking import SHIPPED

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
NONE = {
    "cannot write tools": {
        "cohere",
        "cohere2",
        "deepseek_r1_distill",
        "gemma",
        "gemma3",
        "idefics3",
        "lfm2",
        "llama3",
    }
}
NONE["cannot write tools"] |= {"llava_next", "phi3", "phi3_5", "qwen2_5_vl", "smolvlm"}
NONE["writes calls that TRL cannot read"] = {"deepseekv3", "muse_glimmer"}
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


@pytest.mark.parametrize(
    "name", [name for name in NAMES if not any(name in names for names in NONE.values())]
)
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
        opens == leaves_open(turn, ("<think>", "</think>"))
        and (fmt.prefill == "<think>\n") == opens
    )
    closed = "</think>" in turn or "<think>" not in shipped(name)
    for system in ("", "Put the answer into \\boxed{}."):
        question = [
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": "2+2?"},
        ]
        request = Request(0, question, tuple(tools))
        prompt = written_prompt(tokenizer, request)
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
        [said] = read_completion(tokenizer, request, ids, len(ids), "stop").turns or [None]
        assert said and said["tool_calls"] == [CALL]
        assert completion_texts([[said]])[0].split() == thoughts.split()
        # Training goes on with the tokens that were written, evaluation writes the conversation
        # anew.
        result = {"role": "tool", "name": "calculator", "content": "4"}
        suffix = tokenizer.decode(trainer._get_tool_suffix_ids([result])).removeprefix(end)
        request = Request(0, [*question, said, result], tuple(tools))
        evaluated = written_prompt(tokenizer, request)
        assert "".join(f"{prompt}{thoughts}{call}{end}{suffix}".split()) == "".join(
            evaluated.split()
        )
        # The answer: thoughts and all, as without tools, so that the format reads it.
        before = {"gptoss": "<|channel|>final<|message|>"}.get(
            name, "<channel|>" if evaluated.endswith("thought\n") else ""
        )
        answer = thoughts + "2 + 2 = 4, so \\boxed{4}."
        ids = tokenizer(before + answer, add_special_tokens=False)["input_ids"]
        text = read_completion(tokenizer, request, ids, len(ids), "stop").text
        assert text.split() == answer.split() and fmt.parse(text).answer == "4"
        assert not opens or fmt.parse(text).well_formed


@pytest.mark.parametrize(
    ("message", "name"),
    [(message, name) for message, names in NONE.items() for name in sorted(names)],
)
def test_a_template_without_calls_is_refused(
    load: Callable[..., Any], message: str, name: str
) -> None:
    recipe, tokenizer, _ = load(
        shipped(name).replace("bos_token", "'<s>'"), response_format="think_boxed", system_prompt=""
    )
    with pytest.raises(
        RecipeError,
        match=f"tiny.yaml: tools: the chat template of .*{message}.*Fix: .*chat_template",
    ):
        agent(recipe, tokenizer)


TWICE = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("written", "calls", "said"),
    [
        (f"a{TWICE}b{TWICE}c", 2, "a\nb\nc"),
        (f"a{TWICE[:-3]}", 0, f"a{TWICE[:-3]}"),
        (TWICE.replace("1", r"\ud800"), 0, "ud800"),
        (TWICE.replace('{"expression": "1"}', "[" * 100_000), 0, "[[["),
        (
            TWICE.replace('{"expression": "1"}', '{"expression": ' + "[" * 400 + "]" * 400 + "}"),
            1,
            "",
        ),
        (TWICE.replace('{"expression": "1"}', "7"), 1, ""),
    ],
)
def test_whatever_a_model_writes_for_a_call_can_be_shown_again(
    load: Callable[..., Any], written: str, calls: int, said: str
) -> None:
    recipe, tokenizer, _ = load(shipped("qwen3_instruct_2507"))
    agent(recipe, tokenizer)
    ids = tokenizer(written + "<|im_end|>", add_special_tokens=False)["input_ids"]
    message = trl.chat_template_utils.parse_response(tokenizer, ids, prefix=[])
    assert len(message.get("tool_calls", ())) == calls and said in message["content"]
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}, message], tokenize=False
    )


def test_what_is_not_known_and_does_not_keep_its_turns_is_refused(load: Callable[..., Any]) -> None:
    recipe, tokenizer, _ = load(shipped("qwen3") + "{#- mine #}", system_prompt="")
    with pytest.raises(
        RecipeError,
        match=r"or changes earlier messages. Fix: chat_template: one of trl/chat_templates",
    ):
        agent(recipe, tokenizer)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_nothink", "glm4moe"])
def test_a_checkpoint_goes_on_with_its_tools(
    load: Callable[..., Any], write_recipe: Callable[..., str], tmp_path: Path, name: str
) -> None:
    recipe, tokenizer, _ = load(shipped(name), chat_template_kwargs={"enable_thinking": False})
    agent(recipe, tokenizer)
    tokenizer.save_pretrained(tmp_path / "model")
    for kwargs, empty in [(None, True), ({"enable_thinking": True}, False)]:
        path = write_recipe(
            "grpo",
            model_name_or_path=str(tmp_path / "model"),
            response_format="boxed",
            tools=["calculator"],
        )
        recipe = load_recipe([path], "grpo")
        recipe.training.chat_template_kwargs = kwargs
        again, _ = load_tokenizer(recipe)
        agent(recipe, again)
        assert ("</think>" in generation_prompt(again)) == empty


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_training_on_qwen3_s_template_takes_the_switch(
    load: Callable[..., Any], write_recipe: Callable[..., str], tmp_path: Path, method: str
) -> None:
    load(shipped("qwen3"))
    settings: dict[str, Any] = (
        {"assistant_only_loss": True, "completion_only_loss": False}
        if method == "sft"
        else {"tools": ["calculator"]}
    )
    settings |= {
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": "boxed",
        "max_steps": 1,
    }
    main = {"sft": sft, "grpo": grpo}[method].main
    main([write_recipe(method, model_name_or_path=str(tmp_path / "model"), **settings)])
    saved = from_folder(tmp_path / "run").chat_template
    assert served_template.unwrap(saved)[0] == shipped("qwen3_training")


def test_without_tools_a_turn_is_read_as_text(
    load: Callable[..., Any], write_recipe: Callable[..., str], tmp_path: Path
) -> None:
    recipe, tokenizer, _ = load(shipped("qwen3_instruct_2507"))
    agent(recipe, tokenizer)
    tokenizer.save_pretrained(tmp_path / "saved")
    recipe = load_recipe(
        [write_recipe("grpo", model_name_or_path=str(tmp_path / "saved"), response_format="boxed")],
        "grpo",
    )
    tokenizer, _ = load_tokenizer(recipe)
    assert tokenizer.response_template  # TRL would count the prefill to the turn
    agent(recipe, tokenizer)
    assert tokenizer.response_template is None
    tokenizer.save_pretrained(tmp_path / "again")


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3_instruct_2507", "qwen3", "lfm2_v2", "short_tools"]
)
def test_thoughts_before_a_call_are_in_the_next_prompt(load: Callable[..., Any], name: str) -> None:
    """Training goes on with the tokens that were written; not every template writes a field for
    thoughts.
    """
    own = (
        (REPOSITORY / "recipes/templates/short_tools.jinja").read_text(encoding="utf-8")
        if name == "short_tools"
        else shipped(name)
    )
    recipe, tokenizer, _ = load(own, response_format="think_boxed")
    tools, _ = agent(recipe, tokenizer)
    said = {"role": "assistant", "content": "<think>\nI add.\n</think>\n\n", "tool_calls": [CALL]}
    turns = [
        {"role": "user", "content": "2+2?"},
        said,
        {"role": "tool", "name": "calculator", "content": "4"},
    ]
    prompt = written_prompt(tokenizer, Request(0, turns, tuple(tools)))
    assert prompt.count("I add.") == 1 and prompt.index("<think>") < prompt.index(
        "I add."
    ) < prompt.index("</think>")
