"""GRPO on pictures: a tiny LLaVA learns from them."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from r1_recipes import grpo
from r1_recipes.common.messages import conversation_text
from r1_recipes.data import MAPPERS
from r1_recipes.extras.images import build_tiny_vlm
from tests.conftest import metrics, weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("offline")]
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
    assert "How many pixels wide is the square?" in conversation_text(
        table[0]["prompt"], roles=True
    )  # as the report shows it
    assert (run / "report.html").exists()
    assert (
        json.loads((run / "processor_config.json").read_text(encoding="utf-8"))["processor_class"]
        == "LlavaProcessor"
    )


def test_a_picture_is_found_and_upright(tmp_path):
    from PIL import Image

    held = Image.Exif()
    held[0x0112] = 6  # a phone on its side
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (40, 20)).save(path, exif=held)
    sides = {"bytes": path.read_bytes(), "path": None}
    for image in (sides, [sides], str(path), {"bytes": None, "path": str(path)}, Image.open(path)):
        mapped = MAPPERS["image_question"](
            {"image": image, "problem": "<image>How wide?", "solution": "20"}
        )
        assert mapped["image"].size == (20, 40) and mapped["question"] == "How wide?"
