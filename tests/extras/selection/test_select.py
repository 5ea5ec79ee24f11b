"""Rejection sampling: every rule alone, their order, the report, the dataset on disk, and rewards
that ask a server.
"""

import hashlib
import json
from types import SimpleNamespace

import datasets
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from r1_recipes.common.errors import RecipeError
from r1_recipes.data import load_dataset
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.selection import select
from r1_recipes.extras.selection.rules import (
    Decontaminate,
    Deduplicate,
    Filters,
    KeepRules,
    MixedLanguage,
    Overlong,
    Repetitive,
)
from r1_recipes.extras.selection.select import REASONS, Selection, has_code
from r1_recipes.extras.selection.write import write_dataset
from r1_recipes.prompts import FORMATS, get_response_format
from r1_recipes.recipe.types import RecipeArguments
from r1_recipes.rewards import get_reward_funcs
from tests.support import selection_rows
from tests.support.chat_server import chat_server, reply
from tests.support.rewards import HOSTILE, seconds

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
            "deduplicate": {"exact": False, "near": 1, "n_grams": 3},
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
    assert rules.deduplicate == Deduplicate(False, 1, 3)
    [source] = rules.decontaminate.datasets
    assert (source.id, source.split, source.config, source.column, source.revision) == (
        "a/b",
        "s",
        "c",
        "q",
        "r",
    )
    assert rules.decontaminate.n_grams == 6


def test_what_is_not_said():
    assert (
        KeepRules.parse(None)
        == KeepRules.parse({})
        == KeepRules.parse({"filters": None})
        == KeepRules()
    )
    assert (KeepRules().output, KeepRules().correct) == ("completions", False)
    rules = KeepRules.parse(
        {
            "filters": {"repetitive": {"max_share": 0}},
            "deduplicate": {},
            "decontaminate": {"datasets": [{"id": "a"}]},
        }
    )
    assert rules.filters == Filters(repetitive=Repetitive(0, 3))
    assert rules.deduplicate == Deduplicate(True, None, 5)
    assert (rules.decontaminate.n_grams, rules.decontaminate.datasets[0].split) == (8, "test")
    assert isinstance(rules.decontaminate, Decontaminate)


