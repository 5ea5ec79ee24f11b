"""Check that the prompt asks for the format that the rewards read, and what the rewards score.

A correct answer in this format must score higher than any other text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r1_recipes.common.messages import clip, words
from r1_recipes.extras.preflight.findings import (
    ERROR,
    OK,
    WARNING,
    Report,
    graded,
    join_names,
    sampled,
)
from r1_recipes.metrics.run import reward_functions
from r1_recipes.models.tokenizer import check_targets
from r1_recipes.prompts import ResponseFormat, fitting_format, named_marks
from r1_recipes.recipe import Recipe
from r1_recipes.rewards.call import right_answer, score
from r1_recipes.rewards.registry import declared
from r1_recipes.rewards.routing import RoutedReward

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame, Series
    from transformers import PreTrainedTokenizerBase

_TAG = re.compile(r"<([A-Za-z_]\w*)>")
_SAMPLE = 32
_KINDS = ("right", "wrong", "shapeless")
# Three visible steps and no repeated phrase, so that rewards for steps and repetition give full
# marks.
_REASONING = (
    "Step 1: Read the question.\nStep 2: Work through what it gives.\nStep 3: Write down the "
    "result."
)
_SHAPELESS = "I do not know what to say here."
_WRONG = ("-17", "-30", "-8", "-4", "-26", "-59")


@dataclass(frozen=True)
class Rewards:
    """The recipe's rewards that need no other model, by name, and their weights."""

    functions: dict[str, Callable]
    weights: dict[str, float]
    tokenizer: PreTrainedTokenizerBase

    def scores(
        self,
        report: Report,
        code: str,
        rows: Sequence[dict[str, Any]],
        texts: Mapping[str, Sequence[str]],
        tokens: list[int] | None = None,
    ) -> dict[str, DataFrame]:
        """Return a table for each reward, with a line per row and a column per variant of the text.

        NaN means that the reward gave no score. A reward that fails is reported and left out.
        """
        from pandas import DataFrame

        tables = {}
        for name, function in self.functions.items():
            with report.refusals(code):
                columns = {
                    kind: score(name, function, rows, written, self.tokenizer, tokens)
                    for kind, written in texts.items()
                }
                tables[name] = DataFrame(columns, dtype=float)
        return tables

    def total(self, scores: DataFrame) -> Series:
        """Return the weighted sum of a table with a column per reward.

        As in TRL, a missing score adds nothing.
        """
        return (scores * [self.weights.get(name, 1.0) for name in scores.columns]).sum(
            axis=1, min_count=1
        )


