"""One self-contained HTML page about one run, or several overlaid: curves, flags, evaluations, sampled completions, recipe.

``python -m r1_recipes.report RUN_DIR [RUN_DIR …] [--output FILE.html]``

Nothing is fetched when the page is opened, and nothing in a run directory is trusted: texts reach the page as data only, and the page's
own policy lets no script run but the four that are written here.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import importlib.metadata
import itertools
import json
import logging
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r1_recipes import run_dir
from r1_recipes.errors import RecipeError, first_line
from r1_recipes.masking import masked
from r1_recipes.recipe import parse_yaml
from r1_recipes.rewards import answer_rewards

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

logger = logging.getLogger("r1_recipes.report")  # under `python -m` this module is called __main__

REPORT_FILE = "report.html"
# Compressed completions in one page, in bytes of base64: with the page's own 0.6 MB and its curves it stays below 15 MB.
MAX_COMPLETION_BYTES = 13_500_000
# Rows read, over all runs; twice 500 steps of 64. More would make every save wait.
MAX_COMPLETIONS = 64_000
# Points of one curve; a chart is some 400 pixels wide.
MAX_POINTS = 2_000
# Characters of one text in the page; longer ones keep their two ends.
MAX_TEXT = 100_000
# A trend compares the means of the first and the last quarter of the logged steps, at most 20 each; fewer points than this say nothing.
MIN_POINTS = 8
MAX_WINDOW = 20
# What a flag takes. Each is shown with the numbers that it was raised for.
TRUNCATED_SHARE = 0.2
LENGTH_RATIO = 2.0
ENTROPY_RATIO = 0.25
SATURATED = 0.99
ZERO_STD_SHARE = 0.5
FLAT = 0.02
_SHAPE_REWARD = re.compile(r"format|tag_count|xml")
_NO_REWARD = {"step", "advantage"}
_LARGEST = 1e100
# One step's completions, unpacked; a few KB of Parquet can stand for any number of GB.
_MAX_TABLE_BYTES = 1 << 30


@dataclass
class RunData:
    """What a run directory says.

    Attributes:
        name: short label, unlike the other runs'.
        path: the directory as it was given.
        entry: ``run.json``; empty where it cannot be read.
        settings: ``recipe.yaml``, with what later starts changed; likewise.
        series: for each metric the logged ``(step, value)`` pairs in order; a value is ``None`` where it was not finite.
        started: time of the first and of the last line of ``run.log``, ISO 8601.
        missing: what could not be read, as ``(code, values)``; the codes are keys of the page's table of strings.
        files: completions files, in order of their names.
    """

    name: str
    path: Path
    entry: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    started: tuple[str, str] | None = None
    missing: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def mean(self, key: str) -> tuple[float, float, int] | None:
        """Means of a metric at the beginning and at the end of the run and the points in each; ``None`` where there are too few."""
        values = [value for _, value in self.series.get(key, ()) if value is not None]
        if len(values) < MIN_POINTS:
            return None
        window = min(len(values) // 4, MAX_WINDOW)
        return statistics.fmean(values[:window]), statistics.fmean(values[-window:]), window


def read_run(path: Path, name: str | None = None) -> RunData:
    """Read a run directory; what is missing or torn is noted, never raised.

    Raises:
        RecipeError: there is no such directory.
    """
    if not path.is_dir():
        raise RecipeError(f"{path}: no such run directory; give the output_dir of a run")
    run = RunData(name or path.resolve().name, path)
    run.entry = _mapping(run, "run.json", json.loads)
    run.settings = _mapping(run, "recipe.yaml", lambda text: parse_yaml(text, "recipe.yaml"))
    continued = run.entry.get("continued")
    for start in continued if isinstance(continued, list) else ():
        run.settings |= start["settings"] if isinstance(start, dict) and isinstance(start.get("settings"), dict) else {}
    _read_metrics(run)
    _read_times(run)
    run.files = sorted(file for file in (path / "completions").glob("*.parquet") if file.is_file())
    if not run.files and run.entry.get("method", "grpo") == "grpo":
        run.missing.append(("no_completions", {"file": "completions/*.parquet"}))
    return run


def _text(path: Path) -> str:
    """The text of a file of a run folder, which may be somebody else's: no link out of it, no pipe or device that never ends."""
    if path.is_symlink() or not path.is_file():
        raise FileNotFoundError(f"{path.name} is no file")
    return path.read_text(encoding="utf-8", errors="replace")


