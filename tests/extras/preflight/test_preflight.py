"""Each mistake that people ask about in issues, as a recipe, and what preflight says of it before a
run.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from r1_recipes.completions.types import Completion
from r1_recipes.extras.preflight import __main__ as preflight
from r1_recipes.extras.preflight import signal
from r1_recipes.extras.preflight.findings import Report
from r1_recipes.prompts import FORMATS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]

RULES = ["accuracy", "format"]


def nothing(completions: list, **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def everything(completions: list, **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def broken(completions: list, **columns: Any) -> list[float]:
    raise KeyError("no such key")


def too_few(completions: list, **columns: Any) -> list[float]:
    return [1.0]


def undecided(completions: list, **columns: Any) -> list[None]:
    return [None] * len(completions)


def found(report: Report, level: str) -> dict[str, str]:
    """Messages by code; a code that occurs more often has its last one."""
    return {finding.code: finding.message for finding in report.findings if finding.level == level}


@pytest.fixture
def recipe(write_recipe):
    """A GRPO recipe on the eight sums with which nothing is wrong; ``recipe(key=value)``
    breaks it.
    """

    def write(**changes: Any) -> str:
        settings = {
            "reward_funcs": RULES,
            "max_completion_length": 200,
            "response_format": "think_answer",
            "system_prompt": None,
        }
        return write_recipe("grpo", **{**settings, **changes})

    return write


def check(path: str, *overrides: str, use_model: bool = False, **options: Any) -> Report:
    words = [] if use_model else ["--no-model"]
    words += [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    return preflight.examine(*preflight.parse([path, *words, *overrides]))


def model_that_writes(token: str, source: Path, folder: Path, logit: float = 32.0) -> str:
    """A checkpoint that generates one token again and again, whatever it is asked; with a smaller
    ``logit``, any others between.
    """
    import torch
    from transformers import AutoTokenizer, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source)
    model = Qwen2ForCausalLM.from_pretrained(source)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()  # what the attention and the MLP add to the embedding
        model.model.embed_tokens.weight.fill_(1.0)
        # The last layer reads 32 ones; all other tokens have a logit of 0.
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(token)] = logit / 32
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def silent_model(tiny_model, tmp_path_factory) -> str:
    return model_that_writes("<|im_end|>", tiny_model, tmp_path_factory.mktemp("silent") / "model")


@pytest.fixture
def canned(monkeypatch):
    """``canned([[completion, …], …])``: these groups instead of a model's."""

    def use(groups: list[list[Completion]]) -> None:
        waiting = list(groups)
        model = SimpleNamespace(device=torch.device("cpu"))
        monkeypatch.setattr("r1_recipes.extras.preflight.signal.load_model", lambda recipe: model)
        monkeypatch.setattr(
            "r1_recipes.extras.preflight.signal.complete",
            lambda model, tokenizer, prompts, *_: [[waiting.pop(0) for _ in prompts]],
        )

    return use


def rows_file(tmp_path: Path, *rows: tuple[str, str]) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": prompt, "solution": gold}) + "\n" for prompt, gold in rows),
        encoding="utf-8",
    )
    return str(path)


# A recipe with which nothing is wrong


