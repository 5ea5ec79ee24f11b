"""Which scorers of reasoning-gym judge: every task is decided, none that judges runs a text, and
none pays for nothing.
"""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import textwrap
from types import FunctionType, ModuleType

import pytest

import r1_recipes.extras.countdown.puzzle  # noqa: F401 (registers its scorer)
from r1_recipes import verification
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import get_mapper
from r1_recipes.data.mappers.base import SkipRow
from r1_recipes.extras.reasoning_gym import scorer as scorers

pytest.importorskip("reasoning_gym")
import reasoning_gym
from reasoning_gym.factory import DATASETS

# Their scorers evaluate the answer or the row as Python.
EVALUATE = {
    *(
        "bitwise_arithmetic",
        "composite",
        "intermediate_integration",
        "n_queens",
        "number_sorting",
        "polynomial_multiplication",
    ),
    *("puzzle24", "simple_integration"),
}
# and these pay a constant, or a text that holds the number or a premise
REFUSED = {*EVALUATE, "coin_flip", "gsm_symbolic", "complex_arithmetic", "propositional_logic"}

RUNS_TEXT = {
    *(
        "eval",
        "exec",
        "parse_expr",
        "sympify",
        "lambdify",
        "parse_latex",
        "literal_eval",
        "open",
        "__import__",
        "import_module",
        "system",
    ),
    *(
        "popen",
        "Popen",
        "check_output",
        "pickle",
        "marshal",
        "subprocess",
        "yaml",
        "ctypes",
        "importlib",
        "builtins",
        "globals",
    ),
}


def test_every_task_is_decided():
    decided = [*scorers.SCORED, *scorers.SAME_TEXT, *REFUSED, "countdown"]
    assert len(decided) == len(set(decided))
    assert set(decided) == set(DATASETS)


def definitions(module: ModuleType) -> dict[str, list[ast.AST]]:
    """Functions and methods by name, of a module and of what it takes from others of its package
    (or magiccube).
    """
    modules = {module.__name__: module}
    for value in vars(module).values():
        source = (
            value
            if isinstance(value, ModuleType)
            else inspect.getmodule(value)
            if isinstance(value, (type, FunctionType))
            else None
        )
        if source is not None and source.__name__.split(".")[0] in ("reasoning_gym", "magiccube"):
            modules[source.__name__] = source
    found: dict[str, list[ast.AST]] = {}
    for one in modules.values():
        for node in ast.walk(ast.parse(inspect.getsource(one))):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                starts = [
                    child
                    for child in node.body
                    if isinstance(child, ast.FunctionDef) and child.name in ("__init__", "__new__")
                ]
                found.setdefault(node.name, []).extend(starts)
    return found


def names_reached(score_answer: FunctionType) -> set[str]:
    """Every name that a scorer, and whatever it may call by name, mentions."""
    known = definitions(sys.modules[score_answer.__module__])
    (start,) = ast.parse(textwrap.dedent(inspect.getsource(score_answer))).body
    waiting, seen = [start], set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            name = (
                node.id
                if isinstance(node, ast.Name)
                else node.attr
                if isinstance(node, ast.Attribute)
                else None
            )
            if name is not None and name not in seen:
                seen.add(name)
                waiting += known.get(name, [])
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "compile"
            ):
                seen.add("eval")
    return seen


@pytest.mark.parametrize("task", sorted(scorers.SCORED))
def test_a_scorer_that_judges_mentions_nothing_that_runs_a_text(task):
    assert names_reached(DATASETS[task][0].score_answer) & RUNS_TEXT == set()


@pytest.mark.parametrize(
    "task",
    sorted(EVALUATE - {"composite"} | {"binary_matrix", "spiral_matrix", "string_insertion"}),
)
def test_that_reading_finds_those_that_do(task):
    assert names_reached(DATASETS[task][0].score_answer) & RUNS_TEXT


