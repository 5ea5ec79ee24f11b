"""Rewards by name: each pays what its documentation says, on completions written by hand."""

import shutil

import pytest
import yaml

from conftest import HERE

GROUPS = {group["name"]: group for group in yaml.safe_load((HERE / "rewards.yaml").read_text())}
SANDBOX = shutil.which("bwrap") is not None
pytestmark = pytest.mark.quick

# Every group is scored by one call, as TRL makes it: lists of messages, a column for each name, token numbers of the stated length.
SCORE = """
from r1_recipes.rewards import get_reward_funcs
answer = {}
for name, group in data.items():
    try:
        (reward,) = get_reward_funcs([group["reward"]], group.get("format", "think_answer"), **group.get("params", {}))
        answer[name] = reward(**group["given"])
    except Exception as error:
        answer[name] = f"{type(error).__name__}: {error}"
"""


def completion(text):
    if text.startswith("T:"):
        reasoning, _, answer = text[2:].partition("|")
        return f"<think>\n{reasoning.strip()}\n</think>\n<answer>\n{answer.strip()}\n</answer>"
    return text


def given(group):
    rows = [group.get("columns", {}) | (case[2] if len(case) > 2 else {}) for case in group["cases"]]
    columns = {name: [row.get(name) for row in rows] for name in set().union(*rows) - {"tokens", "question"}}
    return columns | {
        "prompts": [[{"role": "user", "content": row.get("question", "What is it?")}] for row in rows],
        "completions": [[{"role": "assistant", "content": completion(case[0])}] for case in group["cases"]],
        "completion_ids": [[1] * row.get("tokens", 20) for row in rows],
    }


@pytest.fixture(scope="module")
def scores(ask):
    groups = {name: group | {"given": given(group)} for name, group in GROUPS.items() if SANDBOX or not group.get("sandbox")}
    return ask(SCORE, groups)


@pytest.mark.parametrize("name", GROUPS)
def test_reward(scores, name):
    if name not in scores:
        pytest.skip("bubblewrap is not installed")
    cases, got = GROUPS[name]["cases"], scores[name]
    assert isinstance(got, list) and len(got) == len(cases), got
    wrong = [(case, score) for case, score in zip(cases, got, strict=True) if score != (case[1] if case[1] is None else pytest.approx(case[1], abs=1e-4))]
    assert not wrong


def test_plain_texts_are_scored_too(ask):
    assert ask(
        """
        from r1_recipes.rewards import get_reward_funcs
        (reward,) = get_reward_funcs(["accuracy"], "boxed")
        answer = reward(completions=data, solution=["4", "4"])""",
        ["It is \\boxed{4}.", "It is \\boxed{5}."],
    ) == [1, 0]


LAYOUTS = {
    "think_answer": "<think>\n{r}\n</think>\n<answer>\n{a}\n</answer>",
    "reasoning_answer": "<reasoning>\n{r}\n</reasoning>\n<answer>\n{a}\n</answer>",
    "think_boxed": "<think>\n{r}\n</think>\n\\boxed{{{a}}}",
    "boxed": "{r}\n\\boxed{{{a}}}",
    "think_prose": "<think>\n{r}\n</think>\n\n{a}",
    "thought_solution": "<|begin_of_thought|>\n\n{r}\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n{a}\n\n<|end_of_solution|>",
    "special_token": "|special_token|{r}|special_token|Summary: {a}",
    "r1_zero": "<think> {r} </think> <answer> {a} </answer>",
}


@pytest.fixture(scope="module")
def written(ask):
    texts = {name: [layout.format(r="2*2", a=a) for a in (4, 5)] + ["It is four, I think, or so."] for name, layout in LAYOUTS.items()}
    own = {
        "layout": "<plan>\n{reasoning}\n</plan>\n<result>\n{answer}\n</result>",
        "reasoning_tags": ["<plan>", "</plan>"],
        "answer_tags": ["<result>", "</result>"],
        "system_prompt": "Plan between <plan> and </plan>, result between <result> and </result>.",
    }
    texts["own"] = [own["layout"].format(reasoning="2*2", answer=a) for a in (4, 5)] + ["4"]
    return ask(
        """
        from r1_recipes.rewards import get_reward_funcs
        answer = {}
        for name, texts in data[0].items():
            rewards = get_reward_funcs(["accuracy", "format"], data[1] if name == "own" else name)
            answer[name] = [reward(completions=texts, solution=["4"] * 3) for reward in rewards]""",
        [texts, own],
    )


@pytest.mark.parametrize("name", [*LAYOUTS, "own"])
def test_a_response_in_its_format(written, name):
    accuracy, format_ = written[name]
    assert accuracy == [1, 0, 0] and format_ == [1, 1, 0]


WRONG = [("acuracy", {}, "accuracy"), ("cosine", {"cosine_max": 5}, "cosine_max")]


@pytest.mark.parametrize("name, params, said", WRONG)
def test_a_wrong_name_or_parameter_is_named(ask, name, params, said):
    assert said in ask(
        """
        from r1_recipes.rewards import get_reward_funcs
        try:
            answer = f"built {get_reward_funcs([data[0]], **data[1])}"
        except Exception as error:
            answer = f"refused: {error}"
        assert answer.startswith("refused")""",
        [name, params],
    )
