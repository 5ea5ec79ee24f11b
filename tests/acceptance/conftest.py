"""What all tests share: the project's commands as processes, a tiny model with its recipe, and the public Python names.

Nothing here knows the inside of the project. ACCEPT_PYTHON names the interpreter that has it, ACCEPT_ROOT the checkout.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("ACCEPT_ROOT", ".")).resolve()
PYTHON = os.path.abspath(os.environ.get("ACCEPT_PYTHON", sys.executable))
JOBS = int(os.environ.get("ACCEPT_JOBS", "2"))  # commands at once, where a test has several
COLD = bool(os.environ.get("ACCEPT_COLD"))  # every command in an interpreter of its own, twice as slow
TINY = HERE / "tiny_model"


@dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def text(self):
        return self.out + self.err

    def says(self, *words):
        """Whether the output has each of these names, keys or numbers."""
        missing = [word for word in words if str(word) not in self.text]
        assert not missing, f"{missing} not in the output, exit {self.code}:\n{self.text[-3000:]}"
        return True

    def ok(self):
        assert self.code == 0, f"exit {self.code}:\n{self.text[-3000:]}"
        return self

    def refused(self, *words):
        """Exit 2, in words instead of a traceback, with these names."""
        assert self.code == 2, f"exit {self.code}, not 2:\n{self.text[-3000:]}"
        assert "Traceback" not in self.text, self.text[-3000:]
        self.says(*words)
        return self


class Commands:
    """Runs `python -m r1_recipes.NAME`, from the checkout unless another folder is named."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        self.env = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_DATASETS_CACHE": str(folder / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "COLUMNS": "200",
            "ACCELERATE_USE_CPU": "true",
        }
        for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "PYTHONSAFEPATH", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
            self.env.pop(name, None)
        self.server = None

    def process(self, argv, cwd=ROOT, env=(), timeout=300):
        """Any command line, in a process of its own."""
        began = time.monotonic()
        with contextlib.closing(self.start(argv, cwd, env)) as running:
            return running.result(timeout, began)

    def start(self, argv, cwd=ROOT, env=()):
        return Running(list(map(str, argv)), cwd, self.env | dict(env), self._name())

    def python(self, name, *argv, cwd=ROOT, env=(), timeout=300):
        return self.process([PYTHON, "-m", f"r1_recipes.{name}" if name else "r1_recipes", *argv], cwd, env, timeout)

    def __call__(self, name, *argv, cwd=ROOT, env=(), timeout=300):
        """The same as python(), but in a fork of an interpreter that has the libraries loaded."""
        if COLD:
            return self.python(name, *argv, cwd=cwd, env=env, timeout=timeout)
        self._serve()
        began, files = time.monotonic(), self._name()
        job = {"module": f"r1_recipes.{name}", "argv": list(map(str, argv)), "cwd": str(cwd), "env": dict(env), "out": f"{files}.out", "err": f"{files}.err"}
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(timeout)
            link.connect(self.socket)
            link.sendall(json.dumps(job).encode() + b"\n")
            lines = link.makefile()
            child = int(lines.readline())
            try:
                code = int(lines.readline())
            except TimeoutError:
                os.killpg(child, signal.SIGKILL)
                code = -9
        return Result(code, read(job["out"]), read(job["err"]), time.monotonic() - began)

    def each(self, calls):
        """Runs several commands, JOBS at a time: a list of (name, *argv), or of (name, *argv, options)."""

        def call(item):
            *argv, options = item if isinstance(item[-1], dict) else (*item, {})
            return self(*argv, **options)

        return self.every(call, calls)

    def every(self, function, items):
        self._serve()
        with ThreadPoolExecutor(JOBS) as pool:
            return list(pool.map(function, items))

    def _name(self):
        self.count += 1
        return self.folder / f"{self.count:04}"

    def _serve(self):
        if self.server or COLD:
            return
        self.socket = str(self.folder / "warm")
        with open(self.folder / "warm.log", "w") as log:
            self.server = subprocess.Popen([PYTHON, str(HERE / "warm.py"), self.socket], env=self.env, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + 180
        while True:
            with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
                link.connect(self.socket)
                link.sendall(b'{"module": "this", "argv": [], "cwd": "/", "env": {}, "out": "/dev/null", "err": "/dev/null"}\n')
                link.makefile().read()
                return
            assert self.server.poll() is None and time.monotonic() < deadline, read(self.folder / "warm.log")
            time.sleep(0.2)

    def close(self):
        if self.server:
            self.server.kill()
            self.server.wait()


class Running:
    """A process whose output goes to files, for tests that interrupt it."""

    def __init__(self, argv, cwd, env, files):
        self.files = files
        with open(f"{files}.out", "w") as out, open(f"{files}.err", "w") as err:
            self.process = subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)

    def result(self, timeout=300, began=None):
        began = time.monotonic() if began is None else began
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        code = self.process.poll()
        self.close()
        return Result(-9 if code is None else code, read(f"{self.files}.out"), read(f"{self.files}.err"), time.monotonic() - began)

    def wait_for(self, condition, timeout=120):
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"ended early: {read(f'{self.files}.err')[-2000:]}"
            assert time.monotonic() < deadline, "the condition never held"
            time.sleep(0.02)

    def signal(self, number):
        os.kill(self.process.pid, number)

    def close(self):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def read(path):
    return Path(path).read_text(encoding="utf-8", errors="replace")


