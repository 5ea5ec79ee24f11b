"""One self-contained HTML page about one run, or several overlaid: curves, flags, evaluations, sampled completions, recipe.

``python -m r1_recipes.report RUN_DIR [RUN_DIR …] [--output FILE.html]``

Nothing is fetched when the page is opened, and nothing in a run directory is trusted: texts reach the page as data only, and the page's
own policy lets no script run but the four that are written here.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import logging
import re
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from r1_recipes.common import files
from r1_recipes.common.errors import RecipeError
from r1_recipes.report.completions import pack_completions, read_completions, spread
from r1_recipes.report.evaluations import read_evaluations
from r1_recipes.report.flags import find_flags
from r1_recipes.report.read import RunData, read_run, setting_text

logger = logging.getLogger("r1_recipes.report")

REPORT_FILE = "report.html"
# Points of one curve; a chart is some 400 pixels wide.
MAX_POINTS = 2_000


def run_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart; a path that is given twice gets a number."""
    parts = [path.resolve().parts for path in paths]
    depths = range(1, max(map(len, parts)) + 1)
    depth = next(depth for depth in depths if len({part[-depth:] for part in parts}) == len(set(parts)))
    names = ["/".join(part[-depth:]) for part in parts]
    counts = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [name if count == 1 else f"{name} ({count})" for name, count in zip(names, counts, strict=True)]


def build(run_dirs: Sequence[Path]) -> str:
    """Build the page's HTML.

    Raises:
        RecipeError: a run directory is not there.
    """
    runs = [read_run(path, name) for path, name in zip(run_dirs, run_names(run_dirs), strict=True)]
    rows, total = read_completions(runs)
    packed, kept = pack_completions(rows)
    data = {
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "version": importlib.metadata.version("r1-recipes"),
        "completions": {"total": total, "kept": kept},
        "evaluations": read_evaluations(runs),
        "runs": [_run_entry(run) for run in runs],  # last: what was missing is known by then
    }
    return _page(data, packed)


def _run_entry(run: RunData) -> dict[str, Any]:
    curves = {key: spread(points, MAX_POINTS / len(points)) for key, points in run.series.items()}
    longest = max(map(len, run.series.values()), default=0)
    if longest > MAX_POINTS:
        run.missing.append(("thinned", {"kept": MAX_POINTS, "points": longest}))
    return {
        "name": run.name,
        "path": str(run.path),
        **{key: value if isinstance(value := run.entry.get(key), str) else None for key in ("recipe", "method")},
        "finished": bool(run.entry.get("finished")),
        "steps": max((points[-1][0] for points in run.series.values()), default=None),
        "seconds": _seconds(run),
        "started": run.started,
        "settings": {str(key): setting_text(value) for key, value in run.settings.items()},
        "versions": _strings(run.entry.get("versions")),
        "hardware": _strings(run.entry.get("hardware")),
        "series": {key: {"x": [step for step, _ in points], "y": [value for _, value in points]} for key, points in curves.items()},
        "flags": find_flags(run),
        "missing": [{"code": code, "values": values} for code, values in run.missing],
    }


def _seconds(run: RunData) -> float | None:
    """Of training, in all sessions: its steps' own time, else what each session that came to its end took."""
    if steps := run.series.get("step_time"):
        before = [0, *(step for step, _ in steps)]
        return sum(seconds * (step - last) for (step, seconds), last in zip(steps, before, strict=False) if seconds is not None)
    return sum(run.values("train_runtime")) if "train_runtime" in run.series else None


def _strings(value: Any) -> dict[str, str]:
    return {str(key): setting_text(item) for key, item in value.items() if item is not None} if isinstance(value, dict) else {}


def _embedded(value: Any) -> str:
    """JSON that no browser can read as the end of its script element, nor as the beginning of a comment or of another."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e")


def _page(data: dict[str, Any], packed: str) -> str:
    folder = resources.files("r1_recipes.report") / "assets"
    assets = {"style": "style.css", "d3": "d3.min.js", "plot": "plot.min.js", "early": "early.js", "report": "report.js"}
    parts = {name: (folder / file).read_text(encoding="utf-8") for name, file in {**assets, "licences": "LICENSES.txt"}.items()}
    scripts = [parts[name] for name, file in assets.items() if file.endswith(".js")]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    policy = ["default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'", "form-action 'none'"]
    policy.append("script-src " + " ".join(f"'sha256-{digest}'" for digest in digests))
    parts["policy"] = "; ".join(policy)
    strings = json.loads((folder / "strings.json").read_text(encoding="utf-8"))
    parts |= {"strings": _embedded(strings), "data": _embedded(data), "packed": packed}
    # One pass, so that a text in the data that looks like a placeholder stays what it is.
    return re.sub(f"@({'|'.join(parts)})@", lambda match: parts[match[1]], (folder / "page.html").read_text(encoding="utf-8"))


def write(run_dirs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page atomically, and return its path.

    Args:
        run_dirs: at least one.
        output: ``None``: ``report.html`` in the first run's directory.

    Raises:
        RecipeError: a run directory is not there, or the page cannot be written.
    """
    output = output or run_dirs[0] / REPORT_FILE
    page = build(run_dirs)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(output, page)
    except OSError as error:
        raise RecipeError(f"{output}: the report cannot be written: {error.strerror}; choose another place (--output FILE)") from error
    return output


def refresh(*run_dirs: Path, output: Path | None = None) -> None:
    """Write the page while a run trains or ends; whatever goes wrong is logged, since a page must not cost a run."""
    began = time.monotonic()
    try:
        path = write(run_dirs, output)
        logger.info("report: %s (%.1f s)", path, time.monotonic() - began)
    except Exception:
        logger.warning("no report was written", exc_info=True)
