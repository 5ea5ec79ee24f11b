"""`make distill` with a real server in the loop: a served teacher gives the rows that the same
teacher gives offline.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from r1_recipes import generate, sft
from tests.conftest import SUMS
from tests.support.loopback import serving

pytestmark = pytest.mark.e2e


@pytest.fixture
def server(smollm2, tmp_path):
    """``transformers serve`` on loopback; the base URL."""
    command = [
        str(Path(sys.executable).parent / "transformers"),
        "serve",
        str(smollm2),
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--port",
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    with serving(
        lambda port: [*command, str(port)], tmp_path / "server.log", environment, tmp_path
    ) as address:
        yield f"http://{address}/v1"


def test_a_served_teacher_and_the_same_one_offline_give_the_same_rows(
    smollm2, server, tmp_path, sums, monkeypatch
):
    teacher = {
        "model_name_or_path": str(smollm2),
        "dataset_name": str(sums),
        "mapper": "gsm8k",
        "response_format": "think_answer",
        "system_prompt": "Answer in one short sentence.",
        "dtype": "float32",
        "use_cpu": True,
        "num_generations": 1,
        "temperature": 0,
        "max_completion_length": 16,
        "generation_batch_size": 2,
        "output_dir": str(tmp_path / "offline"),
    }
    path = tmp_path / "teacher.yaml"
    path.write_text(yaml.safe_dump(teacher), encoding="utf-8")
    monkeypatch.setenv("OPENAI_BASE_URL", server)
    generate.main([str(path)])
    generate.main([str(path), "--backend", "openai", "--output_dir", str(tmp_path / "served")])
    offline, served = (
        [
            json.loads(line)
            for line in (tmp_path / name / "dataset" / "train.jsonl")
            .read_text(encoding="utf-8")
            .splitlines()
        ]
        for name in ("offline", "served")
    )
    assert [row["question"] for row in offline] == [f"{a}+{b}?" for a, b in SUMS]
    # The server drops white space around a reply.
    assert [{**row, "response": row["response"].strip()} for row in offline] == served
    assert len({row["response"] for row in served}) > 1 and all(row["response"] for row in served)

    student = {
        "model_name_or_path": str(smollm2),
        "dataset_name": str(tmp_path / "served" / "dataset"),
        "mapper": "generated",
        "mapper_config": {"well_formed": False},
        "response_format": "think_answer",
        "dtype": "float32",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 2,
        "max_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "output_dir": str(tmp_path / "student"),
    }
    path = tmp_path / "student.yaml"
    path.write_text(yaml.safe_dump(student), encoding="utf-8")
    sft.main([str(path)])
    assert (tmp_path / "student" / "model.safetensors").is_file()
