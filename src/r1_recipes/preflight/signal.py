"""The signal: a few groups from the model itself, and whether their rewards leave GRPO anything to compare."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.metrics.rows import reward_functions
from r1_recipes.preflight.contract import weights
from r1_recipes.preflight.findings import Report, spread
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.load import Recipe
from r1_recipes.rewards.call import score

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame, Series

    from r1_recipes.completions.backends import Completion

_SHOWN = 5
# Shares of groups without any spread, and of completions that are cut, from which a run is doubtful, and from which it is in vain.
_DOUBTFUL_SPREAD, _VAIN_SPREAD = 0.5, 0.9
_DOUBTFUL_CUTS, _VAIN_CUTS = 0.2, 0.5


@dataclass(frozen=True)
class Group:
    """One prompt's row and its completions."""

    row: dict[str, Any]
    completions: list[Completion]


def check(
    report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset, tokenizer: Any, *, groups: int, seconds: float, with_models: bool
) -> None:
    """Sample ``groups`` groups, for at most about ``seconds``, and judge them."""
    with report.refusals("signal.unusable"):
        groups = min(groups, len(rows))
        sampled = sample(recipe, rows, tokenizer, groups=groups, seconds=seconds)
        if not sampled:
            report.warn(
                "signal.slow",
                f"no group of {recipe.training.num_generations} completions was done within {seconds:g} s on this device; give it more "
                "with --seconds, sample on a GPU, or skip this with --no-model",
            )
            return
        if len(sampled) < groups:
            report.warn("signal.slow", f"{len(sampled)} of {groups} groups were done within {seconds:g} s; the shares below rest on these")
        flat = [(group.row, completion) for group in sampled for completion in group.completions]
        each_row, completions = [row for row, _ in flat], [completion for _, completion in flat]
        texts, tokens = [completion.text for completion in completions], [completion.tokens for completion in completions]
        scores, used = {}, []
        for (name, function), weight in zip(reward_functions(recipe, fmt, with_models=with_models), weights(recipe), strict=True):
            if function is not None:
                with report.refusals("signal.reward_fails"):
                    scores[name] = score(name, function, each_row, texts, tokenizer, tokens)
                    used.append(weight)
        judge(report, recipe, fmt, sampled, scores, used)