TRIAL = r"""
import json, pathlib, sys
import reasoning_gym
from reasoning_gym.factory import DATASETS
from r1_recipes import verification
from r1_recipes.extras.reasoning_gym import scorer as scorers
from r1_recipes.extras.reasoning_gym import worker as gym_worker
import r1_recipes.extras.countdown.puzzle

refused = set(json.loads(sys.argv[2])) - {"composite"}
mark = pathlib.Path(sys.argv[1])
code = f"__import__('pathlib').Path({str(mark)!r}).write_text('x')"
TAINTS = (code, f"[{code}]", f"[[{code}]]")
CONSTANTS = ["", " ", "0", "1", "-1", "nan", "inf", "None", "null", "True", "False", "[]", "{}", "[[]]", "()", "anything", "yes", "no", "A",
             '""', ",", ".", "0/1", "0.0", "0j", "nan+nanj", "P", "(P ∨ ¬P)", "¬(P ∧ ¬P)", "R", "\n"]
WEAK = {"coin_flip", "gsm_symbolic", "complex_arithmetic", "game_of_life_halting", "propositional_logic"}
SLOW = {"futoshiki", "knight_swap", "sokoban"}  # to draw
events, watching = [], False


def hook(event, arguments):
    if watching and event in ("compile", "exec", "os.system", "subprocess.Popen", "pickle.find_class", "open"):
        events.append(event)


sys.addaudithook(hook)


def texts(value, path=()):
    if isinstance(value, str):
        yield path
    elif isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts(child, (*path, key))


def with_text(entry, path, text):
    entry = json.loads(json.dumps(entry))
    at = entry
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = text
    return entry


def same(constant, gold):
    try:
        return constant.strip().lower() == gold.strip().lower() or float(constant) == float(gold)
    except ValueError:
        return False


def raw(task, dataset, answer, entry):
    try:
        return bool(dataset.score_answer(answer, json.loads(json.dumps(entry))) >= 1 - 1e-9)
    except Exception:
        return False


found = {}
for task in sorted({*scorers.SCORED, *scorers.SAME_TEXT, *refused}):
    size = 1 if task in refused - WEAK else 5 if task in SLOW else 20
    dataset = reasoning_gym.create_dataset(task, size=size, seed=7)
    entries = [json.loads(json.dumps(entry, default=str)) for entry in dataset]
    def own(answer, entry):
        return raw(task, dataset, answer, entry)


    def ask(answer, entry):
        spec = json.dumps({"reasoning_gym": task, "entry": entry})
        return gym_worker.score(spec, answer) if task in scorers.SCORED else verification.score([spec], [answer])[0]


    ask = own if task in refused else ask
    seen = found[task] = {"golds": 0, "right": 0, "wrong": [], "own": 0, "events": []}
    for entry in entries:
        gold = entry["answer"]
        if gold is not None:
            seen["golds"] += 1
            seen["right"] += ask(str(gold), entry)
        premises = entry["metadata"].get("premises", [])  # of propositional_logic
        for constant in [*CONSTANTS, entry["question"], *premises]:
            if same(constant, str(gold)):
                continue
            if ask(constant, entry):
                seen["wrong"].append([constant[:80], gold])
            if task in WEAK:
                seen["own"] += own(constant, entry)
    if task in scorers.SAME_TEXT:
        continue
    entry = entries[0]
    paths = [path for path in texts(entry) if path != ("metadata", "source_dataset")]
    paths = paths[:12] + paths[-4:]
    watching = True
    for taint in TAINTS:
        raw(task, dataset, taint, entry)
        for path in paths:
            hostile = with_text(entry, path, taint)
            for answer in (taint, str(entry["answer"]), "[1]"):
                raw(task, dataset, answer, hostile)
    watching = False
    seen["events"], events = sorted({*events, *(["mark"] if mark.exists() else [])}), []
    mark.unlink(missing_ok=True)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def trial(tmp_path_factory) -> dict[str, dict]:
    """What 20 entries of each task (5 of slow ones) gave: golds, constants, and code in the answer
    and in each text of the entry.
    """
    mark = tmp_path_factory.mktemp("trial") / "mark"
    done = subprocess.run(
        [sys.executable, "-c", TRIAL, str(mark), json.dumps([*REFUSED])],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_no_scorer_that_judges_runs_the_answer_or_the_row(trial):
    assert {task: trial[task]["events"] for task in scorers.SCORED if trial[task]["events"]} == {}
    assert {task for task in EVALUATE if task in trial and trial[task]["events"]} == EVALUATE - {
        "composite"
    }  # the trial would see it


@pytest.mark.slow
def test_none_rewards_a_constant_and_each_rewards_its_answer(trial):
    judged = scorers.SCORED | scorers.SAME_TEXT
    assert {task: trial[task]["wrong"][:3] for task in judged if trial[task]["wrong"]} == {}
    assert {task for task in judged if trial[task]["right"] < trial[task]["golds"]} == set()
    # reasoning-gym's own scorers of these would pay one: the trial would see it
    weak = [
        "coin_flip",
        "gsm_symbolic",
        "complex_arithmetic",
        "game_of_life_halting",
        "propositional_logic",
    ]
    assert all(trial[task]["own"] for task in weak)


@pytest.mark.parametrize(
    "task", [*sorted(REFUSED), "no_such_task", "", "__class__", "reasoning_gym"]
)
def test_a_task_that_is_not_used_is_refused_by_name(task):
    with pytest.raises(ValueError, match=f"task '{task}': its scorer .* is not used. Fix: "):
        verification.score([json.dumps({"reasoning_gym": task, "entry": {}})], ["1"])
    row = {"question": "q", "answer": "1", "metadata": json.dumps({"source_dataset": task})}
    with pytest.raises(SkipRow, match=f"task '{task}': its scorer"):
        get_mapper("auto", list(row))(row)


def test_a_task_that_is_not_used_is_not_generated():
    from r1_recipes.extras.reasoning_gym.rows import reasoning_gym_rows

    with pytest.raises(
        RecipeError, match="dataset_name: reasoning-gym's task 'puzzle24': its scorer runs text"
    ):
        reasoning_gym_rows("puzzle24", "train", {})


@pytest.mark.parametrize(
    "metadata",
    [
        "{}",
        "[]",
        "3",
        "null",
        "no",
        '{"source_dataset": 3}',
        '{"source_dataset": ["gcd"]}',
        9999 * "[",
    ],
)
def test_metadata_that_is_another_s(metadata):
    with pytest.raises(SkipRow, match=r"column 'metadata'|task 3"):
        get_mapper("reasoning_gym")({"question": "q", "answer": "1", "metadata": metadata})


def test_metadata_may_be_a_struct():
    row = {"question": "q", "answer": "7", "metadata": {"source_dataset": "gcd"}}
    assert json.loads(get_mapper("reasoning_gym")(row)["scorer"])["reasoning_gym"] == "gcd"


def test_a_row_that_is_code_leaves_no_mark(tmp_path):
    """The two scorers that evaluate the row, asked through a scorer column that a file brought."""
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).write_text('x')"
    for task, entry in (
        ("bitwise_arithmetic", {"metadata": {"problem": code}}),
        ("number_sorting", {"answer": code, "metadata": {}}),
    ):
        spec = json.dumps({"reasoning_gym": task, "entry": entry})
        with pytest.raises(ValueError, match=task):
            verification.score([spec], ["[1]"])
    assert not mark.exists()


def test_a_scorer_of_another_version_runs_nothing_either(tmp_path):
    """In a process of its own, since an audit hook stays."""
    script = f"""
