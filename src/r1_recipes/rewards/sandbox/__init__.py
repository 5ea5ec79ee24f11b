"""Sandboxes for model code. They get a program and its inputs, never the expected outputs."""

from __future__ import annotations

import functools

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.plugins import import_object
from r1_recipes.rewards.sandbox.base import Sandbox, SandboxError
from r1_recipes.rewards.sandbox.bubblewrap import Bubblewrap


@functools.cache
def get_sandbox(provider: str) -> Sandbox:
    """Build ``bubblewrap`` or ``my_module:MySandbox``, and try it, once per process. :class:`RecipeError`: it does not hold."""
    sandbox = Bubblewrap() if provider == "bubblewrap" else import_object(provider, "code_provider")()
    if not isinstance(sandbox, Sandbox):
        raise RecipeError(f"code_provider: {provider} is not a subclass of r1_recipes.rewards.sandbox.Sandbox")
    try:
        sandbox.check()
    except SandboxError as error:
        raise RecipeError(f"code_provider: {provider}: {error}. {sandbox.remedy}".strip()) from error
    return sandbox
