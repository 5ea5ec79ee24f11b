"""Tasks with a checker of their own: Countdown puzzles, reasoning-gym's tasks, programs with test cases."""

import json
import zlib
from typing import Any

from r1_recipes.data.mapped_row import MappedRow, ToolCall
from r1_recipes.data.mappers.base import Mapper, SkipRow, check_choice, check_template, optional_text, register_mapper, required_text
from r1_recipes.tasks.countdown import check, read_puzzle, search, steps
from r1_recipes.verification.scorers import check_task


@register_mapper("verifiable_code")
class VerifiableCode(Mapper):
    """open-r1/verifiable-coding-problems-python: statement and ``verification_info`` (language, test cases), for a reward that runs code.

    The decontaminated variants call the statement ``problem``. ``solution`` is the reference program, if there is one.
    """

    prompt_column: str = "problem_statement"
    columns = ("problem_statement", "verification_info")
    needs = (("problem_statement", "problem"), "verification_info")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        info = row.get("verification_info")
        if not isinstance(info, dict) or not info.get("test_cases"):
            raise SkipRow("column 'verification_info' has no test_cases")
        return {
            "question": required_text(row, self.prompt_column if self.prompt_column in row else "problem"),
            "solution": optional_text(row, "gold_standard_solution"),
            "verification_info": info,
        }


@register_mapper("environment")
class EnvironmentRow(Mapper):
    """A row for an environment: ``question``, ``environment`` (which one plays it), and whatever its ``reset`` takes."""

    columns = ("question", "environment")
    needs = ("question",)

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        # Source columns of this name do not go on by themselves; TRL routes by it.
        mapped: MappedRow = {
            "question": required_text(row, "question"),
            "environment": optional_text(row, "environment"),
        }
        if "solution" in row:
            mapped["solution"] = optional_text(row, "solution")
        return mapped


@register_mapper("countdown")
class Countdown(Mapper):
    """Jiayi-Pan/Countdown-Tasks-3to4 and the source ``countdown:``: ``nums``, ``target`` and, in the latter, a solution, ``expression``.

    SFT's reasoning is ``steps``, the solution's operations, one per line, or ``search``: tries, wrong ones rejected, up to the solution (of
    three numbers some hundred lines, of four many more).
    """

    template: str = (
        "Make {target} out of the numbers {numbers}. Use each of them exactly once, with +, -, *, / and brackets as needed. "
        "Answer with the expression alone."
    )
    array: bool = False  # ask for the numbers as NumPy prints an array: [44 19  5]
    reasoning: str = "steps"
    worked_share: float = 1.0  # of rows, the same ones every time, with that reasoning; the others answer a guess, usually wrong
    columns = ("nums", "target")

    def __post_init__(self) -> None:
        check_choice("reasoning", self.reasoning, ("steps", "search"))
        check_template(self.template, "{numbers}", "{target}")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        if (puzzle := read_puzzle(row.get("nums"), row.get("target"))) is None:
            raise SkipRow("columns 'nums' and 'target' hold no whole numbers from 0 and a whole target")
        numbers, expression = list(puzzle.numbers), optional_text(row, "expression")
        asked = str(numbers)
        if self.array:
            width = len(str(max(numbers)))
            asked = f"[{' '.join(f'{number:{width}}' for number in numbers)}]"
        question = self.template.replace("{numbers}", asked).replace("{target}", str(puzzle.target))
        mapped: MappedRow = {"question": question, "solution": expression, "scorer": puzzle.scorer, "task": "countdown"}
        if not expression:
            return mapped
        if not check(expression, *puzzle):
            raise SkipRow("column 'expression' does not make the target out of 'nums'")
        drawn = zlib.crc32(puzzle.scorer.encode())
        if drawn >= self.worked_share * 2**32:
            guess = str(numbers[0])
            for position, number in enumerate(numbers[1:]):
                guess += f" {'+-*'[(drawn >> 4 * position) % 3]} {number}"
            return {**mapped, "reasoning": f"Perhaps {guess} is {puzzle.target}.", "answer": guess}
        if self.reasoning == "steps":
            return {**mapped, "reasoning": "\n".join(steps(expression))}
        if (found := search(*puzzle)) is None:
            raise SkipRow("no steps in whole numbers from 0 make the target")
        return {**mapped, "reasoning": "\n".join(found[0]), "answer": found[1]}


@register_mapper("reasoning_gym")
class ReasoningGym(Mapper):
    """A task of reasoning-gym: ``question``, ``answer``, ``metadata``; the task's own scorer judges (column ``scorer``)."""

    columns = ("question", "answer", "metadata")

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        metadata = row.get("metadata")
        try:
            metadata = metadata if isinstance(metadata, dict) else json.loads(required_text(row, "metadata"))
            task = metadata["source_dataset"]
            check_task(task)
        except (TypeError, KeyError, json.JSONDecodeError, RecursionError) as error:
            raise SkipRow("column 'metadata' is not reasoning-gym's: JSON with source_dataset, the name of a task") from error
        except ValueError as error:
            raise SkipRow(str(error)) from error
        question = required_text(row, "question")
        entry = {"question": question, "answer": row.get("answer"), "metadata": metadata}
        scorer = json.dumps({"reasoning_gym": task, "entry": entry}, default=str)
        return {"question": question, "solution": optional_text(row, "answer"), "scorer": scorer}


@register_mapper("arithmetic")
class Arithmetic(ReasoningGym):
    """reasoning-gym's chain_sum and basic_arithmetic, with reasoning written out: a cold start needs no teacher.

    A share of the rows work the expression out, one operation per line. The others answer an estimate, usually wrong: a cold start on both
    shows the shape of an answer, and GRPO finds out what pays.
    """

    worked_share: float = 1.0  # the same rows every time
    tool: str | None = None  # ``calculator``: rows that work it out call it instead of writing the operations

    def __call__(self, row: dict[str, Any]) -> MappedRow:
        mapped = super().__call__(row)
        metadata = json.loads(mapped["scorer"])["entry"]["metadata"]
        expression = metadata["expression"]
        # Steps of the golden ratio: any run of rows holds close to this share of worked ones.
        if (metadata["source_index"] * 0.6180339887) % 1.0 >= self.worked_share:
            estimate = str(round(int(mapped["solution"]), -1))
            return {**mapped, "reasoning": f"{expression} is about {estimate}", "answer": estimate}
        if self.tool:
            call: ToolCall = {"name": self.tool, "arguments": {"expression": expression}, "result": mapped["solution"]}
            return {**mapped, "reasoning": f"The {self.tool} says {mapped['solution']}.", "calls": [call]}
        try:
            return {**mapped, "reasoning": "\n".join(steps(expression))}
        except ValueError as error:
            raise SkipRow(f"{expression!r} is not written out: {error}") from error
