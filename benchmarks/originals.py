"""Reads docs/data/fidelity.yaml's values of the originals again, in their repositories, and lists
those that do not stand where it says.

    python benchmarks/originals.py FOLDER      FOLDER/OWNER/NAME: clones of the repositories, which
    git clones there if they are missing

Needs git and, for the clones, a network. tests/test_fidelity.py holds the same data against recipes
and docs/fidelity/, without either.
"""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "docs" / "data" / "fidelity.yaml"
_NUMBER = re.compile(
    r"(?<![\w.])-?\d[\d_,]*(?:\.\d+)?(?:e[-+]?\d+)?|(?<![\w.])\.\d+", re.IGNORECASE
)


def place(source: str, at: str | int) -> tuple[str, str, str, int, int]:
    """Repository, commit, file, first and last line. ``at`` is a line of the source's file,
    ``FILE:LINE``, or all of it.
    """
    if isinstance(at, int):
        at = f"{source}:{at}"
    elif "@" not in at:
        at = f"{source.partition(':')[0]}:{at}"
    if (found := re.fullmatch(r"([\w./-]+)@([\w.]+):(.+):(\d+)(?:-(\d+))?", at)) is None:
        raise ValueError(f"{at!r} is not REPOSITORY@COMMIT:FILE:LINE")
    repository, commit, path, first, last = found.groups()
    return repository, commit, path, int(first), int(last or first)


def states(text: str, value: Any) -> bool:
    """Whether lines of a configuration, a script or a program hold a value."""
    if isinstance(value, bool):
        return str(value).lower() in text.lower()
    if isinstance(value, int | float):
        numbers = [
            float(found.replace(",", "").replace("_", "").rstrip("."))
            for found in _NUMBER.findall(text)
        ]
        return value in numbers or ("$((" in text and math.prod(numbers) == value)  # $((1024 * 20))
    return str(value).rpartition("/")[2].casefold() in text.casefold()


def entries() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Recipe, source, key and entry, in order."""
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return [
        (recipe, its["source"], key, entry)
        for recipe, its in data.items()
        for key, entry in (its.get("keys") or {}).items()
    ]


def main(folder: Path) -> int:
    """Return the number of values that were not found."""
    missing, checked = 0, entries()
    for recipe, source, key, entry in checked:
        repository, commit, path, first, last = place(source, entry["at"])
        clone = folder / repository
        if not clone.exists():
            subprocess.run(
                [
                    "git",
                    "clone",
                    "--quiet",
                    "--bare",
                    f"https://github.com/{repository}",
                    str(clone),
                ],
                check=True,
            )
        shown = subprocess.run(
            ["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True, text=True
        )
        if not states("\n".join(shown.stdout.splitlines()[first - 1 : last]), entry["theirs"]):
            missing += 1
            sys.stdout.write(
                f"{recipe}: {key}: {entry['theirs']!r} does not stand in "
                f"{repository}@{commit}:{path}:{first}-{last}\n"
            )
    sys.stdout.write(
        f"{len(checked) - missing} of {len(checked)} values stand where "
        f"docs/data/fidelity.yaml says\n"
    )
    return missing


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) > 0)
