"""The findings of checks, and the report that collects them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.masking import masked_text

if TYPE_CHECKING:
    from pandas import DataFrame

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
    """The findings in the order of the checks, and the texts and tables of each section."""

    findings: list[Finding] = field(default_factory=list)
    details: dict[str, list[tuple[str, str | DataFrame]]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)  # The sampling time of each group.

    def add(self, level: str, code: str, message: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, code, message))

    def show(self, section: str, title: str, content: str | DataFrame) -> None:
        """Add a text or table to a section."""
        self.details.setdefault(section, []).append((title, content))

    def at(self, level: str) -> list[Finding]:
        """Return the findings of a level."""
        return [finding for finding in self.findings if finding.level == level]

    @contextlib.contextmanager
    def refusals(self, code: str, *, essential: bool = False) -> Iterator[None]:
        """Report an error of the recipe or the chat template, and skip the rest of the block.

        With ``essential``, raise :class:`AbortChecks`, because later checks need the block.
        """
        try:
            yield
        except (RecipeError, TemplateError) as error:
            message = str(error)
            if isinstance(error, TemplateError):
                message = (
                    f"chat_template: rejects a conversation: {first_line(error)} Fix, if it does "
                    f'not support system messages: system_prompt: "" with the instruction in the '
                    f"question, or another chat_template"
                )
            self.add(ERROR, code, masked_text(message))
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
