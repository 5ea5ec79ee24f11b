"""Names in a recipe -> reward functions."""

import inspect
from typing import Any

import pytest
from trl.trainer.utils import get_callable_name

from r1_recipes import rewards
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts
from r1_recipes.rewards import REWARDS, get_reward_funcs, reward_parameters
from r1_recipes.rewards.call import score

HERE = "tests.core.rewards.test_functions"
STARTED = []


def constant(completions, **columns):
    return [0.5] * len(completions)


def shout(completions, *, fmt, shout_bonus=2.0, cosine_max_len: int = 7, **columns):
    texts = [fmt.full_text(text) for text in completion_texts(completions)]
    return [shout_bonus * text.isupper() + cosine_max_len for text in texts]


def check_start(*, shout_bonus=2.0):
    STARTED.append(shout_bonus)


shout.check_start = check_start


class Old:
    def __call__(self, completions, **columns):
        return constant(completions)


def assistant(content):
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("completions", "texts"),
    [
        (["a", ""], ["a", ""]),
        ([[assistant("a")], []], ["a", ""]),
        ([[assistant("x"), assistant("last")]], ["last"]),
        ([[assistant(None)], [{"role": "assistant"}]], ["", ""]),
        ([[assistant([{"type": "text", "text": "a"}, {"type": "image"}])]], ["a"]),
    ],
)
def test_completion_texts(completions, texts):
    assert completion_texts(completions) == texts


@pytest.mark.parametrize(
    ("names", "params", "message"),
    [
        (["accuracy"], {"cosine_max_len": 3}, r"unknown parameter of the rewards \['accuracy'\]"),
        (["accuracy"], {"response_format": "think"}, r"unknown .* 'think'\. Did you mean 'think_"),
        ([f"{HERE}:Old"], {}, r"Old': must be a function, got <class .*\. Fix: def my_reward\("),
        ([f"{HERE}:HERE"], {}, "must be a function, got 'tests.core"),
    ],
)
def test_what_is_unknown(names, params, message):
    with pytest.raises(RecipeError, match=message):
        get_reward_funcs(names, **params)


def test_rewards_of_one_s_own():
    names = [f"{HERE}:constant", f"{HERE}:shout"]
    assert [*reward_parameters(names)] == ["shout_bonus", "cosine_max_len"]
    func, own = get_reward_funcs(names, "boxed", shout_bonus=3.0)
    assert func(completions=["a"], solution=["b"]) == [0.5]
    assert own(completions=["a", [assistant("A")]]) == [7.0, 10.0]
    assert own(completions=["a"], shout_bonus=["of a column"]) == [7.0]
    own.check_start()
    assert STARTED == [3.0]


def test_every_reward_has_a_name():
    names = [*REWARDS, "helpful", f"{HERE}:shout"]
    funcs = get_reward_funcs(names, reward_models={"helpful": {"model": "a/b"}})
    assert [func.__name__ for func in funcs] == [*REWARDS, "helpful", "shout"]
    assert [get_callable_name(func) for func in funcs] == [func.__name__ for func in funcs]


@pytest.mark.parametrize("name", [*REWARDS])
def test_every_reward_is_an_attribute_for_trl_s_command(name):
    reward = getattr(rewards, name)
    kinds = {p.kind for p in inspect.signature(reward).parameters.values()}
    assert reward.__name__ == name and inspect.Parameter.VAR_KEYWORD in kinds
    given = {"completions": [], "completion_ids": [], "prompts": [], "solution": []}
    rows = {"nums": [], "target": [], "verification_info": []}
    assert reward(**given, **rows) == []


def test_rewards_that_judge_answers():
    names = [f"{HERE}:constant", "format", "cosine", "countdown", "accuracy"]
    assert rewards.answer_rewards(names) == ["accuracy", names[0], "countdown"]
    assert rewards.answer_rewards(["format"]) == ["accuracy"]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda completions: [1.0], r"fails: TypeError.*Fix: end its parameters with \*\*columns"),
        (
            lambda nums, **columns: [1.0],
            "missing 1 .*It gets the columns solution. Fix: .*a mapper",
        ),
        (lambda **columns: columns["tags"], "KeyError: 'tags'.*It gets the columns solution"),
        (lambda **columns: [float("nan")], r"returned \[nan\].*one finite number"),
        (lambda **columns: 1.0, "returned 1.0"),
    ],
)
def test_a_reward_that_fails_is_one_line(reward, message):
    with pytest.raises(RecipeError, match=f"reward 'mine' .*{message}"):
        score("mine", reward, [{"prompt": "p", "solution": "4"}], ["4"], None)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [("x #### 72", "72"), ("#### 1 \\boxed{72}", "72"), (" 72 ", "72"), ("", None), (None, None)],
)
def test_the_answer_of_a_solution(solution: Any, answer: str | None) -> None:
    from r1_recipes.rewards.call import right_answer

    assert right_answer(solution) == answer
