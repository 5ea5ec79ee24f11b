"""Where model code runs, if anywhere: bubblewrap, a container, or a hosted machine, behind one interface. Imports no torch.

A sandbox gets a program and its inputs, never the outputs that are expected: those are compared here, outside. Without a sandbox that
holds there is :class:`~r1_recipes.common.errors.RecipeError` and no run; nothing in this package runs a program bare.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.rewards.sandbox.base import Call, Limits, Outcome, Program, Sandbox, SandboxError
from r1_recipes.rewards.sandbox.bubblewrap import Bubblewrap
from r1_recipes.rewards.sandbox.container import Container
from r1_recipes.rewards.sandbox.e2b import E2B

PROVIDERS: dict[str, Callable[[str | None, str | None], Sandbox]] = {
    "bubblewrap": lambda image, command: Bubblewrap(),
    "docker": lambda image, command: Container("docker", image, command),
    "podman": lambda image, command: Container("podman", image, command),
    "e2b": lambda image, command: E2B(image),
}
"""What ``code_provider`` may name -> how it is built of ``code_image`` and ``code_command``."""

CONTAINERS = ("docker", "podman")

_ELSEWHERE = {
    "local": "it ran model code bare; write code_provider: bubblewrap",
    "morph": "write code_provider: e2b, or docker or podman with code_image",
    "piston": "write code_provider: docker or podman, with code_image and code_command",
}


def check_provider(provider: str) -> None:
    """Refuse a provider that there is none of.

    Raises:
        RecipeError: names the key and what to write instead.
    """
    if provider in _ELSEWHERE:
        raise RecipeError(f"code_provider: {provider!r} is not supported: {_ELSEWHERE[provider]}")
    if provider not in PROVIDERS:
        raise RecipeError("code_provider: " + unknown_name("value", provider, PROVIDERS))


def get_sandbox(provider: str, image: str | None = None, command: str | None = None) -> Sandbox:
    """This process's one sandbox of that kind; what it needs is looked for by :meth:`Sandbox.check`, not here.

    Raises:
        RecipeError: no such provider.
    """
    check_provider(provider)
    return _sandbox(provider, image, command)


@functools.cache
def _sandbox(provider: str, image: str | None, command: str | None) -> Sandbox:
    return PROVIDERS[provider](image, command)


__all__ = [
    "CONTAINERS",
    "E2B",
    "PROVIDERS",
    "Bubblewrap",
    "Call",
    "Container",
    "Limits",
    "Outcome",
    "Program",
    "Sandbox",
    "SandboxError",
    "check_provider",
    "get_sandbox",
]