def metrics(run):
    """The rows of metrics.jsonl that a step wrote."""
    return [row for row in map(json.loads, read(Path(run) / "metrics.jsonl").splitlines()) if "loss" in row]


def resolved(run):
    return yaml.safe_load(read(Path(run) / "recipe.yaml"))


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def ask(commands):
    """Runs lines of Python where the project is installed: `data` is there, and what `answer` holds comes back."""

    def ask(lines, data=None, timeout=240, cwd=ROOT):
        program = f"import json, sys\ndata = json.load(open(sys.argv[1]))\n{textwrap.dedent(lines)}\njson.dump(answer, open(sys.argv[2], 'w'))\n"
        given, got = (Path(f"{commands._name()}.{end}") for end in ("given", "got"))
        given.write_text(json.dumps(data))
        commands.process([PYTHON, "-c", program, given, got], cwd=cwd, timeout=timeout).ok()
        return json.loads(read(got))

    return ask


@pytest.fixture(scope="session")
def parquet(ask):
    """Reads Parquet files as lists of rows."""
    return lambda *files: ask(
        """
        import pyarrow.parquet
        answer = [row for name in data for row in pyarrow.parquet.read_table(name).to_pylist()]""",
        list(map(str, files)),
    )


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A folder with invented rows, a reward and a mapper of one's own, and a recipe that trains the tiny model."""
    folder = tmp_path_factory.mktemp("lab")
    rows = [{"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}"} for a in range(2, 8) for b in (3, 5, 8, 9)]
    write_rows(folder / "rows.jsonl", rows)
    shutil.copy(HERE / "own_code.py", folder / "own_code.py")
    return folder


SUMS = [(a, b) for a in (2, 3, 4) for b in (3, 5, 7, 8)]


def by_heart(commands, lab, name, rows):
    """Teaches the tiny model rows of (question, reasoning, answer), so that what it says is known."""
    write_rows(lab / "sums.jsonl", [{"question": f"{a} + {b}?", "answer": f"#### {a + b}"} for a, b in SUMS])
    write_rows(lab / f"{name}.jsonl", [{"question": question, "answer": f"{reasoning}\n#### {answer}"} for question, reasoning, answer in rows])
    keys = {"learning_rate": 1e-2, "lr_scheduler_type": "cosine", "max_steps": 250, "logging_steps": 100}
    commands("sft", recipe(lab, name, "sft", dataset_name=f"{name}.jsonl", per_device_train_batch_size=len(rows), **keys), cwd=lab).ok()
    return lab / name


@pytest.fixture(scope="session")
def scholar(commands, lab):
    """A model that answers eight of twelve sums right, and always the same."""
    return by_heart(commands, lab, "scholar", [(f"{a} + {b}?", f"{a} and {b}", a + b + (n >= 8)) for n, (a, b) in enumerate(SUMS)])


@pytest.fixture(scope="session")
def doubter(commands, lab):
    """A model that is right after "sum" and wrong after "guess", and says each half of the time."""
    return by_heart(commands, lab, "doubter", [(f"{a} + {b}?", word, a + b + off) for a, b in SUMS for off, word in enumerate(("sum", "guess"))])


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def recipe(folder, name="recipe", method="grpo", **changes):
    """Writes FOLDER/NAME.yaml, the tiny recipe of a method with some changes; None leaves a key out."""
    keys = (
        {
            "model_name_or_path": str(TINY),
            "dtype": "float32",
            "dataset_name": "rows.jsonl",
            "mapper": "gsm8k",
            "response_format": "think_answer",
            "system_prompt": "",
            "use_cpu": True,
            "output_dir": str(folder / name),
        }
        | TRAINING.get(method, {})
        | changes
    )
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in keys.items() if value is not None}, sort_keys=False, allow_unicode=True))
    return path


_RUN = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "max_steps": 2,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "seed": 1,
    "report_to": "none",
}
TRAINING = {
    "grpo": _RUN | {"reward_funcs": ["own_code:letters", "accuracy"], "num_generations": 4, "max_completion_length": 16, "beta": 0.04, "use_vllm": False},
    "sft": _RUN,
    "distill": _RUN | {"max_completion_length": 8, "use_vllm": False},
    "reward": _RUN | {"mapper": "preference", "response_format": None, "system_prompt": None},
    "generate": {"backend": "transformers", "num_generations": 2, "max_completion_length": 8, "seed": 3, "reward_funcs": ["accuracy"]},
}
