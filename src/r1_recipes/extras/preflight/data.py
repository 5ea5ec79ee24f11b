"""Check the data: dropped rows, lengths, and which reference answers the rewards can read."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from statistics import median
from typing import Any

from r1_recipes import verification
from r1_recipes.common.messages import clip, words
from r1_recipes.data.load import question_key
from r1_recipes.extras.preflight.findings import (
    ERROR,
    OK,
    WARNING,
    Report,
    evenly_spaced,
    graded,
    join_names,
)
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.rewards import READS_GOLD, reward_parameters
from r1_recipes.rewards.call import readable_golds, right_answer
from r1_recipes.training.rows import load_splits

# Tokens are counted in a sample of evenly spaced rows, and in the rows with most characters.
_MEASURED, _LONGEST = 2000, 200
# A sample of reference answers, evenly spaced. Reading an expression takes milliseconds.
_SOLUTIONS = 20_000
# A comma may be a decimal comma or separate a list. A point may be a decimal point or separate
# thousands. A unit may follow.
_AMBIGUOUS_NUMBER = re.compile(
    r"[-+]?(?:\d+,(?!\d{3}(?!\d))\d+|[1-9]\d{0,2}(?:\.\d{3})+)(?:\s*[^\d\s,.;()]+)*"
)


def load(report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: Any) -> Any:
    """Return the training rows of a run. Show three as the model reads them, each with its answer,
    and report the dropped rows.
    """
    with report.refusals("data.unusable", essential=True):
        splits = load_splits(recipe, fmt, tokenizer)
        loaded, rows = splits.train_report, splits.train
        for index in evenly_spaced(len(rows), 3):
            _show_row(report, tokenizer, index, rows[index])
    message = f"{loaded}; test split: {splits.test_report or 'not read'}"
    report.add(WARNING if 2 * loaded.dropped.total() > loaded.read else OK, "data.rows", message)
    columns = ", ".join(loaded.unused) or "none"
    report.add(OK, "data.columns", f"columns that no prompt and no target holds: {columns}")
    if splits.overlap:
        message = f"training drops {splits.overlap} rows that have a question of the test split"
        report.add(WARNING, "data.overlap", message)
    return rows


def _show_row(report: Report, tokenizer: Any, index: int, row: dict[str, Any]) -> None:
    if "completion" in row:
        title = f"Row {index}, prompt and target as the model reads them:"
        text = tokenizer.apply_chat_template(row["prompt"] + row["completion"], tokenize=False)
    else:
        gold = clip(str(row.get("solution", "none")), 200)
        title = f"Row {index}, as the model reads it. Its reference answer: {gold}"
        text = tokenizer.apply_chat_template(
            row["prompt"], tokenize=False, add_generation_prompt=True
        )
    report.show("rows", title, text)


def check_lengths(
    report: Report,
    recipe: Recipe,
    rows: Any,
    tokenizer: Any,
    window: int | None,
) -> None:
    """Compare the lengths of rows with the model's window, and of SFT examples with max_length."""
    training, grpo = recipe.training, recipe.method == "grpo"
    with report.refusals("contract.template", essential=True):
        lengths = _measured(grpo, rows, tokenizer)
    count, longest = len(lengths), max(lengths.values())
    message = (
        f"a row has {median(lengths.values()):.0f} tokens (median), the longest {longest}; the "
        f"model's window is {window or 'not known'}"
    )
    room = (window or sys.maxsize) - (training.max_completion_length if grpo else 0)
    too_long = [index for index, length in lengths.items() if length > room]
    level = WARNING if too_long else OK
    if too_long:
        message += (
            f". {len(too_long)} of {count} measured rows may exceed it, with their completion "
            f"(rows {join_names(too_long)}). Fix: {'max_prompt_tokens' if grpo else 'max_length'}: "
            f"{max(1, room)}"
        )
    # A prompt needs room for a token of the completion.
    report.add(ERROR if longest + grpo > (window or longest + 1) else level, "data.window", message)
    if not grpo and training.max_length:
        cut = sum(length > training.max_length for length in lengths.values())
        message = f"max_length {training.max_length} cuts {cut} of {count} measured examples"
        if cut:
            message += f", so the model does not learn to end them. Fix: max_length: {longest}"
        report.add(graded(cut / count, error_at=0.5), "data.max_length", message)


