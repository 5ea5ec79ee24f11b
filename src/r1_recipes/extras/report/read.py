"""Read a run directory, and find what to look at first.

The directory is not trusted. Missing and damaged files are noted on the page instead of raised.
"""

import contextlib
import itertools
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import file_text
from r1_recipes.common.masking import masked
from r1_recipes.common.messages import clip
from r1_recipes.common.yaml_text import parse_yaml
from r1_recipes.metrics.intervals import mean_interval
from r1_recipes.rewards import answer_rewards

JsonObject = dict[str, Any]

# A trend compares the means of the first and the last quarter of the logged steps, at most
# MAX_WINDOW steps each. With fewer points there is no trend.
MIN_POINTS = 8
MAX_WINDOW = 20
# Flags that depend on the means of a metric at the beginning and at the end.
_TRENDS = (
    ("length_explosion", "completions/mean_length", lambda before, after: after > 2 * before),
    ("length_collapse", "completions/mean_length", lambda before, after: 2 * after < before),
    ("entropy_collapse", "entropy", lambda before, after: after < before / 4),
)
# Flags for shares that are high in the latest steps.
_SHARES = (("zero_std", "frac_reward_zero_std"), ("tools_fail", "tools/failure_frequency"))
_SATURATED = 0.99
# A mean difference of log-probabilities between trainer and engine that rounding cannot explain.
_STALE = 0.1
# A smaller rise of a mean reward counts as flat.
_FLAT = 0.02
_SHAPE_REWARD = re.compile(r"format|tag_count|xml")
_MAX_TEXT_BYTES = 512 << 20  # The limit for a file.
_MAX_METRICS = 2_000
_SEVERITIES = ("bad", "warn", "info")


class Trend(NamedTuple):
    """The means of a metric at the beginning and at the end, and the points in each."""

    before: float
    after: float
    points: int


@dataclass
class RunData:
    """The content of a run directory.

    Attributes:
        name: The name of the run on the page.
        path: The run directory.
        entry: The content of run.json.
        settings: The content of recipe.yaml, with the changes of later starts.
        series: The logged (step, value) pairs of each metric, in order. A value that is not finite
            is ``None``.
        missing: The notes about files that could not be read.
    """

    name: str
    path: Path
    entry: JsonObject = field(default_factory=dict)
    settings: JsonObject = field(default_factory=dict)
    series: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    missing: list[JsonObject] = field(default_factory=list)

    def note(self, code: str, **values: Any) -> None:
        """Add a note about a missing file. ``code`` names a sentence in strings.json."""
        self.missing.append({"code": code, "values": values})

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Add a note instead of raising if a file is missing or cannot be read."""
        try:
            yield
        except FileNotFoundError:
            self.note("no_file", file=name)
        except Exception as error:  # An untrusted file may contain anything.
            self.note("torn_file", file=name, reason=first_line(error))

    def values(self, key: str) -> list[float]:
        """Return the finite values of a metric."""
        return [value for _, value in self.series.get(key, ()) if value is not None]

    def latest(self, key: str) -> list[float]:
        """Return the latest finite values of a metric."""
        return self.values(key)[-MAX_WINDOW:]

    def numbers(self, key: str) -> list[float]:
        """Return a metric's means at the beginning and the end, its least and its largest value.

        Too few points for a trend begin and end with a single value. The list is empty if no value
        is finite.
        """
        values = self.values(key)
        if not values:
            return []
        trend = self.trend(key) or Trend(values[0], values[-1], 1)
        return [trend.before, trend.after, min(values), max(values)]

    def trend(self, key: str) -> Trend | None:
        """Return the trend of a metric, or ``None`` if there are too few points."""
        values = self.values(key)
        if len(values) < MIN_POINTS:
            return None
        window = min(len(values) // 4, MAX_WINDOW)
        before = statistics.fmean(values[:window])
        after = statistics.fmean(values[-window:])
        return Trend(before, after, window)


def read_run(path: Path, name: str | None = None) -> RunData:
    """Read a run directory. Raise a RecipeError if it does not exist."""
    if not path.is_dir():
        raise RecipeError(f"{path}: no such run directory. Fix: name the output_dir of a run")
    run = RunData(name or path.resolve().name, path)
    run.entry = _mapping(run, "run.json", json.loads)
    run.settings = _mapping(run, "recipe.yaml", lambda text: parse_yaml(text, "recipe.yaml"))
    with run.reading("run.json"):
        for start in run.entry.get("continued", ()):
            run.settings |= start["settings"]
    with run.reading("metrics.jsonl"):
        _read_metrics(run, file_text(path / "metrics.jsonl", _MAX_TEXT_BYTES, "replace"))
    return run


def _mapping(run: RunData, name: str, parse: Callable[[str], Any]) -> JsonObject:
    with run.reading(name):
        content = masked(parse(file_text(run.path / name, errors="replace")))
        if not isinstance(content, dict):
            raise TypeError(f"must be a mapping, not {type(content).__name__}")
        return content
    return {}


def _read_metrics(run: RunData, text: str) -> None:
    points: dict[str, dict[int, float | None]] = {}
    bad, surplus = [], False
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            step, numbers = _logged_step(line)
        except Exception:  # An untrusted line may contain anything.
            bad.append(number)
            continue
        for key, value in numbers.items():
            if key in points or len(points) < _MAX_METRICS:
                # A resumed run logs some steps again. The later line counts.
                points.setdefault(key, {})[step] = finite(value)
            else:
                surplus = True
    if bad:
        run.note("bad_lines", file="metrics.jsonl", count=len(bad), first=bad[0])
    if surplus:
        run.note("torn_file", file="metrics.jsonl", reason=f"has more than {_MAX_METRICS} metrics")
    run.series = {key: sorted(values.items()) for key, values in points.items()}


def _logged_step(line: str) -> tuple[int, JsonObject]:
    """Return the step and the metrics of a line. Raise any error if the line is damaged."""
    entry = json.loads(line)
    step = entry.pop("step")
    if type(step) is not int or not 0 <= step < 2**53:
        raise ValueError(step)
    return step, {key: value for key, value in entry.items() if is_number(value)}


def is_number(value: object) -> bool:
    """Return whether a value is a number, finite or not. A bool is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: Any) -> float | None:
    """Return a number with six digits, which is enough for a chart.

    Return ``None`` if the value is not a number, or too large to sum.
    """
    return float(f"{value:.6g}") if is_number(value) and abs(value) < 1e100 else None


