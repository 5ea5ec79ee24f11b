"""Conversations whose last assistant's turn is the target."""

import json
import re
from collections.abc import Collection
from itertools import zip_longest
from typing import Any

from r1_recipes.data.mapped_row import MappedRow, Message
from r1_recipes.data.mappers.base import (
    Mapper,
    SkipRow,
    as_text,
    check_choice,
    optional_text,
    register_mapper,
    required_text,
)

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
}
_TOOL_KEYS = ("tool_calls", "tool_call_id", "name")
_LOST_KEYS = ("tool_calls", "function_call", "reasoning_content")
_THOUGHT = ("<|begin_of_thought|>", "<|end_of_thought|>")
_TURNS_AS_TEXT = re.compile(
    r"""\s*(?:\[\s*)?\{\s*["'](?:role|from)["']\s*:|\s*\[\s*\{\s*["'](?:content|value)["']\s*:"""
)
_SOLUTION = ("<|begin_of_solution|>", "<|end_of_solution|>")


@register_mapper("conversations")
class Conversations(Mapper):
    """Chats: ``messages`` (role, content) or ``conversations`` (from, value), with an optional
    column ``system``.

    The last assistant's turn is the response, the turns before it are its history. User and
    assistant must alternate; calls of tools and their results stand as they are, after the row's
    system message or the recipe's.

    Attributes:
        well_formed: whether the response must be in the recipe's response format; false: general
        chat data.
        wrappers: ``think``: those of Sky-T1, OpenThoughts and Bespoke-Stratos
            (``<|begin_of_thought|>…``) become ``<think>``, and a
            system message that asks for them goes; ``keep``: for response format
            ``thought_solution``.
        whole: every turn as it stands, in any order, also after the last assistant's: what TRL
        trains on, given ``messages``.
        empty_system: with ``whole``, an empty system message before those that have none, if the
            chat template writes such messages.
    """

    well_formed: bool = True
    wrappers: str = "think"
    whole: bool = False
    empty_system: bool = False
    columns = ("messages",)
    needs = (("messages", "conversations"),)

    def __post_init__(self) -> None:
        check_choice("wrappers", self.wrappers, ("think", "keep"))

    @classmethod
    def fit(cls, columns: Collection[str]) -> int:
        # Beside these, R1-Distill-SFT's "messages" are what was there before its reasoning was
        # written.
        if "reannotated_messages" in columns:
            return 0
        # One, however many: NuminaMath has messages too, and a mapper that knows a set's other
        # columns knows more of it.
        return int("messages" in columns or "conversations" in columns)

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        column = (
            "messages" if row.get("messages") or "conversations" not in row else "conversations"
        )
        turns = read_turns(row.get(column), column, called=True)
        if self.whole:
            return {"turns": turns, "empty_system": self.empty_system}
        return {
            **read_conversation(turns, row.get("system"), keep_wrappers=self.wrappers == "keep"),
            "well_formed": self.well_formed,
        }


class PromptCompletion(Mapper):
    """Pairs as TRL takes them, of messages or of texts: one conversation. Only ``auto``
    finds it.
    """

    columns = ("prompt", "completion")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        turns = read_turns(row["prompt"], "prompt", "user", called=True)
        turns += read_turns(row["completion"], "completion", "assistant", called=True)
        return {**read_conversation(turns), "well_formed": False}


def conversation_mapper(columns: Collection[str]) -> Mapper | None:
    """Return the mapper that takes these columns' conversations as they are, if there are any."""
    if Conversations.fit(columns):
        return Conversations(well_formed=False)
    return PromptCompletion() if PromptCompletion.fit(columns) else None


@register_mapper("preference")
class Preference(Mapper):
    """Pairs of TRL: ``chosen`` and ``rejected``, turns or a text each, after ``system``, and
    ``prompt`` if they do not hold it.
    """

    columns = ("chosen", "rejected")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        prompt = read_turns(row["prompt"], "prompt", "user") if row.get("prompt") else []
        chosen, rejected = (
            read_turns(row.get(column), column, "assistant") for column in self.columns
        )
        rest = [
            [(turn["role"], turn["content"].strip()) for turn in turns if turn["role"] != "system"]
            for turns in (prompt, chosen, rejected)
        ]
        system = next(
            (turn["content"] for turn in prompt if turn["role"] == "system"), row.get("system")
        )
        if any(len(turns) > 1 and turns[: len(rest[0])] != rest[0] for turns in rest[1:]):
            raise SkipRow("column 'prompt' is not how chosen and rejected begin")
        chosen, rejected = (
            turns if len(turns) > 1 else prompt + turns for turns in (chosen, rejected)
        )
        pair = [
            read_conversation(turns, system, keep_wrappers=True) for turns in (chosen, rejected)
        ]
        if pair[0]["messages"] != pair[1]["messages"] or pair[0]["response"] == pair[1]["response"]:
            raise SkipRow("chosen and rejected must be different answers to the same conversation")
        return {**pair[0], "rejected": pair[1]["response"]}


@register_mapper("safe_rlhf")
class SafeRLHF(Mapper):
    """PKU-Alignment/PKU-SafeRLHF: two responses, of which the safer one is chosen. For
    non-commercial use.
    """

    columns = ("prompt", "response_0", "response_1", "safer_response_id")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        safer = optional_text(row, "safer_response_id").removesuffix(
            ".0"
        )  # whole numbers beside missing ones are 1.0 to pandas
        if safer not in ("0", "1"):
            raise SkipRow("column 'safer_response_id' is neither 0 nor 1")
        chosen, rejected = (
            required_text(row, f"response_{number}") for number in (int(safer), 1 - int(safer))
        )
        if chosen == rejected:
            raise SkipRow("the responses are equal")
        return {"question": required_text(row, "prompt"), "response": chosen, "rejected": rejected}