@pytest.mark.parametrize(
    ("keep", "match"),
    [
        (["correct"], "keep: must be a mapping of best_of, correct"),
        ({"corect": True}, "keep: unknown key 'corect'. Did you mean 'correct'"),
        ({True: 1}, "keep: unknown key True"),
        ({"best_of": 0}, "keep: best_of: must be a whole number of 1 or more, got 0"),
        ({"best_of": True}, "best_of: must be a whole number of 1 or more, got True"),
        ({"best_of": 1.0}, "best_of: must be a whole number of 1 or more, got 1.0"),
        ({"correct": "yes"}, "keep: correct: must be true or false, got 'yes'"),
        ({"correct": 1}, "correct: must be true or false, got 1"),
        ({"filters": True}, "keep: filters: must be a mapping of malformed"),
        (
            {"filters": {"malfomed": True}},
            "keep: filters: unknown key 'malfomed'. Did you mean 'malformed'",
        ),
        (
            {"filters": {"overlong": 900}},
            "keep: filters: overlong: must be a mapping of max_tokens",
        ),
        ({"filters": {"overlong": {}}}, "keep: filters: overlong: max_tokens: missing"),
        (
            {"filters": {"overlong": {"max_tokens": -1}}},
            "max_tokens: must be a whole number of 1 or more, got -1",
        ),
        ({"filters": {"repetitive": {"n_grams": 3}}}, "repetitive: max_share: missing"),
        (
            {"filters": {"repetitive": {"max_share": 20}}},
            "max_share: must be a share from 0 to 1, got 20",
        ),
        (
            {"filters": {"mixed_language": {"min_consistency": "0.9"}}},
            "min_consistency: must be a share from 0 to 1, got '0.9'",
        ),
        (
            {"filters": {"mixed_language": {"min_consistency": float("nan")}}},
            "min_consistency: must be a share from 0 to 1, got nan",
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
        ({"pass_rate": [0, 2]}, "pass_rate: must be two shares"),
        ({"pass_rate": [False, True]}, "pass_rate: must be two shares"),
        (
            {"at_least": {"judge": float("nan")}},
            "keep: at_least: must be a mapping of rewards to numbers",
        ),
        (
            {"output": "rows"},
            "keep: output: must be 'completions', 'prompts' or 'pairs', got 'rows'",
        ),
        (
            {"deduplicate": {"near": 0}},
            "deduplicate: near: must be a similarity above 0 and at most 1, got 0",
        ),
        ({"deduplicate": {"near": 80}}, "near: must be a similarity above 0 and at most 1, got 80"),
        ({"deduplicate": True}, "deduplicate: must be a mapping of exact, near, n_grams"),
        ({"decontaminate": {"n_grams": 8}}, "decontaminate: datasets: missing"),
        (
            {"decontaminate": {"datasets": ["a"]}},
            "decontaminate: dataset 1: must be a mapping of id",
        ),
        (
            {"decontaminate": {"datasets": [{"id": "a"}, {"split": "test"}]}},
            "dataset 2: id: missing",
        ),
        ({"decontaminate": {"datasets": [{"id": "a", "splt": "test"}]}}, "Did you mean 'split'"),
        (
            {"decontaminate": {"datasets": [{"id": "a", "revision": 1}]}},
            "revision: must be some text, got 1",
        ),
    ],
)
def test_refused_mappings(keep, match):
    with pytest.raises(RecipeError, match=match):
        KeepRules.parse(keep)


# --- what can be known before


def test_what_fails_before_anything_is_generated():
    rules = KeepRules.parse({"decontaminate": {"datasets": [{"id": "/no/such.jsonl"}]}})
    with pytest.raises(RecipeError, match=r"/no/such.jsonl: .*no such file"):
        Selection([], rules, FMT, [])


# --- each rule


def test_without_rules_every_different_text_is_kept():
    selection = run([record(0, "a", "a", completion("", 0, "length")), record(1, "b")], rewards=())
    assert reasons(selection) == [None, "duplicate completion", None, None]
    assert [row["response"] for row in selection.rows] == ["a", "", "b"]
    assert [row["pass_rate"] for row in selection.rows] == [None] * 3
    assert [row["scores"] for row in selection.rows] == ["{}"] * 3


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


def test_the_share_of_repeats_is_exact():
    # a b c a b c: 4 trigrams, 3 different: a quarter repeats, which is not more than a quarter.
    words = completion("a b c a b c")
    assert reasons(run([record(0, words)], {"filters": {"repetitive": {"max_share": 0.25}}})) == [
        None
    ]
    assert reasons(run([record(0, words)], {"filters": {"repetitive": {"max_share": 0.24}}})) == [
        "repetitive"
    ]
    # bigrams: ab bc ca ab bc: 2 of 5
    assert reasons(
        run([record(0, words)], {"filters": {"repetitive": {"max_share": 0.39, "n_grams": 2}}})
    ) == ["repetitive"]


def test_the_share_of_the_language_is_exact():
    # Two Chinese characters are a word: 1 of 2.
    for least, reason in ((0.5, None), (0.51, "mixed_language")):
        filters = {"mixed_language": {"min_consistency": least, "target": "zh"}}
        assert reasons(run([record(0, text("alpha 然后"))], {"filters": filters})) == [reason]


def test_a_question_too_short_to_tell_its_language_drops_nothing():
    selection = run(
        [record(0, text("先相加再相乘"), question="2+2?")],
        {"filters": {"mixed_language": {"min_consistency": 1}}},
    )
    assert reasons(selection) == [None]
    # The row's own column says it.
    records = [record(0, text("先相加再相乘"), question="2+2?", language="en")]
    assert reasons(run(records, {"filters": {"mixed_language": {"min_consistency": 1}}})) == [
        "mixed_language"
    ]


def test_wrong_ones_go_and_those_without_a_verdict_stay():
    records = [record(0, "wrong", "right", "unknown"), record(1, "unknown")]
    selection = run(records, {"correct": True})
    assert reasons(selection) == ["wrong", None, None, None]
    assert [row["pass_rate"] for row in selection.rows] == [0.5, 0.5, None]
    assert selection.report.unjudged == 2
    assert "2 completions have no score" in selection.report.table()


@pytest.mark.parametrize(
    ("value", "reason"),
    [(1.0, None), (1.5, None), (0.99, "wrong"), (None, None), (True, None)],
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


def test_the_pass_rate_counts_every_completion_whatever_the_filters_drop():
    records = [record(0, completion("right", 99), "right!", "wrong", "wrong!")]
    [row] = run(records, {"correct": True, "filters": {"overlong": {"max_tokens": 50}}}).rows
    assert (row["response"], row["pass_rate"]) == ("right!", 0.5)


def test_a_prompt_without_a_completion_left_is_no_prompt():
    selection = run(
        [record(0, "wrong"), record(1, "right", "right!")], {"correct": True, "output": "prompts"}
    )
    assert [row["question"] for row in selection.rows] == ["What is 1 plus 1?"]
    assert (selection.report.prompts["kept"], selection.report.completions["kept"]) == (1, 2)


def test_at_least_drops_what_a_reward_gives_less_or_nothing():
    def judge(completions, **columns):
        return [{"good": 8.0, "bad": 3.0}.get(text[-1]["content"]) for text in completions]

    selection = run(
        [record(0, "good", "bad", "odd")], {"at_least": {"judge": 7}}, rewards=(right, judge)
    )
    assert reasons(selection) == [None, "low score", "low score"]
    with pytest.raises(
        RecipeError,
        match=r"keep: at_least: unknown reward in reward_funcs 'jugde'\. Did you mean 'judge'",
    ):
        run([], {"at_least": {"jugde": 7}}, rewards=(right, judge))
    with pytest.raises(
        RecipeError, match="keep: at_least: must be a mapping of rewards to numbers, got"
    ):
        KeepRules.parse({"at_least": {"judge": "7"}})


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


def test_readability_is_the_weighted_sum():
    def dots(completions, **columns):
        return [float(c[0]["content"].count(".")) or None for c in completions]

    records = [record(0, "right,,,", "right..")]  # 3 commas against 2 dots
    assert reasons(run(records, {"best_of": 1}, [right, commas, dots], [1, 1, 1])) == [
        None,
        "not among the best",
    ]
    assert reasons(run(records, {"best_of": 1}, [right, commas, dots], [1, 1, 2])) == [
        "not among the best",
        None,
    ]


def test_equal_texts_take_no_place_among_the_best():
    selection = run(
        [record(0, "right", "right", "right, longer"), record(1, "right")], {"best_of": 2}
    )
    assert reasons(selection) == [None, "duplicate completion", None, None]


def test_failed_rows():
    records = [
        record(0, error="timed out"),
        record(1, "right", error="3 of 4 failed"),
        record(2, "right"),
    ]
    selection = run(records, {"deduplicate": {}})
    assert reasons(selection) == ["failed row", None]
    assert selection.verdicts[0].scores == {}
    report = selection.report
    assert report.completions == {"generated": 2, "failed row": 1, "kept": 1}
    assert report.prompts == {"generated": 3, "failed row": 2, "kept": 1}


def test_duplicate_questions_are_those_of_a_kept_prompt():
    records = [
        record(i, "right" if i else "wrong", question=" one  question" if i % 2 else "one question")
        for i in range(3)
    ]
    selection = run(records, {"correct": True, "deduplicate": {}})
    # The first has nothing left, so the second is the first of its kind.
    assert reasons(selection) == ["wrong", None, "duplicate question"]
    long = "Ana has three boxes of four pens and gives two of them to Tom, how many has she now"
    records = [
        record(0, "a", question=long),
        record(1, "a", question=long.replace("now", "left")),
        record(2, "a", question="b"),
    ]
    assert reasons(run(records, {"deduplicate": {"near": 0.8}})) == [
        None,
        "duplicate question",
        None,
    ]  # 13 of 15 five-grams
    assert reasons(run(records, {"deduplicate": {"near": 0.9}})) == [None, None, None]


def test_contaminated_prompts(tmp_path):
    for name, question in (
        ("aime", "Find the least prime above twenty that leaves one."),
        ("sums", "What is 5 plus 5?"),
    ):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"question" if name == "aime" else "problem": question}) + "\n",
            encoding="utf-8",
        )
    records = [
        record(0, "a", "b", question="Tom asks: find the LEAST prime above twenty, that leaves 1."),
        record(1, "a", question="Find the least prime above thirty that leaves one."),
        record(5, "a"),
    ]
    sets = [
        {"id": str(tmp_path / "aime.jsonl")},
        {"id": str(tmp_path / "sums.jsonl"), "column": "problem"},
    ]
    selection = run(records, {"decontaminate": {"datasets": sets}})
    assert reasons(selection) == ["contaminated", "contaminated", None, "contaminated"]
    assert selection.report.contaminated == {
        f"{sets[0]['id']} (test)": 1,
        f"{sets[1]['id']} (test)": 1,
    }
    assert "sums.jsonl (test) 1" in selection.report.table()


