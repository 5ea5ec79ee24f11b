"""Each mistake that people ask about in issues, as a recipe, and what preflight says of it before a
run.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pandas import DataFrame

from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.completions.types import Completion
from r1_recipes.data import Mapper
from r1_recipes.extras.preflight import __main__ as preflight
from r1_recipes.extras.preflight import signal
from r1_recipes.extras.preflight.contract import Rewards
from r1_recipes.extras.preflight.findings import Report, evenly_spaced, join_names
from r1_recipes.prompts import CHATML, FORMATS, get_response_format
from r1_recipes.rewards import REWARDS
from tests.conftest import RECIPES, REPOSITORY, method_of

pytestmark = pytest.mark.usefixtures("offline")

RULES = ["accuracy", "format"]
THINKS = CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'")


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


async def later(completions: list, **columns: Any) -> list[float]:
    return [float(len(completion[0]["content"])) for completion in completions]


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


# The recipes that ship


TRAINED = [path for path in RECIPES if method_of(path) in ("grpo", "sft")]
_OFFLINE = ("reasoning_gym:", "countdown:", "recipes/")


def _sources(settings: dict[str, Any]) -> list[str]:
    mixture = settings.get("dataset_mixture")
    return [part["id"] for part in mixture["datasets"]] if mixture else [settings["dataset_name"]]


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_that_ships_has_no_errors(path, monkeypatch, tiny_model):
    """On its mapper's example rows, and on its own data if they need no hub."""
    monkeypatch.chdir(REPOSITORY)
    assert found(check(str(path), "--smoke"), "error") == {}
    if all(source.startswith(_OFFLINE) for source in _sources(read_yaml(path))):
        # The tiny model's tokenizer reads bytes: its answers take more room, and its layers have
        # other names.
        limits = (
            ["--max_completion_length", "999"]
            if method_of(path) == "grpo"
            else ["--max_length", "2000"]
        )
        report = check(
            str(path),
            "--model_name_or_path",
            str(tiny_model),
            "--unfrozen_parameters",
            "layers",
            *limits,
        )
        assert found(report, "error") == {}
        assert not {"data.golds", "contract.no_golds"} & found(report, "warning").keys()


