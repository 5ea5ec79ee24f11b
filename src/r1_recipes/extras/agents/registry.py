"""Tools and environments by name, in TRL's own shape.

A tool is a typed function with a docstring that says what it and each argument is. An environment
is a class with ``reset(**row)``, whose text is added to the question, public methods that are
tools, and ``get_reward()``. A dataclass environment's fields are keys of a recipe.
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
    """Function decorator that makes a tool available to recipes as ``name``."""
    return functools.partial(TOOLS.register, name)


def register_environment(name: str) -> Callable[[type], type]:
    """Class decorator that makes an environment available to recipes as ``name``."""
    return functools.partial(ENVIRONMENTS.register, name)


def environment_kinds(environment: str | Mapping[str, str] | None) -> dict[str | None, type]:
    """The classes of a recipe's key ``environment``, by the value of the column ``environment``;
    ``None`` stands for every row.
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
            f"environment: {', '.join(name for _, name in pairs)}: must be classes of "
            f"different names: rewards are logged by them"
        )
    return kinds


def pays(kind: type) -> bool:
    """Whether an environment judges its episodes itself, as TRL finds out."""
    return inspect.isfunction(getattr(kind, "get_reward", None))


def all_score(environment: str | Mapping[str, str]) -> bool:
    """Whether each environment of a recipe judges its episodes itself."""
    return all(map(pays, environment_kinds(environment).values()))


def without_reward(environment: str | Mapping[str, str]) -> list[type]:
    """The environments of a recipe, if none of them judges its episodes itself."""
    kinds = [*environment_kinds(environment).values()]
    return [] if any(map(pays, kinds)) else kinds


def environment_parameters(
    environment: str | Mapping[str, str] | None,
) -> dict[str, dataclasses.Field]:
    """What a recipe may set for its environments: the fields of those that are dataclasses."""
    kinds = filter(dataclasses.is_dataclass, environment_kinds(environment).values())
    return {f.name: f for kind in kinds for f in dataclasses.fields(kind) if f.init}


def build_environments(
    environment: str | Mapping[str, str], params: Mapping[str, Any], limits: Limits
) -> dict[str | None, Callable]:
    """Return what makes each environment, bounded, by the value of the column ``environment``;
    ``None`` stands for every row.
    """
    factories: dict[str | None, Callable] = {}
    kinds = environment_kinds(environment)
    bounded = {
        kind: guarded_environment(kind, limits) for kind in kinds.values()
    }  # one a class: TRL counts its reward once
    for key, kind in kinds.items():
        own = (
            {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
        )
        given = {name: value for name, value in params.items() if name in own}
        factories[key] = functools.partial(_made, bounded[kind], **given)
    return factories


def build_tools(names: Iterable[str], limits: Limits) -> list[Callable]:
    """Return the tools of a recipe, in order, each bounded in time and output."""
    tools = [TOOLS.resolve(name) for name in names]
    for name, tool in zip(names, tools, strict=True):
        if not (inspect.isfunction(tool) and tool.__doc__):
            raise RecipeError(
                f"tools: {name!r}: must be a function with a docstring, which tells the "
                f"model what it does, got {tool!r}"
            )
        if hasattr(tool, "check_start"):
            try:
                tool.check_start()
            except RuntimeError as error:
                raise RecipeError(f"tools: {name}: {error}") from error
    return [guarded(tool, limits) for tool in tools]


def schemas(tools: Iterable[str], environment: str | Mapping[str, str] | None) -> str | None:
    """Return the JSON schemas of tools and environments' methods, as a chat template reads them;
    ``None``: there are none.
    """
    from transformers.utils import get_json_schema  # heavy

    functions, kinds = (
        [TOOLS.resolve(name) for name in tools],
        environment_kinds(environment).values(),
    )
    functions += [method for kind in kinds for method in methods_of(_made(kind))]
    try:
        return (
            json.dumps([get_json_schema(function) for function in functions]) if functions else None
        )
    except Exception as error:  # of docstrings and types
        raise RecipeError(
            f"tools, environment: {first_line(error)} Fix: types, a docstring with Args; or "
            f"a name with _ in front"
        ) from error


def _made(kind: type, /, **given: Any) -> Any:
    fix = "one that needs no argument; keys of a recipe are a dataclass's fields"
    with own_code(f"environment {kind.__name__}: __init__", kind, fix):
        return kind(**given)


def methods_of(environment: Any) -> list[Callable]:
    """The tools of an environment: its public methods but ``reset`` and ``get_reward``, as TRL
    finds them.
    """
    names = [
        name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)
    ]
    return [
        getattr(environment, name)
        for name in names
        if not name.startswith("_") and name not in ("reset", "get_reward")
    ]
