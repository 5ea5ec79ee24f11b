"""The snippets of docs/elsewhere.md with verifiers and inspect-ai themselves.

They need an environment of their own: make test-elsewhere.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

(PAGE,) = (Path(__file__).parents[2] / "docs").glob("*elsewhere.md")
RIGHT, WRONG = r"One and one are \boxed{2}.", r"One and one are \boxed{3}."
MAX_LINES = 15


def snippet(name: str) -> dict[str, Any]:
    """Run a snippet of the page, and return its names."""
    (code,) = re.findall(rf"```python {name}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= MAX_LINES
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(code, name, "exec"), names)
    return names


@pytest.mark.parametrize(("answer", "reward"), [(RIGHT, 1.0), (WRONG, 0.0)])
def test_a_rubric_of_verifiers(answer: str, reward: float) -> None:
    rubric = snippet("rubric.py")["rubric"]
    state = {
        "prompt": [{"role": "user", "content": "1 + 1?"}],
        "completion": [{"role": "assistant", "content": answer}],
        "answer": "2",
        "task": "sums",
        "info": {},
        "timing": {},
    }
    asyncio.run(rubric.score_rollout(state))
    assert state["reward"] == reward


@pytest.mark.parametrize(("answer", "reward"), [(RIGHT, 1.0), (WRONG, 0.0)])
def test_a_task_of_verifiers(answer: str, reward: float) -> None:
    import verifiers.v1 as vf

    names = snippet("task.py")
    task = names["MathTask"](names["MathData"](prompt="1 + 1?", answer="2"))
    (method,) = task.hooks("reward")
    trace = type("Trace", (), {"last_reply": answer})()
    assert isinstance(task, vf.Task)
    assert asyncio.run(method(trace)) == reward


def test_a_scorer_of_inspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import inspect_ai.model._model
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.solver import generate

    # inspect-ai counts tokens with a vocabulary that it downloads.
    monkeypatch.setattr(inspect_ai.model._model, "count_text_tokens", len)
    outputs = [ModelOutput.from_content("mockllm/model", text) for text in (RIGHT, WRONG)]
    task = Task(
        dataset=[Sample(input="1 + 1?", target="2"), Sample(input="one and one?", target="2")],
        solver=generate(),
        scorer=snippet("scorer.py")["correct"](),
    )
    (log,) = eval(
        task,
        model=get_model("mockllm/model", custom_outputs=outputs),
        log_dir=str(tmp_path),
        display="none",
        max_connections=1,
    )
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["mean"].value == 0.5


def test_the_rewards_import_no_torch() -> None:
    assert "torch" not in sys.modules
