"""docs/after_training.md, from its first command to its last, on a tiny model that a run has left
in the folder it names.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from r1_recipes import sft
from tests.conftest import REPOSITORY
from tests.support.commands import succeed
from tests.support.hub_server import hub_server
from tests.support.loopback import serving

GUIDE = (REPOSITORY / "docs" / "after_training.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]
BIN = Path(sys.executable).parent
# For a tiny model on a busy machine; the rest of each command is the guide's.
QUICK = ["--max_eval_samples", "2", "--num_samples", "1", "--max_completion_length", "8"]
# How each command starts that a test below runs.
JUDGED = "python -m r1_recipes.evaluate recipes/cpu/demo_2_grpo.yaml --model outputs/demo/cold_start"
ASKED = "python -m r1_recipes.evaluate recipes/cpu/demo_2_grpo.yaml --model outputs/demo/grpo --ask"
SERVED = "transformers serve "
CURLED = "curl "
CHATTED = "transformers chat "
PUBLISHED = "hf upload "
MERGED = "python -m r1_recipes.adapters "
CONVERTED = "python llama.cpp/convert_hf_to_gguf.py "
RUN_HERE = (JUDGED, ASKED, SERVED, CURLED, CHATTED, PUBLISHED, MERGED, CONVERTED)
# tests/vllm/test_served.py runs the first; the second installs what is there; the last needs a build of llama.cpp.
RUN_ELSEWHERE = (
    "vllm serve outputs/demo/grpo",
    "pip install ",
    "llama.cpp/build/bin/llama-server ",
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are typed: the recipes, and two models of runs on the recipe's rows."""
    root = tmp_path_factory.mktemp("after")
    (root / "recipes").symlink_to(REPOSITORY / "recipes")
    recipe = yaml.safe_load(
        (REPOSITORY / "recipes" / "cpu/demo_1_sft.yaml").read_text(encoding="utf-8")
    )
    recipe |= {
        "model_name_or_path": str(tiny_model),
        "unfrozen_parameters": None,
        "max_steps": 1,
        "max_samples": 40,
        "report_to": "none",
    }
    recipe |= {
        "output_dir": str(root / "outputs/demo/grpo"),
        "prefill": "<think>\n",
        "save_strategy": "no",
        "eval_strategy": "no",
    }
    path = root / "tiny.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in recipe.items() if value is not None}),
        encoding="utf-8",
    )
    sft.main([str(path)])
    shutil.copytree(root / "outputs/demo/grpo", root / "outputs/demo/cold_start")
    sft.main(
        [
            str(path),
            "--use_peft",
            "true",
            "--lora_r",
            "2",
            "--output_dir",
            str(root / "outputs/lora"),
        ]
    )
    return root


@pytest.fixture
def typed(folder: Path) -> Callable[..., str]:
    """``typed("hf upload ", TEXT="…")``: the guide's command that starts so, with words replaced;
    what it printed.
    """

    def run(
        start: str,
        *more: str,
        stdin: str = "",
        replace: tuple[str, str] = ("", ""),
        **variables: str,
    ) -> str:
        (line,) = (command for command in COMMANDS if command.startswith(start))
        words = [*shlex.split(line.replace(*replace) if replace[0] else line), *more]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            **variables,
        }
        return succeed(words, environment, folder=folder, stdin=stdin, timeout=280).stdout

    return run


def test_every_command_is_run() -> None:
    tested = RUN_HERE + RUN_ELSEWHERE
    assert [line for line in COMMANDS if not line.startswith(tested)] == []
    chinese = (REPOSITORY / "docs" / "after_training.zh.md").read_text(encoding="utf-8")
    assert re.findall(r"```(?:bash|python)\n.*?```", chinese, re.DOTALL) == re.findall(
        r"```(?:bash|python)\n.*?```", GUIDE, re.DOTALL
    )


