"""Check the rewards: on answers written by hand, and on groups that the model samples.

A correct answer in the response format must score higher than any other text, and the rewards of
a group must differ, or GRPO has nothing to compare.
"""

from collections.abc import Callable, Mapping
from typing import Any

from r1_recipes.common.messages import clip
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report, evenly_spaced, graded
from r1_recipes.generation import Completion, get_generator
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe import Recipe
from r1_recipes.rewards import ANSWERS
from r1_recipes.rewards.call import right_answer, score
from r1_recipes.scoring import score_table

Row = dict[str, Any]
# Three visible steps and no repeated phrase, so that rewards for steps and repetition give full
# marks.
_REASONING = (
    "Step 1: Read the question.\nStep 2: Work through what it gives.\nStep 3: Write down the "
    "result."
)
# For groups whose rewards all have this value: the name of the finding, and the fix.
_SATURATED = (
    (0, "all_zero", "start from SFT or easier problems, and read the completions"),
    (1, "all_one", "use harder problems (keep those that the model sometimes fails)"),
)


def check_written(
    report: Report,
    fmt: ResponseFormat,
    tokenizer: Any,
    functions: Mapping[str, Callable],
    weights: Mapping[str, float],
    sample: list[Row],
) -> None:
    """Check the scores of each reward, and of their sum, for completions written by hand."""
    from pandas import DataFrame, Series

    rows, texts = _written(report, fmt, sample)
    if not rows or not functions:
        return
    report.show("contract", "A correct answer in the response format:", texts["right"][0])
    means, total = {}, Series(0.0, index=list(texts))
    for name, function in functions.items():
        with report.refusals("contract.reward_fails"):
            columns = {
                kind: score(name, function, rows, written, tokenizer)
                for kind, written in texts.items()
            }
            scores = DataFrame(columns, dtype=float)
            if name in ANSWERS:
                _check_right(report, name, scores.right, texts["right"])
            means[name] = scores.mean()
            # As in TRL, a missing score adds nothing.
            total += weights[name] * scores.fillna(0).mean()
    report.show("contract", "Mean reward of completions written by hand:", DataFrame(means).T)
    numbers = ", ".join(f"{kind} {value:.3g}" for kind, value in total.items())
    level, message = OK, f"the weighted sum prefers a correct answer: {numbers}"
    if total.right <= max(total.wrong, total.shapeless):
        level = WARNING if ANSWERS.isdisjoint(means) else ERROR
        message = (
            f"the weighted sum of the rewards does not prefer a correct answer: {numbers}. Fix: "
            "check reward_weights and the parameters of the rewards"
        )
    report.add(level, "contract.total", message)


def _written(
    report: Report, fmt: ResponseFormat, sample: list[Row]
) -> tuple[list[Row], dict[str, list[str]]]:
    """Return the rows with a reference answer, and three completions of each."""
    rows, refused = list[Row](), list[ValueError]()
    texts: dict[str, list[str]] = {"right": [], "wrong": [], "shapeless": []}
    for row in sample:
        answer = right_answer(row.get("solution"))
        if answer is None:
            continue
        try:
            texts["right"].append(fmt.render_completion(_REASONING, answer))
        except ValueError as error:
            refused.append(error)
            continue
        wrong = "-30" if answer in "-17" else "-17"
        texts["wrong"].append(fmt.render_completion(_REASONING, wrong))
        texts["shapeless"].append("I do not know what to say here.")
        rows.append(row)
    if refused:
        count = f"{len(refused)} of {len(sample)} sampled reference answers"
        message = f"{count} do not fit the format, so no answer is correct: {refused[0]}. Fix: "
        message += "another response_format, or a prefill with which its layout begins"
        report.add(WARNING if rows else ERROR, "contract.render", message)
    return rows, texts


def _check_right(report: Report, name: str, scores: Any, texts: list[str]) -> None:
    """Report rows whose correct answer does not get full marks from a reward for answers."""
    low, count = scores[scores < 1 - 1e-6], scores.count()
    if low.empty:
        return
    first = low.index[0]
    message = (
        f"{name} gives a correct answer in the response format {low[first]:g} instead of 1 "
        f"({len(low)} of {count} sampled rows; the first is {clip(texts[first], 200)!r}). Fix: "
        "check the column that the mapper reads, and response_format"
    )
    report.add(graded(len(low) / count, error_at=0.5), "contract.right", message)


