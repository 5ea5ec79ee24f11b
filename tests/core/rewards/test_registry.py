"""Names in a recipe -> reward functions."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from r1_recipes.common.messages import completion_texts
from r1_recipes.rewards import REWARDS, Reward, get_reward_funcs


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
                        "content": [{"type": "text", "text": "a"}, {"type": "image"}],
                    }
                ]
            ],
            ["a"],
        ),
    ],
)
def test_completion_texts(completions: list, texts: list[str]) -> None:
    assert completion_texts(completions) == texts


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


def test_every_reward_pickles_and_has_a_name() -> None:
    names = [*REWARDS, "helpful"]
    funcs = get_reward_funcs(names, reward_models={"helpful": {"model": "a/b"}})
    assert [func.__name__ for func in funcs] == names
    for func in funcs:
        assert pickle.loads(pickle.dumps(func)) == func
