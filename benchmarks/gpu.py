"""GRPO on one GPU, measured: where a step's seconds go, tokens a second, peak memory, rewards, and
accuracy on held-out rows before and after.

Run:  python benchmarks/gpu.py [--recipe FILE] [--steps 120] [--rows 200] [--model DIR_OR_ID]
          [--train ROWS.jsonl --test ROWS.jsonl] [--output DIR] [-- --key value ...]
      python benchmarks/gpu.py --tiny     a random model on a CPU: does the script work?

Three steps check the set-up first: the KL of the first one (0, because the model is its own
reference), and how far vLLM's log-probabilities are from training's. Then the recipe is trained,
with vLLM where that is installed, and the model is judged before and after; ``--rows 0`` leaves
that out. Words after ``--`` override the recipe. Tables are printed and kept in DIR/results.md
(default: outputs/gpu_benchmark), with runs, completions and log.txt. Ctrl-C saves a checkpoint, and
the same command goes on from it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
WARM_UP = 2  # steps at a run's start that load and compile
TINY = {
    "max_completion_length": 8,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "system_prompt": "",
}
# Runs a module as `python -m` does, and keeps the peak of the GPU's memory: PyTorch counts that of
# its own process alone. A run that goes on may have had its peak before.
MEASURED = """
import json, pathlib, runpy, sys
target, sys.argv = pathlib.Path(sys.argv[1]), sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
import torch
if torch.cuda.is_available():
    before = json.loads(target.read_text()) if target.exists() else 0
    target.write_text(json.dumps(max(before, torch.cuda.max_memory_allocated())))
"""
Metrics = list[dict[str, Any]]


def main() -> None:
    """Measure, and print each table as soon as it is there."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = arguments().parse_args(words[:cut])
    options.overrides = words[cut + 1 :]
    options.output = options.output.resolve()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.tiny:
        make_tiny(options)
    with (options.output / "results.md").open("w", encoding="utf-8") as kept:
        for part in measure(options):
            for stream in (sys.stdout, kept):
                stream.write(part + "\n\n")
                stream.flush()


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the words before ``--``."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--recipe", default=str(REPOSITORY / "recipes/gsm8k_qwen05b.yaml"))
    parser.add_argument("--model", help="a checkpoint instead of the recipe's")
    parser.add_argument("--train", type=Path, help="rows instead of the recipe's (JSON lines)")
    parser.add_argument("--test", type=Path, help="held-out rows in the same schema")
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps (120)")
    parser.add_argument("--rows", type=int, default=200, help="held-out rows that are judged (200)")
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu_benchmark"))
    parser.add_argument("--tiny", action="store_true", help="a random model on invented sums")
    return parser


def make_tiny(options: argparse.Namespace) -> None:
    """Write a random model and a dozen sums."""
    from r1_recipes.models.smoke import build_tiny_model

    for name, second in (("train", (4, 6)), ("test", (5,))):
        sums = [(a, b) for a in (2, 3, 7, 9) for b in second]
        rows = [{"question": f"{a}+{b}?", "answer": f"{a}+{b}\n#### {a + b}"} for a, b in sums]
        path = options.output / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        setattr(options, name, path)
    options.model = str(build_tiny_model(options.output / "model", {}))
    options.steps, options.rows = WARM_UP + 1, 4


def measure(options: argparse.Namespace) -> Iterator[str]:
    """Yield each table when it is measured."""
    gpu = None if options.tiny else gpu_name()
    vllm = gpu is not None and importlib.util.find_spec("vllm") is not None
    yield "\n".join(head(options, gpu, vllm))
    common: dict[str, Any] = rows_of(options) | (TINY if options.tiny else {})
    if gpu is None:
        common |= {"use_cpu": "true", "bf16": "false"}
    run = {"report_to": "none", "save_strategy": "steps", "save_steps": 8, "save_total_limit": 1}
    run |= common | {"use_vllm": str(vllm).lower()}
    if options.model:
        run["model_name_or_path"] = options.model
    check = {"max_steps": 3, "learning_rate": 1e-6, "beta": 0.04}
    yield checked(*train(options, "check", run | check))
    history, peak = train(options, "run", run | {"max_steps": max(options.steps, WARM_UP + 1)})
    engine = "vLLM" if vllm else "Transformers"
    yield phases(history, options.output / "run", engine, peak)
    yield curve(history)
    if options.rows:
        yield judged(options, common, "vllm" if vllm else "transformers")


