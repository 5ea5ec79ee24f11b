"""Check the data: dropped rows, lengths, and which reference answers the rewards can read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import clip, words
from r1_recipes.data.load import drop_overlap, load_dataset, question_key
from r1_recipes.data.sources import split_fix
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
from r1_recipes.rewards.accuracy import AccuracyReward
from r1_recipes.rewards.call import conflicting_solutions
from r1_recipes.rewards.registry import declared
from r1_recipes.rewards.trial import readable_golds
from r1_recipes.training.start import load_splits, nothing_held_out
from r1_recipes.verification.reading import Gold, read_gold

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import Series
    from transformers import PreTrainedTokenizerBase

# Tokens are counted in a sample of evenly spaced rows, and in the rows with most characters.
_MEASURED = 2000
_LONGEST = 200
# A sample of reference answers, evenly spaced. Reading an expression takes milliseconds.
_SOLUTIONS = 20_000


def load(
    report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase
) -> Dataset:
    """Return the training rows of a run, and report the dropped rows."""
    with report.refusals("data.unusable", essential=True):
        splits = load_splits(recipe, fmt, tokenizer)
    loaded, rows = splits.train_report, splits.train
    message = str(loaded)
    if splits.test_report:
        message += f"; test split: {splits.test_report}"
    report.add(WARNING if 2 * loaded.dropped.total() > loaded.read else OK, "data.rows", message)
    if loaded.unused:
        message = f"no prompt and no target holds the columns {', '.join(loaded.unused)}"
        report.add(OK, "data.columns", message)
    if splits.overlap:
        message = (
            f"{splits.overlap} training rows have a question of the test split. Training drops "
            f"them and keeps {len(rows)} rows"
        )
        report.add(WARNING, "data.overlap", message)
    problem = nothing_held_out(recipe, loaded.read)
    if problem:
        report.add(WARNING, "data.held_out", problem)
    elif splits.test is None:
        _check_held_out(report, recipe, fmt, tokenizer, rows)
    return rows


def _check_held_out(
    report: Report,
    recipe: Recipe,
    fmt: ResponseFormat,
    tokenizer: PreTrainedTokenizerBase,
    rows: Dataset,
) -> None:
    """Compare the test split that a recipe names for ``evaluate`` with the training rows."""
    script = recipe.script
    named = script.dataset_name and "dataset_test_split" in recipe.settings
    if script.smoke or not named or script.dataset_test_split == script.dataset_train_split:
        return
    try:
        held_out = load_dataset(script, fmt, recipe.method, split="test", tokenizer=tokenizer)[0]
    except RecipeError as error:
        report.add(WARNING, "data.test_split", f"evaluate would fail: {error}")
        return
    shared = drop_overlap(held_out, rows)[1]
    if 10 * shared > len(held_out):
        message = (
            f"{shared} of {len(held_out)} rows of dataset_test_split "
            f"{script.dataset_test_split!r} are also training questions, so evaluate would not "
            f"measure held-out accuracy. Fix: use disjoint splits ({split_fix(len(rows))}), and "
            f"remove repeated questions"
        )
        report.add(WARNING, "data.overlap", message)


def check_lengths(
    report: Report,
    recipe: Recipe,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    window: int | None,
) -> None:
    """Compare the lengths of rows with the model's window, and show three prompts."""
    training, grpo = recipe.training, recipe.method == "grpo"
    rendered = partial(tokenizer.apply_chat_template, tokenize=False)
    with report.refusals("contract.template", essential=True):
        for index in evenly_spaced(len(rows), 3):
            _show_row(report, index, rows[index], rendered)
        lengths = _measured(grpo, rows, tokenizer, rendered)
    count, longest = len(lengths), lengths.max()
    message = (
        f"a row has {lengths.median():.0f} tokens (median), the longest {longest}; the model's "
        f"window is {window or 'not known'}"
    )
    key, condition, room = "max_length", "", window or sys.maxsize
    if grpo:
        room -= training.max_completion_length
        key = "max_prompt_tokens"
        condition = f"with max_completion_length {training.max_completion_length} "
    too_long = lengths.index[lengths > room]
    level = OK
    if len(too_long):
        level = WARNING
        message += (
            f". {len(too_long)} of {count} measured rows {condition}may exceed the window "
            f"(rows {join_names(too_long)}). Fix: {key}: {max(1, room)}"
        )
    if window and longest + grpo > window:  # A prompt needs room for a token of the completion.
        level = ERROR
    report.add(level, "data.window", message)
    if not grpo and training.max_length:
        share = (lengths > training.max_length).mean()
        message = (
            f"max_length {training.max_length} cuts {round(share * count)} of {count} measured "
            f"examples ({share:.0%})"
        )
        if share:
            message += f", so the model does not learn to end them. Fix: max_length: {longest}"
        report.add(graded(share, error_at=0.5), "data.max_length", message)


def _show_row(report: Report, index: int, row: dict[str, Any], rendered: Callable) -> None:
    """Show a row as the model reads it, with what its answer is compared with."""
    if "completion" in row:
        example = rendered(row["prompt"] + row["completion"])
        report.show("rows", f"Row {index}, prompt and target as the model reads them:", example)
    else:
        gold = clip(str(row.get("solution", "none")), 200)
        prompt = rendered(row["prompt"], add_generation_prompt=True)
        title = f"Row {index}, as the model reads it. Its reference answer: {gold}"
        report.show("rows", title, prompt)


