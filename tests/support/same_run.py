"""Two runs that must be the same to the last digit."""

from pathlib import Path

from tests.conftest import metrics, weights

# Seconds, and what a process has judged before.
_VARIES = ("step_time", "time/", "verification/")


def figures(run: Path) -> list[dict]:
    """Return the steps of a run without what differs between two equal ones."""
    entries = metrics(run)
    # SFTTrainer's num_tokens counts from zero again in each process.
    varies = (*_VARIES, *(["num_tokens"] if "mean_token_accuracy" in entries[0] else ()))
    return [{k: v for k, v in entry.items() if not k.startswith(varies)} for entry in entries]


def assert_same_run(run: Path, whole: Path) -> None:
    """Every step once, with the figures of the run that was never stopped, and the same weights."""
    assert [entry["step"] for entry in metrics(run)] == [entry["step"] for entry in metrics(whole)]
    assert figures(run) == figures(whole)
    stopped, straight = weights(run), weights(whole)
    assert all(straight[name].equal(value) for name, value in stopped.items())
