"""The run report: what is read, what is flagged, and that nothing in a run directory becomes
markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r1_recipes.common import processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.messages import transcript
from r1_recipes.extras.report import __main__, page, read
from r1_recipes.extras.report import page as report_page
from r1_recipes.extras.report.page import refresh, run_names, write
from r1_recipes.extras.report.read import read_run
from r1_recipes.training import callbacks
from tests.support.report_runs import ASSETS, EVIL, SOURCE, Page, completion, page_of, write_run


def test_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    references = [
        value
        for _, attributes in page.tags
        for key, value in attributes.items()
        if key in ("src", "href", "srcset", "action")
    ]
    assert references == ["#main"]
    assert "url(" not in (ASSETS / "style.css").read_text(encoding="utf-8")
    policy = next(
        attributes["content"]
        for tag, attributes in page.tags
        if tag == "meta" and "http-equiv" in attributes
    )
    assert policy.startswith(
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "script-src 'sha256-"
    )


def test_policy_allows_exactly_the_scripts_of_the_page(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run"))
    policy = next(
        attributes["content"]
        for tag, attributes in page.tags
        if tag == "meta" and "http-equiv" in attributes
    )
    run = [text for attributes, text in page.scripts if "type" not in attributes]
    assert len(run) == 4
    digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == digests


def test_hostile_texts_stay_data(tmp_path: Path) -> None:
    rows = [completion(1, EVIL, EVIL, answer_parsed=EVIL, solution=EVIL, **{f"{EVIL} score": 1.0})]
    folder = write_run(
        tmp_path / "a<b>&run",
        {"reward": [0.5], EVIL: [1.0]},
        {1: rows},
        recipe=EVIL,
        versions={EVIL: EVIL},
    )
    (folder / "recipe.yaml").write_text(json.dumps({"system_prompt": EVIL}), encoding="utf-8")
    page = page_of(folder)
    kinds = [attributes.get("id") for attributes, _ in page.scripts]
    assert kinds == [None, "strings", "data", None, None, None, "licences", "packed"]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    (run,) = page.data["runs"]
    assert (run["name"], run["recipe"], run["settings"], run["versions"]) == (
        "a<b>&run",
        EVIL,
        {"system_prompt": EVIL},
        {EVIL: EVIL},
    )
    assert run["series"][EVIL] == {"x": [1], "y": [1.0], "numbers": [1.0, 1.0, 1.0, 1.0]}
    found = page.completions
    assert found["prompts"] == [[f"[user]\n{EVIL}", EVIL]]
    assert found["rows"]["text"] == [EVIL]
    assert found["rows"]["extra"] == [[EVIL], [EVIL]]
    assert found["rewards"] == ["accuracy", "format", f"{EVIL} score"]


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_turns_of_an_agent_in_a_browser(tmp_path: Path) -> None:
    def call(arguments: Any) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "add", "arguments": arguments}}],
        }

    replies = [
        {"role": "tool", "name": "add", "content": text}
        for text in ("{'error': 'ToolError: no number'}", f"\x1b[2J\u202e{EVIL}")
    ]
    turns = transcript(
        [
            call({"a": 1}),
            replies[0],
            call({"a": EVIL}),
            replies[1],
            {"role": "assistant", "content": "4"},
        ]
    )
    rows = [completion(1, turns=turns, refused="hedge")]
    path = write([write_run(tmp_path / "run", completions={1: rows})])
    words = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        "--lang=en",
    ]
    done = subprocess.run(
        [*words, "--virtual-time-budget=10000", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    shown = done.stdout.partition('id="completion-list"')[2].partition("</ol>")[0]
    assert re.findall(r'<div class="turn (\w+)"><p>(.*?)<b>(.*?)</b>', shown) == [
        ("call", "Calls ", "add"),
        ("bad", "Error of ", "add"),
        ("call", "Calls ", "add"),
        ("tool", "Result of ", "add"),
        ("assistant", "Model", ""),
    ]
    assert "⟨U+001B⟩[2J⟨U+202E⟩&lt;/script&gt;" in shown
    facts = re.findall(r"<dt>(.*?)</dt><dd.*?><div.*?>(.*?)</div></dd>", shown)
    assert facts == [
        ("Question", "2+2?"),
        ("Reference answer", "4"),
        ("Parsed answer", "4"),
        ("Why it scored 0", "hedge"),
    ]


@given(
    st.recursive(
        st.text() | st.integers(-(2**53), 2**53) | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_embedded_json_is_whole_and_holds_no_markup(value: Any) -> None:
    text = page._embedded(value)
    assert not set("<>") & set(text)
    assert json.loads(text) == value


def test_what_is_torn_or_missing_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", completions={1: [completion(1)], 2: [completion(2)], 3: [completion(3)]}
    )
    torn = folder / "completions" / "completions_00002.parquet"
    torn.write_bytes(torn.read_bytes()[:-20])
    bad = [
        '{"step": 2, "rew',
        "[]",
        '{"reward": 1}',
        '{"step": "3", "reward": 1}',
        '{"step": true, "reward": 1}',
        "\x00",
        "",
    ]
    good = [
        '{"step": 1, "reward": 0.25}',
        '{"step": 4, "reward": NaN, "note": "text", "flag": true}',
        '{"step": 5, "reward": 1e999}',
    ]
    (folder / "metrics.jsonl").write_text(
        "\n".join([good[0], *bad, *good[1:], '{"step": 1, "reward": 0.5}']), encoding="utf-8"
    )
    (folder / "run.json").write_text('{"recipe": ', encoding="utf-8")
    (folder / "recipe.yaml").write_text("- a list\n", encoding="utf-8")
    page = page_of(folder)
    (run,) = page.data["runs"]
    said = {(item["code"], item["values"]["file"]): item["values"] for item in run["missing"]}
    assert set(said) == {
        ("torn_file", "run.json"),
        ("torn_file", "recipe.yaml"),
        ("bad_lines", "metrics.jsonl"),
        ("torn_file", "completions/completions_00002.parquet"),
    }
    # Lines 2 to 7 of the file; the empty one is none.
    assert said["bad_lines", "metrics.jsonl"] == {"file": "metrics.jsonl", "count": 6, "first": 2}
    # The later line about step 1 wins; what is not finite is a gap.
    numbers = {"numbers": [0.5, 0.5, 0.5, 0.5]}
    assert run["series"] == {"reward": {"x": [1, 4, 5], "y": [0.5, None, None], **numbers}}
    assert run["flags"] == [
        {
            "code": "not_finite",
            "severity": "bad",
            "values": {"metric": "reward", "count": 2, "step": 4},
        }
    ]
    assert page.completions["rows"]["step"] == [1, 3]


def test_empty_directory_makes_a_page(tmp_path: Path) -> None:
    (run,) = page_of(tmp_path).data["runs"]
    assert [(item["code"], item["values"]["file"]) for item in run["missing"]] == [
        ("no_file", "run.json"),
        ("no_file", "recipe.yaml"),
        ("no_file", "metrics.jsonl"),
    ]
    assert (run["series"], run["flags"], run["finished"]) == ({}, [], False)


def test_sft_run_is_not_asked_for_completions(tmp_path: Path) -> None:
    (run,) = page_of(write_run(tmp_path / "run", {"loss": [2.0]}, {}, method="sft")).data["runs"]
    assert run["missing"] == []


def test_long_curves_are_thinned_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MAX_POINTS", 3)
    (run,) = page_of(
        write_run(tmp_path / "run", {"reward": [0.0, 1.0, 2.0, 3.0, 4.0], "kl": [1.0, 2.0]})
    ).data["runs"]
    assert run["series"] == {
        "reward": {"x": [1, 3, 5], "y": [0.0, 2.0, 4.0], "numbers": [0.0, 4.0, 0.0, 4.0]},
        "kl": {"x": [1, 2], "y": [1.0, 2.0], "numbers": [1.0, 2.0, 1.0, 2.0]},
    }
    # The numbers are of all points: a quarter of them at each end, and a peak that is not drawn.
    values = [0.0, 2.0, 9.0, 1.0, 1.0, 1.0, 3.0, 5.0]
    (run,) = page_of(write_run(tmp_path / "peak", {"grad_norm": values})).data["runs"]
    assert run["series"]["grad_norm"]["y"] == [0.0, 1.0, 5.0]
    assert run["series"]["grad_norm"]["numbers"] == [1.0, 4.0, 0.0, 9.0]
    assert run["missing"] == [{"code": "thinned", "values": {"kept": 3, "points": 8}}]


def test_run_names_are_the_shortest_that_differ() -> None:
    assert run_names([Path("/x/seed1/grpo"), Path("/x/seed2/grpo")]) == ["seed1/grpo", "seed2/grpo"]
    assert run_names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]


def test_every_language_says_everything() -> None:
    table = json.loads((ASSETS / "strings.json").read_text(encoding="utf-8"))
    assert set(table) == {"en", "zh"}
    assert set(table["en"]) == set(table["zh"])
    for key, text in table["en"].items():
        assert sorted(set(re.findall(r"\{(\w+)\}", text))) == sorted(
            set(re.findall(r"\{(\w+)\}", table["zh"][key]))
        ), key


def test_every_string_that_is_asked_for_is_there_and_none_else() -> None:
    table = json.loads((ASSETS / "strings.json").read_text(encoding="utf-8"))["en"]
    script = (ASSETS / "report.js").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.glob("*.py"))
    asked = set(
        re.findall(
            r'data-(?:text|label)="(\w+)"', (ASSETS / "page.html").read_text(encoding="utf-8")
        )
    )
    asked |= set(re.findall(r'\b(?:t|titled)\(\s*"([\w:]+)"', script))
    asked |= {f"g:{group}" for group in re.findall(r'\bchart\("(\w+)"', script)}
    # Each flag says what to do, too.
    asked |= {
        f"{kind}:{code}"
        for kind in "fr"
        for code in [
            *re.findall(r'\bflag\(\s*"(\w+)"', source),
            *(code for code, *_ in (*read._TRENDS, *read._SHARES)),
        ]
    }
    asked |= {f"x:{code}" for code in re.findall(r'\.note\(\s*"(\w+)"', source)}
    assert asked <= set(table)
    # The rest is asked for by a name that is put together, or is in a list.
    for key in set(table) - asked:
        assert f'"{key.split(":")[-1]}"' in script or key in (
            "answer_parsed",
            "solution",
            "refused",
        ), key


def test_libraries_are_the_published_files() -> None:
    """npm packages d3 7.9.2 (dist/d3.min.js) and @observablehq/plot 0.6.17
    (dist/plot.umd.min.js).
    """
    known = {
        "d3.min.js": "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
        "plot.min.js": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
    }
    assert {
        name: hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() for name in known
    } == known
    licences = (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")
    assert licences.count(
        "Permission to use, copy, modify, and/or distribute this software"
    ) == len(known)


def test_page_carries_the_licences(tmp_path: Path) -> None:
    assert page_of(write_run(tmp_path / "run")).script("licences") == (
        ASSETS / "LICENSES.txt"
    ).read_text(encoding="utf-8")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    __main__.main([str(first), str(second)])
    path = first / "report.html"
    assert capsys.readouterr().out == f"{path} ({path.stat().st_size / 1e6:.1f} MB)\n"
    assert [run["name"] for run in Page(path.read_text(encoding="utf-8")).data["runs"]] == [
        "a",
        "b",
    ]
    __main__.main([str(second), "--output", str(tmp_path / "new" / "page.html")])
    assert (tmp_path / "new" / "page.html").is_file()
    assert sorted(path.name for path in second.iterdir()) == [
        "completions",
        "metrics.jsonl",
        "recipe.yaml",
        "run.json",
    ]


def test_no_such_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        __main__.main([str(tmp_path / "none")])
    assert caught.value.code == 2
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path}/none: no such run directory. Fix: name the output_dir of a run\n"
    )


def test_page_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"cannot write the report: .*--output FILE"):
        write([write_run(tmp_path / "run")], tmp_path / "file" / "page.html")


def test_refresh_costs_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run")
    with caplog.at_level(logging.INFO, logger="r1_recipes.report"):
        refresh(folder)
        assert caplog.messages == [f"report: {folder / 'report.html'}"]
        monkeypatch.setattr(page, "build", lambda folders: 1 / 0)
        refresh(folder)
    assert caplog.messages[1:] == ["report.html was not written"]
    assert "ZeroDivisionError" in caplog.text


def test_the_main_process_refreshes_the_page_with_every_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run")
    records = callbacks.Records(folder)
    monkeypatch.setattr(processes, "is_main_process", lambda: False)
    records.on_save(None, None, None)
    assert not (folder / "report.html").exists()
    monkeypatch.setattr(processes, "is_main_process", lambda: True)
    records.on_save(None, None, None)
    assert (folder / "report.html").is_file()


@pytest.mark.e2e
def test_a_run_leaves_its_report_with_every_save_at_the_end_and_when_it_is_stopped(
    write_recipe: Callable[..., str],
    tmp_path: Path,
    interrupted: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
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
    # Saved every two steps, then in the step that was interrupted; and once more when the run had
    # ended.
    assert written == [(2, False), (3, False), (3, False)]
    interrupted("")
    written.clear()
    grpo.main([recipe])
    assert written == [(4, False), (5, False), (5, True)]
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert sorted(set(page.completions["rows"]["step"])) == [1, 2, 3, 4, 5]
    (run,) = page.data["runs"]
    assert {
        "reward",
        "rewards/letters/mean",
        "entropy",
        "time/generation",
        "time/rewards",
        "step_time",
    } <= set(run["series"])
    assert run["hardware"]["processes"] == "1" and run["settings"]["max_steps"] == "5"


def test_phases_of_a_step_reach_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from trl import GRPOTrainer

    from r1_recipes.training import trainer as module

    clock = iter(range(100))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(GRPOTrainer, "_generate", lambda self, prompts: prompts)
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, *args: torch.tensor(args))
    logged: list[dict[str, float]] = []
    monkeypatch.setattr(GRPOTrainer, "log", lambda self, logs, start: logged.append(logs))
    trainer = module.RecipeGRPOTrainer.__new__(module.RecipeGRPOTrainer)
    trainer.model, trainer.state, trainer.tools = (
        SimpleNamespace(training=True),
        SimpleNamespace(global_step=1),
        [],
    )
    trainer._window = 1
    trainer._seconds, trainer._logged_step, trainer._unjudged = (
        {"time/generation": 0.0, "time/rewards": 0.0},
        0,
        0,
    )
    trainer._failed, trainer._evaluating, trainer.log_completions, trainer._logs = (
        [],
        False,
        False,
        {},
    )
    assert trainer._generate(["a"]) == ["a"]
    assert trainer._generate(["b"]) == ["b"]
    assert trainer._calculate_rewards(1, 2, 3, 4).tolist() == [1, 2, 3, 4]
    trainer.model.training = False
    trainer._generate(["held out"])
    trainer.log({"loss": 0.0})
    trainer.state.global_step = 2
    trainer.log({"loss": 0.0})
    # Each call takes one tick; what evaluation generates is not the step's; the second step
    # generated nothing.
    assert logged == [
        {"loss": 0.0, "time/generation": 2.0, "time/rewards": 1.0},
        {"loss": 0.0, "time/generation": 0.0, "time/rewards": 0.0},
    ]


def test_needs_no_torch() -> None:
    heavy = "('torch', 'transformers', 'trl', 'pyarrow')"
    code = (
        f"import sys, r1_recipes.extras.report.page; sys.exit(any(name in sys.modules for name "
        f"in {heavy}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_time_of_training_is_that_of_all_sessions(tmp_path: Path) -> None:
    def seconds(*entries: dict[str, float]) -> float | None:
        (tmp_path / "metrics.jsonl").write_text(
            "".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8"
        )
        return page._seconds(read_run(tmp_path))

    # Two sessions; the first was killed. Entries every second step stand for both.
    assert (
        seconds(
            {"step": 2, "step_time": 3.0},
            {"step": 4, "step_time": 5.0},
            {"step": 4, "train_runtime": 1.0},
        )
        == 16.0
    )
    assert (
        seconds(
            {"step": 2, "loss": 1.0},
            {"step": 2, "train_runtime": 2.0},
            {"step": 4, "train_runtime": 3.0},
        )
        == 5.0
    )
    assert seconds({"step": 1, "loss": 1.0}) is None
    assert seconds({"step": 1, "step_time": float("nan")}, {"step": 2, "step_time": 2.0}) == 2.0
