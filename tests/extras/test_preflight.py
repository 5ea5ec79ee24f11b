"""Each mistake that people ask about in issues, as a recipe, and what preflight says of it before a
run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from r1_recipes.extras.preflight import __main__ as preflight
from r1_recipes.extras.preflight import fit
from r1_recipes.extras.preflight.findings import Report
from r1_recipes.prompts import FORMATS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]
HERE = "tests.extras.test_preflight"


def nothing(completions: list, **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def everything(completions: list, **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def broken(completions: list, **columns: Any) -> list[float]:
    raise KeyError("no such key")


def too_few(completions: list, **columns: Any) -> list[float]:
    return [1.0]


def found(report: Report, level: str) -> dict[str, str]:
    """Messages by code; a code that occurs more often has its last one."""
    return {code: message for at, code, message in report.findings if at == level}


@pytest.fixture
def recipe(write_recipe):
    """A GRPO recipe on the eight sums with which nothing is wrong; ``recipe(key=value)``
    breaks it.
    """
    settings = {
        "reward_funcs": ["accuracy", "format"],
        "max_completion_length": 200,
        "response_format": "think_answer",
        "system_prompt": None,
    }
    return lambda **changes: write_recipe("grpo", **{**settings, **changes})


def check(path: str, no_model: bool = True, groups: int = 2, processes: int = 1) -> Report:
    report, options = Report(), {"groups": groups, "seconds": 60, "num_processes": processes}
    options |= {"recipe": path, "no_model": no_model}
    with report.refusals("recipe.unusable"):
        preflight.examine(report, argparse.Namespace(**options), [])
    return report


@pytest.fixture(scope="module")
def silent_model(tiny_model, tmp_path_factory) -> str:
    """A checkpoint that ends every answer at once."""
    from transformers import AutoTokenizer, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("silent") / "model"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = Qwen2ForCausalLM.from_pretrained(tiny_model)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()  # what the attention and the MLP add to the embedding
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight[tokenizer.eos_token_id] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def rows_file(tmp_path: Path, *rows: tuple[str, str]) -> dict[str, Any]:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"prompt": prompt, "solution": gold}) + "\n" for prompt, gold in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return {"dataset_name": str(path), "mapper": "prompt_solution"}


def test_a_good_recipe_has_no_errors_and_leaves_nothing_behind(recipe, tmp_path, capsys):
    report = check(recipe(dataset_test_split="train"))
    assert found(report, "error") == {} and found(report, "warning") == {}
    sections = {code.partition(".")[0] for _, code, _ in report.findings}
    assert sections == {"recipe", "data", "contract", "fit"}
    assert not (tmp_path / "run").exists()
    assert "8 of 8 rows kept" in found(report, "ok")["data.rows"]
    assert "window is 4096" in found(report, "ok")["data.window"]
    said = capsys.readouterr().out
    # Three rows as the model reads them, each with its reference answer, on the first screen
    rows, _, rest = said.partition("data.rows")
    assert rows.count("as the model reads it. Its reference answer: ") == 3
    assert rows.count("<|im_start|>assistant\n") == 3 and rows.count("\n") < 45
    assert "right  wrong  shapeless" in rest


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_earns_full_marks_under_every_rule_reward(recipe, name):
    rules = ["accuracy", "answer_contains", "format", "format_partial", "tag_count"]
    rules += ["xml_soft_format", "xml_strict_format", "reasoning_steps", "repetition_penalty"]
    rules += ["cosine", "length", "soft_overlong_punishment"]
    assert found(check(recipe(response_format=name, reward_funcs=rules)), "error") == {}


def test_a_prompt_that_asks_for_other_tags_than_the_reward_reads(recipe):
    report = check(recipe(system_prompt="Put the answer between <result> and </result>."))
    assert "not for" in found(report, "warning")["contract.prompt"]


def test_the_tools_of_sft_rows_are_shown_and_counted(write_recipe, tmp_path, capsys):
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    tool = {"type": "function", "function": {"name": "abacus", "parameters": {"properties": {}}}}
    row = {"messages": turns, "tools": json.dumps([tool])}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 8, encoding="utf-8")
    keys = {"dataset_name": str(tmp_path / "rows.jsonl"), "mapper": "auto"}
    keys["chat_template"] = "recipes/templates/short_tools.jinja"
    assert found(check(write_recipe("sft", **keys)), "error") == {}
    assert capsys.readouterr().out.count("abacus") == 3


def test_reference_answers_that_a_reward_cannot_read(recipe, tmp_path):
    wrong = [("Why?", "Because?"), ("2+2?", "4"), ("Who?", "Who knows?"), ("How?", "By train?")]
    message = found(check(recipe(**rows_file(tmp_path, *wrong))), "error")["data.golds"]
    assert "accuracy cannot read 3 of 4 reference answers (rows 0, 2, 3" in message
    assert "'Because?'" in message and "solution_column" in message
    # a few among many are a warning
    report = check(recipe(**rows_file(tmp_path, *wrong[1:3], ("1+1?", "2"), ("3+3?", "6"))))
    assert found(report, "error") == {} and "1 of 4" in found(report, "warning")["data.golds"]
    twice = rows_file(tmp_path, ("1+1?", "2"), ("1+1?", "3"), ("2,5+1?", "3,5"), ("3+3?", "6"))
    said = found(check(recipe(**twice)), "warning")
    assert {"data.several_golds", "data.number_locale"} <= said.keys()


@pytest.mark.parametrize(
    ("reward", "code", "advice"),
    [("nothing", "all_zero", "start from SFT"), ("everything", "all_one", "harder problems")],
)
def test_groups_without_spread(recipe, silent_model, capsys, reward, code, advice):
    path = recipe(model_name_or_path=silent_model, reward_funcs=[f"{HERE}:{reward}"])
    with pytest.raises(SystemExit) as stop:
        preflight.main([path, "--groups", "3", "--brief"])
    assert stop.value.code == 1
    text = capsys.readouterr().out
    assert f"signal.{code}: 3 of 3 groups (100%)" in text and advice in text
    # The model ends at once, and so nothing is cut.
    assert "signal.truncation" in text and "cuts 0 of 6" in text
    assert (
        "1 error(s), " in text
        and "Do not start this run" in text
        and text.count("Its reference answer") == 3
    )


def test_a_random_model_has_spread_in_letters_and_is_cut(recipe):
    letters = ["tests.conftest:letters"]
    path = recipe(reward_funcs=letters, max_completion_length=16, num_generations=4)
    report = check(path, no_model=False)
    assert "2 of 2 groups have spread" in found(report, "ok")["signal.spread"]
    assert "Fix: max_completion_length: 32" in found(report, "error")["signal.truncation"]


@pytest.mark.parametrize(
    ("changes", "processes"), [({"num_generations": 3}, 1), ({"num_generations": 8}, 3)]
)
def test_a_batch_that_groups_do_not_fill(recipe, changes, processes):
    """TRL's own message: it names both numbers."""
    errors = found(check(recipe(**changes), processes=processes), "error")
    assert "divisible by num_generations" in errors.pop("recipe.unusable") and errors == {}


