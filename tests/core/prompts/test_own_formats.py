"""Response formats of the user's own: in a file, or in the recipe; what is wrong with one is named
by file, format and key.
"""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given

from r1_recipes import grpo
from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts import ParsedResponse, get_response_format
from r1_recipes.prompts.read_format import as_mapping, formats_of, read_format
from r1_recipes.recipe import load_recipe
from r1_recipes.rewards import get_reward_funcs
from tests.core.prompts.test_formats import FRAGMENTS

PLAN = {
    "system_prompt": "Plan between <plan> and </plan>, then give the "
    "result between <result> and </result>.",
    "layout": "<plan>\n{reasoning}\n</plan>\n<result>\n{answer}\n</result>",
    "reasoning_tags": ["<plan>", "</plan>"],
    "answer_tags": ["<result>", "</result>"],
}
OWN = {
    "plan": PLAN,
    "opened": {**PLAN, "prefill": "Let me see.\n<plan>\n"},
    "answer_alone": {
        "system_prompt": "",
        "layout": "{reasoning}\n[[{answer}]]",
        "answer_tags": ["[[", "]]"],
    },
    "one_marker": {
        "system_prompt": "",
        "layout": "%%{reasoning}%% So: {answer}",
        "reasoning_tags": ["%%", "%%"],
    },
    "boxed_after": {
        "system_prompt": "",
        "layout": "<w>{reasoning}</w> \\boxed{{answer}}",
        "reasoning_tags": ["<w>", "</w>"],
        "boxed": True,
    },
}