# --- the order of the rules


def test_the_first_reason_that_applies_is_counted(tmp_path):
    (tmp_path / "eval.jsonl").write_text('{"question": "one question"}\n', encoding="utf-8")
    body = "```python\n先相加再相乘" * 20
    bad = [completion(f"<think>\n{body}", 99, "length")] * 2 + [
        completion(f"<think>\n{body}!", 100, "length")
    ]
    rules = {
        "malformed": ("filters", {"malformed": True}),
        "truncated": ("filters", {"truncated": True}),
        "overlong": ("filters", {"overlong": {"max_tokens": 50}}),
        "repetitive": ("filters", {"repetitive": {"max_share": 0.2}}),
        "mixed_language": ("filters", {"mixed_language": {"min_consistency": 0.9, "target": "en"}}),
        "code": ("filters", {"code": True}),
        "wrong": ("correct", True),
        "low score": ("at_least", {"right": 1}),
        "duplicate completion": (None, None),
        "pass rate": ("pass_rate", [0.5, 1]),
        "contaminated": ("decontaminate", {"datasets": [{"id": str(tmp_path / "eval.jsonl")}]}),
        "not among the best": ("best_of", 1),
        "not in a pair": ("output", "pairs"),
        "duplicate question": ("deduplicate", {}),
    }
    names = [reason for reason in REASONS if reason != "failed row"]
    assert list(rules) == names
    for position, first in enumerate(names):
        keep: dict = {}
        for name in names[position:]:
            key, value = rules[name]
            if key == "filters":
                keep[key] = {**keep.get(key, {}), **value}
            elif key:
                keep[key] = value
        records = [
            record(0, "right", question="one question"),
            record(1, *bad, question="one question"),
        ]
        found = reasons(run(records, keep))[1:]
        if names.index(first) < names.index("duplicate completion"):
            assert found == [first] * 3, first
            continue
        # From here the second text, an equal one, is gone before.
        assert found[1] == "duplicate completion"
        expected = {
            "duplicate completion": ["pass rate"] * 2,
            "not among the best": ["not in a pair", "not among the best"],
        }
        assert found[::2] == expected.get(first, [first] * 2), first
        failed = [record(1, *bad, error="gone")]
        assert reasons(run([records[0], *failed], keep))[1:] == ["failed row"] * 3