@pytest.mark.parametrize(
    ("changes", "level", "code", "message"),
    [
        ({"reward_funcs": [f"{HERE}:broken"]}, "error", "reward_fails", "KeyError: 'no such key'"),
        ({"reward_funcs": [f"{HERE}:too_few"]}, "error", "reward_fails", "per completion, here 8"),
        ({"reward_funcs": [f"{HERE}:nothing"]}, "warning", "total", "right 0, wrong 0"),
        ({"reward_weights": [-1.0, 1.0]}, "error", "total", "right 0, wrong 1"),
    ],
)
def test_rewards_that_do_not_keep_the_contract(recipe, changes, level, code, message):
    assert message in found(check(recipe(**changes)), level)[f"contract.{code}"]


MODEL = torch.nn.Linear(10, 100, bias=False)  # 1000 parameters in fp32


def settings(**changes: Any) -> SimpleNamespace:
    training = {"optim": "adamw_torch", "bf16": True, "fp16": False, "beta": 0.0, "use_vllm": False}
    training |= {"use_cpu": False, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
    training |= {key: value for key, value in changes.items() if key in training}
    model = SimpleNamespace(
        use_peft=changes.get("use_peft", False), load_in_4bit=False, load_in_8bit=False
    )
    return SimpleNamespace(method="grpo", training=SimpleNamespace(**training), model=model)


@pytest.mark.parametrize(
    ("shards", "changes", "expected"),
    [
        (1, {}, (4000, 4000, 8000)),
        (1, {"optim": "adamw_bnb_8bit"}, (4000, 4000, 2000)),
        (1, {"optim": "sgd"}, (4000, 4000, 0)),
        # 16-bit weights and gradients, an fp32 copy and Adam's two moments
        (4, {}, (2000, 2000, 12000)),
        (4, {"bf16": False}, (4000, 4000, 8000)),
    ],
)
def test_what_training_keeps(shards: int, changes: dict, expected: tuple[int, int, int]) -> None:
    state = fit.training_state(settings(**changes), MODEL, shards)
    assert tuple(state.values()) == expected


@pytest.mark.parametrize(
    ("available", "shards", "changes", "level"),
    [
        (19_000, 1, {}, "ok"),
        (16_000, 1, {}, "warning"),  # activations have no room
        (15_999, 1, {}, "error"),
        (19_999, 1, {"beta": 0.1}, "error"),  # the reference model
        (19_000, 1, {"beta": 0.1, "use_peft": True}, "ok"),
        (9_500, 1, {"optim": "paged_adamw_32bit"}, "ok"),
        (3_999, 4, {}, "warning"),  # shards may be offloaded
        (20_000, 1, {"use_vllm": True}, "warning"),  # vLLM leaves 14,000, and may sleep
        (None, 1, {}, "ok"),
    ],
)
def test_it_is_compared_with_the_device(
    monkeypatch: pytest.MonkeyPatch, available: int | None, shards: int, changes: dict, level: str
) -> None:
    monkeypatch.setattr(fit, "device_memory", lambda _: available)
    report, recipe = Report(), settings(**changes)
    fit.check_memory(report, recipe, fit.training_state(recipe, MODEL, shards), shards)
    assert ("Fix: use_peft: true" in found(report, level)["fit.memory"]) == (level != "ok")