@pytest.fixture
def formats(tmp_path: Path) -> Path:
    path = tmp_path / "my_formats.yaml"
    path.write_text(yaml.safe_dump(OWN), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", OWN)
@given(reasoning=FRAGMENTS, answer=FRAGMENTS)
def test_a_user_s_format_reads_what_it_writes(name: str, reasoning: str, answer: str) -> None:
    fmt = read_format(name, OWN[name], "x")
    try:
        completion = fmt.render_completion(reasoning, answer)
    except ValueError:
        return
    assert fmt.parse(completion) == ParsedResponse(reasoning.strip(), answer.strip(), True)
    assert get_response_format(as_mapping(fmt)) == fmt


@pytest.mark.parametrize("place", ["beside the recipe", "in the working directory", "absolute"])
@pytest.mark.parametrize("method", ["grpo", "sft", "generate", "evaluate"])
def test_every_method_takes_a_format_from_a_file(
    formats, monkeypatch, tmp_path, place, method
) -> None:
    where = {"absolute": str(formats)}.get(place, formats.name)
    if place == "in the working directory":
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        formats.rename(formats.name)
    keys = {
        "model_name_or_path": "x",
        "dataset_name": "x.jsonl",
        "reward_funcs": ["accuracy"],
        "response_format": f"{where}:plan",
    }
    if method == "sft":
        del keys["reward_funcs"]
    keys |= {"num_samples": 0} if method == "evaluate" else {"output_dir": "run"}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")
    recipe = load_recipe([str(path)], method)
    assert get_response_format(recipe.script.response_format) == read_format("plan", PLAN, "x")
    assert recipe.settings["response_format"] == {
        "name": "plan",
        **PLAN,
    }  # a run folder needs no other file


def test_a_format_in_the_recipe_or_on_the_command_line(write_recipe) -> None:
    written = load_recipe([write_recipe("grpo", response_format=PLAN)], "grpo")
    typed = load_recipe(
        [write_recipe("grpo"), "--response_format", yaml.safe_dump(PLAN, default_flow_style=True)],
        "grpo",
    )
    assert written.script.response_format == typed.script.response_format == {"name": "own", **PLAN}


def test_get_reward_funcs_accepts_a_user_s_format(formats) -> None:
    for given_as in (f"{formats}:plan", PLAN):
        (accuracy, shape) = get_reward_funcs(["accuracy", "format"], response_format=given_as)
        texts = ["<plan>\na\n</plan>\n<result>\n72\n</result>", "72"]
        assert accuracy(completions=texts, solution=["72", "72"]) == [1.0, 0.0]
        assert shape(completions=texts) == [1.0, 0.0]


def test_a_run_keeps_the_format_itself(
    write_recipe, formats, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(
        "r1_recipes.training.trainer.RecipeGRPOTrainer",
        lambda **arguments: (_ for _ in ()).throw(RecipeError("built")),
    )
    path = write_recipe("grpo", response_format=f"{formats.name}:plan")
    with pytest.raises(SystemExit):
        grpo.main([path])
    assert "built" in capsys.readouterr().err
    formats.unlink()
    kept = load_recipe([str(tmp_path / "run" / "recipe.yaml")], "grpo")
    assert kept.script.response_format == {"name": "plan", **PLAN}


WRONG = [
    ({"systm_prompt": ""}, "unknown key 'systm_prompt'. Did you mean 'system_prompt'"),
    ({"layout": None}, "layout: missing"),
    ({"layout": "<plan>{answer}</plan><result>{reasoning}</result>"}, "layout: must contain"),
    (
        {"layout": "<plan>{reasoning}</plan>{answer}"},
        "answer_tags: '<result>' must be part of layout",
    ),
    ({"reasoning_tags": "<plan>"}, "reasoning_tags: must be a list"),
    ({"reasoning_tags": ["<plan>"]}, "reasoning_tags: must be two texts"),
    ({"reasoning_tags": ["<plan>", ""]}, "reasoning_tags: must be two texts"),
    ({"reasoning_tags": ["<plan>", 1]}, "reasoning_tags: must be two texts"),
    ({"reasoning_tags": None, "answer_tags": None}, "no key says where the answer is"),
    ({"answer_tags": ["<plan>", "</plan>"]}, "layout: the format could not read what it writes"),
    ({"prefill": "<think>"}, "which does not start with its prefill"),
    ({"boxed": "yes"}, "boxed: must be true or false"),
]


@pytest.mark.parametrize(
    ("changes", "said"), WRONG, ids=lambda value: value if isinstance(value, str) else None
)
def test_a_mistake_in_a_formats_file_is_named_by_file_format_and_key(
    write_recipe, tmp_path, changes, said
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(yaml.safe_dump({"plan": {**PLAN, **changes}, "whole": PLAN}), encoding="utf-8")
    with pytest.raises(RecipeError, match=re.escape(said)) as error:
        load_recipe([write_recipe("grpo", response_format="f.yaml:plan")], "grpo")
    assert f"{path}: plan: " in str(error.value)
    load_recipe(
        [write_recipe("grpo", response_format="f.yaml:whole")], "grpo"
    )  # another format's mistake is not this recipe's


def test_a_place_that_holds_no_format(write_recipe, formats) -> None:
    for value, said in (
        (
            "my_formats.yaml:pln",
            r"my_formats\.yaml: unknown response_format 'pln'\. Did you mean 'plan'",
        ),
        ("my_formats.yaml", r"unknown response_format ''.*opened, plan"),
        ("mine.yaml:plan", r"no file 'mine\.yaml' in "),
        ([PLAN], r"must be a mapping or str"),
        ("plann", r"To use your own format: FILE\.yaml:NAME"),
    ):
        with pytest.raises(RecipeError, match=said):
            load_recipe([write_recipe("grpo", response_format=value)], "grpo")


def test_a_typo_in_a_file_of_formats_names_file_format_and_key(tmp_path: Path) -> None:
    broken = tmp_path / "formats.yaml"
    broken.write_text(yaml.safe_dump({"think_answer": {**PLAN, "layuot": "x"}}), encoding="utf-8")
    with pytest.raises(
        RecipeError,
        match=rf"{re.escape(str(broken))}: think_answer: unknown key 'layuot'\. Did you mean "
        rf"'layout'",
    ):
        formats_of(broken)
