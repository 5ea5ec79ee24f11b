"""GRPO on pictures: a tiny LLaVA learns from them, what it leaves can be read, and a model without
eyes is refused.
"""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from r1_recipes import grpo
from r1_recipes.common.messages import words
from r1_recipes.data import MAPPERS
from r1_recipes.models.smoke import build_tiny_vlm
from tests.conftest import metrics, weights

pytestmark = pytest.mark.usefixtures("offline")
SETTINGS = {
    "mapper": "image_question",
    "keep_columns": [],
    "system_prompt": None,
    "max_steps": 2,
    "save_strategy": "no",
}


@pytest.fixture(scope="module")
def tiny_vlm(tmp_path_factory) -> Path:
    import torch

    torch.set_num_threads(1)
    return build_tiny_vlm(tmp_path_factory.mktemp("vlm") / "model", {})


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Eight rows in the schema of multimodal-open-r1-8k-verified, as Parquet holds pictures."""
    import datasets

    rows = [
        {**row, "problem": f"{row['problem']} {number}"}
        for number in range(4)
        for row in MAPPERS["image_question"].examples
    ]
    path = tmp_path_factory.mktemp("data") / "pictures.parquet"
    datasets.Dataset.from_list(rows).cast_column("image", datasets.Image()).to_parquet(str(path))
    return path


def test_a_vision_language_model_learns_from_pictures(tmp_path, write_recipe, tiny_vlm, pictures):
    grpo.main(
        [
            write_recipe(
                "grpo",
                model_name_or_path=str(tiny_vlm),
                dataset_name=str(pictures),
                log_completions=True,
                num_completions_to_print=0,
                **SETTINGS,
            )
        ]
    )
    run = tmp_path / "run"
    assert [entry["step"] for entry in metrics(run)] == [1, 2]
    before, after = weights(tiny_vlm), weights(run)
    moved = {
        name.rsplit(".layers.", 1)[0] for name in before if not before[name].equal(after[name])
    }
    # The gradient reaches the picture's side: without pictures only the language half would move.
    assert any("vision_tower" in name for name in moved) and any(
        "projector" in name for name in moved
    ), sorted(moved)
    [table] = [
        pq.read_table(path).to_pylist()
        for path in sorted((run / "completions").glob("*.parquet"))[:1]
    ]
    assert len(table) == 4
    assert "How many pixels wide is the square?" in words(
        table[0]["prompt"], roles=True
    )  # as the report shows it
    assert (run / "report.html").exists()
    assert (
        json.loads((run / "processor_config.json").read_text(encoding="utf-8"))["processor_class"]
        == "LlavaProcessor"
    )


def refused(capsys, argv):
    with pytest.raises(SystemExit) as stopped:
        grpo.main(argv)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_a_model_without_eyes_is_refused(write_recipe, pictures, capsys):
    said = refused(capsys, [write_recipe("grpo", dataset_name=str(pictures), **SETTINGS)])
    assert (
        "the data contain pictures, but the model's processor cannot be loaded: AttributeError"
        in said
    )


def test_a_template_without_a_place_for_pictures_is_refused(
    tmp_path, write_recipe, tiny_vlm, pictures, capsys
):
    template = (
        "{% for message in messages if message['content'] is string %}{{ message['content'] }}{% "
        "endfor %}"
    )
    said = refused(
        capsys,
        [
            write_recipe(
                "grpo",
                model_name_or_path=str(tiny_vlm),
                dataset_name=str(pictures),
                chat_template=template,
                **SETTINGS,
            )
        ],
    )
    assert (
        "its chat template does not write pictures. Fix: a chat_template that writes "
        "'<image>'" in said
    )


def test_a_broken_processor_says_so(tmp_path, write_recipe, tiny_vlm, pictures, capsys):
    model = shutil.copytree(tiny_vlm, tmp_path / "model")
    (model / "processor_config.json").write_text("{", encoding="utf-8")
    said = refused(
        capsys,
        [
            write_recipe(
                "grpo", model_name_or_path=str(model), dataset_name=str(pictures), **SETTINGS
            )
        ],
    )
    assert "the data contain pictures, but the model's processor cannot be loaded" in said
