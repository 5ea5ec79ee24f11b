"""Map conversations whose last assistant message is the target, and preference pairs."""

from typing import Any

from r1_recipes.data.mappers.base import MappedRow, SkipRow, register_mapper
from r1_recipes.data.messages import (
    Message,
    last_question,
    read_messages,
    split_answer,
    with_earlier,
    with_think_tags,
)


@register_mapper("conversations", "messages|conversations")
def conversations(
    row: dict[str, Any],
    well_formed: bool = True,
    wrappers: str = "think",
    whole: bool = False,
) -> MappedRow:
    """Map chats: ``messages`` (role, content) or ``conversations`` (from, value).

    The last assistant message is the response, and the messages before it are the prompt. Columns
    ``system`` and ``history`` come first. A conversation with calls of tools stays whole.

    Args:
        row: The row.
        well_formed: Whether the response must be in the recipe's response format. Set it to false
            for general chat data.
        wrappers: ``think`` turns the tags of Sky-T1, OpenThoughts and Bespoke-Stratos
            (``<|begin_of_thought|>…``) into ``<think>``, and removes a system message that asks for
            them. Anything else leaves them, for the response format ``thought_solution``.
        whole: Keep every message as it is, as TRL does with ``messages``.
    """
    column = "messages" if row.get("messages") or "conversations" not in row else "conversations"
    messages = with_earlier(row, read_messages(row, column))
    if wrappers == "think" and not whole:
        messages = [
            {**message, "content": with_think_tags(message["content"])}
            for message in messages
            if message["role"] != "system" or "<|begin_of_thought|>" not in message["content"]
        ]
    return _chat(messages, well_formed, whole)


@register_mapper("prompt_completion", "prompt", "completion")
def prompt_completion(
    row: dict[str, Any], well_formed: bool = False, whole: bool = False
) -> MappedRow:
    """Map TRL's ``prompt`` and ``completion``, texts or messages, joined into a conversation."""
    messages = read_messages(row, "prompt", "user") + read_messages(row, "completion", "assistant")
    return _chat(with_earlier(row, messages), well_formed, whole)


@register_mapper("preference", "chosen", "rejected")
def preference(row: dict[str, Any]) -> MappedRow:
    """Map TRL's preference pairs: ``chosen`` and ``rejected``, texts or messages.

    Optional columns are ``prompt`` and ``system``. Both sides may hold the whole conversation.
    """
    prompt = read_messages(row, "prompt", "user") if row.get("prompt") else []
    pair = []
    for column in ("chosen", "rejected"):
        answer = read_messages(row, column, "assistant")
        if len(answer) > 1:  # the whole conversation; the prompt may still have its system message
            texts = [message["content"].strip() for message in answer]
            asked = [message for message in prompt if message["role"] != "system"]
            if any(message["content"].strip() not in texts for message in asked):
                raise SkipRow(f"column {column!r} does not start with column 'prompt'")
            prompt = prompt[: answer[0]["role"] != "system" and len(prompt) - len(asked)]
        pair.append(_exchange(with_earlier(row, prompt + answer)))
    chosen, rejected = pair
    same = chosen["messages"] == rejected["messages"]
    if not same or chosen["response"] == rejected["response"]:
        raise SkipRow("chosen and rejected must be different answers to the same conversation")
    return {**chosen, "rejected": rejected["response"]}


def _chat(messages: list[Message], well_formed: bool, whole: bool) -> MappedRow:
    if whole:
        return {"turns": messages}
    if any("tool_calls" in message for message in messages):
        return {"turns": messages, "well_formed": well_formed}
    return {**_exchange(messages), "well_formed": well_formed}


def _exchange(messages: list[Message]) -> MappedRow:
    history, response = split_answer(messages)
    return {"question": last_question(history), "messages": history, "response": response}
