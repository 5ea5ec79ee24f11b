"""Names in a recipe -> reward functions."""

from __future__ import annotations

import ast
import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import completion_texts, message_text
from r1_recipes.prompts import get_response_format
from r1_recipes.rewards import (
    REWARDS,
    AnswerReward,
    Reward,
    get_reward_funcs,
    register_reward,
    registry,
    reward_parameters,
)
from r1_recipes.rewards.registry import declared
from tests.support.needs import needs

THINK = get_response_format("think_answer")


def constant(completions: list, **columns: Any) -> list[float]:
    return [0.5] * len(completions)


@dataclasses.dataclass(frozen=True)
class Shout(Reward):
    shout_bonus: float = 2.0
    cosine_max_len: int = 7  # shared with `cosine`

    def __call__(self, completions: list, **columns: Any) -> list[float]:
        return [
            self.shout_bonus if text.isupper() else 0.0 for text in completion_texts(completions)
        ]


class Mine(AnswerReward):
    def score(self, answer: str | None, gold: str) -> float:
        return float(answer == gold)


def test_a_reward_that_is_not_registered_has_its_class_as_name() -> None:
    reward = Mine(THINK)
    assert reward.__name__ == "Mine"
    with pytest.raises(RecipeError, match="reward 'Mine' needs a column 'solution'"):
        reward(["a"])


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(REWARDS)
    register_reward("constant")(constant)
    register_reward("shout")(Shout)
    yield
    for name in REWARDS.keys() - before.keys():
        del REWARDS._objects[name]


@pytest.mark.parametrize(
    ("completions", "texts"),
    [
        (["a", ""], ["a", ""]),
        ([[{"role": "assistant", "content": "a"}], []], ["a", ""]),
        (
            [[{"role": "assistant", "content": "x"}, {"role": "assistant", "content": "last"}]],
            ["last"],
        ),
        ([[{"role": "assistant", "content": None}], [{"role": "assistant"}]], ["", ""]),
        (
            [
                [
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "text", "text": "a"},
                            {"type": "image"},
                            {"type": "text", "text": "b"},
                        ],
                    }
                ]
            ],
            ["ab"],
        ),
    ],
)
def test_completion_texts(completions: list, texts: list[str]) -> None:
    assert completion_texts(completions) == texts


def test_message_text() -> None:
    assert (
        message_text(
            {
                "role": "user",
                "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}],
            }
        )
        == "what is it?"
    )


@pytest.mark.usefixtures("registered")
def test_a_registered_class_and_function() -> None:
    shout, plain = get_reward_funcs(["shout", "constant"], shout_bonus=3.0)
    assert (shout.__name__, plain.__name__) == ("shout", "constant")
    assert shout(completions=["AB", "ab"]) == [3.0, 0.0]
    assert plain is constant  # a function is used as it is
    assert shout.response_format == THINK
    assert register_reward("shout")(Shout) is Shout  # a module that is imported twice is no clash
    with pytest.raises(
        ValueError,
        match=r"reward name 'shout' is taken by tests\.core\.rewards\.test_registry:Shout",
    ):
        register_reward("shout")(constant)


@pytest.mark.usefixtures("registered")
def test_a_shared_parameter_goes_to_each() -> None:
    shout, cosine = get_reward_funcs(["shout", "cosine"], cosine_max_len=9)
    assert (shout.cosine_max_len, cosine.cosine_max_len) == (9, 9)
    assert list(reward_parameters(["shout", "constant"])) == ["shout_bonus", "cosine_max_len"]


