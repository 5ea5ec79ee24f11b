"""Score completions: strict and lenient accuracy, pass@k, maj@n, format, rewards, lengths.

Everything comes from one table with a line per completion. Means have 95 % intervals. Two models
are compared in pairs, row by row.
"""

import contextlib
import logging
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from pandas import DataFrame, Series

from r1_recipes.common.messages import transcript, without_surrogates
from r1_recipes.generation import Completion
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards import COMPARING, answer_rewards, get_reward_funcs
from r1_recipes.rewards.answers import parsed_answer
from r1_recipes.rewards.call import score
from r1_recipes.rewards.tasks import route
from r1_recipes.verification import final_answer

logger = logging.getLogger(__name__)

Scores = dict[str, Any]  # the entry of a model in results.json
Interval = tuple[float, float, float]  # the mean, the lower and the upper bound
_Z = statistics.NormalDist().inv_cdf(0.975)  # two-sided 95 %
# The accuracies of each row that two models are compared by, with their printed names.
COMPARED = {
    "greedy": "greedy",
    "sampled": "sampled",
    "greedy_lenient": "lenient greedy",
    "sampled_lenient": "lenient sampled",
}


def reward_functions(recipe: Recipe, fmt: ResponseFormat) -> dict[str, Callable]:
    """Return the rewards by their names in the recipe, without those that need another model."""
    script, params = recipe.script, recipe.reward_params
    functions = get_reward_funcs(script.reward_funcs, fmt, **params)
    if script.task_rewards:
        functions = route(functions, script.reward_funcs, script.task_rewards, script.task_column)
    named = dict(zip(script.reward_funcs, functions, strict=True))
    return {name: named[name] for name in named if name not in (params.get("reward_models") or ())}


def score_table(
    recipe: Recipe,
    fmt: ResponseFormat,
    rows: Any,
    groups: Sequence[Sequence[Completion]],
    tokenizer: Any,
) -> DataFrame:
    """Return a table with a line per completion. The first completion of a row is greedy."""
    samples = range(-1, len(groups[0]) - 1)  # -1 is greedy
    each, made = [row for row in rows for _ in samples], [*chain(*groups)]
    texts = [without_surrogates(one.text) for one in made]
    tokens, turns = [one.tokens for one in made], [one.turns for one in made]
    functions = reward_functions(recipe, fmt)
    scored = {
        name: score(name, function, each, texts, tokenizer, tokens, turns)
        for name, function in functions.items()
    }
    earned = [one.reward for one in made]
    if any(reward is not None for reward in earned):
        scored = {"environment": earned, **scored}
    # The environment decides what is correct, then the rewards that judge answers.
    judging = ("environment", *answer_rewards(functions))
    decides = {name: scored[name] for name in judging if name in scored}
    if not decides:
        [judge] = get_reward_funcs(["accuracy"], fmt)
        functions = {"accuracy": judge}
        decides = {"accuracy": score("accuracy", judge, each, texts, None, turns=turns)}
    strict, lenient = verdicts(fmt, functions, each, texts, decides)
    well_formed = score("format", get_reward_funcs(["format"], fmt)[0], each, texts, None)
    columns: dict[str, Any] = {
        "index": [index for index in range(len(groups)) for _ in samples],
        "sample": [*samples] * len(groups),
        "question": [row["prompt"][-1]["content"] for row in each],
        "solution": [str(row.get("solution", "")) for row in each],
        "completion": texts,
    }
    if any(turns):
        columns["turns"] = [transcript(messages or ()) for messages in turns]
    columns |= {
        "answer": [parsed_answer(fmt, text) for text in texts],
        "correct": strict,
        "lenient": lenient,
        "format": [bool(value) for value in well_formed],
        **{f"reward {name}": Series(column, dtype=float) for name, column in scored.items()},
        "tokens": tokens,
        "finish_reason": ["stop" if one.finished else "length" for one in made],
    }
    return DataFrame(columns)


