"""The start of a run: its recipe, its folder, the checks before anything is loaded, each with the
remedy, and its rows.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes.common import gpu, locks, processes
from r1_recipes.common.console import LOG_FILE, LogFile, replace_handler, say, set_up_logging
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import shipped
from r1_recipes.common.masking import masked_words
from r1_recipes.data.load import LoadReport, drop_overlap, drop_unanswered, load_dataset
from r1_recipes.data.sources import split_fix
from r1_recipes.models.smoke import example_rows, smoke_overrides
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.types import OWN_TYPES, namespace_value
from r1_recipes.rewards import REWARDS
from r1_recipes.rewards.registry import declared
from r1_recipes.runs import checkpoints, run_dir
from r1_recipes.runs.run_dir import Run
from r1_recipes.training.machine import (
    check_encoding,
    check_generation_backend,
    check_precision,
    check_processes,
    check_push,
    check_rewards,
    check_trackers,
    check_turns,
    prepare_trackers,
)

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_JUDGED_BY = {"solution", "nums"}  # columns that the rewards for right answers read


def start(argv: Sequence[str] | None, method: str) -> Run:
    """Read the recipe, refuse what can be known to fail, and prepare its run directory; exit if the
    run is finished already.
    """
    if argv is None:
        argv = sys.argv[1:]
        sys.argv[1:] = masked_words(argv)  # W&B keeps it with the run
    if {"-h", "--help"} & set(argv):
        say(usage(method))
        raise SystemExit(0)
    recipe = _load_recipe(argv, method)
    set_up_logging(recipe.training)
    check_generation_backend(recipe)
    check_rewards(recipe)
    trains = method != "generate"
    if trains:
        check_encoding(recipe)
        check_precision(recipe)
        check_processes(recipe)
        check_turns(recipe)
        check_trackers(recipe)
        check_push(recipe)
    run = Run(recipe, Path(recipe.training.output_dir), masked_words(argv))
    done, run.resume_from = processes.first(lambda: _open_folder(run)) or (False, None)
    if done:
        raise SystemExit(0)
    # From here on every line is in the run's own log too.
    logger.info("%s: %s -> %s", recipe.path, method, run.output_dir)
    for warning in dict.fromkeys(recipe.warnings):
        logger.warning(warning)
    if trains:
        say_batch(recipe.training)
        check_one_folder(run.output_dir, run.resume_from)
        prepare_trackers(recipe)
    return run


def _load_recipe(argv: Sequence[str], method: str) -> Recipe:
    """Load the recipe; a training process that no launcher started gets one GPU before anything
    asks torch for its devices.
    """
    gpu_note = gpu.use_first_gpu() if method != "generate" else None
    recipe = load_recipe(argv, method, smoke=smoke_overrides)
    if gpu_note and not recipe.training.use_cpu:
        recipe.warnings.append(gpu_note)
    return recipe


def _open_folder(run: Run) -> tuple[bool, Path | None]:
    """Lock and check the run directory, and record a start; return whether nothing is left to do,
    and what to resume from.
    """
    recipe = run.recipe
    output_dir = run.output_dir
    trains = recipe.method != "generate"
    resume_from = None
    locks.release(output_dir)  # an earlier run of this process
    run_dir.check_place(recipe, output_dir)
    locks.hold(output_dir)
    run_dir.check(recipe, output_dir)
    if trains and run_dir.is_done(recipe, output_dir):
        logger.info(
            "already done: %s; remove it, or choose another --output_dir, to train again",
            output_dir,
        )
        return True, None
    try:
        # The log of a start that failed before its first step is not part of this run.
        mode = "a" if run_dir.holds_steps(output_dir) else "w"
        replace_handler(LogFile, LogFile(output_dir / LOG_FILE, mode))
        if trains:
            resume_from = checkpoints.resume_point(recipe, output_dir)
            checkpoints.quarantine(output_dir, resume_from)
            run_dir.claim(run, checkpoints.step_of(resume_from))
    except OSError as error:
        raise RecipeError(
            f"output_dir {output_dir}: cannot be written: {error.strerror} "
            f"({error.filename or 'a file in it'}). Fix: make room, or choose "
            "another folder (--output_dir …)"
        ) from error
    return False, resume_from


def usage(method: str) -> str:
    """Return what ``--help`` prints: the call, and every key of ours with its meaning."""
    theirs: list[str] = []
    ours: list[dataclasses.Field] = []
    for part in (*OWN_TYPES[method], "ModelConfig"):
        if isinstance(part, str):
            theirs.append(f"trl.{part}")
        else:
            ours += dataclasses.fields(part)
    text = (
        f"usage: python -m r1_recipes.{method} recipes/NAME.yaml [--key value ...]\n\n"
        f"Keys are those of {' and '.join(theirs)}, the parameters of the rewards "
        f"(docs/keys.md), and:"
    )
    for field in ours:
        text += f"\n  --{field.name:<28} {field.metadata['help']}"
    return text


def say_batch(training: Any) -> None:
    """Log what several processes make of a step: a bare ``accelerate launch`` starts one for each
    GPU.
    """
    count = processes.world_size()
    if count > 1:
        rows = training.per_device_train_batch_size * training.gradient_accumulation_steps
        logger.info(
            "%d processes: each step takes %d x %d = %d completions or rows",
            count,
            count,
            rows,
            count * rows,
        )


def check_one_folder(output_dir: Path, resume_from: Path | None) -> None:
    """Refuse hosts that share no disk: those without the checkpoint to resume from would begin
    anew.
    """
    seen = processes.gather([resume_from is None or resume_from.is_dir()])
    if not all(seen):
        raise RecipeError(
            f"output_dir {output_dir}: rank {seen.index(False)} does not see {resume_from}; it "
            f"must be on a disk that all hosts share"
        )


@dataclasses.dataclass
class Splits:
    """A run's rows, disjoint by question, and what became of those that were read."""

    train: Dataset
    train_report: LoadReport
    test: Dataset | None = None
    test_report: LoadReport | None = None
    overlap: int = 0  # training rows that ask what the test split asks, left out of ``train``


