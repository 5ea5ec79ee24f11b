"""What the documentation site does beyond MkDocs. `mkdocs.yml` names this file under `hooks`.

The pages are written for GitHub: a link out of docs/ leads to the repository here, and a block of
code that names a file has the name above it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(\]\()([^)\s#]+)")
CODE = re.compile(r"(^[ ]*```.*?^[ ]*```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
NAMED_BLOCK = re.compile(r"^(```\w+) (\S+)$", re.MULTILINE)


def address(target: str, page: str, docs: Path, repository: str) -> str:
    """Return where a link of a page leads: to the repository, unless to a file of docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    folder = (docs.parent / path).is_dir()
    if re.match(r"/|[a-z]+:", target) or (path.startswith("docs/") and not folder):
        return target
    return f"{repository}/{'tree' if folder else 'blob'}/main/{path}"


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links out of docs/ to the repository, and title blocks of code."""
    name, docs, repository = page.file.src_uri, Path(config.docs_dir), config.repo_url.rstrip("/")
    parts = CODE.split(markdown)  # odd ones are code
    for place in range(0, len(parts), 2):
        parts[place] = LINK.sub(
            lambda link: link[1] + address(link[2], name, docs, repository), parts[place]
        )
    return NAMED_BLOCK.sub(r'\1 title="\2"', "".join(parts))
