"""The data: what is kept, how long prompts are, which golds can be judged by, and prompts as the model sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.preflight.findings import Report, clip, listed, spread
from r1_recipes.prompts import ResponseFormat, get_response_format
from r1_recipes.recipe.load import Recipe
from r1_recipes.rewards.call import right_answer

if TYPE_CHECKING:
    from datasets import Dataset

# Prompts whose tokens are counted: these many, evenly spread, and the longest by characters.
_MEASURED = 2000
_LONGEST = 200
# Golds that are read, evenly spread (numbers take no time, an expression milliseconds), and those compared with themselves.
_GOLDS = 20_000
_VERIFIED = 200
_SHOWN_PROMPTS = 3
# These judge by the gold, as verification.grade reads it.
_GRADED = ("accuracy", "cosine", "length")


def plain_format(recipe: Recipe) -> ResponseFormat:
    """The response format by the recipe's keys alone, where no tokenizer says what the turn starts with."""
    script = recipe.script
    return get_response_format(script.response_format, system_prompt=script.system_prompt, prefill=script.prefill)


def load(report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: Any) -> Dataset | None:
    """The training rows, and whether the test split can be read; what was dropped is in the report."""
    from r1_recipes.data import load_dataset
    from r1_recipes.data.load import drop_overlap
    from r1_recipes.models.smoke import example_rows

    script = recipe.script
    if tokenizer is None:  # lengths in tokens cannot be known
        script = dataclasses.replace(script, max_prompt_tokens=None, max_solution_tokens=None)
    rows, held_out = None, None
    with report.refusals("data.unusable"):
        source = example_rows(script, recipe.method) if script.smoke else None
        rows, loaded = load_dataset(script, fmt, recipe.method, split="train", tokenizer=tokenizer, rows=source)
        dropped = [
            {"reason": reason, "count": count, "first_index": loaded.first_index[reason]} for reason, count in loaded.dropped.items()
        ]
        report.facts["data"] = {"read": loaded.read, "kept": loaded.kept, "dropped": dropped, "columns": rows.column_names}
        lost = loaded.dropped.total() / max(1, loaded.read)
        if lost > 0.5:
            report.warn("data.rows", f"{loaded}; {lost:.0%} of the rows are lost, so look at the reasons")
        else:
            report.ok("data.rows", str(loaded))
    if recipe.training.eval_strategy != "no" and not script.smoke:
        with report.refusals("data.test_split"):
            held_out, loaded = load_dataset(script, fmt, recipe.method, split="test", tokenizer=tokenizer)
            report.ok("data.test_split", f"test split: {loaded}")
    if rows is not None and held_out is not None:
        rows, shared = drop_overlap(rows, held_out)
        if shared:
            say = report.warn if len(rows) else report.error
            left = f"{len(rows)} are left" if len(rows) else "no row is left; name another dataset_test_split"
            say("data.overlap", f"{shared} training rows ask what the test split asks, and training leaves them out: {left}")
    return rows if rows is not None and len(rows) else None


def rendered(tokenizer: Any, prompt: Any) -> str:
    """A prompt as the model reads it, special tokens as they are written.

    Raises:
        RecipeError: the chat template refuses it.
    """
    from jinja2 import TemplateError

    if isinstance(prompt, str):
        return prompt
    try:
        return tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise RecipeError(
            f"chat_template: it cannot write the prompt {clip(str(prompt[-1]['content']))}: {first_line(error)} If it takes no system "
            'message, set system_prompt: "" and put the instruction into the question, or set chat_template'
        ) from error


def window(recipe: Recipe, model: int | None) -> int | None:
    """Tokens that prompt and completion may have together, for the model's own window and vLLM's."""
    limits = [model, recipe.training.vllm_max_model_length if getattr(recipe.training, "use_vllm", False) else None]
    return min((limit for limit in limits if limit), default=None)


def check_prompts(report: Report, recipe: Recipe, rows: Dataset, tokenizer: Any, window: int | None) -> int | None:
    """Compare lengths with the window, and show three prompts word for word. Returns the longest prompt's tokens."""
    prompts = rows["prompt"]
    picked = spread(len(prompts), _MEASURED)
    if len(prompts) > len(picked):
        longest = sorted(range(len(prompts)), key=lambda index: -_characters(prompts[index]))[:_LONGEST]
        picked = sorted({*picked, *longest})
    with report.refusals("contract.template"):
        lengths = {index: len(_ids(tokenizer, rendered(tokenizer, prompts[index]))) for index in picked}
        report.facts["prompts"] = [
            tokenizer.decode(_ids(tokenizer, rendered(tokenizer, prompts[index])), skip_special_tokens=False)
            for index in spread(len(prompts), _SHOWN_PROMPTS)
        ]
        _check_window(report, recipe, lengths, window)
        return max(lengths.values())
    return None


