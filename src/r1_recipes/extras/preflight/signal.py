"""Sample a few groups from the model, and check that their rewards have spread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import clip
from r1_recipes.extras.preflight.contract import Rewards
from r1_recipes.extras.preflight.findings import OK, WARNING, Report, evenly_spaced, graded
from r1_recipes.generation import Completion, get_generator
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.types import GRPORecipe
from r1_recipes.scoring import score_table

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame, Series

_SHOWN = 5
# For groups whose rewards all have this value: the name of the finding, and the fix.
_SATURATED = (
    (0, "all_zero", "start from SFT or easier problems, and read the completions"),
    (1, "all_one", "use harder problems (keep those that the model sometimes fails)"),
)


def check(
    report: Report,
    recipe: GRPORecipe,
    fmt: ResponseFormat,
    rewards: Rewards,
    rows: Dataset,
    groups: int,
    seconds: float,
) -> None:
    """Sample groups, and report whether GRPO can learn from them. None begins after ``seconds``."""
    groups, tokenizer = min(groups, len(rows)), rewards.tokenizer
    with report.refusals("signal.unusable"):
        drawn, made = sample(report, recipe, fmt, rows, tokenizer, groups, seconds)
        if len(made) < groups:
            message = (
                f"{len(made)} of {groups} groups were sampled within {seconds:g} s. Fix: allow "
                "more time with --seconds, or skip sampling with --no_model"
            )
            report.add(WARNING, "signal.slow", message)
        if made:
            table = score_table(recipe, fmt, drawn, made, tokenizer)
            _check_length(report, table, recipe.training.max_completion_length)
            _check_rewards(report, table, recipe)
            _show_examples(report, table)


def sample(
    report: Report,
    recipe: GRPORecipe,
    fmt: ResponseFormat,
    rows: Dataset,
    tokenizer: Any,
    groups: int,
    seconds: float,
) -> tuple[list[dict[str, Any]], list[list[Completion]]]:
    """Return rows and their completions, sampled with Transformers and the recipe's settings."""
    training, end = recipe.training, time.monotonic() + seconds
    drawn, made = list[dict[str, Any]](), list[list[Completion]]()
    try:
        generate = get_generator(recipe, tokenizer, fmt, "transformers", rows)
        for index in evenly_spaced(len(rows), groups):
            began = time.monotonic()
            if began >= end:
                break
            made += generate(rows.select([index]), training.temperature, training.num_generations)
            drawn.append(rows[index])
            report.seconds.append(time.monotonic() - began)
    # Missing weights, too little memory, an unknown generation argument: quote the library.
    except Exception as error:
        raise RecipeError(
            f"{recipe.path}: cannot sample from {recipe.model.model_name_or_path!r} "
            f"({first_line(error)[:-1]}). To skip sampling, add --no_model"
        ) from error
    return drawn, made


def _check_length(report: Report, table: DataFrame, limit: int) -> None:
    cut, count = int((table["finish_reason"] == "length").sum()), len(table)
    level = graded(cut / count, error_at=0.5, warn_at=0.2)
    share = f"{cut} of {count} completions ({cut / count:.0%})"
    message = f"max_completion_length {limit} cuts {share} before their end"
    if level != OK:
        message += f", so they have no answer to score. Fix: max_completion_length: {2 * limit}"
    if cut == count:
        message += "; if no completion ends, read contract.eos, or start from SFT"
    report.add(level, "signal.truncation", message)


def _check_rewards(report: Report, table: DataFrame, recipe: GRPORecipe) -> None:
    """Report which rewards have spread, and whether their weighted sum has. Add it to the table."""
    from pandas import DataFrame

    scores = table.filter(regex="^reward ").rename(columns=lambda name: name[len("reward ") :])
    names = recipe.script.reward_funcs
    weights = dict(zip(names, recipe.training.reward_weights or [1.0] * len(names), strict=True))
    # As in TRL, a missing score adds nothing.
    factors = [weights.get(name, 1.0) for name in scores]
    scores["sum"] = table["sum"] = (scores * factors).sum(axis=1, min_count=1)
    groups = scores.groupby(table["index"])
    low, high = groups.min(), groups.max()
    varied = high - low > 1e-9
    share = varied.astype(float).where(high.notna()).mean()  # of the groups with a score
    columns = {"judged": scores.count(), "mean": scores.mean(), "std": scores.std(ddof=0)}
    summary = DataFrame({**columns, "groups_with_spread": share})
    report.show("signal", f"{len(table)} completions in {len(low)} groups:", summary)
    for name, row in summary.drop("sum").iterrows():
        if not row.judged:
            report.add(WARNING, "signal.unjudged", f"{name} gave no completion a score")
        elif not row.groups_with_spread:
            message = f"{name}: {row['mean']:.3g} on average, and no group has spread"
            report.add(WARNING, "signal.reward", f"{message}, so GRPO learns nothing from it")
    _check_spread(report, ~varied["sum"], low.drop(columns="sum"), high.drop(columns="sum"))


def _check_spread(report: Report, flat: Series, low: DataFrame, high: DataFrame) -> None:
    """Report how many groups are flat, by their lowest and highest reward."""
    count, groups = int(flat.sum()), len(flat)
    level = graded(count / groups, error_at=0.9, warn_at=0.5)
    if level == OK:
        message = f"{groups - count} of {groups} groups have spread in their summed reward"
        report.add(OK, "signal.spread", f"{message}, so GRPO can learn from them")
        return
    code, rewards = "no_spread", "the same summed reward for all completions"
    advice = "raise temperature or num_generations, or add another reward"
    for value, saturated, remedy in _SATURATED:
        same = (flat & (low.min(axis=1) == value) & (high.max(axis=1) == value)).sum()
        if same > count / 2:
            code, rewards, advice = saturated, f"no spread, {same} of them all {value}", remedy
    message = f"{count} of {groups} groups ({count / groups:.0%}) have {rewards}"
    report.add(level, f"signal.{code}", f"{message}, so GRPO has nothing to compare. Fix: {advice}")


def _show_examples(report: Report, table: DataFrame) -> None:
    """Show five completions from the lowest sum to the highest."""
    ordered = table.assign(sum=table["sum"].fillna(0.0)).sort_values("sum", kind="stable")
    names = [name for name in table if name.startswith("reward ")]
    places = [*evenly_spaced(len(ordered), _SHOWN)[:-1], len(ordered) - 1]
    for number, line in enumerate(ordered.iloc[places].to_dict("records"), start=1):
        scores = ", ".join(f"{name[len('reward ') :]} {line[name]:.3g}" for name in names)
        title = (
            f"Completion {number}: {scores}; sum {line['sum']:.3g}; {line['tokens']} tokens, "
            f"{line['finish_reason']}; reference answer {line['solution']!r}, parsed answer "
            f"{line['answer']!r}; question {clip(line['question'], 80)!r}"
        )
        report.show("signal", title, line["completion"])
