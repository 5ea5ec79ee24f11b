"""The house's rules: a file imports from its own layer or lower ones, the core imports no extra, no
circles, short files, a budget.
"""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "r1_recipes"
# From the ground up; docs/architecture.md says what each holds. Files beside these folders are
# commands: the top layer.
LAYERS = (
    ("common",),
    ("prompts", "verification", "data", "rewards", "recipe"),
    ("runs", "models", "completions", "metrics"),
    ("training",),
)
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}
CORE = {name: path for name, path in MODULES.items() if name.split(".")[0] != "extras"}
MAX_LINES = 400
# Syntax-tree nodes, which folding and packing do not change: 55,000 and 105,000 is where they are
# to go.
MAX_CORE_NODES = 122_250
MAX_NODES = 187_300
# A dense line is one of many nodes: name its steps.
MAX_NODES_PER_STATEMENT = 11.2


def imports(name):
    """Modules of ours that a module imports, each with its line and whether it is inside a
    function.
    """
    path = MODULES[name]
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "r1_recipes"
        ):
            base = node.module.removeprefix("r1_recipes").removeprefix(".")
            for alias in node.names:
                whole = f"{base}.{alias.name}".removeprefix(".")
                yield (whole if whole in MODULES else base), node.lineno, id(node) in inside
        assert not (isinstance(node, ast.ImportFrom) and node.level), (
            f"{path}:{node.lineno}: relative import"
        )


def layer(name):
    folder = name.split(".")[0]
    return next((index for index, folders in enumerate(LAYERS) if folder in folders), len(LAYERS))


@pytest.mark.parametrize("name", sorted(CORE))
def test_a_file_of_the_core_imports_from_its_own_layer_or_lower_ones(name):
    for target, line, _ in imports(name):
        place = f"{MODULES[name]}:{line}: imports {target}"
        assert target.split(".")[0] != "extras", place
        assert layer(target) < len(LAYERS) or target == "__main__" or not target, place
        assert layer(target) <= layer(name), place


@pytest.mark.parametrize("name", sorted(MODULES.keys() - CORE.keys()))
def test_an_extra_imports_another_one_only_if_its_docstring_says_so(name):
    if name == "extras":
        return
    extra = name.split(".")[1]
    says = set(
        re.findall(
            r"``(\w+)``",
            ast.get_docstring(ast.parse((SOURCE / "extras" / extra / "__init__.py").read_text())),
        )
    )
    for target, line, _ in imports(name):
        other = target.split(".")[1] if target.startswith("extras.") else extra
        assert other == extra or other in says, f"{MODULES[name]}:{line}: imports {target}"


def test_every_folder_has_a_layer_and_every_other_file_is_a_command():
    folders = {name.split(".")[0] for name, path in MODULES.items() if path.parent != SOURCE}
    assert folders == {folder for folders in LAYERS for folder in folders} | {"extras"}
    for name, path in MODULES.items():
        if path.parent == SOURCE and path.name != "__init__.py":
            assert 'if __name__ == "__main__":' in path.read_text(), f"{name} is no command"


def test_there_is_no_circle():
    # A package's __init__ re-exports its files; a file that imports from its own package's __init__
    # would need it first.
    graph = {name: {target for target, _, _ in imports(name) if target != name} for name in MODULES}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_of_ours_inside_functions_keep_torch_out_and_say_so(name):
    lines = MODULES[name].read_text().splitlines()
    for target, line, inside in imports(name):
        assert not inside or lines[line - 1].endswith("# heavy"), (
            f"{MODULES[name]}:{line}: imports {target} inside a function"
        )


def nodes(paths):
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]


def test_files_are_short_and_the_layer_is_thin():
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    assert {str(path): count for path, count in lines.items() if count > MAX_LINES} == {}
    for files, most in ((CORE.values(), MAX_CORE_NODES), (FILES, MAX_NODES)):
        found = nodes(files)
        count = len(found)
        assert count <= most, (
            "delete, or call a library; then raise the ceiling in a commit of its own"
        )
        statements = sum(isinstance(node, ast.stmt) for node in found)
        density = count / statements
        assert density <= MAX_NODES_PER_STATEMENT
