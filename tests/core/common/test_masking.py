"""What is secret is used and never written: names, addresses, messages, and every file that a run
leaves.
"""

import dataclasses
import json
import logging
import os
import sys

import pytest
import yaml

from r1_recipes import grpo, sft
from r1_recipes.common import masking
from r1_recipes.common.masking import is_secret
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.types import argument_types
from r1_recipes.runs import run_dir
from r1_recipes.training import run
from r1_recipes.training.start import start

CANARY = "hf_canary0123456789"


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch):
    monkeypatch.setattr(masking, "_seen", set())
    monkeypatch.delenv("HF_TOKEN", raising=False)


def test_secrets_are_recognised_by_name():
    for name in (
        "token",
        "hub_token",
        "hf-token",
        "push_to_hub_token",
        "OPENAI_API_KEY",
        "aws_secret_access_key",
        "DB_PASSWORD",
    ):
        assert is_secret(name), name
    for name in (
        "max_prompt_tokens",
        "eos_token",
        "pad_token",
        "pad_token_id",
        "image_token",
        "key",
        "keep",
        "tokenizer_name",
        "author",
    ):
        assert not is_secret(name), name
    kinds = {
        kind
        for method in ("grpo", "sft", "distill", "reward", "generate", "evaluate")
        for kind in argument_types(method)
    }
    ours = {f.name for kind in kinds for f in dataclasses.fields(kind) if is_secret(f.name)}
    assert ours == {"hub_token"}


def holding(folder, needle=CANARY):
    """Every file below a folder that holds the canary, in whatever format."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and needle.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_no_file_of_a_run_holds_a_secret_and_the_run_has_them(
    write_recipe, tmp_path, monkeypatch, capsys, method
):
    main, tokens = {"grpo": grpo.main, "sft": sft.main}[method], []
    settings = {
        "model_init_kwargs": {"token": CANARY},
        "report_to": "tensorboard",
        "lr_scheduler_kwargs": {},
        "max_steps": 2,
    }
    if method == "grpo":
        settings |= {
            "vllm_server_base_url": f"http://me:{CANARY}@localhost:8000",
            "generation_kwargs": {"api_key": CANARY},
        }
    words = [write_recipe(method, **settings), "--hub_token", CANARY]
    monkeypatch.setattr(sys, "argv", ["program", *words])

    def started(argv, method):
        begun = start(argv, method)
        logging.getLogger("r1_recipes.test").warning("the hub says: %s is no token", CANARY)
        tokens.extend(
            [begun.recipe.training.hub_token, begun.recipe.training.model_init_kwargs["token"]]
        )
        return begun

    monkeypatch.setattr(run, "start", started)
    main()
    assert CANARY not in str(sys.argv)  # W&B's copy
    assert tokens == [CANARY, CANARY] and os.environ["HF_TOKEN"] == CANARY
    folder = tmp_path / "run"
    assert holding(folder) == []
    assert {
        "recipe.yaml",
        "run.json",
        "run.log",
        "training_args.bin",
        "README.md",
        "report.html",
    } <= {p.name for p in folder.iterdir()}
    assert list(folder.rglob("events.out.tfevents.*"))
    assert json.loads((folder / "run.json").read_text())["argv"][-2:] == ["--hub_token", "***"]
    assert "the hub says: *** is no token" in (folder / "run.log").read_text()
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["model_init_kwargs"] == {
        "token": "***"
    }
    # The mask is no change, and neither is a new secret.
    renewed = [
        *words[:2],
        "hf_another0123456789",
        "--model_init_kwargs",
        json.dumps({"token": "hf_another0123456789"}),
    ]
    for again in (words, renewed):
        assert run_dir.changed_settings(load_recipe(again, method), folder) == []
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 0
    assert CANARY not in "".join(capsys.readouterr())


def test_no_error_shows_a_secret(write_recipe, capsys, monkeypatch):
    from r1_recipes.extras.preflight import __main__ as preflight

    for words in (
        [
            "--dataset_config",
            f"https://me:{CANARY}@host",
            "--learning_rate",
            f"https://me:{CANARY}@host",
        ],
        ["--hub_token", CANARY, "--seed", CANARY],
    ):
        with pytest.raises(SystemExit) as refused:
            sft.main([write_recipe("sft"), *words])
        said = capsys.readouterr().err
        assert (
            refused.value.code == 2
            and ("***" in said or "not valid YAML" in said)
            and CANARY not in said
        )
        with pytest.raises(SystemExit):
            preflight.main([write_recipe("sft"), *words])
        assert CANARY not in "".join(capsys.readouterr())
