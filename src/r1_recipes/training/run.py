"""The sequence of a training run: recipe, checks, folder, tokenizer, rows, trainer, train, save."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from r1_recipes.common import processes
from r1_recipes.common.console import reported_errors
from r1_recipes.common.errors import RecipeError, StoppedTogether
from r1_recipes.models.smoke import is_temporary
from r1_recipes.models.tokenizer import load_processor, load_tokenizer
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.prompts.served import trained_system_prompt
from r1_recipes.recipe import Recipe
from r1_recipes.runs.resume import CLASSES
from r1_recipes.runs.run_dir import Run, refresh_page
from r1_recipes.training import weights
from r1_recipes.training.start import Splits, load_splits, nothing_held_out, start

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Trainer

logger = logging.getLogger(__name__)

# Keys that an evaluation does not read.
_TRAINING_KEYS = {
    key
    for key, (_, subject) in CLASSES.items()
    if subject in ("rate and length", "loss", "saving and logs", "batch")
} - {"reward_weights"}  # without them, typed reward_funcs would not fit the recipe's weights
# Called with the keyword arguments that all TRL trainers take.
BuildTrainer = Callable[
    [Recipe, ResponseFormat, "PreTrainedTokenizerBase", weights.Arguments], "Trainer"
]


def run_recipe(argv: Sequence[str] | None, method: str, build_trainer: BuildTrainer) -> None:
    """Train a recipe.

    Exit with 2 if the recipe or its data is unusable, with 130 if the run was interrupted.
    """
    with reported_errors():
        run = start(argv, method)
        tokenizer, fmt = load_tokenizer(run.recipe)
        rows = load_splits(run.recipe, fmt, tokenizer)
        if method != "reward":  # a reward model reads conversations as they are
            run.system_prompt = trained_system_prompt(fmt, rows.train)
        arguments = trainer_arguments(run, tokenizer, rows)
        with weights.loaded_whole(run.recipe):
            trainer = build_trainer(run.recipe, fmt, tokenizer, arguments)
        weights.prepare(run.recipe, trainer)
        processes.destroy_process_group_at_exit()
        try:
            train(run, trainer)
            weights.save(run, trainer)
        finally:  # write the page after success, interruption or failure
            if run.output_dir.is_dir() and not is_temporary(run.output_dir):
                refresh_page(run.output_dir)
        _say_next(run)


def _say_next(run: Run) -> None:
    """Log the next commands: compare the model with its base, ask it a question, open the page."""
    recipe = run.recipe
    model = shlex.quote(str(run.output_dir))
    argv = run.argv
    script = recipe.script
    if script.smoke or "R1_RECIPES_STAGE" in os.environ:
        return
    if nothing_held_out(recipe, 1):
        argv = [*argv, "--dataset_test_split", script.dataset_train_split]
    words = shlex.join(_without_training_keys(argv))
    evaluate = f"python -m r1_recipes.evaluate {words} --model"
    commands = _comparison(recipe, evaluate, model) if recipe.method == "grpo" else []
    if recipe.method != "reward" and not script.environment:
        commands.append(f"{evaluate} {model} --ask 'a question'")
    commands.append(f"python -m webbrowser {model}/report.html")
    logger.info("next:\n  %s", "\n  ".join(commands))


def _without_training_keys(argv: Sequence[str]) -> list[str]:
    """Return a command line without overrides that only training reads."""
    kept = []
    keeps = True
    for word in argv:
        if word.startswith("--"):
            keeps = word[2:].partition("=")[0].replace("-", "_") not in _TRAINING_KEYS
        if keeps or word.endswith(".yaml"):  # the recipe may come last
            kept.append(word)
    return kept


def _comparison(recipe: Recipe, evaluate: str, model: str) -> list[str]:
    """Return the commands that evaluate the model and its base.

    They use vLLM if it and a GPU are available, because it is many times faster.
    """
    import torch  # heavy

    trained = model
    backend = ""
    commands = []
    has_gpu = torch.cuda.is_available() and not recipe.training.use_cpu
    if has_gpu and importlib.util.find_spec("vllm"):
        backend = "--backend vllm "
        if recipe.model.use_peft:  # vLLM cannot load adapters without their base model
            trained = f"{model}/merged"
            commands.append(f"python -m r1_recipes.adapters {model}")
    # The report page shows the results in this folder.
    commands.append(
        f"{evaluate} {recipe.model.model_name_or_path} --model {trained} {backend}--output "
        f"{model}/evaluation"
    )
    return commands


def trainer_arguments(
    run: Run, tokenizer: PreTrainedTokenizerBase, rows: Splits
) -> weights.Arguments:
    """Return the keyword arguments that all TRL trainers take."""
    from r1_recipes.training.callbacks import callbacks  # heavy

    recipe = run.recipe
    pictures = "image" in rows.train.column_names
    return {
        **weights.model_arguments(recipe),
        "args": recipe.training,
        "train_dataset": rows.train,
        "eval_dataset": rows.test,
        "processing_class": load_processor(recipe, tokenizer) if pictures else tokenizer,
        "callbacks": callbacks(run),
    }


def train(run: Run, trainer: Trainer) -> None:
    """Train or resume. Exit with 130, after a checkpoint, if the run was asked to stop."""
    from r1_recipes.training import callbacks  # heavy
    from r1_recipes.training.resume import prepare_to_resume  # heavy

    if not trainer.args.disable_tqdm:
        trainer.remove_callback(callbacks.ProgressCallback)  # it prints every metric
        trainer.add_callback(callbacks.Progress)
    if run.resume_from:
        logger.info("resuming from %s", run.resume_from)
        prepare_to_resume(trainer)
    try:
        with callbacks.stop_on_signal(run):
            trainer.train(resume_from_checkpoint=str(run.resume_from) if run.resume_from else None)
    except callbacks.AllStepsTrained:
        _load_best_model(trainer)
    except StoppedTogether as error:
        again = "starts again"
        if callbacks.save_last_step(run, trainer):
            again = (
                "resumes from there (if you changed your own code, add "
                "--resume_from_checkpoint true)"
            )
        raise RecipeError(
            f"{error}. Training stopped after step {trainer.state.global_step}. After the fix, the "
            f"same command {again}"
        ) from error
    step = trainer.state.global_step
    if run.stop_requested and step < trainer.state.max_steps:
        saved = (run.output_dir / f"checkpoint-{step}").is_dir()
        again = "resumes from there" if saved else "resumes from its last checkpoint, if any"
        logger.warning("stopped at step %d. The same command %s", step, again)
        raise SystemExit(130)
    if step == 0:
        raise RecipeError(
            f"{run.recipe.path}: no step was trained, so nothing is saved: "
            f"{len(trainer.train_dataset)} rows do not fill a batch. "
            "Fix: more rows, or a lower per_device_train_batch_size"
        )


def _load_best_model(trainer: Trainer) -> None:
    """Load the best model, as Transformers does after the last step."""
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
        trainer._load_best_model()
