"""Benchmarks, tiny and on the CPU: they run to their end, and say what they could not measure."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
import yaml

from r1_recipes.prompts import FORMATS
from tests.conftest import REPOSITORY
from tests.support.report_runs import write_run


def start_gpu(*words: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu.py"), *words]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def gpu(*words: str) -> subprocess.CompletedProcess[str]:
    process = start_gpu(*words)
    output, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_names_that_benchmarks_and_tests_import_are_there() -> None:
    """Also in the functions that no fast test calls, and in code that a child process is given."""
    missing = []
    for path in [*REPOSITORY.glob("benchmarks/*.py"), *REPOSITORY.glob("tests/**/*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        code = [
            ast.parse(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.match(r"from r1_recipes[\w.]* import [^\n]+;", node.value)
        ]
        for node in [found for part in (tree, *code) for found in ast.walk(part)]:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("r1_recipes"):
                module = importlib.import_module(node.module or "")
                missing += [
                    f"{path}: {node.module}: {alias.name}"
                    for alias in node.names
                    if not hasattr(module, alias.name)
                    and not importlib.util.find_spec(f"{node.module}.{alias.name}")
                ]
    assert missing == []


@pytest.mark.nightly
def test_the_gpu_benchmark_runs_without_a_gpu_and_says_so(tmp_path: Path) -> None:
    done = gpu("--tiny", "--output", str(tmp_path / "out"), "--", "--seed", "7")
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "out" / "results.md").read_text(encoding="utf-8") == done.stdout
    for line in (
        "left out: the GPU: none was used, so nothing here says how fast one is",
        "left out: generation with vLLM: vLLM is not installed",
        "--tiny: a random model on invented sums; the figures mean nothing",
    ):
        assert line in done.stdout.splitlines()
    # Three steps, of which two are the warm-up; no memory of a GPU's; what is left of a step when
    # generation and rewards are taken off.
    number = r"(\d+\.\d\d)"
    found = re.search(
        rf"^\| Transformers \| 1 \| {number} \| {number} \| {number} \| {number} \| ([\d,]+) "
        rf"\|  \|$",
        done.stdout,
        re.MULTILINE,
    )
    step, generation, rewards, training = (float(value) for value in found.groups()[:4])
    assert step == pytest.approx(generation + rewards + training, abs=0.03) and generation > 0
    assert "| 3 to 3 | 0.000 | 0.000 | 0.000 | " in done.stdout
    # A random model is right nowhere, before or after.
    for name in ("before", "after"):
        assert f"| {name} | 4 | 0.0 % | 0.0 % | 0.0 % | 0.0 % |" in done.stdout


@pytest.mark.nightly
def test_the_gpu_benchmark_keeps_what_it_measured_when_the_rest_fails(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    out, held_out = tmp_path / "out", tmp_path / "held_out.jsonl"
    held_out.write_text("{")
    words = [
        "--model",
        str(tiny_model),
        "--train",
        str(sums),
        "--test",
        str(held_out),
        "--steps",
        "3",
        "--output",
        str(out),
        "--",
    ]
    words += [
        "--max_completion_length",
        "8",
        "--per_device_train_batch_size",
        "2",
        "--gradient_accumulation_steps",
        "4",
    ]
    words += ["--system_prompt", ""]
    done = gpu(*words)
    assert (
        done.returncode == 1
        and "test.jsonl" in done.stderr
        and "r1_recipes.evaluate ended with status 2" in done.stderr
    )
    assert (
        "| Transformers | 1 | " in done.stdout
        and (out / "results.md").read_text(encoding="utf-8") == done.stdout
    )
    assert (out / "transformers" / "model.safetensors").is_file()
    # The same words go on from what there is; others would mix their figures with these.
    (out / "rows" / "test.jsonl").write_text(
        json.dumps({"question": "11 * 11?", "answer": "#### 121"}) + "\n"
    )
    again = gpu(*words)
    assert (
        again.returncode == 0
        and again.stdout.startswith(done.stdout)
        and "| after | 1 | 0.0 % |" in again.stdout
    ), again.stderr[-4000:]
    other = gpu(*words, "--seed", "7")
    assert other.returncode == 2 and "holds runs with other settings" in other.stderr


@pytest.mark.nightly
def test_the_gpu_benchmark_goes_on_after_commands_that_are_too_short(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    out = tmp_path / "out"
    held_out = tmp_path / "held_out.jsonl"
    rows = [{"question": f"11 * {number}?", "answer": f"#### {11 * number}"} for number in (11, 12)]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", str(tiny_model), "--train", str(sums), "--test", str(held_out)]
    words += ["--steps", "40", "--rows", "2", "--output", str(out)]
    own = ["--", "--max_completion_length", "8", "--per_device_train_batch_size", "2"]
    own += ["--gradient_accumulation_steps", "4", "--system_prompt", ""]
    at_once = gpu(*words, "--seconds", "0.1", *own)
    assert at_once.returncode == 75 and "same words" in at_once.stderr
    metrics = out / "transformers" / "metrics.jsonl"
    process = start_gpu(*words, *own)
    deadline = time.monotonic() + 200
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 10):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75 and "same words" in errors
    (checkpoint,) = out.glob("transformers/checkpoint-*")
    assert 10 <= int(checkpoint.name.rpartition("-")[2]) < 40
    whole = gpu(*words, *own)
    assert whole.returncode == 0, whole.stderr[-4000:]
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [entry["step"] for entry in lines if "loss" in entry] == list(range(1, 41))
    # The first check: the model is its own reference.
    assert re.search(r"^\| 1 \| 0 \| ", whole.stdout, re.MULTILINE)
    assert "| after | 2 | " in whole.stdout


def test_the_gpu_benchmark_asks_for_what_it_needs() -> None:
    done = gpu("--model", "x")
    assert (
        done.returncode == 2 and "--model, --train and --test are needed, or --tiny" in done.stderr
    )
    done = gpu("--model", "x", "--train", "gone.jsonl", "--test", str(REPOSITORY / "README.md"))
    assert done.returncode == 2 and "gone.jsonl: no such file" in done.stderr


def test_numbers_need_no_parser_and_get_its_verdict() -> None:
    code = "import json, verification; print(json.dumps(verification.settled(200)))"
    # In a process of its own, because it changes how math-verify parses.
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY / "benchmarks", capture_output=True, text=True
    )
    found = json.loads(run.stdout)
    assert found["rows"] == 200 and 100 < found["settled"] == found["equal"]


@pytest.mark.nightly
def test_selecting_more_traces_takes_no_more_memory() -> None:
    words = ["--small", "4000", "--large", "20000", "--tokens", "2000"]
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "selection.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [
        [float(cell.replace(",", "")) for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()[2:]
    ]
    assert [row[0] for row in rows] == [4000, 20000] and all(row[4] > row[0] / 4 for row in rows)
    # To hold every completion would take 70 MB more.
    assert rows[1][2] < rows[0][2] + 40


@pytest.mark.nightly
def test_the_layers_cost_counts_the_same_steps_for_both(tiny_model: Path) -> None:
    """The layer tries a reward of one's own before it loads the model, which is neither a step nor
    the first one's end.
    """
    code = (
        "import json, sys, layer_overhead as one; print(json.dumps([one.run_once(kind, "
        "sys.argv[1], 3) for kind in ('bare', 'recipe')]))"
    )
    words = [sys.executable, "-c", code, str(tiny_model)]
    done = subprocess.run(
        words, cwd=REPOSITORY / "benchmarks", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    bare, recipe = json.loads(done.stdout)
    assert [len(one["step_seconds"]) for one in (bare, recipe)] == [2, 2] and bare[
        "logged"
    ] == recipe["logged"]


def test_the_benchmark_of_losses_goes_on_from_what_is_judged(tmp_path: Path) -> None:
    """Two problems, two seeds. All is there, so nothing is trained, and the table is of what was
    found.
    """
    found = {
        "cold_start": ([0.0, 0.0], [0.0, 0.0]),
        "dapo": ([1.0, 0.0], [1.0, 1.0]),
        "cispo": ([1.0, 0.0], [0.0, 0.0]),
    }
    for name, seeds in found.items():
        for seed, greedy in enumerate(seeds, start=1):
            folder = tmp_path / name / str(seed)
            folder.mkdir(parents=True)
            (folder / "results.json").write_text(json.dumps([{"greedy": greedy, "sampled": []}]))
    words = [
        "--seeds",
        "2",
        "--losses",
        "dapo",
        "cispo",
        "--num_samples",
        "0",
        "--output",
        str(tmp_path),
    ]
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "losses.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr[-4000:]
    assert (tmp_path / "results.md").read_text(encoding="utf-8") == done.stdout
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("|")
    ]
    assert [row[0] for row in rows[2:]] == ["cold start", "dapo", "cispo"] and {
        len(row) for row in rows
    } == {8}
    assert rows[3][1:5] == [
        "`loss_type: dapo`, `epsilon_high: 0.28`",
        "75.0 % (36.5 to 94.0)",
        "50.0, 100.0",
        "",
    ]
    assert rows[4][3] == "50.0, 0.0" and rows[4][4].startswith("-50.0 (")
    # Elsewhere the verdicts alone are enough.
    kept, elsewhere = (
        ["--verdicts", str(tmp_path / "verdicts.json")],
        ["--output", str(tmp_path / "elsewhere")],
    )
    assert subprocess.run([*command, *kept], capture_output=True, timeout=300).returncode == 0
    assert json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))["cispo"]["1"] == {
        "greedy": "10",
        "sampled": "",
    }
    other = subprocess.run(
        [*command, *kept, *elsewhere], capture_output=True, text=True, timeout=300
    )
    assert (other.stdout, other.stderr) == (done.stdout, "") and not list(
        (tmp_path / "elsewhere").glob("*/*")
    )
    # Other settings would mix with these.
    for words, said in (
        ([], "holds runs with other settings"),
        ([*kept, "--output", str(tmp_path / "new")], "of runs with other settings"),
    ):
        again = subprocess.run(
            [*command, "--steps", "3", *words], capture_output=True, text=True, timeout=300
        )
        assert again.returncode == 2 and said in again.stderr


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_the_pictures_of_the_page_are_made_anew(tmp_path: Path) -> None:
    words = [
        sys.executable,
        str(REPOSITORY / "benchmarks" / "screenshots.py"),
        str(write_run(tmp_path / "run")),
        "--output",
        str(tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == ["curve", "page", "turns"]


@pytest.mark.nightly
def test_the_flagship_on_a_cpu_goes_on_from_what_is_done(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    out = tmp_path / "out"
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text(
        "".join(
            json.dumps({"question": f"{a} * {a}?", "answer": f"#### {a * a}"}) + "\n"
            for a in (11, 12, 13)
        )
    )
    files = [
        "--model",
        str(tiny_model),
        "--train",
        str(sums),
        "--test",
        str(held_out),
        "--output",
        str(out),
    ]
    sizes = (
        "--steps 2 --rows 3 --cold_start 4 --unfrozen layers norm -- --max_completion_length 8 "
        "--gradient_accumulation_steps 1"
    )
    words = [*files, *sizes.split(), "--system_prompt", ""]
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "gsm8k_cpu.py"), *words]
    # A random model is right nowhere, so nothing of its answers is kept to learn from.
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "completions were dropped" in done.stderr, done.stderr[-4000:]
    right = [
        {"question": f"{a} + 1?", "response": FORMATS["think_answer"].render("Count.", str(a + 1))}
        for a in range(4)
    ]
    (out / "samples" / "dataset").mkdir()
    (out / "samples" / "dataset" / "train.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in right)
    )
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    settings = [
        yaml.safe_load((out / name / "recipe.yaml").read_text(encoding="utf-8"))
        for name in ("cold_start", "run")
    ]
    assert [one["unfrozen_parameters"] for one in settings] == [["layers", "norm"]] * 2
    # A random model is right nowhere; what preflight says of it is kept, and does not end the run.
    assert f"| greedy | {'0.0 % (0.0 to 56.1) | ' * 4}+0.0 (" in done.stdout
    assert "- error   signal." in done.stdout and re.search(
        r"^2 steps in \d+ min; \d+ s a step", done.stdout, re.MULTILINE
    )
    assert (out / "run" / "report.html").is_file()
    again = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert again.stdout == done.stdout and not again.stderr


@pytest.mark.nightly
def test_peers_train_on_the_same_rows(tmp_path: Path, tiny_model: Path) -> None:
    words = [
        "--model",
        str(tiny_model),
        "--steps",
        "2",
        "--problems",
        "2",
        "--seeds",
        "1",
        "--output",
        str(tmp_path),
    ]
    words += ["--verdicts", str(tmp_path / "verdicts.json")]
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "peers.py"), *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:] + "".join(
        path.read_text()[-2000:] for path in tmp_path.rglob("log.txt")
    )
    runs = [
        "r1-recipes, tags",
        "open-r1's rewards, our verdicts, tags",
        "trl grpo, tags",
        "r1-recipes, box",
        "trl grpo, box",
    ]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("| ")
    ]
    assert [row[0] for row in rows if len(row) == 13][1:] == [
        "cold start, tags",
        "cold start, box",
        *runs,
    ]
    assert [row[0] for row in rows if len(row) == 9][1:] == [runs[1], runs[2], runs[4]]
    assert [row for row in rows if row[1:] == ["0.00", "0.00"]] == [
        [name, "0.00", "0.00"] for name in runs
    ]
    # Both ways sampled the same completions to the same prompts from the same weights.
    first = {}
    for name in ("r1-recipes, box", "trl grpo, box"):
        table = pandas.read_parquet(
            tmp_path / name / "1" / name / "completions" / "completions_00001.parquet"
        )
        first[name] = [
            (json.dumps(list(row.prompt)), row.completion[0]["content"])
            for row in table.itertuples()
        ]
    assert (
        first["r1-recipes, box"] == first["trl grpo, box"]
        and "boxed" in first["trl grpo, box"][0][0]
    )
    assert (tmp_path / "report.html").is_file()
    # Elsewhere what is kept is enough.
    again = subprocess.run(
        [*command, "--output", str(tmp_path / "new")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert again.stderr == "" and again.stdout == done.stdout.split("\n\npage: ")[0] + "\n"


@pytest.mark.nightly
def test_sdpo_trains_beside_grpo(tmp_path: Path, tiny_model: Path) -> None:
    words = ["--steps", "1", "--problems", "2", "--seeds", "1", "--output", str(tmp_path)]
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "sdpo.py"), *words]
    command += ["--model", str(tiny_model)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:] + "".join(
        path.read_text()[-2000:] for path in tmp_path.rglob("log.txt")
    )
    names = re.findall(r"^\| ([a-z ]+) \| (?!accuracy)", done.stdout, re.MULTILINE)
    assert len(names) >= 6 and set(names) == {"cold start", "grpo", "sdpo"}
    # How many rollouts had a right answer of their group to learn from.
    history = [
        json.loads(line)
        for line in (tmp_path / "sdpo" / "1" / "model" / "metrics.jsonl").read_text().splitlines()
    ]
    assert "self_distillation/success_sample_fraction" in history[0]


def test_the_time_until_half_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    learning = importlib.import_module("learning")
    assert learning.seconds_until(0.5, [0, 100, 200], [0.1, 0.4, 0.8]) == pytest.approx(125)
    assert learning.seconds_until(0.5, [0, 100], [0.6, 0.2]) == 0
    assert learning.seconds_until(0.5, [0, 100], [0.1, 0.4]) == float("inf")
    slow = {"seconds": [0.0, 100.0, 200.0], "verdicts": [[0.0] * 8, [0.0] * 8, [1.0] * 8]}
    never = {"seconds": [0.0, 100.0], "verdicts": [[0.0] * 8] * 2}
    assert learning.ratio_interval({**slow, "seconds": [0, 50, 100]}, slow) == (0.5, 0.5, 0.5)
    assert learning.ratio_interval(never, slow) == (float("inf"),) * 3
    assert learning.ratio_interval(never, never)[1:] == (0.0, float("inf"))
    there = {**slow, "verdicts": [[1.0] * len(verdicts) for verdicts in slow["verdicts"]]}
    assert learning.ratio_interval(there, there) == (1.0, 1.0, 1.0)


def test_pieces_come_back_whole_and_name_what_is_damaged(tmp_path: Path) -> None:
    source, pieces, back = tmp_path / "wheels", tmp_path / "pieces", tmp_path / "back"
    (source / "deep").mkdir(parents=True)
    data = {"a.whl": os.urandom(25_000), "deep/b.bin": os.urandom(7_000), "empty": b""}
    for name, content in data.items():
        (source / name).write_bytes(content)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(REPOSITORY / "benchmarks" / "pieces.py"), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("cut", source, "--into", pieces, "--megabytes", "0.01").returncode == 0
    parts = sorted(pieces.glob("*.part"))
    assert len(parts) == 4 and all(part.stat().st_size <= 10_000 for part in parts)
    assert run("cut", source, "--into", pieces).returncode != 0  # it has pieces already
    whole = parts[1].read_bytes()
    parts[1].write_bytes(whole[:-1] + b"?")
    parts[3].rename(tmp_path / "late")
    done = run("join", pieces, "--into", back)
    assert done.returncode != 0 and "0001.part, 0003.part" in done.stderr and not back.exists()
    parts[1].write_bytes(whole)
    (tmp_path / "late").rename(parts[3])
    assert run("join", pieces, "--into", back).returncode == 0
    assert {name: (back / "wheels" / name).read_bytes() for name in data} == data
    assert "no such file" in run("cut", tmp_path / "none", "--into", pieces).stderr
