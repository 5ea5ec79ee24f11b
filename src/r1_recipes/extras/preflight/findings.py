"""Print the findings of checks as soon as they are known, and keep them for the last line."""

import contextlib
from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import Any

from r1_recipes.common.console import say
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.messages import clip

# A warning: the run works, but may not do what you mean. An error: it fails or learns nothing.
OK, WARNING, ERROR = "ok", "warning", "error"


class Report:
    """The findings so far: a level, a code (the same in every version), and a message.

    With ``brief``, only those are printed that need attention or concern the signal, and the rows:
    nothing shows a fault of the data sooner.
    """

    def __init__(self, brief: bool = False) -> None:
        self.brief = brief
        self.findings: list[tuple[str, str, str]] = []

    def add(self, level: str, code: str, message: str) -> None:
        """Print a finding. The message has the numbers, and how to fix a problem."""
        self.findings.append((level, code, message))
        if not self.brief or level != OK or code.startswith("signal."):
            say(f"{level:<8}{code}: {message}")

    def show(self, section: str, title: str, content: Any) -> None:
        """Print a text or a table (a DataFrame), without its middle if it is long."""
        if self.brief and section != "rows":
            return
        if not isinstance(content, str):
            content = content.to_string(float_format="{:.3g}".format, na_rep="")
        say(f"{title}\n{indent(clip(content, 2000), '    ')}")

    @contextlib.contextmanager
    def refusals(self, code: str) -> Iterator[None]:
        """Report an error, and skip the rest of the block."""
        try:
            yield
        except Exception as error:  # a library's own message, for example of lora_target_modules
            message = str(error) if isinstance(error, RecipeError) else first_line(error)
            self.add(ERROR, code, message)


def graded(share: float, error_at: float, warn_at: float = 0.0) -> str:
    """Return the level of a finding from the share of affected rows."""
    if share >= error_at:
        return ERROR
    return WARNING if share and share >= warn_at else OK


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return at most ``count`` of ``total`` indices, evenly spaced from 0 on."""
    count = min(total, count)
    return [index * total // count for index in range(count)]


def join_names(values: Sequence[Any], limit: int = 10) -> str:
    """Return ``1, 2, 3``, or the first few values and the number of others."""
    shown = ", ".join(map(str, values[:limit]))
    return f"{shown} and {len(values) - limit} more" if len(values) > limit else shown