def check_prompt(report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> None:
    """Check that the prompt asks for the format of the rewards (GRPO) or targets (SFT)."""
    if recipe.method == "grpo" and not recipe.script.reward_funcs and not fmt.system_prompt:
        report.add(
            OK,
            "contract.prompt",
            "only the environment scores, so no reward reads a format and the prompt asks for none",
        )
        return
    sft, expected = recipe.method == "sft", list(fmt.marks)
    sample = sampled(rows, _SAMPLE)
    if sft:  # Unchanged conversations need not be in the format.
        expected = [
            group
            for group in expected
            if all(any(mark in words(row["completion"]) for mark in group) for row in sample)
        ]
    prompts = [words(row["prompt"]) for row in sample]
    own_marks = {mark for group in expected for mark in group}
    missing = [
        [group[0] for group in fmt.lacking(prompt) if group in expected] for prompt in prompts
    ]
    requested = [
        _requested_marks(row["prompt"], prompt) for row, prompt in zip(sample, prompts, strict=True)
    ]
    conflicts = [
        (other, lacking)
        for other, lacking in zip(requested, missing, strict=True)
        if lacking and not own_marks.issuperset(other)
    ]
    unrequested = " and ".join(
        group[0] for group in expected if all(group[0] in lacking for lacking in missing)
    )
    if conflicts:
        # A GRPO format without tags searches the whole completion, so answers in another format
        # may score too.
        searched = not sft and not (fmt.reasoning_tags or fmt.answer_tags or fmt.delimited)
        level = WARNING if searched else graded(len(conflicts) / len(sample), error_at=0.5)
        other, lacking = (
            " and ".join(mark for mark in conflicts[0][0] if mark not in own_marks),
            " and ".join(conflicts[0][1]),
        )
        message = (
            f"the prompt asks for {other}, but response_format {fmt.name!r}, which the "
            f"{'targets have' if sft else 'rewards read'}, needs "
            f"{lacking} ({len(conflicts)} of {len(sample)} sampled rows). "
            f"Fix: {fitting_format(conflicts[0][0], fmt)}, or remove system_prompt"
        )
    elif unrequested and sft:
        level, message = (
            OK,
            f"the targets have {unrequested}, for which the prompt does not ask; SFT teaches it",
        )
    elif unrequested:
        message = (
            f"the prompt does not ask for {unrequested}, which response_format {fmt.name!r} needs, "
            f"so only a model trained on this format writes it. "
        )
        level, message = WARNING, f"{message}Fix: remove system_prompt to use the format's own"
    else:
        marks = " and ".join(group[0] for group in expected) or "no tags"
        level, message = OK, f"the prompt asks for {marks}, as response_format {fmt.name!r} does"
    report.add(level, "contract.prompt", message)


def _requested_marks(prompt: str | list[dict[str, str]], text: str) -> list[str]:
    """Return the marks that a prompt asks for.

    These are the marks of any response format in the whole prompt, and other pairs of tags in its
    instruction.
    """
    instruction = " ".join(
        part["content"] for part in prompt if isinstance(part, dict) and part["role"] == "system"
    )
    others = [f"<{name}>" for name in _TAG.findall(instruction) if f"</{name}>" in instruction]
    return list(dict.fromkeys([*named_marks(text), *others]))


def check_written(
    report: Report, recipe: Recipe, rows: Dataset, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check for SFT that the chat template writes the whole target, directly after the prompt."""
    with report.refusals("contract.target"):
        check_targets(recipe, tokenizer, rows)
        report.add(
            OK,
            "contract.target",
            "the chat template writes the whole target after the prompt, in all sampled rows",
        )


def load_rewards(
    report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase
) -> Rewards:
    """Return the rewards that need no other model."""
    functions, names = reward_functions(recipe, fmt, with_models=False), recipe.script.reward_funcs
    if skipped := [name for name in names if name not in functions]:
        report.add(
            OK,
            "contract.skipped",
            f"not checked, because it needs another model: {join_names(skipped)}",
        )
    return Rewards(
        functions,
        dict(zip(names, recipe.training.reward_weights or [1.0] * len(names), strict=True)),
        tokenizer,
    )


def check_rewards(report: Report, fmt: ResponseFormat, rewards: Rewards, rows: Dataset) -> None:
    """Check the scores of each reward, and of their sum, for completions written by hand."""
    from pandas import DataFrame

    sample = sampled(rows, _SAMPLE)
    cases = _written_cases(report, fmt, sample, bool(rewards.functions))
    if not cases:
        return
    texts = {kind: [written[kind] for _, written in cases] for kind in _KINDS}
    tables = rewards.scores(report, "contract.reward_fails", [row for row, _ in cases], texts)
    report.show("contract", "A correct answer in the response format:", texts["right"][0])
    means = DataFrame({name: table.mean() for name, table in tables.items()}).T
    report.show("contract", "Mean reward of completions written by hand:", means)
    for name, table in tables.items():
        _check_reward(report, name, rewards.functions[name], table, cases)
    if tables:
        _check_total(report, rewards, tables)


def _written_cases(
    report: Report,
    fmt: ResponseFormat,
    sample: Sequence[dict[str, Any]],
    judged: bool,
) -> list[tuple[dict, dict]]:
    """Return the rows with a reference answer, each with three completions.

    These are a correct answer, a wrong answer, and text without the format.
    """
    cases, refused = [], []
    for row in sample:
        solution = right_answer(row.get("solution"))
        if solution is None:
            continue
        wrong = next((answer for answer in _WRONG if solution not in answer), _WRONG[0])
        try:
            right, other = (
                fmt.render_completion(_REASONING, answer) for answer in (solution, wrong)
            )
        except ValueError as error:
            refused.append(error)
        else:
            cases.append((row, {"right": right, "wrong": other, "shapeless": _SHAPELESS}))
    if refused:
        message = f"{len(refused)} of {len(sample)} sampled reference answers do not fit the format"
        level = WARNING if cases else ERROR
        report.add(level, "contract.render", f"{message}, so no answer is correct: {refused[0]}")
    elif not cases and judged:  # Without rewards, the environment decides what is correct.
        message = f"none of {len(sample)} sampled rows has a reference answer"
        effect = "so preflight cannot check the score of a correct answer"
        report.add(WARNING, "contract.no_golds", f"{message}, {effect}")
    return cases


def _check_total(report: Report, rewards: Rewards, tables: Mapping[str, DataFrame]) -> None:
    """Check that the weighted sum is highest for a correct answer."""
    from pandas import DataFrame

    columns = ({name: table[kind] for name, table in tables.items()} for kind in _KINDS)
    right, wrong, shapeless = (rewards.total(DataFrame(column)).mean() for column in columns)
    numbers = f"correct {right:.3g}, wrong {wrong:.3g}, without format {shapeless:.3g}"
    if right <= wrong or right <= shapeless:  # False if a score is missing.
        knows = any(declared(rewards.functions[name], "judges") == "answer" for name in tables)
        message = f"the weighted sum of the rewards does not prefer a correct answer: {numbers}"
        fix = "check reward_weights and the parameters of the rewards"
        report.add(ERROR if knows else WARNING, "contract.total", f"{message}. Fix: {fix}")
    elif right > wrong:
        report.add(OK, "contract.total", f"the weighted sum prefers a correct answer: {numbers}")


def _check_reward(
    report: Report,
    name: str,
    reward: Callable,
    scores: DataFrame,
    cases: Sequence[tuple[dict, dict]],
) -> None:
    judged = scores[scores.right.notna()]
    if judged.empty:
        message = (
            f"{name} scores none of {len(scores)} sampled rows, for any answer. Fix: see "
            f"docs/recipes.md for the columns that it needs"
        )
        level = OK if isinstance(reward, RoutedReward) else WARNING
        report.add(level, "contract.unjudged", message)
        return
    full, of = declared(reward, "full_marks"), f"of {len(judged)} sampled rows"
    below = [] if full is None else list(judged.index[judged.right < full - 1e-6])
    if below:
        row, texts = cases[below[0]]
        message = (
            f"{name} gives a correct answer in the response format "
            f"{judged.right[below[0]]:g} instead of {full:g} ({len(below)} {of}; "
            f"reference answer {clip(str(row['solution']), 80)!r}, completion "
            f"{clip(texts['right'], 160)!r}). Fix: check the column that the mapper reads, "
            "and response_format"
        )
        report.add(graded(len(below) / len(judged), error_at=0.5), "contract.right", message)
        return
    other, what = (
        (judged.shapeless, "a text without the format")
        if declared(reward, "judges") == "shape"
        else (judged.wrong, "a wrong answer")
    )
    # A user's reward may give some answers the same score.
    too_high = (other > judged.right if full is None else other >= judged.right).sum()
    # Such a reward may score correct and wrong answers the same.
    ignores_answer = declared(reward, "judges") == "style" or declared(reward, "ranks_group")
    if too_high and not ignores_answer:
        message = (
            f"{name} gives {what} the same score as a correct answer, or more, on {too_high} "
            f"{of}. Fix: check the reference answers and the parameters of the reward"
        )
        report.add(WARNING if full is None else ERROR, "contract.wrong", message)
    elif full is None and judged.mean().nunique() == 1:
        message = (
            f"{name} gives a correct answer, a wrong answer and text without the format the same "
            f"score ({judged.right.mean():.3g}). If it always does, groups have no spread"
        )
        report.add(WARNING, "contract.alike", message)