class Fails(Mapper):
    """Fails where the cell says so."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"question": row["question"], "solution": {"yes": "1"}[row["works"]]}


@pytest.mark.parametrize(
    ("failing", "level"), [(1, "ok"), (2, "warning"), (38, "warning"), (150, "error")]
)
def test_a_mapper_that_fails_on_some_of_200_rows(recipe, tmp_path, failing, level):
    data = tmp_path / "rows.jsonl"
    works = ["no"] * failing + ["yes"] * (200 - failing)
    data.write_text(
        "".join(
            json.dumps({"question": f"{n}?", "works": word}) + "\n" for n, word in enumerate(works)
        ),
        encoding="utf-8",
    )
    report = check(recipe(dataset_name=str(data), mapper=f"{__name__}:Fails"))
    assert f"on {failing} of 200 rows" in found(report, level)["data.mapper"]
    assert f"{__file__}:{Fails.__call__.__code__.co_firstlineno + 1}" in "".join(
        one.message for one in report.findings
    )


@pytest.mark.parametrize(
    ("splits", "shared"),
    [
        ({"train": "train", "test": "train[-4:]"}, 4),
        ({"train": "train[:-4]", "test": "train[-4:]"}, 0),
    ],
)
def test_held_out_rows_that_are_trained_on(recipe, splits, shared):
    report = check(recipe(**{f"dataset_{name}_split": split for name, split in splits.items()}))
    message = found(report, "warning").get("data.overlap", "")
    assert message.startswith(f"{shared} of 4 rows") if shared else not message
    assert (
        "which has 'train'"
        in found(check(recipe(dataset_train_split="trian")), "error")["data.unusable"]
    )


def test_golds_are_asked_of_rows_that_a_reward_judges_by_them(recipe, tmp_path):
    rows = [
        ("2+2?", "4", "sums"),
        *(
            (question, "What would a friend say?", "talk")
            for question in ("Hello?", "Bye?", "Why?")
        ),
    ]
    entries = [{"prompt": prompt, "solution": gold, "task": task} for prompt, gold, task in rows]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8"
    )
    changes = {
        "dataset_name": str(tmp_path / "rows.jsonl"),
        "mapper": "prompt_solution",
        "system_prompt": "",
    }
    routed = recipe(**changes, task_rewards={"sums": ["accuracy"], "talk": ["format"]})
    report = check(routed)
    assert "data.golds" not in {**found(report, "error"), **found(report, "warning")}
    assert "accuracy can read all 1 reference answers" in found(report, "ok")["data.golds"]
    # Three of four rows that accuracy does judge have no mathematics for a gold: that is as wrong
    # as before.
    assert (
        "cannot read 3 of 4 reference answers"
        in found(check(recipe(**changes)), "error")["data.golds"]
    )
    unread = recipe(**changes, task_rewards={"talk": ["accuracy"], "sums": ["format"]})
    assert "cannot read 3 of 3 reference answers" in found(check(unread), "error")["data.golds"]


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


def test_prompts_are_shown_as_the_model_reads_them(recipe):
    first = check(recipe(system_prompt="Use <think> and <answer>.")).details["data"][0][1]
    assert first == (
        "<|im_start|>system\nUse <think> and "
        "<answer>.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )


# The nine mistakes


def test_a_prompt_that_asks_for_other_tags_than_the_reward_reads(recipe, tmp_path):
    asks = "Think in <reasoning>…</reasoning>, then answer in <answer>…</answer>."
    assert (
        "Fix: response_format: reasoning_answer"
        in found(check(recipe(system_prompt=asks)), "error")["recipe.unusable"]
    )
    rows = rows_file(tmp_path, *[(f"{asks} 2+2?", "4")] * 2)
    errors = found(
        check(recipe(dataset_name=rows, mapper="prompt_solution", system_prompt="")), "error"
    )
    assert list(errors) == ["contract.prompt"]
    assert "asks for <reasoning>, but response_format 'think_answer'" in errors["contract.prompt"]
    assert (
        "needs <think>" in errors["contract.prompt"]
        and "Fix: response_format: reasoning_answer" in errors["contract.prompt"]
    )
    assert (
        found(check(recipe(system_prompt=asks, response_format="reasoning_answer")), "error") == {}
    )
    # A tag of no format counts where the instruction opens and closes it, not where a
    # question holds HTML.
    asks = "Use <scratchpad>…</scratchpad>."
    assert "<scratchpad>" in found(check(recipe(system_prompt=asks)), "error")["contract.prompt"]
    assert "contract.prompt" in found(check(recipe(system_prompt="")), "warning")


def test_html_in_a_question_asks_for_no_shape(recipe, tmp_path):
    rows = rows_file(tmp_path, *[("What does <b>2</b>+<b>2</b> say?", "4")] * 2)
    report = check(recipe(dataset_name=rows, mapper="prompt_solution", system_prompt=""))
    assert (
        found(report, "error") == {}
        and "the prompt does not ask for" in found(report, "warning")["contract.prompt"]
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


def test_a_model_that_never_ends(recipe, tiny_model, tmp_path):
    model = model_that_writes("a", tiny_model, tmp_path / "model")
    report = check(
        recipe(model_name_or_path=model), "--max_completion_length", "12", use_model=True, groups=2
    )
    errors = found(report, "error")
    assert (
        "cuts 4 of 4 completions (100%)" in errors["signal.truncation"]
        and "if no completion ends" in errors["signal.truncation"]
    )
    assert {text for _, text in report.details["signal"][1:]} == {"a" * 12}


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
    assert (
        "1 of 2 reference answers are words or dates (rows 0; the first is 'Because.')"
        in found(check(recipe(dataset_name=words, mapper="prompt_solution")), "warning")[
            "data.words"
        ]
    )
    # what is read without some of its words, and what cannot be
    read = rows_file(
        tmp_path,
        ("How many?", "5 apples"),
        ("Which?", "any integer greater than $e^{200}$"),
        ("2+2?", "4"),
    )
    report = check(recipe(dataset_name=read, mapper="prompt_solution"))
    assert (
        "rows 1;" in found(report, "warning")["data.only_text"]
        and "rows 0;" in found(report, "ok")["data.left_out"]
    )
    # a few among many are a warning
    rows = rows_file(tmp_path, ("1+1?", "2"), ("2+2?", "4"), ("Who?", "Who knows?"), ("3+3?", "6"))
    report = check(recipe(dataset_name=rows, mapper="prompt_solution"))
    assert (
        found(report, "error") == {}
        and "1 of 4 reference answers (25%; rows 2 " in found(report, "warning")["data.golds"]
    )


def test_a_question_that_comes_again_with_another_gold_is_named(recipe, tmp_path):
    rows = rows_file(
        tmp_path,
        ("1+1?", "2"),
        ("1+1 ?", "2"),
        ("2+2?", "4"),
        ("2+2?", "5"),
        (" 2+2?", "6"),
        ("3+3?", "6"),
    )
    message = found(check(recipe(dataset_name=rows, mapper="prompt_solution")), "warning")[
        "data.several_golds"
    ]
    assert "1 of 4 questions" in message and "'2+2?' has '4' and '5'" in message
    rows = rows_file(tmp_path, ("1+1?", "0.5"), ("1+1?", "1/2"), ("1+1?", "#### 1/2"))
    assert "data.several_golds" not in found(
        check(recipe(dataset_name=rows, mapper="prompt_solution")), "warning"
    )


def test_a_file_of_which_nothing_is_held_out_is_named(recipe, tmp_path):
    rows = rows_file(tmp_path, *((f"{number}+1?", str(number + 1)) for number in range(40)))
    path = recipe(dataset_name=rows, mapper="prompt_solution")
    message = found(check(path), "warning")["data.held_out"]
    assert "dataset_train_split: 'train[:-4]' and dataset_test_split: 'train[-4:]'" in message
    fixed = check(path, "--dataset_train_split", "train[:-4]", "--dataset_test_split", "train[-4:]")
    assert not {"data.held_out", "data.test_split", "data.overlap"} & found(fixed, "warning").keys()


def test_a_prompt_longer_than_the_window(recipe, tmp_path):
    rows = rows_file(tmp_path, ("1+1?", "2"), ("x" * 5000 + "?", "4"), ("3+3?", "6"))
    path = recipe(dataset_name=rows, mapper="prompt_solution")
    message = found(check(path), "error")["data.window"]
    # 4096 - 200 tokens are left for a prompt
    assert (
        "window is 4096. 1 of 3 measured rows with max_completion_length 200 may exceed" in message
        and "(rows 1). Fix: max_prompt_tokens: 3896" in message
    )
    report = check(path, "--max_prompt_tokens", "3896")
    assert found(report, "error") == {}
    assert "prompt over max_prompt_tokens 3896" in found(report, "ok")["data.rows"]
    # the prompt fits, and leaves its completion no room: a bit less than 4096
    rows = rows_file(tmp_path, ("1+1?", "2"), ("x" * 3600 + "?", "4"))
    assert (
        "1 of 2 measured rows with max_completion_length 200 may exceed"
        in found(check(recipe(dataset_name=rows, mapper="prompt_solution")), "warning")[
            "data.window"
        ]
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
    "changes, processes, message",
    [
        (
            {"num_generations": 3},
            1,
            "gradient_accumulation_steps: the batch must be a multiple of 4 "
            "(per_device_train_batch_size 4 x 1 processes) and of "
            "num_generations 3, got 4. Fix: gradient_accumulation_steps: 3, or num_generations: 2",
        ),
        ({"num_generations": 8}, 1, "Fix: gradient_accumulation_steps: 2, or num_generations: 4"),
        ({"num_generations": 8}, 3, "multiple of 12 (per_device_train_batch_size 4 x 3 processes)"),
        (
            {"num_generations": 8, "steps_per_generation": 3},
            1,
            "got 12. Fix: steps_per_generation: 4, or num_generations: 6",
        ),
        # 12 is 3 batches of 4, and one group and a half of 8; the next that is both is 16
        (
            {"num_generations": 8, "generation_batch_size": 12},
            1,
            "Fix: generation_batch_size: 16, or num_generations: 6",
        ),
        (
            {"num_generations": 2, "generation_batch_size": 6},
            1,
            "got 6. Fix: generation_batch_size: 8",
        ),
        (
            {"num_generations": 2, "generation_batch_size": 8},
            3,
            "got 8. Fix: generation_batch_size: 12",
        ),
        (
            {"num_generations": 2, "per_device_train_batch_size": 1},
            1,
            "got 1. Fix: gradient_accumulation_steps: 2",
        ),
    ],
)
def test_a_batch_that_groups_do_not_fill(recipe, changes, processes, message):
    report = check(recipe(**changes), num_processes=processes)
    errors = found(report, "error")
    assert list(errors) == ["fit.batch"] and message in errors["fit.batch"]


def test_more_processes_may_fill_what_one_does_not(recipe):
    # 4 x 2 = 8 = one group of 8, of which each process has a half
    report = check(recipe(num_generations=8, reward_funcs=["accuracy", "length"]), num_processes=2)
    assert (
        found(report, "error") == {}
        and "8 completions per batch over 2 processes are 1 groups of 8"
        in found(report, "ok")["fit.batch"]
    )


def test_an_evaluation_batch_that_groups_do_not_fill(recipe, tmp_path):
    (tmp_path / "data").mkdir()
    for split, numbers in (("train", (2, 4)), ("test", (3,))):
        rows = [
            {"prompt": f"{number}+{number}?", "solution": str(2 * number)} for number in numbers
        ]
        (tmp_path / "data" / f"{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    path = recipe(
        dataset_name=str(tmp_path / "data"),
        mapper="prompt_solution",
        num_generations=4,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=6,
    )
    report = check(path)
    (message,) = found(report, "error").values()
    assert (
        "multiple of 4 completions, got 6" in message and "per_device_eval_batch_size: 8" in message
    )
    report = check(path, num_processes=2)  # 12 is
    assert found(report, "error") == {}
    assert found(report, "ok")["data.rows"] == "2 of 2 rows kept; test split: 1 of 1 rows kept"


def test_a_template_that_already_opens_the_reasoning(recipe):
    report = check(recipe(chat_template=THINKS))
    assert found(report, "error") == {}
    assert (
        "already opens the assistant's turn with '<think>\\n'"
        in found(report, "ok")["contract.prefill"]
    )
    # What the model writes starts after the tag, and gets full marks.
    assert (
        report.details["contract"][0][1].startswith("Step 1:")
        and report.details["contract"][1][1]["right"]["format"] == 1.0
    )
    assert "a reward of your own must not look for it" in found(report, "ok")["contract.prefill"]
    twice = found(check(recipe(chat_template=THINKS, prefill="Let me see.\n<think>")), "error")
    assert (
        "already opens the assistant's turn with '<think>\\n'. Fix: remove prefill"
        in twice["contract.tokenizer"]
    )
    other = found(check(recipe(chat_template=THINKS, response_format="reasoning_answer")), "error")
    assert (
        "opens the assistant's turn with '<think>'" in other["contract.prefill"]
        and "think_answer" in other["contract.prefill"]
    )
    empty = THINKS.replace("<think>\\n", "<think>\\n\\n</think>\\n\\n")
    closed = found(check(recipe(chat_template=empty)), "error")
    assert "an empty reasoning block" in closed["contract.tokenizer"]
    # An empty block is none to start in, for a format that has no such block.
    report = check(recipe(chat_template=empty, response_format="reasoning_answer"))
    assert found(report, "error") == {} and "contract.prefill" not in found(report, "ok")
    thoughts = found(
        check(recipe(chat_template=THINKS, response_format="boxed", reward_funcs=["accuracy"])),
        "warning",
    )
    assert (
        "does not separate reasoning from the answer. Fix: response_format: think_boxed"
        in thoughts["contract.prefill"]
    )


def test_a_column_that_is_not_there(recipe):
    report = check(
        recipe(mapper="prompt_solution", prompt_column="problem", solution_column="answer")
    )
    (message,) = found(report, "error").values()
    assert "needs column 'problem'; the source has the columns question, answer" in message
    assert {"contract.eos", "fit.batch"} <= set(
        found(report, "ok")
    )  # what needs no rows is checked all the same


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


@pytest.mark.parametrize("name", ["accuracy", "exact_match", "choice_match", "answer_match"])
def test_every_reward_for_a_right_answer_is_held_to_the_same_marks(
    recipe, tmp_path, monkeypatch, name
):
    data = tmp_path / "rows.jsonl"
    golds = "ABCDEFGH" if name == "choice_match" else range(8)
    data.write_text(
        "".join(json.dumps({"prompt": f"{gold}?", "solution": str(gold)}) + "\n" for gold in golds),
        encoding="utf-8",
    )
    settings = {
        "dataset_name": str(data),
        "mapper": "prompt_solution",
        "reward_funcs": [name, "format"],
    }
    path = recipe(**settings)
    assert not {"contract.total", "contract.right", "contract.wrong"} & {
        *found(check(path), "error"),
        *found(check(path), "warning"),
    }
    assert (
        "correct 0, wrong 1"
        in found(check(recipe(**settings, reward_weights=[-1.0, 1.0])), "error")["contract.total"]
    )
    for value, code in ((0.5, "contract.right"), (1.0, "contract.wrong")):
        monkeypatch.setattr(
            REWARDS[name],
            "__call__",
            lambda self, completions, _value=value, **columns: [_value] * len(completions),
        )
        assert code in found(check(path), "error")
        monkeypatch.undo()


def test_a_reward_that_awaits_is_called(recipe):
    report = check(recipe(reward_funcs=["accuracy", "tests.extras.preflight.test_preflight:later"]))
    example = report.details["contract"][0][1]
    assert (
        "contract.reward_fails" not in found(report, "error")
        and report.details["contract"][1][1]["right"]["tests.extras.preflight.test_preflight:later"]
        > 0
    )
    assert example.count("Step") == 3


def test_golds_that_no_format_can_hold(recipe, tmp_path):
    rows = rows_file(tmp_path, *[("Which tag?", "</answer>")] * 2)
    report = check(recipe(dataset_name=rows, mapper="prompt_solution", reward_funcs=["format"]))
    assert (
        "2 of 2 sampled reference answers do not fit the format"
        in found(report, "error")["contract.render"]
    )


def test_a_message_end_that_generation_does_not_stop_at(recipe, tiny_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "eos_token": "<|endoftext|>"})
    )
    path = recipe(model_name_or_path=str(folder))
    # The model's own generation config still ends a completion at the end of a turn.
    assert "generation stops there" in found(check(path), "ok")["contract.eos"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    message = found(check(path), "warning")["contract.eos"]
    assert (
        "ends a message with '<|im_end|>', but generation stops only at '<|endoftext|>'" in message
        and "eos_token_id to 2" in message
    )


def test_a_template_that_takes_no_system_message(recipe):
    strict = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system, please') "
        "}}{% endif %}" + CHATML
    )
    message = found(check(recipe(chat_template=strict)), "error")["contract.template"]
    assert "No system, please" in message and 'system_prompt: ""' in message


def test_a_model_that_is_not_there(recipe, tmp_path):
    errors = found(
        check(recipe(model_name_or_path=str(tmp_path / "nowhere")), use_model=True), "error"
    )
    assert (
        set(errors) == {"contract.tokenizer"} and "no such folder" in errors["contract.tokenizer"]
    )


def test_rewards_with_a_model_of_their_own_are_left_out_and_named(recipe, silent_model):
    path = recipe(
        model_name_or_path=silent_model,
        reward_funcs=["accuracy", "judge"],
        reward_models={
            "judge": {"model": "openai:judge", "prompt": "Rate {response}. End with Score: x"}
        },
    )
    report = check(path, use_model=True, groups=1)
    assert (
        found(report, "ok")["contract.skipped"]
        == "not checked, because it needs another model: judge"
    )
    assert set(report.details["contract"][1][1].index) == {"accuracy"} and set(
        report.details["signal"][0][1].index
    ) == {"accuracy", "sum"}


# The signal


def judged(
    values: list[list[float | None]],
    dynamic_sampling: dict[str, Any] | None = None,
    **others: list[list[float | None]],
) -> Report:
    scores = DataFrame(
        {
            name: [value for group in table for value in group]
            for name, table in {"first": values, **others}.items()
        },
        dtype=float,
    )
    sampled = [({"prompt": [{"role": "user", "content": "?"}]}, Completion("x", 1, "stop"))] * len(
        scores
    )
    report = Report()
    recipe = SimpleNamespace(
        training=SimpleNamespace(max_completion_length=8, num_generations=2),
        script=SimpleNamespace(dynamic_sampling=dynamic_sampling),
    )
    signal.check_scores(
        report,
        recipe,
        get_response_format("think_answer"),
        Rewards({}, dict.fromkeys(scores, 1.0), None),
        sampled,
        scores,
    )
    return report


def test_what_dynamic_sampling_costs_is_told_from_the_share_of_groups_with_spread():
    half = [[0.0, 1.0], [1.0, 1.0]]
    report = judged(half, {"max_rounds": 3})
    # 1 + 1/2 + 1/4 batches; 1 - 1/8 of the groups
    message = found(report, "ok")["signal.rounds"]
    assert "1.8 times" in message and "88%" in message
    # The reward that is named decides, not the sum.
    flat = {"other": [[0.0, 0.0], [0.0, 0.0]]}
    report = judged(half, {"max_rounds": 3, "reward": "other"}, **flat)
    assert "3.0 times" in found(report, "error")["signal.rounds"]
    assert "signal.rounds" not in found(judged(half), "ok")


def test_the_verdict_names_the_share_of_groups_without_spread():
    # 12 of 13 groups is 92.3 %
    report = judged([[0.0, 0.0]] * 12 + [[0.0, 1.0]])
    assert (
        "12 of 13 groups (92%) have no spread, 12 of them all 0"
        in found(report, "error")["signal.all_zero"]
    )
    # mean 1/26; of values of which a share p is 1 the deviation is sqrt(p (1 - p))
    summary = report.details["signal"][0][1].loc["first"]
    assert summary["mean"] == pytest.approx(1 / 26) and summary["std"] == pytest.approx(
        (1 / 26 * 25 / 26) ** 0.5
    )
    assert summary["groups_with_spread"] == pytest.approx(1 / 13)
    # one group in three without spread is what groups are sampled for
    assert (
        "2 of 3 groups have spread"
        in found(judged([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), "ok")["signal.spread"]
    )
    # half of them is a doubt
    assert (
        "1 of 2 groups (50%)"
        in found(judged([[0.0, 1.0], [1.0, 1.0]]), "warning")["signal.all_one"]
    )


def test_what_one_reward_does_not_tell_apart_another_may():
    report = judged([[0.0, 0.0], [0.0, 0.0]], second=[[0.1, 0.2], [0.3, 0.1]])
    assert (
        found(report, "error") == {}
        and "first: 0 on average, and no group has spread"
        in found(report, "warning")["signal.reward"]
    )
    # and two that cancel out leave nothing: 1 + 0 = 0 + 1
    report = judged([[1.0, 0.0]], second=[[0.0, 1.0]])
    assert (
        "1 of 1 groups (100%) have the same summed reward"
        in found(report, "error")["signal.no_spread"]
    )


def test_missing_scores_are_not_counted():
    report = judged([[None, None], [0.0, 1.0]])
    assert report.details["signal"][0][1].loc["first"].to_dict() == {
        "judged": 2,
        "mean": 0.5,
        "std": 0.5,
        "groups_with_spread": 1.0,
    }
    assert (
        "gave no completion a score" in found(judged([[None, None]]), "warning")["signal.unjudged"]
    )


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


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({"bf16": False}, None),
        ({"bf16": True}, torch.bfloat16),
        ({"bf16": False, "fp16": True}, torch.float16),
        # PEFT generates with a model that Accelerate's autocast does not wrap.
        ({"bf16": True, "use_peft": True}, None),
    ],
)
def test_samples_are_computed_in_the_precision_of_training(recipe, monkeypatch, changes, precision):
    seen = []

    def watched(model, tokenizer, prompts, sampling_plans, limit):
        enabled = torch.is_autocast_enabled("cpu")
        seen.append(torch.get_autocast_dtype("cpu") if enabled else None)
        return [[[Completion("x", 3, "stop")] * sampling_plans[0][1]]]

    monkeypatch.setattr(signal, "complete", watched)
    check(recipe(reward_funcs=["tests.conftest:letters"], **changes), use_model=True, groups=1)
    assert seen == [precision]


def test_groups_that_the_clock_cuts_are_not_judged(recipe, canned):
    # 200 tokens are allowed; what ended at 50 was ended by the clock
    done, cut = [Completion("x", 3, "stop")] * 2, [Completion("x", 50, "length")] * 2
    canned([done, cut])
    report = check(recipe(), use_model=True, groups=4, seconds=60)
    assert (
        report.details["signal"][0][0] == "2 completions in 1 groups:"
        and "1 of 4 groups were sampled within 60 s" in found(report, "warning")["signal.slow"]
    )
    canned([cut])
    report = check(recipe(), use_model=True, groups=4, seconds=60)
    assert (
        "signal" not in report.details
        and "0 of 4 groups were sampled" in found(report, "warning")["signal.slow"]
    )


def test_five_completions_from_the_worst_to_the_best_in_plain_characters(recipe, canned, capsys):
    right, wrong = "<think>\nx\n</think>\n<answer>\n4\n</answer>", "\x1b[31m[bold]no"
    canned([[Completion(right, 30, "stop")] + [Completion(wrong, 9, "stop")] * 7])
    path = recipe(num_generations=8, per_device_train_batch_size=8, max_samples=1)
    preflight.main([path, "--groups", "9"])  # there is one row
    text = capsys.readouterr().out
    assert (
        "Completion 5: accuracy 1, format 1, sum 2; 30 tokens" in text
        and "reference answer '4', parsed answer '4'" in text
    )
    assert "\x1b" not in text and "[bold]no" in text and "Ready" in text


# The fit


def test_adapters_are_counted_and_a_name_that_fits_nothing_is_refused(recipe):
    lora = {"use_peft": True, "lora_r": 2, "learning_rate": 1e-4}
    report = check(recipe(**lora, lora_target_modules=["q_proj", "v_proj"]))
    # two layers: q is 32 x 32, v is 32 x 16, and an adapter of rank 2 has 2 x (in + out)
    assert f" {2 * (2 * (32 + 32) + 2 * (32 + 16))} of " in found(report, "ok")["fit.memory"]
    assert (
        "Target modules attention not found"
        in found(check(recipe(**lora, lora_target_modules=["attention"])), "error")["fit.model"]
    )


def test_patterns_of_parameters_are_tried(recipe):
    report = check(recipe(unfrozen_parameters=[r"layers\.1\.mlp"]))
    # one layer's MLP: three matrices of 32 x 64
    assert f" {3 * 32 * 64:,} of " in found(report, "ok")["fit.memory"]
    for pattern, message in (
        ("(", "'(' is not a regular expression"),
        ("head_of_state", "'head_of_state' matches none of"),
    ):
        assert (
            message in found(check(recipe(unfrozen_parameters=[pattern])), "error")["fit.unfrozen"]
        )


def test_vllm_that_is_not_there(recipe):
    assert (
        "Fix: --use_vllm false" in found(check(recipe(), "--use_vllm", "true"), "error")["fit.vllm"]
    )
    # A recipe's own key follows a machine that has no GPU.
    report = check(recipe(use_vllm=True))
    assert (
        found(report, "error") == {}
        and "use_vllm: false instead of" in found(report, "warning")["recipe.translated"]
    )


def test_the_launchers_processes_are_counted_and_not_waited_for(recipe, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    report = check(recipe(num_generations=3))
    assert (
        "12 completions per batch over 3 processes are 4 groups of 3"
        in found(report, "ok")["fit.batch"]
    )
    assert os.environ["WORLD_SIZE"] == "3"
    monkeypatch.setenv("RANK", "1")
    preflight.main(["no-such-recipe.yaml"])  # rank 0 speaks


# Supervised fine-tuning


@pytest.fixture
def sft_recipe(write_recipe):
    def write(**changes: Any) -> str:
        return write_recipe("sft", **{"system_prompt": None, **changes})

    return write


def test_a_good_sft_recipe(sft_recipe):
    report = check(sft_recipe(), use_model=True)
    assert "is a sft recipe" in found(report, "ok")["recipe.read"] and found(
        report, "error"
    ) == {} == found(report, "warning")
    assert (
        "writes the whole target" in found(report, "ok")["contract.target"]
        and "signal" not in report.details
    )


def test_examples_that_are_cut_and_templates_that_drop_the_reasoning(sft_recipe):
    message = found(check(sft_recipe(max_length=64)), "error")["data.max_length"]
    assert (
        "max_length 64 cuts 8 of 8 measured examples (100%)" in message
        and "max_solution_tokens" in message
    )
    drops = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
    assert (
        "cuts the reasoning out of the assistant's turn"
        in found(check(sft_recipe(chat_template=drops)), "error")["contract.target"]
    )


def test_an_instruction_that_the_targets_do_not_follow(sft_recipe):
    asks = "Think in <reasoning>…</reasoning>, then answer in <answer>…</answer>."
    message = found(check(sft_recipe(system_prompt=asks)), "error")["contract.prompt"]
    assert "asks for <reasoning>" in message and "which the targets have, needs <think>" in message
    assert (
        "for which the prompt does not ask"
        in found(check(sft_recipe(system_prompt="")), "ok")["contract.prompt"]
    )


# The command


def test_brief_prints_only_verdicts(recipe, silent_model, capsys):
    rewards = ["tests.extras.preflight.test_preflight:everything"]
    path = recipe(model_name_or_path=silent_model, reward_funcs=rewards, dataset_test_split="train")
    with pytest.raises(SystemExit) as stop:
        preflight.main([path, "--groups", "2", "--brief"])
    lines = capsys.readouterr().out.splitlines()
    assert stop.value.code == 1
    assert [line for line in lines if line[0] != " "][:-1] == [
        "1 Recipe   ok      1 check",
        "2 Data     ok      2 checks",
        "3 Contract warning 4 checks",
        "4 Signal   error   3 checks",
        "5 Fit      ok      4 checks",
    ]
    assert (
        "  error   signal.all_one: 2 of 2 groups (100%) have no spread, 2 of them all 1, "
        "so GRPO has nothing to compare" in "\n".join(lines)
    )
    # what is in order is shown of the signal alone
    assert [line.split(" completions")[0] for line in lines if line.startswith("  ok")] == [
        "  ok      signal.truncation: max_completion_length 200 cuts 0 of 4"
    ]
    assert lines[-1].startswith("Do not start this run: 1 error, 3 warnings. First: 2 of 2 groups")


@pytest.mark.parametrize(
    "argv, message",
    [
        (["nowhere.yaml"], "no such recipe file"),
        (["RECIPE", "--max_completion_lenght", "3"], "Did you mean max_completion_length"),
        (["RECIPE", "--reward_funcs", "acuracy"], "Did you mean 'accuracy'"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_one_error(recipe, capsys, argv, message):
    with pytest.raises(SystemExit) as stop:
        preflight.main([recipe() if word == "RECIPE" else word for word in argv])
    text = capsys.readouterr().out
    assert stop.value.code == 1 and message in text and "Do not start this run: 1 error" in text


def test_needs_that_are_not_met(recipe, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoint-2").mkdir(parents=True)
    report = check(recipe(report_to="trackio"))
    errors = found(report, "error")
    assert "without run.json" in errors["recipe.output_dir"]
    assert ("recipe.tracker" in errors) == (importlib.util.find_spec("trackio") is None)


def test_methods_are_guessed(recipe, sft_recipe):
    assert "is a grpo recipe" in found(check(recipe()), "ok")["recipe.read"]
    # An SFT batch holds no group.
    assert "fit.batch" in found(check(sft_recipe(), "--reward_funcs", "format"), "error")


def test_evenly_spaced_indices_and_names():
    assert evenly_spaced(3, 5) == [0, 1, 2] and evenly_spaced(0, 4) == []
    assert evenly_spaced(100, 4) == [0, 25, 50, 75]
    assert join_names([1, 2], 2) == "1, 2" and join_names([1, 2, 3], 2) == "1, 2 and 1 more"


def test_what_a_run_samples_takes_and_costs(tmp_path):
    from trl import GRPOConfig

    values = {
        "max_steps": 100,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 10,
    }
    training = GRPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, **values)
    report = Report(seconds=[9.0, 36.0, 37.0])
    preflight.report_cost(report, SimpleNamespace(training=training), 8, 1, 630.0)
    [finding] = report.findings
    assert finding.message.startswith(
        "100 steps: 200 prompts, 800 completions, at most 8,000 tokens; sampling them takes "
        "about 2:00:00 "
    )
    assert (
        "at 36 s per group, one group at a time, and costs 1,260.00 at 630 an hour"
        in finding.message
    )


@pytest.mark.parametrize("price", ["-5", "nan", "inf"])
def test_a_price_is_a_number_from_0_on(price, capsys):
    with pytest.raises(SystemExit):
        preflight.parse(["tiny.yaml", "--price_per_hour", price])
    assert f"--price_per_hour must be 0 or more, got {price}" in capsys.readouterr().err


class WithoutReward:
    """A game whose get_reward does not return a number."""

    def reset(self, **row: Any) -> None:
        """Begin."""

    def get_reward(self) -> None:
        return None


def test_an_environment_without_a_reward_is_named_with_its_line(recipe):
    report = check(
        recipe(environment=f"{__name__}:WithoutReward", reward_funcs=None, system_prompt="")
    )
    (found,) = [finding for finding in report.at("error") if finding.code == "contract.environment"]
    line = WithoutReward.get_reward.__code__.co_firstlineno
    assert (
        f"WithoutReward: get_reward fails: ValueError: must return a finite number, got None "
        f"({__file__}:{line})" in found.message
    )


def test_a_mapper_without_golds_is_an_error(recipe):
    (found,) = check(recipe(mapper="tests.core.test_mistakes:NoGold")).at("error")
    assert found.code == "data.unusable" and "mapper 'NoGold' (" in found.message


def test_an_argument_of_two_types_is_called_by_hand():
    from r1_recipes.completions.types import Request
    from r1_recipes.extras.preflight.agent import _ScriptedBackend

    def move(by: int | str) -> str:
        """
        Move.

        Args:
            by: How far.
        """

    made = []
    _ScriptedBackend().run(
        [Request(0, [], (move,))], lambda _, done, error: made.extend(done), [(0.0, 1)]
    )
    assert made[0].turns[0]["tool_calls"][0]["function"]["arguments"] == {"by": "1 + 1"}
