"""Data sets that are drawn instead of read: reasoning-gym's tasks and Countdown puzzles."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any

from r1_recipes.common.errors import RecipeError, defined_at, first_line, install_hint, nearest, own_code, unknown_name
from r1_recipes.common.plugins import resolve
from r1_recipes.tasks.countdown import draw as draw_puzzle
from r1_recipes.tasks.environments import ENVIRONMENTS
from r1_recipes.verification.scorers import check_task

if TYPE_CHECKING:
    from datasets import Dataset

# Rows that were drawn, each after what makes it the same as another.
Draws = Iterable[tuple[Hashable, dict[str, Any]]]


def reasoning_gym_rows(task: str, split: str, config: dict[str, Any]) -> Dataset:
    """Draw a reasoning-gym task's ``question``, ``answer`` and ``metadata`` (JSON text, since its shape differs by task).

    ``config``: the task's own keys, ``level`` (of reasoning-gym's curriculum, from 0), and ``train``/``test``: mappings with ``size``,
    ``seed`` and keys for that split alone. Question i is drawn from seed + i, so closer seeds share most questions.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS, create_curriculum
    except ImportError as error:
        raise RecipeError(f"reasoning_gym tasks need the package: {install_hint('demo')}") from error
    if task not in DATASETS:
        raise RecipeError(unknown_name("reasoning_gym task", task, DATASETS))
    try:
        check_task(task)
    except ValueError as error:
        raise RecipeError(f"dataset_name: {error}") from error

    def draw(part: dict[str, Any]) -> Draws:
        options = {**config, **part, "size": part["size"] * 20}  # a small task repeats itself
        del options["train"], options["test"]
        try:
            if (level := options.pop("level", None)) is not None:
                curriculum = create_curriculum(task)
                if not any(level < len(attribute.levels) for attribute in curriculum.attributes.values()):
                    raise ValueError(f"level: there is none {level}")  # it would be that of the last
                curriculum.set_global_level(level)
                options = {**vars(curriculum.generate_configuration()), **options}
            drawn = reasoning_gym.create_dataset(task, **options)
        except (TypeError, AssertionError, ValueError) as error:
            hint = _nearest_key(options, inspect.signature(DATASETS[task][1]).parameters)
            raise RecipeError(f"task_config of {task!r}: {first_line(error)}{hint} Keys given: {sorted(options)}") from error
        for row in drawn:
            metadata = json.dumps(row["metadata"], default=str)
            yield row["question"], {"question": row["question"], "answer": row["answer"], "metadata": metadata}

    return _split(draw, split, config, f"questions of {task!r}")


def countdown_rows(count: str, split: str, config: dict[str, Any]) -> Dataset:
    """Draw Countdown puzzles: ``nums``, ``target`` (as in Jiayi-Pan/Countdown-Tasks-3to4) and ``expression``, a solution.

    ``count`` is ``"3-4"`` or ``"3"`` numbers, 2 to 6; ``config`` has ``min_value``, ``max_value``, ``min_target``, ``max_target``, each
    from 1, and ``size`` and ``seed`` of ``train`` and ``test``.
    """
    bounds = re.fullmatch(r"([2-6])(?:-([2-6]))?", count)
    if bounds is None or bounds[1] > (bounds[2] or bounds[1]):
        raise RecipeError(f"dataset_name: countdown:{count}: how many numbers a puzzle has, from 2 to 6, such as countdown:3-4")
    settings = {"min_numbers": int(bounds[1]), "max_numbers": int(bounds[2] or bounds[1])}
    for name in ("value", "target"):
        low = settings[f"min_{name}"] = _whole(config.get(f"min_{name}"), 1, f"min_{name}")
        settings[f"max_{name}"] = _whole(config.get(f"max_{name}"), low, f"max_{name}")
    keys = {"min_value", "max_value", "min_target", "max_target", "train", "test"}
    for key in config.keys() - keys:
        raise RecipeError("task_config: " + unknown_name("key of countdown", key, keys))

    def draw(part: dict[str, Any]) -> Draws:
        rng = Random(part["seed"])
        for _ in range(100 * part["size"] + 1000):  # a narrow range repeats itself, or seldom meets a target
            if found := draw_puzzle(rng, settings):
                (numbers, target), expression = found
                yield (*sorted(numbers), target), {"nums": list(numbers), "target": target, "expression": expression}

    return _split(draw, split, config, f"puzzles of countdown:{count}")


