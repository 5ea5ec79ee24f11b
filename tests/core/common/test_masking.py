"""What is secret is used and never written: names, addresses, messages, and every file that a run
leaves.
"""

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path

import pytest
import yaml

from r1_recipes import generate, grpo, sft
from r1_recipes.common import masking
from r1_recipes.common.masking import is_secret, masked, masked_text, masked_words
from r1_recipes.recipe.load import load_recipe
from r1_recipes.recipe.types import argument_types
from r1_recipes.runs import run_dir
from r1_recipes.training import run
from r1_recipes.training.start import start
from tests.support.chat_server import chat_server, reply
from tests.support.needs import needs
from tests.support.rewards import seconds

CANARY = "hf_canary0123456789"
SHAPES = (
    "hf_" + "aB3" * 11,
    "sk-" + "aB3" * 16,
    "sk-proj-" + "aB3_" * 5 + "x" * 20,
    "sk-ant-api03-" + "aB3" * 16,
    "ghp_" + "aB3" * 12,
    "github_pat_" + "aB3_" * 10,
    "glpat-" + "aB3-" * 5,
    "AKIA" + "A1B2" * 4,
    "gsk_" + "aB3" * 12,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "sk-" + "0a1b" * 8,
    "sk-or-v1-" + "0a1b" * 16,
    *(
        prefix + "aB3" * 11
        for prefix in (
            "xai-",
            "fw_",
            "r8_",
            "pplx-",
            "pypi-Ag",
            "npm_",
            "ya29.",
            "sk_live_",
            "wandb_v1_",
        )
    ),
    "ASIA" + "A1B2" * 4,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow+/\nx=\n-----END RSA PRIVATE KEY-----",
)


# A mask of these would make a changed setting equal to the old one.
NO_SECRETS = (
    *(
        "gold_key",
        "target_key",
        "chosen_key",
        "rejected_key",
        "problem_key",
        "content_key",
        "role_key",
        "context_key",
        "level_key",
    ),
    *("think_token", "answer_token", "token_budget", "low_pass", "num_pass", "secretary"),
)


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch):
    monkeypatch.setattr(masking, "_seen", set())
    monkeypatch.delenv("HF_TOKEN", raising=False)


