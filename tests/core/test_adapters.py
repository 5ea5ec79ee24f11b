"""Adapters merged into their base model: the same answers without PEFT, and what cannot be merged
is refused by name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from r1_recipes import adapters, grpo
from r1_recipes.common.errors import RecipeError
from r1_recipes.prompts import CHATML
from tests.conftest import metrics, weights

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder as a LoRA run leaves it, whose adapters change every layer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("lora") / "run"
    torch.manual_seed(0)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}', encoding="utf-8")
    return folder


def test_a_merged_model_answers_as_base_and_adapters_do(trained: Path, tiny_model: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = adapters.merge(trained)
    assert folder == trained / "merged"
    merged, base = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(tiny_model),
    )
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        before, after = base(tokens).logits, merged(tokens).logits
        expected = PeftModel.from_pretrained(base, trained)(tokens).logits
    torch.testing.assert_close(after, expected, atol=1e-4, rtol=1e-4)
    assert (after - before).abs().max() > 0.1
    # The base model's own names, and nothing of PEFT's: any server can load it.
    assert (
        weights(folder).keys() == weights(tiny_model).keys()
        and not (folder / "adapter_config.json").exists()
    )
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2
    assert AutoTokenizer.from_pretrained(folder).chat_template == CHATML
    # Once more replaces the run's own folder, and leaves nothing beside it.
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "old").touch()
    assert adapters.merge(trained) == folder and not (folder / "old").exists()
    assert [path.name for path in trained.iterdir() if path.name.startswith(".")] == []


def over(base: Path, run: Path, **changes: object) -> Path:
    """The run's folder, whose configuration names another base model."""
    path = run / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({**config, "base_model_name_or_path": str(base), **changes}), encoding="utf-8"
    )
    return run


