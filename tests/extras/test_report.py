"""The report page: what it says of a run, and that a run can neither break it nor get into it."""

from __future__ import annotations

import json
import re
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest

from r1_recipes.common import processes
from r1_recipes.extras import report
from r1_recipes.extras.report import flags, page, read_run
from r1_recipes.training import callbacks
from r1_recipes.training.run_folder import refresh_page
from tests.support.report_runs import completion, write_run

EVIL = (
    "</pre></style><script>window.hacked = 1</script><!-- <img src=x onerror='hacked()'> & \u2028"
)
TAGS = {"html", "head", "meta", "title", "style", "body", "nav", "a", "section", "h1", "h2", "h3"}
TAGS |= {"div", "p", "small", "b", "i", "table", "tr", "th", "td", "details", "summary", "pre"}
TAGS |= {"figure", "figcaption", "svg", "path", "g", "text", "polyline"}
LINES = [0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5]  # from the first quarter to the last one
RISES, FALLS = [0.2 + value for value in LINES], [0.9 - value for value in LINES]


def tags_of(html: str) -> list[tuple[str, str]]:
    """The tags of a page with their attributes. An escaped text has no angle bracket."""
    return re.findall("<(\\w+)([^<>]*)>", html)


def lines_of(html: str) -> list[str]:
    """The texts that a reader sees, one for each element."""
    return [unescape(text) for text in re.split("(?:<[^>]*>)+", html.partition("</nav>")[2])]


def test_nothing_of_a_run_becomes_markup(tmp_path: Path) -> None:
    rows = [completion(1, EVIL, EVIL, solution=EVIL, refused=EVIL, turns=EVIL, **{EVIL: 1.0})]
    metrics = {"reward": [0.5], EVIL: [1.0], f"rewards/{EVIL}/mean": [float("nan")]}
    folder = write_run(tmp_path / "a<b>&run", metrics, {1: rows}, json.dumps({EVIL: EVIL}))
    (folder / "results.md").write_text(
        f"{EVIL}\n\n| {EVIL} | {EVIL} |\n| --- | --- |\n| {EVIL} | 1 |"
    )
    for folders in ([folder], [folder, write_run(tmp_path / "other")]):
        html = page(folders)
        tags = tags_of(html)
        assert len(tags) == html.count("<") - html.count("</") - 1  # and the doctype
        assert {tag for tag, _ in tags} <= TAGS
        unquoted = {re.sub('"[^"]*"', "", attributes) for _, attributes in tags}
        assert not [attributes for attributes in unquoted if re.search(" on|'|hacked", attributes)]
        assert html.count("window.hacked") > 8 and "<script" not in html and "<!--" not in html


def test_what_is_torn_or_missing_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", completions={1: [completion(1)], 3: [completion(3)]})
    torn = folder / "completions" / "completions_00003.parquet"
    torn.write_bytes(torn.read_bytes()[:-20])
    bad = ['{"step": 2, "rew', "[]", '{"reward": 1}', "\x00", '{"step": null}']
    good = ['{"step": 4, "reward": NaN}', '{"step": 1, "reward": 0.75}']
    (folder / "metrics.jsonl").write_text("\n".join([*bad, *good]))
    (folder / "run.json").write_text('{"recipe": ')
    (folder / "recipe.yaml").unlink()
    shown = lines_of(page([folder]))
    for said in ("metrics.jsonl: a line cannot be read: b'[]'", "recipe.yaml is missing."):
        assert said in shown
    for name in ("run.json", "completions/completions_00003.parquet"):
        assert any(line.startswith(f"{name} cannot be read: ") for line in shown)
    assert (
        "0.75 → 0.75, no clear change" in shown
        and "advantage +0.25 · accuracy 1 · format 0.5" in shown
    )
    (tmp_path / "empty").mkdir()
    assert "metrics.jsonl is missing." in lines_of(page([tmp_path / "empty"]))


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"completions/clipped_ratio": [0.0, 0.25]}, "25% of the latest completions were cut."),
        ({"frac_reward_zero_std": [0.0, 0.5]}, "50% of the latest groups had no spread"),
        ({"reward": RISES, "entropy": [1.0] * 6 + [0.2] * 2}, "Entropy fell from 1 to 0.2"),
        (
            {"reward": RISES, "rewards/exact_match/mean": [0.3] * 8},
            "The reward rose from 0.2 to 0.7, but exact_match did not: 0.3 to 0.3.",
        ),
        ({"completions/clipped_ratio": [0.2], "frac_reward_zero_std": [0.4]}, ""),
        ({"entropy": [1.0] * 6 + [0.2] * 2}, ""),  # of SFT, which should learn its rows
        ({"reward": RISES, "rewards/accuracy/mean": RISES, "rewards/code/mean": FALLS}, ""),
    ],
)
def test_flags(tmp_path: Path, metrics: dict, said: str) -> None:
    found = flags(read_run(write_run(tmp_path / "run", metrics)))
    assert len(found) == bool(said) and all(flag.startswith(said) for flag in found)


