"""Describe what a mapper makes of one row of a source."""

from typing import Any, TypedDict

Message = dict[str, Any]  # role, content, and what a call of a tool adds


class ToolCall(TypedDict):
    """One call of a tool in a worked answer, and the tool's result."""

    name: str
    arguments: dict[str, Any]
    result: str


class MappedRow(TypedDict, total=False):
    """What a mapper returns: a ``question`` or whole ``turns``, and whatever else the source has.

    Your own mapper may add any other key. The key becomes a column, which the rewards see.
    """

    question: str
    solution: str  # the reference answer; rewards compare with it
    reasoning: str  # with the answer: the SFT target, written in the recipe's response format
    answer: str  # what goes with the reasoning, if that is not the solution
    calls: list[ToolCall]  # calls of tools between the question and the SFT target
    response: str  # a whole assistant message: the SFT target as it is; "": none
    well_formed: bool  # whether the response must be in the recipe's response format
    rejected: str  # the worse response of a preference pair
    messages: list[Message]  # the messages before the response; the last one asks
    turns: list[Message]  # a whole conversation for SFT, in place of a question
    empty_system: bool  # with turns: put an empty system message first
    task: str  # which rewards score the row (task_rewards)
    scorer: str  # how the task's own checker scores the row
    environment: str  # which environment plays the row
    verification_info: dict[str, Any]  # test cases of a program
    image: Any  # a picture, for a vision-language model


def fault_of(mapped: Any) -> str | None:
    """Describe what a mapper returned if it is not a :class:`MappedRow`.

    Args:
        mapped: What the mapper returned.

    Returns:
        A text for an error message, or ``None`` if the row is valid.
    """
    if not isinstance(mapped, dict):
        return f"{mapped!r:.80}"
    if "turns" in mapped or isinstance(mapped.get("question"), str):
        return None
    if "question" in mapped:
        return f"question {mapped['question']!r:.60}"
    return f"one with the keys {', '.join(map(repr, mapped)) or 'none'}"
