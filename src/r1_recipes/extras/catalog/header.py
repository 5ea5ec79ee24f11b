"""Read what a recipe's header says: fields such as ``Hardware`` and ``Menu``."""

import itertools
import re
from pathlib import Path

_COUNTS = {"one": "1", "two": "2"}
_STATUSES = ("measured", "reported")


def header_of(path: Path) -> dict[str, str]:
    """Return the fields of a recipe's header, each as one line.

    ``title`` is its first sentence. A file without fields has the title alone.
    """
    lines = [line.strip("# ") for line in _comment(path)]
    first = " ".join(itertools.takewhile(bool, lines))
    title = re.split(r"(?<=[.])(?<!\bDr[.])\s+(?=[A-Z])", first)[0]
    fields = {"title": title}
    key = None
    for line in lines[1:]:
        if field := re.match(r"(\w+): *(.*)", line):
            key = field[1]
            fields[key] = field[2]
        elif key and line:
            fields[key] += f" {line}"
        else:
            key = None
    return fields


def _comment(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("#"), lines))


def hardware_of(header: dict[str, str]) -> str:
    """Return a recipe's hardware in short, such as ``8 x 80 GB`` or ``2 CPU cores``."""
    field = header.get("Hardware", "")
    found = re.search(r"\b(one|two|\d+) (GPU|CPU core)s?(?: with (\d+) GB)?", field)
    if not found:
        return ""
    count, unit, memory = found.groups()
    kind = "CPU cores" if unit == "CPU core" else f"x {memory} GB"
    return f"{_COUNTS.get(count, count)} {kind}"


def status_of(header: dict[str, str]) -> str:
    """Return ``measured`` (trained here), ``reported`` (by others) or ``unmeasured``.

    A file that is no recipe has an empty status.
    """
    if "Menu" not in header:
        return ""
    expected = header["Menu"].split(" | ")[-1]
    return next((status for status in _STATUSES if expected.startswith(status)), "unmeasured")
