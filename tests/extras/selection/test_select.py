"""Rejection sampling: every rule alone, their order, the report, the dataset on disk, and rewards
that ask a server.
"""

import json
from types import SimpleNamespace

import datasets
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.selection.rules import (
    Filters,
    KeepRules,
    MixedLanguage,
    Overlong,
    Repetitive,
)
from r1_recipes.extras.selection.select import REASONS, Selection
from r1_recipes.extras.selection.write import write_dataset
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.rewards import get_reward_funcs

FMT = FORMATS["think_answer"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    datasets.disable_progress_bars()


def right(completions, **columns):
    """Correctness for these tests: the text says so; ``None`` where it says "unknown"."""
    texts = [completion[0]["content"] for completion in completions]
    return [None if "unknown" in text else float("right" in text) for text in texts]


def commas(completions, **columns):
    return [float(completion[0]["content"].count(",")) for completion in completions]


def text(reasoning, answer="4"):
    return FMT.render(reasoning, answer)


def completion(words, tokens=10, finish="stop"):
    return {"text": words, "tokens": tokens, "finish_reason": finish}


def record(index, *completions, question=None, error=None, **columns):
    question = f"What is {index} plus {index}?" if question is None else question
    parts = [entry if isinstance(entry, dict) else completion(entry) for entry in completions]
    prompt = [{"role": "user", "content": question}]
    columns = {"solution": "4", "scorer": None, **columns}
    return {
        "index": index,
        "question": question,
        "prompt": prompt,
        "columns": columns,
        "completions": parts,
        "error": error,
    }


class Selected:
    """A selection that was gone through: its outcomes and its report."""

    def __init__(self, selection):
        self.outcomes, self.report = list(selection), selection.report
        self.rows = [row for _, rows in self.outcomes for row in rows]
        self.verdicts = [
            SimpleNamespace(**candidate.verdict())
            for candidates, _ in self.outcomes
            for candidate in candidates
        ]

    def __iter__(self):
        return iter(self.outcomes)


def run(records, keep=None, rewards=(right,), weights=None, fmt=FMT):
    return Selected(Selection(records, KeepRules.parse(keep), fmt, list(rewards), weights))


def reasons(selection):
    return [verdict.reason for verdict in selection.verdicts]


# --- the recipe's mapping


def test_every_rule_is_read():
    rules = KeepRules.parse(
        {
            "best_of": 2,
            "correct": True,
            "filters": {
                "malformed": True,
                "truncated": True,
                "overlong": {"max_tokens": 900},
                "mixed_language": {"min_consistency": 0.9, "target": "en"},
                "repetitive": {"max_share": 0.2, "n_grams": 4},
                "code": True,
            },
            "pass_rate": [0, 0.9],
            "output": "completions",
            "decontaminate": {
                "datasets": [
                    {"id": "a/b", "config": "c", "split": "s", "column": "q", "revision": "r"}
                ],
                "n_grams": 6,
            },
        }
    )
    assert (rules.best_of, rules.correct, rules.pass_rate, rules.output) == (
        2,
        True,
        (0, 0.9),
        "completions",
    )
    assert rules.filters == Filters(
        True, True, Overlong(900), MixedLanguage(0.9, "en"), Repetitive(0.2, 4), True
    )
    [source] = rules.decontaminate.datasets
    assert (source.id, source.split, source.config, source.column, source.revision) == (
        "a/b",
        "s",
        "c",
        "q",
        "r",
    )
    assert rules.decontaminate.n_grams == 6


@pytest.mark.parametrize(
    ("keep", "match"),
    [
        (["correct"], "keep: must be a mapping of best_of, correct"),
        ({"corect": True}, "keep: unknown key 'corect'. Did you mean 'correct'"),
        ({"best_of": 0}, "keep: best_of: must be a whole number of 1 or more, got 0"),
        ({"correct": "yes"}, "keep: correct: must be true or false, got 'yes'"),
        (
            {"filters": {"malfomed": True}},
            "keep: filters: unknown key 'malfomed'. Did you mean 'malformed'",
        ),
        ({"filters": {"overlong": {}}}, "keep: filters: overlong: max_tokens: missing"),
        ({"filters": {"repetitive": {"n_grams": 3}}}, "repetitive: max_share: missing"),
        (
            {"filters": {"mixed_language": {"min_consistency": "0.9"}}},
            "min_consistency: must be a share from 0 to 1, got '0.9'",
        ),
        (
            {"filters": {"mixed_language": {"min_consistency": 1, "target": "englsh"}}},
            "mixed_language: target: unknown language 'englsh'",
        ),
        (
            {"pass_rate": 0.5},
            r"pass_rate: must be two shares from 0 to 1, the smaller first, such as \[0.1, "
            r"0.9\], got 0.5",
        ),
        ({"pass_rate": [0.9, 0.1]}, "pass_rate: must be two shares"),
        (
            {"at_least": {"judge": float("nan")}},
            "keep: at_least: must be a mapping of rewards to numbers",
        ),
        ({"decontaminate": {"n_grams": 8}}, "decontaminate: datasets: missing"),
        (
            {"decontaminate": {"datasets": [{"id": "a"}, {"split": "test"}]}},
            "dataset 2: id: missing",
        ),
        ({"decontaminate": {"datasets": [{"id": "a", "splt": "test"}]}}, "Did you mean 'split'"),
    ],
)
def test_refused_mappings(keep, match):
    with pytest.raises(RecipeError, match=match):
        KeepRules.parse(keep)


# --- each rule


REPEATED = " ".join(["so we add the two"] * 20)
# 100 words, 98 trigrams, 5 different ones: a share of 93/98 = 0.949 repeats. The tags around it
# take a little from that.


@pytest.mark.parametrize(
    ("filters", "dropped", "kept"),
    [
        ({"malformed": True}, completion("just 4"), completion(text("two and two"))),
        ({"truncated": True}, completion(text("a"), 10, "length"), completion(text("b"), 10, None)),
        ({"overlong": {"max_tokens": 10}}, completion(text("a"), 11), completion(text("b"), 10)),
        (
            {"repetitive": {"max_share": 0.9}},
            completion(text(REPEATED)),
            completion(text("we add two and two")),
        ),
        (
            {"mixed_language": {"min_consistency": 0.9}},
            completion(text("first we add, 然后我们把它乘以二")),
            completion(text("first we add")),
        ),
        (
            {"mixed_language": {"min_consistency": 0.9, "target": "zh"}},
            completion(text("first we add the two")),
            completion(text("先相加再相乘")),
        ),
        (
            {"code": True},
            completion(text("run\n```python\nx = 1\n```")),
            completion(text("run \\[ x = 1 \\]")),
        ),
        # Only the reasoning is searched, where there is one.
        (
            {"code": True},
            completion("```\nreturn x"),
            completion(text("no program here", "```\n4\n```")),
        ),
    ],
)
def test_filters(filters, dropped, kept):
    question = "How many pens does Ana have in her three boxes?"
    selection = run([record(7, dropped, kept, question=question)], {"filters": filters})
    [name] = filters
    assert reasons(selection) == [name, None]
    assert selection.report.completions == {"generated": 2, name: 1, "kept": 1}
    assert reasons(
        run([record(7, dropped, kept, question=question)], {"filters": dict.fromkeys(filters)})
    ) == [None, None]


@pytest.mark.parametrize(
    ("value", "reason"), [(1.0, None), (1.5, None), (0.99, "wrong"), (None, None), (True, None)]
)
def test_correct_is_one_or_more(value, reason):
    def reward(completions, **columns):
        return [value] * len(completions)

    selection = run([record(0, "a")], {"correct": True}, [reward])
    assert reasons(selection) == [reason]
    json.dumps(selection.verdicts[0].scores, allow_nan=False)


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ([0, 1], [0, 1, 2, 3]),
        ([0.25, 0.75], [1, 2]),
        ([0.5, 0.5], [2]),
        ([0, 0], [0]),
        ([1, 1], [3]),
    ],
)
def test_pass_rate(bounds, kept):
    # Shares: 0 of 4, 1 of 4, 1 of 2 (two of four cannot be judged), 4 of 4, nothing to judge.
    records = [
        record(0, "a", "b", "c", "d"),
        record(1, "right", "b", "c", "d"),
        record(2, "right", "b", "unknown", "unknown, too"),
        record(3, "right", "right!", "right.", "right?"),
        record(4, "unknown"),
    ]
    selection = run(records, {"pass_rate": bounds, "output": "prompts"})
    assert [row["question"] for row in selection.rows] == [f"What is {i} plus {i}?" for i in kept]
    assert [row["pass_rate"] for row in selection.rows] == [[0, 0.25, 0.5, 1][i] for i in kept]
    assert selection.report.completions["pass rate"] == 4 * (4 - len(kept)) + 1
    assert set(selection.rows[0]) == {"question", "solution", "pass_rate"}


