"""The signal: a few groups from the model itself, and whether their rewards leave GRPO anything to compare."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.completions.transformers import complete, load_model, sampling
from r1_recipes.completions.types import Completion
from r1_recipes.preflight.contract import Rewards, plain
from r1_recipes.preflight.findings import OK, WARNING, Report, graded, spread
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame
    from transformers import PreTrainedTokenizerBase

_SHOWN = 5
# Shares of groups without any spread, and of completions that are cut, from which a run is doubtful, and from which it is in vain.
_DOUBTFUL_SPREAD, _VAIN_SPREAD = 0.5, 0.9
_DOUBTFUL_CUTS, _VAIN_CUTS = 0.2, 0.5

# A row and one of its completions.
Sampled = tuple[dict[str, Any], Completion]


def check(report: Report, recipe: Recipe, fmt: ResponseFormat, rewards: Rewards, rows: Dataset, *, groups: int, seconds: float) -> None:
    """Sample ``groups`` groups, for at most about ``seconds``, and judge them."""
    from pandas import DataFrame

    group, groups = recipe.training.num_generations, min(groups, len(rows))
    with report.refusals("signal.unusable"):
        sampled = sample(recipe, rows, rewards.tokenizer, groups=groups, seconds=seconds)
        done = len(sampled) // group
        if done < groups:
            told = f"{done} of {groups} groups were done within {seconds:g} s; give it more with --seconds, or skip this with --no-model"
            report.add(WARNING, "signal.slow", told)
        if done:
            texts, tokens = [completion.text for _, completion in sampled], [completion.tokens for _, completion in sampled]
            tables = rewards.scores(report, "signal.reward_fails", [row for row, _ in sampled], {"sampled": texts}, tokens)
            scores = DataFrame({name: table["sampled"] for name, table in tables.items()}, index=range(len(sampled)))
            judge(report, recipe, fmt, rewards, sampled, scores)


def sample(recipe: Recipe, rows: Dataset, tokenizer: PreTrainedTokenizerBase, *, groups: int, seconds: float) -> list[Sampled]:
    """Return whole groups, with the recipe's own generation settings: one, then as many at once as training generates.

    Raises:
        RecipeError: the model cannot be loaded, or does not generate.
    """
    from tqdm.auto import tqdm
    from transformers import set_seed

    training = recipe.training
    group, limit = training.num_generations, training.max_completion_length
    settings = sampling(training) | (training.generation_kwargs or {})
    at_once = max(1, training.per_device_train_batch_size * training.steps_per_generation // group)
    began = time.monotonic()
    sampled: list[Sampled] = []
    try:
        model = load_model(recipe)
        set_seed(training.seed)
        waiting = [rows[index] for index in spread(len(rows), groups)]
        with tqdm(total=groups, desc="sampling", unit="group") as bar:
            while waiting and (left := seconds - (time.monotonic() - began)) > 0:
                # If all at once would take too long, one group is better than none.
                count = at_once if sampled else 1
                batch, waiting = waiting[:count], waiting[count:]
                prompts = [row["prompt"] for row in batch]
                found = complete(model, tokenizer, prompts, [(settings | {"max_time": left}, group)], limit)[0]
                done = [(row, completion) for row, own in zip(batch, found, strict=True) for completion in own]
                # Cut by the clock, not by the recipe; the groups without such a completion are the short ones, and would mislead.
                if any(completion.finish_reason == "length" and completion.tokens < limit for _, completion in done):
                    break
                sampled += done
                bar.update(len(batch))
    except Exception as error:  # no weights, too little memory, a generation argument that there is not: the library's own words
        raise RecipeError(
            f"{recipe.path}: {recipe.model.model_name_or_path!r} cannot be sampled from ({first_line(error)[:-1]}); --no-model goes without"
        ) from error
    return sampled


def judge(report: Report, recipe: Recipe, fmt: ResponseFormat, rewards: Rewards, sampled: Sequence[Sampled], scores: DataFrame) -> None:
    """Say what GRPO could learn from these completions.

    Args:
        sampled: group after group, all of one size.
        scores: one row per completion, one column per reward; NaN: not judged.
    """
    from pandas import DataFrame

    with_sum = scores.assign(sum=rewards.total(scores))
    groups = with_sum.groupby(with_sum.index // recipe.training.num_generations)
    low, high = groups.min(), groups.max()
    # Shares of the groups that are judged.
    shares = {
        "groups_with_spread": high - low > 1e-9,
        "groups_all_zero": (low == 0) & (high == 0),
        "groups_all_one": (low == 1) & (high == 1),
    }
    summary = DataFrame(
        {"judged": with_sum.count(), "mean": with_sum.mean(), "std": with_sum.std(ddof=0)}
        | {name: held.astype(float).where(high.notna()).mean() for name, held in shares.items()}
    )
    completions, of = [completion for _, completion in sampled], len(sampled)
    cut = sum(completion.finish_reason == "length" for completion in completions)
    report.facts["signal"] = {
        "groups": len(low),
        "completions": of,
        "rewards": plain(summary),
        "truncated": cut / of,
        "mean_tokens": sum(completion.tokens for completion in completions) / of,
        "examples": _examples(fmt, sampled, with_sum),
    }
    limit, level = recipe.training.max_completion_length, graded(cut / of, _VAIN_CUTS, _DOUBTFUL_CUTS)
    said = f"max_completion_length {limit} cuts {cut} of {of} completions ({cut / of:.0%}) before their end"
    if level != OK:
        said += f", and a cut completion has no answer to pay: raise max_completion_length (twice, {2 * limit}, to begin with)"
    if cut == of:
        said += "; where not one ends, look at contract.eos, or start from SFT, which teaches the end"
    report.add(level, "signal.truncation", said)
    for name, row in summary.drop("sum").iterrows():
        if not row.judged:
            report.add(WARNING, "signal.unjudged", f"{name} judged none of the completions")
        elif not row.groups_with_spread:
            said = f"{name}: {row['mean']:.3g} on average, and no group has spread: it tells no completion apart"
            report.add(WARNING, "signal.reward", said)
    if len(scores.columns):
        _check_spread(report, low, high)


def _check_spread(report: Report, low: DataFrame, high: DataFrame) -> None:
    """Judge the sum of rewards, which is what GRPO compares within a group, from each group's lowest and highest scores."""
    # A sum that is not judged is 0 to TRL.
    flat = ~(high["sum"] - low["sum"] > 1e-9)
    count, of = flat.sum(), len(flat)
    level = graded(count / of, _VAIN_SPREAD, _DOUBTFUL_SPREAD)
    if level == OK:
        report.add(OK, "signal.spread", f"{of - count} of {of} groups have spread in their summed reward: GRPO can learn from them")
        return
    lowest, highest = low.drop(columns="sum").min(axis=1), high.drop(columns="sum").max(axis=1)
    zeros, ones = ((flat & (lowest == value) & (highest == value)).sum() for value in (0, 1))
    kind, held, advice = "no_spread", "the same summed reward throughout", "raise temperature or num_generations, or add another reward"
    if zeros > count / 2:
        kind, held, advice = "all_zero", f"no spread, {zeros} of them all 0", "start from SFT or an easier mix, and read the completions"
    elif ones > count / 2:
        kind, held, advice = "all_one", f"no spread, {ones} of them all 1", "take harder problems (keep those it sometimes fails)"
    said = f"{count} of {of} groups ({count / of:.0%}) have {held}: GRPO has nothing to compare; {advice}"
    report.add(level, f"signal.{kind}", said)


def _examples(fmt: ResponseFormat, sampled: Sequence[Sampled], scores: DataFrame) -> list[dict[str, Any]]:
    """Return five completions from the lowest sum to the highest."""
    order = list(scores["sum"].fillna(0.0).sort_values(kind="stable").index)
    picked = [*(order[position] for position in spread(len(order), _SHOWN)[:-1]), order[-1]]  # the best one is always among them
    given = plain(scores)
    return [
        {
            "question": row["prompt"][-1]["content"],
            "solution": row.get("solution"),
            "completion": fmt.full_text(completion.text),
            "answer": fmt.parse(completion.text).answer,
            "tokens": completion.tokens,
            "finish_reason": completion.finish_reason,
            "scores": given[index],
        }
        for index, (row, completion) in ((index, sampled[index]) for index in picked)
    ]
