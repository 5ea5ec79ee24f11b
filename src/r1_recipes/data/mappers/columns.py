"""Map rows with separate columns for question, reasoning and answer."""

from typing import Any

from r1_recipes.data.mappers.base import MappedRow, register_mapper, text
from r1_recipes.data.messages import as_prompt, read_messages


@register_mapper("prompt_solution", "prompt")
def prompt_solution(
    row: dict[str, Any],
    prompt_column: str = "prompt",
    solution_column: str = "solution",
    reasoning_column: str = "",
    whole: bool = False,
) -> MappedRow:
    """Map any dataset: the recipe names the columns.

    The prompt is a text or messages, all of which reach the model. The answer may be missing if no
    reward compares with it. ``whole``: the answer is the target of SFT as it is.
    """
    if isinstance(row.get(prompt_column), str | list | dict):
        mapped = as_prompt(row, read_messages(row, prompt_column, "user"))
    else:
        mapped = {"question": text(row, prompt_column)}
    if solution_column in row or whole:
        mapped["solution"] = text(row, solution_column, needed=whole)
    if whole:
        return {**mapped, "response": mapped["solution"], "well_formed": False}
    if reasoning_column:  # a row without it still has a question for GRPO
        mapped["reasoning"] = text(row, reasoning_column, needed=False)
    return mapped


@register_mapper("alpaca", "instruction|query", "output|response")
def alpaca(row: dict[str, Any]) -> MappedRow:
    """Map Alpaca's rows: the task in ``instruction``, what it is about in ``input``, ``output``.

    Dolly's ``context`` and ``response``, and ms-swift's ``query``, are the same by other names.
    Columns ``system`` and ``history`` come before the question. The output is the reference
    answer, and the target of SFT as it is.
    """
    names = (("instruction", "query"), ("input", "context"), ("output", "response"))
    task, about, output = (
        text(row, first if first in row else other, needed=first == "instruction")
        for first, other in names
    )
    question = f"{task}\n\n{about}" if about else task
    mapped = as_prompt(row, [{"role": "user", "content": question}])
    return {**mapped, "solution": output, "response": output, "well_formed": False}


@register_mapper("reasoning_columns", "Question", "Response", "Complex_CoT")
def reasoning_columns(
    row: dict[str, Any],
    question_column: str = "Question",
    reasoning_column: str = "Complex_CoT",
    answer_column: str = "Response",
) -> MappedRow:
    """Map question, reasoning and answer. The answer is also the reference answer.

    The default columns are those of FreedomIntelligence/medical-o1-reasoning-SFT.
    """
    return {
        "question": text(row, question_column),
        "solution": text(row, answer_column),
        "reasoning": text(row, reasoning_column, needed=False),
    }


@register_mapper("generated", "question", "pass_rate", "response|solution")
def generated(row: dict[str, Any], well_formed: bool = True) -> MappedRow:
    """Map the output of ``r1_recipes.generate``: ``question``, ``solution``, ``pass_rate``, ….

    The column ``response`` is absent in prompt-only data. ``earlier_messages`` are the turns before
    the question. ``well_formed``: whether the response must be in the recipe's response format.
    """
    mapped: MappedRow = {"question": text(row, "question")}
    if row.get("earlier_messages"):
        earlier = read_messages(row, "earlier_messages")
        mapped["messages"] = [*earlier, {"role": "user", "content": mapped["question"]}]
    mapped["solution"] = text(row, "solution", needed=False)
    if "task" in row:
        mapped["task"] = text(row, "task", needed=False)
    if row.get("nums") is not None and row.get("target") is not None:  # of a Countdown puzzle
        mapped |= {"nums": row["nums"], "target": row["target"]}
    if "response" in row:
        mapped["response"] = row["response"] or ""
    return {**mapped, "well_formed": well_formed}