def test_best_of_ranks_by_correctness_then_readability_then_tokens_then_order():
    entries = [
        completion("wrong,,,,,,,,,", 1),
        completion("unknown,,,,,,", 1),
        completion("right", 5),
        completion("right!", 4),
        completion("right, yes", 9),
        completion("right?", 4),
    ]

    def kept(count, **options):
        return [
            v.sample
            for v in run(
                [record(0, *entries)], {"best_of": count}, [right, commas], **options
            ).verdicts
            if v.kept
        ]

    # Right: 4 has a comma; 3 and 5 have 4 tokens and 3 comes first; then 2; then what cannot be
    # judged; then the wrong one.
    assert [kept(n) for n in range(1, 7)] == [
        [4],
        [3, 4],
        [3, 4, 5],
        [2, 3, 4, 5],
        [1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
    ]
    # The first reward's weight does not matter, the second's may turn readability round.
    assert kept(1, weights=[0.0, 1.0]) == [4]
    assert kept(3, weights=[1.0, -1.0]) == [2, 3, 5]
    assert kept(9) == [0, 1, 2, 3, 4, 5]


# --- the order of the rules


# --- program text


# --- the rows


def test_rows_of_completions():
    fmt = get_response_format("think_answer", prefill="<think>\n")
    entry = completion("2+2=4\n</think>\n<answer>\n4\n</answer>", 12)
    columns = {"solution": "4", "level": 3, "task": "sum", "tokens": "not this", "scores": [1]}
    rewards = [*get_reward_funcs(["accuracy", "format"], fmt), commas]
    records = [record(0, entry, **columns)]
    records[0]["columns"]["question"] = "nor this"
    selection = run(records, rewards=rewards, fmt=fmt)
    assert selection.rows == [
        {
            "question": "What is 0 plus 0?",
            "response": "<think>\n2+2=4\n</think>\n<answer>\n4\n</answer>",
            "solution": "4",
            "level": 3,
            "task": "sum",
            "pass_rate": 1.0,
            "tokens": 12,
            "scores": '{"accuracy": 1.0, "format": 1.0, "commas": 0.0}',
        }
    ]
    assert list(selection.rows[0])[:3] == ["question", "response", "solution"]
    [verdict] = selection.verdicts
    assert (verdict.index, verdict.sample, verdict.reason, verdict.kept) == (0, 0, None, True)
    assert verdict.scores == {"accuracy": 1.0, "format": 1.0, "commas": 0.0}


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.sampled_from(["right", "wrong", "unknown", "right,", "wrong,"]),
                    st.integers(0, 9),
                ),
                max_size=5,
            ),
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from([None, None, None, "failed"]),
        ),
        max_size=6,
    ),
    best=st.none() | st.integers(1, 3),
    correct=st.booleans(),
    bounds=st.none() | st.sampled_from([[0, 0.5], [0.5, 1], [0.2, 0.8]]),
    limit=st.none() | st.integers(1, 9),
    exact=st.booleans(),
)
def test_the_counts_add_up(records, best, correct, bounds, limit, exact):
    made = [
        record(
            i,
            *(completion(words, tokens) for words, tokens in entries),
            question=question,
            error=error,
        )
        for i, (entries, question, error) in enumerate(records)
    ]
    filters = {"overlong": {"max_tokens": limit}} if limit else {}
    keep = {
        "best_of": best,
        "correct": correct,
        "pass_rate": bounds,
        "filters": filters,
        "deduplicate": {} if exact else None,
    }
    selection = run(made, keep, [right, commas])
    report = selection.report
    assert [(v.index, v.sample) for v in selection.verdicts] == [
        (r["index"], s) for r in made for s in range(len(r["completions"]))
    ]
    assert (
        report.completions["kept"]
        == len(selection.rows)
        == sum(verdict.kept for verdict in selection.verdicts)
    )
    assert (
        report.completions.total()
        == 2 * report.completions["generated"]
        == 2 * len(selection.verdicts)
    )
    assert set(report.completions) <= {"generated", *REASONS, "kept"}
    kept = {}
    for verdict in selection.verdicts:
        entry = made[verdict.index]
        if verdict.kept:
            kept.setdefault(verdict.index, []).append(entry["completions"][verdict.sample])
            assert entry["error"] is None
            assert not (correct and verdict.scores["right"] == 0)
    assert len(kept) == report.prompts["kept"]
    for entries in kept.values():
        assert len(entries) <= (best or 5)
        assert len({entry["text"] for entry in entries}) == len(entries)
        assert all(entry["tokens"] <= (limit or 9) for entry in entries)
    if exact:
        assert len({made[index]["question"] for index in kept}) == len(kept)
    if bounds:
        assert all(bounds[0] <= row["pass_rate"] <= bounds[1] for row in selection.rows)


