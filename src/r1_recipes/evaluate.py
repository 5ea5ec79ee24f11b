"""Accuracy of checkpoints on a recipe's held-out rows: several models on the same rows, greedy and sampled, with intervals.

``python -m r1_recipes.evaluate recipes/NAME.yaml --model A --model B [--num_samples 4] [--backend vllm] [--output DIR]``

Several processes (``accelerate launch -q -m r1_recipes.evaluate …``, ``torchrun``) share the rows out; the first one judges all of them.

The recipe is a benchmark (``recipes/benchmarks``), which says ``num_samples``, or any GRPO recipe.
Right is what gets full marks of the recipe's first reward that judges the row. Strict accuracy counts an answer where the recipe's format
wants it; lenient accuracy any final answer that can be made out. Most of what
is published as a gain of GRPO is the distance between the two.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes import processes, run_dir, runtime
from r1_recipes.arguments import BACKENDS
from r1_recipes.errors import RecipeError

if TYPE_CHECKING:
    from datasets import Dataset

    from r1_recipes.backends import Backend, Completion, Request
    from r1_recipes.formats import ResponseFormat
    from r1_recipes.recipe import Recipe

logger = logging.getLogger("r1_recipes.evaluate")  # under `python -m` this module is called __main__

# Completions generated at once: enough to fill a core's matrix units, little enough for a laptop's memory.
BATCH_SIZE = 128
# What a GRPO recipe does not say about its evaluation.
_TRAINING_RECIPE = {"num_samples": 4, "batch_size": BATCH_SIZE, "seed": 0, "backend": "transformers"}
# Two-sided 95 %.
_Z = statistics.NormalDist().inv_cdf(0.975)
_LAST_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


@dataclass
class Scores:
    """What one model did on the held-out rows.

    Attributes:
        model: path or id.
        greedy: per row, 1.0 where the greedy completion is right (strict).
        sampled: per row, the share of its sampled completions that is right (strict); empty where none were sampled, as the next ones.
        greedy_lenient: as ``greedy``, by :func:`verdicts`.
        sampled_lenient: as ``sampled``, by the same.
        majority: per row, 1.0 where the answer that most samples give is right (maj@n; strict).
        num_samples: sampled completions a row, n.
        greedy_format: share of greedy completions in the recipe's format.
        sampled_format: the same of sampled ones; ``None`` where there are none.
        language: mean language consistency of the sampled completions' reasoning, 0..1, by the reward of that name; ``None`` where it
            can judge none. Where none were sampled this and the following are of greedy completions.
        mean_tokens: mean length of sampled completions.
        truncated: share of sampled completions that reached the length limit.
        rewards: by name, what the recipe's own rewards give the sampled completions of each row on average; ``None`` for a row that the
            reward does not judge.
        examples: a few greedy completions, for people.
        judged_on: which rows these are, and whether they were held out, in words.
    """

    model: str
    greedy: list[float]
    sampled: list[float]
    greedy_lenient: list[float]
    sampled_lenient: list[float]
    majority: list[float]
    num_samples: int
    greedy_format: float
    sampled_format: float | None
    language: float | None
    mean_tokens: float
    truncated: float
    rewards: dict[str, list[float | None]] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)
    judged_on: str = ""

    def pass_at(self, k: int) -> list[float]:
        """Per row, the unbiased estimate of pass@k from n samples: ``1 - C(n - c, k) / C(n, k)`` (Chen et al., arXiv:2107.03374).

        Raises:
            ValueError: ``k`` is over the number of samples.
        """
        n = self.num_samples
        if not 1 <= k <= n:
            raise ValueError(f"pass@{k} needs {k} samples or more, there are {n}")
        return [1 - math.comb(n - round(share * n), k) / math.comb(n, k) for share in self.sampled]


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of independent values, one a row.

    0/1 values get Wilson's interval, which stays inside 0..1 and does not collapse at the ends. So do shares, with the number of 0/1
    values whose mean would vary as much in place of the number of rows, and Student's t in place of the normal point (Korn and Graubard,
    Survey Methodology 24, 1998, do the same with another interval). Values outside 0..1 get Student's interval.

    Returns:
        ``(mean, low, high)``.
    """
    n = len(values)
    mean = sum(values) / n
    if all(value in (0.0, 1.0) for value in values):
        low, high = _wilson(mean, n, _Z)
        # At the ends the bound is 0 or 1 exactly; rounding must not say otherwise.
        return mean, 0.0 if mean == 0 else low, 1.0 if mean == 1 else high
    error = _standard_error(values, mean)
    if min(values) >= 0 and max(values) <= 1 and 0 < error < math.inf:
        return mean, *_wilson(mean, mean * (1 - mean) / error**2, _student(n - 1))
    half = _student(n - 1) * error
    return mean, mean - half, mean + half