def verdicts(
    fmt: ResponseFormat,
    judges: Mapping[str, Callable],
    rows: Sequence[dict[str, Any]],
    texts: Sequence[str],
    scores: Mapping[str, Sequence[float | None]],
) -> tuple[list[bool], list[bool]]:
    """Return whether each completion is correct: the strict and the lenient verdicts.

    A completion is strictly correct if the first of ``scores`` that it has is 1 or more. For
    lenient verdicts, the answer may also be in another place. It is taken from the text after the
    reasoning, or from the whole text if no reasoning is closed: a box, "the answer is", the last
    line, or the last number (as in lm-eval's flexible extraction). A reward that compares with a
    reference answer then scores this answer as if it were in the response format.

    Args:
        fmt: The response format.
        judges: Rewards by name.
        rows: The row of each completion.
        texts: The completions.
        scores: Scores of the completions by the name of the reward, or of the environment.
    """
    strict = lenient = Series([None] * len(texts), dtype=float)
    for name, values in scores.items():
        best, is_open = Series(values, dtype=float), strict.isna()
        strict = strict.fillna(best)
        for pick in (final_answer, _last_number) if name in COMPARING else ():
            wrong = best.index[is_open & (best < 1)]
            moved = {i: text for i in wrong if (text := _moved_answer(fmt, texts[i], pick))}
            if moved:
                asked = [rows[i] for i in moved]
                found = score(name, judges[name], asked, [*moved.values()], None)
                best = Series(found, [*moved], float).combine_first(best)
        lenient = lenient.fillna(best)
    if unjudged := int(strict.isna().sum()):
        logger.warning(
            "%d of %d completions get no score from any of %s, so they count as wrong",
            unjudged,
            len(texts),
            [*scores],
        )
    return (strict >= 1).tolist(), (lenient >= 1).tolist()


def _moved_answer(fmt: ResponseFormat, text: str, pick: Callable[[str], str | None]) -> str | None:
    """Return a completion in the response format, with the answer that ``pick`` finds in ``text``.

    Return ``None`` if there is no answer, or if the format cannot contain it.
    """
    text = fmt.full_text(text)
    if fmt.reasoning_tags:
        text = text.rpartition(fmt.reasoning_tags[1])[2]  # all of it if none is closed
    if answer := pick(text):
        with contextlib.suppress(ValueError):
            return fmt.render_completion("Let me see.", answer)
    return None


def _last_number(text: str) -> str | None:
    numbers = re.findall(r"-?\$?\d(?:[\d.,]*\d)?", text)
    return numbers[-1].replace("$", "") if numbers else None


def summarize(table: DataFrame) -> Scores:
    """Return the scores of a model from its table. ``docs/evaluate_and_serve.md`` explains them.

    Lists have a value per row: accuracies 0 or 1, or the share of correct samples. Format, lengths
    and rewards are those of the samples, or of the greedy completions without samples.
    """
    greedy, sampled = table[table["sample"] < 0], table[table["sample"] >= 0]
    shown, n = greedy if sampled.empty else sampled, int(table["sample"].max()) + 1

    def per_row(lines: DataFrame, column: str) -> list[Any]:
        means = lines.groupby("index")[column].mean().tolist()
        return [None if math.isnan(mean) else mean for mean in means]

    # Where correct samples have no answer, as in an environment, answers are not what is judged.
    right = sampled.loc[sampled["correct"], "answer"]
    voting = sampled if right.empty or right.notna().any() else sampled[:0]
    scores: Scores = {
        "greedy": per_row(greedy, "correct"),
        "sampled": per_row(sampled, "correct"),
        "greedy_lenient": per_row(greedy, "lenient"),
        "sampled_lenient": per_row(sampled, "lenient"),
        "majority": [
            majority(group["answer"], group["correct"]) for _, group in voting.groupby("index")
        ],
        "num_samples": n,
        "greedy_format": float(greedy["format"].mean()),
        "sampled_format": float(sampled["format"].mean()) if n else None,
        "mean_tokens": float(shown["tokens"].mean()),
        "truncated": float((shown["finish_reason"] == "length").mean()),
        "rewards": {
            name.removeprefix("reward "): per_row(shown, name)
            for name in table
            if name.startswith("reward ")
        },
    }
    scores["intervals"] = {
        name: interval(scores[name], max(1, n)) for name in (*COMPARED, "majority") if scores[name]
    }
    scores["pass_at"] = {
        k: interval(pass_at(scores["sampled"], n, k), n)
        for k in sorted({*(2**i for i in range(n.bit_length())), n} - {0})
    }
    return scores


def majority(answers: Iterable[str | None], right: Iterable[bool]) -> float:
    """Return 1.0 if the most frequent answer is correct, else 0.0. The first answer wins a tie."""
    votes: defaultdict[str, list[bool]] = defaultdict(list)
    for answer, correct in zip(answers, right, strict=True):
        if isinstance(answer, str):  # pandas turns None into NaN
            # Ignore case, commas between thousands, a full stop, and white space except between
            # two digits, because 1 1/2 is not 11/2.
            plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", answer)
            plain = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", plain).rstrip(".。").casefold()
            votes[plain].append(correct)
    return float(max(votes.values(), key=len)[0]) if votes else 0.0


def pass_at(shares: Sequence[float], n: int, k: int) -> list[float]:
    """Return the unbiased estimate of pass@k for each row (Chen et al., arXiv:2107.03374).

    ``shares`` are of ``n`` samples, and ``k`` is at most ``n``.
    """
    return [1 - math.comb(n - round(share * n), k) / math.comb(n, k) for share in shares]


