"""Tools and environments by name: what a model may call, and what it plays in. Imports no torch."""

# Importing one registers it.
from r1_recipes.tasks.environments import calculator, guess  # noqa: F401
from r1_recipes.tasks.environments.registry import ENVIRONMENTS, TOOLS, register_environment, register_tool

__all__ = ["ENVIRONMENTS", "TOOLS", "register_environment", "register_tool"]