def paired_difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Mean of ``after - before`` over the same rows, with its 95 % interval.

    Where both are 0/1 (and the differences -1, 0 or 1) it is Bonett and Price's (J. Educ. Behav. Stat. 37, 2012), which keeps a width
    also where hardly a row changed; else Student's.

    Returns:
        ``(difference, low, high)``.

    Raises:
        ValueError: the lists are not equally long.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    n, mean = len(differences), sum(differences) / len(differences)
    if all(value in (0.0, 1.0) for value in (*before, *after)):
        won, lost = ((differences.count(value) + 1) / (n + 2) for value in (1.0, -1.0))
        half = _Z * math.sqrt((won + lost - (won - lost) ** 2) / (n + 2))
        return mean, max(-1.0, won - lost - half), min(1.0, won - lost + half)
    half = _student(n - 1) * _standard_error(differences, mean)
    return mean, mean - half, mean + half


def _wilson(mean: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's bounds of a proportion (J. Am. Stat. Assoc. 22, 1927)."""
    centre = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(mean * (1 - mean) / n + z**2 / (4 * n**2))
    return centre - half, centre + half


def _student(degrees: int) -> float:
    """Two-sided 95 % point of Student's t; from three degrees on right to 0.004 (Abramowitz and Stegun, 26.7.5). Infinite for none."""
    if degrees == 0:
        return math.inf
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


def _standard_error(values: Sequence[float], mean: float) -> float:
    n = len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n) if n > 1 else math.inf


def load_recipe(argv: Sequence[str]) -> Recipe:
    """The recipe of a command line, path first: a benchmark, which says ``num_samples``, or a GRPO recipe.

    Raises:
        RecipeError: as :func:`r1_recipes.recipe.load`.
    """
    from r1_recipes.recipe import load, read_yaml

    return load(argv, "evaluate" if "num_samples" in read_yaml(Path(argv[0])) else "grpo")


def evaluate_model(
    name: str,
    rows: Dataset,
    recipe: Recipe,
    *,
    num_samples: int,
    batch_size: int,
    seed: int,
    label: str | None = None,
    backend: str = "transformers",
    folder: Path | None = None,
    with_models: bool = False,
    judged_on: str = "",
) -> Scores | None:
    """Generate greedily and ``num_samples`` times at the recipe's temperature for every row, and judge.

    Where the run has several processes, each generates its share of the rows, and all of them have to call this.

    Args:
        name: model path or id.
        rows: ``prompt``, ``solution`` and task columns, as :func:`r1_recipes.data.load_dataset` gives them.
        recipe: a benchmark or a GRPO recipe; its format, rewards and generation settings are used.
        num_samples: sampled completions a row; 0: only the greedy one.
        batch_size: completions generated at once (Transformers).
        seed: of the sampling.
        label: what the progress bar calls it; ``None``: the last part of the name.
        backend: ``"transformers"``, ``"vllm"`` or ``"openai"``, a server that knows the model by this name.
        folder: completions are kept there, and an interrupted evaluation goes on from them; ``None``: nowhere.
        with_models: score with ``reward_model`` and ``match_judge`` too, if the recipe names them.
        judged_on: what the rows are, for the scores.

    Returns:
        The scores; ``None`` on processes other than the first.

    Raises:
        RecipeError: the model cannot be loaded, or ``folder`` holds completions made otherwise.
    """
    from r1_recipes.backends import Request, get_backend, load_format
    from r1_recipes.preflight.contract import reward_functions

    if backend == "openai" and recipe.script.chat_template:
        raise RecipeError(f"{recipe.path}: backend openai: the server has the chat template; leave chat_template out")
    recipe = _for_generation(recipe, name, batch_size, seed)
    tokenizer, fmt = load_format(recipe, backend)
    judges = _judges(recipe, fmt, with_models=with_models)
    rewards = {key: reward for key, reward in reward_functions(recipe, fmt, with_models=with_models) if reward is not None}
    if rewards and tokenizer is None:
        logger.info("the recipe's rewards are left out: some count tokens, and the server keeps the tokenizer")
        rewards = {}
    ways = [(0.0, 1), (recipe.training.temperature, num_samples)][: 2 if num_samples else 1]
    if folder is None:
        requests = processes.share([Request(index, prompt) for index, prompt in enumerate(rows["prompt"])])
        done = dict(processes.gather(list(_generate(get_backend(recipe, tokenizer, backend), requests, ways, label or name).items())))
    else:
        done = _generate_and_keep(recipe, tokenizer, rows, ways, label or name, backend, folder)
    if not runtime.is_main_process():
        return None
    groups = [done[index] for index in range(len(rows))]
    scores, table = _judge(name, fmt, rows, groups, num_samples, judges, rewards, tokenizer)
    if folder is not None:
        from datasets import Dataset

        Dataset.from_list(table).to_parquet(str(folder / "completions.parquet"))
    return dataclasses.replace(scores, judged_on=judged_on)