# --- the report and the dataset on disk


def test_the_dataset_on_disk(tmp_path):
    nasty = 'a\ud800b\0"quoted"\u2028\r\n{x}'
    records = [
        record(0, text(nasty), "wrong", question=nasty, level=1, tags=["a"], when="2024-01-01"),
        record(1, text("right"), level=None, tags=[], when="2024-01-02"),
    ]
    selection = run(records, {"filters": {"malformed": True}}, get_reward_funcs(["format"], FMT))
    settings = {"seed": 1, "keep": {"judge": {"prompt": "```\n{answer}\n```"}}}
    folder = write_dataset(
        selection, tmp_path / "run" / "dataset", recipe_settings=settings, title="Sums: selected"
    )
    assert folder == tmp_path / "run" / "dataset"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "train.jsonl",
        "yield.json",
    ]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["dataset", "verdicts.jsonl"]

    rows = load_rows(str(folder), "train")  # the card says that train.jsonl is all there is
    assert rows.column_names == [
        "question",
        "response",
        "solution",
        "level",
        "tags",
        "when",
        "pass_rate",
        "tokens",
        "scores",
    ]
    assert rows["question"] == [nasty.replace("\ud800", "\ufffd"), "What is 1 plus 1?"]
    assert rows["response"] == [text(nasty).replace("\ud800", "\ufffd"), text("right")]
    assert (rows["level"], rows["tags"], rows["tokens"]) == ([1, None], [["a"], []], [10, 10])
    assert rows["pass_rate"] == [0.5, 1.0]
    assert rows.features["when"].dtype == rows.features["solution"].dtype == "string"
    assert [json.loads(scores) for scores in rows["scores"]] == [{"format": 1.0}] * 2
    with pytest.raises(RecipeError, match="which has 'train'"):
        load_rows(str(folder), "test")

    assert json.loads((folder / "yield.json").read_text(encoding="utf-8")) == vars(selection.report)
    verdicts = [
        json.loads(line)
        for line in (folder.parent / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [(v["index"], v["sample"], v["reason"], v["kept"]) for v in verdicts] == [
        (0, 0, None, True),
        (0, 1, "malformed", False),
        (1, 0, None, True),
    ]
    card = (folder / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(card.split("---\n")[1])
    [config] = header["configs"]
    assert (config["config_name"], config["data_files"]) == (
        "default",
        [{"split": "train", "path": "train.jsonl"}],
    )
    assert header["pretty_name"] == "Sums: selected"
    assert "\n# Sums: selected\n" in card
    assert selection.report.table() in card
    recipe = card.split("~~~~~~yaml\n")[1].split("~~~~~~")[0]
    assert yaml.safe_load(recipe) == settings