def test_evaluate_and_ask_commands_of_the_guide(typed: Callable[..., str], folder: Path) -> None:
    table = typed(
        JUDGED,
        *QUICK,
    )
    assert "| outputs/demo/grpo |" in table and (folder / "outputs/judged/results.json").exists()
    asked = typed(
        ASKED,
        *QUICK[4:],
    )
    assert "=== outputs/demo/grpo\n<think>" in asked


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[str]:
    """The guide's ``transformers serve`` on a free port."""
    (line,) = (command for command in COMMANDS if command.startswith(SERVED))
    words = [str(BIN / "transformers"), *shlex.split(line)[1:], "--port"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with serving(
        lambda port: [*words, str(port)], tmp_path / "log", environment, folder
    ) as address:
        yield address


def test_served_and_chatted_with(
    typed: Callable[..., str], server: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    here = ("localhost:8000", server)
    answer = yaml.safe_load(typed(CURLED, replace=here))
    assert answer["choices"][0]["message"]["role"] == "assistant"
    # The template's system prompt and prefill are in what the server counts.
    from transformers import AutoTokenizer

    question = [{"role": "user", "content": "What is 7 + 5 * 3?"}]
    prompt = AutoTokenizer.from_pretrained(folder / "outputs/demo/grpo").apply_chat_template(
        question, add_generation_prompt=True
    )
    assert answer["usage"]["prompt_tokens"] == len(prompt["input_ids"])
    # An untrained model's sample may be cut, and the first "!exit" then means that it shall not go
    # on.
    lines = "What is 7 + 5 * 3?\n!exit\n!exit\n"
    shown = typed(CHATTED, HF_HUB_OFFLINE="0", replace=here, stdin=lines)
    assert "outputs/demo/grpo" in shown
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    monkeypatch.chdir(folder)
    questions, said = iter(["What is 7 + 5 * 3?", "And 2?", ""]), []
    exec(block.replace(*here), {"input": lambda _: next(questions), "print": said.append})
    assert len(said) == 2


def test_published(typed: Callable[..., str], tmp_path: Path) -> None:
    with hub_server(tmp_path) as (url, _):
        online = {
            "HF_ENDPOINT": url,
            "HF_TOKEN": "invented",
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        typed(PUBLISHED, **online)
    pushed = {path.name for path in (tmp_path / "models" / "me" / "sums").iterdir()}
    assert {
        "model.safetensors",
        "chat_template.jinja",
        "README.md",
        "tokenizer.json",
        "recipe.yaml",
    } <= pushed
    assert not pushed & {"run.json", "run.log", "report.html", "training_args.bin"}
    card = (tmp_path / "models" / "me" / "sums" / "README.md").read_text(encoding="utf-8")
    assert "    Use <think> then <answer>.\n" in card and "`'<think>\\n'`" in card


def test_merged(typed: Callable[..., str], folder: Path) -> None:
    typed(MERGED)
    template = (folder / "outputs/lora/merged/chat_template.jinja").read_text(encoding="utf-8")
    assert template == (folder / "outputs/demo/grpo/chat_template.jinja").read_text(
        encoding="utf-8"
    )


@pytest.mark.skipif(
    not os.environ.get("R1_LLAMA_CPP"), reason="set R1_LLAMA_CPP to a clone of llama.cpp"
)
def test_converted(typed: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader

    from r1_recipes.extras.demo.weights import smollm2_checkpoint

    (folder / "llama.cpp").symlink_to(os.environ["R1_LLAMA_CPP"])
    shutil.copytree(
        smollm2_checkpoint(), tmp_path / "model"
    )  # the converter knows no tokenizer of a tiny model
    shutil.copy(folder / "outputs/demo/grpo/chat_template.jinja", tmp_path / "model")
    typed(
        CONVERTED,
        replace=("outputs/demo/grpo", str(tmp_path / "model")),
    )
    fields = GGUFReader(folder / "model.gguf").fields
    template = (folder / "outputs/demo/grpo/chat_template.jinja").read_text(encoding="utf-8")
    assert (
        fields["tokenizer.chat_template"].contents() == template
        and fields["tokenizer.ggml.pre"].contents() == "smollm"
    )
