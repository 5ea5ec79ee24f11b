"""The embedded models: what is downloaded, and where what it needs is missing."""

import hashlib
import importlib.util
import zipfile

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.demo import weights
from r1_recipes.extras.demo.weights import smollm2_checkpoint


def test_the_embedded_model_without_gguf_names_the_extra_before_anything_is_downloaded(
    tmp_path, monkeypatch
):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else found(name, *a)
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(
        RecipeError, match=r"^embedded:SmolLM2-135M-Instruct: .*gguf.* Fix: pip install .*\[demo\]"
    ) as error:
        smollm2_checkpoint()
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def wheel_with(path, member, content):
    """A wheel with one file, and its checksum."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/__init__.py", "")
        archive.writestr(f"pkg/{member}", content)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_parts_of_a_model_are_joined_in_order_and_checked(tmp_path, monkeypatch):
    first, first_sum = wheel_with(tmp_path / "a.whl", "x.gguf.part00", b"GG")
    second, second_sum = wheel_with(tmp_path / "b.whl", "x.gguf.part01", b"UF")
    at = {"a==1": first, "b==1": second}
    monkeypatch.setattr(weights, "_wheel", lambda hub_id, requirement, folder: at[requirement])
    whole = tmp_path / "whole.gguf"
    weights._download("x", [("a==1", first_sum), ("b==1", second_sum)], whole)
    assert whole.read_bytes() == b"GGUF"
    with pytest.raises(RecipeError, match="b==1 has SHA-256"):
        weights._download("x", [("b==1", first_sum)], tmp_path / "other.gguf")


@pytest.mark.nightly
def test_gemma_reads_words_and_goes_on_with_a_text():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = weights.gemma_checkpoint()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "The capital of France is Paris. 12+7=19\n<think>"
    assert tokenizer.tokenize(text)[:5] == ["The", "▁capital", "▁of", "▁France", "▁is"]
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    model = AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer("Question: What is 3 + 4?\nAnswer:", return_tensors="pt")
    made = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "7" in tokenizer.decode(made[0][inputs["input_ids"].shape[1] :])
