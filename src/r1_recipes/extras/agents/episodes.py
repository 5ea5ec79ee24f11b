"""Episodes with tools over a backend that completes single turns: the loop of TRL's trainer, for
``evaluate`` and ``generate``.
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.completions.types import (
    Backend,
    Completion,
    Messages,
    Request,
    SamplingPlan,
    Sink,
    TooLong,
    close,
)
from r1_recipes.extras.agents.registry import methods_of, pays

# Requests whose episodes are played side by side, then stored; with environments a batch of
# completions
_AT_ONCE = 64
_MAX_TURNS = 1000  # of one episode


@dataclass
class Episode:
    prompt: Messages
    temperature: float
    max_tokens: int
    tools: dict[str, Callable]
    environment: Any = None
    kind: str | None = None  # the environment's name, if there are several
    turns: Messages = field(default_factory=list)
    tokens: int = 0
    finish_reason: str = "stop"
    live: bool = True
    error: str | None = None

    def take(self, completion: Completion, answered: bool) -> None:
        """Add a turn; if its calls are ``answered``, what its tools say, too."""
        [message] = completion.turns or [{"role": "assistant", "content": completion.text}]
        self.turns.append(message)
        self.tokens += completion.tokens
        over = self.tokens > self.max_tokens
        self.finish_reason = "length" if over else completion.finish_reason
        calls = message.get("tool_calls") or []
        self.live = bool(calls) and answered and not over
        for call in calls if self.live else ():
            name, own = (
                call["function"]["name"],
                {"tool_call_id": call["id"]} if "id" in call else {},
            )
            content = self._call(name, call["function"].get("arguments"), bool(own))
            self.turns.append({"role": "tool", "name": name, "content": content, **own})

    def _call(self, name: str, arguments: Any, is_text: bool) -> Any:
        # As TRL's trainer does: an error is what the model is told. A server has text for
        # arguments.
        try:
            arguments = (
                json.loads(arguments) if is_text and isinstance(arguments, str) else arguments
            )
            if name not in self.tools:
                raise ValueError(f"Tool {name} not found.")
            result = self.tools[name](**arguments)
            result = asyncio.run(result) if inspect.iscoroutine(result) else result
        except Exception as error:
            result = {"error": str(error)}
        return result if isinstance(result, list) else str(result)

    def completion(self) -> Completion:
        """Return the whole episode; its text is the last turn's, if it was finished."""
        last = (
            self.turns[-1]
            if self.turns[-1]["role"] == "assistant" and self.tokens <= self.max_tokens
            else {}
        )
        paid = self.environment.get_reward() if pays(type(self.environment)) else None
        return Completion(
            last.get("content") or "", self.tokens, self.finish_reason, self.turns, paid
        )


class EpisodeBackend:
    """Plays an episode where ``single`` would complete one turn.

    ``environments`` makes one by the row's column ``environment`` (``None``: every row's); ``rows``
    are what ``reset`` is given, by the index of the request. Calls of ``max_calls`` turns are
    answered, as TRL's ``max_tool_calling_iterations``. ``max_tokens`` bounds what the model writes
    in all turns; unlike TRL's ``max_completion_length`` it does not count what tools say.
    """

    def __init__(
        self,
        single: Backend,
        tools: Sequence[Callable],
        environments: Mapping[str | None, Callable],
        rows: Any,
        max_calls: int | None,
        max_tokens: int,
        at_once: int = 1,
    ) -> None:
        self._single, self._tools, self._environments, self._rows = (
            single,
            tools,
            environments,
            rows,
        )
        self._max_calls, self._max_tokens, self._at_once = (
            _MAX_TURNS if max_calls is None else max_calls,
            max_tokens,
            at_once,
        )
        self._idle: dict[Any, list[Any]] = {
            name: [] for name in environments
        }  # used again, as TRL does: each may hold a server's session

    def close(self) -> None:
        close(self._single)

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        temperatures = [
            temperature for temperature, copies in sampling_plans for _ in range(copies)
        ]
        step = max(1, self._at_once // len(temperatures)) if self._environments else _AT_ONCE
        for start in range(0, len(requests), step):
            part = requests[start : start + step]
            # An index of its own for every sample and turn: seeds are drawn from it.
            played = {
                (request.index * len(temperatures) + sample) * _MAX_TURNS: self._begin(
                    request, temperature
                )
                for request in part
                for sample, temperature in enumerate(temperatures)
            }
            for turn in range(self._max_calls + 1):
                for plan in dict.fromkeys(temperatures):
                    now = {
                        number + turn: one
                        for number, one in played.items()
                        if one.live and one.temperature == plan
                    }
                    self._play(now, plan, answered=turn < self._max_calls)
            episodes = list(played.values())
            for number, request in enumerate(part):
                own = episodes[number * len(temperatures) : (number + 1) * len(temperatures)]
                error = next((one.error for one in own if one.error), None)
                sink(request.index, [] if error else [one.completion() for one in own], error)
            for one in episodes if self._environments else ():
                self._idle[one.kind].append(one.environment)

    def _begin(self, request: Request, temperature: float) -> Episode:
        row, kind, environment = {}, None, None
        if self._environments:
            row = {
                **self._rows[request.index]
            }  # as in TRL, reset is not told which of several it is
            kind = None if None in self._environments else row.pop("environment")
            environment = self._idle[kind].pop() if self._idle[kind] else self._environments[kind]()
        tools = {tool.__name__: tool for tool in (*self._tools, *methods_of(environment))}
        episode = Episode(
            list(request.prompt), temperature, self._max_tokens, tools, environment, kind
        )
        observation = environment.reset(**row) if environment is not None else None
        if observation is not None:
            content = episode.prompt[-1]["content"]
            if isinstance(observation, list):
                content = [{"type": "text", "text": content}]
            episode.prompt[-1] = {**episode.prompt[-1], "content": content + observation}
        return episode

    def _play(self, episodes: Mapping[int, Episode], temperature: float, *, answered: bool) -> None:
        def take(number: int, made: list[Completion], error: str | None) -> None:
            episode = episodes[number]
            if (
                isinstance(error, TooLong) and episode.turns
            ):  # TRL, too, leaves out what the tools said last, and ends the episode
                while episode.turns[-1]["role"] == "tool":
                    episode.turns.pop()
                episode.finish_reason, episode.live = "length", False
            elif error:
                episode.error, episode.live = error, False
            else:
                episode.take(made[0], answered)

        asked = [
            Request(number, [*one.prompt, *one.turns], tuple(one.tools.values()))
            for number, one in episodes.items()
        ]
        if asked:
            self._single.run(asked, take, [(temperature, 1)])