# --- program text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("```python\nx = 1\n```", True),
        ("```\nx = 1\n```", True),
        ("1. Run this:\n   ```py\nx = 1", True),
        ("````{.cpp}\nx\n````", True),
        ("```math\nx\n```\n```c\ny\n```", True),
        ("", False),
        ("x = 3", False),
        ("the `range` of f and ``x``", False),
        ("```x = 3``` is the first root", False),
        ("```math\nx = 3\n```", False),
        ("```latex\n\\frac{1}{2}\n```", False),
        ("```text\nprint(3)\n```", False),
    ],
)
def test_program_text(words, found):
    assert has_code(words) == found
    assert has_code(f"We try this.\n{words}\nSo it is 4.") == found


def test_program_text_is_looked_for_in_bounded_time():
    lines = ["```" + "a" * 200_000 + "`", "`" * 200_000 + "x`", " " * 200_000 + "`"]
    with seconds(5):
        assert not any(map(has_code, lines))


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


def test_a_conversation_of_several_turns_keeps_its_earlier_turns(tmp_path):
    plain, args = get_response_format("think_answer", system_prompt=""), RecipeArguments
    turns = [
        {"role": role, "content": content}
        for role, content in (
            ("system", "Be kind."),
            ("user", "2+2?"),
            ("assistant", "4"),
            ("user", "Why?"),
            ("assistant", "It is so."),
        )
    ]
    other = [*turns[:1], {"role": "user", "content": "3+3?"}, *turns[2:]]
    rows = datasets.Dataset.from_list([{"messages": talk} for talk in (turns, other, turns[1:3])])
    asked, _ = load_dataset(
        args(dataset_name="rows", mapper="conversations"), plain, "generate", rows=rows
    )
    records = [
        {**record(i, text("right")), "question": row.pop("question"), "prompt": row.pop("prompt")}
        | {"columns": row}
        for i, row in enumerate(asked)
    ]
    selection = run(records, {"deduplicate": {}}, fmt=plain)
    assert reasons(selection) == [None, None, None]  # the same question after different turns
    folder = write_dataset(selection, tmp_path / "dataset", recipe_settings={}, title="t")
    rows = load_rows(str(folder), "train")
    trained, _ = load_dataset(
        args(dataset_name="rows", mapper="generated"), plain, "sft", rows=rows
    )
    assert [row["prompt"] for row in trained] == [turns[:4], other[:4], turns[1:2]]
    assert [row["prompt"] for row in trained] == [row["prompt"] for row in asked]


