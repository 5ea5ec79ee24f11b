"""The documentation site: every page is in its navigation, its links lead somewhere, it loads
nothing from another host, and axe-core finds nothing in it.
"""

import functools
import http.server
import importlib
import inspect
import json
import os
import posixpath
import re
import shutil
import subprocess
import threading

import pytest
import yaml

from tests.conftest import REPOSITORY
from tools import api_page
from tools import mkdocs_hooks as hooks

DOCS = REPOSITORY / "docs"
CONFIG = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
# Pages that the navigation leaves out, each with its reason.
EXCLUDED: dict[str, str] = {}
# In an `__all__` for the package's other layers.
INTERNAL = set(
    [
        "Refusal",
        "LoadReport",
        "boxed_spans",
        "fitting_format",
        "leaves_open",
        "named_marks",
        "template_prefill",
        "parse_yaml",
        "read_yaml",
    ]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
MKDOCS = REPOSITORY / ".venv-docs" / "bin" / "mkdocs"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def test_the_navigation_has_every_page_once():
    named = list(pages_of(CONFIG["nav"]))
    assert sorted([*named, *EXCLUDED]) == sorted(PAGES)


def pages_of(nav):
    if isinstance(nav, str):
        yield nav
        return
    for entry in nav if isinstance(nav, list) else nav.values():
        yield from pages_of(entry)


def test_chinese_pages_stand_in_their_own_section():
    (chinese,) = (entry["中文"] for entry in CONFIG["nav"] if "中文" in entry)
    assert sorted(pages_of(chinese)) == [page for page in sorted(PAGES) if ".zh." in page]


def text_of(page):
    """A page without its code."""
    return hooks.CODE.sub("", PAGES[page].read_text(encoding="utf-8"))


def anchors(page):
    """What a link to a page may name: its headings, and `<a id>`."""
    text = re.sub(r"^```.*?^```", "", PAGES[page].read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {*map(hooks.slug, headings), *re.findall(r'<a id="([^"]+)">', text)}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_page_and_an_anchor_of_it_or_into_the_repository(page):
    """So that the strict build passes where its packages are not installed."""
    for target in LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if hooks.outside(target, page, DOCS):
            assert (DOCS / found).exists(), target
        else:
            assert (DOCS / found).is_file(), target
            assert not anchor or anchor in anchors(found), target


def test_what_llms_txt_lists_is_there():
    targets = LINK.findall((DOCS / "llms.txt").read_text(encoding="utf-8"))
    assert targets and [target for target in targets if target not in PAGES] == []


def test_links_out_of_the_pages_lead_to_the_repository():
    text = "[a](../README.md#install) `[b](../x)` [c](faq.md) [d](results) [e](https://x.org)"
    there = "https://example.org/r"
    assert hooks.to_repository(text, "index.md", DOCS, there) == (
        f"[a]({there}/blob/main/README.md#install) `[b](../x)` [c](faq.md) "
        f"[d]({there}/tree/main/docs/results) [e](https://x.org)"
    )
    deep = hooks.to_repository("[a](../../src/x.py)", "results/speed.md", DOCS, there)
    assert deep == f"[a]({there}/blob/main/src/x.py)"


def test_links_name_the_titles_of_pages():
    named = {"faq.md": "Questions", "results/speed.md": "Speed"}
    text = "[faq.md](faq.md#a) [faq](faq.md) [`results/speed.md`](results/speed.md) [x.md](x.md)"
    assert hooks.by_title(text, "index.md", named) == (
        "[Questions](faq.md#a) [faq](faq.md) [Speed](results/speed.md) [x.md](x.md)"
    )
    assert hooks.by_title("[faq.md](../faq.md)", "results/speed.md", named) == (
        "[Questions](../faq.md)"
    )


def test_the_placeholder_of_the_repository_stands_in_the_readmes_and_the_site_s_settings_alone():
    named = [
        path.relative_to(REPOSITORY).as_posix()
        for root in ("docs", "recipes", "src", "tools", "notebooks")
        for path in (REPOSITORY / root).rglob("*")
        if path.suffix in (".md", ".py", ".yaml", ".ipynb", ".html", ".txt")
        and "github.com/OWNER" in path.read_text(encoding="utf-8")
    ]
    assert named == []


def test_the_api_page_is_what_the_docstrings_say():
    written = api_page.PAGE.read_text(encoding="utf-8")
    assert written == api_page.page(), "make api"
    exec(re.findall(r"```python\n(.*?)```", written, re.DOTALL)[0], {})


def test_public_names_that_a_module_lists_are_described():
    """All functions and classes of `__all__`; registries and catalogues are objects."""
    missing = set()
    for module, names in api_page.PUBLIC.items():
        listed = getattr(importlib.import_module(module), "__all__", [])
        things = {name: getattr(importlib.import_module(module), name) for name in listed}
        described = {name for name, thing in things.items() if inspect.isroutine(thing)}
        described |= {name for name, thing in things.items() if isinstance(thing, type)}
        missing |= described - set(names)
    assert missing == INTERNAL


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built strictly: a warning is an error."""
    if not MKDOCS.exists():
        pytest.skip("the site's packages are not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [MKDOCS, "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_strict_build_holds_pages_texts_and_both_languages(site):
    for page in PAGES:
        folder = "" if page == "index.md" else page.removesuffix(".md")
        html = (site / folder / "index.html").read_text(encoding="utf-8")
        assert f'<html lang="{"zh" if ".zh." in page else "en"}"' in html, page
        assert (site / page).is_file(), page
    assert (site / "llms.txt").is_file() and not (site / "requirements.txt").exists()
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'hreflang="zh"' in home and f"{CONFIG['repo_url']}/blob/main/README.md" in home
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert index["config"]["lang"] == ["en", "zh"]
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"", "flat_reward/", "flat_reward.zh/"} <= places


@pytest.fixture(scope="module")
def address(site):
    """The site on loopback: its search is a worker, which a browser loads from no file."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if BROWSER is None:
        pytest.skip("no Chromium on the PATH: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, address):
    """``visit(page, …)`` opens a page, and fails the test on an error or a request elsewhere."""
    contexts, troubles = [], []

    def watched(response):
        if response.status >= 400 or not response.url.startswith((address, "data:")):
            troubles.append(f"{response.status} {response.url}")

    def go(page, **options):
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        contexts.append(context)
        opened = context.new_page()
        opened.on("response", watched)
        opened.on("requestfailed", lambda request: troubles.append(request.url))
        opened.on("pageerror", lambda error: troubles.append(str(error)))
        opened.goto(address + page)
        opened.wait_for_load_state("networkidle")
        return opened

    yield go
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("page", ["", "flat_reward/", "flat_reward.zh/", "recipes/"])
def test_axe_finds_nothing(visit, page, viewport, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
    )
    opened = visit(page, viewport=viewport, color_scheme=scheme)
    found = axe.Axe().run(opened).response["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found] == []
    width = opened.evaluate("document.documentElement.scrollWidth")
    assert width == viewport["width"], "the page is wider than its window"


@pytest.mark.slow
@pytest.mark.parametrize(("words", "found"), [("preflight", "preflight/"), ("奖励", ".zh/")])
def test_search_finds_pages_of_both_languages(visit, words, found):
    opened = visit("")
    field = opened.locator(".md-search__input")
    field.click()
    opened.locator(".md-search-result__meta", has_text="Type to start searching").wait_for()
    field.fill(words)
    field.press("Shift")  # the theme listens for keys
    first = opened.locator(".md-search-result__link").first
    first.wait_for()
    assert found in first.get_attribute("href")


@pytest.mark.slow
def test_the_header_leads_to_the_twin(visit):
    opened = visit("flat_reward/")
    opened.locator(".md-select button").click()
    opened.locator("a[hreflang=zh]").click()
    opened.wait_for_url("**/flat_reward.zh/")
    assert opened.locator("html").get_attribute("lang") == "zh"
    assert opened.locator("h1").inner_text().startswith("奖励")
