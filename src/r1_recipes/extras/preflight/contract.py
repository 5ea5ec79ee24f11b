"""The contract: the prompt asks for the shape that the rewards read, and a right answer in that
shape is paid more than any other text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r1_recipes.common.messages import clip, words
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report, graded, listed, spread
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
# Three visible steps and no phrase twice, so that rewards for steps and against repetition have
# nothing to object to.
_REASONING = (
    "Step 1: Read the question.\nStep 2: Work through what it gives.\nStep 3: Write down the "
    "result."
)
_SHAPELESS = "I do not know what to say here."
_WRONG = ("-17", "-30", "-8", "-4", "-26", "-59")


@dataclass(frozen=True)
class Rewards:
    """The recipe's rewards that can be tried here, by name, and their weights."""

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
        """Return each reward's table, one row per row and one column per kind of text; NaN: not
        judged. One that fails is reported.
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
        """Return the weighted sum of a table with one column per reward, as TRL adds: what is not
        judged adds nothing.
        """
        return (scores * [self.weights.get(name, 1.0) for name in scores.columns]).sum(
            axis=1, min_count=1
        )


def check_prompt(report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> None:
    """Check that the prompt asks for the shape that the rewards (GRPO) or the targets
    (SFT) have.
    """
    if recipe.method == "grpo" and not recipe.script.reward_funcs and not fmt.system_prompt:
        report.add(
            OK,
            "contract.prompt",
            "the environment judges: no reward reads a format, and the prompt asks for none",
        )
        return
    sft, wanted = recipe.method == "sft", list(fmt.marks)
    sample = [rows[index] for index in spread(len(rows), _SAMPLE)]
    if sft:  # rows that are taken as they are need not be in the format
        wanted = [
            group
            for group in wanted
            if all(any(mark in words(row["completion"]) for mark in group) for row in sample)
        ]
    prompts = [words(row["prompt"]) for row in sample]
    own = {mark for group in wanted for mark in group}
    missing = [[group[0] for group in fmt.lacking(prompt) if group in wanted] for prompt in prompts]
    asked = [_asked(row["prompt"], prompt) for row, prompt in zip(sample, prompts, strict=True)]
    conflicts = [
        (other, lacking)
        for other, lacking in zip(asked, missing, strict=True)
        if lacking and not own.issuperset(other)
    ]
    silent = " and ".join(
        group[0] for group in wanted if all(group[0] in lacking for lacking in missing)
    )
    if conflicts:
        # A GRPO format without tags searches the whole completion, so another shape may be paid
        # too.
        searched = not sft and not (fmt.reasoning_tags or fmt.answer_tags or fmt.delimited)
        level = WARNING if searched else graded(len(conflicts) / len(sample), vain=0.5)
        other, lacking = (
            " and ".join(mark for mark in conflicts[0][0] if mark not in own),
            " and ".join(conflicts[0][1]),
        )
        said = (
            f"the prompt asks for {other}, but response_format {fmt.name!r}, which the "
            f"{'targets have' if sft else 'rewards read'}, wants "
            f"{lacking} ({len(conflicts)} of {len(sample)} sampled rows); write "
            f"{fitting_format(conflicts[0][0], fmt)}, or leave "
            "system_prompt out"
        )
    elif silent and sft:
        level, said = OK, f"the targets have {silent} without being asked; SFT teaches it"
    elif silent:
        said = (
            f"nothing in the prompt asks for {silent}, which response_format {fmt.name!r} wants: "
            f"only models trained on it give it; "
        )
        level, said = WARNING, f"{said}leave system_prompt out to have the format's own instruction"
    else:
        shape = " and ".join(group[0] for group in wanted) or "no shape"
        level, said = OK, f"the prompt asks for {shape}, as response_format {fmt.name!r} has it"
    report.add(level, "contract.prompt", said)


def _asked(prompt: str | list[dict[str, str]], text: str) -> list[str]:
    """Marks of a shape: those of any format in the whole prompt, and other tags in its instruction
    that are opened and closed.
    """
    instruction = " ".join(
        part["content"] for part in prompt if isinstance(part, dict) and part["role"] == "system"
    )
    others = [f"<{name}>" for name in _TAG.findall(instruction) if f"</{name}>" in instruction]
    return list(dict.fromkeys([*named_marks(text), *others]))


def check_written(
    report: Report, recipe: Recipe, rows: Dataset, tokenizer: PreTrainedTokenizerBase
) -> None:
    """SFT: check that the chat template writes the target whole, right after the prompt that
    generation will be given.
    """
    with report.refusals("contract.target"):
        check_targets(recipe, tokenizer, rows)
        report.add(
            OK,
            "contract.target",
            "the chat template writes the sampled targets whole, right after the prompt",
        )


def load_rewards(
    report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase
) -> Rewards:
    """Return the rewards, without those that ask a model of their own."""
    functions, names = reward_functions(recipe, fmt, with_models=False), recipe.script.reward_funcs
    if skipped := [name for name in names if name not in functions]:
        report.add(
            OK,
            "contract.skipped",
            f"{listed(skipped)} asks a model of its own and is left out here",
        )
    return Rewards(
        functions,
        dict(zip(names, recipe.training.reward_weights or [1.0] * len(names), strict=True)),
        tokenizer,
    )


def check_rewards(report: Report, fmt: ResponseFormat, rewards: Rewards, rows: Dataset) -> None:
    """Check what each reward, and their sum, pay for written completions."""
    from pandas import DataFrame

    sample = [rows[index] for index in spread(len(rows), _SAMPLE)]
    cases = _written_cases(report, fmt, sample, bool(rewards.functions))
    if not cases:
        return
    texts = {kind: [written[kind] for _, written in cases] for kind in _KINDS}
    tables = rewards.scores(report, "contract.reward_fails", [row for row, _ in cases], texts)
    report.show("contract", "A right answer, as the model would write it:", texts["right"][0])
    means = DataFrame({name: table.mean() for name, table in tables.items()}).T
    report.show("contract", "Mean reward of written completions:", means)
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
    """Return the rows with a gold, each with a right, a wrong and a shapeless completion."""
    cases, refused = [], []
    for row in sample:
        gold = right_answer(row.get("solution"))
        if gold is None:
            continue
        wrong = next((answer for answer in _WRONG if gold not in answer), _WRONG[0])
        try:
            right, other = (fmt.render_completion(_REASONING, answer) for answer in (gold, wrong))
        except ValueError as error:
            refused.append(error)
        else:
            cases.append((row, {"right": right, "wrong": other, "shapeless": _SHAPELESS}))
    if refused:
        message = f"{len(refused)} of {len(sample)} sampled golds cannot be written as an answer"
        level = WARNING if cases else ERROR
        report.add(level, "contract.render", f"{message}, so nothing is right there: {refused[0]}")
    elif not cases and judged:  # an environment knows what is right
        message = f"none of {len(sample)} sampled rows has a gold"
        unknown = "so what a right answer scores is not known before a run"
        report.add(WARNING, "contract.no_golds", f"{message}, {unknown}")
    return cases


def _check_total(report: Report, rewards: Rewards, tables: Mapping[str, DataFrame]) -> None:
    """Check that the weighted sum prefers a right answer."""
    from pandas import DataFrame

    columns = ({name: table[kind] for name, table in tables.items()} for kind in _KINDS)
    right, wrong, shapeless = (rewards.total(DataFrame(column)).mean() for column in columns)
    numbers = f"right {right:.3g}, wrong {wrong:.3g}, without shape {shapeless:.3g}"
    if right <= wrong or right <= shapeless:  # false if no reward judges one of them
        knows = any(declared(rewards.functions[name], "judges") == "answer" for name in tables)
        message = f"the weighted sum of the rewards does not prefer a right answer: {numbers}"
        fix = "check reward_weights and their parameters"
        report.add(ERROR if knows else WARNING, "contract.total", f"{message}; {fix}")
    elif right > wrong:
        report.add(OK, "contract.total", f"the weighted sum prefers a right answer: {numbers}")


def _check_reward(
    report: Report,
    name: str,
    reward: Callable,
    scores: DataFrame,
    cases: Sequence[tuple[dict, dict]],
) -> None:
    judged = scores[scores.right.notna()]
    if judged.empty:
        told = (
            f"{name} judges none of {len(scores)} sampled rows, whatever the answer: see "
            f"docs/recipes.md for what it needs"
        )
        report.add(OK if isinstance(reward, RoutedReward) else WARNING, "contract.unjudged", told)
        return
    full, of = declared(reward, "full_marks"), f"of {len(judged)} sampled rows"
    below = [] if full is None else list(judged.index[judged.right < full - 1e-6])
    if below:
        row, texts = cases[below[0]]
        told = (
            f"{name} gives a right answer in the format's own words "
            f"{judged.right[below[0]]:g} instead of {full:g} ({len(below)} {of}; "
            f"gold {clip(str(row['solution']), 80)!r}, completion "
            f"{clip(texts['right'], 160)!r}): check the golds that the mapper reads, "
            "and response_format"
        )
        report.add(graded(len(below) / len(judged), vain=0.5), "contract.right", told)
        return
    other, what = (
        (judged.shapeless, "a text without the format")
        if declared(reward, "judges") == "shape"
        else (judged.wrong, "a wrong answer")
    )
    # A reward of somebody's own may pay some answers alike.
    paid = (other > judged.right if full is None else other >= judged.right).sum()
    alike = declared(reward, "judges") == "style" or declared(
        reward, "ranks_group"
    )  # it may pay right and wrong alike
    if paid and not alike:
        told = (
            f"{name} gives {what} as much as a right answer, or more, on {paid} {of}: check the "
            f"golds and the reward's parameters"
        )
        report.add(WARNING if full is None else ERROR, "contract.wrong", told)
    elif full is None and judged.mean().nunique() == 1:
        told = (
            f"{name} gives right, wrong and shapeless text alike ({judged.right.mean():.3g}): if "
            f"it always does, groups have no spread"
        )
        report.add(WARNING, "contract.alike", told)