def _mapping(run: RunData, name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        found = masked(parse(_text(run.path / name)))
    except FileNotFoundError:
        run.missing.append(("no_file", {"file": name}))
        return {}
    except (OSError, ValueError, RecursionError) as error:
        run.missing.append(("torn_file", {"file": name, "reason": first_line(error)}))
        return {}
    if not isinstance(found, dict):
        run.missing.append(("torn_file", {"file": name, "reason": f"{type(found).__name__}"}))
        return {}
    return found


def _read_metrics(run: RunData) -> None:
    path = run.path / "metrics.jsonl"
    try:
        lines = _text(path).split("\n")
    except OSError as error:
        code = "no_file" if isinstance(error, FileNotFoundError) else "torn_file"
        run.missing.append((code, {"file": path.name, "reason": first_line(error)}))
        return
    points: dict[str, dict[int, float | None]] = {}
    bad = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            step = entry.pop("step")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            bad.append(number)
            continue
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**53:
            bad.append(number)
            continue
        for key, value in entry.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                # A step that is there twice was logged again after a resume; the later line is the run's.
                points.setdefault(key, {})[step] = _finite(value)
    if bad:
        run.missing.append(("bad_lines", {"file": path.name, "count": len(bad), "first": bad[0]}))
    if not points:
        run.missing.append(("no_metrics", {"file": path.name}))
    run.series = {key: sorted(values.items()) for key, values in points.items()}


def _finite(value: Any) -> float | None:
    """A number with the six digits that a chart can show; ``None`` where it is no number, or too large to add some up."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return float(f"{number:.6g}") if abs(number) < _LARGEST else None


def _read_times(run: RunData) -> None:
    try:
        text = _text(run.path / "run.log")
    except OSError:
        run.missing.append(("no_file", {"file": "run.log"}))
        return
    times = re.findall(r'^\{"time": "(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"', text, re.MULTILINE)
    if times:
        run.started = (times[0], times[-1])


def find_flags(run: RunData) -> list[dict[str, Any]]:
    """What a person should look at first, each with the number behind it.

    Returns:
        ``{"code", "severity", "values"}``; the code names the sentence in the page's table of strings, severity is ``"bad"``, ``"warn"``
        or ``"info"``.
    """
    flags: list[dict[str, Any]] = []

    def flag(code: str, severity: str, **values: Any) -> None:
        flags.append({"code": code, "severity": severity, "values": values})

    for key, points in run.series.items():
        lost = [step for step, value in points if value is None]
        if lost:
            flag("not_finite", "bad", metric=key, count=len(lost), step=lost[0])
    rewards = [match[1] for key in run.series if (match := re.fullmatch(r"rewards/(.+)/mean", key))]
    for name in rewards:
        values = [value for _, value in run.series[f"rewards/{name}/mean"] if value is not None]
        spread = [value for _, value in run.series.get(f"rewards/{name}/std", ()) if value is not None]
        if len(values) >= MIN_POINTS and not any(values):
            flag("reward_zero", "bad", reward=name, points=len(values))
        elif len(spread) >= MIN_POINTS and not any(spread):
            flag("reward_constant", "warn", reward=name, value=values[-1] if values else None, points=len(spread))
    total = run.mean("reward")
    named = run.settings.get("reward_funcs")
    judges = [str(name).rpartition(":")[2] for name in answer_rewards(named if isinstance(named, list) else rewards)]
    for name in [name for name in judges if name in rewards][:1]:
        answers = run.mean(f"rewards/{name}/mean")
        if not total or not answers:
            continue
        if total[1] - total[0] > max(FLAT, _noise(run, "reward", total[2])) and answers[1] - answers[0] < FLAT:
            means = {"before": total[0], "after": total[1], "answer_before": answers[0], "answer_after": answers[1]}
            flag("reward_not_accuracy", "bad", reward=name, points=total[2], **means)
    length = run.mean("completions/mean_length")
    if length and length[1] > LENGTH_RATIO * length[0]:
        flag("length_explosion", "warn", before=length[0], after=length[1], points=length[2])
    elif length and length[1] * LENGTH_RATIO < length[0]:
        flag("length_collapse", "warn", before=length[0], after=length[1], points=length[2])
    cut = [value for _, value in run.series.get("completions/clipped_ratio", ()) if value is not None][-MAX_WINDOW:]
    if cut and statistics.fmean(cut) > TRUNCATED_SHARE:
        flag("truncated", "bad", share=statistics.fmean(cut), points=len(cut), limit=_setting(run.settings.get("max_completion_length")))
    entropy = run.mean("entropy")
    if entropy and entropy[1] < ENTROPY_RATIO * entropy[0] and run.series.get("reward"):
        flag("entropy_collapse", "warn", before=entropy[0], after=entropy[1], points=entropy[2])
    for name in filter(_SHAPE_REWARD.search, rewards):
        shape = run.mean(f"rewards/{name}/mean")
        if shape and shape[1] >= SATURATED:
            flag("format_saturated", "info", reward=name, value=shape[1], points=shape[2])
    still = [value for _, value in run.series.get("frac_reward_zero_std", ()) if value is not None][-MAX_WINDOW:]
    if still and statistics.fmean(still) >= ZERO_STD_SHARE:
        flag("zero_std", "bad" if statistics.fmean(still) > SATURATED else "warn", share=statistics.fmean(still), points=len(still))
    order = ["bad", "warn", "info"]
    return sorted(flags, key=lambda found: order.index(found["severity"]))


def _noise(run: RunData, key: str, window: int) -> float:
    """Twice the standard error of a difference of two means over ``window`` points of this metric."""
    values = [value for _, value in run.series[key] if value is not None]
    steps = [b - a for a, b in itertools.pairwise(values)]
    # Differences of neighbours leave the trend out; their variance is twice that of a point.
    variance = statistics.fmean(step * step for step in steps) / 2
    return 2 * math.sqrt(2 * variance / window)


def read_completions(runs: Sequence[RunData]) -> dict[str, Any]:
    """Sampled completions of all runs, column by column.

    Returns:
        ``rewards`` and ``extras`` (column names), ``rows`` (``run``, ``step``, ``prompt``: an index into ``prompts``, ``text``,
        ``reward``: the weighted sum, ``advantage``, ``scores`` and ``extra``: a list a name), ``prompts``, and ``total``: rows there are.
    """
    import pyarrow
    import pyarrow.parquet

    counts = []
    for run in runs:
        readable = []
        for path in run.files:
            try:
                found = pyarrow.parquet.read_metadata(path)
                size = sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
                if path.is_symlink() or size > _MAX_TABLE_BYTES:
                    raise OSError("a link" if path.is_symlink() else f"{size} bytes, unpacked")
                readable.append((path, found.num_rows))
            except (OSError, pyarrow.ArrowException) as error:
                run.missing.append(("torn_file", {"file": f"completions/{path.name}", "reason": first_line(error)}))
        counts.append(readable)
    total = sum(rows for readable in counts for _, rows in readable)
    share = min(1.0, MAX_COMPLETIONS / total) if total else 1.0
    table = _Table(len(runs))
    for number, (run, readable) in enumerate(zip(runs, counts, strict=True)):
        weights = _weights(run)
        for path, _ in _spread(readable, share):
            try:
                with pyarrow.parquet.ParquetFile(path) as file:
                    rows = file.read().to_pylist()
            except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
                run.missing.append(("torn_file", {"file": f"completions/{path.name}", "reason": first_line(error)}))
                continue
            for row in rows:
                table.add(number, row, weights)
    return {**table.columns(), "total": total}


def _spread(items: list[Any], share: float) -> list[Any]:
    """Evenly spaced items, the first and the last among them."""
    count = max(1, round(len(items) * min(1.0, share)))
    if count >= len(items):
        return items
    return [items[round(i * (len(items) - 1) / max(1, count - 1))] for i in range(count)]


def _weights(run: RunData) -> dict[str, float]:
    names, weights = run.settings.get("reward_funcs"), run.settings.get("reward_weights")
    if not isinstance(names, list) or not isinstance(weights, list):
        return {}
    named = {str(name).rpartition(":")[2]: _finite(weight) for name, weight in zip(names, weights, strict=False)}
    return {name: weight for name, weight in named.items() if weight is not None}


class _Table:
    """Rows of many files as columns; a column that a file lacks is ``None`` there."""

    def __init__(self, runs: int) -> None:
        self.rows: list[tuple[int, dict[str, Any], int, float | None]] = []
        self.prompts: dict[str, int] = {}
        self.scores: dict[str, None] = {}
        self.extras: dict[str, None] = {}

    def add(self, run: int, row: dict[str, Any], weights: Mapping[str, float]) -> None:
        step = row.get("step")
        kept: dict[str, Any] = {"step": step if isinstance(step, int) else None, "text": clip(words(row.get("completion")))}
        kept["advantage"] = _finite(row.get("advantage"))
        total = None
        for key, value in row.items():
            if key in ("prompt", "completion") or key in _NO_REWARD:
                continue
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.scores[key] = None
                kept[f"score {key}"] = score = _finite(value)
                if score is not None:
                    total = (total or 0.0) + weights.get(key, 1.0) * score
            elif value is not None:
                self.extras[key] = None
                kept[f"extra {key}"] = clip(value if isinstance(value, str) else words(value) or str(value))
        prompt = self.prompts.setdefault(clip(words(row.get("prompt"), roles=True)), len(self.prompts))
        self.rows.append((run, kept, prompt, None if total is None else _finite(total)))

    def columns(self) -> dict[str, Any]:
        rows = self.rows
        return {
            "rewards": list(self.scores),
            "extras": list(self.extras),
            "prompts": list(self.prompts),
            "rows": {
                "run": [run for run, *_ in rows],
                "step": [kept["step"] for _, kept, *_ in rows],
                "prompt": [prompt for _, _, prompt, _ in rows],
                "text": [kept["text"] for _, kept, *_ in rows],
                "reward": [total for *_, total in rows],
                "advantage": [kept["advantage"] for _, kept, *_ in rows],
                "scores": [[kept.get(f"score {name}") for _, kept, *_ in rows] for name in self.scores],
                "extra": [[kept.get(f"extra {name}") for _, kept, *_ in rows] for name in self.extras],
            },
        }


def words(value: Any, roles: bool = False) -> str:
    """A string, or the words of a conversation; with ``roles`` each message under its speaker. Of anything else, nothing."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        said = words(value.get("content") if value.get("content") is not None else value.get("text"))
        speaker = value.get("role")
        return f"[{speaker}]\n{said}" if speaker and (roles or speaker != "assistant") else said
    if isinstance(value, list):
        return "\n\n".join(words(part, roles) for part in value)
    return ""


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """The text, or its two ends where it has more than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} …]\n{text[-half:]}"


def read_evaluations(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Scores that were written in the runs' directories (or a folder in them) or beside them: ``results*``, ``scores*``, ``eval*.json``.

    Returns:
        One entry a judged model: ``source``, ``label``, ``model`` and ``values``: by column ``[mean, low, high]``, the bounds ``None``
        where the file has one number. Lists of one number a problem get their 95 % interval.
    """
    own = [run.path.resolve() for run in runs]
    folders = [*own, *(path for folder in own for path in sorted(folder.iterdir()) if path.is_dir()), *(folder.parent for folder in own)]
    found: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys(folders):
        for path in (path for pattern in ("results*.json", "scores*.json", "eval*.json") for path in sorted(folder.glob(pattern))):
            try:
                content = json.loads(_text(path))
            except (OSError, ValueError, RecursionError) as error:
                runs[0].missing.append(("torn_file", {"file": path.name, "reason": first_line(error)}))
                continue
            for label, scores in _score_entries(content, path.stem.removeprefix("scores_")):
                values = _score_values(scores)
                judged_on = scores.get("judged_on")
                source = f"{path.name}: {judged_on}" if isinstance(judged_on, str) and judged_on else path.name
                entry = {"source": source, "label": label, "model": scores["model"], "values": values}
                if values:
                    # The same judgement stands in a pipeline's table and in the stage's own file.
                    found.setdefault(json.dumps([scores["model"], values]), entry)
    return list(found.values())


def _score_entries(content: Any, label: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping that says of which model it is, with the nearest name there is for it."""
    if depth > 4:
        return
    if isinstance(content, dict):
        label = content["label"] if isinstance(content.get("label"), str) else label
        if isinstance(content.get("model"), str):
            yield label, content
            return
        for key, value in content.items():
            yield from _score_entries(value, label if key in ("scores", "stages", "models") else str(key), depth + 1)
    elif isinstance(content, list):
        for value in content:
            name = value.get("model") if isinstance(value, dict) else None
            yield from _score_entries(value, Path(name).name if isinstance(name, str) else label, depth + 1)


def _score_values(scores: dict[str, Any]) -> dict[str, list[float | None]]:
    from r1_recipes.evaluate import mean_interval

    values: dict[str, list[float | None]] = {}
    for key, value in scores.items():
        if isinstance(value, list) and value and all(_is_number(item) for item in value):
            values[key] = [_finite(bound) for bound in mean_interval([float(item) for item in value])]
        elif isinstance(value, dict) and {"mean", "low", "high"} <= value.keys():
            values[key] = [_finite(value[bound]) for bound in ("mean", "low", "high")]
        elif isinstance(value, dict) and key == "pass_at":
            values |= {
                f"pass@{k}": [_finite(bound) for bound in found]
                for k, found in value.items()
                if isinstance(found, list) and len(found) == 3
            }
        elif isinstance(value, dict) and key == "rewards":
            judged = {name: [one for one in each if _is_number(one)] for name, each in value.items() if isinstance(each, list)}
            values |= {f"rewards/{name}": [_finite(statistics.fmean(each)), None, None] for name, each in judged.items() if each}
        elif _is_number(value):
            values[key] = [_finite(value), None, None]
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and _finite(value) is not None


def run_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart; a path that is given twice gets a number."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        names[i] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def build(run_dirs: Sequence[Path]) -> str:
    """The page, as HTML.

    Raises:
        RecipeError: a run directory is not there.
    """
    runs = [read_run(path, name) for path, name in zip(run_dirs, run_names(run_dirs), strict=True)]
    completions = read_completions(runs)
    total, packed, kept = _pack_completions(completions)
    data = {
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "version": importlib.metadata.version("r1-recipes"),
        "completions": {"total": total, "kept": kept},
        "evaluations": read_evaluations(runs),
    }
    data["runs"] = [_run_entry(run) for run in runs]  # last: what was missing is known by then
    return _page(data, packed)


def _run_entry(run: RunData) -> dict[str, Any]:
    steps = [step for points in run.series.values() for step, _ in points]
    curves = {key: _spread(points, MAX_POINTS / len(points)) for key, points in run.series.items()}
    longest = max(map(len, run.series.values()), default=0)
    if longest > MAX_POINTS:
        run.missing.append(("thinned", {"kept": MAX_POINTS, "points": longest}))
    return {
        "name": run.name,
        "path": str(run.path),
        **{key: value if isinstance(value := run.entry.get(key), str) else None for key in ("recipe", "method")},
        "finished": bool(run.entry.get("finished")),
        "steps": max(steps, default=None),
        "seconds": _seconds(run),
        "started": run.started,
        "settings": {str(key): _setting(value) for key, value in run.settings.items()},
        "versions": _strings(run.entry.get("versions")),
        "hardware": _strings(run.entry.get("hardware")),
        "series": {key: {"x": [step for step, _ in points], "y": [value for _, value in points]} for key, points in curves.items()},
        "flags": find_flags(run),
        "missing": [{"code": code, "values": values} for code, values in run.missing],
    }


def _seconds(run: RunData) -> float | None:
    """Of training, in all sessions: its steps' own time, else what each session that came to its end took."""
    steps = run.series.get("step_time")
    if steps:
        before = [0, *(step for step, _ in steps)]
        return sum(seconds * (step - last) for (step, seconds), last in zip(steps, before, strict=False) if seconds is not None)
    sessions = run.series.get("train_runtime")
    return sum(seconds for _, seconds in sessions if seconds is not None) if sessions else None


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return clip(value)
    try:
        return clip(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):  # YAML allows keys of any kind, and a list in itself
        return clip(str(value))


def _strings(value: Any) -> dict[str, str]:
    return {str(key): _setting(item) for key, item in value.items() if item is not None} if isinstance(value, dict) else {}


def _pack_completions(completions: dict[str, Any]) -> tuple[int, str, int]:
    """Rows there are, the packed columns, and rows among them; whole steps are left out evenly until they fit the page."""
    rows = completions["rows"]
    steps = sorted({(run, step or 0) for run, step in zip(rows["run"], rows["step"], strict=True)})
    share = 1.0
    while True:
        chosen = set(_spread(steps, share))
        keep = [i for i, place in enumerate(zip(rows["run"], rows["step"], strict=True)) if (place[0], place[1] or 0) in chosen]
        packed = _packed(_selected(completions, keep) if len(keep) < len(rows["run"]) else completions)
        if len(packed) <= MAX_COMPLETION_BYTES or len(chosen) <= 1:
            return completions["total"], packed, len(keep)
        share *= 0.95 * MAX_COMPLETION_BYTES / len(packed)


def _selected(completions: dict[str, Any], keep: list[int]) -> dict[str, Any]:
    rows = completions["rows"]
    chosen = {key: [rows[key][i] for i in keep] for key in ("run", "step", "text", "reward", "advantage")}
    chosen |= {key: [[column[i] for i in keep] for column in rows[key]] for key in ("scores", "extra")}
    prompts = {index: new for new, index in enumerate(dict.fromkeys(rows["prompt"][i] for i in keep))}
    chosen["prompt"] = [prompts[rows["prompt"][i]] for i in keep]
    return {**completions, "rows": chosen, "prompts": [completions["prompts"][index] for index in prompts]}


def _packed(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode("ascii")


def _embedded(value: Any) -> str:
    """JSON that no browser can read as the end of its script element, nor as the beginning of a comment or of another."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e")


def _page(data: dict[str, Any], packed: str) -> str:
    folder = resources.files("r1_recipes") / "report_assets"

    def asset(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    scripts = [asset(name) for name in ("d3.min.js", "plot.min.js", "early.js", "report.js")]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    policy = ["default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'", "form-action 'none'"]
    policy.append("script-src " + " ".join(f"'sha256-{digest}'" for digest in digests))
    parts = {
        "@policy@": "; ".join(policy),
        "@style@": asset("style.css"),
        "@strings@": _embedded(json.loads(asset("strings.json"))),
        "@data@": _embedded(data),
        "@packed@": packed,
        "@d3@": scripts[0],
        "@plot@": scripts[1],
        "@early@": scripts[2],
        "@report@": scripts[3],
        "@licences@": asset("LICENSES.txt"),
    }
    # One pass, so that a text in the data that looks like a placeholder stays what it is.
    return re.sub("|".join(parts), lambda match: parts[match[0]], asset("page.html"))


def write(run_dirs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page, whole or not at all.

    Args:
        run_dirs: at least one.
        output: ``None``: ``report.html`` in the first run's directory.

    Returns:
        Where it lies.

    Raises:
        RecipeError: a run directory is not there, or the page cannot be written.
    """
    output = output or run_dirs[0] / REPORT_FILE
    page = build(run_dirs)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        run_dir.write_whole(output, page)
    except OSError as error:
        raise RecipeError(f"{output}: the report cannot be written: {error.strerror}; choose another place (--output FILE)") from error
    return output


def refresh(*run_dirs: Path, output: Path | None = None) -> None:
    """:func:`write`, while a run trains or ends. Whatever goes wrong is logged: a page must not cost a run."""
    try:
        began = time.monotonic()
        path = write(run_dirs, output)
        logger.info("report: %s (%.1f s)", path, time.monotonic() - began)
    except Exception:
        logger.warning("no report was written", exc_info=True)


def callback(output_dir: Path) -> TrainerCallback:
    """A trainer callback that notes the hardware in ``run.json`` when training begins and refreshes the report with every save."""
    from transformers import TrainerCallback

    class Report(TrainerCallback):
        """Keeps ``report.html`` as new as the newest checkpoint."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                run_dir.note_hardware(output_dir, hardware() | {"processes": args.world_size})

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                refresh(output_dir)

    return Report()


def hardware() -> dict[str, Any]:
    """This machine in words: system, Python, processor cores, memory (GiB), accelerators with their memory (GiB)."""
    import psutil
    import torch

    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        found["accelerators"] = [f"{device.name}, {device.total_memory / 2**30:.0f} GiB" for device in devices]
        found["cuda"] = torch.version.cuda
    return found


def time_phases(trainer: Trainer) -> None:
    """Let a GRPO trainer log ``time/generation`` and ``time/rewards``, in seconds an optimizer step, beside TRL's ``step_time``.

    What remains of ``step_time`` is training: forward, backward, old and reference log probabilities.
    """
    from transformers import TrainerCallback

    spent = {"time/generation": 0.0, "time/rewards": 0.0}

    def timed(method: Callable, name: str) -> Callable:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                if trainer.model.training:
                    spent[name] += time.perf_counter() - began

        return call

    trainer._generate = timed(trainer._generate, "time/generation")
    trainer._calculate_rewards = timed(trainer._calculate_rewards, "time/rewards")

    class Phases(TrainerCallback):
        """Hands a step's seconds over to the metrics that TRL averages at the next log."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for name, seconds in spent.items():
                trainer._metrics["train"][name].append(seconds)
                spent[name] = 0.0

    trainer.add_callback(Phases())


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; see the module's first lines.

    Raises:
        SystemExit: 2 where a run directory is not there or the page cannot be written.
    """
    from r1_recipes import runtime

    parser = argparse.ArgumentParser(prog="python -m r1_recipes.report", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("run_dir", type=Path, nargs="+", help="output_dir of a run; several are overlaid")
    parser.add_argument("--output", type=Path, help=f"where the page goes (default: {REPORT_FILE} in the first run's directory)")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    with runtime.reported_errors():
        path = write(options.run_dir, options.output)
        runtime.say(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
