"""The order of the layers: a file of the core imports from its own layer or from lower ones.

An extra is imported inside the function that needs it.
"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "r1_recipes"
# From the ground up. The files beside these folders are commands: the top layer.
LAYERS = (
    ("common",),
    ("prompts", "verification", "data", "rewards", "recipe"),
    ("models", "generation", "scoring"),
    ("training",),
)


def layer(name):
    return next((index for index, names in enumerate(LAYERS) if name in names), len(LAYERS))


def test_a_file_of_the_core_imports_from_its_own_layer_or_lower_ones():
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = path.relative_to(SOURCE).with_suffix("").parts[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
        for node in ast.walk(tree):
            if own == "extras" or not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            package, _, rest = node.module.partition(".")
            for name in [rest] if rest else [alias.name for alias in node.names]:
                target = name.split(".")[0]
                command = layer(own) == len(LAYERS)
                below = layer(target) < len(LAYERS) and layer(target) <= layer(own)
                below |= target == "extras" and (command or node in inside)
                if package == "r1_recipes" and (SOURCE / target).exists() and not below:
                    wrong.append(f"{path}:{node.lineno}: imports {target}")
    assert wrong == []


def test_the_package_stays_small_enough_to_read():
    """Statements, so that packing gains nothing."""
    counts = {"core": 0, "extras": 0}
    for path in SOURCE.rglob("*.py"):
        if "shipped" not in path.parts:
            text = path.read_text(encoding="utf-8")
            assert text.count("\n") <= 400, path
            part = "extras" if "extras" in path.parts else "core"
            counts[part] += sum(isinstance(n, ast.stmt) for n in ast.walk(ast.parse(text)))
    assert counts["core"] <= 4600 and counts["extras"] <= 2400, counts
