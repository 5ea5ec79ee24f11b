"""A substitute for the package verifiers: what of 0.3.1 this project calls, and how that behaves.

tests/elsewhere runs the same environments with the package itself.
"""

import asyncio
import inspect
import logging

from verifiers.clients import Client


def extract_boxed_answer(text):
    return text.rpartition("\\boxed{")[2].partition("}")[0] if "\\boxed{" in text else text


class Parser:
    def __init__(self, extract_fn=str):
        self.extract_fn = extract_fn

    def parse_answer(self, completion):
        return self.extract_fn(completion[-1].content)


class Rubric:
    def __init__(self, funcs=None, weights=None, parser=None):
        self.funcs = funcs or []
        self.weights = weights or [1.0] * len(self.funcs)
        self.parser = parser or Parser()
        self.logger = logging.getLogger(__name__)

    @property
    def has_group_rewards(self):
        return any("completions" in inspect.signature(func).parameters for func in self.funcs)

    async def _call(self, func, state):
        given = {**state["input"], **state, "state": state, "parser": self.parser}
        names = inspect.signature(func).parameters
        try:
            result = func(**{name: given[name] for name in names if name in given})
            return float(await result if inspect.isawaitable(result) else result)
        except Exception as error:
            self.logger.error(f"Error calling reward function {func.__name__}: {error}")
            return 0.0

    async def score_rollout(self, state):
        assert self.funcs, "at least one individual-level reward function"
        scores = [await self._call(func, state) for func in self.funcs]
        state["reward"] = sum(map(float.__mul__, scores, self.weights))


class RubricGroup(Rubric):
    def __init__(self, rubrics):
        super().__init__()
        self.rubrics = rubrics

    @property
    def has_group_rewards(self):
        return any(rubric.has_group_rewards for rubric in self.rubrics)

    async def score_rollout(self, state):
        total = 0.0
        for rubric in self.rubrics:
            await rubric.score_rollout(state)
            total += state["reward"]
        state["reward"] = total


async def num_turns(state):
    await asyncio.sleep(0)
    return len(state["trajectory"])


class MultiTurnEnv:
    def __init__(
        self, dataset=None, eval_dataset=None, system_prompt=None, parser=None, rubric=None
    ):
        self._datasets = dataset, eval_dataset
        self.system_prompt = system_prompt
        self.rubric = RubricGroup([rubric, Rubric([num_turns], [0.0])])

    def build_dataset(self):
        return self._prompts(self._datasets[0])

    def build_eval_dataset(self):
        return self._prompts(self._datasets[1])

    def _prompts(self, dataset):
        def prompt(row):
            system = [{"role": "system", "content": self.system_prompt}]
            return {"prompt": [*system, {"role": "user", "content": row["question"]}]}

        return dataset and dataset.map(prompt)

    async def init_state(self, input, client, model):
        assert isinstance(client, Client)
        return {**input, "input": input, "trajectory": [], "completion": None}

    async def setup_state(self, state):
        return None


class SingleTurnEnv(MultiTurnEnv):
    pass


class ToolEnv(MultiTurnEnv):
    pass


def load_environment(name, **arguments):
    raise AssertionError("the environment's own function is called")