def _for_generation(recipe: Recipe, name: str, batch_size: int, seed: int) -> Recipe:
    """The recipe with its sampling keys as :class:`~r1_recipes.arguments.SamplingSettings`, for one model."""
    from r1_recipes.arguments import SamplingSettings

    shared = {f.name: getattr(recipe.training, f.name) for f in dataclasses.fields(SamplingSettings) if hasattr(recipe.training, f.name)}
    training = SamplingSettings(**{**shared, "generation_batch_size": batch_size, "seed": seed})
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, model_name_or_path=name), training=training)


def _generate(
    backend: Backend,
    requests: list[Request],
    ways: list[tuple[float, int]],
    label: str,
    keep: Callable[[int, list[Completion]], None] | None = None,
) -> dict[int, list[Completion]]:
    from tqdm.auto import tqdm

    done: dict[int, list[Completion]] = {}
    copies = sum(count for _, count in ways)
    hidden = not runtime.is_main_process()
    with tqdm(total=len(requests) * copies, desc=Path(label).name, unit="completion", disable=hidden) as bar:

        def sink(index: int, completions: list[Completion], error: str | None) -> None:
            if error:
                raise RecipeError(f"row {index} cannot be completed: {error}")
            if keep is not None:
                keep(index, completions)
            done[index] = completions
            bar.update(copies)

        backend.run(requests, sink, ways)
    return done


def _generate_and_keep(
    recipe: Recipe, tokenizer: Any, rows: Dataset, ways: list[tuple[float, int]], label: str, backend: str, folder: Path
) -> dict[int, list[Completion]]:
    from r1_recipes.backends import Completion, Request, get_backend
    from r1_recipes.shards import ShardStore, row_digest

    solutions = rows["solution"] if "solution" in rows.column_names else [None] * len(rows)
    # Everything that shapes a completion; whoever changes it has to choose another folder. Transformers samples a batch at once.
    shaping = ("seed", "max_completion_length", "top_p", "top_k", "min_p", "repetition_penalty", "vllm_max_model_length")
    shaping += ("generation_batch_size",) if backend == "transformers" else ()
    made_by = {name: getattr(recipe.training, name) for name in shaping}
    made_by |= {"ways": ways, "backend": backend, "model": recipe.model.model_name_or_path}
    made_by["weights"] = run_dir.weights_stamp(Path(recipe.model.model_name_or_path))
    digests = [row_digest([prompt, made_by], solution) for prompt, solution in zip(rows["prompt"], solutions, strict=True)]
    with ShardStore.shared(folder / "completions") as store:
        other = [index for index, digest in store.digests.items() if index >= len(digests) or digests[index] != digest]
        if other:
            raise RecipeError(f"{folder}: holds completions of other rows, settings or weights (row {other[0]}); choose another --output")

        def keep(index: int, completions: list[Completion]) -> None:
            record = {"index": index, "digest": digests[index], "error": None, "completions": [asdict(c) for c in completions]}
            store.append([record])

        pending = [Request(index, rows[index]["prompt"]) for index in range(len(rows)) if index not in store.digests]
        if pending:
            if len(store):
                logger.info("%s: %d of %d rows are there already", label, len(store), len(rows))
            _generate(get_backend(recipe, tokenizer, backend), processes.share(pending), ways, label, keep)
        processes.wait()
        if not runtime.is_main_process():
            return {}
        store.reload()
        store.check_whole(len(rows))
        return {record["index"]: [Completion(**c) for c in record["completions"]] for record in store}


def rows_to_judge(recipe: Recipe) -> tuple[Dataset, str]:
    """The recipe's test split, whole (length limits are for training) but for rows that no reward can judge, and what it is in words.

    Raises:
        RecipeError: the split cannot be read, holds rows that the recipe trains on without saying so (``dataset_test_split`` is not
            ``dataset_train_split``), or no row can be judged.
    """
    from r1_recipes.data import load_dataset
    from r1_recipes.formats import get_response_format

    script, source = recipe.script, None
    script.max_prompt_tokens = script.max_solution_tokens = None
    fmt = get_response_format(script.response_format, system_prompt=script.system_prompt, prefill=script.prefill)
    if script.smoke:
        from r1_recipes.smoke import example_rows

        source = example_rows(script, "grpo")
    rows, report = load_dataset(script, fmt, "grpo", split="test", rows=source)
    logger.info("to judge: %s", report)
    kind = _kind_of_rows(recipe, fmt, rows)
    rows = _judgeable(recipe, fmt, rows)
    return rows, f"{len(rows)} {kind}"


