"""The registry of tools and environments, in the format of TRL.

A tool is a typed function. Its docstring describes the tool and each argument. An environment is a
class with ``reset(**row)``, whose text is added to the question. Its public methods are tools, and
``get_reward()`` returns the reward. The fields of a dataclass environment are keys of a recipe.
"""

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line, own_code
from r1_recipes.common.plugins import Registry
from r1_recipes.extras.agents.guard import Limits, guarded, guarded_environment

TOOLS: Registry[Any] = Registry("tool")
ENVIRONMENTS: Registry[Any] = Registry("environment")


def register_tool(name: str) -> Callable[[Callable], Callable]:
    """Return a function decorator that registers a tool under ``name``."""
    return functools.partial(TOOLS.register, name)


def register_environment(name: str) -> Callable[[type], type]:
    """Return a class decorator that registers an environment under ``name``."""
    return functools.partial(ENVIRONMENTS.register, name)


def environment_kinds(environment: str | Mapping[str, str] | None) -> dict[str | None, type]:
    """Return the classes of the recipe's key ``environment``.

    Keys are values of the column ``environment``. ``None`` means every row.
    """
    if environment is None:
        return {}
    pairs: list[tuple[str | None, str]] = (
        [(None, environment)] if isinstance(environment, str) else [*environment.items()]
    )
    kinds: dict[str | None, type] = {}
    for key, name in pairs:
        kind = ENVIRONMENTS.resolve(str(name))
        if not isinstance(kind, type) or not callable(getattr(kind, "reset", None)):
            raise RecipeError(
                f"environment: {name!r}: must be a class with a method reset, got {kind!r}"
            )
        kinds[key] = kind
    if len({kind.__name__ for kind in kinds.values()}) < len({*kinds.values()}):
        raise RecipeError(
            f"environment: {', '.join(name for _, name in pairs)}: must be classes with "
            f"different names, because rewards are logged by class name"
        )
    return kinds


def has_reward(kind: type) -> bool:
    """Return whether an environment scores its episodes, as TRL decides it."""
    return inspect.isfunction(getattr(kind, "get_reward", None))


def all_score(environment: str | Mapping[str, str]) -> bool:
    """Return whether every environment of a recipe scores its episodes."""
    return all(map(has_reward, environment_kinds(environment).values()))


def without_reward(environment: str | Mapping[str, str]) -> list[type]:
    """Return the environments of a recipe if none of them scores its episodes, else []."""
    kinds = [*environment_kinds(environment).values()]
    return [] if any(map(has_reward, kinds)) else kinds


def environment_parameters(
    environment: str | Mapping[str, str] | None,
) -> dict[str, dataclasses.Field]:
    """Return the fields of dataclass environments, which a recipe may set."""
    kinds = filter(dataclasses.is_dataclass, environment_kinds(environment).values())
    return {f.name: f for kind in kinds for f in dataclasses.fields(kind) if f.init}


def build_environments(
    environment: str | Mapping[str, str], params: Mapping[str, Any], limits: Limits
) -> dict[str | None, Callable]:
    """Return a factory of each environment, with bounded methods.

    Keys are values of the column ``environment``. ``None`` means every row.
    """
    factories: dict[str | None, Callable] = {}
    kinds = environment_kinds(environment)
    # One guarded class per class, because TRL logs a reward per class.
    bounded = {kind: guarded_environment(kind, limits) for kind in kinds.values()}
    for key, kind in kinds.items():
        fields = (
            {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
        )
        values = {name: value for name, value in params.items() if name in fields}
        factories[key] = functools.partial(_create, bounded[kind], **values)
    return factories


def build_tools(names: Iterable[str], limits: Limits) -> list[Callable]:
    """Return the tools of a recipe, in order, each bounded in time and output."""
    tools = [TOOLS.resolve(name) for name in names]
    for name, tool in zip(names, tools, strict=True):
        if not (inspect.isfunction(tool) and tool.__doc__):
            raise RecipeError(
                f"tools: {name!r}: must be a function with a docstring, which describes "
                f"the tool to the model, got {tool!r}"
            )
        if hasattr(tool, "check_start"):
            try:
                tool.check_start()
            except RuntimeError as error:
                raise RecipeError(f"tools: {name}: {error}") from error
    return [guarded(tool, limits) for tool in tools]


def schemas(tools: Iterable[str], environment: str | Mapping[str, str] | None) -> str | None:
    """Return the JSON schemas of tools and methods of environments, or ``None`` without any."""
    from transformers.utils import get_json_schema  # heavy

    functions, kinds = (
        [TOOLS.resolve(name) for name in tools],
        environment_kinds(environment).values(),
    )
    functions += [method for kind in kinds for method in methods_of(_create(kind))]
    try:
        return (
            json.dumps([get_json_schema(function) for function in functions]) if functions else None
        )
    except Exception as error:  # A docstring or a type cannot be read.
        raise RecipeError(
            f"tools, environment: {first_line(error)} Fix: add types and a docstring with Args, "
            f"or start the name with _"
        ) from error


def _create(kind: type, /, **values: Any) -> Any:
    fix = "write an __init__ without arguments; use fields of a dataclass as keys of a recipe"
    with own_code(f"environment {kind.__name__}: __init__", kind, fix):
        return kind(**values)


def methods_of(environment: Any) -> list[Callable]:
    """Return the tools of an environment: its public methods except reset and get_reward."""
    names = [
        name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)
    ]
    return [
        getattr(environment, name)
        for name in names
        if not name.startswith("_") and name not in ("reset", "get_reward")
    ]