def test_the_sum_is_rounded_once_to_the_base_models_type(
    trained: Path, tiny_model: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).save_pretrained(base)
    folder = adapters.merge(over(base, shutil.copytree(trained, tmp_path / "run")))
    name = "model.layers.0.self_attn.q_proj.weight"
    from safetensors.torch import load_file

    pairs = load_file(trained / "adapter_model.safetensors")
    a, b = (
        pairs[f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight"]
        for side in "AB"
    )
    # alpha / r = 8 / 4
    assert weights(folder)[name].dtype == torch.bfloat16
    assert weights(folder)[name].equal((weights(base)[name].float() + 2 * (b @ a)).bfloat16())


def test_what_cannot_be_merged_is_refused(trained: Path, tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    with pytest.raises(
        RecipeError, match=r"the adapters cannot be merged .*Can't find 'adapter_config.json'"
    ):
        adapters.merge(tiny_model)
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken, ignore=shutil.ignore_patterns("merged"))
    (broken / "adapter_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(
        RecipeError, match=r"broken: the adapters cannot be merged into .*JSONDecodeError"
    ):
        adapters.merge(broken)
    config = json.loads((trained / "adapter_config.json").read_text(encoding="utf-8"))
    (broken / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(
        RecipeError,
        match=r"cannot be merged into the base model '.*gone': .*set base_model_name_or_path",
    ):
        adapters.merge(over(tmp_path / "gone", broken))
    other = tmp_path / "other"
    AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(tiny_model, intermediate_size=128)
    ).save_pretrained(other)
    with pytest.raises(
        RecipeError, match=r"broken: the adapters cannot be merged into the base model '.*other'"
    ):
        adapters.merge(over(other, broken))
    # PEFT loads adapters of another depth without an error, and would merge a part of them.
    suffixes = sorted({module.rpartition(".")[2] for module in config["target_modules"]})
    config = AutoConfig.from_pretrained(tiny_model)
    for change in (-1, 1):
        deep = tmp_path / f"deep{change}"
        depth = config.num_hidden_layers + change
        sized = AutoConfig.from_pretrained(
            tiny_model, num_hidden_layers=depth, layer_types=config.layer_types[:1] * depth
        )
        AutoModelForCausalLM.from_config(sized).save_pretrained(deep)
        with pytest.raises(
            RecipeError, match=r"14 weights are missing .* for example \S*layers\.[12]\."
        ):
            adapters.merge(over(deep, broken, target_modules=suffixes))
    whole = (broken / "adapter_model.safetensors").read_bytes()
    for torn in (b"", whole[: len(whole) // 2]):
        (broken / "adapter_model.safetensors").write_bytes(torn)
        with pytest.raises(
            RecipeError, match=r"cannot be merged .* SafetensorError: .*a checkpoint of the run"
        ):
            adapters.merge(over(tiny_model, broken))
    assert not (broken / "merged").exists()


def test_a_base_model_s_code_is_never_run(
    trained: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers asks on the terminal, and runs the code after a "y"."""
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(tiny_model, base)
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("merged"))
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"},
    }
    (base / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (base / "mine.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\n",
        encoding="utf-8",
    )
    with pytest.raises(RecipeError, match="custom code"):
        adapters.merge(over(base, run))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("packed", ["load_in_4bit", "load_in_8bit"])
def test_adapters_of_a_packed_base_keep_fp32(
    write_recipe: Callable[..., str], tiny_model: Path, tmp_path: Path, packed: str
) -> None:
    from safetensors.torch import load_file

    lora = {
        "use_peft": True,
        "lora_r": 4,
        "lora_target_modules": ["all-linear"],
        "lora_dropout": 0.0,
        packed: True,
        "beta": 0.1,
    }
    # A step of AdamW that bf16 cannot add to an adapter's weights, of about 0.1.
    grpo.main(
        [
            write_recipe(
                "grpo",
                max_steps=3,
                save_strategy="no",
                learning_rate=1e-5,
                dtype="bfloat16",
                bf16=True,
                **lora,
            )
        ]
    )
    saved = load_file(tmp_path / "run" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    first = {name: tensor for name, tensor in saved.items() if "lora_A" in name}
    assert all((tensor != tensor.bfloat16().float()).any() for tensor in first.values())
    assert adapters.merge(tmp_path / "run").is_dir()


def test_a_lora_run_can_be_merged(
    write_recipe: Callable[..., str],
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoModelForCausalLM

    lora = {
        "use_peft": True,
        "lora_r": 4,
        "lora_target_modules": ["all-linear"],
        "lora_dropout": 0.0,
    }
    grpo.main([write_recipe("grpo", max_steps=3, model_revision="v1", **lora)])
    run = tmp_path / "run"
    assert len(metrics(run)) == 3
    capsys.readouterr()
    # The base's revision is on record, and is asked for again.
    assert json.loads((run / "adapter_config.json").read_text(encoding="utf-8"))["revision"] == "v1"
    asked = []
    original = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM,
        "from_pretrained",
        lambda *a, **k: asked.append(k["revision"]) or original(*a, **k),
    )
    adapters.main([str(run)])
    assert capsys.readouterr().out.endswith(f"{run / 'merged'}\n")
    assert asked == ["v1"]
    before, after = weights(tiny_model), weights(run / "merged")
    changed = {name for name in before if not before[name].equal(after[name])}
    # All linear layers but the output, which is not trained; norms, embeddings and biases are the
    # base model's.
    assert changed == {name for name in before if name.endswith("proj.weight")}


def test_a_link_in_the_folder_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "merged").symlink_to(tmp_path / "victim")
    with pytest.raises(RecipeError, match="merged: is a link to"):
        adapters.merge(tmp_path / "run")


def test_adapters_of_weights_that_two_layers_share_are_not_merged(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Merging would add them to both: the tiny model ties its head to its embeddings."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert model.config.tie_word_embeddings
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "lm_head"]))
    adapted.save_pretrained(tmp_path / "run")
    with pytest.raises(RecipeError, match="lm_head shares its weights"):
        adapters.merge(tmp_path / "run")


def test_a_base_model_with_a_contradictory_generation_config_can_be_merged(
    trained: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """Training repairs it, too."""
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(tiny_model, base)
    settings = {"do_sample": False, "temperature": 0.7}
    (base / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("merged"))
    assert (adapters.merge(over(base, run)) / "config.json").is_file()