def test_a_scorer_is_a_column_where_some_row_has_one(tmp_path):
    for scorer in (None, '{"reasoning_gym": "x"}'):
        selection = run([record(0, "a"), record(1, "a", scorer=scorer), record(2, "a")], rewards=())
        folder = write_dataset(selection, tmp_path / "dataset", recipe_settings={}, title="t")
        for rows in (
            load_rows(str(folder), "train"),
            datasets.load_dataset(str(folder), split="train"),
        ):
            assert ("scorer" in rows.column_names) is (scorer is not None)
            assert scorer is None or rows["scorer"][:] == [None, scorer, None]


def test_rewards_are_called_as_trl_calls_them():
    calls = []

    def spy(
        prompts,
        completions,
        completion_ids,
        solution,
        level,
        trainer_state,
        log_extra,
        log_metric,
        scorer=None,
        task=None,
    ):
        calls.append(
            (prompts, completions, [len(ids) for ids in completion_ids], solution, level, task)
        )
        log_extra("x", [1])
        log_metric("x", 1.0)
        return [1.0] * len(completions)

    records = [
        record(0, completion("a", 3), completion("b", 4), level=1),
        record(1, error="x", level=0),
        record(2, "c", level=2, task="t"),
    ]
    run(records, rewards=[spy])
    question = [[{"role": "user", "content": f"What is {i} plus {i}?"}] for i in (0, 0, 2)]
    texts = [[{"role": "assistant", "content": c}] for c in "abc"]
    assert calls == [(question, texts, [3, 4, 10], ["4"] * 3, [1, 1, 2], [None, None, "t"])]


def test_rewards_that_look_at_lengths():
    # cosine: right at 0 tokens 1.0, at 1000 tokens 0.5; length: 0.5 for the shorter, -0.5 for the
    # longer right one.
    entries = [completion(text("a"), 0), completion(text("b"), 1000)]
    rewards = get_reward_funcs(["accuracy", "cosine", "length"], FMT)
    scores = [verdict.scores for verdict in run([record(0, *entries)], rewards=rewards).verdicts]
    assert scores == [
        {"accuracy": 1, "cosine": 1, "length": 0.5},
        {"accuracy": 1, "cosine": pytest.approx(0.5), "length": -0.5},
    ]


def test_many_records_are_scored_in_large_batches(monkeypatch):
    monkeypatch.setattr(select, "_CHUNK_COMPLETIONS", 4)
    sizes = []

    def spy(completions, **columns):
        sizes.append(len(completions))
        return [1.0] * len(completions)

    records = (
        record(i, *(f"{i}{sample}" for sample in range(3))) for i in range(5)
    )  # no length is known
    selection = run(records, rewards=[spy])
    assert sizes == [6, 6, 3]  # a prompt's completions stay together
    assert [row["response"] for row in selection.rows] == [
        f"{i}{sample}" for i in range(5) for sample in range(3)
    ]


def test_faulty_rewards_are_named():
    records = [record(0, "a")]
    del records[0]["columns"]["solution"]
    with pytest.raises(RecipeError, match="needs a column 'solution'"):
        run(records, rewards=get_reward_funcs(["accuracy"], FMT))