def sample(recipe: Recipe, rows: Dataset, tokenizer: Any, *, groups: int, seconds: float) -> list[Group]:
    """Whole groups, with the recipe's own generation settings: one, then as many at once as training generates.

    Raises:
        RecipeError: the model cannot be loaded, or does not generate.
    """
    from tqdm.auto import tqdm
    from transformers import set_seed

    from r1_recipes.completions.backends import complete, load_model, sampling

    training = recipe.training
    settings = sampling(training) | (training.generation_kwargs or {})
    at_once = max(1, training.per_device_train_batch_size * training.steps_per_generation // training.num_generations)
    began = time.monotonic()
    sampled: list[Group] = []
    try:
        model = load_model(recipe)
        set_seed(training.seed)
        waiting = [rows[index] for index in spread(len(rows), groups)]
        with tqdm(total=groups, desc="sampling", unit="group") as bar:
            while waiting and (left := seconds - (time.monotonic() - began)) > 0:
                # If all at once would take too long, one group is better than none.
                count = at_once if sampled else 1
                batch, waiting = waiting[:count], waiting[count:]
                way = (settings | {"max_time": left}, training.num_generations)
                found = complete(model, tokenizer, [row["prompt"] for row in batch], [way], training.max_completion_length)[0]
                # Cut by the clock, not by the recipe; the groups without such a completion are the short ones, and would mislead.
                if any(c.finish_reason == "length" and c.tokens < training.max_completion_length for group in found for c in group):
                    break
                sampled += [Group(row, group) for row, group in zip(batch, found, strict=True)]
                bar.update(len(batch))
    except Exception as error:  # no weights, too little memory, a generation argument that there is not: the library's own words
        raise RecipeError(
            f"{recipe.path}: {recipe.model.model_name_or_path!r} cannot be sampled from ({first_line(error)[:-1]}); --no-model goes without"
        ) from error
    return sampled


def judge(
    report: Report,
    recipe: Recipe,
    fmt: ResponseFormat,
    groups: Sequence[Group],
    scores: dict[str, list[float | None]],
    reward_weights: Sequence[float],
) -> None:
    """Say what GRPO could learn from these groups.

    Args:
        groups: all of one size.
        scores: by reward, one a completion, group after group.
        reward_weights: one a reward, in the same order.
    """
    from pandas import DataFrame

    completions = [completion for group in groups for completion in group.completions]
    frame = DataFrame(scores, index=[number for number, group in enumerate(groups) for _ in group.completions], dtype=float)
    # As TRL adds them: what is not judged adds nothing.
    sums = (frame * list(reward_weights)).sum(axis=1, min_count=1)
    summaries = {name: _summary(frame[name]) for name in scores}
    report.facts["signal"] = {
        "groups": len(groups),
        "completions": len(completions),
        "rewards": summaries | {"sum": _summary(sums)},
        "truncated": sum(completion.finish_reason == "length" for completion in completions) / len(completions),
        "mean_tokens": sum(completion.tokens for completion in completions) / len(completions),
        "examples": _examples(fmt, groups, scores, sums.fillna(0.0).tolist()),
    }
    _check_cuts(report, recipe, completions)
    for name, summary in summaries.items():
        if not summary["judged"]:
            report.warn("signal.unjudged", f"{name} judged none of the completions")
        elif not summary["groups_with_spread"]:
            report.warn("signal.reward", f"{name}: {summary['mean']:.3g} on average, and no group has spread: it tells no completion apart")
    if scores:
        _check_sum(report, frame, sums)


def _check_cuts(report: Report, recipe: Recipe, completions: Sequence[Completion]) -> None:
    limit = recipe.training.max_completion_length
    cut = sum(completion.finish_reason == "length" for completion in completions)
    share = cut / len(completions)
    said = f"max_completion_length {limit} cuts {cut} of {len(completions)} completions ({share:.0%}) before their end"
    if share < _DOUBTFUL_CUTS:
        report.ok("signal.truncation", said)
        return
    (report.error if share >= _VAIN_CUTS else report.warn)(
        "signal.truncation",
        f"{said}, and a cut completion has no answer to pay: raise max_completion_length (twice, {2 * limit}, to begin with)"
        + ("; where not one ends, look at contract.eos, or start from SFT, which teaches the end" if cut == len(completions) else ""),
    )


def _check_sum(report: Report, scores: DataFrame, sums: Series) -> None:
    """The verdict on the sum of rewards, which is what GRPO compares within a group."""
    totals = sums.fillna(0.0).groupby(level=0)
    flat = totals.max() - totals.min() < 1e-9
    count = f"{flat.sum()} of {len(flat)} groups ({flat.mean():.0%})"
    if flat.mean() < _DOUBTFUL_SPREAD:
        report.ok("signal.spread", f"{(~flat).sum()} of {len(flat)} groups have spread in their summed reward: GRPO can learn from them")
        return
    low, high = scores.min(axis=1).groupby(level=0).min(), scores.max(axis=1).groupby(level=0).max()
    zeros, ones = (flat & (low == 0) & (high == 0)).sum(), (flat & (low == 1) & (high == 1)).sum()
    say = report.error if flat.mean() >= _VAIN_SPREAD else report.warn
    if zeros > flat.sum() / 2:
        say(
            "signal.all_zero",
            f"{count} have no spread, {zeros} of them all 0: GRPO has nothing to compare; start from SFT or an easier mix, and read the "
            "sampled completions to see what the rewards do not find",
        )
    elif ones > flat.sum() / 2:
        say(
            "signal.all_one",
            f"{count} have no spread, {ones} of them all 1: the model already earns full marks, and GRPO has nothing to compare; take "
            "harder problems (keep those it sometimes fails), or fewer examples of this kind",
        )
    else:
        say(
            "signal.no_spread",
            f"{count} have the same summed reward throughout: GRPO has nothing to compare; raise temperature or num_generations, or add a "
            "reward that tells these completions apart",
        )


def _summary(values: Series) -> dict[str, Any]:
    judged = values.dropna()
    if judged.empty:
        return {"judged": 0} | dict.fromkeys(("mean", "std", "groups_with_spread", "groups_all_zero", "groups_all_one"))
    low, high = judged.groupby(level=0).min(), judged.groupby(level=0).max()
    return {
        "judged": len(judged),
        "mean": judged.mean(),
        "std": judged.std(ddof=0),
        "groups_with_spread": (high > low).mean(),
        "groups_all_zero": ((low == 0) & (high == 0)).mean(),
        "groups_all_one": ((low == 1) & (high == 1)).mean(),
    }


def _examples(
    fmt: ResponseFormat, groups: Sequence[Group], scores: dict[str, list[float | None]], sums: Sequence[float]
) -> list[dict[str, Any]]:
    """Five completions from the lowest sum to the highest."""
    flat = [(group.row, completion) for group in groups for completion in group.completions]
    order = sorted(range(len(flat)), key=sums.__getitem__)
    picked = [order[position] for position in spread(len(order), _SHOWN)]
    picked[-1] = order[-1]  # the best one is always among them
    return [
        {
            "question": flat[index][0]["prompt"][-1]["content"],
            "solution": flat[index][0].get("solution"),
            "completion": fmt.full_text(flat[index][1].text),
            "answer": fmt.parse(flat[index][1].text).answer,
            "tokens": flat[index][1].tokens,
            "finish_reason": flat[index][1].finish_reason,
            "scores": {name: values[index] for name, values in scores.items()},
            "sum": sums[index],
        }
        for index in picked
    ]
