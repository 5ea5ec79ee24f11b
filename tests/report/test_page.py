"""The run report: what is read, what is flagged, and that nothing in a run directory becomes markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes import report
from r1_recipes.common import messages
from r1_recipes.common.errors import RecipeError
from r1_recipes.metrics.intervals import mean_interval
from r1_recipes.report import __main__, completions, page
from r1_recipes.report import page as report_page
from r1_recipes.report.completions import columns, pack_completions, read_completions
from r1_recipes.report.flags import find_flags
from r1_recipes.report.page import build, refresh, run_names, write
from r1_recipes.report.read import finite, read_run
from r1_recipes.training import callbacks

SOURCE = Path(report.__file__).parent
ASSETS = SOURCE / "assets"
EVIL = "</script><script>window.hacked = 1</script><!-- <script> & \u2028 @packed@ <img src=x onerror='window.hacked = 1'>"


def write_run(
    folder: Path, metrics: dict[str, list[float]] | None = None, completions: dict[int, list[dict]] | None = None, **entry: Any
) -> Path:
    """A run directory as training leaves it: one logged step an entry of ``metrics``, completions by step."""
    (folder / "completions").mkdir(parents=True)
    metrics = {"reward": [0.5]} if metrics is None else metrics
    count = max(map(len, metrics.values()))
    lines = [{"step": i + 1, **{key: values[i] for key, values in metrics.items() if i < len(values)}} for i in range(count)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    run = {"recipe": "sums", "method": "grpo", "versions": {"trl": "1.16.0", "vllm": None}, "finished": True, **entry}
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (folder / "recipe.yaml").write_text(
        "reward_funcs: [accuracy, format]\nreward_weights: [1.0, 0.2]\nmax_completion_length: 48\n", encoding="utf-8"
    )
    lines = [{"time": f"2026-01-02T03:0{minute}:00Z", "message": "…"} for minute in (4, 9)]
    (folder / "run.log").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for step, rows in ({1: [completion(1)]} if completions is None else completions).items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "completions" / f"completions_{step:05d}.parquet")
    return folder


def completion(step: int, text: str = "<answer>4</answer>", prompt: str = "2+2?", **columns: Any) -> dict[str, Any]:
    """One row in TRL's schema."""
    return {
        "step": step,
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": text}],
        "accuracy": 1.0,
        "format": 0.5,
        "answer_parsed": "4",
        "solution": "4",
        "advantage": 0.25,
        **columns,
    }