@register_mapper("r1_distill_sft")
class R1DistillSFT(Mapper):
    """ServiceNow-AI/R1-Distill-SFT, ``v1``: the answer that was written anew; ``messages`` end in
    the old one. For non-commercial use.
    """

    columns = ("reannotated_assistant_content", "reannotated_messages")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        turns = read_turns(row.get("reannotated_messages"), "reannotated_messages")
        return {
            **read_conversation(turns),
            "response": required_text(row, "reannotated_assistant_content"),
        }


def read_turns(
    value: Any,
    column: str,
    speaker: str | None = None,
    *,
    called: bool = False,
) -> list[Message]:
    """Read a column's messages: ``{"role": "system" | "user" | "assistant" | "tool", "content":
    text}``.

    They may be mappings with role and content, or from and value, or one mapping of such lists, as
    Arrow may hold it, or JSON text of these; with ``speaker``, also any other text, which is that
    role's; with ``called``, with their ``tool_calls``.
    """
    if isinstance(value, str) and _TURNS_AS_TEXT.match(value):
        try:
            value = json.loads(value)
        except ValueError:
            raise SkipRow(f"column {column!r} holds turns as text that is not JSON") from None
    if isinstance(value, str) and speaker:
        return [{"role": speaker, "content": value}]
    return [_read_turn(turn, column, called) for turn in _turn_mappings(value, column)]


def _turn_mappings(value: Any, column: str) -> list[dict[str, Any]]:
    """Return a column's messages as mappings, whatever their keys are."""
    if isinstance(value, dict):
        lists = {key: items for key, items in value.items() if isinstance(items, list)}
        rows = zip_longest(*lists.values())
        value = [dict(zip(lists, items, strict=True)) for items in rows] if lists else [value]
    if value is None or value == []:
        raise SkipRow(f"column {column!r} is empty")
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise SkipRow(f"column {column!r} is no list of turns")
    return value


def _read_turn(turn: dict[str, Any], column: str, called: bool) -> Message:
    role = _read_role(turn, column)
    extra = {key: turn[key] for key in _TOOL_KEYS if called and turn.get(key)}
    lost = [key for key in _LOST_KEYS if turn.get(key) and key not in extra]
    if lost:
        raise SkipRow(f"a turn has {' and '.join(lost)}, which would be lost")
    content = turn.get("value") if turn.get("content") is None else turn["content"]
    if content is None and "tool_calls" in extra:
        content = ""
    if not isinstance(content, str):
        raise SkipRow("a turn's content is not text")
    return {"role": role, "content": content, **extra}


def _read_role(turn: dict[str, Any], column: str) -> str:
    role = turn.get("from") if turn.get("role") is None else turn["role"]
    known = _ROLES.get(role.strip().lower()) if isinstance(role, str) else None
    if known is None:
        fix = "rename it, or write the text without a mapping"
        raise SkipRow(
            f"a turn's role must be one of system, user (human), assistant (gpt), got "
            f"{role!r:.40} in column {column!r}. Fix: {fix}"
        )
    return known


def last_question(row: dict[str, Any], column: str) -> str:
    """A prompt column's question: the text itself, or the last user's turn."""
    value = row.get(column)
    turns = read_turns(
        value if isinstance(value, str | list | dict) else as_text(value, column), column, "user"
    )
    question = next((turn["content"] for turn in reversed(turns) if turn["role"] == "user"), "")
    if not question.strip():
        raise SkipRow(f"column {column!r} is empty")
    return question


def read_conversation(
    turns: list[Message],
    system: Any = None,
    *,
    keep_wrappers: bool = False,
) -> MappedRow:
    """``question``, ``response`` and ``messages`` of a conversation whose last assistant's turn is
    the response.

    ``system`` is the system message if the turns have none of their own. With calls of tools:
    ``turns``, all of them.
    """
    if turns[0]["role"] == "system":
        system, turns = turns[0]["content"], turns[1:]
    if not (answers := [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]):
        raise SkipRow("no assistant's turn")
    turns = turns[: answers[-1] + 1]
    if any("tool_calls" in turn for turn in turns):
        return {
            "turns": [{"role": "system", "content": system}, *turns]
            if isinstance(system, str)
            else turns
        }
    if not all(turn["content"].strip() for turn in turns):
        raise SkipRow("a turn is empty")
    roles = [turn["role"] for turn in turns]
    if roles != ["user", "assistant"] * (len(turns) // 2):
        raise SkipRow(
            "the turns do not alternate between user and assistant"
            if "user" in roles
            else "no user's turn before the answer"
        )
    if not keep_wrappers:
        turns = [{**turn, "content": _with_think_tags(turn["content"])} for turn in turns]
    *messages, response = turns
    # What asks for wrappers that are no longer there would contradict the response.
    if isinstance(system, str) and system.strip() and (keep_wrappers or _THOUGHT[0] not in system):
        messages.insert(0, {"role": "system", "content": system})
    return {
        "question": messages[-1]["content"].strip(),
        "response": response["content"],
        "messages": messages,
    }


def _with_think_tags(text: str) -> str:
    """Thought and solution wrappers as ``<think>``; any other text, broken wrappers among them, as
    it is.
    """
    before, opened, rest = text.partition(_THOUGHT[0])
    thought, closed, rest = rest.partition(_THOUGHT[1])
    between, _, solution = rest.rpartition(_SOLUTION[0])
    solution, _, after = solution.partition(_SOLUTION[1])
    if not (opened and closed) or before.strip() or between.strip() or after.strip():
        return text
    return f"<think>\n{thought.strip()}\n</think>\n{solution.strip()}"
