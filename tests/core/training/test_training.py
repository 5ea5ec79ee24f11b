"""That training trains: tiny random models, exaggerated learning rates, and what a run leaves
behind.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from r1_recipes import grpo, report, sft
from r1_recipes.models.tokenizer import generation_prompt, load_tokenizer
from r1_recipes.recipe import load_recipe
from r1_recipes.runs import run_dir
from r1_recipes.training import run
from tests.conftest import SUMS, log_lines, metrics, weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]
MAIN = {"grpo": grpo.main, "sft": sft.main}


def moved(before: Path, after: Path) -> dict[str, bool]:
    old, new = weights(before), weights(after)
    assert old.keys() == new.keys()
    return {name: not old[name].equal(new[name]) for name in old}


@pytest.mark.parametrize("method", ["grpo", "sft"])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_every_parameter_moves(
    write_recipe: Callable[..., str],
    tiny_model: Path,
    tmp_path: Path,
    method: str,
    gradient_checkpointing: bool,
) -> None:
    MAIN[method]([write_recipe(method, gradient_checkpointing=gradient_checkpointing)])
    changes = moved(tiny_model, tmp_path / "run")
    assert all(changes.values()), [name for name, change in changes.items() if not change]
    if method == "grpo":
        # A reward that is the same for a whole group teaches nothing, and the test would prove
        # nothing.
        assert any(entry["reward_std"] > 0 for entry in metrics(tmp_path / "run"))
    else:
        losses = [entry["loss"] for entry in metrics(tmp_path / "run")]
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_only_unfrozen_parameters_move(
    write_recipe: Callable[..., str],
    tiny_model: Path,
    tmp_path: Path,
    method: str,
    gradient_checkpointing: bool,
) -> None:
    patterns = [r"layers\.1\.mlp", r"model\.norm\."]
    path = write_recipe(
        method,
        unfrozen_parameters=patterns,
        gradient_checkpointing=gradient_checkpointing,
        beta=0.1 if method == "grpo" else None,
    )
    MAIN[method]([path])
    changed = {name for name, change in moved(tiny_model, tmp_path / "run").items() if change}
    assert changed == {
        name for name in weights(tiny_model) if "layers.1.mlp" in name or "model.norm." in name
    }


@pytest.mark.parametrize("prefill", [None, "<think>\n", "Let me solve this step by step.\n<think>"])
def test_the_loss_is_on_the_completion_alone(
    write_recipe: Callable[..., str], monkeypatch: pytest.MonkeyPatch, prefill: str | None
) -> None:
    caught: list[tuple[Any, Any]] = []
    monkeypatch.setattr(run, "train", lambda run, trainer: None)
    monkeypatch.setattr(
        run.weights, "save", lambda run, trainer: caught.append((trainer, trainer.processing_class))
    )
    sft.main([write_recipe("sft", prefill=prefill, per_device_train_batch_size=8)])
    ((trainer, tokenizer),) = caught
    (batch,) = list(trainer.get_train_dataloader())
    seen = set()
    for ids, labels, attention in zip(
        batch["input_ids"].tolist(),
        batch["labels"].tolist(),
        batch["attention_mask"].tolist(),
        strict=True,
    ):
        length = sum(attention)
        first = next(index for index, label in enumerate(labels) if label != -100)
        # -100 on the prompt and on padding, and nowhere in between.
        assert labels[first:length] == ids[first:length]
        assert set(labels[length:]) <= {-100}
        prompt, target = tokenizer.decode(ids[:first]), tokenizer.decode(ids[first:length])
        a, b = next((a, b) for a, b in SUMS if f"{a}+{b}?" in prompt)
        seen.add((a, b))
        # What generation is given is what training masks: the whole prompt with the prefill, and
        # not a token more.
        question = [{"role": "user", "content": f"{a}+{b}?"}]
        asked = tokenizer.apply_chat_template(
            question, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        assert ids[:first] == asked
        assert prompt.endswith("<|im_start|>assistant\n" + (prefill or ""))
        start = "" if prefill == "<think>\n" else "\n" if prefill else "<think>\n"
        assert (
            target == f"{start}{a}+{b}={a + b}\n</think>\n<answer>\n{a + b}\n</answer><|im_end|>\n"
        )
    assert seen == set(SUMS)


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_lora(
    write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path, method: str
) -> None:
    from peft import AutoPeftModelForCausalLM
    from safetensors.torch import load_file

    path = write_recipe(method, use_peft=True, lora_r=4, lora_target_modules=["q_proj", "v_proj"])
    MAIN[method]([path])
    adapter = load_file(tmp_path / "run" / "adapter_model.safetensors")
    # The B matrices start at zero.
    assert all(value.abs().max() > 0 for name, value in adapter.items() if "lora_B" in name)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run")
    base = weights(tiny_model)["model.layers.0.self_attn.q_proj.weight"]
    assert model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight.equal(base)
    # And it goes on from its checkpoint.
    MAIN[method]([path, "--max_steps", "7"])
    assert [entry["step"] for entry in metrics(tmp_path / "run")] == list(range(1, 8))


def test_what_a_run_leaves_behind(write_recipe: Callable[..., str], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prefill = "<think>\n"
    worked = [{"question": "1+1?", "reasoning": "One and one.", "answer": "2"}]
    rewards = {"reward_funcs": ["tests.conftest:letters", "format"], "reward_weights": [1.0, 0.5]}
    path = write_recipe("grpo", prefill=prefill, few_shot=worked, **rewards)
    grpo.main([path])
    run = tmp_path / "run"
    entries = metrics(run)
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert all(
        {"rewards/letters/mean", "rewards/format/mean", "reward", "loss", "grad_norm"}
        <= entry.keys()
        for entry in entries
    )
    assert run_dir.is_finished(run)
    assert json.loads((run / "run.json").read_text())["recipe"] == "tiny"
    assert any(line.startswith("saved to ") for line in log_lines(run))
    assert yaml.safe_load((run / "recipe.yaml").read_text())["max_steps"] == 6
    card = (run / "README.md").read_text()
    assert (
        "GRPO" in card
        and "r1-recipes" in card
        and "None" not in card
        and "huggingface.co/datasets/" not in card
    )
    # An invented question of the mapper's, none of the rows.
    assert (
        "How many pens does she have?" in card and "2+2?" not in card and "time machine" not in card
    )
    assert "version of a local checkpoint." in card and "base_model:" not in card
    assert {path.name for path in run.glob("checkpoint-*")} == {
        "checkpoint-2",
        "checkpoint-4",
        "checkpoint-6",
    }

    for folder in (run, run / "checkpoint-6"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "1+1?"}], tokenize=False, add_generation_prompt=True
        )
        assert text.endswith("<|im_start|>assistant\n" + prefill)
    model = AutoModelForCausalLM.from_pretrained(run)
    assert model.config.use_cache is True
    generated = model.generate(
        **tokenizer("1+1?", return_tensors="pt"), max_new_tokens=2, do_sample=False
    )
    assert generated.shape[1] == 6
    # The checkpoint is a starting point for a next stage whose recipe sets the same prefill.
    tokenizer, fmt = load_tokenizer(load_recipe([path, "--model_name_or_path", str(run)], "grpo"))
    assert fmt.prefill == prefill and generation_prompt(tokenizer).count("<think>") == 1


def contents(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != "_lock"
    }


def refused(method: str, path: str, *overrides: str, capsys: pytest.CaptureFixture) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        MAIN[method]([path, *overrides])
    assert ended.value.code == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    return line


def test_a_finished_run_is_not_changed(
    write_recipe: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = write_recipe("grpo", max_steps=4, save_steps=3)
    grpo.main([path])
    before = contents(tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        grpo.main([path])
    assert (
        ended.value.code == 0
        and f"already done: {tmp_path / 'run'}; remove it" in capsys.readouterr().err
    )
    told = refused("grpo", path, "--learning_rate", "3e-5", capsys=capsys)
    assert (
        "already holds a finished grpo run of recipe 'tiny' with different settings (learning_rate: "
        "0.01 then, 3e-05 now). Fix: choose another --output_dir" in told
    )
    # Fewer steps, or as many, are no way to go on either.
    for steps in ("3", "4"):
        refused("grpo", path, "--learning_rate", "3e-5", "--max_steps", steps, capsys=capsys)
    refused("grpo", write_recipe("grpo", "other"), capsys=capsys)
    assert contents(tmp_path / "run") == before
    report.main([str(tmp_path / "run")])
    assert {
        name for name, content in contents(tmp_path / "run").items() if before[name] != content
    } <= {"report.html"}
    # What was moved is still done.
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(SystemExit) as ended:
        grpo.main([path, "--output_dir", str(tmp_path / "moved")])
    assert ended.value.code == 0


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_one_seed_is_one_run(write_recipe: Callable[..., str], tmp_path: Path, method: str) -> None:
    path = write_recipe(method, max_steps=4, save_strategy="no")
    timings = ("step_time", "step", "time/generation", "time/rewards")

    def run(name: str, seed: int) -> list[dict[str, Any]]:
        MAIN[method]([path, "--output_dir", str(tmp_path / name), "--seed", str(seed)])
        return [
            {key: value for key, value in entry.items() if key not in timings}
            for entry in metrics(tmp_path / name)
        ]

    first, again, other = run("first", 3), run("again", 3), run("other", 4)
    assert first == again
    assert first != other
    assert all(
        weights(tmp_path / "first")[name].equal(value)
        for name, value in weights(tmp_path / "again").items()
    )


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_the_resolved_recipe_loads_to_the_same_arguments(
    write_recipe: Callable[..., str], tmp_path: Path, method: str
) -> None:
    changes: dict[str, Any] = {
        "warmup_ratio": 0.1,
        "torch_dtype": "float32",
        "dtype": None,
        "few_shot": [{"question": "1+1?", "reasoning": "one: and\none", "answer": "2"}],
        "mapper_config": {},
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "system_prompt": "Ünïcode: 思考, 'quotes' and\nlines\n",
    }
    if method == "grpo":
        changes |= {
            "reward_funcs": ["cosine", "repetition_penalty"],
            "reward_weights": [1.0, 0.25],
            "cosine_max_len": 40,
        }
    first = load_recipe(
        [write_recipe(method, **changes), "--learning_rate", "3e-4", "--prefill", "<think>\n"],
        method,
    )
    (tmp_path / "run").mkdir()
    run_dir.claim(run_dir.Run(first, tmp_path / "run", []))
    again = load_recipe([str(tmp_path / "run" / "recipe.yaml")], method)
    assert {*again.warnings} <= {*first.warnings}
    assert again.script == first.script
    assert again.model == first.model
    assert again.reward_params == first.reward_params
    assert again.settings == first.settings
    volatile = ("accelerator_config", "deepspeed_plugin", "distributed_state", "_n_gpu")
    old, new = (
        {
            f.name: getattr(loaded.training, f.name)
            for f in dataclasses.fields(loaded.training)
            if f.name not in volatile
        }
        for loaded in (first, again)
    )
    assert new == old


def test_evaluation_runs_on_rows_that_training_does_not_see(
    write_recipe: Callable[..., str], tmp_path: Path, sums: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = sums.read_text().splitlines(keepends=True)
    (data / "train.jsonl").write_text("".join(rows))
    (data / "test.jsonl").write_text("".join(rows[:2]))
    path = write_recipe(
        "grpo",
        dataset_name=str(data),
        eval_strategy="steps",
        eval_steps=2,
        max_steps=2,
        per_device_eval_batch_size=2,
    )
    grpo.main([path])
    entries = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert any("eval_rewards/letters/mean" in entry for entry in entries)
    assert any(
        "2 training rows ask what the test split asks" in line
        for line in log_lines(tmp_path / "run")
    )


def _seen(completions, prompts, completion_ids, trainer_state, **columns):
    """Records what was generated, by whether it was longer than training allows; a reward that
    varies.
    """
    if trainer_state.train_batch_size is not None:  # not the try before training
        SEEN.append(
            [
                (prompt[-1]["content"], tuple(ids))
                for prompt, ids in zip(prompts, completion_ids, strict=True)
            ]
        )
    return [float(len(set(ids))) for ids in completion_ids]


SEEN: list = []


def test_going_on_says_what_has_changed_and_refuses_another_batch(
    write_recipe: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    sft.main([write_recipe("sft", max_steps=2)])
    with pytest.raises(SystemExit):
        sft.main([write_recipe("sft", max_steps=4, gradient_accumulation_steps=2)])
    said = capsys.readouterr().err
    assert (
        "checkpoint: 4 rows per step, num_generations None; now: 8 rows per step, num_generations None"
        in said
    )
    # The same rows a step, in other parts, are the same run.
    sft.main(
        [
            write_recipe(
                "sft",
                max_steps=4,
                learning_rate=0.3,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
            )
        ]
    )
    change = (
        "learning_rate was 0.01 in this run and is 0.3 now. The remaining steps use the new value"
    )
    assert change in log_lines(run)
    assert [entry["step"] for entry in metrics(run) if "loss" in entry] == [1, 2, 3, 4]