def environment_rows(name: str, split: str, config: dict[str, Any]) -> Dataset:
    """Draw rows by an environment's class method ``draw(rng, **keys)``; ``config``: its keys, and size and seed of each split."""
    kind = resolve(ENVIRONMENTS, "environment", name)
    if not hasattr(kind, "draw"):
        raise RecipeError(f"dataset_name: environment:{name}: it has no class method draw(rng) that makes rows. Fix: rows of your own")
    signature, place = inspect.signature(kind.draw), defined_at(kind.draw)

    def draw(part: dict[str, Any]) -> Draws:
        rng, options = Random(part["seed"]), {key: value for key, value in config.items() if key not in ("train", "test")}
        try:
            signature.bind(rng, **options)
        except TypeError as error:
            hint = _nearest_key(options, signature.parameters)
            raise RecipeError(f"task_config of {name!r}: {error}{place}.{hint}") from error
        for _ in range(20 * part["size"] + 1000):  # a small game repeats itself
            with own_code(f"environment {name!r}: draw", kind.draw):
                drawn = kind.draw(rng, **options)
            if not isinstance(drawn, dict) or drawn.get("question") is None:
                fix = "Fix: return {'question': …} with what reset takes"
                raise RecipeError(f"environment {name!r}: draw{place}: must return a dict with a 'question', got {drawn!r:.80}. {fix}")
            row = {"environment": name, **drawn}
            yield json.dumps(row, sort_keys=True, default=str), row

    return _split(draw, split, config, f"rows of environment {name!r}")


def _split(draw: Callable[[dict[str, Any]], Draws], split: str, config: dict[str, Any], what: str) -> Dataset:
    """Take the first distinct rows of a split; those of ``train`` are none of ``test``."""
    from datasets import Dataset  # heavy

    rows: dict[Hashable, dict[str, Any]] = {}
    for part in ("test", "train"):
        taken, rows = rows, {}
        settings = config[part] if isinstance(config.get(part), dict) else {}
        hint = _nearest_key(settings, ("size", "seed"))
        size = _whole(settings.get("size"), 1, f"{part}: size", hint)
        _whole(settings.get("seed"), 0, f"{part}: seed", hint)
        for key, row in draw(settings):
            if key not in taken:
                rows.setdefault(key, row)
            if len(rows) == size:
                break
        else:
            raise RecipeError(f"task_config: {part}: only {len(rows)} distinct {what}, not {size}. Fix: a smaller size, or a wider task")
        if part == split:
            drawn = list(rows.values())  # of which one may have a key that another lacks
            columns = {key: [row.get(key) for row in drawn] for key in dict.fromkeys(chain(*drawn))}
            return Dataset.from_dict(columns, on_mixed_types="use_json")
    raise RecipeError(f"split {split!r}: there are 'train' and 'test' {what}")


def _nearest_key(given: Iterable[str], known: Collection[str]) -> str:
    """Which key somebody may have meant who gave one that is not known."""
    near = [close[0] for key in map(str, given) if key not in known and (close := nearest(key, known))]
    return f" Did you mean {near[0]!r}?" if near else ""


def _whole(value: Any, least: int, key: str, hint: str = "") -> int:
    if not isinstance(value, int) or value < least:
        raise RecipeError(f"task_config: {key}: must be a whole number from {least}, got {value!r}.{hint}")
    return value


# By the prefix of a recipe's dataset_name.
GENERATED_SETS = {"reasoning_gym": reasoning_gym_rows, "countdown": countdown_rows, "environment": environment_rows}
