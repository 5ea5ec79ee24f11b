"""Accuracy of checkpoints on a recipe's held-out rows: greedy and sampled, several models on the same rows, with intervals.

``python -m r1_recipes.evaluate recipes/NAME.yaml --model A --model B [--num_samples 4] [--output FILE.json]``
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes import runtime
from r1_recipes.errors import RecipeError

if TYPE_CHECKING:
    from datasets import Dataset

    from r1_recipes.formats import ResponseFormat
    from r1_recipes.recipe import Recipe

logger = logging.getLogger("r1_recipes.evaluate")  # under `python -m` this module is called __main__

# Completions generated at once: enough to fill a core's matrix units, little enough for a laptop's memory.
BATCH_SIZE = 128
# Two-sided 95 %.
_Z = 1.959964


@dataclass
class Scores:
    """What one model did on the held-out rows.

    Attributes:
        model: path or id.
        greedy: per row, 1.0 where the greedy completion is right.
        sampled: per row, the share of its sampled completions that is right.
        greedy_format: share of greedy completions in the recipe's format.
        sampled_format: the same of sampled ones.
        language: mean language consistency of the sampled completions' reasoning, 0..1, by the reward of that name; ``None`` where it
            can judge none.
        mean_tokens: mean length of sampled completions.
        truncated: share of sampled completions that reached the length limit.
        examples: a few greedy completions, for people.
    """

    model: str
    greedy: list[float]
    sampled: list[float]
    greedy_format: float
    sampled_format: float
    language: float | None
    mean_tokens: float
    truncated: float
    examples: list[dict[str, str]] = field(default_factory=list)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of independent values, one a row.

    0/1 values get Wilson's interval, which stays inside 0..1 and does not collapse at the ends; others the normal one.

    Returns:
        ``(mean, low, high)``.
    """
    n = len(values)
    mean = sum(values) / n
    if all(value in (0.0, 1.0) for value in values):
        centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2))
        # At the ends the bound is 0 or 1 exactly; rounding must not say otherwise.
        return mean, 0.0 if mean == 0 else centre - half, 1.0 if mean == 1 else centre + half
    return mean, mean - _Z * _standard_error(values, mean), mean + _Z * _standard_error(values, mean)


def paired_difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Mean of ``after - before`` over the same rows, with its 95 % interval.

    Returns:
        ``(difference, low, high)``.

    Raises:
        ValueError: the lists are not equally long.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    mean = sum(differences) / len(differences)
    half = _Z * _standard_error(differences, mean)
    return mean, mean - half, mean + half


def _standard_error(values: Sequence[float], mean: float) -> float:
    n = len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n) if n > 1 else float("inf")


