"""What is flagged in a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from r1_recipes.extras.report.read import find_flags, read_run
from tests.support.report_runs import ramp, write_run


@pytest.mark.parametrize(
    ("rewards", "judge"),
    [
        ("[format, exact_match]", "exact_match"),
        ("[format, my_module:points]", "points"),
        ("[tag_count, countdown, accuracy]", "accuracy"),
    ],
)
def test_the_accuracy_of_a_run_is_that_of_its_first_reward_that_judges(
    tmp_path: Path, rewards: str, judge: str
) -> None:
    names = ["format", "tag_count", "exact_match", "points", "countdown", "accuracy"]
    flat = {f"rewards/{name}/mean": ramp(0.25, 0.25) for name in names if name in rewards}
    path = write_run(tmp_path / "run", {"reward": ramp(0.25, 0.5), **flat})
    (path / "recipe.yaml").write_text(f"reward_funcs: {rewards}\n")
    flags = [
        flag["values"]["reward"]
        for flag in find_flags(read_run(path))
        if flag["code"] == "reward_not_accuracy"
    ]
    assert flags == [judge]


@pytest.mark.parametrize(
    ("metrics", "code", "severity", "values"),
    [
        # 8 points: windows of 2.
        (
            {
                "reward": ramp(0.25, 0.5),
                "rewards/accuracy/mean": ramp(0.25, 0.25),
                "rewards/format/mean": ramp(0, 0.75),
            },
            "reward_not_accuracy",
            "bad",
            {
                "reward": "accuracy",
                "points": 2,
                "before": 0.25,
                "after": 0.5,
                "answer_before": 0.25,
                "answer_after": 0.25,
            },
        ),
        (
            {
                "reward": ramp(1, 0.5),
                "rewards/accuracy/mean": ramp(0.5, 0.25),
                "rewards/format/mean": ramp(0.5, 0.5),
            },
            "accuracy_falls",
            "bad",
            {"reward": "accuracy", "points": 2, "before": 0.5, "after": 0.25},
        ),
        (
            {"reward": [0.5, 1] * 10, "rewards/accuracy/mean": [0.25, 0.75] * 10},
            "accuracy_flat",
            "warn",
            {"reward": "accuracy", "points": 5, "before": 0.45, "after": 0.55},
        ),
        (
            {"completions/mean_length": ramp(100, 201)},
            "length_explosion",
            "warn",
            {"before": 100.0, "after": 201.0, "points": 2},
        ),
        (
            {"completions/mean_length": ramp(201, 100)},
            "length_collapse",
            "warn",
            {"before": 201.0, "after": 100.0, "points": 2},
        ),
        (
            {"completions/clipped_ratio": [0, 0.5]},
            "truncated",
            "bad",
            {"share": 0.25, "points": 2, "limit": "48"},
        ),
        (
            {"reward": [0.5], "entropy": ramp(1, 0.125)},
            "entropy_collapse",
            "warn",
            {"before": 1.0, "after": 0.125, "points": 2},
        ),
        (
            {"rewards/format/mean": ramp(0.5, 1)},
            "format_saturated",
            "info",
            {"reward": "format", "value": 1.0, "points": 2},
        ),
        (
            {"tools/failure_frequency": [0.25, 0.75]},
            "tools_fail",
            "warn",
            {"share": 0.5, "points": 2},
        ),
        ({"frac_reward_zero_std": [0.25, 0.75]}, "zero_std", "warn", {"share": 0.5, "points": 2}),
        ({"frac_reward_zero_std": [1, 1]}, "zero_std", "bad", {"share": 1.0, "points": 2}),
        (
            {
                f"sampling/sampling_logp_difference/{name}": values
                for name, values in {"mean": [0.04, 0.08], "max": [3.0, 2.0]}.items()
            },
            "engine_gap",
            "warn",
            {"mean": 0.06, "most": 3.0, "points": 2, "dtype": "–"},
        ),
        (
            {"sampling/importance_sampling_ratio/mean": [1, 0.5]},
            "engine_weight",
            "warn",
            {"mean": 0.75, "points": 2, "mode": "sequence_mask"},
        ),
        # Masked altogether; TRL logs the smallest and the largest, too, which say nothing: one
        # token of thousands may be far off.
        (
            {
                f"sampling/importance_sampling_ratio/{name}": [value]
                for name, value in {"min": 0.0, "mean": 0.0, "max": 0.0}.items()
            },
            "engine_weight",
            "bad",
            {"mean": 0.0, "points": 1, "mode": "sequence_mask"},
        ),
        (
            {"rewards/accuracy/mean": [0.0] * 8},
            "reward_zero",
            "bad",
            {"reward": "accuracy", "points": 8},
        ),
        (
            {"rewards/length/mean": [0.5] * 8, "rewards/length/std": [0.0] * 8},
            "reward_constant",
            "warn",
            {"reward": "length", "value": 0.5, "points": 8},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flag_comes_with_its_numbers(
    tmp_path: Path, metrics: dict, code: str, severity: str, values: dict
) -> None:
    run = read_run(write_run(tmp_path / "run", metrics))
    assert find_flags(run) == [{"code": code, "severity": severity, "values": values}]


@pytest.mark.parametrize(
    "metrics",
    [
        {"reward": ramp(0.25, 0.5), "rewards/accuracy/mean": ramp(0.25, 0.5)},
        {"completions/mean_length": ramp(100, 200)},
        {"completions/mean_length": ramp(200, 100)},
        {"completions/clipped_ratio": [0.2] * 8},
        {"reward": [0.5], "entropy": ramp(1, 0.25)},
        {"entropy": ramp(1, 0.1)},  # SFT learns its text: no policy to explore with
        {"rewards/format/mean": ramp(0.5, 0.98)},
        {"frac_reward_zero_std": [0.49] * 8},
        {
            "sampling/sampling_logp_difference/mean": [0.05] * 8,
            "sampling/sampling_logp_difference/max": [9.0] * 8,
        },
        {
            "sampling/importance_sampling_ratio/mean": [0.9, 1.1],
            "sampling/importance_sampling_ratio/min": [0.0, 0.0],
        },
        {"rewards/accuracy/mean": [0.0] * 7},  # too few to speak of
        {"completions/mean_length": [1, 1, 1, 1000]},
        # Neighbours differ by 1: the two means of 2 points may differ by 2·√(2·(5/7/2)/2) ≈ 1.2 by
        # chance, and do so by 0.5.
        {"reward": [0, 1, 0, 1, 0, 1, 1, 1], "rewards/accuracy/mean": [0.5] * 8},
        {"reward": [1] * 20, "rewards/accuracy/mean": [1] * 20},  # all is learned
        {
            "reward": [0.5] * 8,
            "rewards/accuracy/mean": [1, 0.5, 0.25, 0.75, 0.25, 0.75, 0.75, 0.25],
        },
    ],
)
def test_what_is_within_bounds_raises_no_flag(tmp_path: Path, metrics: dict) -> None:
    assert find_flags(read_run(write_run(tmp_path / "run", metrics))) == []


def test_engine_flags_name_the_run_s_own_keys(tmp_path: Path) -> None:
    metrics = {
        "sampling/sampling_logp_difference/mean": [0.2],
        "sampling/importance_sampling_ratio/mean": [2.5],
    }
    path = write_run(tmp_path / "run", metrics)
    (path / "recipe.yaml").write_text(
        "dtype: bfloat16\nvllm_importance_sampling_mode: token_truncate\n"
    )
    gap, weight = find_flags(read_run(path))
    assert (weight["severity"], weight["values"]["mode"]) == ("bad", "token_truncate")
    assert (gap["severity"], gap["values"]["dtype"], gap["values"]["most"]) == (
        "bad",
        "bfloat16",
        None,
    )


def test_worst_flags_come_first(tmp_path: Path) -> None:
    metrics = {
        "rewards/format/mean": [1.0] * 8,
        "completions/mean_length": ramp(1, 10),
        "frac_reward_zero_std": [1.0] * 8,
    }
    flags = find_flags(read_run(write_run(tmp_path / "run", metrics)))
    assert [flag["code"] for flag in flags] == ["zero_std", "length_explosion", "format_saturated"]


@pytest.mark.parametrize(
    "settings",
    [
        "reward_funcs: [accuracy]\nreward_models: 5\n",
        "reward_funcs: [{a: 1}, accuracy]\nreward_models: {x: 1}\n",
    ],
)
def test_settings_of_any_shape_raise_nothing(tmp_path: Path, settings: str) -> None:
    path = write_run(tmp_path / "run", {"reward": ramp(0, 1), "rewards/accuracy/mean": [0.5] * 8})
    (path / "recipe.yaml").write_text(settings)
    assert [flag["code"] for flag in find_flags(read_run(path))] == ["reward_not_accuracy"]
