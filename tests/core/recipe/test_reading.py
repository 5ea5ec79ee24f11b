"""Files of strangers are read: recipes, run folders, pipelines. Reading runs nothing, expands
nothing without end, and hides no fault.
"""

import sys
from pathlib import Path

import pytest

from r1_recipes import pipeline
from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.report import __main__
from r1_recipes.extras.report.page import REPORT_FILE, write
from r1_recipes.extras.report.read import read_run
from r1_recipes.recipe.load import load_recipe
from r1_recipes.runs import checkpoints, run_dir
from r1_recipes.training import start
from tests.core.recipe.test_load import BOMB, GRPO, MERGES

FOREIGN = """\
model_name_or_path: outputs/first/model
dataset_name: nobody/data
reward_funcs: ["evil:reward"]
mapper: evil:mapper
evil_parameter: 3
torch_dtype: bfloat16
output_dir: outputs/first
"""


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A working directory with ``evil.py``, which leaves a file behind when it is imported; gives
    that file's path.
    """
    (tmp_path / "evil.py").write_text(
        "open('ran', 'w').close()\ndef reward(completions, **columns): return [0.0] * "
        "len(completions)\n"
    )
    (tmp_path / "theirs.yaml").write_text(FOREIGN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "ran"
    sys.modules.pop("evil", None)


def test_what_reads_a_sibling_a_run_folder_or_a_pipeline_imports_nothing(evil, tmp_path):
    (tmp_path / "mine.yaml").write_text(GRPO.replace("nobody/model", "outputs/first/checkpoint-1"))
    mine = load_recipe(["mine.yaml"], "grpo")
    with pytest.raises(RecipeError, match=r"run theirs\.yaml first"):
        start.check_files(mine.path, mine.settings)
    folder = tmp_path / "outputs" / "first"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(FOREIGN)
    (folder / "run.json").write_text('{"recipe": "theirs", "method": "grpo"}')
    assert "reward_funcs" in run_dir.changed_settings(mine, folder)
    __main__.main([str(folder)])
    assert (folder / REPORT_FILE).is_file()
    stage = "{name: one, label: One, method: grpo, recipe: theirs.yaml}"
    Path("p.yaml").write_text(
        f"title: t\noutput_dir: o\nstages: [{stage}]\njudge: mine.yaml\nproblems: "
        f"1\nnum_samples: 1\n",
        encoding="utf-8",
    )
    assert pipeline.read_pipeline(Path("p.yaml")).stages[0].recipe == "theirs.yaml"
    assert not evil.exists()


def test_a_command_imports_the_module(evil):
    with pytest.raises(RecipeError, match="evil"):  # it has no such mapper
        load_recipe(["theirs.yaml"], "grpo")
    assert evil.exists()


@pytest.mark.parametrize(
    "bomb",
    [BOMB, MERGES, "a: &a [*a]\n", "a: " + "[" * 50_000, "a: 2025-02-30\n", "a: " + "1" * 5000],
)
def test_a_run_folder_with_a_bomb_still_has_a_page(tmp_path, bomb):
    (tmp_path / "recipe.yaml").write_text(bomb)
    (tmp_path / "run.json").write_text('{"recipe": "r", "method": "sft"}')
    __main__.main([str(tmp_path)])
    assert ("torn_file", "recipe.yaml") in [
        (item["code"], item["values"]["file"]) for item in read_run(tmp_path).missing
    ]


@pytest.mark.parametrize(
    "entry",
    [
        "[" * 100_000,
        "[]",
        "3",
    ],
)
def test_a_run_folder_whose_entry_is_rubbish_is_refused_in_one_line(tmp_path, entry):
    (tmp_path / "mine.yaml").write_text(GRPO)
    folder = tmp_path / "run"
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "run.json").write_text(entry)
    recipe = load_recipe([str(tmp_path / "mine.yaml")], "grpo")
    with pytest.raises(RecipeError, match=r"its run\.json cannot be read"):
        run_dir.check(recipe, folder)
    assert not run_dir.is_finished(folder)
    (folder / "checkpoint-1" / "trainer_state.json").write_text("[" * 100_000)
    assert checkpoints.newest_intact(folder) is None


def test_a_value_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    for key in ("model_init_kwargs", "mapper_config"):
        path.write_text(GRPO + f"{key}: '{'[' * 100_000}'\n")
        with pytest.raises(RecipeError, match=key):
            load_recipe([str(path)], "grpo")


def test_the_page_reads_no_link_pipe_or_bomb_of_a_run_folder(tmp_path):
    import os

    import pyarrow
    import pyarrow.parquet

    folder = tmp_path / "run"
    (folder / "completions").mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("kept: elsewhere-only\n")
    (folder / "recipe.yaml").symlink_to(tmp_path / "elsewhere")
    (folder / "run.json").write_text('{"recipe": ' + "[" * 600 + "]" * 600 + "}")
    os.mkfifo(folder / "completions" / "completions_00000.parquet")
    lines = [
        f'{{"step": {step}, "reward": 1e308, "completions/clipped_ratio": 1e308}}'
        for step in range(12)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    (folder / "results.json").write_text('{"model": "m", "acc": [1e308, 1e308]}')
    table = pyarrow.table({"step": [1], "prompt": ["p"], "completion": ["c"]})
    pyarrow.parquet.write_table(table, folder / "completions" / "completions_00001.parquet")
    bomb = pyarrow.table(
        {"completion": pyarrow.array(["a" * (1 << 20)]).take(pyarrow.array([0] * 1100))}
    )
    pyarrow.parquet.write_table(
        bomb,
        folder / "completions" / "completions_00002.parquet",
        use_dictionary=False,
        compression="zstd",
    )
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (f".report.html.{os.getpid()}.part", "report.html"):
        (folder / name).symlink_to(victim)
    page = write([folder]).read_text()
    assert victim.read_text() == "mine" and not (folder / "report.html").is_symlink()
    assert "elsewhere-only" not in page and "unpacked" in page


def test_no_error_about_broken_yaml_shows_a_key(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text('hub_token: "hf_canary_canary\nmax_steps: 1\n')
    with pytest.raises(RecipeError, match=r"not valid YAML: .* line 1, column 12") as told:
        load_recipe([str(path)], "grpo")
    assert "canary" not in str(told.value) and "\n" not in str(told.value)
