"""Generation and evaluation through vLLM, in this process and behind ``vllm serve``: what they
store, against Transformers' own answers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml

from tests.conftest import REPOSITORY, SUMS
from tests.vllm.conftest import ON_CPU, RECIPE, serving

LENGTH = 12
# A greedy token flips where two are about as likely as each other; no engine adds floats up in
# another's order.
AGREE = 0.9


@pytest.fixture
def generation(tmp_path: Path, small_model: Path, sums: Path) -> Callable[..., str]:
    """``generation("vllm")``: a recipe that generates one greedy completion of each sum with that
    backend; its output goes to DIR/vllm.
    """

    def write(backend: str, **changes: Any) -> str:
        settings = {
            "model_name_or_path": str(small_model),
            "dataset_name": str(sums),
            "mapper": "gsm8k",
            "response_format": "think_answer",
            "system_prompt": "",
            "dtype": "float32",
            "use_cpu": True,
            "backend": backend,
            "temperature": 0,
            "num_generations": 1,
            "max_completion_length": LENGTH,
            "output_dir": str(tmp_path / backend),
            "seed": 1,
            **changes,
        }
        path = tmp_path / f"{backend}.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return str(path)

    return write


def stored(run: Path) -> dict[int, list[dict[str, Any]]]:
    """Completions by row; the first line says what made them."""
    text = (run / "completions" / "completions.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()[1:]]
    return {record["index"]: record["completions"] for record in records}


def agreement(
    one: dict[int, list[dict[str, Any]]], other: dict[int, list[dict[str, Any]]]
) -> float:
    """The share of characters that are the same at the same place."""
    pairs = [
        (a["text"], b["text"])
        for index in one
        for a, b in zip(one[index], other[index], strict=True)
    ]
    same = sum(x == y for a, b in pairs for x, y in zip(a, b, strict=False))
    return same / sum(max(len(a), len(b)) for a, b in pairs)


@pytest.fixture
def reference(
    run_python: Callable, generation: Callable, tmp_path: Path
) -> dict[int, list[dict[str, Any]]]:
    """What Transformers generates."""
    run_python("-m", "r1_recipes.generate", generation("transformers"))
    found = stored(tmp_path / "transformers")
    # Nothing would be shown by eight times the same text.
    assert (
        len({completion["text"] for group in found.values() for completion in group})
        > len(SUMS) // 2
    )
    return found


def test_generate_offline(
    run_python: Callable, generation: Callable, reference: dict, tmp_path: Path
) -> None:
    run_python("-m", "r1_recipes.generate", generation("vllm"))
    found = stored(tmp_path / "vllm")
    assert sorted(found) == list(range(len(SUMS)))
    assert all(
        1 <= completion["tokens"] <= LENGTH for group in found.values() for completion in group
    )
    assert agreement(found, reference) > AGREE
    assert len(
        (tmp_path / "vllm" / "dataset" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ) == len(SUMS)


def test_seeded_samples_of_long_prompts(
    run_python: Callable, generation: Callable, tmp_path: Path
) -> None:
    """More tokens of prompts than a step of the engine takes: cut into chunks, they ended it on a
    CPU.
    """
    run_python(
        "-m",
        "r1_recipes.generate",
        generation("vllm", temperature=1.0, prompt_template="{question} " * 150),
    )
    assert sorted(stored(tmp_path / "vllm")) == list(range(len(SUMS)))


@pytest.fixture
def judged(
    run_python: Callable, small_model: Path, sums: Path, tmp_path: Path
) -> Callable[..., tuple[dict, list]]:
    """``judged("--flag", "value", VARIABLE=…)``: GSM8K's benchmark on the sums, two samples each;
    the scores, and the completions.
    """
    changes = {
        "dataset_name": sums,
        "dataset_config": "none",
        "dataset_test_split": "train",
        "num_samples": 2,
        "max_completion_length": LENGTH,
        "dtype": "float32",
        "use_cpu": "true",
    }
    words = [word for key, value in changes.items() for word in (f"--{key}", str(value))]
    benchmark = str(REPOSITORY / "recipes" / "benchmarks" / "gsm8k.yaml")

    def run(*flags: str, **variables: str) -> tuple[dict, list]:
        out = tmp_path / "out"
        run_python(
            "-m",
            "r1_recipes.evaluate",
            benchmark,
            "--model",
            str(small_model),
            "--output",
            str(out),
            *words,
            *flags,
            **variables,
        )
        (scores,) = json.loads((out / "results.json").read_text(encoding="utf-8"))
        (table,) = out.rglob("*.parquet")
        rows = pyarrow.parquet.read_table(table).to_pylist()
        # One greedy completion a sum and two sampled ones.
        assert (
            scores["num_samples"] == 2
            and [len(scores[key]) for key in ("greedy", "sampled", "majority")] == [len(SUMS)] * 3
        )
        assert [row["sample"] for row in rows] == [-1, 0, 1] * len(SUMS)
        assert 1 <= scores["mean_tokens"] <= LENGTH
        return scores, rows

    return run


def test_evaluate_offline(judged: Callable) -> None:
    scores, _ = judged()  # the benchmark says backend: vllm itself
    assert scores["rewards"]


def test_evaluate_through_a_real_server(judged: Callable, server: str) -> None:
    _, rows = judged(
        "--backend", "openai", OPENAI_BASE_URL=server, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1"
    )
    # Two samples of one sum differ: each had a seed of its own.
    texts = [row["completion"] for row in rows]
    assert sum(a != b for a, b in zip(texts[1::3], texts[2::3], strict=True)) > len(SUMS) // 2


@pytest.fixture(scope="module")
def server(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(small_model, tmp_path_factory.mktemp("server")) as url:
        yield url


def served(model: Path, folder: Path) -> contextlib.AbstractContextManager[str]:
    """``python -m r1_recipes.vllm_server`` with that model."""

    def words(port: int) -> list[str]:
        keys = [
            "--model_name_or_path",
            str(model),
            "--vllm_server_host",
            "127.0.0.1",
            "--vllm_server_port",
            str(port),
            "--dtype",
            "float32",
        ]
        return [
            "r1_recipes.vllm_server",
            RECIPE,
            *ON_CPU,
            *keys,
            "--",
            "--served-model-name",
            str(model),
            "--enforce-eager",
        ]

    return serving(words, folder)


def test_generate_through_a_real_server(
    run_python: Callable,
    generation: Callable,
    reference: dict,
    server: str,
    small_model: Path,
    tmp_path: Path,
) -> None:
    recipe = generation("openai")
    run_python(
        "-m",
        "r1_recipes.generate",
        recipe,
        OPENAI_BASE_URL=server,
        NO_PROXY="127.0.0.1",
        no_proxy="127.0.0.1",
    )
    found = stored(tmp_path / "openai")
    assert sorted(found) == list(range(len(SUMS)))
    assert agreement(found, reference) > AGREE
    # The server's own count, not ours.
    assert all(
        1 <= completion["tokens"] <= LENGTH for group in found.values() for completion in group
    )
    # Everything is stored: the same command asks for nothing, so it needs no server.
    run_python("-m", "r1_recipes.generate", recipe, OPENAI_BASE_URL="http://127.0.0.1:1/v1")


def turns(run: Path) -> list[list[dict[str, Any]]]:
    """What was said and called in each row's episode."""
    keys = ("role", "content", "tool_calls")
    return [
        [{key: turn.get(key) for key in keys} for turn in group[0]["turns"]]
        for _, group in sorted(stored(run).items())
    ]


def test_episodes_are_played_alike(
    run_python: Callable, generation: Callable, caller: Path, tmp_path: Path
) -> None:
    """By TRL's trainer with Transformers, and with vLLM in this process."""
    changes = {
        "model_name_or_path": str(caller),
        "dataset_name": "environment:tests.support.callers:Game",
        "mapper": "environment",
        "environment": "tests.support.callers:Game",
        "task_config": {"train": {"size": 16, "seed": 0}, "test": {"size": 1, "seed": 1}},
        "max_tool_calling_iterations": 3,
        "max_completion_length": 96,  # TRL counts the results of tools, too
        "reward_funcs": ["format"],
    }
    for backend in ("transformers", "vllm"):
        run_python("-m", "r1_recipes.generate", generation(backend, **changes))
    reference, found = turns(tmp_path / "transformers"), turns(tmp_path / "vllm")
    assert any(turn["role"] == "tool" for episode in reference for turn in episode)
    same = sum(a == b for a, b in zip(found, reference, strict=True))
    assert same > AGREE * len(reference), (found, reference)