def evaluate_model(
    name: str, rows: Dataset, recipe: Recipe, *, num_samples: int, batch_size: int, seed: int, label: str | None = None
) -> Scores:
    """Generate greedily and ``num_samples`` times at the recipe's temperature for every row, and judge by ``accuracy`` and ``format``.

    Args:
        name: model path or id.
        rows: ``prompt``, ``solution`` and task columns, as :func:`r1_recipes.data.load_dataset` gives them.
        recipe: a GRPO recipe; its generation settings are used.
        num_samples: sampled completions a row.
        batch_size: completions generated at once.
        seed: of the sampling.
        label: what the progress bar calls it; ``None``: the last part of the name.
    """
    from tqdm.auto import tqdm
    from transformers import set_seed

    from r1_recipes.backends import complete, load_model, sampling

    recipe.model.model_name_or_path = name
    tokenizer, fmt = runtime.load_tokenizer(recipe)
    model = load_model(recipe)
    set_seed(seed)
    training = recipe.training
    ways = [(sampling(training, temperature=0), 1), (sampling(training), num_samples)]
    greedy, sampled, lengths, truncated = [], [], [], 0
    step = max(1, batch_size // num_samples)
    with tqdm(total=len(rows) * (1 + num_samples), desc=label or Path(name).name, unit="completion") as bar:
        for begin in range(0, len(rows), step):
            prompts = rows["prompt"][begin : begin + step]
            firsts, others = complete(model, tokenizer, prompts, ways, training.max_completion_length)
            greedy += [completion.text for (completion,) in firsts]
            sampled += [completion.text for group in others for completion in group]
            lengths += [completion.tokens for group in others for completion in group]
            truncated += sum(completion.finish_reason == "length" for group in others for completion in group)
            bar.update(len(prompts) * (1 + num_samples))
    greedy_right, greedy_format, _ = _judge(fmt, rows, greedy, 1)
    sampled_right, sampled_format, language = _judge(fmt, rows, sampled, num_samples)
    return Scores(
        model=name,
        greedy=greedy_right,
        sampled=sampled_right,
        greedy_format=greedy_format,
        sampled_format=sampled_format,
        language=language,
        mean_tokens=sum(lengths) / len(lengths),
        truncated=truncated / len(lengths),
        examples=[
            {"question": rows[i]["prompt"][-1]["content"], "completion": greedy[i], "solution": rows[i]["solution"]}
            for i in range(min(3, len(rows)))
        ],
    )


def held_out_rows(recipe: Recipe) -> Dataset:
    """The recipe's test split, whole (length limits are for training) but for rows whose gold cannot be judged by; those are counted.

    Raises:
        RecipeError: the split cannot be read, or no row can be judged.
    """
    from r1_recipes.data import load_dataset
    from r1_recipes.formats import get_response_format
    from r1_recipes.verification import grade

    script = recipe.script
    script.max_prompt_tokens = script.max_solution_tokens = None
    fmt = get_response_format(script.response_format, system_prompt=script.system_prompt, prefill=script.prefill)
    rows, report = load_dataset(script, fmt, "grpo", split="test")
    logger.info("held out: %s", report)
    if "scorer" in rows.column_names:
        return rows
    judged = [index for index, verdict in enumerate(grade(rows["solution"], [None] * len(rows))) if verdict is not None]
    if len(judged) < len(rows):
        logger.warning("%d of %d held-out golds are not mathematics; those rows are left out", len(rows) - len(judged), len(rows))
    if not judged:
        raise RecipeError(f"{recipe.path}: no held-out gold can be judged; the first is {rows[0]['solution']!r}")
    return rows.select(judged)


def _judge(fmt: ResponseFormat, rows: Dataset, texts: list[str], samples: int) -> tuple[list[float], float, float | None]:
    """Share of right completions a row, share of all in the format, and mean language consistency."""
    from r1_recipes.rewards import get_reward_funcs

    accuracy, shape, language = get_reward_funcs(["accuracy", "format", "language_consistency"], fmt)
    columns = {name: [value for value in rows[name] for _ in range(samples)] for name in rows.column_names}
    columns["prompts"] = columns.pop("prompt")
    right = accuracy(completions=texts, **columns)
    per_row = [sum(right[i : i + samples]) / samples for i in range(0, len(right), samples)]
    spoken = [value for value in language(completions=texts, **columns) if value is not None]
    return per_row, sum(shape(completions=texts)) / len(texts), sum(spoken) / len(spoken) if spoken else None


def markdown_table(rows: Sequence[tuple[str, Scores | None, dict[str, Any] | None]]) -> str:
    """One row a model or a made data set.

    Args:
        rows: label, the model's scores, and the yield of what was made instead of a model
            (``kept_completions``, ``completions``); one of the two.

    Returns:
        A Markdown table: accuracy greedy and sampled with 95 % intervals, format rate, language consistency, mean length, and the yield
        where any row has one.
    """
    columns = ["model", "greedy accuracy", "sampled accuracy", "format (greedy / sampled)", "language", "mean tokens"]
    made = any(yielded for _, _, yielded in rows)
    lines = [columns + ["completions kept"] * made]
    lines.append(["---"] * len(lines[0]))
    for label, scores, yielded in rows:
        cells = [label, *[""] * (len(columns) - 1)]
        if scores is not None:
            cells[1:3] = [_percent(mean_interval(scores.greedy)), _percent(mean_interval(scores.sampled))]
            cells[3] = f"{100 * scores.greedy_format:.0f} % / {100 * scores.sampled_format:.0f} %"
            cells[4:6] = ["" if scores.language is None else f"{scores.language:.2f}", f"{scores.mean_tokens:.0f}"]
        share = ""
        if yielded is not None:
            kept, all_ = yielded["kept_completions"], yielded["completions"]
            share = f"{kept} of {all_} ({kept / all_:.0%})"
        lines.append(cells + [share] * made)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _percent(interval: tuple[float, float, float], sign: str = "") -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:{sign}.1f} % ({low:{sign}.1f} to {high:{sign}.1f})"


def difference_line(before: Scores, after: Scores, what: str) -> str:
    """One sentence: how much better, greedy and sampled, over the same rows, with 95 % intervals."""
    greedy = _percent(paired_difference(before.greedy, after.greedy), "+").replace(" %", " points", 1)
    sampled = _percent(paired_difference(before.sampled, after.sampled), "+").replace(" %", " points", 1)
    return f"{what}: greedy {greedy}, sampled {sampled}; paired over the same {len(before.greedy)} problems."


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; see the module's first lines.

    Raises:
        SystemExit: 2 where the recipe, its data or a model cannot be used.
    """
    parser = argparse.ArgumentParser(prog="python -m r1_recipes.evaluate", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("recipe", help="a GRPO recipe; its test split, format and generation settings are used")
    parser.add_argument("--model", action="append", required=True, help="path or id; give it again to compare")
    parser.add_argument("--num_samples", type=int, default=4, help="sampled completions a row (default 4)")
    parser.add_argument("--batch_size", type=int, default=BATCH_SIZE, help=f"completions generated at once (default {BATCH_SIZE})")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (default 0)")
    parser.add_argument("--output", type=Path, help="write every number here, as JSON")
    options, overrides = parser.parse_known_args(argv)
    with runtime.reported_errors():
        from r1_recipes.recipe import load

        if options.num_samples < 1 or options.batch_size < 1:
            raise RecipeError("--num_samples and --batch_size are 1 or more")
        recipe = load([options.recipe, *overrides], "grpo")
        runtime.set_up_logging(recipe)
        rows = held_out_rows(recipe)
        settings = {"num_samples": options.num_samples, "batch_size": options.batch_size, "seed": options.seed}
        scores = [evaluate_model(name, rows, recipe, **settings) for name in options.model]
        table = markdown_table([(name, one, None) for name, one in zip(options.model, scores, strict=True)])
        lines = [
            difference_line(scores[i], scores[i + 1], f"{options.model[i + 1]} over {options.model[i]}") for i in range(len(scores) - 1)
        ]
        runtime.say("\n".join([table, *lines]))
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps([asdict(s) for s in scores], indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
