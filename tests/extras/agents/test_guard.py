"""Tools and environments that hang, raise, flood or print: what the model is told, and that a run
goes on.
"""

import re
import sys
import time
from random import Random

import pytest
import yaml
from numpy import float32

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.agents.guard import Limits, ToolError, guarded, guarded_environment
from r1_recipes.extras.agents.registry import (
    ENVIRONMENTS,
    TOOLS,
    build_environments,
    build_tools,
    environment_parameters,
    methods_of,
    schemas,
)
from r1_recipes.extras.agents.rows import environment_rows
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


def test_a_game_that_was_never_begun_is_not_judged():
    class Idle:
        def reset(self):
            """Begin."""

        def get_reward(self):
            return 1.0

    assert guarded_environment(Idle, LIMITS)().get_reward() is None


@pytest.mark.parametrize(
    ("result", "shown"),
    [([], "[]"), (["a", 1], "['a', 1]"), ([{"title": "a"}], "[{'title': 'a'}]")],
)
def test_a_list_is_text_unless_it_is_of_content_blocks(result, shown):
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert (
        guarded(lambda: result, LIMITS)() == shown and guarded(lambda: blocks, LIMITS)() == "a\nb"
    )
    assert len(guarded(lambda: ["y"] * 10_000, LIMITS)()) < 150


def test_the_methods_of_an_environment_are_its_tools():
    game = guarded_environment(Broken, LIMITS)()
    [move] = methods_of(game)
    assert move.__name__ == "move"
    assert '"name": "move"' in schemas([], "tests.extras.agents.test_guard:Broken")


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


@pytest.mark.parametrize(
    "expression",
    ["9**9**9", "__import__('os')", "abs(-1)", "1/0", "", "1" * 300, "True + 1", "a", "(" * 190],
)
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
        low, high, said = *map(int, re.findall(r"\d+", row["question"])), ""
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

    recipe = load_recipe(
        [str(REPOSITORY / "recipes/qwen3/guess_number_17b.yaml"), "--guess_number_tries", "5"],
        "grpo",
    )
    assert (
        recipe.settings["guess_number_tries"]
        == recipe.environment_params["guess_number_tries"]
        == 5
    )


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
    ("build", "problem"),
    [
        (lambda: build_tools(["calculater"], LIMITS), "calculator"),
        (lambda: build_tools(["math:pi"], LIMITS), "must be a function with a docstring"),
        (lambda: build_environments("math:pi", {}, LIMITS), "must be a class with a method reset"),
        (lambda: build_environments("guess", {}, LIMITS), "guess_number"),
        (lambda: schemas([], f"{__name__}:Undescribed"), "look because it has no docstring"),
        (
            lambda: schemas([], f"{__name__}:Needy"),
            r"Needy: __init__ fails: .*'url' \(.*test_guard\.py:\d+\)\. Fix: write an "
            r"__init__ without arguments",
        ),
    ],
)
def test_what_is_no_tool_or_environment_is_refused_by_name(build, problem):
    with pytest.raises(RecipeError, match=problem):
        build()


def test_the_column_that_routes_to_an_environment_reaches_the_trainer():
    from types import SimpleNamespace

    from datasets import Dataset

    from r1_recipes.data import load_dataset
    from r1_recipes.prompts import get_response_format
    from r1_recipes.recipe.types import GRPORecipeArguments

    args = SimpleNamespace(
        **{**vars(GRPORecipeArguments()), "dataset_name": "rows", "mapper": "environment"}
    )
    rows = Dataset.from_list([{"question": "?", "environment": "guess_number", "number": 7}])
    [row] = load_dataset(args, get_response_format("think_answer"), "grpo", rows=rows)[0]
    assert (row["environment"], row["number"]) == ("guess_number", 7)


async def block() -> str:
    """Block the loop, as a client that is not asynchronous does."""
    time.sleep(1)
    return "late"


async def answer(seconds: float) -> str:
    """Print, wait and answer."""
    import asyncio

    sys.stdout.write("noise\n")
    await asyncio.sleep(seconds)
    sys.stdout.write("noise\n")
    return "42"


