"""Tools and environments that hang, raise, flood or print: what the model is told, and that a run
goes on.
"""

import sys
import time
from types import SimpleNamespace

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.agents.build import (
    environments_of,
    guarded,
    guarded_environment,
    schemas,
    tools_of,
)

LIMITS = SimpleNamespace(tool_timeout=0.3, tool_output_chars=100, smoke=False)


def hang() -> str:
    """Take too long."""
    time.sleep(5)
    return "late"


def fail() -> str:
    """Raise."""
    raise KeyError("x" * 10_000)


def leave() -> str:
    """End the process."""
    sys.exit(3)


@pytest.mark.parametrize(
    ("tool", "error_text"),
    [(hang, "no result after 0.3 s"), (fail, "KeyError: 'xxx"), (leave, "SystemExit: 3")],
)
def test_what_goes_wrong_is_a_short_error_in_time(tool, error_text):
    began = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        guarded(tool, LIMITS)()
    assert error_text in str(raised.value) and len(str(raised.value)) < 150
    assert time.monotonic() - began < 3


class Broken:
    """Fails wherever it can."""

    def reset(self, *, kind, **row):
        self.kind = kind
        if kind == "reset":
            raise ValueError("no board")
        return "go"

    def move(self, where: str) -> str:
        """Move.

        Args:
            where: a place
        """
        raise ValueError(f"not {where}")

    async def get_reward(self):
        return 0.5


async def echo(text: str) -> str:
    """Say it again."""
    return text


def test_results_are_cut_and_awaited():
    said = guarded(echo, LIMITS)("y" * 10_000)
    assert said.startswith("yyy") and len(said) < 150


@pytest.mark.parametrize("kind", ["reset", "fine"])
def test_an_environment_that_cannot_begin_leaves_its_row_unjudged(kind, caplog):
    game = guarded_environment(Broken, LIMITS)
    assert game.reset(kind=kind) == (None if kind == "reset" else "go")
    with pytest.raises(RuntimeError, match="not home"):
        game.move("home")
    assert game.get_reward() == (None if kind == "reset" else 0.5)
    assert len(caplog.messages) == (kind == "reset")
    assert all(f"{__file__}:" in message for message in caplog.messages)


class Undescribed(Broken):
    def look(self, where: str) -> str:
        return where


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: tools_of(["calculater"]), "calculator"),
        (lambda: schemas(["math:pi"], None), "3.14.* is not a module, class, method, or function"),
        (lambda: environments_of("math:pi"), "must be a class with a method reset"),
        (lambda: schemas([], f"{__name__}:Undescribed"), "look because it has no docstring"),
    ],
)
def test_what_is_no_tool_or_environment_is_refused_by_name(build, problem):
    with pytest.raises(RecipeError, match=problem):
        build()
