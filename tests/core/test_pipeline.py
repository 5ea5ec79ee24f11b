"""Pipelines: stages, table, memory of what is done, on a tiny random model. What the shipped ones
reach is measured, not tested.
"""

import dataclasses
import importlib
import os
import sys
from pathlib import Path

import pytest
import yaml

from r1_recipes import pipeline
from r1_recipes.common.errors import RecipeError
from r1_recipes.models.smoke import build_tiny_model
from tests.conftest import REPOSITORY
from tests.extras.preflight.test_preflight import model_that_writes

pytestmark = pytest.mark.slow

PIPELINES = sorted((REPOSITORY / "recipes" / "pipelines").glob("*.yaml"))


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
    load = pipeline._load

    def shortened(read, output_dir, stage):
        recipe, argv = load(read, output_dir, stage)
        if recipe.model.model_name_or_path.startswith("embedded:"):
            argv += ["--model_name_or_path", str(model)]
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
