"""The contract: a right answer in the format's own words is paid, and more than a wrong one or a text without the format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r1_recipes.metrics.run import reward_functions
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Report, clip, graded, listed, spread
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.rewards.call import right_answer, score

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame, Series
    from transformers import PreTrainedTokenizerBase

_SAMPLE = 32
_KINDS = ("right", "wrong", "shapeless")
# Three visible steps and no phrase twice, so that rewards for steps and against repetition have nothing to object to.
_REASONING = "Step 1: Read the question.\nStep 2: Work through what it gives.\nStep 3: Write down the result."
_SHAPELESS = "I do not know what to say here."
_WRONG = ("-17", "-30", "-8", "-4", "-26", "-59")
# What a right answer in the right shape gets of a rule; other rewards' best value is their author's to know.
_ANSWER = ("accuracy", "answer_contains", "countdown", "multiply", "code", "binary_code")
_SHAPE = ("format", "format_partial", "tag_count", "xml_soft_format", "xml_strict_format", "code_format")
_FULL_MARKS = dict.fromkeys([*_ANSWER, *_SHAPE, "reasoning_steps"], 1.0) | {"repetition_penalty": 0.0}
# They look at length, repetition or language alone, so that they may pay right and wrong alike.
_BLIND = ("length", "soft_overlong_punishment", "repetition_penalty", "language_consistency", "reasoning_steps")

# A row with a gold, and completions for it by kind.
Case = tuple[dict[str, Any], dict[str, str]]


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
        tokens: Sequence[int] | None = None,
    ) -> dict[str, DataFrame]:
        """Return each reward's table, one row per row and one column per kind of text; NaN: not judged. One that fails is reported."""
        from pandas import DataFrame

        tables = {}
        for name, function in self.functions.items():
            with report.refusals(code):
                columns = {kind: score(name, function, rows, written, self.tokenizer, tokens) for kind, written in texts.items()}
                tables[name] = DataFrame(columns, dtype=float)
        return tables

    def total(self, scores: DataFrame) -> Series:
        """Return the weighted sum of a table with one column per reward, as TRL adds: what is not judged adds nothing."""
        return (scores * [self.weights[name] for name in scores.columns]).sum(axis=1, min_count=1)


def load_rewards(report: Report, recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase, *, with_models: bool) -> Rewards:
    """Return the rewards, without those that ask a model of their own unless ``with_models``."""
    functions = reward_functions(recipe, fmt, with_models=with_models)
    if skipped := [name for name in recipe.script.reward_funcs if name not in functions]:
        told = f"{listed(skipped)} asks a model of its own and is left out; --with-models has it judge too"
        report.add(OK, "contract.skipped", told)
    names = recipe.script.reward_funcs
    weights = dict(zip(names, recipe.training.reward_weights or [1.0] * len(names), strict=True))
    return Rewards(functions, weights, tokenizer)


def plain(table: DataFrame) -> dict[str, dict[str, Any]]:
    """Return a table by row and column, ``None`` for NaN, which JSON has not."""
    return table.astype(object).where(table.notna(), None).to_dict("index")


