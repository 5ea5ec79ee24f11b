"""The signal: a few groups from the model itself, and whether their rewards leave GRPO anything to compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.metrics.rows import reward_functions
from r1_recipes.preflight_checks.findings import Report, spread
from r1_recipes.preflight_checks.judging import total, weights
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.rewards.call import score

if TYPE_CHECKING:
    from datasets import Dataset

    from r1_recipes.completions.types import Completion

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
    """Sample ``groups`` groups, for at most about ``seconds``, and judge them.

    Args:
        groups: prompts, evenly spread over the rows.
        seconds: no group is begun after these, and those that are under way are given up.
        with_models: have rewards judge that need a model or a server of their own.
    """
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
        each_row = [group.row for group in sampled for _ in group.completions]
        completions = [completion for group in sampled for completion in group.completions]
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

    from r1_recipes.completions.transformers import complete, load_model, sampling

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
                # Where all at once would take too long, one group is better than none.
                count = at_once if sampled else 1
                batch, waiting = waiting[:count], waiting[count:]
                plan = (settings | {"max_time": left}, training.num_generations)
                found = complete(model, tokenizer, [row["prompt"] for row in batch], [plan], training.max_completion_length)[0]
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
    size = len(groups[0].completions)
    completions = [completion for group in groups for completion in group.completions]
    each = list(zip(*scores.values(), strict=True)) or [()] * len(completions)
    sums = [total(values, reward_weights) for values in each]
    report.facts["signal"] = {
        "groups": len(groups),
        "completions": len(completions),
        "rewards": {name: _summary(values, size) for name, values in scores.items()} | {"sum": _summary(sums, size)},
        "truncated": sum(completion.finish_reason == "length" for completion in completions) / len(completions),
        "mean_tokens": sum(completion.tokens for completion in completions) / len(completions),
        "examples": _examples(fmt, groups, scores, sums),
    }
    _check_cuts(report, recipe, completions)
    for name, values in scores.items():
        _check_reward(report, name, _by_group(values, size))
    if scores:
        _check_sum(report, _by_group(each, size), _by_group(sums, size))


def _check_cuts(report: Report, recipe: Recipe, completions: Sequence[Completion]) -> None:
    limit = recipe.training.max_completion_length
    cut = sum(completion.finish_reason == "length" for completion in completions)
    share = cut / len(completions)
    lengths = sorted(completion.tokens for completion in completions)
    said = f"max_completion_length {limit} cuts {cut} of {len(completions)} completions ({share:.0%}) before their end"
    if share >= _DOUBTFUL_CUTS:
        (report.error if share >= _VAIN_CUTS else report.warn)(
            "signal.truncation",
            f"{said}, and a cut completion has no answer to pay: raise max_completion_length (twice, {2 * limit}, to begin with)"
            + ("; where not one ends, look at contract.eos, or start from SFT, which teaches the end" if cut == len(completions) else ""),
        )
    else:
        half = lengths[(len(lengths) - 1) // 2]
        report.ok("signal.truncation", f"{said}; half of them have {half} tokens or fewer, the longest {lengths[-1]}")


def _check_reward(report: Report, name: str, groups: Sequence[Sequence[float | None]]) -> None:
    judged = [[value for value in group if value is not None] for group in groups]
    judged = [group for group in judged if group]
    if not judged:
        report.warn("signal.unjudged", f"{name} judged none of the completions")
        return
    flat = [group for group in judged if max(group) == min(group)]
    zeros, ones = _constant(flat, 0.0), _constant(flat, 1.0)
    values = [value for group in judged for value in group]
    said = f"{name}: mean {statistics.fmean(values):.3g}, standard deviation {statistics.pstdev(values):.3g}"
    if len(flat) == len(judged):
        which = "all 0" if zeros == len(flat) else "all 1" if ones == len(flat) else "all alike"
        report.warn("signal.reward", f"{said}; {len(flat)} of {len(judged)} groups are {which}, so it tells no completion from another")
    else:
        report.ok("signal.reward", f"{said}; {len(judged) - len(flat)} of {len(judged)} groups have spread")


def _check_sum(report: Report, groups: Sequence[Sequence[tuple[float | None, ...]]], sums: Sequence[Sequence[float | None]]) -> None:
    """The verdict on the sum of rewards, which is what GRPO compares within a group."""
    totals = [[0.0 if value is None else value for value in group] for group in sums]
    flat = [index for index, group in enumerate(totals) if max(group) - min(group) < 1e-9]
    share = len(flat) / len(totals)
    count = f"{len(flat)} of {len(totals)} groups ({share:.0%})"
    if share < _DOUBTFUL_SPREAD:
        report.ok(
            "signal.spread",
            f"{len(totals) - len(flat)} of {len(totals)} groups have spread in their summed reward: GRPO can learn from them",
        )
        return
    say = report.error if share >= _VAIN_SPREAD else report.warn
    values = [{value for scores in groups[index] for value in scores if value is not None} for index in flat]
    zeros = sum(found == {0.0} for found in values)
    ones = sum(found == {1.0} for found in values)
    if zeros > len(flat) / 2:
        say(
            "signal.all_zero",
            f"{count} have no spread, {zeros} of them all 0: GRPO has nothing to compare; start from SFT or an easier mix, and read the "
            "sampled completions to see what the rewards do not find",
        )
    elif ones > len(flat) / 2:
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


def _summary(values: Sequence[float | None], size: int) -> dict[str, Any]:
    judged = [value for value in values if value is not None]
    groups = [[value for value in group if value is not None] for group in _by_group(values, size)]
    groups = [group for group in groups if group]
    return {
        "judged": len(judged),
        "mean": statistics.fmean(judged) if judged else None,
        "std": statistics.pstdev(judged) if judged else None,
        "groups_with_spread": sum(max(group) > min(group) for group in groups) / len(groups) if groups else None,
        "groups_all_zero": _constant(groups, 0.0) / len(groups) if groups else None,
        "groups_all_one": _constant(groups, 1.0) / len(groups) if groups else None,
    }


def _examples(
    fmt: ResponseFormat, groups: Sequence[Group], scores: dict[str, list[float | None]], sums: Sequence[float | None]
) -> list[dict[str, Any]]:
    """Five completions from the lowest sum to the highest."""
    flat = [(group.row, completion) for group in groups for completion in group.completions]
    order = sorted(range(len(flat)), key=lambda index: sums[index] or 0.0)
    picked = [order[position] for position in spread(len(order), _SHOWN)]
    if len(order) > _SHOWN:
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


def _constant(groups: Sequence[Sequence[float]], value: float) -> int:
    return sum(all(one == value for one in group) for group in groups)


def _by_group(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[begin : begin + size] for begin in range(0, len(values), size)]
