"""Draw README's chart, docs/images/before_after.svg: python tools/chart.py.

A dot is the greedy accuracy on held-out rows, a bar its 95 % interval (Wilson). The counts are
those of docs/results.md.
"""

from pathlib import Path
from statistics import NormalDist

RUNS = {  # title: held-out rows, and right answers before and after GRPO for each seed, from 1 on
    "Sums: make demo": (400, [(77, 186), (97, 202), (119, 223)]),
    "Calculator agent: make agent": (400, [(13, 398), (0, 366), (184, 399)]),
    "Countdown, two numbers": (200, [(82, 156), (31, 164), (143, 148)]),
}
KEY = {"before": "after the cold start (SFT)", "after": "after GRPO; bars: 95 % intervals"}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333 } .soft { fill: #667 } path { stroke: #ccd }
line { stroke: currentColor; stroke-width: 3 } circle { fill: currentColor }
.before { color: #8a8f98 } .after { color: #1f6fd0 }
@media (prefers-color-scheme: dark) {
  text { fill: #dde } .soft { fill: #99a } path { stroke: #445 } .after { color: #6ab7f5 } }
"""


def place(share: float) -> float:
    """Return the horizontal place of a share, in pixels."""
    return 232 + 458 * share


def mark(kind: str, right: int, rows: int, y: int) -> str:
    """Return a dot with its interval."""
    z = NormalDist().inv_cdf(0.975)
    share, spread = right / rows, z * z / rows
    half = z * (share * (1 - share) / rows + spread / rows / 4) ** 0.5
    low, high = (place((share + spread / 2 + side) / (1 + spread)) for side in (-half, half))
    dot = f'<circle cx="{place(share):.1f}" cy="{y}" r="5"/>'
    return f'<g class="{kind}"><line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>{dot}</g>'


def chart() -> str:
    """Return the SVG."""
    marks, grid, key, y = "", "", "", 28
    for title, (rows, seeds) in RUNS.items():
        marks += f'<text y="{y + 16}">{title}</text>'
        marks += f'<text class="soft" y="{y + 33}">{rows} held-out rows, seeds 1 to 3</text>'
        for before, after in seeds:
            marks += mark("before", before, rows, y) + mark("after", after, rows, y)
            y += 20
        y += 22
    for quarter in range(5):
        x = place(quarter / 4)
        grid += f'<path d="M{x} 14V{y - 26}"/>'
        grid += (
            f'<text class="soft" x="{x}" y="{y - 8}" text-anchor="middle">{25 * quarter} %</text>'
        )
    for x, (kind, text) in zip((237, 442), KEY.items(), strict=True):
        key += f'<g class="{kind}"><circle cx="{x}" cy="{y + 12}" r="5"/></g>'
        key += f'<text x="{x + 12}" y="{y + 16}">{text}</text>'
    size = f'viewBox="0 0 720 {y + 28}" role="img"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{grid}{marks}{key}'
        "</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).parents[1].joinpath("docs/images/before_after.svg").write_text(chart())
