"""Check that the prompt asks for the format that the rewards read, and what the rewards score.

A correct answer in this format must score higher than any other text.
"""

from __future__ import annotations

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
from r1_recipes.models.tokenizer import check_targets
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.rewards import ANSWERS, REWARDS
from r1_recipes.rewards.call import right_answer, score
from r1_recipes.scoring import reward_functions

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame, Series
    from transformers import PreTrainedTokenizerBase

Row = dict[str, Any]
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
        rows: Sequence[Row],
        texts: Mapping[str, Sequence[str]],
        tokens: list[int] | None = None,
        turns: Sequence[Any] | None = None,
    ) -> dict[str, DataFrame]:
        """Return a table for each reward, with a line per row and a column per variant of the text.

        NaN means that the reward gave no score. A reward that fails is reported and left out.
        """
        from pandas import DataFrame

        tables = {}
        for name, function in self.functions.items():
            with report.refusals(code):
                columns = {
                    kind: score(name, function, rows, written, self.tokenizer, tokens, turns)
                    for kind, written in texts.items()
                }
                tables[name] = DataFrame(columns, dtype=float)
        return tables

    def total(self, scores: DataFrame) -> Series:
        """Return the weighted sum of a table with a column per reward.

        As in TRL, a missing score adds nothing.
        """
        factors = [self.weights.get(name, 1.0) for name in scores.columns]
        return (scores * factors).sum(axis=1, min_count=1)