def _measured(grpo: bool, rows: Any, tokenizer: Any) -> dict[int, int]:
    """Return the tokens of a sample of prompts (GRPO) or examples (SFT), by row."""
    render = partial(tokenizer.apply_chat_template, tokenize=False)
    sizes = [len(words(prompt)) for prompt in rows["prompt"]]
    longest = sorted(range(len(rows)), key=lambda index: -sizes[index])[:_LONGEST]
    picked = sorted({*evenly_spaced(len(rows), _MEASURED), *longest})
    texts = [
        render(row["prompt"], add_generation_prompt=True)
        if grpo
        else render(row["prompt"] + row["completion"])
        for row in rows.select(picked)
    ]
    tokens = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return dict(zip(picked, map(len, tokens), strict=True))


def check_golds(report: Report, rewards: Mapping[str, Callable], rows: Any, locale: str) -> None:
    """Report reference answers that the rewards cannot read, or may read in a surprising way."""
    if "solution" not in rows.column_names:
        return
    # With a picture, an environment or a puzzle, equal questions may have different answers.
    if not {"image", "environment", "nums"}.intersection(rows.column_names):
        problem = _conflicting_solutions(map(question_key, rows["prompt"]), rows["solution"])
        if problem:
            report.add(WARNING, "data.several_golds", f"{problem}. Fix: keep only the correct row")
    picked = evenly_spaced(len(rows), _SOLUTIONS)
    sample = rows.select(picked)
    for name in [name for name in rewards if name in READS_GOLD]:
        readable = readable_golds(name, rewards[name], sample)
        _check_readable(report, name, {picked[at]: read for at, read in readable.items()}, rows)
    if locale == "en" and "number_locale" in reward_parameters(rewards):
        solutions = [str(solution).strip() for solution in sample["solution"]]
        _check_locale(report, [text for text in solutions if _AMBIGUOUS_NUMBER.fullmatch(text)])


def _conflicting_solutions(questions: Iterable[str], solutions: Iterable[Any]) -> str:
    """Return a sentence about a question with two different reference answers, or ""."""
    first: dict[str, str | None] = {}
    for question, solution in zip(questions, map(right_answer, solutions), strict=True):
        known = first.setdefault(question, solution)
        differs = known and solution and known != solution
        if differs and verification.grade([known], [solution]) == [False]:
            return (
                f"questions have several reference answers: {question[:120]!r} has {known!r:.80} "
                f"and {solution!r:.80}"
            )
    return ""


def _check_readable(report: Report, name: str, readable: dict[int, bool], rows: Any) -> None:
    """Report the reference answers that a reward cannot read, and so never rewards."""
    unread = [index for index, read in readable.items() if not read]
    message = f"{name} can read all {len(readable)} reference answers"
    if unread:
        first = clip(str(rows[unread[0]]["solution"]), 80)
        message = (
            f"{name} cannot read {len(unread)} of {len(readable)} reference answers (rows "
            f"{join_names(unread)} of the rows kept; the first is {first!r}), so these rows get no "
            "reward. Fix: name a column with short final answers in solution_column (or the "
            "mapper), or drop these rows"
        )
    level = graded(len(unread) / max(1, len(readable)), error_at=0.5)
    report.add(level, "data.golds", message)


def _check_locale(report: Report, ambiguous: list[str]) -> None:
    """Report reference answers that are different numbers in English and in German."""
    if ambiguous:
        message = (
            f"{len(ambiguous)} reference answers depend on the country (the first is "
            f"{ambiguous[0]!r}). By default, 1.250 is 1.25, and 3,5 is the list 3, 5. Fix, for "
            "German: number_locale: de, which reads 1250 and 3.5"
        )
        level = WARNING if any("," in text for text in ambiguous) else OK
        report.add(level, "data.number_locale", message)
