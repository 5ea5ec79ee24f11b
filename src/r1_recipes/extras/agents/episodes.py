"""Play episodes with tools for ``evaluate`` and ``generate``, like the loop of TRL's trainer.

The backend completes only single messages.
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
from r1_recipes.extras.agents.registry import has_reward, methods_of

# The number of requests whose episodes are played together and then stored. With environments, a
# batch of completions is played together.
_AT_ONCE = 64
_MAX_TURNS = 1000  # The most assistant messages of an episode.


@dataclass
class Episode:
    """A conversation of a model with its tools and its environment."""

    prompt: Messages
    temperature: float
    max_tokens: int
    tools: dict[str, Callable]
    environment: Any = None
    kind: str | None = None  # The name of the environment, if there are several.
    turns: Messages = field(default_factory=list)
    tokens: int = 0
    finish_reason: str = "stop"
    live: bool = True
    error: str | None = None

    def take(self, completion: Completion, answered: bool) -> None:
        """Add a message and, if its calls are ``answered``, the results of its tools."""
        [message] = completion.turns or [{"role": "assistant", "content": completion.text}]
        self.turns.append(message)
        self.tokens += completion.tokens
        over = self.tokens > self.max_tokens
        self.finish_reason = "length" if over else completion.finish_reason
        calls = message.get("tool_calls") or []
        self.live = bool(calls) and answered and not over
        for call in calls if self.live else ():
            name, call_id = (
                call["function"]["name"],
                {"tool_call_id": call["id"]} if "id" in call else {},
            )
            content = self._call(name, call["function"].get("arguments"), bool(call_id))
            self.turns.append({"role": "tool", "name": name, "content": content, **call_id})

    def _call(self, name: str, arguments: Any, is_text: bool) -> Any:
        # The model reads an error as the result, as in TRL's trainer. A server sends arguments as
        # text.
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
        """Return the whole episode. Its text is the last message, if that message is complete."""
        last = (
            self.turns[-1]
            if self.turns[-1]["role"] == "assistant" and self.tokens <= self.max_tokens
            else {}
        )
        reward = self.environment.get_reward() if has_reward(type(self.environment)) else None
        return Completion(
            last.get("content") or "", self.tokens, self.finish_reason, self.turns, reward
        )


class EpisodeBackend:
    """A backend that plays an episode for each completion.

    Args:
        single: The backend that completes single messages.
        tools: The tools of every episode.
        environments: The factories of environments by the column ``environment``. The key ``None``
            means every row.
        rows: The rows for ``reset``, by the index of the request.
        max_calls: How many messages may call tools, as TRL's ``max_tool_calling_iterations``.
        max_tokens: The most tokens that the model may write in an episode. Unlike TRL's
            ``max_completion_length``, it does not count the results of tools.
        at_once: The number of completions to play together.
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
        # Reuse environments, as TRL does, because each may hold the session of a server.
        self._idle: dict[Any, list[Any]] = {name: [] for name in environments}

    def close(self) -> None:
        """Close the backend for single messages."""
        close(self._single)

    def run(
        self, requests: Sequence[Request], sink: Sink, sampling_plans: Sequence[SamplingPlan]
    ) -> None:
        """Play the episodes of all requests, and pass their completions to ``sink``."""
        temperatures = [
            temperature for temperature, copies in sampling_plans for _ in range(copies)
        ]
        step = max(1, self._at_once // len(temperatures)) if self._environments else _AT_ONCE
        for start in range(0, len(requests), step):
            part = requests[start : start + step]
            # Give every sample and message its own index, because seeds depend on it.
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
                        number + turn: episode
                        for number, episode in played.items()
                        if episode.live and episode.temperature == plan
                    }
                    self._play(now, plan, answered=turn < self._max_calls)
            episodes = list(played.values())
            for number, request in enumerate(part):
                group = episodes[number * len(temperatures) : (number + 1) * len(temperatures)]
                error = next((episode.error for episode in group if episode.error), None)
                completions = [] if error else [episode.completion() for episode in group]
                sink(request.index, completions, error)
            for episode in episodes if self._environments else ():
                self._idle[episode.kind].append(episode.environment)

    def _begin(self, request: Request, temperature: float) -> Episode:
        row, kind, environment = {}, None, None
        if self._environments:
            # As in TRL, reset does not get the name of its environment.
            row = {**self._rows[request.index]}
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
            # As in TRL, drop the last results of tools, and end the episode.
            if isinstance(error, TooLong) and episode.turns:
                while episode.turns[-1]["role"] == "tool":
                    episode.turns.pop()
                episode.finish_reason, episode.live = "length", False
            elif error:
                episode.error, episode.live = error, False
            else:
                episode.take(made[0], answered)

        requests = [
            Request(number, [*episode.prompt, *episode.turns], tuple(episode.tools.values()))
            for number, episode in episodes.items()
        ]
        if requests:
            self._single.run(requests, take, [(temperature, 1)])