def keys_of(value):
    """The keys of a mapping at any depth."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    return (
        {str(key) for key in value}.union(*map(keys_of, value.values()))
        if isinstance(value, dict)
        else set()
    )


def test_secrets_are_recognised_by_name():
    for name in (
        "token",
        "hub_token",
        "hf-token",
        "push_to_hub_token",
        "apiKey",
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
    for name in (
        "openai_key",
        "api_keys",
        "judge_bearer",
        "azure_subscription_key",
        "id_token",
        "jwt",
        "pwd",
        "groq_key",
        "OPENAI_KEY",
    ):
        assert is_secret(name), name
    for name in (
        "image_key",
        "sort_keys",
        "num_tokens",
        "token_truncate",
        "reward_fn_key",
        "public_key",
        "missing_keys",
        "keys",
        "PWD",
        "monkey",
    ):
        assert not is_secret(name), name
    written = yaml.safe_load(Path("tests/golden/recipes.yaml").read_text(encoding="utf-8"))
    assert {name for name in keys_of(written) if is_secret(name)} <= {"hub_token"}
    kinds = {
        kind
        for method in ("grpo", "sft", "distill", "reward", "generate", "evaluate")
        for kind in argument_types(method)
    }
    ours = {f.name for kind in kinds for f in dataclasses.fields(kind) if is_secret(f.name)}
    assert ours == {"hub_token"}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("hub_token", CANARY, "***"),
        (
            "x",
            {"a": [{"api_key": CANARY, "eos_token": "</s>"}]},
            {"a": [{"api_key": "***", "eos_token": "</s>"}]},
        ),
        (
            "credentials",
            {"user": "me", "all": [CANARY, True, None]},
            {"user": "***", "all": ["***", True, None]},
        ),
        ("x", f"https://me:{CANARY}@host/a?b=c", "https://***@host/a?b=c"),
        ("x", f"s3://{CANARY}@bucket", "s3://***@bucket"),
        ("x", f"https://host/a?page=2&token={CANARY}#x", "https://host/a?page=2&token=***#x"),
        ("x", f"https://host/a?sig={CANARY}", "https://host/a?sig=***"),
        (
            "x",
            f'{{"token": "{CANARY} {CANARY}", "revision": "main"}}',
            '{"token": ***, "revision": "main"}',
        ),
        ("x", '{"x": [{"y": {"api_key": "zzz"}}]}', '{"x": [{"y": {"api_key": ***}}]}'),
        ("x", "{x: [{api_key: zzz}], y: 1", "{x: [{api_key: ***}], y: 1"),
        (
            "x",
            "authorization: BEARER 0123456789abcdef, basic dXNlcjpwYXNzd29yZDE=",
            "authorization: BEARER ***, basic ***",
        ),
        (
            "x",
            "basic Qwen2.5-0.5B-Instruct and basic reinforcement-learning",
            "basic Qwen2.5-0.5B-Instruct and basic reinforcement-learning",
        ),
        ("x", f"{{token: {CANARY}, a: 1", "{token: ***, a: 1"),
        ("x", "hf://datasets/a/b@main/c", "hf://datasets/a/b@main/c"),
        ("x", "Say your token: then stop", "Say your token: then stop"),
        ("x", f'{{"api_keys": ["{CANARY}", "{CANARY}2"], "n": 1}}', '{"api_keys": ***, "n": 1}'),
        ("api_keys", [[CANARY], {"a": CANARY}], [["***"], {"a": "***"}]),
        ("x", f"Authorization: Bearer {CANARY}", "Authorization: Bearer ***"),
        ("x", [f"run {shape}!" for shape in SHAPES], ["run ***!"] * len(SHAPES)),
        (
            "x",
            "the bearer responsibilities of task-based-learning-2024",
            "the bearer responsibilities of task-based-learning-2024",
        ),
        ("max_prompt_tokens", 300, 300),
        ("token", True, True),
        ("token", 12345678, "***"),
    ],
)
def test_settings_are_shown_without_secrets(name, value, shown):
    assert masked(value, name) == shown == masked(shown, name)
    if CANARY in str(value) and shown != value:
        assert masked_text(f"refused: {value!r}").count("***") >= 1 and CANARY not in masked_text(
            f"refused: {value!r}"
        )


def test_command_lines_are_shown_without_secrets():
    argv = [
        "x.yaml",
        "--hub_token",
        CANARY,
        "--seed",
        "1",
        f"--hub-token={CANARY}",
        "--max_prompt_tokens",
        "300",
        "--hf_token",
        CANARY,
    ]
    argv += [
        "--model_init_kwargs",
        json.dumps({"token": CANARY}),
        "--dataset_name",
        f"https://me:{CANARY}@host/x.jsonl",
    ]
    assert masked_words(["a=b", f"--openai_key={CANARY}", f"OPENAI_KEY={CANARY}"]) == [
        "a=b",
        "--openai_key=***",
        "OPENAI_KEY=***",
    ]
    shown = masked_words(argv)
    assert CANARY not in str(shown)
    assert shown[:10] == [
        "x.yaml",
        "--hub_token",
        "***",
        "--seed",
        "1",
        "--hub-token=***",
        "--max_prompt_tokens",
        "300",
        "--hf_token",
        "***",
    ]
    assert shown[10:] == [
        "--model_init_kwargs",
        '{"token": ***}',
        "--dataset_name",
        "https://***@host/x.jsonl",
    ]


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ('{"x": [{"y": {"api_key": "zzz"}}]}', '{"x": [{"y": {"api_key": ***}}]}'),
        (
            '{"datasets":[{"id":"x","mapper_config":{"api_key":"zzz"}}]}',
            '{"datasets": [{"id": "x", "mapper_config": {"api_key": ***}}]}',
        ),
        (
            "{a: 'x', b: [{c: {private_key: 'it''s zzz'}}]}",
            '{"a": "x", "b": [{"c": {"private_key": ***}}]}',
        ),
        ("{x:[{api_key:zzz", "{x:[{api_key:***"),
        (
            "{datasets: [{id: x, mapper_config: {gold_key: zzz}}]}",
            "{datasets: [{id: x, mapper_config: {gold_key: zzz}}]}",
        ),
        ("Authorization: Bearer zzz", "Authorization: ***"),
        ("api_key: zzz", "api_key: ***"),
        ("x:\n  - api_key: zzz\n    n: 1", "x:\n  - api_key: ***\n    n: 1"),
    ],
)
def test_secrets_inside_values_of_a_command_line_are_masked(word, shown):
    assert masked_words(["--x", word, f"--x={word}"]) == ["--x", shown, f"--x={shown}"]


def test_messages_are_shown_without_the_secrets_of_the_environment(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", f"{CANARY}\n")
    assert masked_text(f"you sent {CANARY}") == "you sent ***"


def test_long_texts_are_searched_in_linear_time():
    for text in (
        "{" + "a" * 500_000,
        "{" + "a-" * 200_000,
        '{token:"' + "\\" * 300_000,
        "//" * 200_000,
        "?a=" * 100_000,
        'a:"' * 100_000,
        "{a:[" * 99_999,
        "{" + "a:[b:c]," * 60_000,
        "-----BEGIN PRIVATE KEY-----" * 20_000,
    ):
        with seconds(5):
            masked(text)
            masked_text(text)


def holding(folder, needle=CANARY):
    """Every file below a folder that holds the canary, in whatever format."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and needle.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("method", ["sft", "grpo"])
