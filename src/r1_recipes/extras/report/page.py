"""Write a self-contained HTML page about one run or several.

The page shows curves, flags, evaluations, sampled completions and the recipe. It loads nothing when
it is opened. A run directory is not trusted: its texts are only data in the page, and the page's
content policy allows only the four scripts written here.
"""

import base64
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from r1_recipes.common import files
from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.report.completions import evenly_spaced, pack_completions
from r1_recipes.extras.report.read import (
    JsonObject,
    RunData,
    find_flags,
    read_evaluations,
    read_run,
    strings,
)

logger = logging.getLogger("r1_recipes.report")

REPORT_FILE = "report.html"
# The most points of a curve. A chart is about 400 pixels wide.
MAX_POINTS = 2_000
_FOLDER = resources.files("r1_recipes.extras.report") / "assets"
_ASSETS = (
    "page.html",
    "style.css",
    "early.js",
    "d3.min.js",
    "plot.min.js",
    "report.js",
    "strings.json",
    "LICENSES.txt",
)


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths relative to the folder that contains all runs."""
    parent = os.path.commonpath([path.resolve().parent for path in paths])
    return [path.resolve().relative_to(parent).as_posix() for path in paths]


def build(run_dirs: Sequence[Path]) -> str:
    """Return the HTML of the page."""
    runs = [read_run(path, name) for path, name in zip(run_dirs, run_names(run_dirs), strict=True)]
    packed, kept, total = pack_completions(runs)
    data = {
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "version": importlib.metadata.version("r1-recipes"),
        "completions": {"total": total, "kept": kept},
        "evaluations": read_evaluations(runs),
        "runs": [_run_entry(run) for run in runs],  # Last, because reading adds to `missing`.
    }
    parts = {"data": _embedded(data), "packed": packed}
    for file in _ASSETS:
        parts[file.partition(".")[0]] = (_FOLDER / file).read_text(encoding="utf-8")
    parts["strings"] = _embedded(json.loads(parts["strings"]))
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    policy += "script-src"
    for name in ("d3", "plot", "early", "report"):
        digest = hashlib.sha256(parts[name].encode()).digest()
        policy += f" 'sha256-{base64.b64encode(digest).decode()}'"
    parts["policy"] = policy
    # Replace all placeholders in one pass: text in the data may look like a placeholder.
    return re.sub(f"@({'|'.join(parts)})@", lambda match: parts[match[1]], parts["page"])


def _run_entry(run: RunData) -> JsonObject:
    longest = max(map(len, run.series.values()), default=0)
    if longest > MAX_POINTS:
        run.note("thinned", kept=MAX_POINTS, points=longest)
    steps, curves = [], {}
    for key, points in run.series.items():
        x, y = zip(*evenly_spaced(points, MAX_POINTS / len(points)), strict=True)
        curves[key] = {"x": x, "y": y, "numbers": run.numbers(key)}  # Of all points.
        steps.append(x[-1])
    entry = run.entry
    return {
        **strings({"recipe": entry.get("recipe"), "method": entry.get("method")}),
        "name": run.name,
        "path": str(run.path),
        "finished": bool(entry.get("finished")),
        "steps": max(steps, default=None),
        "seconds": _seconds(run),
        "settings": strings(run.settings),
        "versions": strings(entry.get("versions")),
        "hardware": strings(entry.get("hardware")),
        "series": curves,
        "flags": find_flags(run),
        "missing": run.missing,
    }


def _seconds(run: RunData) -> float | None:
    """Return the training time of all sessions.

    This is the sum of the step times, or the run times of the sessions that ended.
    """
    timed, last = [], 0
    for step, seconds in run.series.get("step_time", ()):
        if seconds is not None:
            timed.append(seconds * (step - last))
        last = step
    return sum(timed or run.values("train_runtime")) or None


def _embedded(value: Any) -> str:
    """Return JSON that cannot end its script element or start a comment or another element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e")


def write(run_dirs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page atomically, and return its path.

    Without ``output``, the page is ``report.html`` in the first run directory.

    Raises:
        RecipeError: A run directory is missing, or the page cannot be written.
    """
    output = output or run_dirs[0] / REPORT_FILE
    page = build(run_dirs)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(output, page)
    except OSError as error:
        raise RecipeError(
            f"{output}: cannot write the report: {error.strerror}. Fix: another place, "
            f"--output FILE"
        ) from error
    return output


def refresh(*run_dirs: Path, output: Path | None = None) -> None:
    """Write the page during or after a run. Errors are logged, because they must not stop it."""
    try:
        logger.info("report: %s", write(run_dirs, output))
    except (OSError, RecipeError) as error:
        logger.warning("report.html was not written: %s", error)
    except Exception:
        logger.warning("report.html was not written", exc_info=True)
