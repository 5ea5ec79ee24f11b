"""Episodes over a backend that says what a script says: calls, errors, limits,
environments, seeds.
"""

import pytest

from r1_recipes.completions.types import Completion, Request
from r1_recipes.extras.agents.episodes import EpisodeBackend
from r1_recipes.extras.agents.guard import Limits
from r1_recipes.extras.agents.registry import build_environments, build_tools

LIMITS = Limits()


def call(name, **arguments):
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }
    return Completion("", 5, "stop", turns=[message])


def say(text, tokens=5, finish_reason="stop"):
    return Completion(text, tokens, finish_reason, turns=[{"role": "assistant", "content": text}])


class Scripted:
    """Says the next line of the script to each request; remembers what it was asked."""

    def __init__(self, *script):
        self.script, self.asked = script, []

    def run(self, requests, sink, plans):
        self.asked += [(request.index, [*request.prompt], plans) for request in requests]
        for request in requests:
            line = self.script[sum(message["role"] == "assistant" for message in request.prompt)]
            error = line if isinstance(line, str) else None if line else "the server is gone"
            sink(request.index, [] if error else [line], error)


def play(
    script,
    *,
    tools=("calculator",),
    environment=None,
    rows=({},),
    max_calls=None,
    max_tokens=100,
    plans=((0.0, 1),),
    at_once=64,
):
    single = Scripted(*script)
    environments = build_environments(environment, {}, LIMITS) if environment else {}
    backend = EpisodeBackend(
        single, build_tools(tools, LIMITS), environments, rows, max_calls, max_tokens, at_once
    )
    done = {}
    requests = [Request(index, [{"role": "user", "content": "?"}]) for index in range(len(rows))]
    backend.run(requests, lambda index, made, error: done.update({index: (made, error)}), plans)
    return done, single


def test_a_call_is_answered_and_the_last_turn_is_the_text():
    done, single = play([call("calculator", expression="2 * 21"), say("42")])
    [episode] = done[0][0]
    assert (episode.text, episode.tokens, episode.finish_reason) == ("42", 10, "stop")
    assert [turn["role"] for turn in episode.turns] == ["assistant", "tool", "assistant"]
    assert episode.turns[1] == {"role": "tool", "name": "calculator", "content": "42"}
    assert [len(prompt) for _, prompt, _ in single.asked] == [1, 3]


@pytest.mark.parametrize(
    ("wrong", "error_text"),
    [
        (call("calculator", expression="9**9**9"), "not an expression"),
        (call("calculator", wrong="1"), "unexpected keyword argument"),
        (call("oracle"), "Tool oracle not found."),
    ],
)
def test_an_error_is_the_result_of_a_call(wrong, error_text):
    done, _ = play([wrong, say("sorry")])
    [episode] = done[0][0]
    assert error_text in episode.turns[1]["content"] and episode.text == "sorry"


def test_calls_beyond_the_limit_are_not_answered():
    done, single = play([call("calculator", expression="1+1")] * 4, max_calls=2)
    [episode] = done[0][0]
    assert [turn["role"] for turn in episode.turns] == ["assistant", "tool"] * 2 + ["assistant"]
    assert episode.text == "" and len(single.asked) == 3


def test_an_environment_is_played_and_scores():
    script = [call("guess", number=4), call("guess", number=6), say("It was 6.")]
    done, _ = play(
        script,
        tools=(),
        environment="tests.support.callers:Game",
        rows=({"number": 6}, {"number": 9}),
    )
    (won,), (lost,) = done[0][0], done[1][0]
    assert (won.reward, lost.reward) == (1.0, 0.0)
    assert "higher" in won.turns[1]["content"] and "Right" in won.turns[3]["content"]


def test_every_sample_plays_alone_with_an_index_of_its_own():
    done, single = play(
        [call("guess", number=6), say("!")],
        tools=(),
        environment="tests.support.callers:Game",
        rows=({"number": 6},),
        plans=((0.0, 1), (1.0, 2)),
    )
    assert [one.reward for one in done[0][0]] == [1.0, 1.0, 1.0]
    indices = [index for index, _, _ in single.asked]
    assert len(set(indices)) == len(indices) == 6


given = []
PICTURE = {"type": "image", "image": object()}


class Shown:
    """Remembers what it is given, and shows a picture."""

    def reset(self, **row):
        given.append(row)
        return [{"type": "text", "text": "begin"}, PICTURE]

    @classmethod
    def get_reward(cls):  # a function alone is one to TRL
        return 1.0


class Paid(Shown):
    def get_reward(self):
        return 0.5


def test_several_environments_are_given_what_trl_gives_them():
    given.clear()
    rows = ({"environment": "a", "x": 1}, {"environment": "b", "x": 2})
    done, single = play(
        [say("!")],
        tools=(),
        environment={"a": f"{__name__}:Shown", "b": f"{__name__}:Paid"},
        rows=rows,
    )
    assert [done[number][0][0].reward for number in (0, 1)] == [None, 0.5]
    assert single.asked[0][1][-1]["content"] == [
        {"type": "text", "text": "?"},
        {"type": "text", "text": "begin"},
        PICTURE,
    ]
    assert given == [{"x": 1}, {"x": 2}]