def test_a_good_recipe_has_no_errors_and_leaves_nothing_behind(recipe, tmp_path):
    report = check(recipe(dataset_test_split="train"))
    assert found(report, "error") == {} and found(report, "warning") == {}
    assert {finding.code.partition(".")[0] for finding in report.findings} == {
        "recipe",
        "data",
        "contract",
        "fit",
    }
    assert not (tmp_path / "run").exists()
    # <think>\n, three steps, \n</think>\n<answer>\n4\n</answer>
    assert report.details["contract"][1][1].to_dict("index") == {
        "accuracy": {"right": 1.0, "wrong": 0.0, "shapeless": 0.0},
        "format": {"right": 1.0, "wrong": 1.0, "shapeless": 0.0},
    }
    assert (
        "8 of 8 rows kept" in found(report, "ok")["data.rows"]
        and "window is 4096" in found(report, "ok")["data.window"]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_earns_full_marks_under_every_rule_reward(recipe, name):
    rules = [
        "accuracy",
        "answer_contains",
        "format",
        "format_partial",
        "tag_count",
        "xml_soft_format",
        "xml_strict_format",
    ]
    rules += [
        "reasoning_steps",
        "repetition_penalty",
        "cosine",
        "length",
        "soft_overlong_punishment",
    ]
    report = check(recipe(response_format=name, reward_funcs=rules))
    assert found(report, "error") == {}
    full = report.details["contract"][1][1]["right"].to_dict()
    # A penalty has nothing to take off; one completion alone is as long as its group; cosine's
    # best, 1.0, is for no tokens at all.
    assert {reward: full[reward] for reward in rules[:8]} == dict.fromkeys(rules[:8], 1.0)
    assert (
        full["repetition_penalty"] == full["length"] == full["soft_overlong_punishment"] == 0.0
        and 0.9 < full["cosine"] < 1.0
    )


# The nine mistakes


def test_a_prompt_that_asks_for_other_tags_than_the_reward_reads(recipe):
    asks = "Put the answer between <result> and </result>."
    report = check(recipe(system_prompt=asks))
    assert any(
        "<answer>" in finding.message for finding in report.findings if finding.level != "ok"
    )


def test_a_length_limit_that_cuts_four_of_five(recipe, canned):
    group = [Completion("I am still thinking", 200, "length")] * 4 + [Completion("done", 3, "stop")]
    canned([group, group])
    report = check(
        recipe(num_generations=5, per_device_train_batch_size=5), use_model=True, groups=2
    )
    message = found(report, "error")["signal.truncation"]
    assert (
        "max_completion_length 200 cuts 8 of 10 completions (80%)" in message
        and "Fix: max_completion_length: 400" in message
    )


def test_golds_that_are_no_mathematics(recipe, tmp_path):
    rows = rows_file(
        tmp_path, ("Why?", "Because?"), ("2+2?", "4"), ("Who?", "Who knows?"), ("How?", "By train?")
    )
    report = check(recipe(dataset_name=rows, mapper="prompt_solution"))
    message = found(report, "error")["data.golds"]
    assert (
        "cannot read 3 of 4 reference answers (75%; rows 0, 2, 3 of the rows kept; the first is "
        "'Because?')" in message
    )
    assert "accuracy cannot read" in message and "solution_column" in message
    words = rows_file(tmp_path, ("Why?", "Because."), ("2+2?", "4"))
    report = check(recipe(dataset_name=words, mapper="prompt_solution"))
    assert "1 of 2 reference answers are words" in found(report, "warning")["data.words"]
    # a few among many are a warning
    rows = rows_file(tmp_path, ("1+1?", "2"), ("2+2?", "4"), ("Who?", "Who knows?"), ("3+3?", "6"))
    report = check(recipe(dataset_name=rows, mapper="prompt_solution"))
    assert (
        found(report, "error") == {}
        and "1 of 4 reference answers (25%; rows 2 " in found(report, "warning")["data.golds"]
    )


def test_groups_that_all_score_nothing(recipe, silent_model, capsys):
    path = recipe(
        model_name_or_path=silent_model,
        reward_funcs=["tests.extras.preflight.test_preflight:nothing"],
    )
    with pytest.raises(SystemExit) as stop:
        preflight.main([path, "--groups", "3"])
    assert stop.value.code == 1
    text = capsys.readouterr().out
    assert (
        "3 of 3 groups (100%) have no spread, 3 of them all 0, so GRPO has nothing to compare. "
        "Fix: start from SFT" in text
    )
    assert (
        "Do not start this run: 1 error" in text
        and text.count("Completion ") == 5
        and "\x1b" not in text
    )


def test_groups_that_all_score_everything(recipe, silent_model):
    report = check(
        recipe(
            model_name_or_path=silent_model,
            reward_funcs=["tests.extras.preflight.test_preflight:everything"],
        ),
        use_model=True,
        groups=2,
    )
    (message,) = found(report, "error").values()
    assert (
        "2 of 2 groups (100%) have no spread, 2 of them all 1" in message
        and "harder problems" in message
    )
    # the model ends at once, and so nothing is cut
    assert (
        "cuts 0 of 4" in found(report, "ok")["signal.truncation"]
        and "; 1 tokens, finish_reason stop" in report.details["signal"][1][0]
    )


@pytest.mark.parametrize(
    "changes, processes",
    [
        ({"num_generations": 3}, 1),
        ({"num_generations": 8}, 3),
        ({"num_generations": 8, "generation_batch_size": 12}, 1),
        ({"num_generations": 2, "per_device_train_batch_size": 1}, 1),
    ],
)
def test_a_batch_that_groups_do_not_fill(recipe, changes, processes):
    """TRL's own message: it names both numbers."""
    report = check(recipe(**changes), num_processes=processes)
    errors = found(report, "error")
    assert list(errors) == ["recipe.unusable"]
    assert "divisible by num_generations" in errors["recipe.unusable"]


# The contract


@pytest.mark.parametrize(
    "changes, level, code, message",
    [
        (
            {"reward_funcs": ["tests.extras.preflight.test_preflight:broken"]},
            "error",
            "contract.reward_fails",
            "fails: KeyError: 'no such key'",
        ),
        (
            {"reward_funcs": ["tests.extras.preflight.test_preflight:too_few"]},
            "error",
            "contract.reward_fails",
            "(or None) per completion, here 8",
        ),
        (
            {"reward_funcs": ["tests.extras.preflight.test_preflight:nothing"]},
            "warning",
            "contract.alike",
            "the same score (0)",
        ),
        (
            {"reward_weights": [-1.0, 1.0]},
            "error",
            "contract.total",
            "correct 0, wrong 1, without format 0",
        ),
        (
            {"reward_funcs": ["accuracy", "countdown"]},
            "error",
            "contract.reward_fails",
            "reward 'countdown' needs the puzzles",
        ),
        (
            {"reward_funcs": ["accuracy", "tests.extras.preflight.test_preflight:undecided"]},
            "warning",
            "contract.unjudged",
            "undecided scores none of 8",
        ),
        (
            {"reward_funcs": ["accuracy", "cosine"], "cosine_min_value_wrong": 2.0},
            "warning",
            "contract.wrong",
            "cosine gives a wrong answer",
        ),
    ],
)
def test_rewards_that_do_not_keep_the_contract(recipe, changes, level, code, message):
    assert message in found(check(recipe(**changes)), level)[code]


# The signal


def test_a_random_model_is_sampled_with_the_recipes_settings(recipe, monkeypatch):
    seen = []
    complete = signal.complete

    def watched(model, tokenizer, prompts, sampling_plans, limit):
        seen.append((len(prompts), sampling_plans, limit))
        return complete(model, tokenizer, prompts, sampling_plans, limit)

    monkeypatch.setattr(signal, "complete", watched)
    changes = {
        "temperature": 0.7,
        "top_k": 5,
        "generation_kwargs": {"no_repeat_ngram_size": 3},
        "num_generations": 4,
    }
    path = recipe(reward_funcs=["tests.conftest:letters"], **changes)
    report = check(path, "--max_completion_length", "16", use_model=True, groups=2)
    assert "2 of 2 groups have spread" in found(report, "ok")["signal.spread"]
    ((prompts, ((settings, copies),), limit), _) = seen
    assert (prompts, copies, limit) == (1, 4, 16)
    assert (
        settings["temperature"],
        settings["top_k"],
        settings["no_repeat_ngram_size"],
        settings["do_sample"],
    ) == (0.7, 5, 3, True)
    assert (
        report.details["signal"][0][0] == "8 completions in 2 groups:"
        and len(report.details["signal"]) == 1 + 5
    )


# The fit


# Supervised fine-tuning


# The command
