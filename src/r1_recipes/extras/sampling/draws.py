"""The base of both samplers: TRL's draws by batch, each for a row that is chosen later.

Heavy: imports torch and TRL.
"""

from __future__ import annotations

from typing import Any

from trl.trainer.utils import RepeatSampler


class BatchSampler(RepeatSampler):
    """TRL's sampler of a trainer, which knows the number of its batch over all epochs."""

    def __init__(self, sampler: RepeatSampler, trainer: Any) -> None:
        super().__init__(
            sampler.data_source,
            sampler.mini_repeat_count,
            sampler.batch_size,
            sampler.repeat_count,
            sampler.shuffle,
            sampler.seed,
        )
        self.trainer = trainer

    def batch_numbers(self) -> range:
        """Return the numbers of this epoch's batches, counted from the start of the run."""
        batches = self.num_samples // self.batch_size
        first = int(self.trainer.state.epoch or 0) * batches
        return range(first, first + batches)