def interval(values: Sequence[float], samples: float = math.inf) -> Interval:
    """Return the mean and the 95 % interval of independent values (0..1), one per row.

    It is Wilson's (J. Am. Stat. Assoc. 22, 1927), which stays between 0 and 1 and keeps a width at
    both ends. For shares, an effective number of rows replaces their number: that of 0/1 values
    whose mean would vary equally (Korn and Graubard, Survey Methodology 24, 1998, do this with
    another interval).

    Args:
        values: One value per row.
        samples: The completions behind each value. Shares of so many count as at most so many 0/1
            values each, however equal the rows are.
    """
    mean, n = statistics.fmean(values), float(len(values))
    binomial = mean * (1 - mean)  # the variance of 0/1 values with this mean
    if variance := statistics.pvariance(values):
        n *= min(binomial / variance, samples)
    scale = 1 + _Z**2 / n
    centre = (mean + _Z**2 / (2 * n)) / scale
    half = _Z / scale * math.sqrt(binomial / n + _Z**2 / (4 * n**2))
    # At the ends the bound is exactly 0 or 1. Avoid rounding errors.
    low = 0.0 if mean == 0 else max(0.0, centre - half)
    high = 1.0 if mean == 1 else min(1.0, centre + half)
    return mean, low, high


def difference(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Return the mean of ``after - before`` over the same rows, and its 95 % interval.

    0/1 values get the interval of Bonett and Price (J. Educ. Behav. Stat. 37, 2012), which keeps a
    width even if few rows changed. Others get the normal one.

    Raises:
        ValueError: The numbers of values differ.
    """
    pairs = [b - a for a, b in zip(before, after, strict=True)]
    mean, n = statistics.fmean(pairs), len(pairs)
    if not {*before, *after} <= {0.0, 1.0}:
        half = _Z * statistics.stdev(pairs) / math.sqrt(n) if n > 1 else math.inf
        return mean, mean - half, mean + half
    won, lost = (pairs.count(1.0) + 1) / (n + 2), (pairs.count(-1.0) + 1) / (n + 2)
    half = _Z * math.sqrt((won + lost - (won - lost) ** 2) / (n + 2))
    return mean, max(-1.0, won - lost - half), min(1.0, won - lost + half)


def report(scores: Sequence[Scores], judged_on: str) -> str:
    """Return a Markdown table with a line per model, and each model compared with the one before.

    Adds the differences to the models' scores.
    """
    table = DataFrame([_cells(entry) for entry in scores]).fillna("")
    lines = [[*table], ["---"] * len(table.columns), *table.to_numpy()]
    parts = ["\n".join(f"| {' | '.join(line)} |" for line in lines)]
    for before, after in pairwise(scores):
        found = {name: difference(before[name], after[name]) for name in COMPARED if after[name]}
        said = [f"{COMPARED[name]} {_percent(found[name], 'points', '+')}" for name in found]
        after["difference"] = {"over": before["model"], **found}
        parts.append(
            f"{after['model']} compared with {before['model']}: {', '.join(said)}; paired over the "
            f"same {len(before['greedy'])} problems."
        )
    return "\n\n".join([*parts, f"Judged on {judged_on}. Brackets hold 95 % intervals."])


def _cells(scores: Scores) -> dict[str, str]:
    n, means = scores["num_samples"], scores["intervals"]
    lenient = [means[name][0] for name in ("greedy_lenient", "sampled_lenient") if name in means]
    shares = [scores["greedy_format"], scores["sampled_format"]][: 1 + bool(n)]
    cells = {
        "model": scores["model"],
        "greedy accuracy": _percent(means["greedy"]),
        "sampled accuracy": _percent(means["sampled"]) if n else "",
        "format (greedy / sampled)": " / ".join(f"{100 * share:.0f} %" for share in shares),
        "mean tokens": f"{scores['mean_tokens']:.0f}",
        "lenient (greedy / sampled)": " / ".join(f"{100 * share:.1f} %" for share in lenient),
    }
    if n > 1:  # of a single sample they are its accuracy
        cells[f"maj@{n}"] = _percent(means["majority"]) if scores["majority"] else ""
        cells[f"pass@{n}"] = _percent(scores["pass_at"][n])
    cells["truncated"] = f"{100 * scores['truncated']:.0f} %"
    for name, values in scores["rewards"].items():
        if judged := [value for value in values if value is not None]:
            cells[f"reward {name}"] = f"{statistics.fmean(judged):.3f}"
    return cells


def _percent(values: Interval, unit: str = "%", sign: str = "") -> str:
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in values)
    return f"{mean} {unit} ({low} to {high})"
