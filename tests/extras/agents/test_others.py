"""docs/agents.md's classes for OpenEnv and Harbor, over clients with the interface of theirs."""

import random
import re
import sys
import types
from types import SimpleNamespace as Made
from typing import ClassVar

import pytest
from trl.experimental.harbor import HarborEnv

from r1_recipes.completions.types import Completion, Request
from r1_recipes.extras.agents.episodes import EpisodeBackend
from r1_recipes.extras.agents.guard import Limits
from r1_recipes.extras.agents.registry import (
    build_environments,
    environment_kinds,
    environment_parameters,
    schemas,
)
from tests.conftest import REPOSITORY

WORDLE, HARBOR = re.findall(
    r"```python\n(from dataclasses.*?)```",
    (REPOSITORY / "docs" / "agents.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


class TextArena:
    """As openenv's clients: asynchronous but for ``sync()``; a step's result holds observation,
    reward and done.
    """

    made: ClassVar[list] = []

    def __init__(self, base_url):
        self.base_url, self.text = base_url, "six tries"
        self.made.append(self)

    def sync(self):
        return Made(reset=self._reset, step=self._step)

    def _result(self, reward, done=False):
        return Made(observation=Made(messages=[Made(content=self.text)]), reward=reward, done=done)

    def _reset(self):
        self.text = "six tries"
        return self._result(None)

    def _step(self, action):
        right = action.message == "[crane]"
        self.text += (
            " GGGGG"
            if right
            else " You attempted an invalid move"
            if len(action.message) != 7
            else " XXXXX"
        )
        return self._result(1.0 if right else 0.5, right)


@pytest.fixture
def module(tmp_path, monkeypatch):
    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def play(environment, row, params, *calls):
    class Caller:
        def run(self, requests, sink, plans):
            for request in requests:
                turn = sum(message["role"] == "assistant" for message in request.prompt)
                said = {"role": "assistant", "content": ""}
                if turn < len(calls):
                    [(name, arguments)] = calls[turn].items()
                    said["tool_calls"] = [
                        {"type": "function", "function": {"name": name, "arguments": arguments}}
                    ]
                self.prompt = request.prompt
                sink(request.index, [Completion("", 1, "stop", turns=[said])], None)

    single, done = Caller(), []
    backend = EpisodeBackend(
        single, [], build_environments(environment, params, Limits()), [row], None, 100
    )
    backend.run(
        [Request(0, [{"role": "user", "content": row["question"]}])],
        lambda _, made, error: done.extend(made),
        [(0.0, 1)],
    )
    return single.prompt, done[0]


@pytest.mark.parametrize(
    ("words", "pays"),
    [(["slate", "crane"], 1.0), (["slate"], 0.5), (["crane", "toolong"], 0.0), ([], 0.0)],
)
def test_openenv(module, monkeypatch, words, pays):
    client = types.ModuleType("textarena_env")
    client.TextArenaEnv, client.TextArenaAction = TextArena, Made
    monkeypatch.setitem(sys.modules, "textarena_env", client)
    monkeypatch.setattr(TextArena, "made", [])
    module("my_wordle", WORDLE)
    name = "my_wordle:Wordle"
    assert (
        '"guess"' in schemas([], name)
        and environment_kinds(name)[None].get_reward
        and [*environment_parameters(name)] == ["wordle_url"]
    )
    assert not TextArena.made  # nothing connects before an episode
    prompt, episode = play(
        name,
        {"question": "Find it."},
        {"wordle_url": "http://there:1"},
        *({"guess": {"word": word}} for word in words),
    )
    assert (
        prompt[0]["content"] == "Find it.\nsix tries"
        and TextArena.made[0].base_url == "http://there:1"
    )
    answers = [turn["content"].strip() for turn in prompt if turn["role"] == "tool"]
    assert answers == [
        {"slate": "XXXXX", "crane": "GGGGG"}.get(word, "You attempted an invalid move")
        for word in words
    ]
    assert episode.reward == pays


def test_harbor(module, tmp_path, monkeypatch):
    async def start(self, task_dir):
        async def run(command, timeout_sec):
            return Made(stdout=command.upper(), stderr="", return_code=0)

        self._env = Made(exec=run)
        return f"{task_dir} on {self._environment_type}"

    async def verify(self):
        return 0.75

    monkeypatch.setattr(HarborEnv, "_start", start)
    monkeypatch.setattr(HarborEnv, "_verify", verify)
    module("my_harbor", HARBOR)
    for task in ("a", "b"):
        (tmp_path / "tasks" / task).mkdir(parents=True)
        (tmp_path / "tasks" / task / "task.toml").touch()
    name = "my_harbor:Harbor"
    row = environment_kinds(name)[None].draw(random.Random(1), tasks="tasks")
    assert row["task_dir"] in ("tasks/a", "tasks/b") and '"bash"' in schemas([], name)
    prompt, episode = play(name, row, {"harbor_backend": "e2b"}, {"bash": {"command": "ls"}})
    assert prompt[0]["content"].startswith(f"Your task:\n{row['task_dir']} on e2b")
    assert prompt[-1]["content"] == "LS" and episode.reward == 0.75
