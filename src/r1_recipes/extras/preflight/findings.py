"""Print the findings of checks as soon as they are known, and keep them for the last line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from r1_recipes.common.console import say
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.masking import masked_text

OK, WARNING, ERROR = "ok", "warning", "error"


class AbortChecks(Exception):
    """Raised when the remaining checks are impossible."""


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        level: ``OK``, ``WARNING`` (the run works, but may not do what you mean) or ``ERROR`` (it
            fails or learns nothing).
        code: ``SECTION.NAME``, the same in every version.
        message: What was found, with the numbers, and how to fix a problem.
    """

    level: str
    code: str
    message: str


@dataclass
class Report:
    """The findings so far.

    With ``brief``, only those are printed that need attention or concern the signal, and the rows:
    nothing shows a fault of the data sooner.
    """

    brief: bool = False
    findings: list[Finding] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # The sampling time of each group.

    def add(self, level: str, code: str, message: str) -> None:
        """Print a finding."""
        self.findings.append(Finding(level, code, message))
        if not self.brief or level != OK or code.startswith("signal."):
            say(f"{level:<8}{code}: {masked_text(message)}")

    def show(self, section: str, title: str, content: Any) -> None:
        """Print a text or a table (a DataFrame), without its middle if it is long."""
        if self.brief and section != "rows":
            return
        if not isinstance(content, str):
            content = content.to_string(float_format="{:.3g}".format, na_rep="")
        if (left_out := len(content) - 2000) > 0:
            content = f"{content[:1000]}\n[… {left_out} characters …]\n{content[-1000:]}"
        say(f"{title}\n{indent(content, '    ')}")

    @contextlib.contextmanager
    def refusals(self, code: str, *, essential: bool = False) -> Iterator[None]:
        """Report an error, and skip the rest of the block.

        With ``essential``, raise :class:`AbortChecks`, because later checks need the block.
        """
        try:
            yield
        except Exception as error:  # a library's own message, for example of lora_target_modules
            self.add(
                ERROR, code, str(error) if isinstance(error, RecipeError) else first_line(error)
            )
            if essential:
                raise AbortChecks from error


def graded(share: float, error_at: float, warn_at: float = 0.0) -> str:
    """Return the level of a finding from the share of affected rows."""
    if share >= error_at:
        return ERROR
    return WARNING if share and share >= warn_at else OK


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return at most ``count`` of ``total`` indices, evenly spaced from 0 on."""
    count = min(total, count)
    return [index * total // count for index in range(count)]


def sampled(rows: Any, count: int) -> list:
    """Return at most ``count`` rows, evenly spaced from the first on."""
    return [rows[index] for index in evenly_spaced(len(rows), count)]


def join_names(values: Sequence[Any], limit: int = 10) -> str:
    """Return ``1, 2, 3``, or the first few values and the number of others."""
    shown = ", ".join(map(str, values[:limit]))
    return f"{shown} and {len(values) - limit} more" if len(values) > limit else shown
