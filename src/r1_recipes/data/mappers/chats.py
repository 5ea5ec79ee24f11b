"""Conversations whose last assistant's turn is the target."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.data.mappers.base import Mapper, SkipRow, as_text, register_mapper

_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
_THOUGHT = ("<|begin_of_thought|>", "<|end_of_thought|>")
_SOLUTION = ("<|begin_of_solution|>", "<|end_of_solution|>")


@register_mapper("conversations")
@dataclass(frozen=True)
class Conversations(Mapper):
    """Chats: ``messages`` (role, content) or ``conversations`` (from, value), with an optional column ``system``.

    The last assistant's turn is the response, the turns before it are its history, what follows it is left out. ``human`` is ``user``,
    ``gpt`` is ``assistant``; after an optional system message the two must alternate. The wrappers of Sky-T1, OpenThoughts and
    Bespoke-Stratos (``<|begin_of_thought|>…<|begin_of_solution|>…``) become ``<think>``, and a system message that asks for them goes,
    unless ``wrappers`` is ``keep``.

    Attributes:
        well_formed: the response must be one reasoning block and one answer in the recipe's response format; false: general chat data.
        messages_column: column of the turns; ``None``: ``messages`` where it is there and filled, else ``conversations``.
        wrappers: ``think``, or ``keep`` for response format ``thought_solution``.

    Raises:
        RecipeError: ``wrappers`` is neither.
    """

    well_formed: bool = True
    messages_column: str | None = None
    wrappers: str = "think"
    columns = ("messages",)
    optional = ("conversations", "system")
    hub = (
        ("open-r1/Mixture-of-Thoughts", "all"),
        ("NovaSky-AI/Sky-T1_data_17k", None),
        ("open-thoughts/OpenThoughts-114k", "default"),
        ("bespokelabs/Bespoke-Stratos-17k", None),
    )
    examples = (
        {
            "messages": [
                {"role": "user", "content": "What is 6*7?"},
                {"role": "assistant", "content": "<think>\n6*7 is 42.\n</think>\n\nIt is $\\boxed{42}$."},
            ],
            "num_tokens": 24,
            "source": "demo",
        },
        {
            "system": "Reason, then answer.",
            "conversations": [
                {"from": "user", "value": "What is 8*9?"},
                {
                    "from": "assistant",
                    "value": "<|begin_of_thought|>\n\n8*9 is 72.\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\nIt is \\boxed{72}."
                    "\n\n<|end_of_solution|>",
                },
            ],
        },
        {
            "conversations": [
                {"from": "human", "value": "What is 2+3?"},
                {"from": "gpt", "value": "<think>\n2+3 is 5.\n</think>\n<answer>\n5\n</answer>"},
                {"from": "human", "value": "And twice that?"},
                {"from": "gpt", "value": "<think>\nTwice 5 is 10.\n</think>\n<answer>\n10\n</answer>"},
            ],
        },
    )

    def __post_init__(self) -> None:
        if self.wrappers not in ("think", "keep"):
            raise RecipeError("mapper_config: " + unknown_name("wrappers", self.wrappers, ("think", "keep")))

    @classmethod
    def fit(cls, columns: Collection[str]) -> int:
        # Beside these, R1-Distill-SFT's "messages" are what was there before its reasoning was written.
        if "reannotated_messages" in columns:
            return 0
        # One, however many: NuminaMath has messages too, and a mapper that knows a set's other columns knows more of it.
        return int("messages" in columns or "conversations" in columns)

    def missing(self, columns: Collection[str]) -> list[str]:
        if self.messages_column:
            return [] if self.messages_column in columns else [self.messages_column]
        return [] if {"messages", "conversations"} & set(columns) else ["messages (or conversations)"]

    def example_rows(self) -> list[dict[str, Any]]:
        if not self.messages_column:
            return super().example_rows()
        return [{self.messages_column: row["messages"]} for row in self.examples if "messages" in row]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        names = [self.messages_column] if self.messages_column else [name for name in ("messages", "conversations") if name in row]
        column = next((name for name in names if row[name]), names[0])
        conversation = read_conversation(read_turns(row[column], column), row.get("system"), keep_wrappers=self.wrappers == "keep")
        return {**conversation, "well_formed": self.well_formed}


def read_turns(value: Any, column: str) -> list[dict[str, str]]:
    """A column's turns as ``{"role": "system" | "user" | "assistant", "content": text}``.

    Args:
        value: a list of mappings with role and content, or from and value; or one mapping of such lists, as Arrow may hold it.
        column: named in the reason.

    Raises:
        SkipRow: it is empty, or not that.
    """
    if isinstance(value, dict):
        lists = {key: items for key, items in value.items() if isinstance(items, list)}
        if len({len(items) for items in lists.values()}) > 1:
            raise SkipRow(f"column {column!r} holds roles and contents of different number")
        value = [dict(zip(lists, items, strict=True)) for items in zip(*lists.values(), strict=True)]
    if value is None or value == []:
        raise SkipRow(f"column {column!r} is empty")
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise SkipRow(f"column {column!r} is no list of turns")
    turns = []
    for turn in value:
        role = turn.get("from") if turn.get("role") is None else turn["role"]
        content = turn.get("value") if turn.get("content") is None else turn["content"]
        role = _ROLES.get(role.strip().lower()) if isinstance(role, str) else None
        if role is None:
            raise SkipRow("a turn's role is none of system, user (human), assistant (gpt)")
        if not isinstance(content, str):
            raise SkipRow("a turn's content is not text")
        turns.append({"role": role, "content": content})
    return turns


def last_question(value: Any, column: str) -> str:
    """A prompt column's question: the text itself, or the last user's turn.

    Raises:
        SkipRow: as :func:`read_turns`, or it is blank.
    """
    text = as_text(value, column) if isinstance(value, bytes | int | float) and not isinstance(value, bool) else value
    turns = [{"role": "user", "content": text}] if isinstance(text, str) else read_turns(text, column)
    question = next((turn["content"] for turn in reversed(turns) if turn["role"] == "user"), "")
    if not question.strip():
        raise SkipRow(f"column {column!r} is empty")
    return question


def read_conversation(turns: list[dict[str, str]], system: Any = None, *, keep_wrappers: bool = False) -> dict[str, Any]:
    """``question``, ``response`` and ``messages`` of a conversation whose last assistant's turn is the response.

    Args:
        turns: as :func:`read_turns` gives them.
        system: the system message, where the turns have none of their own.
        keep_wrappers: leave ``<|begin_of_thought|>`` and the like as they are, and the system message that asks for them.

    Raises:
        SkipRow: no assistant's turn, an empty turn, or turns that do not alternate.
    """
    if turns[0]["role"] == "system":
        system, turns = turns[0]["content"], turns[1:]
    answers = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not answers:
        raise SkipRow("no assistant's turn")
    turns = turns[: answers[-1] + 1]
    if not all(turn["content"].strip() for turn in turns):
        raise SkipRow("a turn is empty")
    roles = [turn["role"] for turn in turns]
    if roles != ["user", "assistant"] * (len(turns) // 2):
        raise SkipRow("the turns do not alternate between user and assistant")
    messages = [{**turn, "content": turn["content"] if keep_wrappers else _with_think_tags(turn["content"])} for turn in turns]
    response = messages.pop()["content"]
    question = messages[-1]["content"].strip()
    # What asks for wrappers that are no longer there would contradict the response.
    if isinstance(system, str) and system.strip() and (keep_wrappers or _THOUGHT[0] not in system):
        messages.insert(0, {"role": "system", "content": system})
    return {"question": question, "response": response, "messages": messages}


def _with_think_tags(text: str) -> str:
    """Thought and solution wrappers as ``<think>``; any other text, broken wrappers among them, as it is."""
    before, opened, rest = text.partition(_THOUGHT[0])
    thought, closed, rest = rest.partition(_THOUGHT[1])
    between, _, solution = rest.rpartition(_SOLUTION[0])
    solution, _, after = solution.partition(_SOLUTION[1])
    if not (opened and closed) or before.strip() or between.strip() or after.strip():
        return text
    return f"<think>\n{thought.strip()}\n</think>\n{solution.strip()}"