def _check_window(report: Report, recipe: Recipe, lengths: dict[int, int], window: int | None) -> None:
    ordered = sorted(lengths.values())
    p50, p90, p99 = (ordered[int(share * len(ordered))] for share in (0.5, 0.9, 0.99))
    report.facts["prompt_tokens"] = {
        "p50": p50, "p90": p90, "p99": p99, "max": ordered[-1], "measured": len(ordered), "window": window
    }  # fmt: skip
    said = f"half of the prompts have {p50} tokens or fewer, 99 % {p99}, the longest {ordered[-1]}"
    if window is None:
        report.warn("data.window", f"{said}; the model's window (max_position_embeddings) is not known here")
        return
    completion = getattr(recipe.training, "max_completion_length", 0) or 0
    limit = f"max_prompt_tokens: {max(1, window - completion)}"
    over = [index for index, length in lengths.items() if length >= window]
    tight = [index for index, length in lengths.items() if length + completion > window]
    if over:
        report.error(
            "data.window",
            f"{said}; {len(over)} of {len(lengths)} measured do not fit the model's window of {window} tokens (rows {listed(over)}): set "
            f"{limit} to drop them, or take a model with a longer window",
        )
    elif tight:
        report.warn(
            "data.window",
            f"{said}; with max_completion_length {completion}, {len(tight)} of {len(lengths)} measured can run over the model's window of "
            f"{window} tokens: set {limit}, or a smaller max_completion_length",
        )
    else:
        report.ok("data.window", f"{said}; they and their completions fit the model's window of {window} tokens")


def check_golds(report: Report, recipe: Recipe, rows: Dataset) -> None:
    """Golds that math-verify cannot read, by index; only of rows that a reward judges by them."""
    from r1_recipes.rewards import judged_rows
    from r1_recipes.verification import grade

    script = recipe.script
    judges = [name for name in script.reward_funcs if name in _GRADED]
    if not judges or "solution" not in rows.column_names:
        return
    golds = [None if gold is None else str(gold) for gold in rows["solution"]]
    judged = range(len(golds))
    if script.task_rewards is not None:
        columns = {key: rows[key] for key in rows.column_names}
        judged = judged_rows(judges, script.reward_funcs, script.task_rewards, script.task_column, columns)
    scorers = rows["scorer"] if "scorer" in rows.column_names else [None] * len(golds)
    asked = [index for index in judged if not scorers[index]]
    asked = [asked[position] for position in spread(len(asked), _GOLDS)]
    if not asked:
        return
    verdicts = dict(zip(asked, grade([golds[index] for index in asked], [None] * len(asked)), strict=True))
    compared = [asked[position] for position in spread(len(asked), _VERIFIED)]
    compared = [index for index in compared if verdicts[index] is not None]
    itself = grade([golds[index] for index in compared], [right_answer(golds[index]) for index in compared])
    verdicts |= zip(compared, itself, strict=True)
    unread = [index for index in asked if verdicts[index] is None]
    odd = [index for index, verdict in zip(compared, itself, strict=True) if verdict is False]
    report.facts["golds"] = {"rows": len(asked), "unparseable": unread, "unequal_to_themselves": odd}
    if unread:
        share = len(unread) / len(asked)
        (report.error if share >= 0.5 else report.warn)(
            "data.golds",
            f"math-verify cannot read {len(unread)} of {len(asked)} golds ({share:.0%}; rows {listed(unread)} of those kept; the first is "
            f"{clip(golds[unread[0]] or '')}), so {' and '.join(judges)} judge{'s' * (len(judges) == 1)} none of their completions: "
            "point solution_column (or the mapper) at a short final answer, or drop these rows",
        )
    if odd:
        report.warn(
            "data.golds_unequal",
            f"{len(odd)} golds are not equal even to themselves (rows {listed(odd)}; the first is {clip(golds[odd[0]] or '')}): no "
            "completion can be right there; rewrite or drop them",
        )
    if not unread and not odd:
        report.ok("data.golds", f"all {len(asked)} golds can be judged by ({len(compared)} of them were compared with themselves)")


def check_example_lengths(report: Report, recipe: Recipe, rows: Dataset, tokenizer: Any) -> int | None:
    """SFT: how many examples ``max_length`` cuts. Returns the longest measured, in tokens."""
    limit = recipe.training.max_length
    with report.refusals("contract.template"):
        examples = [rows[index] for index in spread(len(rows), _MEASURED)]
        texts = [
            row["prompt"] + row["completion"]
            if isinstance(row["prompt"], str)
            else tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
            for row in examples
        ]
        lengths = [len(_ids(tokenizer, text)) for text in texts]
        longest, cut = max(lengths), sum(limit is not None and length > limit for length in lengths)
        report.facts["example_tokens"] = {"max": longest, "measured": len(lengths), "cut": cut, "max_length": limit}
        if not cut:
            report.ok("data.max_length", f"examples have {longest} tokens at most; max_length {limit} cuts none of {len(lengths)} measured")
        else:
            share = cut / len(lengths)
            (report.error if share >= 0.5 else report.warn)(
                "data.max_length",
                f"max_length {limit} cuts {cut} of {len(lengths)} measured examples ({share:.0%}), which then teach no end; set "
                f"max_length: {longest}, or drop long ones with max_solution_tokens",
            )
        return longest
    return None


def _ids(tokenizer: Any, text: str) -> Sequence[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _characters(prompt: Any) -> int:
    return len(prompt) if isinstance(prompt, str) else sum(len(message["content"]) for message in prompt)
