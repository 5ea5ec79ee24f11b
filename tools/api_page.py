"""Write docs/api.md from the docstrings of the public names: python tools/api_page.py.

The sources are parsed and not imported, so this needs neither torch nor TRL.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "api.md"
# By module, as users import them. A class is followed by the methods that users call or define.
PUBLIC: dict[str, dict[str, str]] = {
    "r1_recipes.verification": {
        "judge": "",
        "Verdict": "",
        "grade": "",
        "score": "",
        "final_answer": "",
        "register_scorer": "",
        "start": "",
        "close": "",
    },
    "r1_recipes.rewards": {
        "get_reward_funcs": "",
        "register_reward": "",
        "Reward": "__call__ score_text require",
        "AnswerReward": "score answer",
        "answer_rewards": "",
        "reward_parameters": "",
    },
    "r1_recipes.data": {
        "Mapper": "__call__ fit missing example_rows",
        "SkipRow": "",
        "register_mapper": "",
        "get_mapper": "",
        "load_dataset": "",
        "load_rows": "",
    },
    "r1_recipes.data.mapped_row": {"MappedRow": "", "ToolCall": ""},
    "r1_recipes.prompts": {
        "get_response_format": "",
        "ResponseFormat": "render parse",
        "ParsedResponse": "",
    },
    "r1_recipes.recipe": {"load_recipe": "", "Recipe": "", "namespace_value": ""},
}
HEADER = """\
# API reference

<!-- Written by tools/api_page.py from the docstrings: change those, then run make api. -->

These names are public: you can import them in your own code. A recipe needs none of them; its keys
are in [recipes.md](recipes.md). Importing these modules imports no torch.

```python
from r1_recipes.verification import judge

(verdict,) = judge(["1,080"], ["1080.00"])
assert verdict.right
```
"""
SECTION = re.compile(r"(Args|Attributes|Returns|Raises):")
TITLES = {"Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns", "Raises": "Raises"}
Definition = ast.ClassDef | ast.FunctionDef


def file_of(module: str) -> Path:
    """Return the file of a module or of a package."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def definition(module: str, name: str) -> tuple[Definition, list[str]]:
    """Return the node that defines a name, and its file's lines; follow imports to it."""
    text = file_of(module).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, Definition) and node.name == name:
            return node, text.splitlines()
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return definition(str(node.module), name)
    raise LookupError(f"{module} defines no {name}")


def code(text: str) -> str:
    """Return a docstring's text with its marks as Markdown's."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


def parts(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the text, then each section of a docstring in Google's style, as lines."""
    title, lines = "", list[str]()
    for line in docstring.splitlines():
        if found := SECTION.fullmatch(line):
            yield title, lines
            title, lines = TITLES[found[1]], []
        else:
            lines.append(line)
    yield title, lines


def entries(lines: Iterable[str]) -> Iterator[str]:
    """Yield the entries of a section, each on one line."""
    entry = ""
    for line in filter(str.strip, lines):
        if line.startswith("     "):
            entry += " " + line.strip()
        else:
            if entry:
                yield entry
            entry = line.strip()
    if entry:
        yield entry


def body(docstring: str) -> str:
    """Return a docstring as Markdown."""
    written = []
    for title, lines in parts(code(docstring)):
        if not title:
            written.append("\n".join(lines).strip())
        elif title == "Returns":
            written.append(f"**Returns:** {' '.join(line.strip() for line in lines).strip()}")
        else:
            named = (entry.partition(": ") for entry in entries(lines))
            rows = [f"- `{name}`: {text}" for name, _, text in named]
            written.append("\n".join([f"**{title}:**", "", *rows]))
    return "\n\n".join(written)


def signature(node: Definition, lines: list[str]) -> str:
    """Return the head of a function, or of a class with its fields and their comments."""
    if isinstance(node, ast.FunctionDef):
        marks = [f"@{ast.unparse(mark)}" for mark in node.decorator_list]
        return "\n".join([*marks, head(node)])
    bases = ", ".join(map(ast.unparse, node.bases))
    fields = [
        (field, lines[field.end_lineno - 1].partition("  # ")[2])
        for field in node.body
        if isinstance(field, ast.AnnAssign) and field.end_lineno
    ]
    own = [
        f"    {ast.unparse(field.target)}: {ast.unparse(field.annotation)}"
        + (f"  # {comment}" if comment else "")
        for field, comment in fields
    ]
    start = f"class {node.name}({bases}):".replace("()", "")
    return "\n".join([start, *own]) if own else f"{start} ..."


def head(node: ast.FunctionDef) -> str:
    """Return a function's head, one argument a line where it is long."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    short = f"def {node.name}({ast.unparse(node.args)}){returns}"
    if len(short) <= 88:
        return short
    arguments = ast.parse(f"{short}: ...").body[0].args  # type: ignore[attr-defined]
    lines = [f"    {argument}," for argument in split(arguments)]
    return "\n".join([f"def {node.name}(", *lines, f"){returns}"])


def split(arguments: ast.arguments) -> Iterator[str]:
    """Yield a function's arguments as they are written."""
    placed = arguments.posonlyargs + arguments.args
    bare: list[ast.expr | None] = [None] * (len(placed) - len(arguments.defaults))
    yield from map(argument, placed, [*bare, *arguments.defaults])
    if arguments.vararg or arguments.kwonlyargs:
        yield f"*{argument(arguments.vararg, None) if arguments.vararg else ''}"
    yield from map(argument, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg:
        yield f"**{argument(arguments.kwarg, None)}"


def argument(node: ast.arg, default: ast.expr | None) -> str:
    """Return one argument with its type and its default."""
    return ast.unparse(node) + (f" = {ast.unparse(default)}" if default else "")


def described(title: str, node: Definition, lines: list[str], level: int) -> str:
    """Return a name's heading, its head, and its docstring."""
    docstring = ast.get_docstring(node)
    if not docstring:
        raise LookupError(f"{title} has no docstring")
    fence = "```python\n" + signature(node, lines).replace("'", '"') + "\n```"
    return f"{'#' * level} `{title}`\n\n{fence}\n\n{body(docstring)}"


def page() -> str:
    """Return the whole page."""
    written = [HEADER.strip()]
    for module, names in PUBLIC.items():
        first = (ast.get_docstring(ast.parse(file_of(module).read_text("utf-8"))) or "").split("\n")
        written.append(f"## {module}\n\n{code(first[0])}")
        for name, methods in names.items():
            node, lines = definition(module, name)
            written.append(described(name, node, lines, 3))
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in methods.split():
                    written.append(described(f"{name}.{method.name}", method, lines, 4))
    return "\n\n".join(written) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