class Page(HTMLParser):
    """Reads a page as a browser would: the scripts, by id where they have one, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: dict[str, str | None] | None = None
        self._text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._open, self._text = dict(attrs), ""

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.scripts.append((self._open, self._text))
            self._open = None

    def script(self, name: str) -> str:
        return next(text for attributes, text in self.scripts if attributes.get("id") == name)

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.script("data"))

    @property
    def completions(self) -> dict[str, Any]:
        return json.loads(gzip.decompress(base64.b64decode(self.script("packed"))))


def page_of(*folders: Path) -> Page:
    return Page(build(folders))


def test_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    references = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href", "srcset", "action")]
    assert references == ["#main"]
    assert "url(" not in (ASSETS / "style.css").read_text(encoding="utf-8")
    policy = next(attributes["content"] for tag, attributes in page.tags if tag == "meta" and "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src 'sha256-")


def test_policy_allows_exactly_the_scripts_of_the_page(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    policy = next(attributes["content"] for tag, attributes in page.tags if tag == "meta" and "http-equiv" in attributes)
    run = [text for attributes, text in page.scripts if "type" not in attributes]
    assert len(run) == 4
    digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == digests


def test_hostile_texts_stay_data(tmp_path: Path) -> None:
    rows = [completion(1, EVIL, EVIL, answer_parsed=EVIL, solution=EVIL, **{f"{EVIL} score": 1.0})]
    folder = write_run(tmp_path / "a<b>&run", {"reward": [0.5], EVIL: [1.0]}, {1: rows}, recipe=EVIL, versions={EVIL: EVIL})
    (folder / "recipe.yaml").write_text(json.dumps({"system_prompt": EVIL}), encoding="utf-8")
    page = page_of(folder)
    kinds = [attributes.get("id") for attributes, _ in page.scripts]
    assert kinds == [None, "strings", "data", None, None, None, "licences", "packed"]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    (run,) = page.data["runs"]
    assert (run["name"], run["recipe"], run["settings"], run["versions"]) == ("a<b>&run", EVIL, {"system_prompt": EVIL}, {EVIL: EVIL})
    assert run["series"][EVIL] == {"x": [1], "y": [1.0]}
    found = page.completions
    assert found["prompts"] == [f"[user]\n{EVIL}"]
    assert found["rows"]["text"] == [EVIL]
    assert found["rows"]["extra"] == [[EVIL], [EVIL]]
    assert found["rewards"] == ["accuracy", "format", f"{EVIL} score"]


@given(
    st.recursive(st.text() | st.integers(-(2**53), 2**53) | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_embedded_json_is_whole_and_holds_no_markup(value: Any) -> None:
    text = page._embedded(value)
    assert not set("<>") & set(text)
    assert json.loads(text) == value


def test_what_is_torn_or_missing_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", completions={1: [completion(1)], 2: [completion(2)], 3: [completion(3)]})
    torn = folder / "completions" / "completions_00002.parquet"
    torn.write_bytes(torn.read_bytes()[:-20])
    bad = ['{"step": 2, "rew', "[]", '{"reward": 1}', '{"step": "3", "reward": 1}', '{"step": true, "reward": 1}', "\x00", ""]
    good = ['{"step": 1, "reward": 0.25}', '{"step": 4, "reward": NaN, "note": "text", "flag": true}', '{"step": 5, "reward": 1e999}']
    (folder / "metrics.jsonl").write_text("\n".join([good[0], *bad, *good[1:], '{"step": 1, "reward": 0.5}']), encoding="utf-8")
    (folder / "run.json").write_text('{"recipe": ', encoding="utf-8")
    (folder / "recipe.yaml").write_text("- a list\n", encoding="utf-8")
    (folder / "run.log").unlink()
    page = page_of(folder)
    (run,) = page.data["runs"]
    said = {(item["code"], item["values"]["file"]): item["values"] for item in run["missing"]}
    assert set(said) == {
        ("torn_file", "run.json"),
        ("torn_file", "recipe.yaml"),
        ("bad_lines", "metrics.jsonl"),
        ("no_file", "run.log"),
        ("torn_file", "completions/completions_00002.parquet"),
    }
    # Lines 2 to 7 of the file; the empty one is none.
    assert said["bad_lines", "metrics.jsonl"] == {"file": "metrics.jsonl", "count": 6, "first": 2}
    # The later line about step 1 wins; what is not finite is a gap.
    assert run["series"] == {"reward": {"x": [1, 4, 5], "y": [0.5, None, None]}}
    assert run["flags"] == [{"code": "not_finite", "severity": "bad", "values": {"metric": "reward", "count": 2, "step": 4}}]
    assert page.completions["rows"]["step"] == [1, 3]


def test_empty_directory_makes_a_page(tmp_path: Path) -> None:
    (run,) = page_of(tmp_path).data["runs"]
    assert [(item["code"], item["values"]["file"]) for item in run["missing"]] == [
        ("no_file", "run.json"),
        ("no_file", "recipe.yaml"),
        ("no_file", "metrics.jsonl"),
        ("no_file", "run.log"),
        ("no_completions", "completions/*.parquet"),
    ]
    assert (run["series"], run["flags"], run["finished"]) == ({}, [], False)


def test_sft_run_is_not_asked_for_completions(tmp_path: Path) -> None:
    (run,) = page_of(write_run(tmp_path / "run", {"loss": [2.0]}, {}, method="sft")).data["runs"]
    assert run["missing"] == []


def ramp(begin: float, end: float, count: int = 8) -> list[float]:
    """``begin`` for the first quarter, ``end`` for the last, straight between."""
    quarter = count // 4
    inner = count - 2 * quarter
    return [begin] * quarter + [begin + (end - begin) * (i + 1) / (inner + 1) for i in range(inner)] + [end] * quarter


@pytest.mark.parametrize(
    ("rewards", "judge"),
    [("[format, exact_match]", "exact_match"), ("[format, my_module:points]", "points"), ("[tag_count, countdown, accuracy]", "accuracy")],
)
def test_the_accuracy_of_a_run_is_that_of_its_first_reward_that_judges(tmp_path: Path, rewards: str, judge: str) -> None:
    names = ["format", "tag_count", "exact_match", "points", "countdown", "accuracy"]
    flat = {f"rewards/{name}/mean": ramp(0.25, 0.25) for name in names if name in rewards}
    path = write_run(tmp_path / "run", {"reward": ramp(0.25, 0.5), **flat})
    (path / "recipe.yaml").write_text(f"reward_funcs: {rewards}\n")
    flags = [flag["values"]["reward"] for flag in find_flags(read_run(path)) if flag["code"] == "reward_not_accuracy"]
    assert flags == [judge]


@pytest.mark.parametrize(
    ("metrics", "code", "severity", "values"),
    [
        # 8 points: windows of 2.
        (
            {"reward": ramp(0.25, 0.5), "rewards/accuracy/mean": ramp(0.25, 0.25), "rewards/format/mean": ramp(0, 0.75)},
            "reward_not_accuracy",
            "bad",
            {"reward": "accuracy", "points": 2, "before": 0.25, "after": 0.5, "answer_before": 0.25, "answer_after": 0.25},
        ),
        ({"completions/mean_length": ramp(100, 201)}, "length_explosion", "warn", {"before": 100.0, "after": 201.0, "points": 2}),
        ({"completions/mean_length": ramp(201, 100)}, "length_collapse", "warn", {"before": 201.0, "after": 100.0, "points": 2}),
        ({"completions/clipped_ratio": [0, 0.5]}, "truncated", "bad", {"share": 0.25, "points": 2, "limit": "48"}),
        ({"reward": [0.5], "entropy": ramp(1, 0.125)}, "entropy_collapse", "warn", {"before": 1.0, "after": 0.125, "points": 2}),
        ({"rewards/format/mean": ramp(0.5, 1)}, "format_saturated", "info", {"reward": "format", "value": 1.0, "points": 2}),
        ({"frac_reward_zero_std": [0.25, 0.75]}, "zero_std", "warn", {"share": 0.5, "points": 2}),
        ({"frac_reward_zero_std": [1, 1]}, "zero_std", "bad", {"share": 1.0, "points": 2}),
        ({"rewards/accuracy/mean": [0.0] * 8}, "reward_zero", "bad", {"reward": "accuracy", "points": 8}),
        (
            {"rewards/length/mean": [0.5] * 8, "rewards/length/std": [0.0] * 8},
            "reward_constant",
            "warn",
            {"reward": "length", "value": 0.5, "points": 8},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flag_comes_with_its_numbers(tmp_path: Path, metrics: dict, code: str, severity: str, values: dict) -> None:
    run = read_run(write_run(tmp_path / "run", metrics))
    assert find_flags(run) == [{"code": code, "severity": severity, "values": values}]


@pytest.mark.parametrize(
    "metrics",
    [
        {"reward": ramp(0.25, 0.5), "rewards/accuracy/mean": ramp(0.25, 0.5)},
        {"completions/mean_length": ramp(100, 200)},
        {"completions/mean_length": ramp(200, 100)},
        {"completions/clipped_ratio": [0.2] * 8},
        {"reward": [0.5], "entropy": ramp(1, 0.25)},
        {"entropy": ramp(1, 0.1)},  # SFT learns its text: no policy to explore with
        {"rewards/format/mean": ramp(0.5, 0.98)},
        {"frac_reward_zero_std": [0.49] * 8},
        {"rewards/accuracy/mean": [0.0] * 7},  # too few to speak of
        {"completions/mean_length": [1, 1, 1, 1000]},
        # Neighbours differ by 1: the two means of 2 points may differ by 2·√(2·(5/7/2)/2) ≈ 1.2 by chance, and do so by 0.5.
        {"reward": [0, 1, 0, 1, 0, 1, 1, 1], "rewards/accuracy/mean": [0.5] * 8},
    ],
)
def test_what_is_within_bounds_raises_no_flag(tmp_path: Path, metrics: dict) -> None:
    assert find_flags(read_run(write_run(tmp_path / "run", metrics))) == []


def test_worst_flags_come_first(tmp_path: Path) -> None:
    metrics = {"rewards/format/mean": [1.0] * 8, "completions/mean_length": ramp(1, 10), "frac_reward_zero_std": [1.0] * 8}
    flags = find_flags(read_run(write_run(tmp_path / "run", metrics)))
    assert [flag["code"] for flag in flags] == ["zero_std", "length_explosion", "format_saturated"]


def test_completions_are_columns_with_the_weighted_reward(tmp_path: Path) -> None:
    rows = [
        completion(1, extra_note=None),
        completion(1, "five", "2+3?", accuracy=None, answer_parsed=None, extra_note="x"),
        completion(2, accuracy=float("nan")),
    ]
    read, total = read_completions([read_run(write_run(tmp_path / "run", completions={1: rows[:2], 2: rows[2:]}))])
    found = columns(read)
    assert (found["rewards"], found["extras"]) == (["accuracy", "format"], ["answer_parsed", "solution", "extra_note"])
    assert found["prompts"] == ["[user]\n2+2?", "[user]\n2+3?"]
    assert total == 3
    assert found["rows"] == {
        "run": [0, 0, 0],
        "step": [1, 1, 2],
        "prompt": [0, 1, 0],
        "text": ["<answer>4</answer>", "five", "<answer>4</answer>"],
        # 1·1 + 0.2·0.5; what a reward does not judge counts nothing.
        "reward": [1.1, 0.1, 0.1],
        "advantage": [0.25, 0.25, 0.25],
        "scores": [[1.0, None, None], [0.5, 0.5, 0.5]],
        "extra": [["4", None, "4"], ["4", "4", "4"], [None, "x", None]],
    }


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("plain", "plain"),
        ([{"role": "assistant", "content": "a"}], "a"),
        ([{"role": "assistant", "content": None}, {"role": "tool", "content": "7"}], "\n\n[tool]\n7"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image", "text": None}]}], "a\n\n"),
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


def test_completions_that_do_not_fit_are_thinned_by_whole_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {
        step: [completion(step, hashlib.sha256(f"{step} {i}".encode()).hexdigest() * 4, f"{step}?") for i in range(4)]
        for step in range(1, 41)
    }
    run = read_run(write_run(tmp_path / "run", completions=steps))
    whole = pack_completions(read_completions([run])[0])
    assert whole[1] == 160
    monkeypatch.setattr(completions, "MAX_COMPLETION_BYTES", len(whole[0]) // 2)
    packed, kept = pack_completions(read_completions([run])[0])
    found = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert len(packed) <= len(whole[0]) // 2
    assert 40 <= kept == len(found["rows"]["step"]) <= 80
    shown = sorted(set(found["rows"]["step"]))
    assert (shown[0], shown[-1]) == (1, 40)
    assert all(found["rows"]["step"].count(step) == 4 for step in shown)
    assert [found["prompts"][i] for i in found["rows"]["prompt"]] == [f"[user]\n{step}?" for step in found["rows"]["step"]]


def test_files_are_left_out_unread_where_there_are_too_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "MAX_COMPLETIONS", 5)
    run = read_run(write_run(tmp_path / "run", completions={step: [completion(step)] for step in range(1, 10)}))
    rows, total = read_completions([run])
    # 9 files, 5 of them, evenly: 0, 2, 4, 6, 8.
    assert (total, [row["step"] for row in rows]) == (9, [1, 3, 5, 7, 9])


def test_long_curves_are_thinned_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_POINTS", 3)
    (run,) = page_of(write_run(tmp_path / "run", {"reward": [0.0, 1.0, 2.0, 3.0, 4.0], "kl": [1.0, 2.0]})).data["runs"]
    assert run["series"] == {"reward": {"x": [1, 3, 5], "y": [0.0, 2.0, 4.0]}, "kl": {"x": [1, 2], "y": [1.0, 2.0]}}
    assert run["missing"] == [{"code": "thinned", "values": {"kept": 3, "points": 5}}]


def test_evaluations_beside_the_run(tmp_path: Path) -> None:
    right = [1.0, 0.0, 1.0, 1.0]
    scores = {"model": "out/grpo", "greedy": right, "mean_tokens": 36.5, "language": None, "examples": [{"question": "2+2?"}]}
    folder = write_run(tmp_path / "grpo")
    (tmp_path / "scores_grpo.json").write_text(json.dumps({"judged": {"seed": 1}, "scores": scores}), encoding="utf-8")
    raw = {**scores, "model": "raw", "mean_tokens": 40}
    made = {"stages": {"raw": {"label": "the raw model", "scores": raw}, "grpo": {"label": "GRPO", "scores": scores, "yielded": None}}}
    (tmp_path / "results.json").write_text(json.dumps(made), encoding="utf-8")
    judged = {"mean": 0.5, "low": 0.25, "high": 0.75}
    (folder / "eval.json").write_text(json.dumps([{"model": "out/m", "pass@1": judged}]), encoding="utf-8")
    (folder / "eval_results.json").write_text(json.dumps({"eval_loss": 1.0}), encoding="utf-8")
    (folder / "scores_torn.json").write_text("{", encoding="utf-8")
    # evaluate --output RUN/evaluation
    (folder / "evaluation").mkdir()
    entry = {"model": "out/n", "pass_at": {"2": [0.5, 0.25, 0.75], "x": [1]}, "rewards": {"format": [1.0, None, 0.5], "none": [None]}}
    (folder / "evaluation" / "results.json").write_text(json.dumps([entry]), encoding="utf-8")
    data = page_of(folder).data
    interval = [finite(bound) for bound in mean_interval(right)]
    assert interval[0] == 0.75
    assert data["evaluations"] == [
        {"source": "eval.json", "label": "m", "model": "out/m", "values": {"pass@1": [0.5, 0.25, 0.75]}},
        {
            "source": "results.json",
            "label": "n",
            "model": "out/n",
            "values": {"pass@2": [0.5, 0.25, 0.75], "rewards/format": [0.75, None, None]},
        },
        # A pipeline's table has its labels and its order; the stages' own files repeat it.
        {
            "source": "results.json",
            "label": "the raw model",
            "model": "raw",
            "values": {"greedy": interval, "mean_tokens": [40.0, None, None]},
        },
        {
            "source": "results.json",
            "label": "GRPO",
            "model": "out/grpo",
            "values": {"greedy": interval, "mean_tokens": [36.5, None, None]},
        },
    ]
    assert [(item["code"], item["values"]["file"]) for item in data["runs"][0]["missing"]] == [("torn_file", "scores_torn.json")]


def test_run_names_are_the_shortest_that_differ() -> None:
    assert run_names([Path("/x/seed1/grpo"), Path("/x/seed2/grpo")]) == ["seed1/grpo", "seed2/grpo"]
    assert run_names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert run_names([Path("/x/a"), Path("/x/a")]) == ["a", "a (2)"]


def test_every_language_says_everything() -> None:
    table = json.loads((ASSETS / "strings.json").read_text(encoding="utf-8"))
    assert set(table) == {"en", "zh"}
    assert set(table["en"]) == set(table["zh"])
    for key, text in table["en"].items():
        assert sorted(set(re.findall(r"\{(\w+)\}", text))) == sorted(set(re.findall(r"\{(\w+)\}", table["zh"][key]))), key


def test_every_string_that_is_asked_for_is_there_and_none_else() -> None:
    table = json.loads((ASSETS / "strings.json").read_text(encoding="utf-8"))["en"]
    script = (ASSETS / "report.js").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.glob("*.py"))
    asked = set(re.findall(r'data-(?:text|label)="(\w+)"', (ASSETS / "page.html").read_text(encoding="utf-8")))
    asked |= set(re.findall(r'\b(?:t|titled)\(\s*"([\w:]+)"', script))
    asked |= {f"g:{group}" for group in re.findall(r'\bchart\("(\w+)"', script)}
    asked |= {f"f:{code}" for code in re.findall(r'\bflag\("(\w+)"', source)}
    asked |= {f"x:{code}" for code in re.findall(r'\(\("(\w+)", \{', source)} | {"x:no_file", "x:torn_file"}
    assert asked <= set(table)
    # The rest is asked for by a name that is put together, or is in a list.
    for key in set(table) - asked:
        assert f'"{key.split(":")[-1]}"' in script or key in ("answer_parsed", "solution"), key


def test_libraries_are_the_published_files() -> None:
    """npm packages d3 7.9.2 (dist/d3.min.js) and @observablehq/plot 0.6.17 (dist/plot.umd.min.js)."""
    known = {
        "d3.min.js": "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
        "plot.min.js": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
    }
    assert {name: hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() for name in known} == known
    licences = (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")
    assert licences.count("Permission to use, copy, modify, and/or distribute this software") == len(known)


def test_page_carries_the_licences(tmp_path: Path) -> None:
    assert page_of(write_run(tmp_path / "run")).script("licences") == (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    __main__.main([str(first), str(second)])
    path = first / "report.html"
    assert capsys.readouterr().out == f"{path} ({path.stat().st_size / 1e6:.1f} MB)\n"
    assert [run["name"] for run in Page(path.read_text(encoding="utf-8")).data["runs"]] == ["a", "b"]
    __main__.main([str(second), "--output", str(tmp_path / "new" / "page.html")])
    assert (tmp_path / "new" / "page.html").is_file()
    assert sorted(path.name for path in second.iterdir()) == ["completions", "metrics.jsonl", "recipe.yaml", "run.json", "run.log"]


def test_no_such_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        __main__.main([str(tmp_path / "none")])
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/none: no such run directory; give the output_dir of a run\n"


def test_page_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"the report cannot be written: .*--output FILE"):
        write([write_run(tmp_path / "run")], tmp_path / "file" / "page.html")


def test_refresh_costs_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run")
    with caplog.at_level(logging.INFO, logger="r1_recipes.report"):
        refresh(folder)
        assert caplog.messages[0].startswith(f"report: {folder / 'report.html'} (")
        monkeypatch.setattr(page, "build", lambda folders: 1 / 0)
        refresh(folder)
    assert caplog.messages[1:] == ["no report was written"]
    assert "ZeroDivisionError" in caplog.text


def test_callback_notes_hardware_and_refreshes_with_every_save(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    watcher = callbacks.Report(folder)
    worker = SimpleNamespace(is_world_process_zero=False)
    watcher.on_train_begin(SimpleNamespace(world_size=2), worker, None)
    watcher.on_save(None, worker, None)
    assert "hardware" not in json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert not (folder / "report.html").exists()
    main = SimpleNamespace(is_world_process_zero=True)
    watcher.on_train_begin(SimpleNamespace(world_size=2), main, None)
    entry = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert entry["finished"] is True
    assert entry["hardware"]["processes"] == 2
    assert {"system", "python", "cpu_cores", "memory_gib"} <= set(entry["hardware"])
    watcher.on_save(None, main, None)
    (run,) = Page((folder / "report.html").read_text(encoding="utf-8")).data["runs"]
    assert run["hardware"]["processes"] == "2"


@pytest.mark.e2e
def test_a_run_leaves_its_report_with_every_save_at_the_end_and_when_it_is_stopped(
    write_recipe: Callable[..., str], tmp_path: Path, interrupted: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from r1_recipes import grpo

    written: list[tuple[int | None, bool]] = []

    def watched(run_dirs: Sequence[Path], output: Path | None = None) -> Path:
        path = write(run_dirs, output)
        (run,) = Page(path.read_text(encoding="utf-8")).data["runs"]
        written.append((run["steps"], run["finished"]))
        return path

    monkeypatch.setattr(report_page, "write", watched)
    recipe = write_recipe("grpo", max_steps=5, log_completions=True, num_completions_to_print=0)
    interrupted("3")
    with pytest.raises(SystemExit):
        grpo.main([recipe])
    # Saved every two steps, then in the step that was interrupted; and once more when the run had ended.
    assert written == [(2, False), (3, False), (3, False)]
    interrupted("")
    written.clear()
    grpo.main([recipe])
    assert written == [(4, False), (5, False), (5, True)]
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert sorted(set(page.completions["rows"]["step"])) == [1, 2, 3, 4, 5]
    (run,) = page.data["runs"]
    assert {"reward", "rewards/letters/mean", "entropy", "time/generation", "time/rewards", "step_time"} <= set(run["series"])
    assert run["hardware"]["processes"] == "1" and run["settings"]["max_steps"] == "5"


def test_phases_of_a_step_reach_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import GRPOTrainer

    from r1_recipes.training import trainer as module

    clock = iter(range(100))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(GRPOTrainer, "_generate", lambda self, prompts: prompts)
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, *args: list(args))
    logged: list[dict[str, float]] = []
    monkeypatch.setattr(module._CompletionsOnTensorBoard, "log", lambda self, logs, start: logged.append(logs))
    trainer = module.RecipeGRPOTrainer.__new__(module.RecipeGRPOTrainer)
    trainer.model, trainer.state = SimpleNamespace(training=True), SimpleNamespace(global_step=1)
    trainer._seconds, trainer._logged_step = {"time/generation": 0.0, "time/rewards": 0.0}, 0
    assert trainer._generate(["a"]) == ["a"]
    assert trainer._generate(["b"]) == ["b"]
    assert trainer._calculate_rewards(1, 2, 3, 4) == [1, 2, 3, 4]
    trainer.model.training = False
    trainer._generate(["held out"])
    trainer.log({"loss": 0.0})
    trainer.state.global_step = 2
    trainer.log({"loss": 0.0})
    # Each call takes one tick; what evaluation generates is not the step's; the second step generated nothing.
    assert logged == [
        {"loss": 0.0, "time/generation": 2.0, "time/rewards": 1.0},
        {"loss": 0.0, "time/generation": 0.0, "time/rewards": 0.0},
    ]


def test_needs_no_torch() -> None:
    code = "import sys, r1_recipes.report.page; sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'trl', 'pyarrow')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_time_of_training_is_that_of_all_sessions(tmp_path: Path) -> None:
    def seconds(*entries: dict[str, float]) -> float | None:
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
        return page._seconds(read_run(tmp_path))

    # Two sessions; the first was killed. Entries every second step stand for both.
    assert seconds({"step": 2, "step_time": 3.0}, {"step": 4, "step_time": 5.0}, {"step": 4, "train_runtime": 1.0}) == 16.0
    assert seconds({"step": 2, "loss": 1.0}, {"step": 2, "train_runtime": 2.0}, {"step": 4, "train_runtime": 3.0}) == 5.0
    assert seconds({"step": 1, "loss": 1.0}) is None
    assert seconds({"step": 1, "step_time": float("nan")}, {"step": 2, "step_time": 2.0}) == 2.0