def strings(values: Any) -> dict[str, str]:
    """Return the values of a mapping as text for the page. Values other than text become JSON."""
    if not isinstance(values, dict):
        return {}
    texts = {}
    for key, value in values.items():
        if value is None:
            continue
        text = value
        if not isinstance(text, str):
            text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
        texts[str(key)] = clip(text)  # YAML keys may have any type.
    return texts


def read_evaluations(runs: Sequence[RunData]) -> list[JsonObject]:
    """Return the scores that ``evaluate`` and ``pipeline`` wrote in or beside the run directories.

    Each entry has ``source``, ``label``, ``model`` and ``values``. ``values`` maps each column to
    ``[mean, low, high]``. Unknown bounds are ``None``.
    """
    paths: list[Path] = []
    folders = [run.path.resolve() for run in runs]
    for folder in folders:
        paths += folder.glob("results.json")
        paths += sorted(folder.glob("*/results.json"))
    for folder in folders:
        paths += folder.parent.glob("results.json")
    evaluations = []
    for path in dict.fromkeys(paths):
        with runs[0].reading(path.name):
            content = json.loads(file_text(path, _MAX_TEXT_BYTES, "replace"))
            if isinstance(content, list):  # Written by evaluate.
                labelled = [(Path(scores["model"]).name, scores) for scores in content]
            else:
                stages = [stage for stage in content["stages"].values() if stage["scores"]]
                labelled = [(stage["label"], stage["scores"]) for stage in stages]
            for label, scores in labelled:
                source = path.name
                if scores.get("judged_on"):
                    source += f": {scores['judged_on']}"
                entry = {"source": source, "label": str(label), "model": str(scores["model"])}
                evaluations.append({**entry, "values": dict(_values(scores))})
    return evaluations


def _values(scores: JsonObject) -> Iterator[tuple[str, list[float | None]]]:
    columns = dict(scores)
    for name, values in scores.get("rewards", {}).items():
        columns[f"rewards/{name}"] = values
    for key, value in columns.items():
        if is_number(value):
            yield key, [finite(value), None, None]
        elif isinstance(value, list):
            numbers = [item for item in value if is_number(item)]
            if numbers:
                yield key, list(map(finite, mean_interval(numbers)))
    for k, interval in scores.get("pass_at", {}).items():
        yield f"pass@{k}", list(map(finite, interval))


def reward_names(run: RunData) -> list[str]:
    """Return the names under which a run logged its rewards."""
    matches = (re.fullmatch(r"rewards/(.+)/mean", key) for key in run.series)
    return [match[1] for match in matches if match]


def find_flags(run: RunData) -> list[JsonObject]:
    """Return the flags of a run, the worst first. A code names a sentence in strings.json."""
    flags = [*_of_metrics(run)]
    rewards = reward_names(run)
    for name in rewards:
        flags += _of_reward(run, name)
    flags += _of_answers(run, rewards)
    return sorted(flags, key=lambda entry: _SEVERITIES.index(entry["severity"]))


def flag(code: str, severity: str, **values: Any) -> JsonObject:
    """Return a flag with the values of its sentence."""
    return {"code": code, "severity": severity, "values": values}


