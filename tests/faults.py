"""Load and faults, one command each: nothing lost, nothing twice, one error a fault.

python -m tests.faults kills --count 2000      kill -9 at random moments; the same command resumes
python -m tests.faults files --count 500       malformed data files, recipes and run folders
python -m tests.faults servers --count 200     a server that fails, cuts, stalls and sends rubbish
python -m tests.faults disk --count 50         a disk that is full at some point of a run (as root)

Every case has a seed: ``--seed N --count 1`` repeats it. A line per case goes to
``OUTPUT/KIND.jsonl``; cases that are there are not run again. The exit status is 1 if one failed.
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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import yaml

from r1_recipes import generate, grpo, pipeline, sft
from r1_recipes.common.errors import RecipeError
from r1_recipes.data import sources
from r1_recipes.extras.report import __main__ as report
from r1_recipes.recipe import load_recipe
from tests.conftest import SUMS, metrics
from tests.support.chat_server import chat_server, reply

METHODS = {"grpo": grpo, "sft": sft, "generate": generate, "pipeline": pipeline}
SECONDS = 120  # of one process or one file; longer means that it hangs
# What may differ between a run that was stopped and one that was not: seconds, what a process has
# judged before, and SFTTrainer's count of tokens, which begins anew in each process.
VARIES = ("step_time", "num_tokens", "time/", "verification/")


class Failed(Exception):
    """A promise that did not hold."""


def require(condition: bool, text: str) -> None:
    if not condition:
        raise Failed(text)


# Runs, each in a process of its own that is forked from this one: the libraries are loaded already.


def start(method: str, recipe: str, log: Path) -> int:
    """Start a command in a process group of its own, and return its id."""
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


def wait(process: int, seconds: float = SECONDS) -> int:
    """Return the exit status. A process that takes longer is killed, and has failed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    kill(process)
    raise Failed(f"took more than {seconds} s")


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, 0)


def run(method: str, recipe: str, log: Path) -> int:
    return wait(start(method, recipe, log))


def last_lines(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-4:])[-400:]


def recipe_of(method: str, folder: Path, model: Path, **changes: Any) -> str:
    """Write a recipe of a few fast steps, and return its path."""
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"question": f"{a}+{b}?", "answer": f"{a} + {b}\n#### {a + b}"}) + "\n"
            for a, b in SUMS
        ),
        encoding="utf-8",
    )
    keys: dict[str, Any] = {
        "model_name_or_path": str(model),
        "dataset_name": str(rows),
        "mapper": "gsm8k",
        "response_format": "think_answer",
        "system_prompt": "",
        "dtype": "float32",
        "use_cpu": True,
        "seed": 1,
        "output_dir": str(folder / method),
    }
    training = {
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": 8,
        "logging_steps": 1,
        "save_steps": 1,
        "save_total_limit": 2,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "report_to": "none",
    }
    samples = {"num_generations": 2, "max_completion_length": 8}
    if method == "sft":
        keys |= training
    if method == "grpo":
        keys |= training | samples
        keys |= {"reward_funcs": ["tests.conftest:letters", "accuracy"]}
    if method == "generate":
        keys |= {**samples, "generation_batch_size": 1, "reward_funcs": ["accuracy"]}
    path = folder / f"{method}.yaml"
    keys = {key: value for key, value in {**keys, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
    if method == "pipeline":
        return pipeline_of(folder, model)
    return str(path)


def pipeline_of(folder: Path, model: Path) -> str:
    """Write a pipeline of SFT and GRPO, and return its path."""
    test = {"dataset_test_split": "train"}
    cold = recipe_of("sft", folder, model, output_dir=str(folder / "pipeline" / "cold"))
    last = {"output_dir": str(folder / "pipeline" / "last"), **test}
    reinforced = recipe_of(
        "grpo", folder, folder / "pipeline" / "cold", reward_funcs=["accuracy"], **last
    )
    path = folder / "pipeline.yaml"
    stages = [
        {"name": "cold", "label": "cold start", "method": "sft", "recipe": cold},
        {"name": "last", "label": "GRPO", "method": "grpo", "recipe": reinforced},
    ]
    keys = {
        "title": "a pipeline that is killed",
        "output_dir": str(folder / "pipeline"),
        "stages": stages,
        "judge": reinforced,
        "problems": 4,
        "num_samples": 1,
        "compare": [["cold", "last"]],
    }
    path.write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
    return str(path)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in entry.items() if not key.startswith(VARIES)}
        for entry in metrics(folder)
    ]