def test_tools_that_wait_are_bounded_run_side_by_side_and_share_a_loop(capsys) -> None:
    import asyncio

    async def all_at_once() -> list:
        calls = [guarded(answer, LIMITS)(seconds) for seconds in (0.02, 0.2, 0.2)]
        return await asyncio.gather(guarded(block, LIMITS)(), *calls, return_exceptions=True)

    began = time.monotonic()
    blocked, *answers = asyncio.run(all_at_once())
    assert isinstance(blocked, ToolError) and time.monotonic() - began < 5
    # Those that were on the loop with it may have been too late; the next are not.
    assert asyncio.run(guarded(answer, LIMITS)(0.0)) == "42" and {str(one) for one in answers} <= {
        "42",
        "no result after 0.3 s",
    }
    sys.stdout.write("still here\n")
    assert capsys.readouterr().out == "still here\n"

    class Server:
        async def reset(self, **row) -> None:
            self.replies = asyncio.Queue()
            self.waiting = asyncio.ensure_future(
                self.replies.get()
            )  # belongs to the loop that it was made in

        async def ask(self) -> str:
            """Ask."""
            self.replies.put_nowait("yes")
            return await self.waiting

        async def get_reward(self) -> float:
            return float(await self.waiting == "yes")

    server = guarded_environment(Server, LIMITS)()
    server.reset()
    assert asyncio.run(server.ask()) == "yes" and server.get_reward() == 1.0


def test_a_call_that_was_given_up_does_not_write_into_a_later_episode(caplog) -> None:
    class Slow:
        def reset(self, seconds: float, **row) -> None:
            time.sleep(seconds)
            self.found = False

        def look(self) -> str:
            """Look."""
            time.sleep(0.6)
            self.found = True
            return "found"

        def get_reward(self) -> float:
            return float(self.found)

    game = guarded_environment(Slow, LIMITS)()
    game.reset(seconds=0)
    with pytest.raises(ToolError, match=r"no result after 0\.3 s"):
        game.look()
    game.reset(seconds=0)
    assert (
        game.get_reward() is None and "has not ended yet" in caplog.text
    )  # not judged, rather than wrongly
    time.sleep(0.6)
    game.reset(seconds=0)
    assert game.get_reward() == 0.0
    game.reset(seconds=0.6)
    game.reset(seconds=0)
    assert game.get_reward() is None


@pytest.mark.parametrize(
    "result",
    [
        [{"type": "article", "text": "x" * 10_000}],
        [{"type": "text", "text": "x" * 10_000}],
        ["x" * 10_000],
    ],
)
def test_a_list_is_text_and_bounded(result: list) -> None:
    def find() -> list:
        """Find."""
        return result

    said = guarded(find, LIMITS)()
    assert isinstance(said, str) and len(said) < 300
    picture = {"type": "image", "image": object()}
    said = guarded(lambda: [*result, picture], LIMITS)()
    assert len(str(said)) < 400 and (said[-1] is picture or isinstance(said, str))


PLAYED = [
    path
    for path in sorted((REPOSITORY / "recipes").rglob("*.yaml"))
    if "dataset_name: environment:" in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", PLAYED, ids=lambda path: path.stem)
def test_recipes_draw_as_many_rows_as_they_ask_for(path) -> None:
    """``--smoke`` draws four; a small game has not a thousand that differ."""
    keys = yaml.safe_load(path.read_text(encoding="utf-8"))
    for split in ("train", "test"):
        rows = environment_rows(keys["dataset_name"].partition(":")[2], split, keys["task_config"])
        assert len(rows) == keys["task_config"][split]["size"]


def test_docs_draw_rows_that_differ(tmp_path, monkeypatch) -> None:
    code = re.findall(
        r"    @classmethod\n    def draw.*?\n\n",
        (REPOSITORY / "docs" / "agents.md").read_text("utf-8"),
        re.DOTALL,
    )
    (tmp_path / "drawn.py").write_text(
        "".join(f"class Game{i}:\n{one}" for i, one in enumerate(code)), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sizes = {"train": {"size": 20, "seed": 1}, "test": {"size": 6, "seed": 2}}
    assert [len(environment_rows(f"drawn:Game{i}", "train", sizes)) for i in (0, 1)] == [
        20,
        20,
    ] and len(code) == 3