def _measured(grpo: bool, rows: Dataset, tokenizer: Any, rendered: Callable) -> Series:
    """Return the tokens of a sample of prompts (GRPO) or examples (SFT), by row."""
    from pandas import Series

    sizes = [len(words(prompt)) for prompt in rows["prompt"]]
    longest = sorted(range(len(rows)), key=lambda index: -sizes[index])
    picked = sorted({*evenly_spaced(len(rows), _MEASURED), *longest[:_LONGEST]})
    sample = rows.select(picked)
    if grpo:
        texts = [rendered(prompt, add_generation_prompt=True) for prompt in sample["prompt"]]
    else:
        examples = zip(sample["prompt"], sample["completion"], strict=True)
        texts = [rendered(prompt + completion) for prompt, completion in examples]
    tokens = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return Series(list(map(len, tokens)), index=picked)


# A comma may be a decimal comma or separate a list. A point may be a decimal point or separate
# thousands. A unit may follow.
_AMBIGUOUS_NUMBER = re.compile(
    r"[-+]?(?:\d+,(?!\d{3}(?!\d))\d+|[1-9]\d{0,2}(?:\.\d{3})+)(?:\s*[^\d\s,.;()]+)*"
)


# How the reward accuracy reads reference answers other than numbers: the code, the level, the
# matching reference answers, and the message.
_READINGS: tuple[tuple[str, str, Callable[[Gold], object], str], ...] = (
    (
        "data.words",
        WARNING,
        lambda gold: gold.words,
        "are words, or mathematics with words beside it ({first}), so only the same text is right. "
        "Fix: use answer_match, which can ask a judge model, or drop these rows",
    ),
)


def check_golds(report: Report, rewards: Mapping[str, Callable], rows: Dataset) -> None:
    """Report reference answers that the rewards cannot read, or may read in a surprising way."""
    if "solution" not in rows.column_names:
        return
    # With a picture, an environment or a puzzle, equal questions may have different answers.
    if not {"image", "environment", "nums"}.intersection(rows.column_names):
        problem = conflicting_solutions(map(question_key, rows["prompt"]), rows["solution"])
        if problem:
            report.add(WARNING, "data.several_golds", f"{problem}. Fix: keep only the correct row")
    picked = evenly_spaced(len(rows), _SOLUTIONS)
    if not _check_readable(report, rewards, rows, picked):
        return
    solutions = {index: str(rows[index]["solution"]).strip() for index in picked}
    functions = [getattr(reward, "reward", reward) for reward in rewards.values()]
    if any(isinstance(function, AccuracyReward) for function in functions):
        _check_readings(report, solutions)
    if any(getattr(reward, "number_locale", None) == "en" for reward in rewards.values()):
        _check_locale(report, solutions)


def _check_readable(
    report: Report,
    rewards: Mapping[str, Callable],
    rows: Dataset,
    picked: Sequence[int],
) -> bool:
    """Report reference answers that cannot be read. Return False if no reward uses them."""
    judges = [name for name, reward in rewards.items() if declared(reward, "reads_gold")]
    sample = rows.select(picked)
    readable: dict[int, bool] = {}
    for name in judges:
        for position, read in readable_golds(name, rewards[name], sample).items():
            index = picked[position]
            readable[index] = readable.get(index, True) and read
    if not readable:
        return False
    unread = [index for index, read in readable.items() if not read]
    share = len(unread) / len(readable)
    names = " and ".join(judges)
    message = f"{names} can read all {len(readable)} reference answers"
    if unread:
        first = clip(str(rows[unread[0]]["solution"]), 80)
        message = (
            f"{names} cannot read {len(unread)} of {len(readable)} reference answers ({share:.0%}; "
            f"rows {join_names(unread)} of the rows kept; the first is {first!r}), so these rows "
            "get no reward. Fix: name a column with short final answers in solution_column (or the "
            "mapper), or drop these rows"
        )
    report.add(graded(share, error_at=0.5), "data.golds", message)
    return True


def _check_readings(report: Report, solutions: Mapping[int, str]) -> None:
    """Report reference answers that accuracy does not read as a number."""
    parsed = {index: read_gold(solution) for index, solution in solutions.items()}
    for code, level, applies, meaning in _READINGS:
        matching = [index for index, gold in parsed.items() if gold and applies(gold)]
        if matching:
            example = clip(solutions[matching[0]], 80)
            first = f"rows {join_names(matching)}; the first is {example!r}"
            count = f"{len(matching)} of {len(solutions)} reference answers"
            report.add(level, code, f"{count} {meaning.format(first=first)}")


def _check_locale(report: Report, solutions: Mapping[int, str]) -> None:
    """Report reference answers that are different numbers in English and in German."""
    ambiguous = [index for index, text in solutions.items() if _AMBIGUOUS_NUMBER.fullmatch(text)]
    if not ambiguous:
        return
    message = (
        f"{len(ambiguous)} of {len(solutions)} reference answers depend on the country (rows "
        f"{join_names(ambiguous)}; the first is {solutions[ambiguous[0]]!r}). By default, "
        "1.250 is 1.25, and 3,5 is the list 3, 5. Fix, for German: number_locale: de, which reads "
        "1250 and 3.5"
    )
    commas = any("," in solutions[index] for index in ambiguous)
    report.add(WARNING if commas else OK, "data.number_locale", message)
