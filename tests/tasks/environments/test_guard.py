"""Tools and environments that hang, raise, flood or print: what the model is told, and that a run goes on."""

import sys
import time
from random import Random

import pytest
from numpy import float32

from r1_recipes.common.errors import RecipeError
from r1_recipes.tasks.environments import ENVIRONMENTS, TOOLS
from r1_recipes.tasks.environments.guard import Limits, ToolError, guarded, guarded_environment
from r1_recipes.tasks.environments.registry import build_environments, build_tools, environment_parameters, methods_of, schemas
from tests.conftest import REPOSITORY

LIMITS = Limits(seconds=0.3, chars=100)


def hang() -> str:
    """Take too long."""
    time.sleep(5)
    return "late"


async def hang_async() -> str:
    """Take too long."""
    import asyncio

    await asyncio.sleep(5)
    return "late"


def fail() -> str:
    """Raise."""
    raise KeyError("x" * 10_000)


def leave() -> str:
    """End the process."""
    sys.exit(3)


def flood() -> str:
    """Return a lot, and print more."""
    print("noise" * 1000)  # noqa: T201
    return "y" * 10_000_000


@pytest.mark.parametrize(("tool", "told"), [(hang, "no result after 0.3 s"), (fail, "KeyError: 'xxx"), (leave, "SystemExit: 3")])
def test_what_goes_wrong_is_a_short_error_in_time(tool, told):
    began = time.monotonic()
    with pytest.raises(ToolError) as raised:
        guarded(tool, LIMITS)()
    assert told in str(raised.value) and len(str(raised.value)) < 150
    assert time.monotonic() - began < 3


def test_an_asynchronous_tool_is_bounded_too():
    import asyncio

    with pytest.raises(ToolError, match=r"no result after 0\.3 s"):
        asyncio.run(guarded(hang_async, LIMITS)())


def test_a_flood_is_clipped_and_prints_are_dropped(capsys):
    result = guarded(flood, LIMITS)()
    assert len(result) < 150 and result.startswith("yyy")
    assert capsys.readouterr().out == ""
    print("heard")  # noqa: T201
    assert capsys.readouterr().out == "heard\n"


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
        return {"nan": float("nan"), "huge": 10**400, "array": float32(1), "text": "much", "reset": 0, "fine": 0.5}[self.kind]


@pytest.mark.parametrize(
    ("kind", "paid"),
    [*dict.fromkeys(["reset", "nan", "huge", "text", "raise"]).items(), ("fine", 0.5), ("array", 1.0)],
)
def test_an_environment_that_fails_leaves_its_row_unjudged(kind, paid, caplog):
    game = guarded_environment(Broken, LIMITS)()
    assert game.reset(kind=kind) == (None if kind == "reset" else "go")
    with pytest.raises(ToolError, match="not home"):
        game.move("home")
    assert game.get_reward() == paid
    assert (paid is None) == bool(caplog.records)


class Asks:
    """Calls its own tools."""

    def reset(self, **row):
        self.tries = 0

    @staticmethod
    def double(number: int) -> int:
        """Double it."""
        return 2 * number

    def won(self) -> bool:
        """Whether the game is won."""
        return False

    async def count(self) -> int:
        """How many tries there were."""
        return self.tries

    async def try_on(self) -> bool:
        """Try."""
        self.tries += 1
        return (await self.count() == 1) and not self.won()

    def get_reward(self):
        return 1.0 if self.won() else 0.25


def test_what_an_environment_asks_itself_is_no_text():
    """``"False"`` would be true, and pay."""
    import asyncio

    game = guarded_environment(Asks, LIMITS)()
    game.reset()
    assert asyncio.run(game.try_on()) == "True"
    assert game.double(4) == "8" and game.won() == "False" and game.get_reward() == 0.25


class Fails(Asks):
    """Has a field of its own with that name."""

    def reset(self, **row):
        self.failed = False

    def stake(self) -> None:
        """Lose."""
        self.failed = True

    def get_reward(self):
        return -1.0 if self.failed else 1.0


def test_a_field_of_an_environment_is_its_own():
    game = guarded_environment(Fails, LIMITS)()
    game.reset()
    game.stake()
    assert game.get_reward() == -1.0


