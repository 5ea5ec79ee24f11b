"""What a person should look at first, each with the number behind it."""

from __future__ import annotations

import itertools
import math
import re
import statistics
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
        flag(
            "truncated", "bad", share=statistics.fmean(cut), points=len(cut), limit=setting_text(run.settings.get("max_completion_length"))
        )
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
