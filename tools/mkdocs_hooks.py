"""What the documentation site does beyond MkDocs: addresses, anchors, Chinese pages, plain texts.

The pages are written for GitHub, where they work too. `mkdocs.yml` names this file under `hooks`.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE = re.compile(r"(^[ ]*```.*?^[ ]*```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
# A page named by its file, as `[report.md](report.md#flags)`.
FILE_NAME = re.compile(r"\[`?([\w./]+\.md)`?\]\(((?:[\w./]+/)?([\w.]+\.md)(?:#[^)]*)?)\)")
OTHER_LANGUAGE = re.compile(r"^\[(?:中文|English)\]\([^)]+\)\n+", re.MULTILINE)
ALTERNATE = re.compile(r'\s*<link rel="alternate"[^>]*>')
SEARCH = 'data-md-component="search" role="dialog"'
NAMED_BLOCK = re.compile(r"^(```\w+) (\S+)$", re.MULTILINE)
_plain: dict[str, str] = {}


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def outside(target: str, page: str, docs: Path) -> str | None:
    """Return the path in the repository of a link's target that is no page or file of docs/.

    Args:
        target: What the link names, relative to the page.
        page: The page, relative to `docs`.
        docs: The folder of the pages.
    """
    path = target.partition("#")[0]
    if not path or path.startswith("/") or re.match(r"[a-z]+:", path):
        return None
    found = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), path))
    if found.startswith("docs/") and not (docs.parent / found).is_dir():
        return None
    return found


def to_repository(text: str, page: str, docs: Path, repository: str) -> str:
    """Return a page's text with links out of docs/ leading to the repository."""

    def address(link: re.Match[str]) -> str:
        path = outside(link[2], page, docs)
        if path is None:
            return link[0]
        kind = "tree" if (docs.parent / path).is_dir() else "blob"
        _, mark, anchor = link[2].partition("#")
        return f"{link[1]}{repository}/{kind}/main/{path}{mark}{anchor}{link[3]}"

    parts = CODE.split(text)  # odd ones are code
    joined = (part if place % 2 else LINK.sub(address, part) for place, part in enumerate(parts))
    return "".join(joined)


def on_config(config: Any) -> Any:
    """Give headings the anchors that they have on GitHub."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def titles(nav: Any) -> dict[str, str]:
    """Return the title that the navigation gives each page, by the page's file."""
    if isinstance(nav, list):
        return {page: title for entry in nav for page, title in titles(entry).items()}
    if not isinstance(nav, dict):
        return {}
    named = {page: title for title, page in nav.items() if isinstance(page, str)}
    lists = (entry for entry in nav.values() if isinstance(entry, list))
    return {page: title for entry in lists for page, title in titles(entry).items()} | named


def by_title(text: str, page: str, named: dict[str, str]) -> str:
    """Return a page's text with pages named by their titles instead of their files."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.join(posixpath.dirname(page), found[2].partition("#")[0])
        title = named.get(posixpath.normpath(target))
        if title is None or posixpath.basename(found[1]) != found[3]:
            return found[0]
        return f"[{title}]({found[2]})"

    return FILE_NAME.sub(link, text)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links out of docs/ to the repository, and write the rest as a site shows it.

    The header switches between languages, so the link at the top of a page goes. A block of code
    has its file's name above it, and links name titles instead of files.
    """
    docs, name = Path(config.docs_dir), page.file.src_uri
    _plain[name] = to_repository(markdown, name, docs, config.repo_url.rstrip("/"))
    if name in ("index.md", "index.zh.md"):
        page.meta["hide"] = ["navigation"]  # the page is the navigation
    text = OTHER_LANGUAGE.sub("", _plain[name], count=1)
    text = NAMED_BLOCK.sub(r'\1 title="\2"', text)
    return by_title(text, name, titles(config.nav))


def twin(page: str) -> str:
    """Return the name of a page in the other language."""
    if page.endswith(".zh.md"):
        return page.removesuffix(".zh.md") + ".md"
    return page.removesuffix(".md") + ".zh.md"


def on_page_context(context: Any, *, page: Any, config: Any, **_: Any) -> Any:
    """Speak the page's language, and offer its twin in the other one."""
    name = page.file.src_uri
    chinese = name.endswith(".zh.md")
    config.theme["language"] = "zh" if chinese else "en"
    files = {file.src_uri: file.url for file in context["pages"]}
    other = files.get(twin(name), files["index.md" if chinese else "index.zh.md"])
    english, translated = (other, page.url) if chinese else (page.url, other)
    config.extra["alternate"] = [
        {"name": "English", "lang": "en", "link": english or "."},
        {"name": "中文", "lang": "zh", "link": translated},
    ]
    return context


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Name the search for screen readers, and remove the alternates.

    The theme's script would look for a sitemap below each alternate, where none is.
    """
    name = "搜索" if page.file.src_uri.endswith(".zh.md") else "Search"
    return ALTERNATE.sub("", output).replace(SEARCH, f'{SEARCH} aria-label="{name}"')


def on_post_build(*, config: Any) -> None:
    """Write each page's Markdown beside its HTML: llms.txt names these files."""
    for name, text in _plain.items():
        path = Path(config.site_dir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
