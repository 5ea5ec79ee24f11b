"""The flagship recipe on real rows with real learned weights: SmolLM2-135M on two CPU cores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GSM8K = REPOSITORY.parent / "shared" / "data" / "gsm8k"

pytestmark = pytest.mark.e2e


@pytest.mark.skipif(
    not GSM8K.is_dir(),
    reason="the GSM8K rows are not beside this repository (../shared/data/gsm8k)",
)
def test_two_grpo_steps_of_the_flagship_on_gsm8k(smollm2, tmp_path):
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        "accelerate_configs/cpu.yaml",
    ]
    command += [
        "-m",
        "r1_recipes.grpo",
        "recipes/gsm8k_qwen05b.yaml",
        "--dataset_name",
        str(GSM8K),
        "--model_name_or_path",
        str(smollm2),
    ]
    command += [
        "--use_vllm",
        "false",
        "--use_cpu",
        "true",
        "--bf16",
        "false",
        "--dtype",
        "float32",
        "--gradient_checkpointing",
        "false",
    ]
    command += [
        "--max_steps",
        "2",
        "--max_samples",
        "64",
        "--num_generations",
        "4",
        "--per_device_train_batch_size",
        "8",
    ]
    command += [
        "--gradient_accumulation_steps",
        "1",
        "--max_completion_length",
        "48",
        "--beta",
        "0",
        "--output_dir",
        str(tmp_path / "run"),
    ]
    result = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]

    steps = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    curves = [step for step in steps if "rewards/accuracy/mean" in step]
    assert [step["step"] for step in curves] == [1, 2]
    for step in curves:
        for reward in ("accuracy", "format", "tag_count"):
            assert 0.0 <= step[f"rewards/{reward}/mean"] <= 1.0
        assert 1 <= step["completions/mean_length"] <= 48

    import pandas

    (first, *_) = sorted((tmp_path / "run" / "completions").glob("*.parquet"))
    table = pandas.read_parquet(first)
    assert {
        "prompt",
        "completion",
        "accuracy",
        "format",
        "tag_count",
        "answer_parsed",
        "solution",
    } <= set(table.columns)
    questions = {
        json.loads(line)["question"]
        for line in (GSM8K / "train.jsonl").read_text(encoding="utf-8").splitlines()
    }
    asked = {prompt[-1]["content"] for prompt in table["prompt"]}
    assert asked <= questions


def test_the_embedded_model_speaks(smollm2):
    """Weights, tokenizer and chat template belong together: a fact that only the learned model
    knows, and an answer that ends.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    messages = [
        {"role": "user", "content": "What is the capital of France? Answer in one short sentence."}
    ]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)[
        0, inputs["input_ids"].shape[1] :
    ]
    assert "Paris" in tokenizer.decode(output)
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