def test_hostile_completions():
    texts = [entry for entry in HOSTILE if isinstance(entry, str)]
    keep = {
        "best_of": 5,
        "filters": {
            "malformed": False,
            "repetitive": {"max_share": 0.99},
            "mixed_language": {"min_consistency": 0.1, "target": "en"},
            "code": True,
        },
        "deduplicate": {"near": 0.8},
    }
    records = [
        record(0, *texts),
        *(record(i, "so we add the two", question=entry) for i, entry in enumerate(texts, start=1)),
    ]
    with seconds(40):
        selection = run(records, keep, [*get_reward_funcs(["accuracy", "format"], FMT), commas])
    assert selection.report.completions["generated"] == 2 * len(texts)
    assert selection.report.completions["duplicate question"] == 2  # "" and white space
    assert selection.report.completions["kept"] == 5 + len(texts) - 2


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


def test_the_report():
    records = [
        record(3, completion("wrong", 5), completion("right", 7)),
        record(4, completion("wrong", 2)),
        record(5, error="x"),
    ]
    report = run(records, {"correct": True}).report
    assert report.table().splitlines() == [
        "| | completions | prompts |",
        "|---|---:|---:|",
        "| generated | 3 | 3 |",
        "| failed row | 0 | 1 |",
        "| wrong | 2 | 2 |",
        "| kept | 1 | 1 |",
    ]
    assert vars(report) == {
        "completions": {"generated": 3, "failed row": 0, "wrong": 2, "kept": 1},
        "prompts": {"generated": 3, "failed row": 1, "wrong": 2, "kept": 1},
        "unjudged": 0,
        "contaminated": {},
    }


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


def test_a_dataset_of_prompts_on_disk(tmp_path):
    selection = run([record(0, "unknown", level=1)], {"output": "prompts"})
    folder = write_dataset(selection, tmp_path / "dataset", recipe_settings={}, title="t")
    [row] = load_rows(str(folder), "train")
    assert row == {"question": "What is 0 plus 0?", "solution": "4", "level": 1, "pass_rate": None}


FILTERS = {
    "malformed": True,
    "truncated": True,
    "overlong": {"max_tokens": 55},
    "repetitive": {"max_share": 0.5},
    "mixed_language": {"min_consistency": 0.9, "target": "en"},
    "code": True,
}


@pytest.mark.parametrize("batch", [1, 10_000])
@pytest.mark.parametrize(
    ("keep", "count", "train", "verdicts"),
    [
        (None, 240, "854b66d804ec97a8", "986fa04fbd8751ee"),
        (
            {
                "best_of": 2,
                "correct": True,
                "filters": FILTERS,
                "pass_rate": [0.1, 1],
                "deduplicate": {"near": 0.8},
                "decontaminate": {"datasets": [{"id": "EVALUATION"}], "n_grams": 8},
            },
            240,
            "71a622ba54dfd2b9",
            "3d21a84c40c17784",
        ),
        (
            {
                "correct": True,
                "pass_rate": [0, 0.9],
                "output": "prompts",
                "deduplicate": {},
                "filters": {"truncated": True},
            },
            240,
            "3cdac76c9e35ac04",
            "b19d3cc41cf74645",
        ),
        (None, 100, "79bc4ff1703d434c", "2e02e1ee8f1ad256"),
        (
            {
                "best_of": 2,
                "correct": True,
                "filters": FILTERS,
                "pass_rate": [0.1, 1],
                "deduplicate": {"near": 0.8},
                "decontaminate": {"datasets": [{"id": "EVALUATION"}], "n_grams": 8},
            },
            100,
            "220d9de5eadaeead",
            "e51a3ad39aa53e87",
        ),
        (
            {
                "correct": True,
                "pass_rate": [0, 0.9],
                "output": "prompts",
                "deduplicate": {},
                "filters": {"truncated": True},
            },
            100,
            "f57180a0620213a4",
            "2e74e805607e1ec6",
        ),
    ],
)
def test_the_files_are_those_of_a_selection_that_held_all_in_memory(
    monkeypatch, tmp_path, batch, keep, count, train, verdicts
):
    """The digests are those of version 0.1.0 (less the ``scorer`` of rows that have none), wherever
    the batches end.
    """
    monkeypatch.setattr(select, "_CHUNK_COMPLETIONS", batch)
    evaluation, folder = tmp_path / "eval.jsonl", tmp_path / "run" / "dataset"
    evaluation.write_text(
        "".join(
            json.dumps({"question": text}) + "\n" for text in selection_rows.EVALUATION_QUESTIONS
        ),
        encoding="utf-8",
    )
    if keep and "decontaminate" in keep:
        keep = {**keep, "decontaminate": {"datasets": [{"id": str(evaluation)}], "n_grams": 8}}
    rewards = [selection_rows.right, *get_reward_funcs(["format"], FMT), selection_rows.commas]
    records = iter(selection_rows.records()[:count])
    selection = Selection(records, KeepRules.parse(keep), FMT, rewards, [1.0, 0.5, 1.0])
    write_dataset(selection, folder, recipe_settings={"seed": 1}, title="t")
    paths = [folder / "train.jsonl", folder.parent / "verdicts.jsonl"]
    texts = [path.read_text(encoding="utf-8").replace(str(tmp_path), "DIR") for path in paths]
    assert [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts] == [train, verdicts]


