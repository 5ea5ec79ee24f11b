"""The data: what is kept, how long rows are, which golds can be judged by, and prompts as the model
sees them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import clip, words
from r1_recipes.data.load import drop_overlap, load_dataset, question_key
from r1_recipes.data.sources import split_fix
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report, graded, listed, spread
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.rewards.accuracy import AccuracyReward
from r1_recipes.rewards.call import several_golds
from r1_recipes.rewards.registry import declared
from r1_recipes.rewards.trial import readable_golds
from r1_recipes.training.start import load_splits, nothing_held_out
from r1_recipes.verification.gold import Gold, read_gold

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

# Rows whose tokens are counted: these many, evenly spread, and the longest by characters.
_MEASURED = 2000
_LONGEST = 200
# Golds that are read, evenly spread: numbers take no time, an expression milliseconds.
_GOLDS = 20_000
_FAILING = (0.5, 0.01)  # shares of rows on which a mapper fails: an error, a warning


def load(
    report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase
) -> Dataset:
    """Return the training rows as a run has them; what was dropped, or why there are none, is in
    the report.
    """
    with report.refusals("data.unusable", essential=True):
        splits = load_splits(recipe, fmt, tokenizer)
    loaded, rows = splits.train_report, splits.train
    told = f"{loaded}; test split: {splits.test_report}" if splits.test_report else str(loaded)
    report.add(WARNING if 2 * loaded.dropped.total() > loaded.read else OK, "data.rows", told)
    if loaded.failed:
        share = loaded.failed / loaded.read
        reason, row = next(
            (text, row) for text, row in loaded.first_index.items() if "fails with" in text
        )
        told = (
            f"the mapper fails on {loaded.failed} of {loaded.read} rows ({share:.1%}), which are "
            f"left out; row {row}: {reason}"
        )
        fix = "Fix: mend it, or raise SkipRow('why') for a row that cannot be used"
        report.add(
            graded(share, vain=_FAILING[0], doubtful=_FAILING[1]), "data.mapper", f"{told}. {fix}"
        )
    if splits.overlap:
        told = (
            f"{splits.overlap} training rows ask what the test split asks, and training leaves "
            f"them out: {len(rows)} are left"
        )
        report.add(WARNING, "data.overlap", told)
    if doubt := nothing_held_out(recipe, loaded.read):
        report.add(WARNING, "data.held_out", doubt)
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
    named = (
        script.dataset_name
        and "dataset_test_split" in recipe.settings
        and script.dataset_test_split != script.dataset_train_split
    )
    if script.smoke or not named:
        return
    try:
        held_out = load_dataset(script, fmt, recipe.method, split="test", tokenizer=tokenizer)[0]
    except RecipeError as error:
        report.add(WARNING, "data.test_split", f"evaluate would fail: {error}")
        return
    shared = drop_overlap(held_out, rows)[1]
    if 10 * shared > len(held_out):
        told = (
            f"{shared} of {len(held_out)} rows of dataset_test_split "
            f"{script.dataset_test_split!r} ask what a training row asks"
        )
        fix = f"splits that share no row ({split_fix(len(rows))}), and no question twice"
        report.add(
            WARNING,
            "data.overlap",
            f"{told}, so evaluate would judge on rows that were trained on. Fix: {fix}",
        )


def check_lengths(
    report: Report,
    recipe: Recipe,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    window: int | None,
) -> None:
    """Compare lengths with the model's window, and show three prompts."""
    from pandas import Series

    training, grpo = recipe.training, recipe.method == "grpo"
    sizes = [len(words(row["prompt"])) for row in rows.select_columns("prompt")]
    longest = sorted(range(len(rows)), key=lambda index: -sizes[index])[:_LONGEST]
    picked = sorted({*spread(len(rows), _MEASURED), *longest})
    rendered = partial(tokenizer.apply_chat_template, tokenize=False)
    with report.refusals("contract.template", essential=True):
        for index in spread(len(rows), 3):
            prompt = rendered(rows[index]["prompt"], add_generation_prompt=True)
            report.show("data", f"Prompt of row {index}, as the model sees it:", prompt)
        sample = rows.select(picked).select_columns(
            ["prompt"] if grpo else ["prompt", "completion"]
        )
        texts = [
            rendered(
                row["prompt"] if grpo else row["prompt"] + row["completion"],
                add_generation_prompt=grpo,
            )
            for row in sample
        ]
    lengths = Series(
        [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]], index=picked
    )
    said = (
        f"a row has {lengths.median():.0f} tokens (median), the longest {lengths.max()}; the "
        f"model's window is {window or 'not known'}"
    )
    room, space = training.max_completion_length if grpo else 0, window or sys.maxsize
    tight = lengths.index[lengths + room > space]
    if len(tight):
        said += (
            f": {len(tight)} of {len(lengths)} measured "
            f"{f'with max_completion_length {room} can ' if grpo else ''}run over it (rows "
        )
        said += (
            f"{listed(tight)}): set "
            f"{f'max_prompt_tokens: {max(1, space - room)}' if grpo else f'max_length: {space}'}"
        )
    report.add(
        ERROR if lengths.max() + min(room, 1) > space else WARNING if len(tight) else OK,
        "data.window",
        said,
    )
    if not grpo and training.max_length:
        share = (lengths > training.max_length).mean()
        said = (
            f"max_length {training.max_length} cuts {round(share * len(lengths))} of "
            f"{len(lengths)} measured examples ({share:.0%})"
        )
        if share:
            said += (
                f", which then teach no end; set max_length: {lengths.max()}, or drop long ones "
                f"with max_solution_tokens"
            )
        report.add(graded(share, vain=0.5), "data.max_length", said)


