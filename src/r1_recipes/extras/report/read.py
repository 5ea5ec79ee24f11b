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
from typing import Any

from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import file_text
from r1_recipes.common.masking import masked
from r1_recipes.common.messages import clip
from r1_recipes.common.yaml_text import parse_yaml
from r1_recipes.metrics.intervals import mean_interval
from r1_recipes.rewards import answer_rewards

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
_SATURATED = 0.99
# A mean difference of log-probabilities between trainer and engine that rounding cannot explain.
_STALE = 0.1
# A smaller rise of a mean reward counts as flat.
_FLAT = 0.02
_SHAPE_REWARD = re.compile(r"format|tag_count|xml")
_MAX_TEXT_BYTES = 512 << 20  # The limit for a file.
_MAX_METRICS = 2_000
_SEVERITIES = ("bad", "warn", "info")


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
    entry: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    missing: list[dict[str, Any]] = field(default_factory=list)

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

    def trend(self, key: str) -> tuple[float, float, int] | None:
        """Return the means of a metric at the beginning and at the end, and the points in each.

        Return ``None`` if there are too few points.
        """
        values = self.values(key)
        if len(values) < MIN_POINTS:
            return None
        window = min(len(values) // 4, MAX_WINDOW)
        return statistics.fmean(values[:window]), statistics.fmean(values[-window:]), window


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


def _mapping(run: RunData, name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    with run.reading(name):
        content = masked(parse(file_text(run.path / name, errors="replace")))
        if not isinstance(content, dict):
            raise TypeError(f"must be a mapping, not {type(content).__name__}")
        return content
    return {}


def _read_metrics(run: RunData, text: str) -> None:
    points: dict[str, dict[int, float | None]] = {}
    bad, surplus = [], 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            step, entry = _logged_step(line)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            bad.append(number)
            continue
        numbers = {key: value for key, value in entry.items() if is_number(value)}
        for key, value in numbers.items():
            if key not in points and len(points) == _MAX_METRICS:
                surplus += 1
                continue
            # A resumed run logs some steps again. The later line counts.
            points.setdefault(key, {})[step] = finite(value)
    if bad:
        run.note("bad_lines", file="metrics.jsonl", count=len(bad), first=bad[0])
    if surplus:
        run.note("torn_file", file="metrics.jsonl", reason=f"has more than {_MAX_METRICS} metrics")
    run.series = {key: sorted(values.items()) for key, values in points.items()}


def _logged_step(line: str) -> tuple[int, dict[str, Any]]:
    """Return the step and the metrics of a line. Raise any error if the line is damaged."""
    entry = json.loads(line)
    step = entry.pop("step")
    if type(step) is not int or not 0 <= step < 2**53:
        raise ValueError(step)
    return step, entry


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
    texts = {}
    for key, value in values.items() if isinstance(values, dict) else ():
        if value is not None:  # YAML keys may have any type.
            text = (
                value
                if isinstance(value, str)
                else json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
            )
            texts[str(key)] = clip(text)
    return texts


def read_evaluations(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return the scores that ``evaluate`` and ``pipeline`` wrote in or beside the run directories.

    Each entry has ``source``, ``label``, ``model`` and ``values``. ``values`` maps each column to
    ``[mean, low, high]``. Unknown bounds are ``None``.
    """
    folders = [run.path.resolve() for run in runs]
    places = [
        (folder, pattern) for folder in folders for pattern in ("results.json", "*/results.json")
    ]
    places += [(folder.parent, "results.json") for folder in folders]
    evaluations = []
    for path in dict.fromkeys(
        path for folder, pattern in places for path in sorted(folder.glob(pattern))
    ):
        with runs[0].reading(path.name):
            content = json.loads(file_text(path, _MAX_TEXT_BYTES, "replace"))
            if isinstance(content, list):  # Written by evaluate.
                judged = [(Path(scores["model"]).name, scores) for scores in content]
            else:
                judged = [
                    (stage["label"], stage["scores"])
                    for stage in content["stages"].values()
                    if stage["scores"]
                ]
            for label, scores in judged:
                source = (
                    f"{path.name}: {scores['judged_on']}" if scores.get("judged_on") else path.name
                )
                evaluations.append(
                    {
                        "source": source,
                        "label": str(label),
                        "model": str(scores["model"]),
                        "values": dict(_values(scores)),
                    }
                )
    return evaluations


def _values(scores: dict[str, Any]) -> Iterator[tuple[str, list[float | None]]]:
    rewards = {f"rewards/{name}": values for name, values in scores.get("rewards", {}).items()}
    for key, value in {**scores, **rewards}.items():
        if is_number(value):
            yield key, [finite(value), None, None]
        elif isinstance(value, list) and (judged := [item for item in value if is_number(item)]):
            yield key, [finite(bound) for bound in mean_interval(judged)]
    for k, interval in scores.get("pass_at", {}).items():
        yield f"pass@{k}", [finite(bound) for bound in interval]


def find_flags(run: RunData) -> list[dict[str, Any]]:
    """Return the flags of a run, the worst first. A code names a sentence in strings.json."""
    rewards = [match[1] for key in run.series if (match := re.fullmatch(r"rewards/(.+)/mean", key))]
    flags = itertools.chain(
        _of_metrics(run), *(_of_reward(run, name) for name in rewards), _of_answers(run, rewards)
    )
    return sorted(flags, key=lambda entry: _SEVERITIES.index(entry["severity"]))


def flag(code: str, severity: str, **values: Any) -> dict[str, Any]:
    """Return a flag with the values of its sentence."""
    return {"code": code, "severity": severity, "values": values}


def _of_metrics(run: RunData) -> Iterator[dict[str, Any]]:
    for metric, points in run.series.items():
        if lost := [step for step, value in points if value is None]:
            yield flag("not_finite", "bad", metric=metric, count=len(lost), step=lost[0])
    for code, metric, raised in _TRENDS:
        trend = run.trend(metric)
        # A falling entropy is expected in SFT, which does not explore.
        if metric == "entropy" and "reward" not in run.series:
            continue
        if trend and raised(*trend[:2]):
            yield flag(code, "warn", before=trend[0], after=trend[1], points=trend[2])
    yield from _of_shares(run)
    yield from _of_engine(run)


def _of_shares(run: RunData) -> Iterator[dict[str, Any]]:
    """Yield flags for many cut completions, groups without spread, or failing tools."""
    cut, points = _share(run, "completions/clipped_ratio")
    if cut > 0.2:
        limit = strings(run.settings).get("max_completion_length", "–")
        yield flag("truncated", "bad", share=cut, points=points, limit=limit)
    flat, points = _share(run, "frac_reward_zero_std")
    if flat >= 0.5:
        yield flag("zero_std", _severity(flat), share=flat, points=points)
    failed, points = _share(run, "tools/failure_frequency")
    if failed >= 0.5:
        yield flag("tools_fail", _severity(failed), share=failed, points=points)


def _share(run: RunData, metric: str) -> tuple[float, int]:
    """Return the mean of the latest values of a metric (0 without values), and their number."""
    values = run.values(metric)[-MAX_WINDOW:]
    return (statistics.fmean(values) if values else 0.0), len(values)


def _severity(share: float) -> str:
    return "bad" if share > _SATURATED else "warn"


def _of_engine(run: RunData) -> Iterator[dict[str, Any]]:
    """Yield flags if trainer and engine disagree, or if the correction for that is large."""
    names = (
        "sampling_logp_difference/mean",
        "sampling_logp_difference/max",
        "importance_sampling_ratio/mean",
    )
    gaps, worst, weights = (run.values(f"sampling/{name}")[-MAX_WINDOW:] for name in names)
    settings = strings(run.settings)
    if gaps and (mean := statistics.fmean(gaps)) > 0.05:
        severity = "warn" if mean < _STALE else "bad"
        yield flag(
            "engine_gap",
            severity,
            mean=mean,
            most=max(worst, default=None),
            points=len(gaps),
            dtype=settings.get("dtype", "–"),
        )
    if weights and not 0.9 <= (mean := statistics.fmean(weights)) <= 1.1:
        mode = settings.get("vllm_importance_sampling_mode", "sequence_mask")  # The default of TRL.
        # veRL warns below 0.5 and above 2 (docs/algo/rollout_corr.md).
        yield flag(
            "engine_weight",
            "warn" if 0.5 <= mean <= 2 else "bad",
            mean=mean,
            points=len(weights),
            mode=mode,
        )


def _of_reward(run: RunData, name: str) -> Iterator[dict[str, Any]]:
    values, deviations = run.values(f"rewards/{name}/mean"), run.values(f"rewards/{name}/std")
    if len(values) >= MIN_POINTS and not any(values):
        yield flag("reward_zero", "bad", reward=name, points=len(values))
    elif len(deviations) >= MIN_POINTS and not any(deviations):
        yield flag(
            "reward_constant",
            "warn",
            reward=name,
            value=values[-1] if values else None,
            points=len(deviations),
        )
    trend = run.trend(f"rewards/{name}/mean")
    if trend and trend[1] >= _SATURATED and _SHAPE_REWARD.search(name):
        yield flag("format_saturated", "info", reward=name, value=trend[1], points=trend[2])


def _of_answers(run: RunData, rewards: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a flag if the reward for answers falls, or is flat while the total reward may rise."""
    named, served = run.settings.get("reward_funcs"), strings(run.settings.get("reward_models"))
    names = [
        str(name)
        for name in (named if isinstance(named, list) else rewards)
        if str(name) not in served
    ]
    judges = [name.rpartition(":")[2] for name in answer_rewards(names)]
    name = next((name for name in judges if name in rewards), None)
    total, answers = run.trend("reward"), run.trend(f"rewards/{name}/mean")
    if not total or not answers:
        return
    (before, after, points), (answer_before, answer_after, _) = total, answers
    noise, gained = _noise(run, f"rewards/{name}/mean", points), answer_after - answer_before
    if -gained > noise:
        yield flag(
            "accuracy_falls",
            "bad",
            reward=name,
            points=points,
            before=answer_before,
            after=answer_after,
        )
    elif after - before > _noise(run, "reward", points) and gained < _FLAT:
        answer = {"answer_before": answer_before, "answer_after": answer_after}
        yield flag(
            "reward_not_accuracy",
            "bad",
            reward=name,
            points=points,
            before=before,
            after=after,
            **answer,
        )
    elif (
        len(run.values(f"rewards/{name}/mean")) >= MAX_WINDOW
        and gained <= noise
        and 0 < answer_after < _SATURATED
    ):
        yield flag(
            "accuracy_flat",
            "warn",
            reward=name,
            points=points,
            before=answer_before,
            after=answer_after,
        )


def _noise(run: RunData, key: str, points: int) -> float:
    """Return the smallest change that is not noise.

    This is twice the standard error of the difference between two means of ``points`` values.
    """
    # Differences of neighbours exclude the trend. Their variance is twice that of a point.
    variance = statistics.fmean((b - a) ** 2 for a, b in itertools.pairwise(run.values(key))) / 2
    return max(_FLAT, 2 * math.sqrt(2 * variance / points))
