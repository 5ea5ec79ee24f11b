"""Generated rows on disk: whole or not at all, also after a kill."""

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


def test_a_second_process_is_kept_out(tmp_path):
    with (
        ShardStore(tmp_path),
        pytest.raises(RecipeError, match="process already writes into this folder"),
        ShardStore(tmp_path),
    ):
        pass
    with ShardStore(tmp_path):  # and let in afterwards
        pass