def _kind_of_rows(recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> str:
    """Whether the rows are held out, and where they are from."""
    from r1_recipes.data import load_dataset
    from r1_recipes.data.load import drop_overlap

    script = recipe.script
    if script.smoke:
        return "example rows (smoke)"
    origin = f"split {script.dataset_test_split!r} of {script.dataset_name}" if script.dataset_name else "the test split of dataset_mixture"
    if recipe.method == "evaluate":  # a benchmark trains nothing
        return f"rows ({origin})"
    if script.dataset_name and script.dataset_test_split == script.dataset_train_split:
        return f"training rows ({origin}), none of them held out"
    if recipe.training.eval_strategy != "no":  # training leaves out what the test split asks
        return f"held-out rows ({origin})"
    try:
        trained = load_dataset(script, fmt, "grpo", split="train")[0]
    except RecipeError as error:
        logger.warning("whether these rows are trained on is not known: %s", error)
        return f"rows ({origin}); whether they are held out is not known"
    apart, shared = drop_overlap(rows, trained)
    if shared > len(rows) / 2:
        alone = set(map(str, apart.select_columns("prompt")["prompt"]))
        first = next(row["prompt"] for row in rows.select_columns("prompt") if str(row["prompt"]) not in alone)
        question = first if isinstance(first, str) else first[-1]["content"]
        cut = max(1, len(trained) // 8)
        raise RecipeError(
            f"{recipe.path}: dataset_test_split: {origin} has {shared} of {len(rows)} rows that ask the same question as a training row, "
            f"so they are not held out; the first asks {str(question)[:80]!r}. Fix: dataset_train_split: 'train[:-{cut}]' and "
            f"dataset_test_split: 'train[-{cut}:]', of rows that ask each question once; or, to judge training rows, "
            f"--dataset_test_split {script.dataset_train_split}; for rows that nothing is trained on, a benchmark (num_samples)"
        )
    return f"held-out rows ({origin})" + (f", {shared} of which ask what training rows ask" if shared else "")


def _trained_otherwise(recipe: Recipe, model: str) -> str:
    """What a run's folder says of its training split, where this command cuts the same data elsewhere and so holds out other rows."""
    script = recipe.script
    for folder in (Path(model), Path(model).parent):  # a run, or a checkpoint in it
        if recipe.method != "grpo" or not all((folder / name).is_file() for name in (run_dir.RUN_FILE, run_dir.RECIPE_FILE)):
            continue
        trained = {"dataset_train_split": "train"} | run_dir.recorded_settings(folder)
        if trained.get("dataset_name") == script.dataset_name and trained["dataset_train_split"] != script.dataset_train_split:
            return f"; held out by this command alone: {model} was trained on split {trained['dataset_train_split']!r}"
    return ""


def _judgeable(recipe: Recipe, fmt: ResponseFormat, rows: Dataset) -> Dataset:
    """The rows that some reward can say right or wrong of; the others are counted in the log.

    Raises:
        RecipeError: there are none, or a reward of the recipe's own fails.
    """
    from r1_recipes.rewards.call import score, try_own_rewards

    judges = _judges(recipe, fmt)
    try_own_rewards(list(judges), list(judges.values()), rows, fmt, None)
    found: set[int] = set()
    for name, judge in judges.items():
        if _by_gold(judge):
            # Golds and tasks are text; pictures would be decoded.
            listed = list(rows.select_columns([key for key in rows.column_names if key != "image"]))
            verdicts = score(name, judge, listed, [""] * len(rows), None)
            found |= {index for index, verdict in enumerate(verdicts) if verdict is not None}
        elif hasattr(judge, "judged"):
            found |= set(judge.judged({key: rows[key] for key in rows.column_names}))
        else:
            return rows
    if not found:
        gold = rows[0].get("solution")
        raise RecipeError(
            f"{recipe.path}: no row can be judged: {' and '.join(judges)} can read none of the golds; the first is {gold!r}. "
            "Fix: for golds in words, reward_funcs: [answer_match]"
        )
    if len(found) < len(rows):
        left = [index for index in range(len(rows)) if index not in found]
        gold = rows.select_columns("solution")[left[0]]["solution"] if "solution" in rows.column_names else None
        logger.warning(
            "%d of %d rows are judged by none of %s and are left out; the first is row %d (gold %r)",
            *(len(left), len(rows), ", ".join(judges), left[0], gold),
        )
        rows = rows.select(sorted(found))
    return rows


def _judges(recipe: Recipe, fmt: ResponseFormat, *, with_models: bool = False) -> dict[str, Callable]:
    """The rewards that say what is right, by name; a row is the first one's that judges it."""
    from r1_recipes.preflight.contract import reward_functions
    from r1_recipes.rewards import answer_rewards, get_reward_funcs

    own = {name: reward for name, reward in reward_functions(recipe, fmt, with_models=with_models) if reward is not None}
    return {name: own[name] if name in own else get_reward_funcs([name], fmt)[0] for name in answer_rewards(own)}


def _by_gold(judge: Callable) -> bool:
    """Whether a reward compares the format's answer with a gold, so that it can be asked about an answer found elsewhere."""
    from r1_recipes.rewards import AnswerReward

    return isinstance(getattr(judge, "reward", judge), AnswerReward)


def _judge(
    name: str,
    fmt: ResponseFormat,
    rows: Dataset,
    groups: list[list[Completion]],
    num_samples: int,
    judges: dict[str, Callable],
    rewards: dict[str, Callable],
    tokenizer: Any,
) -> tuple[Scores, list[dict[str, Any]]]:
    """Scores, and one record a completion: the first of a row's is the greedy one."""
    from r1_recipes.rewards import get_reward_funcs
    from r1_recipes.rewards.accuracy import parsed_answers

    shape, language = get_reward_funcs(["format", "language_consistency"], fmt)
    copies = 1 + num_samples
    flat = [completion for group in groups for completion in group]
    texts = [completion.text for completion in flat]
    columns = {column: [value for value in rows[column] for _ in range(copies)] for column in rows.column_names}
    columns["prompts"] = columns.pop("prompt")
    each_row = [row for row in rows for _ in range(copies)]
    given = _own_scores(rewards, each_row, flat, tokenizer)
    strict, lenient = verdicts(fmt, judges, each_row, texts, given)
    formed = shape(completions=texts)
    spoken = language(completions=texts, **columns)
    answers = parsed_answers(fmt, texts)
    table = [
        {
            "index": position // copies,
            "sample": position % copies - 1,  # -1: greedy
            "question": rows[position // copies]["prompt"][-1]["content"],
            "solution": str(columns["solution"][position]) if "solution" in columns else "",
            "completion": completion.text,
            "answer": answers[position],
            "correct": strict[position],
            "lenient": lenient[position],
            "format": bool(formed[position]),
            **{f"reward {reward}": values[position] for reward, values in given.items()},
            "tokens": completion.tokens,
            "finish_reason": completion.finish_reason,
        }
        for position, completion in enumerate(flat)
    ]

    def shares(values: Sequence[float]) -> tuple[list[float], list[float]]:
        """Greedy values a row, and the mean of the samples' a row."""
        by_row = [values[i : i + copies] for i in range(0, len(values), copies)]
        return [float(row[0]) for row in by_row], [sum(row[1:]) / num_samples for row in by_row if num_samples]

    greedy, sampled = shares(strict)
    greedy_lenient, sampled_lenient = shares(lenient)
    greedy_format, sampled_format = (sum(values) / len(values) if values else None for values in shares(formed))
    # What is looked at beside accuracy: the samples, or the greedy completions where there are none.
    shown = [position for position, record in enumerate(table) if record["sample"] >= 0 or not num_samples]
    heard = [spoken[position] for position in shown if spoken[position] is not None]
    by_row: list[list[int]] = [[] for _ in groups]
    for position in shown:
        by_row[position // copies].append(position)
    return Scores(
        model=name,
        greedy=greedy,
        sampled=sampled,
        greedy_lenient=greedy_lenient,
        sampled_lenient=sampled_lenient,
        majority=[_majority(table[i + 1 : i + copies]) for i in range(0, len(table), copies) if num_samples],
        num_samples=num_samples,
        greedy_format=greedy_format,
        sampled_format=sampled_format,
        language=sum(heard) / len(heard) if heard else None,
        mean_tokens=sum(flat[position].tokens for position in shown) / len(shown),
        truncated=sum(flat[position].finish_reason == "length" for position in shown) / len(shown),
        rewards={reward: [_mean_of_judged(values[p] for p in row) for row in by_row] for reward, values in given.items()},
        examples=[
            {"question": record["question"], "completion": record["completion"], "solution": record["solution"]}
            for record in table[: 3 * copies : copies]
        ],
    ), table


def _own_scores(
    rewards: dict[str, Callable], each_row: list[dict[str, Any]], completions: list[Completion], tokenizer: Any
) -> dict[str, list[float | None]]:
    """What each of the recipe's rewards gives each completion, called as TRL would; one that fails is named, and left out."""
    from r1_recipes.rewards.call import score

    texts, tokens = [completion.text for completion in completions], [completion.tokens for completion in completions]
    given = {}
    for name, reward in rewards.items():
        try:
            given[name] = score(name, reward, each_row, texts, tokenizer, tokens)
        except RecipeError as error:  # the completions have cost too much to lose them over one column of the table
            logger.warning("%s; its column is left out", error)
    return given


def _mean_of_judged(values: Iterable[float | None]) -> float | None:
    judged = [value for value in values if value is not None]
    return sum(judged) / len(judged) if judged else None


def verdicts(
    fmt: ResponseFormat,
    judges: dict[str, Callable],
    each_row: Sequence[dict[str, Any]],
    texts: Sequence[str],
    given: Mapping[str, Sequence[float | None]] | None = None,
) -> tuple[list[bool], list[bool]]:
    """Whether each completion is right, strictly and leniently.

    Strictly: the first of ``judges`` that judges the row gives it full marks. Leniently right is also what such a judge would accept, if
    it compares with a gold, where it stood in the format: what follows the reasoning (or the whole text, where none is closed) and ends
    in a box, in "the answer is", or in a last line; and, as lm-eval's flexible extraction has it, its last number.

    Args:
        fmt: reads the completions.
        judges: rewards by name.
        each_row: the row of each completion.
        texts: completions.
        given: what rewards gave these completions, by name, if it is known already.
    """
    from r1_recipes.rewards.call import score
    from r1_recipes.verification import final_answer

    strict: list[bool | None] = [None] * len(texts)
    lenient: list[bool] = [False] * len(texts)
    closing = fmt.reasoning_tags[1] if fmt.reasoning_tags else None
    for name, judge in judges.items():
        mine = [index for index, verdict in enumerate(strict) if verdict is None]
        if not mine:
            break
        if given and name in given:
            scores = [given[name][index] for index in mine]
        else:
            scores = score(name, judge, [each_row[index] for index in mine], [texts[index] for index in mine], None)
        for index, value in zip(mine, scores, strict=True):
            strict[index], lenient[index] = None if value is None else value >= 1, (value or 0) >= 1
        for pick in (final_answer, _last_number) if _by_gold(judge) else ():
            written = {}
            for index in (index for index in mine if strict[index] is not None and not lenient[index]):
                text = fmt.full_text(texts[index])
                answer = pick(text.rpartition(closing)[2] if closing and closing in text else text)
                if answer:
                    with contextlib.suppress(ValueError):  # what the format cannot hold
                        written[index] = fmt.render_completion("Let me see.", answer)
            scores = score(name, judge, [each_row[index] for index in written], [*written.values()], None) if written else []
            for index, value in zip(written, scores, strict=True):
                lenient[index] = (value or 0) >= 1
    if None in strict:
        logger.warning("%d of %d completions are judged by none of %s and count as wrong", strict.count(None), len(texts), [*judges])
    return list(map(bool, strict)), lenient


def _last_number(text: str) -> str | None:
    *_, number = [None, *_LAST_NUMBER.findall(text)]
    return None if number is None else number.replace("$", "").rstrip(",")


def _majority(samples: list[dict[str, Any]]) -> float:
    """1.0 where the answer that most samples give is right; of equally frequent ones the first given counts, and no answer is none."""
    votes = Counter(_vote(record["answer"]) for record in samples if record["answer"] is not None)
    if not votes:
        return 0.0
    winner = votes.most_common(1)[0][0]
    chosen = next(r for r in samples if r["answer"] is not None and _vote(r["answer"]) == winner)
    return float(chosen["correct"])


def _vote(answer: str) -> str:
    """An answer as votes are counted: case, white space, commas and a full stop do not make another one."""
    return "".join(answer.split()).replace(",", "").rstrip(".。").casefold()


def markdown_table(rows: Sequence[tuple[str, Scores | None, dict[str, Any] | None]], *, full: bool = False) -> str:
    """One row a model or a made data set.

    Args:
        full: lenient accuracy, maj@n and pass@n too, and how many samples were cut.
        rows: label, the model's scores, and the yield of what was made instead of a model
            (``kept_completions``, ``completions``); one of the two.

    Returns:
        A Markdown table: accuracy greedy and sampled with 95 % intervals, format rate, language consistency, mean length, and the yield
        where any row has one.
    """
    columns = ["model", "greedy accuracy", "sampled accuracy", "format (greedy / sampled)", "language", "mean tokens"]
    made = any(yielded for _, _, yielded in rows)
    more = []
    if full:
        n = next(scores.num_samples for _, scores, _ in rows if scores is not None)
        more = ["lenient (greedy / sampled)", *([f"maj@{n}", f"pass@{n}"] if n else []), "truncated"]
    lines = [columns + more + ["completions kept"] * made]
    lines.append(["---"] * len(lines[0]))
    for label, scores, yielded in rows:
        cells = [label, *[""] * (len(columns) - 1)]
        if scores is not None:
            cells[1:3] = [_percent(mean_interval(values)) if values else "" for values in (scores.greedy, scores.sampled)]
            cells[3] = _both(scores.greedy_format, scores.sampled_format, digits=0)
            cells[4:6] = ["" if scores.language is None else f"{scores.language:.2f}", f"{scores.mean_tokens:.0f}"]
            if full:
                lenient = (sum(values) / len(values) if values else None for values in (scores.greedy_lenient, scores.sampled_lenient))
                cells.append(_both(*lenient, digits=1))
                if n:
                    cells += [_percent(mean_interval(values)) for values in (scores.majority, scores.pass_at(n))]
                cells.append(f"{100 * scores.truncated:.0f} %")
        share = ""
        if yielded is not None:
            kept, all_ = yielded["kept_completions"], yielded["completions"]
            share = f"{kept} of {all_} ({kept / all_:.0%})"
        lines.append(cells + [share] * made)
    return _table(lines)


def rewards_table(rows: Sequence[tuple[str, Scores]]) -> str:
    """What the recipe's own rewards give each model, with 95 % intervals, as a Markdown table; empty where nothing was scored."""
    names = list(dict.fromkeys(name for _, scores in rows for name in scores.rewards))
    if not names:
        return ""
    lines = [["reward, mean", *names], ["---"] * (1 + len(names))]
    for label, scores in rows:
        cells = [label]
        for name in names:
            judged = [value for value in scores.rewards.get(name, ()) if value is not None]
            cells.append("{:.3f} ({:.3f} to {:.3f})".format(*mean_interval(judged)) if judged else "")
        lines.append(cells)
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _both(greedy: float, sampled: float | None, *, digits: int) -> str:
    return " / ".join(f"{100 * value:.{digits}f} %" for value in (greedy, sampled) if value is not None)


def _percent(interval: tuple[float, float, float], sign: str = "") -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:{sign}.1f} % ({low:{sign}.1f} to {high:{sign}.1f})"


# Each of Scores' lists that a difference is taken of, and what it is called.
_COMPARED = {"greedy": "greedy", "sampled": "sampled", "greedy_lenient": "lenient greedy", "sampled_lenient": "lenient sampled"}


def differences(before: Scores, after: Scores) -> dict[str, tuple[float, float, float]]:
    """How much better the second is, over the same rows, with 95 % intervals: strict and lenient, greedy and (where there are) sampled."""
    return {name: paired_difference(getattr(before, name), getattr(after, name)) for name in _COMPARED if getattr(after, name)}


def difference_line(before: Scores, after: Scores, what: str, *, full: bool = False) -> str:
    """One sentence: how much better, greedy and sampled, over the same rows, with 95 % intervals; ``full``: leniently, too."""
    parts = [
        f"{_COMPARED[name]} {_percent(difference, '+').replace(' %', ' points', 1)}"
        for name, difference in differences(before, after).items()
        if full or name in ("greedy", "sampled")
    ]
    return f"{what}: {', '.join(parts)}; paired over the same {len(before.greedy)} problems."


def ask(recipe: Recipe, models: Sequence[str], question: str, backend: str = "transformers") -> list[str]:
    """Each model's greedy answer to one question, in the recipe's own prompt."""
    from r1_recipes.backends import Request, get_backend, load_format
    from r1_recipes.data.load import build_prompt

    answers = []
    for name in models:
        own = _for_generation(recipe, name, 1, 0)
        tokenizer, fmt = load_format(own, backend)
        request = Request(0, build_prompt(question, fmt, recipe.script.few_shot))
        (completion,) = _generate(get_backend(own, tokenizer, backend), [request], [(0.0, 1)], name)[0]
        answers.append(fmt.full_text(completion.text))
    return answers


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; see the module's first lines.

    Raises:
        SystemExit: 2 where the recipe, its data or a model cannot be used.
    """
    parser = argparse.ArgumentParser(prog="python -m r1_recipes.evaluate", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("recipe", help="a benchmark, or a GRPO recipe; its test split, format, rewards and generation settings are used")
    parser.add_argument("--model", action="append", help="path or id; give it again to compare (default: the recipe's own)")
    parser.add_argument("--num_samples", type=int, help="sampled completions a row, 0: only greedy (default: the benchmark's, else 4)")
    parser.add_argument("--batch_size", type=int, help=f"completions generated at once (default: the benchmark's, else {BATCH_SIZE})")
    parser.add_argument("--seed", type=int, help="of the sampling (default: the benchmark's, else 0)")
    parser.add_argument("--backend", choices=BACKENDS, help="who generates (default: the benchmark's, else transformers)")
    parser.add_argument("--output", type=Path, help="folder for every number (JSON) and completion (Parquet); goes on from what it holds")
    parser.add_argument("--with-models", action="store_true", help="let reward_model and match_judge judge too (OPENAI_BASE_URL)")
    parser.add_argument("--ask", metavar="QUESTION", help="no evaluation: each model's answer to this question, side by side")
    options, overrides = parser.parse_known_args(argv)
    with runtime.reported_errors():
        recipe = load_recipe([options.recipe, *overrides])
        runtime.set_up_logging(recipe)
        models = options.model or [recipe.model.model_name_or_path]
        if None in models:
            raise RecipeError(f"--model: missing; {options.recipe} names none: a checkpoint's folder, or a hub id")
        processes.connect(use_cpu=recipe.training.use_cpu)
        if options.ask is not None:
            for name, answer in zip(models, ask(recipe, models, options.ask, options.backend or "transformers"), strict=True):
                runtime.say(f"=== {name}\n{answer}\n")
            return
        settings = _settings(recipe, options)
        rows, what = rows_to_judge(recipe)
        what += "".join(_trained_otherwise(recipe, name) for name in models)
        folders: list[Path | None] = [None] * len(models)
        if options.output:
            # Two checkpoints may have one last name.
            folders = [options.output / f"{number}_{Path(name).name}" for number, name in enumerate(models, start=1)]
        scores = [
            evaluate_model(name, rows, recipe, **settings, folder=folder, with_models=options.with_models, judged_on=what)
            for name, folder in zip(models, folders, strict=True)
        ]
        if not runtime.is_main_process():
            return
        report = _report(models, scores)
        runtime.say(report)
        if options.output:
            entries = [_entry(one, before) for before, one in zip([None, *scores], scores, strict=False)]
            (options.output / "results.json").write_text(json.dumps(_finite(entries), indent=1, ensure_ascii=False), encoding="utf-8")
            (options.output / "results.md").write_text(report + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """For JSON, which has no infinity: the bounds of a single row are ``null``."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _settings(recipe: Recipe, options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of :func:`evaluate_model`: the command line's, else the benchmark's, else those for training recipes."""
    own = _TRAINING_RECIPE
    if recipe.method == "evaluate":
        training, script = recipe.training, recipe.script
        own = {"num_samples": script.num_samples, "batch_size": training.generation_batch_size, "seed": training.seed}
        own["backend"] = script.backend
    settings = own | {name: getattr(options, name) for name in own if getattr(options, name) is not None}
    if settings["num_samples"] < 0 or settings["batch_size"] < 1:
        raise RecipeError("--num_samples is 0 or more, --batch_size 1 or more")
    if recipe.training.temperature == 0 and settings["num_samples"] > 1:
        raise RecipeError(f"--num_samples: temperature 0 gives {settings['num_samples']} equal samples a row; --num_samples 0, or sample")
    return settings


def _report(models: Sequence[str], scores: Sequence[Scores]) -> str:
    parts = [markdown_table([(name, one, None) for name, one in zip(models, scores, strict=True)], full=True)]
    parts.append(rewards_table(list(zip(models, scores, strict=True))))
    parts += [difference_line(scores[i], scores[i + 1], f"{models[i + 1]} over {models[i]}", full=True) for i in range(len(scores) - 1)]
    return "\n\n".join(part for part in [*parts, f"Judged on {scores[0].judged_on}."] if part)


def _entry(scores: Scores, before: Scores | None) -> dict[str, Any]:
    """One model's part of ``results.json``; intervals are ``[mean, low, high]``."""
    intervals = {name: mean_interval(getattr(scores, name)) for name in (*_COMPARED, "majority") if getattr(scores, name)}
    ks = sorted({2**i for i in range(scores.num_samples.bit_length())} | {scores.num_samples} - {0})
    entry = {**asdict(scores), "intervals": intervals, "pass_at": {k: mean_interval(scores.pass_at(k)) for k in ks}}
    if before is not None:
        entry["difference"] = {"over": before.model, **differences(before, scores)}
    return entry


if __name__ == "__main__":
    main()
