"""What a check says, and where all of it is gathered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from r1_recipes.common.errors import RecipeError
from r1_recipes.common.masking import masked_text

OK, WARNING, ERROR = LEVELS = ("ok", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """One verdict.

    Attributes:
        level: ``"ok"``, ``"warning"`` (the run works, and may not do what is meant) or ``"error"`` (it fails, or learns nothing).
        code: ``SECTION.WHAT``, the same in every version; section is recipe, data, contract, signal or fit.
        message: a sentence with the number behind it and, where something is wrong, what to write instead.
    """

    level: str
    code: str
    message: str

    @property
    def section(self) -> str:
        return self.code.partition(".")[0]


@dataclass
class Report:
    """Everything that preflight found.

    Attributes:
        findings: in the order of the checks.
        facts: numbers and texts for people and for ``--json``, by section.
    """

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def ok(self, code: str, message: str) -> None:
        self.findings.append(Finding(OK, code, message))

    def warn(self, code: str, message: str) -> None:
        self.findings.append(Finding(WARNING, code, message))

    def error(self, code: str, message: str) -> None:
        self.findings.append(Finding(ERROR, code, message))

    def count(self, level: str) -> int:
        return sum(finding.level == level for finding in self.findings)

    @contextlib.contextmanager
    def refusals(self, code: str) -> Iterator[None]:
        """What would have ended a run becomes one of several findings; the rest of the block is left out."""
        try:
            yield
        except RecipeError as error:
            self.error(code, masked_text(str(error)))


def spread(total: int, count: int) -> list[int]:
    """At most ``count`` of ``total`` indices, evenly spread, the first among them."""
    if total <= count:
        return list(range(total))
    return [index * total // count for index in range(count)]


def listed(values: list[Any], limit: int = 10) -> str:
    """``1, 2, 3``, or the first few and how many more."""
    shown = ", ".join(map(str, values[:limit]))
    return f"{shown} and {len(values) - limit} more" if len(values) > limit else shown


def clip(text: str, width: int = 80) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")
