"""That training trains: tiny random models, exaggerated learning rates, what a run leaves behind."""

import contextlib
import dataclasses
import json
import shutil
from unittest import mock

import pandas
import pytest

from r1_recipes import grpo, sft
from r1_recipes.models.load import generation_prompt, load_tokenizer
from r1_recipes.recipe import load_recipe
from r1_recipes.training import run_folder
from tests.conftest import log_lines, metrics, weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]
MAIN = {"grpo": grpo.main, "sft": sft.main}


def moved(before, after):
    old, new = weights(before), weights(after)
    assert old.keys() == new.keys()
    return {name for name in old if not old[name].equal(new[name])}


@pytest.mark.parametrize("method", ["grpo", "sft"])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_every_parameter_moves_or_only_the_unfrozen(
    write_recipe, tiny_model, tmp_path, method, gradient_checkpointing
):
    path = write_recipe(method, gradient_checkpointing=gradient_checkpointing, save_strategy="no")
    MAIN[method]([path])
    assert moved(tiny_model, tmp_path / "run") == set(weights(tiny_model))
    if method == "grpo":
        # A reward that is the same for a whole group would prove nothing.
        assert any(entry["reward_std"] > 0 for entry in metrics(tmp_path / "run"))
    else:
        losses = [entry["loss"] for entry in metrics(tmp_path / "run")]
        assert losses[-1] < losses[0]
    some = ["--unfrozen_parameters", r"layers\.1\.mlp", r"model\.norm\."]
    MAIN[method]([path, "--output_dir", str(tmp_path / "some"), *some])
    wanted = {n for n in weights(tiny_model) if "layers.1.mlp" in n or "model.norm." in n}
    assert moved(tiny_model, tmp_path / "some") == wanted


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_lora(write_recipe, tiny_model, tmp_path, method):
    from peft import AutoPeftModelForCausalLM
    from safetensors.torch import load_file

    path = write_recipe(method, use_peft=True, lora_r=4, lora_target_modules=["q_proj", "v_proj"])
    MAIN[method]([path])
    adapter = load_file(tmp_path / "run" / "adapter_model.safetensors")
    # The B matrices start at zero.
    assert all(value.abs().max() > 0 for name, value in adapter.items() if "lora_B" in name)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert (tmp_path / "run" / "generation_config.json").is_file()
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run")
    base = weights(tiny_model)["model.layers.0.self_attn.q_proj.weight"]
    assert model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight.equal(base)


def test_adapters_of_a_quantized_base_are_fp32():
    """TRL makes them bf16, in which most of AdamW's steps vanish at the learning rates of RL."""
    import inspect
    from types import SimpleNamespace

    import torch
    from trl import GRPOConfig, GRPOTrainer

    from r1_recipes.training.train import prepare

    assert "to(torch.bfloat16)" in inspect.getsource(GRPOTrainer.__init__)
    model = torch.nn.Linear(2, 2).bfloat16()
    model.bias.requires_grad = False
    recipe = SimpleNamespace(
        model=SimpleNamespace(load_in_4bit=True), script=SimpleNamespace(unfrozen_parameters=None)
    )
    args = GRPOConfig(use_cpu=True, bf16=False, report_to="none")
    prepare(SimpleNamespace(args=args, model=model), recipe)
    assert (model.weight.dtype, model.bias.dtype) == (torch.float32, torch.bfloat16)


def test_seeds_of_recipes_sample_differently_from_vllm():
    """vLLM has just seeded the global generators with the number of the group of ranks."""
    from types import SimpleNamespace

    import torch
    from trl import GRPOConfig

    from r1_recipes.training.train import prepare

    def seed_of(seed, rank, size=1):
        args = GRPOConfig(use_cpu=True, bf16=False, report_to="none", seed=seed, use_vllm=True)
        args.vllm_mode, args.vllm_tensor_parallel_size = "colocate", size
        shared = {"args": args, "model": torch.nn.Linear(2, 2)}
        model = SimpleNamespace(load_in_4bit=False, load_in_8bit=False)
        recipe = SimpleNamespace(model=model, script=SimpleNamespace(unfrozen_parameters=None))
        with mock.patch.object(type(args), "process_index", rank):
            prepare(SimpleNamespace(**shared), recipe)
        return torch.initial_seed()

    assert len({seed_of(seed, rank) for seed in (0, 1, 2, 42) for rank in range(8)}) == 32
    # The ranks of one tensor-parallel group must sample the same.
    assert seed_of(1, 2, 2) == seed_of(1, 3, 2)


