"""Check what the model reads: rows, their lengths, the prompt, and where the template ends a turn.

And what the rewards read: the reference answers.
"""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import clip, conversation_text
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
from r1_recipes.models.load import generation_prompt, turn_end
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.rewards import READS_GOLD, reward_parameters
from r1_recipes.rewards.call import judged_rows, right_answer, score
from r1_recipes.training.train import load_splits

# Samples, evenly spaced: rows whose tokens are counted, and reference answers, of which an
# expression takes milliseconds.
_MEASURED, _SOLUTIONS = 5000, 20_000
# A comma may be a decimal comma or separate a list. A point may be a decimal point or separate
# thousands. A unit may follow.
_AMBIGUOUS_NUMBER = re.compile(
    r"[-+]?(?:\d+,(?!\d{3}(?!\d))\d+|[1-9]\d{0,2}(?:\.\d{3})+)(?:\s*[^\d\s,.;()]+)*"
)


def check_turn(report: Report, recipe: Recipe, tokenizer: Any, fmt: ResponseFormat) -> None:
    """Check where the chat template starts and ends the assistant's turn.

    R1's distilled models open it with a reasoning tag, which the format may not read. Base models
    do not stop where the template ends a message.
    """
    from transformers import GenerationConfig

    model, opening = recipe.model.model_name_or_path, generation_prompt(tokenizer)
    opens = "<think>" in opening and "</think>" not in opening
    if opens and "<think>" not in fmt.tags:
        message = (
            f"the chat template of {model} opens the assistant's turn with '<think>', which "
            f"response_format {fmt.name!r} does not read. Fix: a response_format with '<think>', "
            "or another chat_template"
        )
        report.add(ERROR if fmt.reasoning_tags else WARNING, "contract.prefill", message)
    try:
        end = turn_end(model, tokenizer)
    except RecipeError as error:  # A run never writes this text, so it does not fail.
        report.add(WARNING, "contract.eos", str(error))
        return
    ids = tokenizer.eos_token_id
    with contextlib.suppress(OSError):  # The checkpoint may have no generation config.
        config = GenerationConfig.from_pretrained(model, revision=recipe.model.model_revision)
        ids = config.eos_token_id or ids
    stops = tokenizer.convert_ids_to_tokens(ids if isinstance(ids, list) else [ids])
    if end not in (*stops, tokenizer.eos_token):
        message = (
            f"the chat template ends a message with {end!r}, but generation stops only at "
            f"{join_names(stops)}, so completions may continue up to max_completion_length. Fix: "
            f"eos_token_id {tokenizer.convert_tokens_to_ids(end)} in the checkpoint's "
            "generation_config.json, or start from SFT"
        )
        report.add(WARNING, "contract.eos", message)


def load(report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: Any) -> Any:
    """Return the training rows of a run. Show three as the model reads them, each with its answer,
    and report the dropped rows.

    The log names the columns that nothing reads, and rows of the test split in the training rows.
    """
    splits = load_splits(recipe, fmt, tokenizer)
    loaded, rows = splits.train_report, splits.train
    for index in evenly_spaced(len(rows), 3):
        row = rows[index]
        title = f"Row {index}, as the model reads it"
        if recipe.method == "grpo":
            title += f". Its reference answer: {clip(str(row.get('solution', 'none')), 200)}"
        report.show("rows", title, _rendered(tokenizer, row))
    message = f"{loaded}; test split: {splits.test_report or 'not read'}"
    report.add(WARNING if 2 * loaded.dropped.total() > loaded.read else OK, "data.rows", message)
    return rows


def _rendered(tokenizer: Any, row: dict[str, Any]) -> str:
    """Return the prompt (GRPO), or the whole example with the tools of its row (SFT)."""
    if "completion" not in row:
        return tokenizer.apply_chat_template(
            row["prompt"], tokenize=False, add_generation_prompt=True
        )
    tools = row.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    options = {"tokenize": False, "tools": tools, **(row.get("chat_template_kwargs") or {})}
    return tokenizer.apply_chat_template(row["prompt"] + row["completion"], **options)


