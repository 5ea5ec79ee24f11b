"""Map conversations whose last assistant message is the target, and preference pairs."""

import json
import re
from collections.abc import Collection
from itertools import zip_longest
from typing import Any

from r1_recipes.common.messages import last_user_text
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
_LOST_KEYS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
_THOUGHT = ("<|begin_of_thought|>", "<|end_of_thought|>")
_MESSAGES_AS_TEXT = re.compile(
    r"""\s*(?:\[\s*)?\{\s*["'](?:role|from)["']\s*:|\s*\[\s*\{\s*["'](?:content|value)["']\s*:"""
)
_SOLUTION = ("<|begin_of_solution|>", "<|end_of_solution|>")


@register_mapper("conversations")
class Conversations(Mapper):
    """Chats: ``messages`` (role, content) or ``conversations`` (from, value).

    The last assistant message is the response, and the messages before it are its history. A column
    ``system`` may hold the system message. User and assistant must alternate. A conversation with
    tool calls stays whole, after the system message of the row or of the recipe.

    Attributes:
        well_formed: Whether the response must be in the recipe's response format. Set it to false
            for general chat data.
        wrappers: ``think`` turns the tags of Sky-T1, OpenThoughts and Bespoke-Stratos
            (``<|begin_of_thought|>…``) into ``<think>``, and removes a system message that asks for
            them. ``keep`` leaves them, for the response format ``thought_solution``.
        whole: Keep every message, in any order, as TRL does with ``messages``. This includes
            messages after the last assistant message.
        empty_system: With ``whole``, add an empty system message where there is none, if the chat
            template writes system messages.
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
        # With this column, "messages" hold the old answers of R1-Distill-SFT.
        if "reannotated_messages" in columns:
            return 0
        # Never more than 1: NuminaMath has messages too, and a mapper that knows the other columns
        # of a source must fit better.
        return int(not {"messages", "conversations"}.isdisjoint(columns))

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        is_missing = "conversations" in row and not row.get("messages")
        column = "conversations" if is_missing else "messages"
        messages = read_messages(row.get(column), column, called=True)
        if self.whole:
            return {"turns": messages, "empty_system": self.empty_system}
        keep = self.wrappers == "keep"
        mapped = read_conversation(messages, row.get("system"), keep_wrappers=keep)
        return {**mapped, "well_formed": self.well_formed}


class PromptCompletion(Mapper):
    """Pairs in the format of TRL, messages or texts, joined into a conversation.

    It has no registered name: only ``mapper: auto`` chooses it.
    """

    columns = ("prompt", "completion")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        messages = read_messages(row["prompt"], "prompt", "user", called=True)
        messages += read_messages(row["completion"], "completion", "assistant", called=True)
        return {**read_conversation(messages), "well_formed": False}


def conversation_mapper(columns: Collection[str]) -> Mapper | None:
    """Return the mapper for unchanged conversations, or None if the columns do not hold any."""
    if Conversations.fit(columns):
        return Conversations(well_formed=False)
    return PromptCompletion() if PromptCompletion.fit(columns) else None


@register_mapper("preference")
class Preference(Mapper):
    """Preference pairs in the format of TRL: ``chosen`` and ``rejected``, messages or text.

    Optional columns are ``prompt`` and ``system``.
    """

    columns = ("chosen", "rejected")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        prompt = read_messages(row["prompt"], "prompt", "user") if row.get("prompt") else []
        instructions = [message["content"] for message in prompt if message["role"] == "system"]
        system = instructions[0] if instructions else row.get("system")
        opening = _spoken(prompt)
        answers = [read_messages(row.get(column), column, "assistant") for column in self.columns]
        for spoken in map(_spoken, answers):
            if len(spoken) > 1 and spoken[: len(opening)] != opening:
                raise SkipRow("chosen and rejected do not start with column 'prompt'")
        pair = []
        for messages in answers:
            whole = messages if len(messages) > 1 else prompt + messages
            pair.append(read_conversation(whole, system, keep_wrappers=True))
        chosen, rejected = pair
        same_history = chosen["messages"] == rejected["messages"]
        if not same_history or chosen["response"] == rejected["response"]:
            raise SkipRow("chosen and rejected must be different answers to the same conversation")
        return {**chosen, "rejected": rejected["response"]}


def _spoken(messages: list[Message]) -> list[tuple[str, str]]:
    """Return role and text of all messages but those of the system."""
    spoken = [message for message in messages if message["role"] != "system"]
    return [(message["role"], message["content"].strip()) for message in spoken]


@register_mapper("safe_rlhf")
class SafeRLHF(Mapper):
    """PKU-Alignment/PKU-SafeRLHF: the safer of two responses is the chosen one.

    Its licence allows only non-commercial use.
    """

    columns = ("prompt", "response_0", "response_1", "safer_response_id")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        # pandas writes whole numbers as 1.0 if the column has missing values.
        safer = optional_text(row, "safer_response_id").removesuffix(".0")
        if safer not in ("0", "1"):
            raise SkipRow("column 'safer_response_id' is neither 0 nor 1")
        chosen = required_text(row, f"response_{safer}")
        rejected = required_text(row, f"response_{1 - int(safer)}")
        if chosen == rejected:
            raise SkipRow("the responses are equal")
        return {"question": required_text(row, "prompt"), "response": chosen, "rejected": rejected}


@register_mapper("r1_distill_sft")
class R1DistillSFT(Mapper):
    """ServiceNow-AI/R1-Distill-SFT, ``v1``: the rewritten answer, not the old one in ``messages``.

    Its licence allows only non-commercial use.
    """

    columns = ("reannotated_assistant_content", "reannotated_messages")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        messages = read_messages(row.get("reannotated_messages"), "reannotated_messages")
        return {
            **read_conversation(messages),
            "response": required_text(row, "reannotated_assistant_content"),
        }


def read_messages(
    value: Any,
    column: str,
    speaker: str | None = None,
    *,
    called: bool = False,
) -> list[Message]:
    """Return the messages of a column as dicts with ``role`` and ``content``.

    Args:
        value: A list of mappings with role and content, or from and value; a mapping of lists, as
            Arrow may store them; or JSON text of these.
        column: The name of the column, for the reasons of :class:`SkipRow`.
        speaker: If set, any other text is a message of this role.
        called: Keep tool calls and their results.
    """
    if isinstance(value, str) and _MESSAGES_AS_TEXT.match(value):
        try:
            value = json.loads(value)
        except ValueError:
            raise SkipRow(f"column {column!r} holds messages as text that is not JSON") from None
    if isinstance(value, str) and speaker:
        return [{"role": speaker, "content": value}]
    return [_read_message(message, column, called) for message in _message_mappings(value, column)]


def _message_mappings(value: Any, column: str) -> list[dict[str, Any]]:
    """Return a column's messages as mappings with their original keys."""
    if isinstance(value, dict):
        lists = {key: items for key, items in value.items() if isinstance(items, list)}
        rows = zip_longest(*lists.values())
        value = [dict(zip(lists, row, strict=True)) for row in rows] if lists else [value]
    if value is None or value == []:
        raise SkipRow(f"column {column!r} is empty")
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise SkipRow(f"column {column!r} is not a list of messages")
    return value