def check_prompt(report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> None:
    """Check that the prompt asks for the format of the rewards (GRPO) or targets (SFT)."""
    sft = recipe.method == "sft"
    sample = sampled(rows, _SAMPLE)
    tags = list(fmt.tags)
    if sft:  # Unchanged conversations need not be in the format.
        targets = [words(row["completion"]) for row in sample]
        tags = [tag for tag in tags if all(tag in target for target in targets)]
    elif not recipe.script.reward_funcs and not fmt.system_prompt:
        message = "only the environment scores, so no reward reads a format"
        report.add(OK, "contract.prompt", f"{message} and the prompt asks for none")
        return
    prompts = [f"{words(row['prompt'])}\n{fmt.prefill}" for row in sample]
    asked = [tag for tag in fmt.tags if all(tag in prompt for prompt in prompts)]
    if sft and asked and not tags:
        message = (
            f"the prompt asks for {' and '.join(asked)}, and the targets lack them: SFT teaches "
            "not to write the format. Fix: system_prompt: '', or targets in the format"
        )
        report.add(WARNING, "contract.prompt", message)
        return
    lacking = [tag for tag in tags if not all(tag.rstrip("{") in prompt for prompt in prompts)]
    message = (
        f"the prompt asks for {' and '.join(tags) or 'no tags'}, as response_format "
        f"{fmt.name!r} does"
    )
    if lacking:
        message = (
            f"the prompt does not ask for {' and '.join(lacking)}, which response_format "
            f"{fmt.name!r} has"
        )
        fix = "remove system_prompt to use the format's own, or another response_format"
        untaught = f", so only a model trained on this format writes it. Fix: {fix}"
        message += "; SFT teaches it" if sft else untaught
    report.add(WARNING if lacking and not sft else OK, "contract.prompt", message)


def check_written(
    report: Report, recipe: Recipe, rows: Dataset, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check for SFT that the chat template writes the whole target, directly after the prompt."""
    with report.refusals("contract.target"):
        check_targets(recipe, tokenizer, rows)
        message = "the chat template writes the whole target after the prompt, in all sampled rows"
        report.add(OK, "contract.target", message)


def load_rewards(
    report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase
) -> Rewards:
    """Return the rewards that need no other model."""
    functions = reward_functions(recipe, fmt)
    names = recipe.script.reward_funcs
    if skipped := [name for name in names if name not in functions]:
        message = f"not checked, because it needs another model: {join_names(skipped)}"
        report.add(OK, "contract.skipped", message)
    weights = recipe.training.reward_weights or [1.0] * len(names)
    return Rewards(functions, dict(zip(names, weights, strict=True)), tokenizer)


def check_rewards(report: Report, fmt: ResponseFormat, rewards: Rewards, rows: Dataset) -> None:
    """Check the scores of each reward, and of their sum, for completions written by hand."""
    from pandas import DataFrame

    judged, texts = _written(report, fmt, sampled(rows, _SAMPLE), bool(rewards.functions))
    if not judged:
        return
    tables = rewards.scores(report, "contract.reward_fails", judged, texts)
    report.show("contract", "A correct answer in the response format:", texts["right"][0])
    means = DataFrame({name: table.mean() for name, table in tables.items()}).T
    report.show("contract", "Mean reward of completions written by hand:", means)
    for name, table in tables.items():
        _check_reward(report, name, rewards.functions[name], table, judged, texts["right"])
    if tables:
        _check_total(report, rewards, tables)


def _written(
    report: Report, fmt: ResponseFormat, sample: Sequence[Row], judged: bool
) -> tuple[list[Row], dict[str, list[str]]]:
    """Return the rows with a reference answer, and three completions of each.

    These are a correct answer, a wrong answer, and text without the format.
    """
    rows: list[Row] = []
    texts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    refused = []
    for row in sample:
        solution = right_answer(row.get("solution"))
        if solution is None:
            continue
        wrong = next((answer for answer in _WRONG if solution not in answer), _WRONG[0])
        try:
            written = [fmt.render_completion(_REASONING, answer) for answer in (solution, wrong)]
        except ValueError as error:
            refused.append(error)
            continue
        rows.append(row)
        for kind, text in zip(_KINDS, [*written, _SHAPELESS], strict=True):
            texts[kind].append(text)
    if refused:
        message = f"{len(refused)} of {len(sample)} sampled reference answers do not fit the format"
        level = WARNING if rows else ERROR
        report.add(level, "contract.render", f"{message}, so no answer is correct: {refused[0]}")
    elif not rows and judged:  # Without rewards, the environment decides what is correct.
        message = f"none of {len(sample)} sampled rows has a reference answer"
        effect = "so preflight cannot check the score of a correct answer"
        report.add(WARNING, "contract.no_golds", f"{message}, {effect}")
    return rows, texts


def _check_total(report: Report, rewards: Rewards, tables: Mapping[str, DataFrame]) -> None:
    """Check that the weighted sum is highest for a correct answer."""
    from pandas import DataFrame

    by_kind = [DataFrame({name: table[kind] for name, table in tables.items()}) for kind in _KINDS]
    right, wrong, shapeless = (rewards.total(scores).mean() for scores in by_kind)
    numbers = f"correct {right:.3g}, wrong {wrong:.3g}, without format {shapeless:.3g}"
    if right <= wrong or right <= shapeless:  # False if a score is missing.
        level = WARNING if ANSWERS.isdisjoint(tables) else ERROR
        message = f"the weighted sum of the rewards does not prefer a correct answer: {numbers}"
        fix = "check reward_weights and the parameters of the rewards"
        report.add(level, "contract.total", f"{message}. Fix: {fix}")
    elif right > wrong:
        report.add(OK, "contract.total", f"the weighted sum prefers a correct answer: {numbers}")


def _check_reward(
    report: Report,
    name: str,
    reward: Callable,
    scores: DataFrame,
    rows: Sequence[Row],
    right: Sequence[str],
) -> None:
    """Check the scores of one reward: right, wrong and without the format."""
    scored = scores[scores.right.notna()]
    count, judges = len(scored), name in ANSWERS
    low = scored.index[scored.right < 1 - 1e-6] if judges else scored.index[:0]
    too_high = (scored.wrong >= scored.right if judges else scored.wrong > scored.right).sum()
    if scored.empty:
        message = (
            f"{name} scores none of {len(scores)} sampled rows, for any answer. Fix: see "
            f"docs/keys.md for the columns that it needs"
        )
        # With task_rewards, the sample may have no row of its tasks.
        level = OK if hasattr(reward, "rows_of") else WARNING
        report.add(level, "contract.unjudged", message)
    elif len(low):
        solution, completion = rows[low[0]]["solution"], clip(right[low[0]], 160)
        message = (
            f"{name} gives a correct answer in the response format {scored.right[low[0]]:g} "
            f"instead of 1 ({len(low)} of {count} sampled rows; reference answer "
            f"{clip(str(solution), 80)!r}, completion {completion!r}). Fix: check the column that "
            "the mapper reads, and response_format"
        )
        report.add(graded(len(low) / count, error_at=0.5), "contract.right", message)
    elif too_high:
        message = (
            f"{name} gives a wrong answer the same score as a correct answer, or more, on "
            f"{too_high} of {count} sampled rows. Fix: check the reference answers and the "
            "parameters of the reward"
        )
        report.add(ERROR if judges else WARNING, "contract.wrong", message)
    elif name not in REWARDS and scored.mean().nunique() == 1:
        message = (
            f"{name} gives a correct answer, a wrong answer and text without the format the same "
            f"score ({scored.right.mean():.3g}). If it always does, groups have no spread"
        )
        report.add(WARNING, "contract.alike", message)
