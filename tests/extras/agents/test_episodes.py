"""Episodes over a backend that says what a script says: calls, errors, limits,
environments, seeds.
"""

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.completions.types import Completion, Request, TooLong
from r1_recipes.extras.agents.episodes import EpisodeBackend
from r1_recipes.extras.agents.guard import Limits
from r1_recipes.extras.agents.registry import build_environments, build_tools
from r1_recipes.metrics.run import judges_of
from r1_recipes.models.agent import agent
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe import load_recipe

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


def test_an_episode_over_its_tokens_is_cut_and_has_no_answer():
    done, _ = play([call("calculator", expression="1+1"), say("2", tokens=96)])
    [episode] = done[0][0]
    assert (episode.text, episode.finish_reason, episode.tokens) == ("", "length", 101)


def test_an_environment_is_played_and_scores():
    script = [call("guess", number=4), call("guess", number=6), say("It was 6.")]
    done, _ = play(
        script, tools=(), environment="guess_number", rows=({"number": 6}, {"number": 9})
    )
    (won,), (lost,) = done[0][0], done[1][0]
    assert (won.reward, lost.reward) == (1.0, 0.0)
    assert "higher" in won.turns[1]["content"] and "Right" in won.turns[3]["content"]


def test_every_sample_plays_alone_with_an_index_of_its_own():
    done, single = play(
        [call("guess", number=6), say("!")],
        tools=(),
        environment="guess_number",
        rows=({"number": 6},),
        plans=((0.0, 1), (1.0, 2)),
    )
    assert [one.reward for one in done[0][0]] == [1.0, 1.0, 1.0]
    indices = [index for index, _, _ in single.asked]
    assert len(set(indices)) == len(indices) == 6


def test_a_request_that_fails_is_the_row_s_own_error():
    done, _ = play([call("calculator", expression="1"), None], rows=({}, {}))
    assert done[0] == ([], "the server is gone") and done[1] == ([], "the server is gone")


def test_tools_need_no_rows():
    """``evaluate --ask`` has a question alone."""
    single, done = Scripted(call("calculator", expression="6*7"), say("42")), {}
    backend = EpisodeBackend(single, build_tools(["calculator"], LIMITS), {}, None, None, 100)
    backend.run(
        [Request(0, [{"role": "user", "content": "?"}])],
        lambda index, made, error: done.update({index: made}),
        [(0.0, 1)],
    )
    assert done[0][0].text == "42"


def test_no_call_is_answered_if_the_recipe_says_0():
    done, single = play([call("calculator", expression="1+1")] * 2, max_calls=0)
    assert [turn["role"] for turn in done[0][0][0].turns] == ["assistant"] and len(
        single.asked
    ) == 1


def test_one_class_under_two_names_has_one_reward():
    one, other = build_environments({"a": "guess_number", "b": "guess_number"}, {}, LIMITS).values()
    assert type(one()) is type(other())


given = []
PICTURE = {"type": "image", "image": object()}


class Shown:
    """Remembers what it is given, shows a block, and has a tool called as another."""

    def reset(self, **row):
        given.append(row)
        return [{"type": "text", "text": "begin"}, PICTURE]

    @classmethod
    def get_reward(cls):  # a function alone is one to TRL
        return 1.0

    def calculator(self) -> str:
        """Say."""
        return "mine"


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


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"tools": ["calculator"], "environment": f"{__name__}:Shown"},
            "tools, environment: several tools are named calculator",
        ),
        (
            {"environment": {"a": f"{__name__}:Paid", "b": "tests.extras.agents.test_rows:Paid"}},
            "must be classes with different names",
        ),
    ],
)
def test_names_that_would_hide_another_are_refused(write_recipe, changes, problem):
    with pytest.raises(RecipeError, match=problem):
        agent(load_recipe([write_recipe("grpo", **changes)], "grpo"), None)


def test_rewards_judge_what_an_environment_does_not(write_recipe):
    both = {"a": f"{__name__}:Shown", "b": f"{__name__}:Paid"}
    for environment, judges in ((both, {"accuracy"}), ({"b": both["b"]}, set())):
        recipe = load_recipe(
            [write_recipe("grpo", environment=environment, reward_funcs=["accuracy"])], "grpo"
        )
        assert judges_of(recipe, get_response_format("think_answer")).keys() == judges


def test_results_that_the_window_does_not_hold_are_left_out_and_end_the_episode():
    done, _ = play(
        [
            call("calculator", expression="1+1"),
            call("calculator", expression="2+2"),
            TooLong("too long"),
        ]
    )
    [episode] = done[0][0]
    assert [turn["role"] for turn in episode.turns] == [
        "assistant",
        "tool",
        "assistant",
    ] and episode.finish_reason == "length"
    done, _ = play([TooLong("the question is too long")])
    assert done[0] == ([], "the question is too long")


@pytest.mark.parametrize(("own", "said"), [({}, "must be a mapping"), ({"id": "1"}, "2")])
def test_arguments_as_text_are_a_server_s(own, said):
    """A model that writes them as a text inside of its call is told what training tells it."""
    wrong = call("calculator")
    wrong.turns[0]["tool_calls"][0] |= {
        "function": {"name": "calculator", "arguments": '{"expression": "1 + 1"}'},
        **own,
    }
    done, _ = play([wrong, say("!")])
    assert said in done[0][0][0].turns[1]["content"]


class Counted:
    """Counts how many there are."""

    made = 0

    def __init__(self):
        Counted.made += 1

    def reset(self, **row):
        self.row = row["number"]

    def look(self) -> str:
        """Look."""
        return str(self.row)


def test_environments_are_used_again_and_no_more_than_a_batch_of_them():
    done, _ = play(
        [call("look"), say("!")],
        tools=(),
        environment="tests.extras.agents.test_episodes:Counted",
        rows=[{"number": number} for number in range(7)],
        plans=((0.0, 1), (1.0, 1)),
        at_once=4,
    )
    assert [done[row][0][1].turns[1]["content"] for row in range(7)] == list("0123456")
    assert Counted.made == 4