def _read_message(message: dict[str, Any], column: str, called: bool) -> Message:
    role = _read_role(message, column)
    extra = {key: message[key] for key in _TOOL_KEYS if called and message.get(key)}
    if isinstance(extra.get("tool_calls"), list):
        extra["tool_calls"] = list(map(_read_call, extra["tool_calls"]))
    lost = [key for key in _LOST_KEYS if message.get(key) and key not in extra]
    if lost:
        raise SkipRow(f"a message has {' and '.join(lost)}, which would be lost")
    content = message.get("value") if message.get("content") is None else message["content"]
    if content is None and "tool_calls" in extra:
        content = ""
    if not isinstance(content, str):
        raise SkipRow("the content of a message is not text")
    return {"role": role, "content": content, **extra}


def _read_call(call: Any) -> Any:
    """Return a tool call with its arguments as a mapping, as chat templates write them.

    OpenAI's format has them as JSON text.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _read_role(message: dict[str, Any], column: str) -> str:
    role = message.get("from") if message.get("role") is None else message["role"]
    known = _ROLES.get(role.strip().lower()) if isinstance(role, str) else None
    if known is None:
        fix = "rename the role, or store the text instead of a mapping"
        raise SkipRow(
            f"the role of a message must be one of system, user (human), assistant (gpt), got "
            f"{role!r:.40} in column {column!r}. Fix: {fix}"
        )
    return known


def last_question(row: dict[str, Any], column: str) -> str:
    """Return the question of a prompt column: its text, or its last user message."""
    value = row.get(column)
    if not isinstance(value, str | list | dict):
        value = as_text(value, column)
    question = last_user_text(read_messages(value, column, "user"))
    if not question.strip():
        raise SkipRow(f"column {column!r} is empty")
    return question


def read_conversation(
    messages: list[Message],
    system: Any = None,
    *,
    keep_wrappers: bool = False,
) -> MappedRow:
    """Return the mapped row of a conversation. Its last assistant message is the response.

    A conversation with tool calls becomes ``turns``; any other becomes ``question``, ``response``
    and ``messages``. ``system`` is the system message if ``turns`` do not start with one.
    """
    if messages[0]["role"] == "system":
        system, messages = messages[0]["content"], messages[1:]
    end = len(messages)
    while end and messages[end - 1]["role"] != "assistant":
        end -= 1
    messages = messages[:end]
    if not messages:
        raise SkipRow("no assistant message")
    if any("tool_calls" in message for message in messages):
        instruction = [{"role": "system", "content": system}] if isinstance(system, str) else []
        return {"turns": instruction + messages}
    _check_exchange(messages)
    system = system if isinstance(system, str) else ""
    if not keep_wrappers:
        messages = [
            {**message, "content": _with_think_tags(message["content"])} for message in messages
        ]
        # Drop a system message that asks for the tags: the response no longer has them.
        if _THOUGHT[0] in system:
            system = ""
    *history, response = messages
    question = history[-1]["content"].strip()
    if system.strip():
        history.insert(0, {"role": "system", "content": system})
    return {"question": question, "response": response["content"], "messages": history}


def _check_exchange(messages: list[Message]) -> None:
    if not all(message["content"].strip() for message in messages):
        raise SkipRow("a message is empty")
    roles = [message["role"] for message in messages]
    if "user" not in roles:
        raise SkipRow("no user message before the answer")
    if roles != ["user", "assistant"] * (len(messages) // 2):
        raise SkipRow("the messages do not alternate between user and assistant")


def _with_think_tags(text: str) -> str:
    """Replace thought and solution tags by ``<think>``. Text with broken tags stays unchanged."""
    before, opened, rest = text.partition(_THOUGHT[0])
    thought, closed, rest = rest.partition(_THOUGHT[1])
    between, _, solution = rest.rpartition(_SOLUTION[0])
    solution, _, after = solution.partition(_SOLUTION[1])
    if not (opened and closed) or before.strip() or between.strip() or after.strip():
        return text
    return f"<think>\n{thought.strip()}\n</think>\n{solution.strip()}"