def gpu_name() -> str | None:
    """Ask in a process of its own: asking takes some of the GPU's memory until that ends."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    asked = [sys.executable, "-c", code]
    found = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True)
    return found.stdout.strip() or None


def head(options: argparse.Namespace, gpu: str | None, vllm: bool) -> Iterator[str]:
    """Yield what was measured where, and what was left out."""

    def installed(name: str) -> str:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            return f"{name} not installed"

    git = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    revision = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    versions = ", ".join(map(installed, ("torch", "transformers", "trl", "vllm")))
    where = gpu or platform.processor() or platform.machine()
    yield f"{where}; {versions}; revision {revision}; {time.strftime('%Y-%m-%d')}"
    words = " ".join(options.overrides)
    yield f"recipe {Path(options.recipe).stem}; model {options.model or 'of the recipe'}; {words}"
    if gpu is None:
        yield "left out: the GPU: none was used, so nothing here says how fast one is"
    if not vllm:
        yield "left out: generation with vLLM"
    if options.tiny:
        yield "--tiny: a random model on invented sums; the figures mean nothing"


def rows_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a data set of two files, whose splits are ``train`` and ``test``."""
    if not (options.train and options.test):
        return {}
    folder = options.output / "rows"
    folder.mkdir(exist_ok=True)
    for name, given in (("train", options.train), ("test", options.test)):
        if not (folder / f"{name}.jsonl").exists():  # a run that goes on has its rows
            shutil.copy(given, folder / f"{name}.jsonl")
    return {"dataset_name": folder, "dataset_config": "none"}


def train(options: argparse.Namespace, name: str, changes: dict[str, Any]) -> tuple[Metrics, str]:
    """Train, or go on, or find it done; return each step's metrics and the peak memory in GB."""
    run, peak = options.output / name, options.output / f"{name}.json"
    words = [options.recipe, *as_words({**changes, "output_dir": run}), *options.overrides]
    call("r1_recipes.grpo", words, options.output / "log.txt", peak)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    history = [entry for entry in map(json.loads, lines) if "loss" in entry]
    return history, f"{json.loads(peak.read_text()) / 1e9:.1f}" if peak.exists() else ""


def call(module: str, words: list[str], log: Path, peak: Path) -> None:
    """Run a module in a process of its own, whose memory ends with it."""
    command = [sys.executable, "-c", MEASURED, str(peak), module, *words]
    with log.open("a", encoding="utf-8") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
        # Ctrl-C reaches both processes: this one waits for the other's checkpoint.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = process.wait()
        signal.signal(signal.SIGINT, before)
    if code:
        tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        sys.exit(f"{tail}\nerror: {module} ended with status {code}")


def as_words(changes: dict[str, Any]) -> list[str]:
    """Return settings as words of a command."""
    return [word for key, value in changes.items() for word in (f"--{key}", str(value))]


def checked(history: Metrics, peak: str) -> str:
    """Return what has to be right before hours are spent, by step."""
    keys = {
        "kl": "KL from the start",
        "sampling/sampling_logp_difference/mean": "log p of vLLM - of training, mean",
        "sampling/sampling_logp_difference/max": "largest",
        "grad_norm": "norm of the gradient",
        "step_time": "s a step",
    }
    keys = {key: name for key, name in keys.items() if key in history[0]}
    rows = [["check, step", *keys.values(), "peak memory, GB"]]
    for number, entry in enumerate(history, 1):
        rows.append([str(number), *(f"{entry[key]:.4g}" for key in keys), peak])
    return table(rows)


def phases(history: Metrics, run: Path, engine: str, peak: str) -> str:
    """Return medians of a step's seconds after the warm-up, and tokens a second."""
    import yaml

    settings = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    completions = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    timed = history[WARM_UP:]
    middle = [
        statistics.median(entry[key] for entry in timed)
        for key in ("step_time", "time/generation", "time/rewards")
    ]
    training = statistics.median(
        entry["step_time"] - entry["time/generation"] - entry["time/rewards"] for entry in timed
    )
    speed = statistics.median(
        completions * entry["completions/mean_length"] / entry["time/generation"] for entry in timed
    )
    names = ["generation by", "steps timed", "s a step", "generation", "rewards", "training"]
    seconds = [f"{value:.2f}" for value in (*middle, training)]
    row = [engine, str(len(timed)), *seconds, f"{speed:,.0f}", peak]
    return table([[*names, "tokens/s", "peak memory, GB"], row])


def curve(history: Metrics) -> str:
    """Return means over up to six equal parts of the run."""
    keys = {"reward": "reward", "completions/mean_length": "tokens"}
    for key in history[0]:
        if key.startswith("rewards/") and key.endswith("/mean"):
            keys[key] = key.split("/")[1]
    size = -(-len(history) // 6)
    rows = [["steps", *keys.values()]]
    for begin in range(0, len(history), size):
        part = history[begin : begin + size]
        means = [f"{statistics.mean(entry[key] for entry in part):.3f}" for key in keys]
        rows.append([f"{begin + 1} to {begin + len(part)}", *means])
    return table(rows)


def judged(options: argparse.Namespace, common: dict[str, Any], backend: str) -> str:
    """Return the table of ``evaluate`` for the model before and after."""
    import yaml

    run, folder = options.output / "run", options.output / "judged"
    before = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))["model_name_or_path"]
    # As training samples; the recipe's float32 is for its optimizer.
    changes = common | {"max_eval_samples": options.rows, "dtype": "bfloat16", "backend": backend}
    words = [options.recipe, "--model", before, "--model", str(run), "--num_samples", "1"]
    words += ["--output", str(folder), *as_words(changes), *options.overrides]
    call("r1_recipes.evaluate", words, options.output / "log.txt", options.output / "judged.json")
    return (folder / "results.md").read_text(encoding="utf-8").strip()


def table(rows: list[list[str]]) -> str:
    """Return rows as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


if __name__ == "__main__":
    main()