def check_rewards(report: Report, recipe: Recipe, fmt: ResponseFormat, rewards: Rewards, rows: Dataset) -> None:
    """Check what each reward, and their sum, pay for written completions."""
    from pandas import DataFrame

    cases = _cases(report, fmt, [rows[index] for index in spread(len(rows), _SAMPLE)])
    if not cases:
        return
    limit, shortest = recipe.training.max_completion_length, [texts["shortest"] for _, texts in cases]
    # One more for the token that ends the turn.
    need = 1 + max(len(ids) for ids in rewards.tokenizer(shortest, add_special_tokens=False)["input_ids"])
    if need > limit and not recipe.script.smoke:
        told = f"max_completion_length {limit} has no room for an answer: without any reasoning, tags and gold take {need} tokens"
        report.add(ERROR, "contract.room", f"{told}; set it to several times {need}")
    texts = {kind: [texts[kind] for _, texts in cases] for kind in _KINDS}
    tables = rewards.scores(report, "contract.reward_fails", [row for row, _ in cases], texts)
    report.facts["contract_example"] = texts["right"][0]
    report.facts["contract"] = plain(DataFrame({name: table.mean() for name, table in tables.items()}).T)
    for name, table in tables.items():
        _check_reward(report, name, table, cases, routed=hasattr(rewards.functions[name], "judged"))
    if not tables:
        return
    right, wrong, shapeless = (rewards.total(DataFrame({name: table[kind] for name, table in tables.items()})).mean() for kind in _KINDS)
    numbers = f"right {right:.3g}, wrong {wrong:.3g}, without shape {shapeless:.3g}"
    if right <= wrong or right <= shapeless:  # false if no reward judges one of them
        told = f"the weighted sum of the rewards does not prefer a right answer: {numbers}; check reward_weights and their parameters"
        report.add(ERROR if any(name in _ANSWER for name in tables) else WARNING, "contract.total", told)
    elif right > wrong:
        report.add(OK, "contract.total", f"the weighted sum prefers a right answer: {numbers}")


def _cases(report: Report, fmt: ResponseFormat, rows: Sequence[dict[str, Any]]) -> list[Case]:
    cases, refused = [], []
    for row in rows:
        gold = right_answer(row.get("solution"))
        if gold is None:
            continue
        wrong = next((answer for answer in _WRONG if gold not in answer), _WRONG[0])
        written = {"right": (_REASONING, gold), "wrong": (_REASONING, wrong), "shortest": ("1", gold)}
        try:
            texts = {kind: fmt.render_completion(*parts) for kind, parts in written.items()}
        except ValueError as error:
            refused.append(str(error))
        else:
            cases.append((row, texts | {"shapeless": _SHAPELESS}))
    if refused:
        told = f"{len(refused)} of {len(rows)} sampled golds cannot be written as an answer, so no completion is right there: {refused[0]}"
        report.add(WARNING if cases else ERROR, "contract.render", told)
    elif not cases:
        told = f"none of {len(rows)} sampled rows has a gold, so what a right answer scores is not known before a run"
        report.add(WARNING, "contract.no_golds", told)
    return cases


def _check_reward(report: Report, name: str, scores: DataFrame, cases: Sequence[Case], *, routed: bool) -> None:
    judged = scores[scores.right.notna()]
    if judged.empty:
        told = f"{name} judges none of {len(scores)} sampled rows, whatever the answer: see docs/recipes.md for what it needs"
        report.add(OK if routed else WARNING, "contract.unjudged", told)
        return
    full, of = _FULL_MARKS.get(name), f"of {len(judged)} sampled rows"
    below = [] if full is None else list(judged.index[judged.right < full - 1e-6])
    if below:
        row, texts = cases[below[0]]
        told = (
            f"{name} gives a right answer in the format's own words {judged.right[below[0]]:g} instead of {full:g} ({len(below)} {of}; "
            f"gold {clip(str(row['solution']))}, completion {clip(texts['right'], 160)}): check the golds that the mapper reads, and "
            "response_format"
        )
        report.add(graded(len(below) / len(judged), vain=0.5), "contract.right", told)
        return
    other, what = (judged.shapeless, "a text without the format") if name in _SHAPE else (judged.wrong, "a wrong answer")
    # A reward of somebody's own may pay some answers alike.
    paid = (other > judged.right if full is None else other >= judged.right).sum()
    if paid and name not in _BLIND:
        told = f"{name} gives {what} as much as a right answer, or more, on {paid} {of}: check the golds and the reward's parameters"
        report.add(WARNING if full is None else ERROR, "contract.wrong", told)
    elif full is None and judged.mean().nunique() == 1:
        told = f"{name} gives right, wrong and shapeless text alike ({judged.right.mean():.3g}): if it always does, groups have no spread"
        report.add(WARNING, "contract.alike", told)
