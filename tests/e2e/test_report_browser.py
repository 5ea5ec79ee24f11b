"""The report in a real browser: Playwright drives an installed Chromium; axe-core judges what
assistive technology gets.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from r1_recipes.extras.report.page import write
from tests.support.report_runs import EVIL, completion, ramp, write_run

pytestmark = pytest.mark.e2e

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
)
BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
if BROWSER is None:
    pytest.skip("no Chromium on the PATH: apt-get install chromium", allow_module_level=True)

STEPS = 12
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """``visit(path, viewport=…, color_scheme=…, locale=…)`` opens a page, waits for it, and fails
    the test on any error or request.
    """
    contexts, troubles = [], []

    def go(path: Path, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, "locale": "en-GB", **options})
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console",
            lambda message: (
                troubles.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((path.as_uri(), "blob:"))
                else troubles.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=all]", state="attached")
        return page

    yield go
    for context in contexts:
        context.close()
    assert troubles == []


def metrics(shift: float) -> dict[str, list[float]]:
    """What TRL logs, in short; ``shift`` tells runs apart."""
    return {
        "reward": ramp(0.25 + shift, 0.75 + shift, STEPS),
        "rewards/accuracy/mean": ramp(0.25, 0.25, STEPS),
        "rewards/format/mean": ramp(0.5, 1.0, STEPS),
        "reward_std": [0.5] * STEPS,
        "frac_reward_zero_std": [0.25] * STEPS,
        "completions/mean_length": ramp(100, 60 + 20 * shift, STEPS),
        "completions/clipped_ratio": [0.5] * STEPS,
        "entropy": ramp(0.5, 0.25, STEPS),
        "clip_ratio/region_mean": [0.0] * STEPS,
        "step_time": [float("nan")] + [2.0] * (STEPS - 1),
        "constructor": [1.0] * STEPS,
        "odd/one": [1e-7, 1e9] * (STEPS // 2),
    }


LONG = "word " * 1000 + "needle in the hay " + "word " * 1000


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs; the first one's completions score 0.1 to 1.2, one is 5,000 words long and one is
    hostile.
    """
    root = tmp_path_factory.mktemp("runs")
    rows = {
        step: [
            completion(step, f"completion {step}.{i}", accuracy=step / 10, format=i / 4)
            for i in range(3)
        ]
        for step in range(1, STEPS + 1)
    }
    rows[5][1] = completion(5, LONG, accuracy=0.5, format=0.5)
    rows[6][2] = completion(
        6, EVIL, EVIL, accuracy=-1.0, format=0.0, answer_parsed=EVIL, toString="a column"
    )
    rows[6][0]["toString"] = None
    first = write_run(root / "first", metrics(0), rows)
    second = write_run(
        root / "second",
        metrics(0.125),
        {1: [completion(1, "of the other run", accuracy=5.0)]},
        hardware={"cpu_cores": 2},
    )
    (second / "recipe.yaml").write_text(
        "reward_funcs: [accuracy, format]\nbeta: 0.04\n", encoding="utf-8"
    )
    scores = {"model": "out/first", "greedy": [1.0, 0.0, 1.0, 1.0], "mean_tokens": 36.5}
    (first / "results.json").write_text(json.dumps([scores]), encoding="utf-8")
    (first / "metrics.jsonl").open("a", encoding="utf-8").write("{torn")
    return [first, second]


@pytest.fixture(scope="module")
def one(folders: list[Path]) -> Path:
    return write(folders[:1])