def test_what_a_run_leaves_behind(write_recipe, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prefill = "<think>\n"
    worked = [{"question": "1+1?", "reasoning": "One and one.", "answer": "2"}]
    keys = {"prefill": prefill, "few_shot": worked, "system_prompt": "Think."}
    path, run = write_recipe("grpo", **keys), tmp_path / "run"
    grpo.main([path])
    record = json.loads((run / "run.json").read_text())
    assert record["finished"] and (record["recipe"], record["method"]) == ("tiny", "grpo")
    assert record["versions"]["trl"] and record["rows"][0] == 8 and record["rows_per_step"] == 4
    lines = log_lines(run)
    assert "6 steps of 4 completions" in lines and f"saved to {run}, with report.html" in lines
    (following,) = (line for line in lines if line.startswith("next: "))
    assert (
        f"--dataset_test_split train --model {load_recipe([path], 'grpo').model.model_name_or_path}"
        in following
    )
    card = (run / "README.md").read_text()
    assert "GRPO" in card and "r1-recipes" in card and "huggingface.co/datasets/" not in card
    assert "Finished" not in card
    tokenizer = AutoTokenizer.from_pretrained(run)
    asked = [{"role": "user", "content": "1+1?"}]
    text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert "Think." in text and text.endswith("<|im_start|>assistant\n" + prefill)
    model = AutoModelForCausalLM.from_pretrained(run)
    assert model.config.use_cache is True
    # The run is a starting point for a next stage whose recipe sets the same prefill.
    tokenizer, fmt = load_tokenizer(load_recipe([path, "--model_name_or_path", str(run)], "grpo"))
    assert fmt.prefill == prefill and generation_prompt(tokenizer).count("<think>") == 1


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_the_resolved_recipe_loads_to_the_same_arguments(write_recipe, tmp_path, method):
    changes = {
        "warmup_ratio": 0.1,
        "few_shot": [{"question": "1+1?", "reasoning": "one: and\none", "answer": "2"}],
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "system_prompt": "Ünïcode: 思考, 'quotes' and\nlines\n",
    }
    if method == "grpo":
        changes |= {"reward_funcs": ["cosine", "format"], "cosine_max_len": 40}
        changes |= {"reward_weights": [1.0, 0.25]}
    typed = ["--learning_rate", "3e-4", "--prefill", "<think>\n"]
    first = load_recipe([write_recipe(method, **changes), *typed], method)
    (tmp_path / "run").mkdir()
    run_folder.record(run_folder.Run(first, tmp_path / "run"))
    again = load_recipe([str(tmp_path / "run" / "recipe.yaml")], method)
    for part in ("script", "model", "reward_params", "settings"):
        assert getattr(again, part) == getattr(first, part)
    volatile = ("accelerator_config", "deepspeed_plugin", "distributed_state", "_n_gpu")
    for field in dataclasses.fields(first.training):
        if field.name not in volatile:
            values = [getattr(loaded.training, field.name) for loaded in (first, again)]
            assert values[0] == values[1], field.name


def test_no_step_is_an_error(write_recipe, tmp_path, capsys):
    for main, keys in (
        (grpo.main, {"max_samples": 1}),
        (sft.main, {"per_device_train_batch_size": 16, "dataloader_drop_last": True}),
    ):
        with pytest.raises(SystemExit) as ended:
            main([write_recipe("grpo" if main is grpo.main else "sft", **keys)])
        assert ended.value.code == 2 and "no step was trained" in capsys.readouterr().err
        assert not (tmp_path / "run" / "model.safetensors").exists()


def test_weights_that_are_no_numbers_end_the_run(write_recipe, tmp_path, capsys):
    words = ["--learning_rate", "1e30", "--max_steps", "4", "--lr_scheduler_type", "constant"]
    with pytest.raises(SystemExit) as ended:
        sft.main([write_recipe("sft", logging_steps=1, save_strategy="no"), *words])
    assert ended.value.code == 2 and "grad_norm: NaN at step" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(("max_length", "kept"), [(64, 2), (16, 0)])
def test_rows_whose_answer_max_length_cuts_away_are_counted(
    write_recipe, tmp_path, capsys, max_length, kept
):
    rows = [{"prompt": "1+1?" * (40 * (n % 2)) + "2?", "completion": "2"} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    keys = {
        "dataset_name": str(tmp_path / "rows.jsonl"),
        "mapper": "auto",
        "max_length": max_length,
    }
    keys |= {"max_steps": 1, "per_device_train_batch_size": 2}
    with contextlib.nullcontext() if kept else pytest.raises(ValueError):
        sft.main([write_recipe("sft", **keys)])
    said = capsys.readouterr().err + "".join(log_lines(tmp_path / "run"))
    assert f"{4 - kept} of 4 rows dropped: max_length cuts all of the answer" in said


def test_a_model_s_own_min_p_does_not_thin_the_samples(write_recipe, tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "thin")
    own = {"do_sample": True, "min_p": 0.999}
    (model / "generation_config.json").write_text(json.dumps(own))
    path = write_recipe("grpo", model_name_or_path=str(model), max_steps=1, log_completions=True)
    grpo.main([path])
    (table,) = (tmp_path / "run" / "completions").glob("*.parquet")
    assert len(set(pandas.read_parquet(table)["completion"].astype(str))) > 1
