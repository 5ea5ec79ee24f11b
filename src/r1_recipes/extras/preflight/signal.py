"""Sample a few groups from the model, and check that their rewards have spread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import clip
from r1_recipes.extras.preflight.contract import Rewards, Row
from r1_recipes.extras.preflight.findings import OK, WARNING, Report, evenly_spaced, graded
from r1_recipes.generation import Completion, get_generator
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.types import GRPORecipe

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame, Series

_SHOWN = 5
# For groups whose rewards all have this value: the name of the finding, and the fix.
_SATURATED = (
    (0, "all_zero", "start from SFT or easier problems, and read the completions"),
    (1, "all_one", "use harder problems (keep those that the model sometimes fails)"),
)
Sampled = tuple[Row, Completion]  # A row, and a completion of it.


def check(
    report: Report,
    recipe: GRPORecipe,
    fmt: ResponseFormat,
    rewards: Rewards,
    rows: Dataset,
    groups: int,
    seconds: float,
) -> None:
    """Sample and check groups. No group begins after ``seconds``."""
    from pandas import DataFrame

    groups = min(groups, len(rows))
    with report.refusals("signal.unusable"):
        sampled = sample(report, recipe, fmt, rows, rewards.tokenizer, groups, seconds)
        if len(report.seconds) < groups:
            message = (
                f"{len(report.seconds)} of {groups} groups were sampled within {seconds:g} s. Fix: "
                f"allow more time with --seconds, or skip sampling with --no_model"
            )
            report.add(WARNING, "signal.slow", message)
        if sampled:
            drawn, made = zip(*sampled, strict=True)
            texts = {"sampled": [one.text for one in made]}
            tokens, turns = [one.tokens for one in made], [one.turns for one in made]
            tables = rewards.scores(report, "signal.reward_fails", drawn, texts, tokens, turns)
            columns = {name: table["sampled"] for name, table in tables.items()}
            scores = DataFrame(columns, index=range(len(sampled)))
            earned = [one.reward for one in made]
            if any(reward is not None for reward in earned):
                scores["environment"] = earned
            check_scores(report, recipe, fmt, rewards, sampled, scores)


def sample(
    report: Report,
    recipe: GRPORecipe,
    fmt: ResponseFormat,
    rows: Dataset,
    tokenizer: Any,
    groups: int,
    seconds: float,
) -> list[Sampled]:
    """Return the completions of whole groups, sampled as the recipe says, with Transformers."""
    training, sampled, end = recipe.training, list[Sampled](), time.monotonic() + seconds
    try:
        generate = get_generator(recipe, tokenizer, fmt, "transformers", rows)
        for index in evenly_spaced(len(rows), groups):
            began = time.monotonic()
            if began >= end:
                break
            [group] = generate(rows.select([index]), training.temperature, training.num_generations)
            sampled += [(rows[index], completion) for completion in group]
            report.seconds.append(time.monotonic() - began)
    # Missing weights, too little memory, an unknown generation argument: quote the library.
    except Exception as error:
        raise RecipeError(
            f"{recipe.path}: cannot sample from {recipe.model.model_name_or_path!r} "
            f"({first_line(error)[:-1]}). To skip sampling, add --no_model"
        ) from error
    return sampled


def check_scores(
    report: Report,
    recipe: GRPORecipe,
    fmt: ResponseFormat,
    rewards: Rewards,
    sampled: Sequence[Sampled],
    scores: DataFrame,
) -> None:
    """Report whether GRPO can learn from these groups.

    ``scores`` has a line per completion and a column per reward. NaN means no score.
    """
    from pandas import DataFrame

    scores = scores.assign(sum=rewards.total(scores))
    groups = scores.groupby(scores.index // recipe.training.num_generations)
    low, high = groups.min(), groups.max()
    varied = high - low > 1e-9
    # Only groups with a score count.
    share = varied.astype(float).where(high.notna()).mean()
    columns = {"judged": scores.count(), "mean": scores.mean(), "std": scores.std(ddof=0)}
    summary = DataFrame({**columns, "groups_with_spread": share})
    report.show("signal", f"{len(sampled)} completions in {len(low)} groups:", summary)
    _show_examples(report, fmt, sampled, scores)
    cut = sum(not completion.finished for _, completion in sampled)
    _check_truncation(report, recipe.training.max_completion_length, cut, len(sampled))
    by_reward = summary.drop("sum")
    for name, row in by_reward.iterrows():
        if not row.judged:
            report.add(WARNING, "signal.unjudged", f"{name} gave no completion a score")
        elif not row.groups_with_spread:
            message = f"{name}: {row['mean']:.3g} on average, and no group has spread"
            report.add(WARNING, "signal.reward", f"{message}, so GRPO learns nothing from it")
    if not by_reward.empty:
        lowest = low[by_reward.index].min(axis=1)
        highest = high[by_reward.index].max(axis=1)
        _check_spread(report, ~varied["sum"], lowest, highest)  # TRL reads a missing sum as 0.
    settings = recipe.script.dynamic_sampling
    if settings:
        reward = settings.get("reward") or "sum"
        _check_rounds(report, settings["max_rounds"], share[reward])


def _check_truncation(report: Report, limit: int, cut: int, count: int) -> None:
    level = graded(cut / count, error_at=0.5, warn_at=0.2)
    share = f"{cut} of {count} completions ({cut / count:.0%})"
    message = f"max_completion_length {limit} cuts {share} before their end"
    if level != OK:
        message += ", so they have no answer to score. "
        message += f"Fix: max_completion_length: {2 * limit}"
    if cut == count:
        message += "; if no completion ends, read contract.eos, or start from SFT"
    report.add(level, "signal.truncation", message)


def _check_spread(report: Report, flat: Series, lowest: Series, highest: Series) -> None:
    """Report how many groups are flat, by their lowest and highest reward."""
    count, groups = flat.sum(), len(flat)
    level = graded(count / groups, error_at=0.9, warn_at=0.5)
    if level == OK:
        message = f"{groups - count} of {groups} groups have spread in their summed reward"
        report.add(OK, "signal.spread", f"{message}, so GRPO can learn from them")
        return
    code, rewards = "no_spread", "the same summed reward for all completions"
    advice = "raise temperature or num_generations, or add another reward"
    for value, saturated, remedy in _SATURATED:
        same = (flat & (lowest == value) & (highest == value)).sum()
        if same > count / 2:
            code, rewards, advice = saturated, f"no spread, {same} of them all {value}", remedy
    message = f"{count} of {groups} groups ({count / groups:.0%}) have {rewards}"
    report.add(level, f"signal.{code}", f"{message}, so GRPO has nothing to compare. Fix: {advice}")


def _check_rounds(report: Report, rounds: int, spread: float) -> None:
    """Report what dynamic sampling costs with this share of groups that have spread, if each
    further round samples as many groups as are missing.
    """
    flat = 1 - spread
    sampled = sum(flat**earlier for earlier in range(rounds))
    filled = 1 - flat**rounds
    message = (
        f"dynamic_sampling samples {sampled:.1f} times a batch in up to {rounds} rounds, after "
        f"which {filled:.0%} of its groups have spread"
    )
    report.add(graded(1 - filled, error_at=1.0, warn_at=0.5), "signal.rounds", message)


def _show_examples(
    report: Report, fmt: ResponseFormat, sampled: Sequence[Sampled], scores: DataFrame
) -> None:
    """Show five completions from the lowest sum to the highest."""
    order = scores["sum"].fillna(0.0).sort_values(kind="stable").index
    best = len(order) - 1
    positions = [*evenly_spaced(len(order), _SHOWN)[:-1], best]
    for number, index in enumerate(order[positions], start=1):
        row, completion = sampled[index]
        values = []
        for name, value in scores.loc[index].items():
            missing = value != value  # Only NaN differs from itself.
            values.append(f"{name} no score" if missing else f"{name} {value:.3g}")
        answer = fmt.parse(completion.text).answer
        question = clip(row["prompt"][-1]["content"], 80)
        title = (
            f"Completion {number}: {', '.join(values)}; {completion.tokens} tokens, "
            f"{'finished' if completion.finished else 'cut'}; reference answer "
            f"{row.get('solution')!r}, parsed answer {answer!r}; question {question!r}"
        )
        report.show("signal", title, fmt.full_text(completion.text))
