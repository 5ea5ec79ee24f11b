"""The start of a run: its recipe, the checks before anything is loaded, and its folder."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from r1_recipes.common import locks, processes
from r1_recipes.common.console import LOG_FILE, LogFile, replace_handler, say, set_up_logging
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.masking import masked_words
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import load_recipe
from r1_recipes.recipe.types import OWN_TYPES
from r1_recipes.runs import checkpoints, run_dir
from r1_recipes.runs.run_dir import Run
from r1_recipes.training import checks

logger = logging.getLogger(__name__)


def start(argv: Sequence[str] | None, method: str) -> Run:
    """Read the recipe and prepare its run directory.

    Args:
        argv: command line without the program; ``None``: this process's.
        method: ``"grpo"``, ``"sft"``, ``"distill"`` or ``"generate"``.

    Raises:
        RecipeError: anything that can be known before a model or data set is loaded.
        SystemExit: 0, after ``--help`` or if the run is finished already.
    """
    if argv is None:
        argv = sys.argv[1:]
        sys.argv[1:] = masked_words(argv)  # W&B keeps it with the run
    if {"-h", "--help"} & set(argv):
        say(usage(method))
        raise SystemExit(0)
    recipe = load_recipe(argv, method, checks.check_files, smoke_overrides)
    set_up_logging(recipe.training)
    checks.check_generation_backend(recipe)
    checks.check_rewards(recipe)
    trains = method != "generate"
    if trains:
        checks.check_processes(recipe)
        checks.check_trackers(recipe)
        checks.check_push(recipe)
    run = Run(recipe, Path(recipe.training.output_dir), masked_words(argv))
    done, run.resume_from = processes.first(lambda: _open_folder(run)) or (False, None)
    if done:
        raise SystemExit(0)
    # From here on every line is in the run's own log too.
    logger.info("%s: %s -> %s", recipe.path, method, run.output_dir)
    for warning in dict.fromkeys(recipe.warnings):
        logger.warning(warning)
    if trains:
        checks.check_one_folder(run.output_dir, run.resume_from)
        checks.prepare_wandb(recipe)
    return run


def _open_folder(run: Run) -> tuple[bool, Path | None]:
    """Lock the run directory, check that it is this recipe's, and record a training's start.

    Returns:
        Whether nothing is left to do, and the checkpoint to resume from.

    Raises:
        RecipeError: another process or another run has it, or it cannot be written.
    """
    recipe, output_dir = run.recipe, run.output_dir
    locks.release(output_dir)  # an earlier run of this process
    locks.hold(output_dir)
    run_dir.check(recipe, output_dir)
    if recipe.method != "generate" and run_dir.is_finished(output_dir) and not run_dir.changed_settings(recipe, output_dir):
        logger.info("already done: %s; remove it, or choose another --output_dir, to train again", output_dir)
        return True, None
    resume_from = None
    try:
        # The log of a start that failed before its first step is not part of this run.
        replace_handler(LogFile, LogFile(output_dir / LOG_FILE, "a" if run_dir.holds_steps(output_dir) else "w"))
        if recipe.method != "generate":
            resume_from = checkpoints.resume_point(recipe, output_dir)
            checkpoints.set_torn_aside(output_dir, resume_from)
            run_dir.claim(run, checkpoints.step_of(resume_from))
    except OSError as error:
        raise RecipeError(
            f"output_dir {output_dir}: cannot be written: {error.strerror} ({error.filename or 'a file in it'}). Fix: make room, or choose "
            "another folder (--output_dir …)"
        ) from error
    return False, resume_from


def usage(method: str) -> str:
    """Return what ``--help`` prints: the call, and every key of ours with its meaning."""
    kinds = OWN_TYPES[method]
    ours = [f for kind in kinds if not isinstance(kind, str) for f in dataclasses.fields(kind)]
    theirs = [f"trl.{name}" for name in (*(kind for kind in kinds if isinstance(kind, str)), "ModelConfig")]
    return "\n".join(
        [
            f"usage: python -m r1_recipes.{method} recipes/NAME.yaml [--key value ...]",
            "",
            f"Keys are those of {' and '.join(theirs)}, the parameters of the rewards (docs/recipes.md), and:",
            *(f"  --{f.name:<28} {f.metadata['help']}" for f in ours),
        ]
    )