def test_a_lone_surrogate_in_a_source_column_is_replaced(tmp_path):
    folder = write_dataset(
        run([record(0, "a", note="x\ud800")]), tmp_path / "dataset", recipe_settings={}, title="t"
    )
    assert load_rows(str(folder), "train")["note"] == ["x\ufffd"]


def test_a_later_selection_replaces_an_earlier_one(tmp_path):
    for count in (3, 1):
        selection = run([record(i, "right") for i in range(count)])
        folder = write_dataset(selection, tmp_path / "dataset", recipe_settings={}, title="t")
        assert len(load_rows(str(folder), "train")) == count
    # Nor do the folders of two runs, which have the same last name, share a cached copy.
    other = write_dataset(
        run([record(7, "right")]), tmp_path / "other" / "dataset", recipe_settings={}, title="t"
    )
    assert load_rows(str(other), "train")["question"] == ["What is 7 plus 7?"]
    assert load_rows(str(folder), "train")["question"] == ["What is 0 plus 0?"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dataset",
        "other",
        "verdicts.jsonl",
    ]
    assert len((tmp_path / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()) == 1


def test_other_files_are_not_replaced(tmp_path):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RecipeError, match="not the dataset of an earlier selection"):
        write_dataset(run([record(0, "a")]), tmp_path / "dataset", recipe_settings={}, title="t")
    assert (tmp_path / "dataset" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_write_that_fails_leaves_the_earlier_dataset(tmp_path):
    folder = write_dataset(
        run([record(0, "a")]), tmp_path / "dataset", recipe_settings={}, title="t"
    )
    mixed = run([record(0, "a", level=1), record(1, "b", level="one")])
    kept = (tmp_path / "verdicts.jsonl").read_bytes()
    with pytest.raises(RecipeError, match=r"keep_columns: .*level"):
        write_dataset(mixed, folder, recipe_settings={}, title="t")
    assert (tmp_path / "verdicts.jsonl").read_bytes() == kept
    assert len(load_rows(str(folder), "train")) == 1
    assert (
        len(
            load_rows(
                str(
                    write_dataset(
                        run([record(0, "a"), record(1, "b")]), folder, recipe_settings={}, title="t"
                    )
                ),
                "train",
            )
        )
        == 2
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "verdicts.jsonl"]


def test_nothing_left_is_an_error_that_shows_why(tmp_path):
    selection = run([record(0, "wrong", "wrong!")], {"correct": True})
    with pytest.raises(
        RecipeError, match=r"all 2 completions were dropped:\n(.|\n)*\| wrong \| 2 \| 1 \|"
    ):
        write_dataset(selection, tmp_path / "dataset", recipe_settings={}, title="t")
    assert [path.name for path in tmp_path.iterdir()] == ["verdicts.jsonl"]


# --- rewards that ask a server


@pytest.fixture
def judge_server(monkeypatch):
    """A judge that answers what ``judge_server.reply(prompt)`` returns, a text or an HTTP error."""
    judge = SimpleNamespace(reply=lambda prompt: "Score: 5")

    def answer(body, before):
        told = judge.reply(body["messages"][0]["content"])
        return told if isinstance(told, int) else reply(told)

    with chat_server(answer) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        yield judge


@pytest.fixture
def quick_retries(monkeypatch):
    import openai._base_client as client

    for name in ("INITIAL_RETRY_DELAY", "MAX_RETRY_DELAY"):
        monkeypatch.setattr(client, name, 0.001)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("judge", {"reward_models": {"judge": {"model": "openai:m", "prompt": "{response}"}}}),
        ("answer_match", {"match_judge": "openai:m", "match_judge_prompt": "{solution} {answer}"}),
    ],
)
def test_a_reward_whose_server_fails_stops_the_selection(judge_server, quick_retries, name, params):
    """A reward that could not be had is no reward that says nothing: `correct` keeps what cannot be
    judged.
    """
    judge_server.reply = lambda prompt: 503 if "lion" in prompt else "Score: 1"
    reward = get_reward_funcs([name], FMT, **params)
    records = [
        record(i, text("so", word), solution="a big cat")
        for i, word in enumerate(["tiger", "lion", "lynx"])
    ]
    with pytest.raises(
        RecipeError, match=rf"reward '{name}', records 0 to 2: its server failed 1 times"
    ):
        run(records, {"correct": True}, rewards=reward)
    judge_server.reply = lambda prompt: (
        "I cannot say." if "lion" in prompt else 400 if "lynx" in prompt else "Score: 1"
    )
    assert reasons(run(records, {"correct": True}, rewards=reward)) == [None] * 3


