"""Pipelines: stages, table, memory of what is done, on a tiny random model. What the shipped ones reach is measured, not tested."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import yaml

from r1_recipes import pipeline
from r1_recipes.errors import RecipeError
from tests.conftest import REPOSITORY
from tests.test_preflight import model_that_writes
from tests.test_report import Page

PIPELINES = sorted((REPOSITORY / "recipes" / "pipelines").glob("*.yaml"))


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_shipped_pipelines_read_and_their_stages_stand_under_their_folder(path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    read = pipeline.read_pipeline(path)
    folders = []
    for stage in read.stages:
        if stage.recipe:
            recipe, _ = pipeline._load(pipeline._Run(read, Path("elsewhere"), {}), stage)
            assert recipe.training.output_dir == f"elsewhere/{stage.name}"
            folders.append(recipe.training.output_dir)
            # what a stage starts from is what one before it left, or no part of this pipeline
            for start in pipeline._folders_in(recipe.settings, Path("elsewhere")):
                assert str(start) in folders
    assert Path(read.judge).is_file()


def test_every_stage_of_the_miniature_is_in_its_pipeline():
    recipes = {f"recipes/r1_mini/{path.name}" for path in (REPOSITORY / "recipes" / "r1_mini").glob("*.yaml")}
    stages = pipeline.read_pipeline(REPOSITORY / "recipes" / "pipelines" / "r1_mini.yaml").stages
    assert recipes == {stage.recipe for stage in stages if stage.recipe}


@pytest.fixture
def in_process(monkeypatch):
    """Stages run in this process, which has loaded torch; the list has their commands. How a process may end is a test of its own."""
    commands = []

    def run(command):
        python, option, module, *arguments = command
        assert (python, option) == (sys.executable, "-m")
        commands.append((module, arguments))
        importlib.import_module(module).main(arguments)
        return 1.0

    monkeypatch.setattr(pipeline, "_subprocess", run)
    return commands


@pytest.fixture
def tiny(tmp_path, tiny_model, write_recipe, sums):
    """A pipeline of SFT, a stage that generates from it, SFT on what was generated, and GRPO; three questions to judge by."""
    root = tmp_path / "out"
    held_out = {"dataset_test_split": "train", "max_eval_samples": 8}
    first = write_recipe("sft", "first", output_dir=str(root / "first"), max_steps=1, save_strategy="no", **held_out)
    # About one token in 14 ends the turn (e³ of e³ + 260): what hardly ever ends within the limit, preflight would not let pass.
    ends = model_that_writes("<|im_end|>", tiny_model, tmp_path / "ends", logit=3.0)
    judged = {"model_name_or_path": ends, "max_completion_length": 64, "max_steps": 1, "dataset_test_split": "train"}
    judge = write_recipe("grpo", "judge", output_dir=str(root / "judge"), **judged)
    data = {
        "model_name_or_path": str(root / "first"),
        "dataset_name": str(sums),
        "mapper": "gsm8k",
        "dtype": "float32",
        "use_cpu": True,
        "num_generations": 2,
        "max_completion_length": 6,
        "output_dir": str(root / "data"),
    }
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    last = write_recipe(
        "sft",
        "last",
        dataset_name=str(root / "data" / "dataset"),
        mapper="generated",
        mapper_config={"well_formed": False},
        output_dir=str(root / "last"),
        max_steps=1,
        save_strategy="no",
    )
    settings = {
        "title": "tiny",
        "output_dir": str(root),
        "stages": [
            {"name": "raw", "label": "raw model", "model": str(tiny_model)},
            {"name": "first", "label": "first SFT", "method": "sft", "recipe": first},
            {"name": "data", "label": "its answers", "method": "generate", "recipe": str(tmp_path / "data.yaml")},
            {"name": "last", "label": "last SFT", "method": "sft", "recipe": last},
            {"name": "judge", "label": "GRPO", "method": "grpo", "recipe": judge},
        ],
        "judge": judge,
        "problems": 3,
        "num_samples": 2,
        "compare": [["raw", "last"]],
        "preflight": {"groups": 4, "seconds": 60},
    }
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


@pytest.mark.e2e
def test_a_pipeline_trains_generates_judges_and_remembers(tiny, tmp_path, in_process, capfd):
    moved = tmp_path / "moved"
    outcomes = pipeline.run_pipeline(tiny, moved)
    modules = ["sft", "generate", "sft", "preflight", "grpo"]
    assert [module for module, _ in in_process] == [f"r1_recipes.{name}" for name in modules]
    (_, before), (_, trained) = in_process[-2:]
    # Preflight sees the very recipe that is then trained, overrides and all.
    assert before == [*trained, "--method", "grpo", "--groups", "4", "--seconds", "60", "--brief"]
    assert not (tmp_path / "out").exists()  # --output_dir moves every stage
    assert [len(outcomes[name].scores.greedy) for name in ("raw", "first", "last")] == [3, 3, 3]
    assert outcomes["data"].yielded["completions"] == 16 == outcomes["data"].yielded["kept_completions"]
    report = (moved / "results.md").read_text(encoding="utf-8")
    assert "| its answers |  |  |  |  |  | 16 of 16 (100%) |" in report
    assert "last SFT over raw model: greedy" in report and "3 held-out problems, 2 sampled answers each; seed 1" in report
    assert json.loads((moved / "last" / "run.json").read_text())["identity"]["dataset_name"] == str(moved / "data" / "dataset")
    said = capfd.readouterr().out
    assert "4 Signal" in said and "Ready" in said and said.index("4 Signal") < said.index("Done in")
    pages = [moved / name / "report.html" for name in ("first", "last", "judge")] + [moved / "report.html"]
    assert said.split()[-4:] == [str(page) for page in pages]
    *alone, together = (Page(page.read_text(encoding="utf-8")).data for page in pages)
    assert [run["name"] for run in together["runs"]] == ["first", "last", "judge"]
    for page in [*alone, together]:
        # written again after the models were judged
        assert [entry["label"] for entry in page["evaluations"]] == ["raw model", "first SFT", "last SFT", "GRPO"]

    # Again: nothing is trained, generated or judged a second time.
    in_process.clear()
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*.safetensors")}
    again = pipeline.run_pipeline(tiny, moved)
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*.safetensors")} == before
    assert {name: outcome.scores for name, outcome in again.items()} == {name: outcome.scores for name, outcome in outcomes.items()}
    assert capfd.readouterr().out.count("already done") == 4 and in_process == []

    # Another seed in the same folder would mix two experiments.
    with pytest.raises(RecipeError, match=r"first was made before seed changed; remove"):
        pipeline.run_pipeline(tiny, moved, seed=2)
    # So would a stage whose start was made again.
    run = moved / "first" / "run.json"
    run.write_text(run.read_text())
    with pytest.raises(RecipeError, match=r"data was made before the run in .*first changed"):
        pipeline.run_pipeline(tiny, moved)


def test_a_grpo_stage_that_preflight_advises_against_is_not_begun(tiny, tmp_path, write_recipe, in_process, capfd):
    changes = {"model_name_or_path": str(tmp_path / "ends"), "max_completion_length": 64, "reward_funcs": ["tests.test_preflight:nothing"]}
    hopeless = write_recipe("grpo", "hopeless", output_dir=str(tmp_path / "out" / "rl"), **changes)
    values = yaml.safe_load(tiny.read_text())
    values |= {"stages": [{"name": "rl", "label": "GRPO", "method": "grpo", "recipe": hopeless}], "compare": []}
    tiny.write_text(yaml.safe_dump(values))
    with pytest.raises(SystemExit) as stopped:
        pipeline.run_pipeline(tiny)
    assert stopped.value.code == 1 and [module for module, _ in in_process] == ["r1_recipes.preflight"]
    said = capfd.readouterr()
    assert "4 of 4 groups (100%) have no spread, 4 of them all 0: GRPO has nothing to compare" in said.out
    assert "Do not start this run: 1 error" in said.out and "stage rl was not begun" in said.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"stages": []}, "stages: a list"),
        ({"stagse": 1}, "unknown key 'stagse'. Did you mean 'stages'"),
        ({"judge": None}, "judge: missing"),
        ({"compare": [["raw", "lest"]]}, "unknown stage with a model 'lest'. Did you mean 'last'"),
        ({"compare": [["raw", "data"]]}, "unknown stage with a model 'data'"),
        ({"preflight": {"groups": 4}}, "preflight: seconds: missing"),
        ({"preflight": {"group": 4, "seconds": 9}}, "preflight: unknown key 'group'. Did you mean 'groups'"),
        ({"stages": [{"name": "a", "label": "a", "model": "m"}] * 2, "compare": []}, "names must differ"),
    ],
)
def test_a_pipeline_file_that_cannot_work_is_refused_by_name(tiny, change, message):
    values = {**yaml.safe_load(tiny.read_text()), **change}
    tiny.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    with pytest.raises(RecipeError, match=r"pipeline\.yaml") as refused:
        pipeline.read_pipeline(tiny)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "change, message",
    [({"method": "sgt"}, "unknown method 'sgt'"), ({"model": "x"}, "either method and recipe, or model"), ({"labl": "x"}, "unknown key")],
)
def test_a_stage_that_cannot_work_is_refused_by_number(tiny, change, message):
    values = yaml.safe_load(tiny.read_text())
    values["stages"][1] |= change
    tiny.write_text(yaml.safe_dump(values))
    with pytest.raises(RecipeError, match="stage 2") as refused:
        pipeline.read_pipeline(tiny)
    assert message in str(refused.value)


def test_an_unreadable_recipe_is_found_before_the_first_stage_runs(tiny, tmp_path, monkeypatch):
    (tmp_path / "last.yaml").write_text("learning_rat: 1\n")
    monkeypatch.setattr(pipeline, "_subprocess", lambda command: pytest.fail("nothing may run"))
    with pytest.raises(RecipeError, match="learning_rat"):
        pipeline.run_pipeline(tiny)


def test_a_stage_that_fails_passes_its_status_on():
    with pytest.raises(SystemExit) as stopped:
        pipeline._subprocess([sys.executable, "-c", "raise SystemExit(7)"])
    assert stopped.value.code == 7
    with pytest.raises(RecipeError, match="ended by signal 9: usually the machine ran out of memory"):
        pipeline._subprocess([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    with pytest.raises(KeyboardInterrupt):
        pipeline._subprocess([sys.executable, "-c", "raise SystemExit(130)"])
