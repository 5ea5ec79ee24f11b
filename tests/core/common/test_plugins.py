"""Code of the user's own, by module or by file: it is found, or one line says where to look."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from r1_recipes.common import plugins
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper
from r1_recipes.rewards import get_reward_funcs

CODE = """
def kurz(completions, **columns):
    return [1.0] * len(completions)

def werkzeug(x: int) -> int:
    \"\"\"Double it.

    Args:
        x: a number
    \"\"\"
    return 2 * x

class Spiel:
    def reset(self, **row): return "play"
    def get_reward(self): return 1.0

def quiz(row):
    return {"question": row["frage"], "solution": row["antwort"]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``meine-rewards.py`` and ``belohnung.py``; the working directory is another
    one.
    """
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(plugins, "_recipe_folder", [])
    for name in ("meine-rewards.py", "belohnung.py"):
        (tmp_path / name).write_text(CODE, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    yield tmp_path
    for name in ("meine-rewards", "belohnung", "kaputt"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "place", ["../meine-rewards.py", "{0}/meine-rewards.py", "../belohnung.py", "{0}/belohnung"]
)
def test_rewards_mappers_tools_and_environments_are_found_by_file(folder: Path, place: str) -> None:
    place = place.format(folder)
    (reward,) = get_reward_funcs([f"{place}:kurz"])
    assert reward(completions=["a"]) == [1.0]
    assert get_mapper(f"{place}:quiz")({"frage": "3?", "antwort": "3"}) == {
        "question": "3?",
        "solution": "3",
    }
    from r1_recipes.extras.agents.build import environments_of, tools_of

    assert environments_of(f"{place}:Spiel")[None].__name__ == "Spiel"
    assert tools_of([f"{place}:werkzeug"])[0].__name__ == "werkzeug"


MISTAKES = [
    (
        "../belohnun.py:kurz",
        None,
        r"no file '\.\./belohnun\.py' in ",
    ),
    ("../belohnung.py:lang", None, r"belohnung\.py 'lang'|unknown name in .*belohnung\.py 'lang'"),
    ("../kaputt.py:f", "def f(:\n", r"fails: SyntaxError: .*kaputt\.py, line 1"),
    (
        "../kaputt.py:f",
        "import sys\n\nimport panads\n",
        r"fails: ModuleNotFoundError: No module named 'panads' \(.*kaputt\.py:3\)",
    ),
    (
        "../kaputt.py:f",
        "import json\njson.loads('')\n",
        r"fails: JSONDecodeError: .*kaputt\.py:2\)",
    ),
    (
        "../json.py:f",
        "",
        r"json.__init__\.py has the same name",  # which Python imports in its place
    ),
    ("../time.py:f", "", r"Python has the same name"),
    ("../my.own.py:f", "", r"No module named 'my'"),
    ("nirgends:f", None, r"No module named 'nirgends'. Fix: .* a module in "),
    (":f", None, r"the import fails"),
]


@pytest.mark.parametrize(("name", "text", "said"), MISTAKES)
def test_code_that_cannot_be_imported_costs_one_line(
    folder: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (Path.cwd() / name.partition(":")[0]).write_text(text, encoding="utf-8")
    from r1_recipes.extras.agents.build import environments_of

    for build in (
        lambda: get_reward_funcs([name]),
        lambda: get_mapper(name),
        lambda: environments_of(name),
    ):
        with pytest.raises(RecipeError, match=said):
            build()


def test_the_file_that_is_named_runs_and_no_other_of_its_name(folder: Path) -> None:
    for place in (Path.cwd(), Path.cwd() / "second"):
        place.mkdir(exist_ok=True)
        (place / "zweimal.py").write_text(CODE, encoding="utf-8")
    get_reward_funcs(["zweimal.py:kurz"])
    with pytest.raises(RecipeError, match=r"zweimal.py has the same name. Fix: another name"):
        get_reward_funcs(["second/zweimal.py:kurz"])