# --- pairs


def test_pairs_are_the_best_and_the_worst_of_a_prompt():
    records = [
        record(0, text("right"), text("right,"), text("so")),
        record(1, text("so"), text("thus")),  # all alike
        record(2, text("right")),  # one alone
    ]
    selection = run(records, {"output": "pairs"}, [right, commas], weights=[1.0, 0.5])
    assert reasons(selection) == ["not in a pair", None, None, *["not in a pair"] * 3]
    (row,) = selection.rows
    assert [row[key] for key in ("chosen", "rejected")] == [
        [{"role": "assistant", "content": words}] for words in (text("right,"), text("so"))
    ]
    assert row["prompt"] == records[0]["prompt"] and row["solution"] == "4"
    assert json.loads(row["scores"]) == {
        "chosen": {"right": 1.0, "commas": 1.0},
        "rejected": {"right": 0.0, "commas": 0.0},
    }
    assert (
        selection.report.completions["not in a pair"] == 4 and selection.report.prompts["kept"] == 1
    )
    assert run(
        records, {"output": "pairs", "margin": 1.4}, [right, commas], weights=[1.0, 0.5]
    ).rows == [row]
    assert (
        run(records, {"output": "pairs", "margin": 1.5}, [right, commas], weights=[1.0, 0.5]).rows
        == []
    )


def test_a_completion_that_was_not_judged_is_in_no_pair():
    def judge(completions, **columns):
        return [
            None if "?" in one[0]["content"] else float(len(one[0]["content"]))
            for one in completions
        ]

    records = [record(0, text("a?"), text("abc"), text("ab")), record(1, text("a?"), text("ab?"))]
    selection = run(records, {"output": "pairs"}, [judge])
    assert reasons(selection) == ["not in a pair", None, None, "not in a pair", "not in a pair"]


def test_an_empty_completion_is_in_no_pair():
    records = [record(0, text("right"), " \n", text("so"))]
    assert reasons(run(records, {"output": "pairs"}, [length_of])) == [None, "not in a pair", None]


def length_of(completions, **columns):
    return [float(len(one[0]["content"])) for one in completions]


def test_a_prompt_without_a_pair_is_no_duplicate_s_first():
    twice = [record(0, text("right")), record(0, text("right"), text("so"))]
    selection = run(twice, {"output": "pairs", "deduplicate": {"exact": True}}, [right])
    assert reasons(selection) == ["not in a pair", None, None]


def test_a_reward_that_awaits_scores_and_one_that_returns_too_little_is_named():
    async def awaits(completions, **columns):
        return [0.5] * len(completions)

    def short(completions, **columns):
        return []

    records = [record(0, "a")]
    assert run(records, rewards=[awaits]).verdicts
    for wrong in (short, lambda completions, **columns: [float("nan")] * len(completions)):
        with pytest.raises(RecipeError, match="returned"):
            run(records, rewards=[wrong])