@pytest.mark.parametrize(("result", "shown"), [([], "[]"), (["a", 1], "['a', 1]"), ([{"title": "a"}], "[{'title': 'a'}]")])
def test_a_list_is_text_unless_it_is_of_content_blocks(result, shown):
    blocks = [{"type": "text", "text": "a"}]
    assert guarded(lambda: result, LIMITS)() == shown and guarded(lambda: blocks, LIMITS)() == blocks
    assert len(guarded(lambda: ["y"] * 10_000, LIMITS)()) < 150


def test_the_methods_of_an_environment_are_its_tools():
    game = guarded_environment(Broken, LIMITS)()
    [move] = methods_of(game)
    assert move.__name__ == "move"
    assert '"name": "move"' in schemas([], "tests.tasks.environments.test_guard:Broken")


@pytest.mark.parametrize(
    ("expression", "value"),
    [("(12 + 30) * 7", "294"), ("347+586-129", "804"), ("7 / 2", "3.5"), ("1/3", "0.3333333333"), ("-4 × 2.5", "-10")],
)
def test_the_calculator_is_exact(expression, value):
    assert TOOLS["calculator"](expression) == value


@pytest.mark.parametrize("expression", ["9**9**9", "__import__('os')", "abs(-1)", "1/0", "", "1" * 300, "True + 1", "a", "(" * 190])
def test_the_calculator_refuses_what_is_no_sum(expression):
    [calculator] = build_tools(["calculator"], LIMITS)
    with pytest.raises(ToolError):
        calculator(expression)


def test_guessing_by_halves_finds_the_number():
    make = build_environments("guess_number", {"guess_number_tries": 6}, LIMITS)[None]
    for seed in range(20):
        row = ENVIRONMENTS["guess_number"].draw(Random(seed))
        game = make()
        game.reset(**row)
        low, high, said = 1, 50, ""
        while "Right" not in said and "over" not in said:
            middle = (low + high) // 2
            said = game.guess(middle)
            low, high = (middle + 1, high) if "higher" in said else (low, middle - 1)
        assert game.get_reward() == 1.0
        assert game.guess(1) == "The game is over."


def test_parameters_of_environments_are_keys():
    assert set(environment_parameters("guess_number")) == {"guess_number_tries"}
    assert environment_parameters({"a": "guess_number"}) == environment_parameters("guess_number")


def test_parameters_of_environments_are_on_a_runs_record():
    from r1_recipes.recipe import load_recipe

    recipe = load_recipe([str(REPOSITORY / "recipes/qwen3/guess_number_17b.yaml"), "--guess_number_tries", "5"], "grpo")
    assert recipe.settings["guess_number_tries"] == recipe.environment_params["guess_number_tries"] == 5


class Waits:
    async def reset(self, **row):
        return "go"


def test_a_reset_that_waits():
    assert guarded_environment(Waits, LIMITS)().reset() == "go"


class Undescribed(Broken):
    def look(self, where: str) -> str:
        return where


class Needy(Broken):
    def __init__(self, url):
        self.url = url


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: build_tools(["calculater"], LIMITS), "calculator"),
        (lambda: build_tools(["math:pi"], LIMITS), "must be a function with a docstring"),
        (lambda: build_environments("math:pi", {}, LIMITS), "must be a class with a method reset"),
        (lambda: build_environments("guess", {}, LIMITS), "guess_number"),
        (lambda: schemas([], f"{__name__}:Undescribed"), "look because it has no docstring"),
        (lambda: schemas([], f"{__name__}:Needy"), "missing 1 required positional argument: 'url'"),
    ],
)
def test_what_is_no_tool_or_environment_is_refused_by_name(build, told):
    with pytest.raises(RecipeError, match=told):
        build()


def test_the_column_that_routes_to_an_environment_reaches_the_trainer():
    from types import SimpleNamespace

    from datasets import Dataset

    from r1_recipes.data import load_dataset
    from r1_recipes.prompts import get_response_format
    from r1_recipes.recipe.types import GRPORecipeArguments

    args = SimpleNamespace(**{**vars(GRPORecipeArguments()), "dataset_name": "rows", "mapper": "environment"})
    rows = Dataset.from_list([{"question": "?", "environment": "guess_number", "number": 7}])
    [row] = load_dataset(args, get_response_format("think_answer"), "grpo", rows=rows)[0]
    assert (row["environment"], row["number"]) == ("guess_number", 7)
