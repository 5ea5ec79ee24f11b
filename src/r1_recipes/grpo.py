"""``accelerate launch -q -m r1_recipes.grpo recipes/NAME.yaml [--key value …]``: GRPO, one YAML a run."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes import report, runtime
from r1_recipes.errors import RecipeError

if TYPE_CHECKING:
    from datasets import Dataset
    from trl import GRPOTrainer

    from r1_recipes.formats import ResponseFormat
    from r1_recipes.recipe import Recipe

logger = logging.getLogger("r1_recipes.grpo")  # under `python -m` this module is called __main__

# Golds that are tried before the model is loaded.
_GOLDS = 64


def main(argv: Sequence[str] | None = None) -> None:
    """Run a GRPO recipe; see :func:`r1_recipes.runtime.run_recipe`."""
    runtime.run_recipe(argv, "grpo", build_trainer)


def build_trainer(recipe: Recipe, fmt: ResponseFormat, tokenizer: Any, arguments: dict[str, Any]) -> GRPOTrainer:
    """TRL's GRPO trainer with the recipe's rewards, which read completions through its response format, each on the rows of its tasks."""
    from trl import GRPOTrainer

    from r1_recipes.rewards import get_reward_funcs, route
    from r1_recipes.rewards.call import try_own_rewards

    script = recipe.script
    rewards = get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
    if script.task_rewards is not None:
        rewards = route(rewards, script.reward_funcs, script.task_rewards, script.task_column)
    try_own_rewards(script.reward_funcs, rewards, arguments["train_dataset"], fmt, tokenizer)
    _check_golds(recipe, rewards, arguments["train_dataset"])
    trainer = GRPOTrainer(reward_funcs=rewards, **arguments)
    _merge_extra_columns(trainer)
    report.time_phases(trainer)
    _evaluate_otherwise(trainer, script.eval_temperature, script.eval_max_completion_length)
    return trainer


def _check_golds(recipe: Recipe, rewards: Sequence[Callable], rows: Dataset) -> None:
    """Ask the rewards that compare with a gold about some rows; training on golds that none can read learns nothing.

    Raises:
        RecipeError: none of the rows can be judged.
    """
    from r1_recipes.rewards import AnswerReward
    from r1_recipes.rewards.call import score

    if "solution" not in rows.column_names:
        return
    asked = {name: reward for name, reward in zip(recipe.script.reward_funcs, rewards, strict=True) if isinstance(reward, AnswerReward)}
    sample = rows.select(range(0, len(rows), max(1, len(rows) // _GOLDS)))
    sample = sample.select_columns([name for name in sample.column_names if name != "image"]).to_list()
    for name, reward in asked.items():
        unread = [
            row["solution"]
            for row, verdict in zip(sample, score(name, reward, sample, [""] * len(sample), None), strict=True)
            if verdict is None
        ]
        told = f"{name} cannot read {len(unread)} of {len(sample)} golds that were tried; the first is {unread[0]!r}" if unread else ""
        if len(unread) == len(sample):
            raise RecipeError(
                f"{recipe.path}: reward_funcs: {told}. Fix: solution_column, or for golds in words reward_funcs: [answer_match]"
            )
        if len(unread) * 20 > len(sample):
            logger.warning("%s; such rows teach nothing (all of them: python -m r1_recipes.preflight)", told)


def _merge_extra_columns(trainer: GRPOTrainer) -> None:
    """Let rewards share a column of the completions table; TRL would append the second one's values as further rows."""
    pending = trainer._pending_extra_logs

    def log_extra(column: str, values: Sequence[Any]) -> None:
        held = pending.get(column)
        pending[column] = [new if old is None or old == "" else old for old, new in zip(held, values, strict=True)] if held else [*values]

    trainer._log_completion_extra = log_extra


def _evaluate_otherwise(trainer: GRPOTrainer, temperature: float | None, max_completion_length: int | None) -> None:
    """Let the trainer's own evaluation loop sample otherwise than training does, and write elsewhere: TRL has one place for both."""
    evaluate, empty = trainer.evaluate, copy.deepcopy(trainer._logs)
    sampled = temperature is not None or max_completion_length is not None

    def evaluate_otherwise(*args: Any, **kwargs: Any) -> dict[str, float]:
        otherwise = _sampling(trainer, temperature, max_completion_length) if sampled else contextlib.nullcontext()
        with otherwise, _completions_apart(trainer, copy.deepcopy(empty)):
            return evaluate(*args, **kwargs)

    trainer.evaluate = evaluate_otherwise


@contextlib.contextmanager
def _completions_apart(trainer: GRPOTrainer, logs: dict[str, Any]) -> Iterator[None]:
    """Completions go to ``eval_completions/``; those of training of the same step stay where and what they are."""
    output_dir, name = Path(trainer.args.output_dir), f"completions_{trainer.state.global_step:05d}.parquet"
    path, aside = output_dir / "completions" / name, output_dir / "completions" / f".{name}.aside"
    training, trainer._logs = trainer._logs, logs
    if trainer.accelerator.is_main_process and path.exists():
        path.rename(aside)
    try:
        yield
    finally:
        trainer._logs = training
        if trainer.accelerator.is_main_process:
            if path.exists():
                (output_dir / "eval_completions").mkdir(exist_ok=True)
                path.rename(output_dir / "eval_completions" / name)
            if aside.exists():
                aside.rename(path)


@contextlib.contextmanager
def _sampling(trainer: GRPOTrainer, temperature: float | None, max_completion_length: int | None) -> Iterator[None]:
    owner = trainer.vllm_generation if trainer.use_vllm else trainer
    names = ("temperature", "max_completion_length") if trainer.use_vllm else ("generation_config", "generation_kwargs")
    before = {name: getattr(owner, name) for name in names}
    if trainer.use_vllm:
        changes = {"temperature": temperature, "max_completion_length": max_completion_length}
        changes = {name: value for name, value in changes.items() if value is not None}
    else:
        settings: dict[str, Any] = {} if temperature is None else {"do_sample": temperature > 0, "temperature": temperature or None}
        if temperature == 0:
            settings |= {"top_p": None, "top_k": None, "min_p": None}  # of which greedy decoding would warn
        if max_completion_length is not None:
            settings["max_new_tokens"] = max_completion_length
        config = copy.deepcopy(trainer.generation_config)
        config.update(**settings)
        changes = {"generation_config": config, "generation_kwargs": {**trainer.generation_kwargs, **settings}}
    for name, value in changes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


if __name__ == "__main__":
    main()
