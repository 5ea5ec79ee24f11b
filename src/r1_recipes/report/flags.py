"""What a person should look at first, each with the numbers behind it."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterator
from typing import Any

from r1_recipes.report.read import MAX_WINDOW, MIN_POINTS, RunData, strings
from r1_recipes.rewards import answer_rewards

# Raised by the means of a metric at the beginning and at the end.
_TRENDS = (
    ("length_explosion", "completions/mean_length", lambda before, after: after > 2 * before),
    ("length_collapse", "completions/mean_length", lambda before, after: 2 * after < before),
    ("entropy_collapse", "entropy", lambda before, after: after < before / 4),
)
_SATURATED = 0.99
# A rise of a reward's mean below this one is none.
_FLAT = 0.02
_SHAPE_REWARD = re.compile(r"format|tag_count|xml")
_SEVERITIES = ("bad", "warn", "info")


def find_flags(run: RunData) -> list[dict[str, Any]]:
    """Return all flags of a run, the worst first; a code names the sentence in the page's table of strings."""
    rewards = [match[1] for key in run.series if (match := re.fullmatch(r"rewards/(.+)/mean", key))]
    found = itertools.chain(_of_metrics(run), *(_of_reward(run, name) for name in rewards), _reward_not_accuracy(run, rewards))
    return sorted(found, key=lambda one: _SEVERITIES.index(one["severity"]))


def flag(code: str, severity: str, **values: Any) -> dict[str, Any]:
    return {"code": code, "severity": severity, "values": values}


def _of_metrics(run: RunData) -> Iterator[dict[str, Any]]:
    for metric, points in run.series.items():
        if lost := [step for step, value in points if value is None]:
            yield flag("not_finite", "bad", metric=metric, count=len(lost), step=lost[0])
    for code, metric, raised in _TRENDS:
        trend = run.trend(metric)
        if metric == "entropy" and "reward" not in run.series:  # SFT learns its text: no policy to explore with
            continue
        if trend and raised(*trend[:2]):
            yield flag(code, "warn", before=trend[0], after=trend[1], points=trend[2])
    cut, still = (run.values(key)[-MAX_WINDOW:] for key in ("completions/clipped_ratio", "frac_reward_zero_std"))
    if cut and (share := statistics.fmean(cut)) > 0.2:
        yield flag("truncated", "bad", share=share, points=len(cut), limit=strings(run.settings).get("max_completion_length", "–"))
    if still and (share := statistics.fmean(still)) >= 0.5:
        yield flag("zero_std", "bad" if share > _SATURATED else "warn", share=share, points=len(still))


def _of_reward(run: RunData, name: str) -> Iterator[dict[str, Any]]:
    values, deviations = run.values(f"rewards/{name}/mean"), run.values(f"rewards/{name}/std")
    if len(values) >= MIN_POINTS and not any(values):
        yield flag("reward_zero", "bad", reward=name, points=len(values))
    elif len(deviations) >= MIN_POINTS and not any(deviations):
        yield flag("reward_constant", "warn", reward=name, value=values[-1] if values else None, points=len(deviations))
    trend = run.trend(f"rewards/{name}/mean")
    if trend and trend[1] >= _SATURATED and _SHAPE_REWARD.search(name):
        yield flag("format_saturated", "info", reward=name, value=trend[1], points=trend[2])


def _reward_not_accuracy(run: RunData, rewards: list[str]) -> Iterator[dict[str, Any]]:
    """The reward rises, and the first of the rewards that judge answers does not."""
    named = run.settings.get("reward_funcs")
    judges = [name.rpartition(":")[2] for name in answer_rewards(map(str, named if isinstance(named, list) else rewards))]
    name = next((name for name in judges if name in rewards), None)
    total, answers = run.trend("reward"), run.trend(f"rewards/{name}/mean")
    if not total or not answers:
        return
    (before, after, points), (answer_before, answer_after, _) = total, answers
    # Differences of neighbours leave the trend out; their variance is twice that of a point.
    variance = statistics.fmean((b - a) ** 2 for a, b in itertools.pairwise(run.values("reward"))) / 2
    noise = 2 * math.sqrt(2 * variance / points)  # twice the standard error of a difference of two means
    if after - before > max(_FLAT, noise) and answer_after - answer_before < _FLAT:
        answer = {"answer_before": answer_before, "answer_after": answer_after}
        yield flag("reward_not_accuracy", "bad", reward=name, points=points, before=before, after=after, **answer)