def test_the_page_says_whether_a_run_learned(tmp_path: Path) -> None:
    wrong = completion(1, refused="hedge", accuracy=0.0, advantage=-0.5)
    rows = {1: [wrong, wrong, completion(1)], 2: [wrong | {"step": 2}], 8: [completion(8)] * 3}
    noisy = [0.5, 0.6, 0.4, 0.7, 0.3, 0.6, 0.5, 0.6]
    metrics = {"rewards/accuracy/mean": RISES, "reward": noisy, "eval_reward": [0.5, 0.25]}
    metrics["x"] = [1]
    shown = lines_of(page([write_run(tmp_path / "run", metrics, rows)]))
    table = shown[shown.index("Did it learn?") : shown.index("Held-out evaluation")]
    cells = dict(pairwise(table))
    assert cells["rewards/accuracy/mean"] == "0.2 → 0.7, rose"
    assert cells["Reward: weighted sum"] == "0.55 → 0.55, no clear change"
    assert cells["eval_reward"] == "0.5 → 0.25, no clear change"
    assert cells["hedge"] == "2 of 3 → 0 of 3" and "x" in shown and "x" not in table


def test_completions_are_shown_best_first_with_all_that_is_known(tmp_path: Path) -> None:
    rows = [completion(7, f"text {i}", advantage=float(i)) for i in reversed(range(50))]
    rows[0] |= {"turns": "[call add]\na=1", "refused": "hedge", "code_result": "1 of 2"}
    shown = lines_of(page([write_run(tmp_path / "run", completions={7: rows})]))
    found = shown[shown.index("Step 7: the best and the worst of 50 completions") :]
    facts = ["Prompt:", " [system]\nThink.\n\n[user]\n2+2?", "Answer as it was read:", " 4"]
    facts += ["Why the answer scored 0:", " hedge", "Reference answer:", " 4"]
    facts += ["code_result:", " 1 of 2", "[call add]\na=1"]
    assert found[1:13] == ["advantage +49.00 · accuracy 1 · format 0.5 · hedge", *facts]
    texts = [line for line in found if line.startswith("text ")]
    assert texts == [f"text {i}" for i in (*range(48, 29, -1), *range(19, -1, -1))]


def test_evaluations_in_and_beside_the_run_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "one")
    for place in (folder / "evaluation", folder.parent):
        place.mkdir(exist_ok=True)
        text = f"| model | greedy |\n| --- | --- |\n| {place.name} | 2 % |\n\nJudged on 100 rows."
        (place / "results.md").write_text(text)
    shown = lines_of(page([folder, write_run(tmp_path / "runs" / "two")]))
    start = shown.index("Held-out evaluation") + 1
    assert shown[start:][:10] == [
        *("evaluation/results.md", "evaluation", "greedy", "2 %", "Judged on 100 rows."),
        *("runs/results.md", "runs", "greedy", "2 %", "Judged on 100 rows."),
    ]


def test_several_runs_share_charts_and_show_the_keys_that_differ(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"seed{seed}" / "grpo", {"reward": RISES, key: [1.0]}, {}, recipe)
        for seed, key, recipe in ((1, "kl", "a: 1\nb: [x]\nc: 1"), (2, "loss", "c: 2\na: 1\nd: 3"))
    ]
    html = page(folders)
    first, second = map(str, folders)
    assert f"<h1>{first}, {second}</h1>" in html
    shown = lines_of(html)
    assert shown[shown.index("Recipe: the keys that differ") + 1 :][:11] == (
        [first, second, "b", "['x']", "–", "c", "1", "2", "d", "–", "3"]
    )


def test_long_curves_stay_small_and_a_resumed_run_logs_a_step_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"reward": [float(i) for i in range(5000)]})
    assert len(page([folder])) < 40_000
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5000, "reward": 0.5}\n')
    (folder / "run.json").write_text("{}")
    run = read_run(folder)
    assert len(run.series["reward"]) == 5000 and run.series["reward"][5000] == 0.5
    assert "The run has not finished." in run.faults


def test_the_main_process_refreshes_the_page_with_every_save_and_a_fault_costs_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run")
    for is_main in (False, True):
        monkeypatch.setattr(processes, "rank", lambda is_main=is_main: int(not is_main))
        callbacks.Metrics(folder).on_save(None, None, None)
        assert (folder / "report.html").is_file() == is_main
    monkeypatch.setattr(report, "page", lambda folders: 1 / 0)
    refresh_page(folder)
    [said] = caplog.messages
    assert said == "report.html was not written: ZeroDivisionError: division by zero."
