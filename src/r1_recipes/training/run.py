"""A training run on one screen: recipe, checks, run folder, tokenizer, rows, trainer, train, save."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common import processes
from r1_recipes.common.console import reported_errors, typed
from r1_recipes.common.errors import RecipeError, StoppedTogether
from r1_recipes.common.files import disk_fault
from r1_recipes.models.engine import check_room, dimensions, fit_engine
from r1_recipes.models.smoke import is_temporary
from r1_recipes.models.tokenizer import load_processor, load_tokenizer
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.prompts.served_template import asked_with
from r1_recipes.recipe import Recipe
from r1_recipes.report import page
from r1_recipes.runs.run_dir import Run
from r1_recipes.training import weights
from r1_recipes.training.start import Splits, load_splits, nothing_held_out, start

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Trainer

logger = logging.getLogger(__name__)

# Gets the keyword arguments that all TRL trainers take.
BuildTrainer = Callable[[Recipe, ResponseFormat, "PreTrainedTokenizerBase", dict[str, Any]], "Trainer"]


def run_recipe(argv: Sequence[str] | None, method: str, build_trainer: BuildTrainer) -> None:
    """Train as a recipe says; exit with 2 if the recipe or its data cannot be used, with 130 if the run was stopped."""
    with reported_errors():
        run = start(argv, method)
        tokenizer, fmt = load_tokenizer(run.recipe)
        rows = load_splits(run.recipe, fmt, tokenizer)
        # A reward model reads conversations as they are.
        opening = {} if method == "reward" else asked_with(fmt, rows.train, run.recipe.script.few_shot)
        arguments = trainer_arguments(run, tokenizer, rows, opening)
        with weights.loaded_whole(run.recipe):
            trainer = build_trainer(run.recipe, fmt, tokenizer, arguments)
        weights.prepare(run.recipe, trainer)
        try:
            train(run, trainer)
            weights.save(run, trainer, opening)
        except Exception as error:
            if fault := disk_fault(error, run.output_dir):
                again = "Fix: make room; the same command goes on from the newest whole checkpoint, or starts again if there is none"
                raise RecipeError(f"output_dir {run.output_dir}: {fault}. {again}") from error
            raise
        finally:  # finished, stopped or failed: that is when somebody looks
            if processes.is_main_process() and run.output_dir.is_dir() and not is_temporary(run.output_dir):
                page.refresh(run.output_dir)
        _say_next(run)
        processes.destroy_process_group_at_exit()


def _say_next(run: Run) -> None:
    """Log what to type now: compare the model with the one before, ask it something, open the page."""
    recipe, model = run.recipe, typed(str(run.output_dir))
    trained_on = ["--dataset_test_split", recipe.script.dataset_train_split] if nothing_held_out(recipe, 1) else []
    evaluate = f"python -m r1_recipes.evaluate {' '.join(map(typed, [*run.argv, *trained_on]))} --model"
    asks = recipe.method != "reward" and not recipe.script.environment
    commands = [f"{evaluate} {model} --ask 'a question'"] * asks + [f"python -m webbrowser {model}/{page.REPORT_FILE}"]
    if recipe.method == "grpo":
        commands = [*_comparison(recipe, evaluate, model), *commands]
    if not recipe.script.smoke and "R1_RECIPES_STAGE" not in os.environ:
        logger.info("next:\n  %s", "\n  ".join(commands))


def _comparison(recipe: Recipe, evaluate: str, model: str) -> list[str]:
    """Return the commands that judge the model and the one before; by vLLM where that and a GPU are there, many times faster."""
    import torch  # heavy

    trained, backend, first = model, "", []
    if not recipe.training.use_cpu and torch.cuda.is_available() and importlib.util.find_spec("vllm"):
        backend = "--backend vllm "
        if recipe.model.use_peft:  # it loads no adapters by themselves
            trained, first = f"{model}/merged", [f"python -m r1_recipes.adapters {model}"]
    # The page shows what is in that folder.
    return [*first, f"{evaluate} {recipe.model.model_name_or_path} --model {trained} {backend}--output {model}/evaluation"]


def trainer_arguments(run: Run, tokenizer: PreTrainedTokenizerBase, rows: Splits, opening: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that all TRL trainers take."""
    from r1_recipes.training.callbacks import callbacks  # heavy

    pictures = "image" in rows.train.column_names
    if getattr(run.recipe.training, "use_vllm", False):
        check_room(f"{run.recipe.path}:", fit_engine(run.recipe, dimensions(run.recipe), pictures=pictures))
    return {
        **weights.model_arguments(run.recipe),
        "args": run.recipe.training,
        "train_dataset": rows.train,
        "eval_dataset": rows.test,
        "processing_class": load_processor(run.recipe, tokenizer) if pictures else tokenizer,
        "callbacks": callbacks(run, opening),
    }


def train(run: Run, trainer: Trainer) -> None:
    """Train, or resume; exit with 130, after a checkpoint, if the run was asked to stop."""
    from r1_recipes.training.callbacks import AllStepsTrained, Progress, ProgressCallback, save_last_step, stop_on_signal  # heavy
    from r1_recipes.training.resume import TodaysSettings, pass_over_tied_weights  # heavy

    if not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)  # prints every metric
        trainer.add_callback(Progress)
    if run.resume_from:
        logger.info("resuming from %s", run.resume_from)
        trainer.add_callback(TodaysSettings(trainer))
        pass_over_tied_weights(trainer)
    try:
        with stop_on_signal(run), contextlib.suppress(AllStepsTrained):
            trainer.train(resume_from_checkpoint=str(run.resume_from) if run.resume_from else None)
    except StoppedTogether as error:
        mended = "goes on from there (where you changed your own code: with --resume_from_checkpoint true)"
        again = mended if save_last_step(run, trainer) else "starts again"
        stopped = f"stopped after step {trainer.state.global_step}; once it is mended, the same command {again}"
        raise RecipeError(f"{error}: {stopped}") from error
    step = trainer.state.global_step
    if run.stop_requested and step < trainer.state.max_steps:
        saved = (run.output_dir / f"checkpoint-{step}").is_dir()
        again = "continues from there" if saved else "starts from its last checkpoint, if any"
        logger.warning("stopped at step %d; the same command %s", step, again)
        raise SystemExit(130)
    if step == 0:
        told = f"not one step was trained, so nothing is saved: {len(trainer.train_dataset)} rows make no whole batch"
        raise RecipeError(f"{run.recipe.path}: {told}. Fix: more rows, or a lower per_device_train_batch_size")