def check_sampled(
    report: Report,
    recipe: Recipe,
    fmt: ResponseFormat,
    tokenizer: Any,
    weights: Mapping[str, float],
    rows: Any,
    groups: int,
) -> None:
    """Sample groups, and report whether GRPO can learn from them."""
    from transformers import set_seed  # heavy

    training, picked = recipe.training, rows.select(evenly_spaced(len(rows), groups))
    generate = get_generator(recipe, tokenizer, fmt, "transformers", rows)
    set_seed(training.seed)  # the same command finds the same
    made: list[list[Completion]] = []
    for index in range(len(picked)):
        one = picked.select([index])
        made += generate(one, training.temperature, training.num_generations)
    table = score_table(recipe, fmt, picked, made, tokenizer)
    cut, count = int((table["finish_reason"] == "length").sum()), len(table)
    level, limit = graded(cut / count, error_at=0.5, warn_at=0.2), training.max_completion_length
    message = (
        f"max_completion_length {limit} cuts {cut} of {count} completions ({cut / count:.0%}) "
        "before their end"
    )
    if level != OK:
        message += (
            f", so they have no answer to score. Fix: max_completion_length: {2 * limit}; if no "
            "completion ends, read contract.eos, or start from SFT"
        )
    report.add(level, "signal.truncation", message)
    _check_spread(report, table, weights)


def _check_spread(report: Report, table: Any, weights: Mapping[str, float]) -> None:
    """Report which rewards have spread, and whether their weighted sum has."""
    scores = table.filter(regex="^reward ")
    # As in TRL, a missing score adds nothing, and an environment's reward has weight 1.
    factors = [weights.get(name.removeprefix("reward "), 1.0) for name in scores]
    scores["sum"] = (scores * factors).sum(axis=1)
    by_group = scores.groupby(table["index"])
    varied = by_group.max() - by_group.min() > 1e-9
    summary = scores.agg(["count", "mean", "std"]).T.assign(groups_with_spread=varied.mean())
    report.show("signal", f"{len(table)} completions in {len(varied)} groups:", summary)
    answers = [name for name in scores if name.removeprefix("reward ") in ANSWERS]
    none_right = (scores[answers] == 0).all(axis=None)
    for name in scores.columns.drop("sum"):
        if not varied[name].any():
            message = f"{name}: no group has spread, so GRPO learns nothing from it"
            if name in answers and none_right and varied["sum"].any():
                # Advantages are divided by the group's deviation, so a small weight does not help.
                message += (
                    ". The other rewards alone then train the model, whatever their weights, and "
                    "it may stop to reason for the sake of the form (docs/results.md). Fix: a "
                    "response_format that it writes already, or SFT first"
                )
            report.add(WARNING, "signal.reward", message)
    flat = ~varied["sum"]
    count, groups = int(flat.sum()), len(flat)
    level = graded(count / groups, error_at=0.9, warn_at=0.5)
    code, advice = "no_spread", "raise temperature or num_generations, or add another reward"
    message = f"{count} of {groups} groups ({count / groups:.0%}) have no spread"
    rewards = by_group.first()[flat].drop(columns="sum")
    for value, saturated, remedy in _SATURATED:
        same = (rewards.fillna(value) == value).all(axis=1).sum()
        if same > count / 2:
            code, advice, message = saturated, remedy, f"{message}, {same} of them all {value}"
    message += f", so GRPO has nothing to compare. Fix: {advice}"
    if level == OK:
        code = "spread"
        message = f"{groups - count} of {groups} groups have spread in their summed reward"
    report.add(level, f"signal.{code}", message)
    _show_examples(report, table.assign(sum=scores["sum"]).sort_values("sum", kind="stable"))


def _show_examples(report: Report, table: Any) -> None:
    facts = ("sum", "tokens", "finish_reason", "solution", "answer", "question")
    shown = [*table.filter(regex="^reward "), *facts]
    places = [*evenly_spaced(len(table), 5)[:-1], len(table) - 1]
    for line in table.round(3).iloc[places].to_dict("records"):
        text = "; ".join(f"{name} {line[name]}" for name in shown)
        report.show("signal", f"A completion: {clip(text, 300)}", line["completion"])
