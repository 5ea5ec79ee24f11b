"""A run that goes on from a checkpoint, at today's rate and steps. Heavy: imports Transformers, and
so torch.
"""

import logging
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback

from r1_recipes.training.trainer import RowOrder

logger = logging.getLogger(__name__)

# What an optimizer's parameter groups hold of a recipe; the rest of a group is the state of
# optimizers such as Prodigy.
_OF_RECIPE = ("lr", "initial_lr", "betas", "eps", "weight_decay", "momentum")


class TodaysSettings(TrainerCallback):
    """Train the remaining steps as the recipe says today.

    Transformers loads the old rate, betas, epsilon and weight decay with the optimizer, the old
    base rate with the schedule, and the old ``logging_steps``, ``eval_steps`` and ``save_steps``
    with its state (5.17: trainer.py, ``_load_optimizer_and_scheduler`` and
    ``_init_training_state``). Where no key has changed, this writes the values that are there.
    """

    def __init__(self, trainer: Trainer) -> None:
        # Called before the checkpoint is loaded, which DeepSpeed does as soon as there is a
        # schedule. ``create_scheduler`` is not for wrapping: with an optimizer of a DeepSpeed
        # file's own Transformers calls it on a copy of the trainer.
        self._create_optimizer = trainer.create_optimizer
        trainer.create_optimizer = self._remembering

    def _remembering(self, *args, **options):
        optimizer = self._create_optimizer(*args, **options)
        self._groups = []
        for group in getattr(optimizer, "param_groups", []):  # none yet of a DeepSpeed file's own
            today = {key: group[key] for key in _OF_RECIPE if key in group}
            self._groups.append({"initial_lr": group["lr"], **today})
        return optimizer

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs) -> None:
        state.compute_steps(args, state.max_steps)
        # Others go by the loss, whose keys may not change, or are of a DeepSpeed file's own.
        if not isinstance(lr_scheduler, LambdaLR):
            logger.info("learning rate and schedule are those of the checkpoint")
            return
        groups = lr_scheduler.optimizer.param_groups
        rates = []
        for group, today, factor in zip(groups, self._groups, lr_scheduler.lr_lambdas, strict=True):
            rates.append(today["initial_lr"] * factor(lr_scheduler.last_epoch))
            group.update({**today, "lr": rates[-1]})
        lr_scheduler.base_lrs = [today["initial_lr"] for today in self._groups]
        lr_scheduler._last_lr = rates


def prepare_to_resume(trainer: Trainer) -> None:
    """Let a trainer take up rows, rate and weights where its checkpoint left them."""
    trainer.add_callback(TodaysSettings(trainer))
    trainer.add_callback(RowOrder(trainer))
    pass_over_tied_weights(trainer)


def pass_over_tied_weights(trainer: Trainer) -> None:
    """Keep Transformers from calling weights missing that a checkpoint holds under the name of
    those they are tied to.
    """
    issue = trainer._issue_warnings_after_load

    def without_tied(found: Any) -> None:
        tied = getattr(trainer.model, "all_tied_weights_keys", None) or {}
        missing = [] if set(found.missing_keys) <= set(tied) else found.missing_keys
        issue(found._replace(missing_keys=missing))

    trainer._issue_warnings_after_load = without_tied
