"""Pipelines: stages, table, memory of what is done, on a tiny random model. What the shipped ones
reach is measured, not tested.
"""

import dataclasses
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from r1_recipes import pipeline
from r1_recipes.common import extras
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.smoke import build_tiny_model
from r1_recipes.runs import sources
from tests.conftest import REPOSITORY
from tests.extras.preflight.test_preflight import model_that_writes
from tests.support.report_runs import Page

PIPELINES = sorted((REPOSITORY / "recipes" / "pipelines").glob("*.yaml"))


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_shipped_pipelines_read_and_their_stages_stand_under_their_folder(path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    read = pipeline.read_pipeline(path)
    folders = []
    for stage in read.stages:
        if stage.recipe:
            recipe, _ = pipeline._load(read, Path("elsewhere"), stage)
            assert recipe.training.output_dir == f"elsewhere/{stage.name}"
            folders.append(recipe.training.output_dir)
            # what a stage starts from is what one before it left, or no part of this pipeline
            for text in sources.texts(recipe.settings):
                if text.startswith("elsewhere/"):
                    assert "/".join(text.split("/")[:2]) in folders
                assert not text.startswith(
                    "outputs/"
                )  # nor what another command would have to leave first
    assert Path(read.judge).is_file()


def test_make_distill_needs_nothing_but_a_clone():
    def commands(*arguments):
        return subprocess.run(
            ["make", "-n", "distill", *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert "-m r1_recipes.pipeline recipes/pipelines/distill.yaml" in commands()
    given = commands("TEACHER=r1/6_teacher_completions", "RECIPE=r1/6_distill")
    assert (
        "recipes/r1/6_teacher_completions.yaml" in given
        and "recipes/r1/6_distill.yaml" in given
        and "pipeline" not in given
    )


def test_every_stage_of_the_miniature_is_in_its_pipeline():
    recipes = {
        f"recipes/r1_mini/{path.name}"
        for path in (REPOSITORY / "recipes" / "r1_mini").glob("*.yaml")
    }
    stages = pipeline.read_pipeline(REPOSITORY / "recipes" / "pipelines" / "r1_mini.yaml").stages
    # A reward model of one's own stands beside the stages: the miniature's rewards are rules.
    beside = {"recipes/r1_mini/5_preference_pairs.yaml", "recipes/r1_mini/5_reward_model.yaml"}
    assert recipes - beside == {stage.recipe for stage in stages if stage.recipe}


def guesser(folder: Path) -> Path:
    """A checkpoint that answers every prompt with one of 16 sums in the format, or with a word
    without it, and then ends its turn.

    So rewards differ within a group, and some answers are right: what a random model would not give
    the stages that follow.
    """
    import torch
    from transformers import AutoTokenizer, Qwen2ForCausalLM

    build_tiny_model(folder, {})
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        Qwen2ForCausalLM.from_pretrained(folder),
    )
    said = [
        f"<think>\n{answer} is the sum.\n</think>\n<answer>\n{answer}\n</answer>"
        for answer in range(10, 26)
    ] + ["Perhaps."]
    tokenizer.add_tokens(said)
    model.resize_token_embeddings(len(tokenizer))
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    first, end = tokenizer.convert_tokens_to_ids(said), tokenizer.eos_token_id
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()  # the next token depends on the last one alone
        embeddings = model.get_input_embeddings().weight
        embeddings.zero_()
        embeddings[:, 0] = 1.0
        embeddings[first] = torch.eye(embeddings.shape[1])[1]
        model.lm_head.weight[first, 0] = model.lm_head.weight[end, 1] = 3.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.e2e
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_a_shipped_pipeline_runs_to_its_table(path, tmp_path, monkeypatch, in_process):
    """The shipped files, all stages, with another model and fewer steps."""
    import torch

    torch.set_num_threads(1)
    monkeypatch.chdir(REPOSITORY)
    model = guesser(tmp_path / "model")
    monkeypatch.setitem(
        extras.installed()["model"], "embedded:SmolLM2-135M-Instruct", lambda: model
    )
    load = pipeline._load

    def shortened(read, output_dir, stage):
        argv = load(read, output_dir, stage)[1]
        if stage.method != "generate":
            argv += ["--max_steps", "2", "--unfrozen_parameters", ""]
        return pipeline.load_recipe(argv, stage.method), argv

    monkeypatch.setattr(pipeline, "_load", shortened)
    read = pipeline.read_pipeline(path)
    # A guesser's groups are often all wrong; of more of them one is not.
    more = dataclasses.replace(
        read, preflight=read.preflight and pipeline.Preflight(groups=24, seconds=120)
    )
    monkeypatch.setattr(pipeline, "read_pipeline", lambda path: more)
    outcomes = pipeline.run_pipeline(path, tmp_path / "out", problems=4)
    assert list(outcomes) == [stage.name for stage in read.stages]
    trained = [stage.method for stage in read.stages if stage.method]
    assert [
        module.rpartition(".")[2] for module, _ in in_process if not module.endswith("preflight")
    ] == trained
    assert all(
        stage.label in (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
        for stage in read.stages
    )


@pytest.fixture
def in_process(monkeypatch):
    """Stages run in this process, which has loaded torch; the list has their commands. How a
    process may end is a test of its own.
    """
    commands = []

    def run(command):
        python, safe, option, module, *arguments = command
        assert (python, safe, option) == (
            sys.executable,
            "-P",
            "-m",
        )  # -P: no module of the working directory
        commands.append((module, arguments))
        loaded = importlib.import_module(module)
        if hasattr(loaded, "__path__"):  # a folder is a command by its __main__
            loaded = importlib.import_module(f"{module}.__main__")
        loaded.main(arguments)

    monkeypatch.setattr(pipeline, "_subprocess", run)
    return commands


@pytest.fixture
def tiny(tmp_path, tiny_model, write_recipe, sums):
    """A pipeline of SFT, a stage that generates from it, SFT on what was generated, and GRPO; three
    questions to judge by.
    """
    root = tmp_path / "out"
    held_out = {"dataset_test_split": "train", "max_eval_samples": 8}
    first = write_recipe(
        "sft", "first", output_dir=str(root / "first"), max_steps=1, save_strategy="no", **held_out
    )
    # About one token in 14 ends the turn (e³ of e³ + 260): what hardly ever ends within the limit,
    # preflight would not let pass.
    ends = model_that_writes("<|im_end|>", tiny_model, tmp_path / "ends", logit=3.0)
    judged = {
        "model_name_or_path": ends,
        "max_completion_length": 64,
        "max_steps": 1,
        "dataset_test_split": "train",
    }
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
            {
                "name": "data",
                "label": "its answers",
                "method": "generate",
                "recipe": str(tmp_path / "data.yaml"),
            },
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
    assert before == [*trained, "--groups=4", "--seconds=60", "--brief"]
    assert not (tmp_path / "out").exists()  # --output_dir moves every stage
    assert [len(outcomes[name].scores.greedy) for name in ("raw", "first", "last")] == [3, 3, 3]
    assert outcomes["data"].yielded["completions"] == {"generated": 16, "kept": 16}
    report = (moved / "results.md").read_text(encoding="utf-8")
    assert "| its answers |  |  |  |  |  | 16 of 16 (100%) |" in report
    assert (
        '"last SFT" compared with "raw model": greedy' in report
        and "3 training rows (split 'train' of" in report
        and "2 sampled answer(s) each and seed 1" in report
    )
    assert yaml.safe_load((moved / "last" / "recipe.yaml").read_text())["dataset_name"] == str(
        moved / "data" / "dataset"
    )
    said = capfd.readouterr().out
    assert (
        "4 Signal" in said and "Ready" in said and said.index("4 Signal") < said.index("Done: tiny")
    )
    pages = [moved / name / "report.html" for name in ("first", "last", "judge")] + [
        moved / "report.html"
    ]
    assert said.split()[-4:] == [str(page) for page in pages]
    *alone, together = (Page(page.read_text(encoding="utf-8")).data for page in pages)
    assert [run["name"] for run in together["runs"]] == ["first", "last", "judge"]
    for page in [*alone, together]:
        # written again after the models were judged
        assert [entry["label"] for entry in page["evaluations"]] == [
            "raw model",
            "first SFT",
            "last SFT",
            "GRPO",
        ]

    # Again: nothing is trained, generated or judged a second time.
    in_process.clear()
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*.safetensors")}
    again = pipeline.run_pipeline(tiny, moved)
    assert {path: path.stat().st_mtime_ns for path in moved.rglob("*.safetensors")} == before
    assert {name: outcome.scores for name, outcome in again.items()} == {
        name: outcome.scores for name, outcome in outcomes.items()
    }
    assert capfd.readouterr().out.count("already done") == 4 and in_process == []

    # Another seed in the same folder would mix two experiments.
    with pytest.raises(
        RecipeError,
        match=r"first already holds a finished sft run of recipe 'first' with different settings \(seed: "
        r"1 then, 2 now\)",
    ):
        pipeline.run_pipeline(tiny, moved, seed=2)
    # So would a stage whose start was made again.
    run = moved / "first" / "run.json"
    os.utime(run)  # when it was copied says nothing
    pipeline.run_pipeline(tiny, moved)
    assert in_process == []
    run.write_text(run.read_text().replace('"started": "2', '"started": "3'))
    with pytest.raises(
        RecipeError, match=r"data holds a run that started from .*first, which changed since"
    ):
        pipeline.run_pipeline(tiny, moved)


def test_a_grpo_stage_that_preflight_advises_against_is_not_begun(
    tiny, tmp_path, write_recipe, in_process, capfd
):
    changes = {
        "model_name_or_path": str(tmp_path / "ends"),
        "max_completion_length": 64,
        "reward_funcs": ["tests.extras.preflight.test_preflight:nothing"],
    }
    hopeless = write_recipe("grpo", "hopeless", output_dir=str(tmp_path / "out" / "rl"), **changes)
    values = yaml.safe_load(tiny.read_text())
    values |= {
        "stages": [{"name": "rl", "label": "GRPO", "method": "grpo", "recipe": hopeless}],
        "compare": [],
    }
    tiny.write_text(yaml.safe_dump(values))
    with pytest.raises(SystemExit) as stopped:
        pipeline.run_pipeline(tiny)
    assert stopped.value.code == 1 and [module for module, _ in in_process] == [
        "r1_recipes.preflight"
    ]
    said = capfd.readouterr()
    assert (
        "4 of 4 groups (100%) have no spread, 4 of them all 0, so GRPO has nothing to compare"
        in said.out
    )
    assert "Do not start this run: 1 error" in said.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"stages": []}, "stages: must be a list of mappings of name, label"),
        ({"stagse": 1}, "unknown key 'stagse'. Did you mean 'stages'"),
        ({"judge": None}, "judge: missing"),
        ({"compare": [["raw", "lest"]]}, "unknown stage with a model 'lest'. Did you mean 'last'"),
        ({"compare": [["raw", "data"]]}, "unknown stage with a model 'data'"),
        ({"problems": 0}, "problems and num_samples: must be 1 or more, got 0 and"),
        ({"preflight": {"groups": 4}}, "preflight: seconds: missing"),
        ({"preflight": {"groups": 4, "seconds": 10**400}}, "seconds: must be a number, got 1000"),
        (
            {"preflight": {"group": 4, "seconds": 9}},
            "preflight: unknown key 'group'. Did you mean 'groups'",
        ),
        (
            {"stages": [{"name": "a", "label": "a", "model": "m"}] * 2, "compare": []},
            "names must differ",
        ),
    ],
)
def test_a_pipeline_file_that_cannot_work_is_refused_by_name(tiny, change, message):
    values = {**yaml.safe_load(tiny.read_text()), **change}
    tiny.write_text(
        yaml.safe_dump({key: value for key, value in values.items() if value is not None})
    )
    with pytest.raises(RecipeError, match=r"pipeline\.yaml") as refused:
        pipeline.read_pipeline(tiny)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"method": "sgt"}, "unknown method 'sgt'"),
        ({"model": "x"}, "must have either method and recipe"),
        ({"labl": "x"}, "unknown key"),
        ({"overrides": "seed: 2"}, "overrides: must be a mapping, got 'seed: 2'"),
        (
            {"method": None, "recipe": None, "model": "x", "overrides": {"seed": 2}},
            "must have either method and recipe",
        ),
    ],
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
    with pytest.raises(RecipeError, match=r"ended by signal 9 \(9 usually means out of memory\)"):
        pipeline._subprocess([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    with pytest.raises(KeyboardInterrupt):
        pipeline._subprocess([sys.executable, "-c", "raise SystemExit(130)"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stage_ends_with_its_pipeline(tmp_path, number):
    stage = (
        "import pathlib, signal, sys, time\n"
        "def stop(number, frame):\n"
        "    pathlib.Path(sys.argv[1], 'saved').touch()\n"
        "    sys.exit(130)\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, stop)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
        "pathlib.Path(sys.argv[1], 'went on').touch()"
    )
    code = (
        "import sys; from r1_recipes import pipeline; from r1_recipes.common import console\n"
        "with console.reported_errors(): pipeline._subprocess([sys.executable, '-c', "
        "*sys.argv[1:]])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, stage, str(tmp_path)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    process.communicate(timeout=30)  # the stage has its end of the pipe too
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_model_is_judged_again_by_another_judge_or_with_other_weights(
    tiny, tmp_path, tiny_model, monkeypatch
):
    import shutil

    from r1_recipes.metrics import run as metrics_run

    batches = []
    generate = metrics_run._generate
    monkeypatch.setattr(
        metrics_run, "_generate", lambda *a: batches.append(len(a[2])) or generate(*a)
    )
    model = shutil.copytree(tiny_model, tmp_path / "model")

    def judged(**changes):
        read = dataclasses.replace(pipeline.read_pipeline(tiny), **changes)
        batches.clear()
        return pipeline._judge(read, tmp_path / "out", read.stages[0], str(model)), list(batches)

    first, generated = judged()
    assert generated == [3]
    # On another machine, the second time.
    monkeypatch.setattr(
        "r1_recipes.recipe.load._follow_machine",
        lambda recipe, settings: settings.update(use_vllm=False) or {},
    )
    assert judged() == (first, [])
    assert judged(problems=2)[1] == [2] and judged(seed=2)[1] == [3] and judged() == (first, [])
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-4] + b"\x00" * 4)
    assert judged()[1] == [3]