def _of_metrics(run: RunData) -> Iterator[JsonObject]:
    for metric, points in run.series.items():
        lost = [step for step, value in points if value is None]
        if lost:
            yield flag("not_finite", "bad", metric=metric, count=len(lost), step=lost[0])
    for code, metric, raised in _TRENDS:
        trend = run.trend(metric)
        # A falling entropy is expected in SFT, which does not explore.
        expected = metric == "entropy" and "reward" not in run.series
        if trend and not expected and raised(trend.before, trend.after):
            yield flag(code, "warn", **trend._asdict())
    yield from _of_shares(run)
    yield from _of_engine(run)


def _of_shares(run: RunData) -> Iterator[JsonObject]:
    """Yield flags for many cut completions, groups without spread, or failing tools."""
    limit = strings(run.settings).get("max_completion_length", "–")
    shares = run.latest("completions/clipped_ratio")
    share = _mean(shares)
    if share > 0.2:
        yield flag("truncated", "bad", share=share, points=len(shares), limit=limit)
    for code, metric in _SHARES:
        shares = run.latest(metric)
        share = _mean(shares)
        if share >= 0.5:
            severity = "bad" if share > _SATURATED else "warn"
            yield flag(code, severity, share=share, points=len(shares))


def _mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _of_engine(run: RunData) -> Iterator[JsonObject]:
    """Yield flags if trainer and engine disagree, or if the correction for that is large."""
    gaps = run.latest("sampling/sampling_logp_difference/mean")
    mean = _mean(gaps)
    settings = strings(run.settings)
    if mean > 0.05:
        most = max(run.latest("sampling/sampling_logp_difference/max"), default=None)
        severity = "warn" if mean < _STALE else "bad"
        dtype = settings.get("dtype", "–")
        yield flag("engine_gap", severity, mean=mean, most=most, points=len(gaps), dtype=dtype)
    weights = run.latest("sampling/importance_sampling_ratio/mean")
    mean = _mean(weights)
    if weights and not 0.9 <= mean <= 1.1:
        mode = settings.get("vllm_importance_sampling_mode", "sequence_mask")  # The default of TRL.
        # veRL warns below 0.5 and above 2 (docs/algo/rollout_corr.md).
        severity = "warn" if 0.5 <= mean <= 2 else "bad"
        yield flag("engine_weight", severity, mean=mean, points=len(weights), mode=mode)


def _of_reward(run: RunData, name: str) -> Iterator[JsonObject]:
    values = run.values(f"rewards/{name}/mean")
    deviations = run.values(f"rewards/{name}/std")
    if len(values) >= MIN_POINTS and not any(values):
        yield flag("reward_zero", "bad", reward=name, points=len(values))
    elif len(deviations) >= MIN_POINTS and not any(deviations):
        value = values[-1] if values else None
        yield flag("reward_constant", "warn", reward=name, value=value, points=len(deviations))
    trend = run.trend(f"rewards/{name}/mean")
    if trend and trend.after >= _SATURATED and _SHAPE_REWARD.search(name):
        yield flag("format_saturated", "info", reward=name, value=trend.after, points=trend.points)


def _of_answers(run: RunData, rewards: list[str]) -> Iterator[JsonObject]:
    """Yield a flag if the reward for answers falls, or is flat while the total reward may rise."""
    named, served = run.settings.get("reward_funcs"), strings(run.settings.get("reward_models"))
    names = map(str, named if isinstance(named, list) else rewards)
    judges = answer_rewards([name for name in names if name not in served])
    logged = [name.rpartition(":")[2] for name in judges]
    name = next((name for name in logged if name in rewards), None)
    key = f"rewards/{name}/mean"
    total, answers = run.trend("reward"), run.trend(key)
    if not total or not answers:
        return
    noise = _noise(run, key, total.points)
    gained = answers.after - answers.before
    means = {"reward": name, **answers._asdict(), "points": total.points}
    if -gained > noise:
        yield flag("accuracy_falls", "bad", **means)
    elif total.after - total.before > _noise(run, "reward", total.points) and gained < _FLAT:
        means |= {"answer_before": answers.before, "answer_after": answers.after}
        means |= total._asdict()
        yield flag("reward_not_accuracy", "bad", **means)
    elif gained <= noise and 0 < answers.after < _SATURATED and len(run.values(key)) >= MAX_WINDOW:
        yield flag("accuracy_flat", "warn", **means)


def _noise(run: RunData, key: str, points: int) -> float:
    """Return the smallest change that is not noise.

    This is twice the standard error of the difference between two means of ``points`` values.
    """
    # Differences of neighbours exclude the trend. Their variance is twice that of a point.
    variance = statistics.fmean((b - a) ** 2 for a, b in itertools.pairwise(run.values(key))) / 2
    return max(_FLAT, 2 * math.sqrt(2 * variance / points))
