"""What a check says, and the report that gathers it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from r1_recipes.common.errors import BatchError, RecipeError, first_line
from r1_recipes.common.masking import masked_text

if TYPE_CHECKING:
    from pandas import DataFrame

OK, WARNING, ERROR = "ok", "warning", "error"


class Enough(Exception):
    """Nothing more can be examined."""


@dataclass(frozen=True)
class Finding:
    # OK, WARNING (the run works, and may not do what is meant) or ERROR (it fails, or learns
    # nothing)
    level: str
    code: str  # SECTION.WHAT, the same in every version
    # A sentence with the number behind it and, if something is wrong, what to write instead
    message: str


@dataclass
class Report:
    """Findings in the order of the checks, and by section the texts and tables behind them, each
    with a title.
    """

    findings: list[Finding] = field(default_factory=list)
    details: dict[str, list[tuple[str, str | DataFrame]]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)  # that each group took to sample

    def add(self, level: str, code: str, message: str) -> None:
        self.findings.append(Finding(level, code, message))

    def show(self, section: str, title: str, content: str | DataFrame) -> None:
        self.details.setdefault(section, []).append((title, content))

    def at(self, level: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    @contextlib.contextmanager
    def refusals(self, code: str, *, essential: bool = False) -> Iterator[None]:
        """Report a refusal by a recipe or a chat template and skip the rest of the block; raise
        :class:`Enough` if later checks need it.
        """
        try:
            yield
        except (RecipeError, TemplateError) as error:
            said = str(error)
            if isinstance(error, TemplateError):
                said = (
                    f"chat_template: it refuses a conversation: {first_line(error)} If it takes "
                    f"no system message, set "
                )
                said += (
                    'system_prompt: "" and put the instruction into the question, or set '
                    "chat_template"
                )
            self.add(
                ERROR, "fit.batch" if isinstance(error, BatchError) else code, masked_text(said)
            )
            if essential:
                raise Enough from error


def graded(share: float, vain: float, doubtful: float = 0.0) -> str:
    """Return an error from the share ``vain`` on, a warning from ``doubtful`` on."""
    return ERROR if share >= vain else WARNING if share and share >= doubtful else OK


def spread(total: int, count: int) -> list[int]:
    """Return at most ``count`` of ``total`` indices, evenly spread, the first among them."""
    count = min(total, count)
    return [index * total // count for index in range(count)]


def listed(values: Sequence[Any], limit: int = 10) -> str:
    """Return ``1, 2, 3``, or the first few and how many more."""
    shown = ", ".join(map(str, values[:limit]))
    return f"{shown} and {len(values) - limit} more" if len(values) > limit else shown
