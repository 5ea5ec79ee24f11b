"""What a person should look at first: one function per kind of flag, each with the numbers behind it."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterator
from typing import Any

from r1_recipes.report.read import MAX_WINDOW, MIN_POINTS, RunData, setting_text
from r1_recipes.rewards import answer_rewards

# What a flag takes. Each is shown with the numbers that it was raised for.
TRUNCATED_SHARE = 0.2
LENGTH_RATIO = 2.0
ENTROPY_RATIO = 0.25
SATURATED = 0.99
ZERO_STD_SHARE = 0.5
FLAT = 0.02
_SHAPE_REWARD = re.compile(r"format|tag_count|xml")
_SEVERITIES = ("bad", "warn", "info")

Flag = dict[str, Any]


def find_flags(run: RunData) -> list[Flag]:
    """All flags of a run, the worst first.

    Returns:
        ``{"code", "severity", "values"}``; the code names the sentence in the page's table of strings, severity is ``"bad"``, ``"warn"``
        or ``"info"``.
    """
    kinds = (_not_finite, _dead_rewards, _reward_not_accuracy, _length, _truncated, _entropy, _saturated_format, _zero_std)
    found = [one for kind in kinds for one in kind(run)]
    return sorted(found, key=lambda one: _SEVERITIES.index(one["severity"]))


def flag(code: str, severity: str, **values: Any) -> Flag:
    return {"code": code, "severity": severity, "values": values}


def _not_finite(run: RunData) -> Iterator[Flag]:
    for metric, points in run.series.items():
        lost = [step for step, value in points if value is None]
        if lost:
            yield flag("not_finite", "bad", metric=metric, count=len(lost), step=lost[0])


def _dead_rewards(run: RunData) -> Iterator[Flag]:
    for name in _rewards(run):
        values, spread = run.values(f"rewards/{name}/mean"), run.values(f"rewards/{name}/std")
        if len(values) >= MIN_POINTS and not any(values):
            yield flag("reward_zero", "bad", reward=name, points=len(values))
        elif len(spread) >= MIN_POINTS and not any(spread):
            yield flag("reward_constant", "warn", reward=name, value=values[-1] if values else None, points=len(spread))


def _reward_not_accuracy(run: RunData) -> Iterator[Flag]:
    """The reward rises, and the first of the rewards that judge answers does not."""
    rewards, named = _rewards(run), run.settings.get("reward_funcs")
    judges = [str(name).rpartition(":")[2] for name in answer_rewards(named if isinstance(named, list) else rewards)]
    name = next((name for name in judges if name in rewards), None)
    total, answers = run.trend("reward"), run.trend(f"rewards/{name}/mean")
    if not name or not total or not answers:
        return
    (before, after, points), (answer_before, answer_after, _) = total, answers
    if after - before > max(FLAT, _noise(run, "reward", points)) and answer_after - answer_before < FLAT:
        answer = {"answer_before": answer_before, "answer_after": answer_after}
        yield flag("reward_not_accuracy", "bad", reward=name, points=points, before=before, after=after, **answer)


def _length(run: RunData) -> Iterator[Flag]:
    if length := run.trend("completions/mean_length"):
        before, after, points = length
        if after > LENGTH_RATIO * before:
            yield flag("length_explosion", "warn", before=before, after=after, points=points)
        elif after * LENGTH_RATIO < before:
            yield flag("length_collapse", "warn", before=before, after=after, points=points)


def _truncated(run: RunData) -> Iterator[Flag]:
    cut = run.values("completions/clipped_ratio")[-MAX_WINDOW:]
    if cut and (share := statistics.fmean(cut)) > TRUNCATED_SHARE:
        yield flag("truncated", "bad", share=share, points=len(cut), limit=setting_text(run.settings.get("max_completion_length")))


def _entropy(run: RunData) -> Iterator[Flag]:
    entropy = run.trend("entropy")
    if entropy and entropy[1] < ENTROPY_RATIO * entropy[0] and "reward" in run.series:
        yield flag("entropy_collapse", "warn", before=entropy[0], after=entropy[1], points=entropy[2])


def _saturated_format(run: RunData) -> Iterator[Flag]:
    for name in filter(_SHAPE_REWARD.search, _rewards(run)):
        shape = run.trend(f"rewards/{name}/mean")
        if shape and shape[1] >= SATURATED:
            yield flag("format_saturated", "info", reward=name, value=shape[1], points=shape[2])


def _zero_std(run: RunData) -> Iterator[Flag]:
    still = run.values("frac_reward_zero_std")[-MAX_WINDOW:]
    if still and (share := statistics.fmean(still)) >= ZERO_STD_SHARE:
        yield flag("zero_std", "bad" if share > SATURATED else "warn", share=share, points=len(still))


def _rewards(run: RunData) -> list[str]:
    return [match[1] for key in run.series if (match := re.fullmatch(r"rewards/(.+)/mean", key))]


def _noise(run: RunData, key: str, window: int) -> float:
    """Twice the standard error of a difference of two means over ``window`` points of this metric."""
    # Differences of neighbours leave the trend out; their variance is twice that of a point.
    variance = statistics.fmean((b - a) ** 2 for a, b in itertools.pairwise(run.values(key))) / 2
    return 2 * math.sqrt(2 * variance / window)