# A decimal comma or a list; a thousands point or a decimal. A unit may follow.
_EITHER = re.compile(
    r"[-+]?(?:\d+,(?!\d{3}(?!\d))\d+|[1-9]\d{0,2}(?:\.\d{3})+)(?:\s*[^\d\s,.;()]+)*"
)


# What a reader of golds should know, for the reward accuracy: key, level, which golds, what is said
# of them.
_READINGS: tuple[tuple[str, str, Callable[[Gold], object], str], ...] = (
    (
        "data.words",
        WARNING,
        lambda gold: gold.words and not gold.letter and not gold.letters and not gold.only_text,
        "are words or dates ({first}), which accuracy compares as text; answer_match may ask "
        "a judge",
    ),
    (
        "data.only_text",
        WARNING,
        lambda gold: gold.only_text,
        "are mathematics with words that are no name and no unit ({first}): only the same "
        "text is right; drop these rows, or shorten them",
    ),
    (
        "data.left_out",
        OK,
        lambda gold: gold.left_out,
        "are read without the words beside their numbers or a condition ({first})",
    ),
)


def check_golds(report: Report, rewards: Mapping[str, Callable], rows: Dataset) -> None:
    """Name the golds that the rewards which compare with them cannot read, by row."""
    if "solution" not in rows.column_names:
        return
    # A picture, a game or a checker says more of what is asked than the words do.
    if not {"image", "environment", "scorer"}.intersection(rows.column_names):
        doubt = several_golds(map(question_key, rows["prompt"]), rows["solution"])
        if doubt:
            report.add(WARNING, "data.several_golds", f"{doubt}. Fix: keep the row that is right")
    picked = spread(len(rows), _GOLDS)
    if not _check_readable(report, rewards, rows, picked):
        return
    golds = {index: str(rows[index]["solution"]).strip() for index in picked}
    functions = [getattr(reward, "reward", reward) for reward in rewards.values()]
    if any(isinstance(function, AccuracyReward) for function in functions):
        _check_readings(report, golds)
    if any(getattr(reward, "number_locale", None) == "en" for reward in rewards.values()):
        _check_locale(report, golds)


def _check_readable(
    report: Report,
    rewards: Mapping[str, Callable],
    rows: Dataset,
    picked: Sequence[int],
) -> bool:
    """Report golds that cannot be read; False if no reward compares with one."""
    judges = [name for name, reward in rewards.items() if declared(reward, "reads_gold")]
    sample = rows.select(picked)
    readable: dict[int, bool] = {}
    for name in judges:
        for index, read in readable_golds(name, rewards[name], sample).items():
            readable[picked[index]] = readable.get(picked[index], True) and read
    if not readable:
        return False
    unread = [index for index, read in readable.items() if not read]
    share, names = len(unread) / len(readable), " and ".join(judges)
    message = f"{names} can read all {len(readable)} golds"
    if unread:
        first = clip(str(rows[unread[0]]["solution"]), 80)
        message = (
            f"{names} cannot read {len(unread)} of {len(readable)} golds ({share:.0%}; "
            f"rows {listed(unread)} of those kept; the first is {first!r}), so no completion "
            f"is paid there: "
            "point solution_column (or the mapper) at a short final answer, or drop these rows"
        )
    report.add(graded(share, vain=0.5), "data.golds", message)
    return True


def _check_readings(report: Report, golds: Mapping[int, str]) -> None:
    """Report golds that accuracy reads in another way than a number."""
    parsed = {index: read_gold(gold) for index, gold in golds.items()}
    for code, level, applies, meaning in _READINGS:
        matching = [index for index, gold in parsed.items() if gold and applies(gold)]
        if matching:
            first = f"rows {listed(matching)}; the first is {clip(golds[matching[0]], 80)!r}"
            meaning = meaning.format(first=first)
            report.add(level, code, f"{len(matching)} of {len(golds)} golds {meaning}")


def _check_locale(report: Report, golds: Mapping[int, str]) -> None:
    """Report golds that an English and a German reader take for different numbers."""
    either = [index for index, gold in golds.items() if _EITHER.fullmatch(gold)]
    if not either:
        return
    message = (
        f"{len(either)} of {len(golds)} golds are numbers or lists, by who reads them "
        f"(rows {listed(either)}; the first is {golds[either[0]]!r}): 1.250 is read as 1.25 "
        "and 3,5 as the list 3, 5; number_locale: de reads 1250 and 3.5"
    )
    commas = any("," in golds[index] for index in either)
    report.add(WARNING if commas else OK, "data.number_locale", message)