@needs("report")
def test_no_file_of_a_run_holds_a_secret_and_the_run_has_them(
    write_recipe, tmp_path, monkeypatch, capsys, method
):
    main, tokens = {"grpo": grpo.main, "sft": sft.main}[method], []
    settings = {
        "model_init_kwargs": {"token": CANARY},
        "run_name": f"https://host/?token={CANARY}",
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


@needs("selection")
def test_no_file_of_a_generation_holds_a_secret(write_recipe, tmp_path, monkeypatch, capsys, sums):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    path = tmp_path / "tiny.yaml"
    settings = {
        "model_name_or_path": f"http://me:{CANARY}@host/m",
        "dataset_name": str(sums),
        "mapper": "gsm8k",
        "backend": "openai",
    }
    path.write_text(
        yaml.safe_dump({**settings, "request_retries": 0, "output_dir": str(tmp_path / "run")})
    )
    quotes = reply("4")
    quotes["choices"][0]["finish_reason"] = CANARY
    with chat_server(
        lambda body, before: quotes if body["messages"][-1]["content"] == "2+3?" else reply("4")
    ) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url.replace("//", f"//me:{CANARY}@"))
        generate.main([str(path)])
        generate.main([str(path)])
    assert {body["model"] for body in seen} == {settings["model_name_or_path"]}
    assert holding(tmp_path / "run") == [] and "already done" in capsys.readouterr().out


@needs("preflight")
def test_no_error_shows_a_secret(write_recipe, capsys, monkeypatch):
    from r1_recipes.extras.preflight import __main__ as preflight

    for words in (
        ["--model_init_kwargs", f'{{"token": "{CANARY}"'],
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


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PGPASSWORD",
            "DB_PASS",
            "SSHPASS",
            "MYSQL_PWD",
            "GITHUB_PAT",
            "auth",
            "WANDB_KEY",
            "COOKIE",
            "SLACK_WEBHOOK",
        ),
        *(
            "accesstoken",
            "refreshtoken",
            "accesskey",
            "privatekey",
            "creds",
            "connection_string",
            "SENTRY_DSN",
            "session_id",
        ),
    ],
)
def test_names_that_services_give_their_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "pass_rate", "WANDB_KEYRING", "author", "compass", *NO_SECRETS]
)
def test_names_that_are_no_secrets(name):
    assert not is_secret(name)


def test_signed_addresses_and_quotes_in_a_password():
    signed = "https://bucket/x?X-Amz-Signature=0123456789abcdef&part=2"
    assert masked(signed, "dataset_name") == "https://bucket/x?X-Amz-Signature=***&part=2"
    assert "PASS" not in masked("https://u:x'PASS@host/y", "dataset_name")