def load_splits(
    recipe: Recipe, fmt: ResponseFormat, tokenizer: PreTrainedTokenizerBase | None
) -> Splits:
    """Return training and evaluation rows; no evaluation rows if ``eval_strategy`` is "no". Too few
    rows for one step are an error.
    """
    script = recipe.script
    # GOLD's data are prompts and answers: it learns from both, by lmbda.
    method = "sft" if namespace_value(recipe, "distill_with") == "gold" else recipe.method
    examples = example_rows(script, method) if script.smoke else None
    train, report = load_dataset(
        script, fmt, method, split="train", tokenizer=tokenizer, rows=examples
    )
    if method == "grpo" and recipe.script.task_rewards is None:
        train = _judged(recipe, train, report)
    splits = Splits(train, report)
    if script.smoke:
        return splits
    logger.info("train: %s", report)
    if recipe.training.eval_strategy != "no":
        # Whatever is evaluated during training, no row of the test split may be trained on.
        whole = dataclasses.replace(script, max_eval_samples=None)
        test, splits.test_report = load_dataset(
            whole, fmt, method, split="test", tokenizer=tokenizer
        )
        splits.train, splits.overlap = drop_overlap(train, test)
        splits.test = test.select(range(min(len(test), script.max_eval_samples or len(test))))
        splits.test_report.kept = len(splits.test)
        logger.info("test: %s", splits.test_report)
        if not len(splits.train):
            raise RecipeError(
                f"{recipe.path}: dataset_test_split: the test split asks everything that the "
                f"training split asks, so no row is left to "
                f"train on. Fix: {split_fix(report.read)}, or eval_strategy: 'no'"
            )
        if splits.overlap:
            logger.warning(
                "%d training rows ask what the test split asks; they are left out", splits.overlap
            )
    else:
        problem = nothing_held_out(recipe, report.read)
        if problem:
            logger.warning("%s", problem)
    _check_row_count(recipe, len(splits.train))
    return splits


def _check_row_count(recipe: Recipe, rows: int) -> None:
    """Refuse fewer rows than GRPO asks for one batch of rollouts."""
    training = recipe.training
    if not hasattr(training, "num_generations"):
        return
    prompts = training.generation_batch_size // training.num_generations
    if rows < prompts:
        smaller = "per_device_train_batch_size or gradient_accumulation_steps"
        if "generation_batch_size" in recipe.settings:
            smaller = "generation_batch_size"
        raise RecipeError(
            f"{recipe.path}: {rows} training rows for {prompts} prompts a batch "
            f"(generation_batch_size / num_generations), so not one "
            f"step would be trained. Fix: more rows, or a smaller {smaller}"
        )


def _judged(recipe: Recipe, rows: Dataset, report: LoadReport) -> Dataset:
    """Return the rows with what the rewards compare with. Refuse rows that all lack it."""
    for name in recipe.script.reward_funcs:
        if not declared(REWARDS.get(name), "reads_gold"):
            continue
        if "solution" in rows.column_names:
            rows = drop_unanswered(rows, report)
        if not len(rows) or _JUDGED_BY.isdisjoint(rows.column_names):
            raise RecipeError(
                f"{recipe.path}: mapper: reward {name!r} compares with a reference answer, which "
                f"the rows do not have. Fix: solution_column: COLUMN; a mapper of your own that "
                "returns {'question': …, 'solution': …}; or another reward"
            )
    return rows


def nothing_held_out(recipe: Recipe, rows: int) -> str:
    """Say what to write if evaluate would be given the rows that GRPO trains on, as one file is
    every split; else ``""``.
    """
    name = recipe.script.dataset_name or ""
    named = "dataset_test_split" in recipe.settings or recipe.training.eval_strategy != "no"
    if named or recipe.method != "grpo" or not shipped(Path(name)).is_file():
        return ""
    return (
        f"dataset_test_split: not set, and {name} has no splits, so no row is held out for "
        f"evaluate. Fix: {split_fix(rows)}"
    )


def steps_of(training: Any, rows: int, processes: int) -> int:
    """Return the optimizer steps that TRL and Transformers make of so many rows."""
    batches = math.ceil(rows / (training.per_device_train_batch_size * processes))
    if hasattr(training, "num_iterations"):
        # Whole batches of rollouts alone, each of several micro-batches.
        prompts = training.generation_batch_size // training.num_generations
        batches = rows // prompts * training.steps_per_generation * training.num_iterations
    if training.max_steps > 0:
        return training.max_steps
    per_epoch = max(1, math.ceil(batches / training.gradient_accumulation_steps))
    return math.ceil(training.num_train_epochs * per_epoch)


def plan(training: Any, steps: int, processes: int) -> tuple[int, str]:
    """Return how many prompts (or examples) so many steps take over all processes, and in words
    what they are at most.
    """
    count = (
        steps
        * training.per_device_train_batch_size
        * training.gradient_accumulation_steps
        * processes
    )
    texts = count
    longest = getattr(training, "max_length", None)
    what = f"{count:,} examples"
    if hasattr(training, "max_completion_length"):
        texts = count // getattr(training, "num_iterations", 1)
        longest = training.max_completion_length
        count = texts // getattr(training, "num_generations", 1)
        what = f"{count:,} prompts, {texts:,} completions"
    if longest:
        what += f", at most {texts * longest:,} tokens"
    return count, f"{steps:,} steps: {what}"
