"""README's pictures of the report page, made anew from runs: docs/images/page.png, turns.png,
curve.png.

Run:  python benchmarks/screenshots.py outputs/agent/grpo --demo outputs/demo/grpo [--output
docs/images]

Needs Chromium or Chrome: the first of chromium, chromium-browser, google-chrome that is found, or
the environment variable CHROMIUM.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from r1_recipes.common.console import say
from r1_recipes.extras.report.page import build

MAX_BYTES = 150_000
# What of the page is in a picture, and how large that is.
PICTURES = {
    "page": (".switches", (1200, 1080)),
    "turns": ("header, main > :not(#completions), #filters, #completions .note", (1200, 640)),
    "curve": (
        "header, main > :not(#curves), #curves .tools, #curves .note, #charts > :nth-child(n + 3)",
        (800, 400),
    ),
}
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars "
    "--lang=en --virtual-time-budget=10000"
)


def main() -> None:
    """Take the pictures; each must stay below MAX_BYTES."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="output_dir of a run with tools")
    parser.add_argument(
        "--demo", type=Path, help="output_dir of the run whose curve is shown (default: the same)"
    )
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    found = (
        shutil.which(name)
        for name in (
            os.environ.get("CHROMIUM", ""),
            "chromium",
            "chromium-browser",
            "google-chrome",
        )
    )
    browser = next(filter(None, found), None) or parser.error(
        "no chromium or google-chrome found. Fix: CHROMIUM=/path/to/it"
    )
    options.output.mkdir(parents=True, exist_ok=True)
    for name, (hidden, (width, height)) in PICTURES.items():
        page = build([options.demo or options.run if name == "curve" else options.run])
        picture = options.output.resolve() / f"{name}.png"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            path.write_text(
                page.replace(
                    "</head>", f"<style>{hidden} {{ display: none !important; }}</style></head>", 1
                ),
                encoding="utf-8",
            )
            places = [
                f"--user-data-dir={folder}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                path.as_uri(),
            ]
            subprocess.run(
                [browser, *OPTIONS.split(), *places], check=True, capture_output=True, timeout=120
            )
        say(f"{picture}: {width} x {height}, {picture.stat().st_size:,} bytes")
        if picture.stat().st_size > MAX_BYTES:
            parser.error(
                f"{picture.name} must be at most {MAX_BYTES:,} bytes. Fix: a smaller size in "
                f"PICTURES"
            )


if __name__ == "__main__":
    main()