import json
from r1_recipes.extras.reasoning_gym import worker as gym_worker
gym_worker._scorer("gcd")
ran = []
gym_worker._scorer = lambda task: lambda answer, entry: ran.append(eval(answer)) or 1.0
print(gym_worker.score('{{"reasoning_gym": "gcd", "entry": {{}}}}', "open({str(tmp_path / "mark")!r}, 'w')"), ran, eval("1 + 1"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "False [] 2\n", done.stderr
    assert not (tmp_path / "mark").exists()


def test_same_text_is_compared_line_by_line():
    assert scorers.same_text(" 1 2 \n3  4\n", "1 2\n3 4")
    assert not scorers.same_text("1 2 3 4", "1 2\n3 4")
    assert not scorers.same_text("", " ")
    spec = json.dumps({"reasoning_gym": "game_of_life_halting", "entry": {"answer": "False"}})
    assert verification.score([spec] * 4, ["False", "True", "anything", ""]) == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("task", [*sorted(scorers.SAME_TEXT), "gcd"])
def test_a_row_without_an_answer_scores_0(task):
    for entry in ({}, {"answer": None}, {"answer": ""}, {"answer": []}):
        spec = json.dumps({"reasoning_gym": task, "entry": entry})
        assert verification.score([spec] * 4, ["", "None", "null", "0"]) == [False] * 4


def test_a_scorer_that_is_nested_without_end_is_the_data_s_fault():
    with pytest.raises(ValueError, match="a scorer must be JSON"):
        verification.score(["[" * 100_000], ["1"])


def test_reasoning_gym_scorer():
    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=3)[0]
    spec = json.dumps({"reasoning_gym": "chain_sum", "entry": entry})
    answers = [entry["answer"], "x", None, "9**9**9**9", "\ud800", "1" * 200_000]
    assert verification.score([spec] * 6, answers) == [True, False, False, False, False, False]


def test_countdown_scorer():
    spec = '{"countdown": {"numbers": [7, 4, 3], "target": 31}}'
    before = verification.STATS.comparisons
    answers = [
        "7*4 + 3",
        "7 × 4 + 3 = 31",
        "31",
        "7*4-3",
        None,
        "9**9**9**9",
        "\ud800",
        "1" * 200_000,
        "",
    ]
    assert verification.score([spec] * len(answers), answers) == [
        True,
        True,
        False,
        False,
        False,
        False,
        False,
        False,
        False,
    ]
    assert verification.STATS.comparisons == before  # no worker was asked
    with pytest.raises(ValueError, match="Countdown scorer must be JSON"):
        verification.score(['{"countdown": {"numbers": "7", "target": 31}}'], ["1"])


def test_scorers_of_several_kinds_in_one_batch():
    entry = reasoning_gym.create_dataset("chain_sum", size=1, seed=3)[0]
    specs = [
        json.dumps({"reasoning_gym": "chain_sum", "entry": entry}),
        '{"countdown": {"numbers": [5], "target": 5}}',
    ]
    assert verification.score(specs * 2, [entry["answer"], "5", entry["answer"] + "0", "5 5"]) == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "spec",
    [
        "chain_sum",
        "{}",
        "[1]",
        '{"reasoning_gym": "chain_sum"}',
        '{"reasoning_gym": "no_such", "entry": {}}',
    ],
)
def test_a_bad_scorer_is_the_datas_fault(spec):
    with pytest.raises(ValueError, match="scorer"):
        verification.score([spec], ["1"])