def weights_of(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.safetensors"))
    }


def outcome(method: str, folder: Path) -> dict[str, Any]:
    """What a run leaves that must be equal, however often it was killed."""
    run_folder = folder / method
    if method == "generate":
        records = [
            json.loads(line)
            for path in sorted((run_folder / "completions").glob("*.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        texts = [[one["text"] for one in record["completions"]] for record in records]
        indices = [record["index"] for record in records]
        require(len(indices) == len(set(indices)), f"rows twice: {Counter(indices)}")
        return {"rows": dict(zip(map(str, indices), texts, strict=True))}
    folders = {"pipeline": [run_folder / "cold", run_folder / "last"]}.get(method, [run_folder])
    found: dict[str, Any] = {}
    for one in folders:
        steps = steps_of(one)
        numbers = [step["step"] for step in steps]
        require(numbers == list(range(1, len(steps) + 1)), f"{one.name}: steps {numbers}")
        found[one.name] = {"steps": steps, "weights": weights_of(one)}
    return found


class Bench:
    """A model, and of each method a run that was never stopped: outcome, seconds, and kB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model"
        self._wholes: dict[str, tuple[dict[str, Any], float, int]] = {}
        if not self.model.exists():
            # In a process of its own: torch has threads once it has computed, and a fork would lose
            # them.
            script = "import sys; from pathlib import Path; from r1_recipes.models.smoke import "
            script += "build_tiny_model as build; build(Path(sys.argv[1]), {})"
            subprocess.run([sys.executable, "-c", script, str(self.model)], check=True)

    def whole(self, method: str) -> tuple[dict[str, Any], float, int]:
        if method not in self._wholes:
            with self.case() as folder:
                recipe = recipe_of(method, folder, self.model)
                started = time.monotonic()
                code = run(method, recipe, folder / "log")
                require(code == 0, f"the whole run failed: {last_lines(folder / 'log')}")
                seconds = time.monotonic() - started
                sizes = (path.stat().st_size for path in (folder / method).rglob("*"))
                self._wholes[method] = outcome(method, folder), seconds, sum(sizes) // 1000
        return self._wholes[method]

    @contextlib.contextmanager
    def case(self) -> Iterator[Path]:
        """A folder for a case, always of the same name, because recipes name it."""
        folder = self.folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder


# kills


def kills(bench: Bench, seed: int) -> str:
    """Kill a run a few times at random moments, let it end, and compare it with the whole run."""
    rng = random.Random(seed)
    method = "pipeline" if seed % 50 == 49 else ("grpo", "sft", "generate")[seed % 3]
    expected, seconds, _ = bench.whole(method)
    killed, moments = 0, []
    with bench.case() as folder:
        recipe, log = recipe_of(method, folder, bench.model), folder / "log"
        for _ in range(rng.randint(1, 3)):
            process = start(method, recipe, log)
            moment = rng.uniform(0, seconds)
            moments.append(round(moment, 2))
            time.sleep(moment)
            killed += os.waitpid(process, os.WNOHANG)[0] == 0
            kill(process)
        code = run(method, recipe, log)
        require(code == 0, f"does not resume: {last_lines(log)}")
        require("Traceback" not in log.read_text(errors="replace"), f"traceback: {log}")
        found = outcome(method, folder)
        require(found == expected, f"differs from the whole run; kills at {moments} s")
    return f"{method}, {killed} kills"


# files


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Spoil a file in one to three of the ways in which files are spoiled."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        way = rng.randrange(10)
        if way == 0:
            data = data[:at]
        elif way == 1:
            data = (
                data[:at] + bytes(rng.randrange(256) for _ in range(rng.randint(1, 40))) + data[at:]
            )
        elif way == 2:
            data = data[:at] + data[at + rng.randint(1, 200) :]
        elif way == 3:
            data = data.decode("utf-8", "replace").encode(
                rng.choice(["utf-16", "utf-32", "cp037"]), "replace"
            )
        elif way == 4:
            data = data[:at] + b"[" * rng.choice([5, 200_000]) + data[at:]
        elif way == 5:
            data = data[:at] + b"9" * rng.choice([30, 6_000]) + data[at:]
        elif way == 6:
            data = data[:at] + b"\0" * rng.randint(1, 9) + data[at:]
        elif way == 7:
            data = data.replace(
                rng.choice([b",", b'"', b"\n", b":", b"{"]), rng.choice([b"", b"\r", b'"', b"\t"])
            )
        elif way == 8:
            data = data + data[at:]
        else:
            data = b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")
    return data


def _originals(folder: Path) -> dict[str, bytes]:
    import pandas

    rows = [{"question": f"{a}+{b}?", "answer": str(a + b)} for a, b in SUMS] * 4
    frame = pandas.DataFrame(rows)
    frame.to_parquet(folder / "rows.parquet")
    recipe = Path(recipe_of("grpo", folder, folder / "model"))
    metrics = "".join(
        json.dumps({"step": step, "reward": step / 9, "rewards/accuracy/mean": 0.5}) + "\n"
        for step in range(1, 9)
    )
    state = {"recipe": "grpo.yaml", "method": "grpo", "finished": True, "sessions": []}
    return {
        "rows.csv": frame.to_csv(index=False).encode(),
        "rows.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "rows.json": json.dumps(rows).encode(),
        "rows.parquet": (folder / "rows.parquet").read_bytes(),
        "grpo.yaml": recipe.read_bytes(),
        "metrics.jsonl": metrics.encode(),
        "run.json": json.dumps(state).encode(),
    }


def _read(name: str, folder: Path, originals: dict[str, bytes]) -> None:
    if name.startswith("rows"):
        list(sources.load_rows(str(folder / name), "train"))
    elif name.endswith(".yaml"):
        load_recipe([str(folder / name)], "grpo")
    else:
        for other in ("metrics.jsonl", "run.json"):
            if other != name:
                (folder / other).write_bytes(originals[other])
        report.main([str(folder)])
        require((folder / "report.html").is_file(), "no page was written")


def files(bench: Bench, seed: int) -> str:
    """Spoil a file and read it: rows, or one error that names the file."""
    rng = random.Random(seed)
    with bench.case() as folder:
        originals = _originals(folder)
        name = rng.choice(list(originals))
        for path in folder.iterdir():
            path.unlink()
        (folder / name).write_bytes(mutate(originals[name], rng))
        log = folder / "log"
        process = os.fork()
        if not process:
            os.setsid()
            code = 1
            try:
                with log.open("a") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                _read(name, folder, originals)
                code = 0
            except RecipeError as error:
                sys.stderr.write(f"refused: {error}\n")
                code = 2
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = wait(process, 60)
        text = log.read_text(errors="replace")
        require(
            code in (0, 2) and "Traceback" not in text, f"{name}: exit {code}: {last_lines(log)}"
        )
        if code == 2:
            require(name in text, f"{name}: the error does not name it: {last_lines(log)}")
    return f"{name}, {'refused' if code == 2 else 'read'}"


# servers


def servers(bench: Bench, seed: int) -> str:
    """Generate from a server of which each request fails up to twice, and compare the rows."""
    rng = random.Random(seed)
    faults = 0
    rubbish = ({}, {"choices": []}, {"choices": [{}]}, {"choices": "?"}, [], {"choices": [None]})

    def answer(body: dict[str, Any], before: int) -> Any:
        nonlocal faults
        if before < 2 and rng.random() < 0.5:
            faults += 1
            return rng.choice([500, 502, 503, 429, "cut", 0.7])
        return reply(f"{body['messages'][-1]['content']} {body['seed']}")

    def spoiled(body: dict[str, Any], before: int) -> Any:
        nonlocal faults
        if rng.random() < 0.3:
            faults += 1
            return rng.choice(rubbish)
        return reply("fine")

    hostile = seed % 4 == 3  # rubbish is no reason to ask again: a row fails, and is said
    with bench.case() as folder, chat_server(spoiled if hostile else answer) as (url, _):
        os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "secret-key"}
        keys = {"backend": "openai", "model_name_or_path": "tiny", "reward_funcs": None}
        recipe = recipe_of(
            "generate", folder, bench.model, **keys, request_timeout=0.5, request_retries=4
        )
        code = run("generate", recipe, folder / "log")
        text = (folder / "log").read_text(errors="replace")
        require("Traceback" not in text and "secret-key" not in text, last_lines(folder / "log"))
        rows = outcome("generate", folder)["rows"]
        if not hostile:
            require(code == 0, f"exit {code}: {last_lines(folder / 'log')}")
            for index, (a, b) in enumerate(SUMS):
                texts = rows[str(index)]
                require(len(set(texts)) == 2, f"row {index}: {texts}")
                require(all(text.startswith(f"{a}+{b}? ") for text in texts), f"{index}: {texts}")
        else:
            require(code == 0, f"exit {code}: {last_lines(folder / 'log')}")
            require(set(rows) == set(map(str, range(len(SUMS)))), f"rows {sorted(rows)}")
            texts = {text for row in rows.values() for text in row}
            require(texts <= {"fine", ""}, f"texts {texts}")
    return f"{faults} faults"


# disk


def disk(bench: Bench, seed: int) -> str:
    """Run with a disk that is too small, give it room, and run again: the whole run's outcome."""
    rng = random.Random(seed)
    method = ("grpo", "sft", "generate")[seed % 3]
    expected, _, needed = bench.whole(method)
    with bench.case() as folder:
        size = rng.randint(16, 1 + needed)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs"]
        (folder / method).mkdir()
        if subprocess.run([*mount, str(folder / method)], capture_output=True).returncode:
            raise SystemExit("tests.faults: disk: mounting a tmpfs needs root")
        try:
            recipe, log = recipe_of(method, folder, bench.model), folder / "log"
            code = run(method, recipe, log)
            text = log.read_text(errors="replace")
            require("Traceback" not in text, f"{size} kB: traceback: {last_lines(log)}")
            if code:
                require("No space left" in text or "free" in text, f"{size} kB: {last_lines(log)}")
            remount = ["mount", "-o", "remount,size=64m", str(folder / method)]
            subprocess.run(remount, check=True)
            again = run(method, recipe, log)
            require(again == 0, f"{size} kB: does not resume: {last_lines(log)}")
            require(outcome(method, folder) == expected, f"{size} kB: differs from the whole run")
        finally:
            subprocess.run(["umount", str(folder / method)], check=True)
    return f"{method}, {'full' if code else 'room enough'}"


KINDS: dict[str, tuple[Callable[[Bench, int], str], int]] = {
    "kills": (kills, 2000),
    "files": (files, 500),
    "servers": (servers, 200),
    "disk": (disk, 50),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, help="cases; of kills, kills (default: as above)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case (default 0)")
    parser.add_argument("--output", type=Path, default=Path("outputs/faults"))
    options = parser.parse_args()
    case, count = KINDS[options.kind]
    count = options.count or count
    options.output.mkdir(parents=True, exist_ok=True)
    results = options.output / f"{options.kind}.jsonl"
    done = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    known = {one["seed"]: one for one in done}
    failed, counted, seed, began = 0, 0, options.seed, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="r1-faults-") as folder:
        bench = Bench(Path(folder))
        while counted < count:
            if seed not in known:
                known[seed] = {"seed": seed, **_tried(case, bench, seed)}
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[seed]) + "\n")
            one = known[seed]
            counted += _weight(options.kind, one)
            failed += not one["ok"]
            rate = (time.monotonic() - began) / max(1, counted)
            sys.stderr.write(
                f"\r{options.kind}: {counted} of {count}, {failed} failed, "
                f"{rate * max(0, count - counted) / 60:.0f} min left   "
            )
            if not one["ok"]:
                sys.stderr.write(f"\nseed {seed}: {one['what']}\n")
            seed += 1
    sys.stderr.write("\n")
    whats = Counter(one["what"] for one in known.values() if one["ok"])
    for what, times in whats.most_common(20):
        sys.stdout.write(f"{times:6} {what}\n")
    sys.exit(failed > 0)


def _tried(case: Callable[[Bench, int], str], bench: Bench, seed: int) -> dict[str, Any]:
    try:
        return {"ok": True, "what": case(bench, seed)}
    except Failed as error:
        return {"ok": False, "what": str(error)}


def _weight(kind: str, one: dict[str, Any]) -> int:
    """Return what a case counts: its kills or faults, else 1."""
    words = one["what"].split()
    number = {"kills": words[-2:-1], "servers": words[:1]}.get(kind, ["1"])
    return max(1, int(number[0])) if one["ok"] and number and number[0].isdigit() else 1


if __name__ == "__main__":
    main()
