"""Generated rows on disk: whole or not at all, whatever happens to process, file and disk."""

import json
import os
import resource
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.completions.store import ShardStore


def record(index, text="7", error=None):
    return {
        "index": index,
        "digest": f"d{index}",
        "question": f"{index}?",
        "prompt": [{"role": "user", "content": f"{index}?"}],
        "columns": {},
        "completions": [{"text": text, "tokens": 1, "finish_reason": "stop"}],
        "error": error,
    }


def test_records_come_back_in_order_of_their_index(tmp_path):
    with ShardStore(tmp_path) as store:
        for index in (3, 0, 4, 1, 2):
            store.append(record(index))
        assert list(store) == [record(index) for index in range(5)]
    with ShardStore(tmp_path) as store:
        assert len(store) == 5 and list(store)[4] == record(4)
        store.append(record(5))
        assert list(store)[5] == record(5)
    assert sorted(p.name for p in tmp_path.glob("*.jsonl")) == [
        "shard-00000.jsonl",
        "shard-00001.jsonl",
    ]  # one a start


def test_shards_of_a_thousand_rows_of_version_0_1_0_are_read(tmp_path):
    for number, indices in enumerate([(0, 3), (1, 2), (3,)]):
        lines = [json.dumps(record(index, f"{number}")) + "\n" for index in indices]
        (tmp_path / f"shard-{number:05d}.jsonl").write_text("".join(lines), encoding="ascii")
    with ShardStore(tmp_path) as store:
        assert [one["completions"][0]["text"] for one in store] == ["0", "1", "1", "2"]
        store.append(record(1, "new"))
        assert list(store)[1] == record(1, "new")
    assert len(list(tmp_path.glob("*.jsonl"))) == 4


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), texts=st.lists(st.text(), min_size=1, max_size=4))
def test_a_file_cut_anywhere_keeps_its_whole_records(tmp_path_factory, cut, texts):
    folder = tmp_path_factory.mktemp("cut")
    with ShardStore(folder) as store:
        for index, text in enumerate(texts):
            store.append(record(index, text))
    (path,) = folder.glob("*.jsonl")
    content = path.read_bytes()
    kept = content[: max(0, len(content) - cut)]
    path.write_bytes(kept)
    whole = kept.count(b"\n")
    with ShardStore(folder) as store:
        assert list(store) == [record(index, text) for index, text in enumerate(texts[:whole])]
        for index, text in enumerate(texts[whole:], start=whole):
            store.append(record(index, text))
        assert list(store) == [record(index, text) for index, text in enumerate(texts)]


def test_hostile_text_survives(tmp_path):
    texts = ["\ud800 lone", "\x00\x1f\x7f", "\u2028\u2029\r\n", "</s>" * 1000, "𝟕"]
    with ShardStore(tmp_path) as store:
        for index, text in enumerate(texts):
            store.append(record(index, text))
    with ShardStore(tmp_path) as store:
        assert [r["completions"][0]["text"] for r in store] == texts


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    with ShardStore(tmp_path) as store:
        store.append(record(0))
        store.append(record(1))
    path = tmp_path / "shard-00000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"{broken\n" + lines[1])
    with (
        pytest.raises(RecipeError, match=r"shard-00000.jsonl: line 1: is damaged"),
        ShardStore(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"index": "0"},
        {"index": [0]},
        {"completions": 3},
        {"completions": ["text"]},
        {"completions": [{"text": "7", "tokens": 1}]},
    ],
)
def test_a_record_of_another_shape_is_named(tmp_path, change):
    (tmp_path / "shard-00000.jsonl").write_text(json.dumps({**record(0), **change}) + "\n")
    with (
        pytest.raises(RecipeError, match=r"shard-00000.jsonl: line 1: is damaged"),
        ShardStore(tmp_path),
    ):
        pass


def test_a_record_that_is_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "shard-00000.jsonl").write_text("[" * 100_000 + "\n")
    with (
        pytest.raises(RecipeError, match=r"shard-00000.jsonl: line 1: is damaged"),
        ShardStore(tmp_path),
    ):
        pass


def test_a_second_process_is_kept_out(tmp_path):
    with (
        ShardStore(tmp_path),
        pytest.raises(RecipeError, match="process already writes into this folder"),
        ShardStore(tmp_path),
    ):
        pass
    with ShardStore(tmp_path):  # and let in afterwards
        pass


def test_a_child_that_outlives_its_parent_does_not_keep_the_folder_locked(tmp_path):
    """As an engine of vLLM does when the run that started it is killed."""
    code = (
        "import os, sys, time; from pathlib import Path; from r1_recipes.completions.store "
        "import ShardStore\n"
        "with ShardStore(Path(sys.argv[1])):\n"
        "    child = os.fork()\n"
        # When it has come up: only then has it let go
        "    if not child: print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
        "    os._exit(0)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(RecipeError, match="another process"), ShardStore(tmp_path):
            pass
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it lives
        with ShardStore(tmp_path):
            pass
    finally:
        os.kill(child, 9)
        parent.stdout.close()


def test_a_row_generated_again_counts_once_by_its_last_record(tmp_path):
    with ShardStore(tmp_path) as store:
        store.append(record(0))
        store.append(record(1, error="InternalServerError"))
        assert store.failed == {1}
        store.append(record(1, "8"))
    with ShardStore(tmp_path) as store:
        assert store.failed == set() and len(store) == 2
        assert [r["completions"][0]["text"] for r in store] == ["7", "8"]


FILL = """
import sys
from pathlib import Path
from r1_recipes.common.errors import RecipeError
from r1_recipes.completions.store import ShardStore
from tests.core.completions.test_store import record
with ShardStore(Path(sys.argv[1])) as store:
    try:
        for index in range(1000):
            store.append(record(index, "x" * 1000))
    except RecipeError as error:
        sys.exit(f"{len(store)} {error}")
"""


def _fill_until_refused(folder, limit=None):
    set_limit = (
        (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
    )
    # -B: under the limit Python would leave torn .pyc files behind, for everyone after it.
    command = [sys.executable, "-B", "-c", FILL, str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=set_limit, check=False
    )
    assert done.returncode == 1, done.stderr
    stored, message = done.stderr.split(" ", 1)
    assert f"{stored} rows are stored" in message
    (path,) = folder.glob("*.jsonl")
    *lines, _ = path.read_bytes().split(b"\n")  # what follows the last of them is cut off
    assert len(lines) == int(stored) > 5
    assert [json.loads(line)["index"] for line in lines] == list(range(int(stored)))
    return int(stored)


def test_a_quota_leaves_whole_records_only(tmp_path):
    # a record is a little over 1,000 bytes, so 20,000 bytes hold 15 or so
    stored = _fill_until_refused(tmp_path, limit=20_000)
    with ShardStore(tmp_path) as store:
        store.append(record(stored))
        assert len(store) == stored + 1


def test_a_full_disk_leaves_whole_records_only(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        stored = _fill_until_refused(tmp_path)
        assert os.statvfs(tmp_path).f_bavail <= 1  # it was the disk that refused
        subprocess.run(["mount", "-o", "remount,size=256k", str(tmp_path)], check=True)
        with ShardStore(tmp_path) as store:
            store.append(record(stored))
            assert len(store) == stored + 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
