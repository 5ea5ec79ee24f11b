"""Sandboxes for model code behind one interface. They get a program and its inputs, never the expected outputs."""

from __future__ import annotations

import functools

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.rewards.sandbox.base import Sandbox
from r1_recipes.rewards.sandbox.bubblewrap import Bubblewrap
from r1_recipes.rewards.sandbox.container import Container
from r1_recipes.rewards.sandbox.e2b import E2B

CONTAINERS = ("docker", "podman")
PROVIDERS = ("bubblewrap", *CONTAINERS, "e2b")


def check_provider(provider: str) -> None:
    """Refuse a provider that does not exist."""
    if provider not in PROVIDERS:
        raise RecipeError("code_provider: " + unknown_name("value", provider, PROVIDERS))


@functools.cache
def get_sandbox(provider: str, image: str | None = None, command: str | None = None) -> Sandbox:
    """Build a sandbox from ``code_image`` and ``code_command``, and try it, once per process. :class:`RecipeError`: it does not hold."""
    check_provider(provider)
    sandbox: Sandbox = Bubblewrap()
    if provider == "e2b":
        sandbox = E2B(image) if image else E2B()
    elif provider in CONTAINERS:
        sandbox = Container(provider, image or "", command)
    sandbox.check()
    return sandbox
