"""Response formats of the user's own: in a file, or in the recipe; what is wrong with one is named
by file, format and key.
"""

import re

import pytest
import yaml
from hypothesis import given
from r1_recipes.prompts.read_format import as_mapping, read_format

from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts import ParsedResponse, get_response_format
from r1_recipes.recipe import load_recipe
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
