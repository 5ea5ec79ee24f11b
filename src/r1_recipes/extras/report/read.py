"""A run directory, which may be somebody else's (what is missing or torn is noted, never raised),
and what in it to look at first.
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
# MAX_WINDOW each; fewer points say nothing.
MIN_POINTS = 8
MAX_WINDOW = 20
# Raised by the means of a metric at the beginning and at the end.
_TRENDS = (
    ("length_explosion", "completions/mean_length", lambda before, after: after > 2 * before),
    ("length_collapse", "completions/mean_length", lambda before, after: 2 * after < before),
    ("entropy_collapse", "entropy", lambda before, after: after < before / 4),
)
_SATURATED = 0.99
# A log-probability's mean difference between trainer and engine that rounding does not explain.
_STALE = 0.1
# A rise of a reward's mean below this one is none.
_FLAT = 0.02
_SHAPE_REWARD = re.compile(r"format|tag_count|xml")
_MAX_TEXT_BYTES = 512 << 20  # of one file
_MAX_METRICS = 2_000
_SEVERITIES = ("bad", "warn", "info")


@dataclass
class RunData:
    name: str
    path: Path
    entry: dict[str, Any] = field(default_factory=dict)  # run.json
    settings: dict[str, Any] = field(
        default_factory=dict
    )  # recipe.yaml, with what later starts changed
    # For each metric the logged (step, value) pairs in order; a value is None if it was not finite.
    series: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    missing: list[dict[str, Any]] = field(
        default_factory=list
    )  # what could not be read, as `note` has it

    def note(self, code: str, **values: Any) -> None:
        """Say on the page what is missing; the code names the sentence in its table of strings."""
        self.missing.append({"code": code, "values": values})

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Note, in place of raising, that a file is not there or cannot be read."""
        try:
            yield
        except FileNotFoundError:
            self.note("no_file", file=name)
        except Exception as error:  # anything may be in somebody else's file
            self.note("torn_file", file=name, reason=first_line(error))

    def values(self, key: str) -> list[float]:
        return [value for _, value in self.series.get(key, ()) if value is not None]

    def trend(self, key: str) -> tuple[float, float, int] | None:
        """Means of a metric at the beginning and at the end, and the points in each; ``None`` if
        there are too few.
        """
        values = self.values(key)
        if len(values) < MIN_POINTS:
            return None
        window = min(len(values) // 4, MAX_WINDOW)
        return statistics.fmean(values[:window]), statistics.fmean(values[-window:]), window


def read_run(path: Path, name: str | None = None) -> RunData:
    """Read a run directory; one that is not there is a RecipeError."""
    if not path.is_dir():
        raise RecipeError(f"{path}: no such run directory; give the output_dir of a run")
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
        found = masked(parse(file_text(run.path / name, errors="replace")))
        if not isinstance(found, dict):
            raise TypeError(f"a mapping is expected, not {type(found).__name__}")
        return found
    return {}


def _read_metrics(run: RunData, text: str) -> None:
    points: dict[str, dict[int, float | None]] = {}
    bad, more = [], 0
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
                more += 1
                continue
            # A step that is there twice was logged again after a resume; the later line is the
            # run's.
            points.setdefault(key, {})[step] = finite(value)
    if bad:
        run.note("bad_lines", file="metrics.jsonl", count=len(bad), first=bad[0])
    if more:
        run.note("torn_file", file="metrics.jsonl", reason=f"more than {_MAX_METRICS} metrics")
    run.series = {key: sorted(values.items()) for key, values in points.items()}


def _logged_step(line: str) -> tuple[int, dict[str, Any]]:
    """Return a line's step and metrics; any error: it is no such line."""
    entry = json.loads(line)
    step = entry.pop("step")
    if type(step) is not int or not 0 <= step < 2**53:
        raise ValueError(step)
    return step, entry


def is_number(value: object) -> bool:
    """Whether this is a number, finite or not; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: Any) -> float | None:
    """A number with the six digits that a chart can show; ``None`` if it is no number, or too large
    to add some up.
    """
    return float(f"{value:.6g}") if is_number(value) and abs(value) < 1e100 else None


def strings(values: Any) -> dict[str, str]:
    """A mapping's values as the page shows them: texts, and JSON of anything else."""
    texts = {}
    for key, value in values.items() if isinstance(values, dict) else ():
        if value is not None:  # YAML has keys of any kind
            text = (
                value
                if isinstance(value, str)
                else json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
            )
            texts[str(key)] = clip(text)
    return texts


def read_evaluations(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Read the scores that ``evaluate`` and ``pipeline`` left in the runs' directories, in a folder
    in them, or beside them.

    Each judged model has ``source``, ``label``, ``model`` and ``values``: by column ``[mean, low,
    high]``, bounds ``None`` if unknown.
    """
    own = [run.path.resolve() for run in runs]
    places = [(folder, pattern) for folder in own for pattern in ("results.json", "*/results.json")]
    places += [(folder.parent, "results.json") for folder in own]
    found = []
    for path in dict.fromkeys(
        path for folder, pattern in places for path in sorted(folder.glob(pattern))
    ):
        with runs[0].reading(path.name):
            content = json.loads(file_text(path, _MAX_TEXT_BYTES, "replace"))
            if isinstance(content, list):  # of evaluate
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
                found.append(
                    {
                        "source": source,
                        "label": str(label),
                        "model": str(scores["model"]),
                        "values": dict(_values(scores)),
                    }
                )
    return found


def _values(scores: dict[str, Any]) -> Iterator[tuple[str, list[float | None]]]:
    rewards = {f"rewards/{name}": values for name, values in scores.get("rewards", {}).items()}
    for key, value in {**scores, **rewards}.items():
        if is_number(value):
            yield key, [finite(value), None, None]
        elif isinstance(value, list) and (judged := [one for one in value if is_number(one)]):
            yield key, [finite(bound) for bound in mean_interval(judged)]
    for k, interval in scores.get("pass_at", {}).items():
        yield f"pass@{k}", [finite(bound) for bound in interval]


def find_flags(run: RunData) -> list[dict[str, Any]]:
    """Return all flags of a run, the worst first; a code names the sentence in the page's table of
    strings.
    """
    rewards = [match[1] for key in run.series if (match := re.fullmatch(r"rewards/(.+)/mean", key))]
    found = itertools.chain(
        _of_metrics(run), *(_of_reward(run, name) for name in rewards), _of_answers(run, rewards)
    )
    return sorted(found, key=lambda one: _SEVERITIES.index(one["severity"]))


def flag(code: str, severity: str, **values: Any) -> dict[str, Any]:
    return {"code": code, "severity": severity, "values": values}


def _of_metrics(run: RunData) -> Iterator[dict[str, Any]]:
    for metric, points in run.series.items():
        if lost := [step for step, value in points if value is None]:
            yield flag("not_finite", "bad", metric=metric, count=len(lost), step=lost[0])
    for code, metric, raised in _TRENDS:
        trend = run.trend(metric)
        if (
            metric == "entropy" and "reward" not in run.series
        ):  # SFT learns its text: no policy to explore with
            continue
        if trend and raised(*trend[:2]):
            yield flag(code, "warn", before=trend[0], after=trend[1], points=trend[2])
    yield from _of_shares(run)
    yield from _of_engine(run)


def _of_shares(run: RunData) -> Iterator[dict[str, Any]]:
    """Flag cut completions, groups without spread and failing tools, where they are many."""
    cut, points = _share(run, "completions/clipped_ratio")
    if cut > 0.2:
        limit = strings(run.settings).get("max_completion_length", "–")
        yield flag("truncated", "bad", share=cut, points=points, limit=limit)
    still, points = _share(run, "frac_reward_zero_std")
    if still >= 0.5:
        yield flag("zero_std", _how_bad(still), share=still, points=points)
    failed, points = _share(run, "tools/failure_frequency")
    if failed >= 0.5:
        yield flag("tools_fail", _how_bad(failed), share=failed, points=points)


def _share(run: RunData, metric: str) -> tuple[float, int]:
    """Return the mean of a metric's latest values, 0 if there are none, and how many they are."""
    values = run.values(metric)[-MAX_WINDOW:]
    return (statistics.fmean(values) if values else 0.0), len(values)


def _how_bad(share: float) -> str:
    return "bad" if share > _SATURATED else "warn"


def _of_engine(run: RunData) -> Iterator[dict[str, Any]]:
    """Trainer and engine disagree about a token's probability, or the correction for that takes
    much of the weight away.
    """
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
        mode = settings.get("vllm_importance_sampling_mode", "sequence_mask")  # TRL's default
        # Below a half or above two is veRL's warning, docs/algo/rollout_corr.md.
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
    """The first of the rewards that judge answers falls, or does not move, or stays flat while the
    sum of all rises.
    """
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
    """The least change of a metric's mean over so many points that is one: twice the standard error
    of a difference of two means.
    """
    # Differences of neighbours leave the trend out; their variance is twice that of a point.
    variance = statistics.fmean((b - a) ** 2 for a, b in itertools.pairwise(run.values(key))) / 2
    return max(_FLAT, 2 * math.sqrt(2 * variance / points))
