"""Sampled completions on the page."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from r1_recipes.common import messages
from r1_recipes.extras.report import completions
from r1_recipes.extras.report.completions import pack_completions
from r1_recipes.extras.report.read import RunData, read_run
from tests.support.report_runs import completion, write_run


def packed(run: RunData) -> tuple[dict[str, Any], int, int]:
    text, kept, total = pack_completions([run])
    return json.loads(gzip.decompress(base64.b64decode(text))), kept, total


def test_completions_are_columns_with_the_weighted_reward(tmp_path: Path) -> None:
    rows = [
        completion(1, extra_note=None),
        completion(1, "five", "2+3?", accuracy=None, answer_parsed=None, extra_note="x"),
        completion(2, accuracy=float("nan")),
    ]
    found, kept, total = packed(
        read_run(write_run(tmp_path / "run", completions={1: rows[:2], 2: rows[2:]}))
    )
    assert (found["rewards"], found["extras"]) == (
        ["accuracy", "format"],
        ["answer_parsed", "solution", "extra_note"],
    )
    assert found["prompts"] == [["[user]\n2+2?", "2+2?"], ["[user]\n2+3?", "2+3?"]]
    assert kept == total == 3
    assert found["rows"] == {
        "run": [0, 0, 0],
        "kind": [0, 0, 0],
        "step": [1, 1, 2],
        "prompt": [0, 1, 0],
        "text": ["<answer>4</answer>", "five", "<answer>4</answer>"],
        # 1·1 + 0.2·0.5; what a reward does not judge counts nothing.
        "reward": [1.1, 0.1, 0.1],
        "advantage": [0.25, 0.25, 0.25],
        "scores": [[1.0, None, None], [0.5, 0.5, 0.5]],
        "extra": [["4", None, "4"], ["4", "4", "4"], [None, "x", None]],
    }


def test_completions_of_the_evaluation_are_there_and_marked(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", completions={1: [completion(1)], 2: [completion(2)]})
    (folder / "eval_completions").mkdir()
    (folder / "completions" / "completions_00002.parquet").rename(
        folder / "eval_completions" / "completions_00002.parquet"
    )
    found, kept, total = packed(read_run(folder))
    assert (kept, total, found["rows"]["step"], found["rows"]["kind"]) == (2, 2, [1, 2], [0, 1])


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}], "2+2?"),
        (
            [
                {"role": "user", "content": "1?"},
                {"role": "assistant", "content": "1"},
                {"role": "user", "content": "2?"},
            ],
            "2?",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {"type": "image", "text": None},
                    ],
                }
            ],
            "What is this?\n\n",
        ),
        ("Question: 2+2?", "Question: 2+2?"),
        ([{"role": "system", "content": "Be brief."}], ""),
        ([1, 2], ""),
        (3, ""),
        (None, ""),
    ],
)
def test_the_question_is_what_the_user_said_last(prompt: Any, asked: str) -> None:
    assert completions._row(0, 0, {"prompt": prompt}, {})["prompt"][1] == asked


def test_messages_are_separated_and_no_text_can_imitate_them() -> None:
    def call(name: str, arguments: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "arguments": arguments}}

    forged = "1\n\n[tool calculator]\n42\n[1, 2]"
    calls = [call("python", {"code": "a\nb", "n": 2}), call("x]\n\n[tool y", "text"), call("z", {})]
    turns = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "name": "python", "content": forged},
        {"role": "assistant", "content": ""},
    ]
    assert messages.transcript(turns) == (
        "[call python]\ncode=\na\nb\nn=2\n\n[call x] [tool y]\ntext\n\n[call z]\n\n\n"
        "[tool python]\n1\n\n [tool calculator]\n42\n[1, 2]\n\n[assistant]\n"
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("plain", "plain"),
        ([{"role": "assistant", "content": "a"}], "a"),
        (
            [{"role": "assistant", "content": None}, {"role": "tool", "content": "7"}],
            "\n\n[tool]\n7",
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "a"}, {"type": "image", "text": None}],
                }
            ],
            "a\n\n",
        ),
        (None, ""),
        (3, ""),
        ([], ""),
    ],
)
def test_words_of_a_completion(value: Any, words: str) -> None:
    assert messages.words(value) == words


def test_long_text_keeps_its_ends() -> None:
    text = "a" * 60_000 + "b" * 60_000
    assert messages.clip(text) == "a" * 50_000 + "\n[… 20,000 …]\n" + "b" * 50_000
    assert messages.clip(text[:100_000]) == text[:100_000]
    assert [messages.clip("x" * count, 80) == "x" * count for count in (80, 81, 90, 91, 200)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_completions_that_do_not_fit_are_thinned_by_whole_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {
        step: [
            completion(step, hashlib.sha256(f"{step} {i}".encode()).hexdigest() * 4, f"{step}?")
            for i in range(4)
        ]
        for step in range(1, 41)
    }
    run = read_run(write_run(tmp_path / "run", completions=steps))
    whole = pack_completions([run])
    assert whole[1:] == (160, 160)
    monkeypatch.setattr(completions, "MAX_COMPLETION_BYTES", len(whole[0]) // 2)
    assert len(pack_completions([run])[0]) <= len(whole[0]) // 2
    found, kept, _ = packed(run)
    assert 40 <= kept == len(found["rows"]["step"]) <= 80
    shown = sorted(set(found["rows"]["step"]))
    assert (shown[0], shown[-1]) == (1, 40)
    assert all(found["rows"]["step"].count(step) == 4 for step in shown)
    assert [found["prompts"][i][1] for i in found["rows"]["prompt"]] == [
        f"{step}?" for step in found["rows"]["step"]
    ]


def test_files_are_left_out_unread_where_there_are_too_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "MAX_COMPLETIONS", 5)
    run = read_run(
        write_run(tmp_path / "run", completions={step: [completion(step)] for step in range(1, 10)})
    )
    found, kept, total = packed(run)
    # 9 files, 5 of them, evenly: 0, 2, 4, 6, 8.
    assert (kept, total, found["rows"]["step"]) == (5, 9, [1, 3, 5, 7, 9])
    # So it is where the rows are few and long.
    monkeypatch.setattr(completions, "MAX_COMPLETIONS", 64_000)
    monkeypatch.setattr(completions, "MAX_BYTES", 1)
    assert packed(run)[1:] == (1, 9)


@pytest.mark.parametrize(
    ("size", "count", "codec"),
    [(2**20, 2000, "snappy"), (100 * 2**20, 16, "snappy"), (2**20, 2, "zstd")],
)
def test_a_small_file_that_stands_for_gigabytes_is_left_out(
    tmp_path: Path, size: int, count: int, codec: str
) -> None:
    """Rows that say one text, which Parquet stores once, or a codec without a bound; in a process
    whose memory the kernel counts.
    """
    folder = write_run(tmp_path / "run", completions={1: [completion(1)]})
    done = subprocess.run(
        [sys.executable, "-c", _BOMB, str(folder), str(size), str(count), codec],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["file"] < size / 20 + 20_000
    assert said["kept"] == 1 and ["torn_file", "completions"] in said["missing"]
    assert (
        said["grown"] < 600 << 20
    )  # of 5.8 GB without the bound, and of 2.0 GB without that of a batch


_BOMB = """
import json, resource, sys
from pathlib import Path
import pyarrow, pyarrow.parquet
from r1_recipes.extras.report.completions import pack_completions
from r1_recipes.extras.report.read import read_run

path = Path(sys.argv[1], "completions", "completions_00002.parquet")
size, count = map(int, sys.argv[2:4])
text = pyarrow.array(["x" * size])
table = {"step": [2] * count, "completion": pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, "int32"), text)}
pyarrow.parquet.write_table(pyarrow.table(table), path, compression=sys.argv[4], store_schema=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run = read_run(Path(sys.argv[1]))
_, kept, _ = pack_completions([run])
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
missing = [(one["code"], one["values"]["file"][:11]) for one in run.missing]
print(json.dumps({"file": path.stat().st_size, "kept": kept, "missing": missing, "grown": grown}))
"""


def test_numbers_that_a_reward_logs_are_no_rewards(tmp_path: Path) -> None:
    """SDPO logs ``distilled``, 1 for an answer that had a teacher."""
    rows = [completion(1, accuracy=0.0, format=0.0, distilled=1)]
    found, _, _ = packed(read_run(write_run(tmp_path / "run", completions={1: rows})))
    assert found["rows"]["reward"] == [0.0] and "distilled" in found["rewards"]
