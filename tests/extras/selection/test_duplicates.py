"""Questions compared by words: those of an evaluation must not leak into training."""

import json

import datasets
import pytest

from r1_recipes.extras.selection.duplicates import Decontaminator, evaluation_questions
from r1_recipes.extras.selection.rules import Decontaminate, EvaluationSet


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    datasets.disable_progress_bars()


EVAL = "A train leaves the old station at noon and arrives at five."  # 12 words
SHARED = "leaves the old station at noon and arrives"  # 8 of them


@pytest.mark.parametrize(
    ("question", "found"),
    [
        (EVAL, True),
        (f"Tom {SHARED.upper()}, late.", True),  # 8 words in a row, whatever stands around them
        ("LEAVES, the OLD\nstation: at noon -- and “arrives”", True),
        ("Tom leaves the old station at noon and returns.", False),  # 7: leaves … and
        ("station at noon and arrives at five", False),  # 7 words: whole questions are compared
        ("", False),
        ("???", False),
        ("What is 3 + 4?", True),  # the short question below
        ("what is  3+4", True),
        (
            "What is 3 * 4?",
            True,
        ),  # words alone count: better one question too few than one of the evaluation's
        ("What is 34?", False),
        ("What is 3 + 4 + 5?", False),
    ],
)
def test_decontaminator(question, found):
    overlap = Decontaminator(Decontaminate((), 8))
    overlap.add("trains", [EVAL, "", "???"])
    overlap.add("sums", ["What is 3 + 4?"])
    expected = (["sums"] if "3" in question else ["trains"]) if found else []
    assert overlap.sources(question) == expected


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("rows", "column", "expected"),
    [
        ([{"problem": "p", "question": "q", "answer": "1"}], "question", ["q"]),
        ([{"problem": "p", "text": "t"}, {"problem": "p", "text": None}], "text", ["t", ""]),
        (
            [
                {
                    "prompt": [
                        {"role": "system", "content": "s"},
                        {"role": "user", "content": "u"},
                        {"role": "user", "content": "v"},
                    ]
                }
            ],
            "prompt",
            ["v"],
        ),
    ],
)
def test_evaluation_sets(tmp_path, rows, column, expected):
    assert (
        evaluation_questions(EvaluationSet(write(tmp_path / "eval.jsonl", rows), column=column))
        == expected
    )