@pytest.fixture(scope="module")
def both(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(folders, tmp_path_factory.mktemp("page") / "both.html")


def column(page: Any, label: str) -> list[str]:
    """A score of each completion that is shown, or a fact of those that have it."""
    scores = (
        page.locator("#completion-list .scores > span", has_text=label)
        .locator("b")
        .all_inner_texts()
    )
    return (
        scores
        or page.locator("#completion-list dt", has_text=label)
        .locator("xpath=following-sibling::dd[1]")
        .all_inner_texts()
    )


def test_charts_flags_and_tables_are_there(visit: Callable, one: Path) -> None:
    page = visit(one)
    assert page.locator("h1").inner_text() == "sums"
    flags = page.locator("#flag-list li").all_inner_texts()
    assert flags[0].startswith("Problem")
    # 12 points: means of 3. Reward 0.25 → 0.75, accuracy flat; half of the completions cut; a step
    # time that is no number.
    assert any(
        "rose from 0.25 to 0.75 while accuracy stayed flat (0.25 → 0.25; means of 3 logged steps)"
        in text
        for text in flags
    )
    assert any("50 % of completions were cut at the length limit (48)" in text for text in flags)
    assert any(
        "step_time was not a finite number at 1 of its logged steps, first at step 1." in text
        for text in flags
    )
    assert (
        "first: 1 lines of metrics.jsonl cannot be read. The first is line 13."
        in page.locator("#missing").inner_text()
    )
    assert page.locator("#glance-table tbody td").all_inner_texts()[:3] == [
        "finished",
        "12",
        "0.25 → 0.75",
    ]
    assert page.locator("#evaluation-table tbody td").first.inner_text().startswith("0.750 (")
    assert page.locator("#charts figure").count() == 10
    for number in range(10):
        page.locator("#charts figure").nth(number).scroll_into_view_if_needed()
        playwright.expect(
            page.locator("#charts figure").nth(number).locator("svg path")
        ).not_to_have_count(0)
    page.locator("#others summary").click()
    playwright.expect(page.locator("#other-charts .plot svg")).to_have_count(2)
    assert page.locator("#recipe-table tbody tr").count() == 3


def test_completions_sort_by_reward(visit: Callable, one: Path) -> None:
    page = visit(one)
    # Newest steps first, until somebody asks otherwise.
    assert column(page, "Step")[:4] == ["12", "12", "12", "11"]
    page.select_option("#by", "score accuracy")
    assert column(page, "accuracy")[:4] == ["1.2", "1.2", "1.2", "1.1"]
    page.select_option("#order", "up")
    assert column(page, "accuracy")[:4] == ["−1", "0.1", "0.1", "0.1"]
    page.select_option("#by", "reward")
    page.select_option("#order", "down")
    # 1.2 + 0.2·0.5, 1.2 + 0.2·0.25, 1.2, 1.1 + 0.2·0.5.
    assert column(page, "Reward")[:4] == ["1.3", "1.25", "1.2", "1.2"]
    page.locator("#next").click()
    assert page.locator("#page").inner_text() == "21–36 of 36"
    assert page.locator("#next").is_disabled()
    assert len(column(page, "Reward")) == 16


def test_completions_are_searched_and_shown_whole(visit: Callable, one: Path) -> None:
    page = visit(one)
    page.fill("#query", "NEEDLE in")
    playwright.expect(page.locator("#found")).to_have_text("1 of 36 completions")
    text = page.locator("#completion-list .long > .text")
    assert page.locator("#completion-list .long > .text mark").inner_text() == "needle in"
    assert len(text.text_content()) < 600
    page.get_by_role("button", name="Show all (10,018 characters)").click()
    assert text.text_content() == LONG
    page.get_by_role("button", name="Show less").click()
    assert len(text.text_content()) < 600
    page.fill("#query", "no such thing")
    playwright.expect(page.locator("#found")).to_have_text("No completion matches.")
    page.fill("#query", "")
    page.select_option("#by-step", "5")
    playwright.expect(page.locator("#found")).to_have_text("3 of 36 completions")


def test_hostile_completion_is_only_text(visit: Callable, one: Path) -> None:
    page = visit(one)
    page.fill("#query", "onerror")
    playwright.expect(page.locator("#found")).to_have_text("1 of 36 completions")
    assert page.locator("#completion-list .long > .text").text_content() == EVIL
    assert column(page, "toString") == ["a column"]
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0


def test_runs_are_overlaid_and_compared(visit: Callable, both: Path) -> None:
    page = visit(both)
    assert page.locator("h1").inner_text() == "2 runs compared"
    reward = page.locator("#charts figure").first
    colours = (
        "figure => new Set([...figure.querySelectorAll('.plot svg g[aria-label=line]')].map((g) "
        "=> g.getAttribute('stroke'))).size"
    )
    reward.scroll_into_view_if_needed()
    playwright.expect(reward.locator(".plot svg")).to_have_count(1)
    assert reward.evaluate(colours) == 2
    assert (
        reward.locator(".readout").inner_text().replace("\n", " ") == "last first 0.75 second 0.875"
    )
    page.get_by_label("second", exact=True).uncheck()
    assert reward.evaluate(colours) == 1
    assert "second" not in reward.locator(".readout").inner_text()
    page.select_option("#by-run", "1")
    assert column(page, "accuracy") == ["5"]
    differing = page.locator("#recipe-table tr.differs th").all_inner_texts()
    assert differing == ["≠ reward_weights", "≠ max_completion_length", "≠ beta"]


def test_charts_are_read_with_the_keyboard(visit: Callable, one: Path) -> None:
    page = visit(one)
    plot = page.locator("#charts .plot").first
    plot.focus()
    assert plot.get_attribute("aria-valuetext") == "step 12, Reward (weighted sum) 0.75"
    page.keyboard.press("Home")
    assert plot.get_attribute("aria-valuenow") == "1"
    page.keyboard.press("ArrowRight")
    assert plot.get_attribute("aria-valuetext") == "step 2, Reward (weighted sum) 0.25"
    # Every chart shows that step.
    assert set(page.locator("#charts .readout > span:first-child").all_inner_texts()) == {"step 2"}
    assert "0.25 at step 1, 0.75 at step 12; least 0.25, most 0.75" in plot.get_attribute(
        "aria-label"
    )


def test_chart_is_saved_as_svg(visit: Callable, one: Path) -> None:
    page = visit(one)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save “Reward (weighted sum)” as SVG").click()
    assert waiting.value.suggested_filename == "Reward_weighted_sum_.svg"
    text = Path(waiting.value.path()).read_text(encoding="utf-8")
    assert text.startswith("<svg") and "<path" in text


def test_language_and_theme_are_remembered(visit: Callable, one: Path) -> None:
    page = visit(one, color_scheme="light")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(background) == "rgb(20, 23, 26)"
    page.locator("#language").click()
    page.reload()
    page.wait_for_selector("html[data-ready=all]", state="attached")
    assert page.evaluate(background) == "rgb(20, 23, 26)"
    assert page.locator("html").get_attribute("lang") == "zh"
    assert page.locator("#completions-title").inner_text() == "采样的回答"
    assert page.locator("#flag-list li").first.inner_text().startswith("问题")
    assert visit(one, locale="zh-CN").locator("#curves-title").inner_text() == "曲线"


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize(
    ("scheme", "locale"), [("light", "en-GB"), ("dark", "en-GB"), ("light", "zh-CN")]
)
def test_accessible(browser: Any, both: Path, viewport: dict, scheme: str, locale: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
    )
    # axe is another script than those the page's policy allows.
    context = browser.new_context(
        viewport=viewport, color_scheme=scheme, locale=locale, bypass_csp=True
    )
    page = context.new_page()
    page.goto(both.as_uri())
    page.wait_for_selector("html[data-ready=all]", state="attached")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_timeout(300)
    found = axe.Axe().run(page).response["violations"]
    context.close()
    assert [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found] == []


def test_nothing_is_wider_than_a_phone(visit: Callable, both: Path) -> None:
    page = visit(both, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_empty_run_opens(visit: Callable, tmp_path: Path) -> None:
    page = visit(write([tmp_path]))
    assert page.locator("#missing li").count() == 3
    assert (
        page.locator("#completions-note").inner_text()
        == "The run logged no completions (GRPO: log_completions: true)."
    )


def test_five_hundred_steps_of_64_open_in_two_seconds(browser: Any, tmp_path: Path) -> None:
    draw = random.Random(0)
    words = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9)))
        for _ in range(3000)
    ]

    def text() -> str:
        working = " ".join(
            f"{draw.choice(words)} {draw.randint(0, 999)}"
            if draw.random() < 0.3
            else draw.choice(words)
            for _ in range(64)
        )
        return f"<think>\n{working}\n</think>\n<answer>\n{draw.randint(0, 99)}\n</answer>"

    rows = {}
    for step in range(1, 501):
        questions = [" ".join(draw.choices(words, k=30)) for _ in range(8)]
        rows[step] = [
            completion(
                step, text(), questions[i // 8], accuracy=draw.random(), advantage=draw.gauss(0, 1)
            )
            for i in range(64)
        ]
    names = [
        *metrics(0),
        "kl",
        "loss",
        "grad_norm",
        "learning_rate",
        "num_tokens",
        "completions/max_length",
        "completions/min_length",
    ]
    folder = write_run(
        tmp_path / "run", {name: [draw.random() for _ in range(500)] for name in names}, rows
    )
    path = write([folder])
    assert path.stat().st_size < 15e6
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    # The thread's own time, since other processes may hold the machine's cores.
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=all]", state="attached", timeout=120_000)
    values = {
        one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]
    }
    assert page.locator("#found").inner_text() == "32,000 of 32,000 completions"
    page.close()
    assert 0 < values["TaskDuration"] < 2.0
