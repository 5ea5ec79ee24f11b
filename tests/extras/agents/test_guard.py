"""Tools and environments that hang, raise, flood or print: what the model is told, and that a run
goes on.
"""

import sys
import time

import pytest
from numpy import float32

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.agents.build import TOOLS, environments_of, schemas, tools_of
from r1_recipes.extras.agents.guard import Limits, ToolError, guarded, guarded_environment

LIMITS = Limits(seconds=0.3, chars=100)


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
    with pytest.raises(ToolError) as raised:
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

    def get_reward(self):
        if self.kind == "raise":
            raise ZeroDivisionError
        return {
            "nan": float("nan"),
            "huge": 10**400,
            "array": float32(1),
            "text": "much",
            "none": None,
            "reset": 0,
            "fine": 0.5,
        }[self.kind]


@pytest.mark.parametrize(
    ("kind", "paid"),
    [
        *dict.fromkeys(["reset", "nan", "huge", "text", "none", "raise"]).items(),
        ("fine", 0.5),
        ("array", 1.0),
    ],
)
def test_an_environment_that_fails_leaves_its_row_unjudged(kind, paid, caplog):
    game = guarded_environment(Broken, LIMITS)()
    assert game.reset(kind=kind) == (None if kind == "reset" else "go")
    with pytest.raises(ToolError, match="not home"):
        game.move("home")
    assert game.get_reward() == paid
    assert (paid is None) == bool(caplog.records)
    assert all(f"{__file__}:" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(12 + 30) * 7", "294"),
        ("347+586-129", "804"),
        ("7 / 2", "3.5"),
        ("1/3", "0.3333333333"),
        ("-4 × 2.5", "-10"),
    ],
)
def test_the_calculator_is_exact(expression, value):
    assert TOOLS["calculator"](expression) == value


class Undescribed(Broken):
    def look(self, where: str) -> str:
        return where


class Needy(Broken):
    def __init__(self, url):
        self.url = url


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: tools_of(["calculater"]), "calculator"),
        (lambda: tools_of(["math:pi"]), "must be a function with a docstring"),
        (lambda: environments_of("math:pi"), "must be a class with a method reset"),
        (lambda: schemas([], f"{__name__}:Undescribed"), "look because it has no docstring"),
        (
            lambda: schemas([], f"{__name__}:Needy"),
            r"Needy: __init__ fails: .*'url' \(.*test_guard\.py:\d+\)\. Fix: an "
            r"__init__ without arguments",
        ),
    ],
)
def test_what_is_no_tool_or_environment_is_refused_by_name(build, problem):
    with pytest.raises(RecipeError, match=problem):
        build()
