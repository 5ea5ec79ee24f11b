"""The quickstart notebook runs from its first cell to its last, and keeps outputs without a
machine's paths.
"""

import base64
import json
import re

import pytest
import yaml

nbformat = pytest.importorskip("nbformat", reason="the notebook's packages: make install")
pytest.importorskip("nbclient", reason="the notebook's packages: make install")

from tools import notebook  # noqa: E402

KEPT = nbformat.read(notebook.NOTEBOOK, as_version=4)


def texts(cells):
    """All that the outputs of code cells hold, as one text."""
    return "\n".join(
        json.dumps(output.get("text") or output.get("data") or output, ensure_ascii=False)
        for cell in cells
        for output in cell.get("outputs", [])
    )


def pictures(cells):
    return [
        base64.b64decode(output.data["image/png"])
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def recipe_of(cells):
    (source,) = (cell.source for cell in cells if cell.source.startswith("%%writefile quick"))
    return yaml.safe_load(source.partition("\n")[2])


def test_the_kept_notebook_has_its_outputs_and_no_path_of_a_machine():
    nbformat.validate(KEPT)
    kept = texts(KEPT.cells)
    assert re.findall(r"/(?:root|home|tmp|work|Users)/\S*", kept) == []
    assert "Traceback" not in kept and len(pictures(KEPT.cells)) == 1
    assert [cell.execution_count for cell in KEPT.cells if cell.cell_type == "code"] == list(
        range(1, 1 + sum(cell.cell_type == "code" for cell in KEPT.cells))
    )
    assert re.search(r" 5/5 ", kept)


def test_the_first_cell_names_the_keys_that_a_t4_needs():
    first = KEPT.cells[0].source
    recipe = recipe_of(KEPT.cells)
    assert (recipe["use_cpu"], recipe["bf16"], recipe["dtype"]) == (True, False, "float32")
    for line in ("`use_cpu: false`", "`fp16: true`", "`bf16: false`", "`dtype: float32`"):
        assert line in first


@pytest.mark.slow
@pytest.mark.e2e
def test_the_notebook_runs(smollm2, tmp_path, monkeypatch):
    # Two threads beside another worker's wait for each other most of the time.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "")  # which execute sets
    done = notebook.execute(tmp_path)
    run = tmp_path / "outputs" / "quickstart" / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open(encoding="utf-8")]
    rewards = [line["reward"] for line in lines if "reward" in line]
    assert len(rewards) == 5 and max(rewards[1:]) > rewards[0]
    assert len(pictures(done.cells)) == 1 and (run / "report.html").exists()
    sources = [cell.source for cell in KEPT.cells]
    assert [cell.source for cell in notebook.tidied(done, tmp_path).cells] == sources
