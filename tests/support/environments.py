"""Environments of verifiers as their packages have them.

They run with the substitute in tests/extras/verifiers/site, and in tests/elsewhere with the package.
"""

# For verifiers.v1. docs/howto_elsewhere.md has one with load_environment.
TASKSET = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def correct(self, trace):
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace):
        return 1 / (len(trace.last_reply) < 5)


class SumConfig(vf.TasksetConfig):
    largest: int = 5


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for number in range(self.config.largest):
            yield SumTask(
                SumData(
                    prompt=f"{number} + 1?",
                    system_prompt="Write the sum alone.",
                    answer=str(number + 1),
                )
            )


__all__ = ["Sums"]
"""