@pytest.mark.parametrize(
    ("names", "params", "message"),
    [
        (["acuracy"], {}, r"unknown reward 'acuracy'\. Did you mean 'accuracy'"),
        (
            ["cosine"],
            {"cosine_max_length": 3},
            r"unknown parameter of the rewards \['cosine'\] 'cosine_max_length'\. Did you "
            r"mean 'cosine_max_len'",
        ),
        (["accuracy"], {"cosine_max_len": 3}, r"unknown parameter of the rewards \['accuracy'\]"),
        (["accuracy"], {"response_format": "think"}, r"unknown .* 'think'\. Did you mean 'think_"),
        (
            ["no_such_module_here:f"],
            {},
            r"reward 'no_such_module_here:f': no module 'no_such_module_here' on the path or in ",
        ),
        (
            ["tests.core.rewards.test_registry:constnat"],
            {},
            r"unknown name in .*test_registry\.py 'constnat'\. Did you mean 'constant'",
        ),
    ],
)
def test_what_is_unknown(names: list[str], params: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_reward_funcs(names, **params)


def test_a_reward_of_one_s_own_file() -> None:
    func, shout = get_reward_funcs(
        ["tests.core.rewards.test_registry:constant", "tests.core.rewards.test_registry:Shout"],
        "boxed",
    )
    assert func(completions=["a"]) == [0.5]
    assert shout.response_format.name == "boxed"
    assert func is constant


@needs("judges")
def test_every_reward_pickles_and_has_a_name() -> None:
    names = [*REWARDS, "helpful"]
    funcs = get_reward_funcs(names, reward_models={"helpful": {"model": "a/b"}})
    assert [func.__name__ for func in funcs] == names
    for func in funcs:
        assert pickle.loads(pickle.dumps(func)) == func


def test_every_parameter_is_one_reward_s_or_means_the_same() -> None:
    owners: dict[str, set[str]] = {}
    for name in REWARDS:
        for key, field in reward_parameters([name]).items():
            owners.setdefault(key, set()).add(repr(field.default))
    assert {key: defaults for key, defaults in owners.items() if len(defaults) > 1} == {}


@needs("code")
@needs("countdown")
def test_what_is_true_of_a_reward_is_said_by_its_class() -> None:
    names = {
        kind: {name for name in REWARDS if declared(REWARDS[name], "judges") == kind}
        for kind in ("answer", "shape", "style", "")
    }
    assert names == {
        "answer": {
            *(
                "accuracy",
                "answer_contains",
                "answer_match",
                "binary_code",
                "choice_match",
                "code",
                "countdown",
                "exact_match",
            ),
            "summary_facts",
            "text_similarity",
            "verifiers",
        },
        "shape": {
            "code_format",
            "format",
            "format_partial",
            "tag_count",
            "xml_count",
            "xml_soft_format",
            "xml_strict_format",
        },
        "style": {
            "language_consistency",
            "reasoning_steps",
            "repetition_penalty",
            "soft_overlong_punishment",
            "target_length",
        },
        "": {"cosine", "integer_answer", "length", "summary_compression"},
    }
    marks = {name: declared(REWARDS[name], "full_marks") for name in REWARDS}
    assert (
        marks["exact_match"]
        == marks["choice_match"]
        == marks["answer_match"]
        == marks["accuracy"]
        == 1.0
    )
    assert (
        marks["repetition_penalty"] == 0.0
        and marks["cosine"] is marks["xml_count"] is marks["summary_facts"] is None
    )
    assert {name for name in REWARDS if declared(REWARDS[name], "reads_gold")} == {
        *(names["answer"] - {"code", "binary_code", "summary_facts", "verifiers"}),
        *("cosine", "length"),
    }
    assert declared(constant, "judges") == "" and declared(constant, "full_marks") is None


def test_no_list_of_reward_names_says_it_again() -> None:
    package = Path(registry.__file__).parents[1]
    files = [
        *(package / "preflight").glob("*.py"),
        *(package / "metrics").glob("*.py"),
        package / "recipe" / "checks.py",
    ]
    for path in [*files, Path(registry.__file__)]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        built = {
            arg
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and "get_reward_funcs" in ast.dump(node.func)
            for arg in node.args
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict) and node not in built:
                texts = node.keys if isinstance(node, ast.Dict) else node.elts
                named = [
                    text.value
                    for text in texts
                    if isinstance(text, ast.Constant) and text.value in REWARDS
                ]
                assert len(named) < 2, (path, named)
