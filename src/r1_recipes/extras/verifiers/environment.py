"""Load an environment of verifiers by name, and score a completion with its rubric."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy

from r1_recipes.common.errors import RecipeError, own_code
from r1_recipes.extras.verifiers.taskset import Taskset

# The environments that the recipe names. A row may name no other one, since loading it runs code.
LOADED: dict[tuple[str, str], Environment | Taskset] = {}
# Stamps of the rows that they made: another data set may hold rows that only look like theirs.
MADE: set[bytes] = set()


def stamp(spec: str) -> bytes:
    """Return a checksum of a row."""
    return hashlib.sha256(spec.encode()).digest()


def load(name: str, arguments: str) -> Environment | Taskset:
    """Return an environment, which each process makes once.

    Args:
        name: ``my-env`` or ``owner/my-env``, of the package ``my_env``.
        arguments: The recipe's ``task_config`` as JSON.

    Raises:
        RecipeError: A package is missing, the environment cannot be made, or its reward needs more
            than one completion.
    """
    if (name, arguments) in LOADED:
        return LOADED[name, arguments]
    fix = (
        "install verifiers (below 0.4 for an environment with load_environment) and the "
        "environment's package; in task_config, write only arguments that it has"
    )
    kind: type[Environment] | type[Taskset]
    with own_code(f"dataset_name: verifiers:{name}", load, fix):
        importlib.import_module("verifiers")
        module = importlib.import_module(name.rpartition("/")[2].replace("-", "_"))
        kind = Environment if hasattr(module, "load_environment") else Taskset
        with seeded():
            loaded = kind(name, module, json.loads(arguments))
    needed = [need for need, is_needed in loaded.needs.items() if is_needed]
    if needed:
        raise RecipeError(
            f"dataset_name: verifiers:{name}: needs more than a finished completion: "
            f"{', '.join(needed)}. Fix: write a class in TRL's format (docs/agents.md)"
        )
    LOADED[name, arguments] = loaded
    return loaded


class _Strict(logging.LoggerAdapter):
    """Raise what a rubric logs as an error: a reward function failed, and would count as 0."""

    def error(self, msg: object, *args: Any, **keys: Any) -> None:
        raise ValueError(msg)


class Environment:
    """An environment that ``load_environment`` makes, as in verifiers before 0.4.

    Attributes:
        needs: What its reward may need besides a finished completion, and whether it does.
    """

    def __init__(self, name: str, module: Any, arguments: dict[str, Any]) -> None:
        import verifiers
        from verifiers.clients import resolve_client
        from verifiers.types import ClientConfig

        self._made = module.load_environment(**arguments)
        rubric = self._made.rubric
        turns = f"the turns of {type(self._made).__name__}, which is no SingleTurnEnv"
        self.needs = {
            turns: not isinstance(self._made, verifiers.SingleTurnEnv),
            # A process may have only some completions of a prompt.
            "other completions, which a reward function compares": rubric.has_group_rewards,
        }
        # A state must have a client. This one has no key and no server.
        nowhere = ClientConfig(api_key_var="", api_base_url="http://localhost:9", max_retries=0)
        self._client = resolve_client(nowhere)
        for part in _parts(rubric):
            part.logger = _Strict(part.logger, {})

    def splits(self) -> dict[str, Any]:
        """Return the rows of ``train`` and ``test``, or of the one that there is."""
        built = {"train": self._made.build_dataset(), "test": self._made.build_eval_dataset()}
        return {split: rows for split, rows in built.items() if rows is not None}

    async def score(self, row: dict[str, Any], text: str) -> float:
        """Return the weighted sum of the rubric's functions."""
        from verifiers.utils.message_utils import normalize_messages

        state = await self._made.init_state(row, self._client, "")
        state = await self._made.setup_state(state) or state
        state["completion"] = normalize_messages([{"role": "assistant", "content": text}])
        await self._made.rubric.score_rollout(state)
        return state["reward"]


def _parts(rubric: Any) -> Iterator[Any]:
    """Yield a rubric, and the rubrics in it if it is a group."""
    yield rubric
    for part in getattr(rubric, "rubrics", ()):
        yield from _parts(part)


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Set Python's and NumPy's generators, so that all processes, and a resumed run, draw alike."""
    states = random.getstate(), numpy.random.get_state()
    random.seed(0)
    numpy.random.seed(0)
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
