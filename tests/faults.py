"""kill -9 at random moments: the same command goes on, and ends as a run that was never stopped.

python -m tests.faults --count 100      SFT, GRPO and generate in turn; --seed N --count 1 repeats a case
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import yaml

from r1_recipes import generate, grpo, sft
from tests.conftest import SUMS, metrics

METHODS = {"grpo": grpo, "sft": sft, "generate": generate}
SECONDS = 300  # of one process; longer means that it hangs
# What may differ: seconds, and SFTTrainer's count of tokens, which
# begins anew in each process.
VARIES = ("step_time", "num_tokens", "time/")


def start(method: str, recipe: str, log: Path) -> int:
    """Start a command in a process forked from this one, whose libraries are loaded already."""
    process = os.fork()
    if process:
        return process
    os.setsid()
    code = 1
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = [method, recipe]
        METHODS[method].main([recipe])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, 0)


def run(method: str, recipe: str, log: Path) -> None:
    """Run a command to its end."""
    process, deadline = start(method, recipe, log), time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            end = log.read_text(errors="replace")
            assert os.waitstatus_to_exitcode(status) == 0 and "Traceback" not in end, end[-400:]
            return
        time.sleep(0.01)
    kill(process)
    raise AssertionError(f"took more than {SECONDS} s")


def recipe_of(method: str, folder: Path, model: Path) -> str:
    """Write a recipe of a few fast steps, and return its path."""
    rows = [{"question": f"{a}+{b}?", "answer": f"{a} + {b}\n#### {a + b}"} for a, b in SUMS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys: dict[str, Any] = {
        "model_name_or_path": str(model),
        "dataset_name": str(folder / "rows.jsonl"),
        "mapper": "gsm8k",
        "system_prompt": "",
        "dtype": "float32",
        "use_cpu": True,
        "output_dir": str(folder / method),
    }
    if method == "generate":
        keys |= {"generation_batch_size": 1, "reward_funcs": ["accuracy"]}
    else:
        keys |= {"per_device_train_batch_size": 4, "learning_rate": 1e-2, "max_steps": 8}
        keys |= {"logging_steps": 1, "save_steps": 1, "save_total_limit": 2, "bf16": False}
        keys |= {"gradient_checkpointing": False, "report_to": "none"}
    if method == "grpo":
        keys |= {"reward_funcs": ["tests.conftest:letters", "accuracy"]}
    if method != "sft":
        keys |= {"num_generations": 2, "max_completion_length": 8}
    path = folder / f"{method}.yaml"
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")
    return str(path)


def outcome(method: str, folder: Path) -> Any:
    """What must be equal, however often the run was killed."""
    if method == "generate":
        lines = [path.read_text() for path in (folder / "completions").glob("*.jsonl")]
        records = [json.loads(line) for text in lines for line in text.splitlines()[1:]]
        found = {one["index"]: [each["text"] for each in one["completions"]] for one in records}
        assert len(found) == len(records), "rows twice"
        return found
    steps = [
        {key: value for key, value in entry.items() if not key.startswith(VARIES)}
        for entry in metrics(folder)
    ]
    weights = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("*.safetensors")
    }
    return steps, weights


def case(seed: int, root: Path, wholes: dict[str, tuple[Any, float]]) -> str:
    """Kill a run a few times at random moments, let it end, and compare it with the whole run."""
    rng, method = random.Random(seed), ("grpo", "sft", "generate")[seed % 3]
    folder = root / "case"  # always of the same name, because recipes name it
    recipe, log = "", folder / "log"

    def anew() -> str:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return recipe_of(method, folder, root / "model")

    if method not in wholes:
        recipe, began = anew(), time.monotonic()
        run(method, recipe, log)
        wholes[method] = outcome(method, folder / method), time.monotonic() - began
    expected, seconds = wholes[method]
    recipe, moments = anew(), []
    for _ in range(rng.randint(1, 3)):
        process = start(method, recipe, log)
        moments.append(rng.uniform(0, seconds))
        time.sleep(moments[-1])
        kill(process)
    run(method, recipe, log)
    assert outcome(method, folder / method) == expected, f"differs; kills at {moments} s"
    return f"{method}, {len(moments)} kills"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    options = parser.parse_args()
    failed, wholes = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own: torch has threads once it has computed, and a fork loses them.
        script = "import sys, pathlib; from r1_recipes.models.smoke import build_tiny_model as b; "
        script += "b(pathlib.Path(sys.argv[1]), {})"
        subprocess.run([sys.executable, "-c", script, f"{folder}/model"], check=True)
        for seed in range(options.seed, options.seed + options.count):
            try:
                what = case(seed, Path(folder), wholes)
            except AssertionError as error:
                failed, what = failed + 1, f"FAILED: {error}"
            sys.stdout.write(f"{seed}: {what}\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