def check_lengths(
    report: Report, recipe: Recipe, rows: Any, tokenizer: Any, window: int | None
) -> None:
    """Compare the lengths of rows with the model's window, and of SFT examples with max_length."""
    training, grpo = recipe.training, recipe.method == "grpo"
    picked = evenly_spaced(len(rows), _MEASURED)
    texts = [_rendered(tokenizer, row) for row in rows.select(picked)]
    lengths = [*map(len, tokenizer(texts, add_special_tokens=False)["input_ids"])]
    count, longest = len(lengths), max(lengths)
    message = (
        f"a row has {median(lengths):.0f} tokens (median), the longest {longest}; the "
        f"model's window is {window or 'not known'}"
    )
    level, window = OK, window or sys.maxsize
    room = window - training.max_completion_length if grpo else window
    too_long = [index for index, size in zip(picked, lengths, strict=True) if size > room]
    if too_long:
        # A prompt needs room for a token of the completion.
        level = ERROR if longest + grpo > window else WARNING
        message += (
            f". {len(too_long)} of {count} measured rows may exceed it, with their completion "
            f"(rows {join_names(too_long)}). Fix: {'max_prompt_tokens' if grpo else 'max_length'}: "
            f"{max(1, room)}"
        )
    report.add(level, "data.window", message)
    if not grpo and training.max_length:
        cut = sum(size > training.max_length for size in lengths)
        message = f"max_length {training.max_length} cuts {cut} of {count} measured examples"
        if cut:
            message += f", so the model does not learn to end them. Fix: max_length: {longest}"
        report.add(graded(cut / count, error_at=0.5), "data.max_length", message)


def check_prompt(report: Report, fmt: ResponseFormat, sample: list[dict[str, Any]]) -> None:
    """Check that the prompt asks for the tags that the rewards parse."""
    prompts = [f"{conversation_text(row['prompt'])}\n{fmt.prefill}" for row in sample]
    asked = [tag for tag in fmt.tags if all(tag.rstrip("{") in prompt for prompt in prompts)]
    lacking = [tag for tag in fmt.tags if tag not in asked]
    level, message = OK, f"the prompt asks for {' and '.join(asked) or 'no tags'}"
    if lacking:
        level = WARNING
        message += (
            f" and not for {' and '.join(lacking)}, which response_format {fmt.name!r} has, so "
            "only a model trained on this format writes it. Fix: remove system_prompt to use the "
            "format's own, or another response_format"
        )
    report.add(level, "contract.prompt", message)


def check_golds(report: Report, rewards: Mapping[str, Callable], rows: Any, locale: str) -> None:
    """Report reference answers that the rewards cannot read, or may read in a surprising way."""
    if "solution" not in rows.column_names:
        return
    # With a picture, an environment or a puzzle, equal questions may have different answers.
    if not {"image", "environment", "nums"}.intersection(rows.column_names):
        _check_conflicts(report, rows)
    picked = evenly_spaced(len(rows), _SOLUTIONS)
    sample = rows.select(picked)
    for name in [name for name in rewards if name in READS_GOLD]:
        scored, unread = unread_golds(name, rewards[name], sample)
        count, unread = len(scored), [picked[at] for at in unread]
        message = f"{name} can read all {count} reference answers"
        if unread:
            message = (
                f"{name} cannot read {len(unread)} of {count} reference answers (rows "
                f"{join_names(unread)} of the rows kept; the first is "
                f"{clip(str(rows[unread[0]]['solution']), 80)!r}), so these rows get no reward. "
                "Fix: name a column with short final answers in solution_column (or the mapper), "
                "or drop these rows"
            )
        report.add(graded(len(unread) / max(1, count), error_at=0.5), "data.golds", message)
    if locale != "en" or "number_locale" not in reward_parameters(rewards):
        return
    solutions = [str(solution).strip() for solution in sample["solution"]]
    ambiguous = [text for text in solutions if _AMBIGUOUS_NUMBER.fullmatch(text)]
    if ambiguous:
        message = (
            f"{len(ambiguous)} reference answers depend on the country (the first is "
            f"{ambiguous[0]!r}). By default, 1.250 is 1.25, and 3,5 is the list 3, 5. Fix, for "
            "German: number_locale: de, which reads 1250 and 3.5"
        )
        level = WARNING if any("," in text for text in ambiguous) else OK
        report.add(level, "data.number_locale", message)


def _check_conflicts(report: Report, rows: Any) -> None:
    """Report the first question that has two different reference answers."""
    first: dict[str, str | None] = {}
    for prompt, solution in zip(rows["prompt"], rows["solution"], strict=True):
        question, answer = question_key(prompt), right_answer(solution)
        known = first.setdefault(question, answer)
        differs = known and answer and known != answer
        if differs and verification.grade([known], [answer]) == [False]:
            message = (
                f"questions have several reference answers: {question[:120]!r} has {known!r:.80} "
                f"and {answer!r:.80}. Fix: keep only the correct row"
            )
            report.add(WARNING, "data.several_golds", message)
            return


def unread_golds(name: str, reward: Callable, rows: Any) -> tuple[Sequence[int], list[int]]:
    """Return the rows that a reward scores, and those whose reference answer it cannot read."""
    scored = judged_rows(reward, rows)
    # Leave out pictures, because to_list() would decode them.
    examples = rows.select(scored).remove_columns({"image"} & {*rows.column_names}).to_list()
    verdicts = score(name, reward, examples, [""] * len(examples), None) if examples else []
    return scored, [at for at, verdict in zip(scored, verdicts, strict=True) if verdict is None]
