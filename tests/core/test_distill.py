"""Distillation from a teacher behind a server."""

from __future__ import annotations

import pytest

from r1_recipes import distill

pytestmark = pytest.mark.slow

SERVER = {"distill_with": "server", "max_completion_length": 8, "temperature": 1.0}


@pytest.fixture
def with_client(monkeypatch) -> None:
    """TRL's client without vLLM, which it needs for the weights of a student's server alone."""
    monkeypatch.setattr("trl.generation.vllm_client.is_vllm_available", lambda **_: True)


def test_a_missing_teacher_is_named(write_recipe, with_client, monkeypatch, capsys) -> None:
    monkeypatch.setattr("trl.generation.vllm_client.time.sleep", lambda seconds: None)
    monkeypatch.setattr(
        "trl.generation.vllm_client.time.time", iter(range(0, 10_000, 100)).__next__
    )
    with pytest.raises(SystemExit):
        distill.main(
            [write_recipe("distill", **SERVER, teacher_model_server_url="http://127.0.0.1:9")]
        )
    told = capsys.readouterr().err
    assert "teacher_model_server_url: " in told and "can't be reached at http://127.0.0.1:9" in told
