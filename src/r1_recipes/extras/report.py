"""Write one HTML page about a run, or about several to compare them.

The page has no script and loads nothing. All that comes from a run is escaped, so a completion
cannot become a part of the page. A missing or torn file counts as empty, and the page says so.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from r1_recipes.common.console import reported_errors, say
from r1_recipes.common.errors import RecipeError, first_line
from r1_recipes.common.files import write_whole
from r1_recipes.common.messages import conversation_text
from r1_recipes.rewards import ANSWERS

REPORT_FILE = "report.html"
# Titles of metrics, in the order of the page, and of a completion's columns. Rewards by name and
# held-out metrics follow "reward".
TITLES = {
    "reward": "Reward: weighted sum",
    "accuracy": "Pairs that are ranked right",
    "mean_token_accuracy": "Tokens that the model ranks first",
    "frac_reward_zero_std": "Groups without spread: they teach nothing",
    "completions/clipped_ratio": "Completions cut at the length limit",
    "completions/mean_length": "Completion length in tokens",
    "tools/call_frequency": "Tool calls per completion",
    "tools/failure_frequency": "Tool calls that failed",
    "entropy": "Entropy: near 0 the model explores nothing",
    "kl": "KL: distance from the reference model",
    "loss": "Loss",
    "grad_norm": "Gradient norm",
    "step_time": "Seconds per step",
    "prompt": "Prompt",
    "solution": "Reference answer",
    "answer_parsed": "Answer as it was read",
    "refused": "Why the answer scored 0",
}
STYLE = """
:root { color-scheme: light dark; --soft: light-dark(#59626e, #a5aeba);
  --line: light-dark(#d3d8de, #3d444d); --box: light-dark(#f3f5f7, #1f242a) }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: auto; padding: 1rem;
  color: light-dark(#191d22, #e8ebef); background: light-dark(#fff, #15181c) }
h1, p, pre, td, th { overflow-wrap: anywhere } p { max-width: 50rem; margin: .4rem 0 }
h2 { margin: 2rem 0 .5rem } nav a { color: inherit; margin-right: 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } .scroll { overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .25rem 1.2rem .25rem 0; min-width: 6rem }
tr, details { border-bottom: 1px solid var(--line) } summary { padding: .35rem 0; cursor: pointer }
.flag { border-left: 4px solid #d95f02 } .flag, pre { padding: .5rem .8rem; background: var(--box) }
pre, details p { white-space: pre-wrap; margin: .3rem 0 } pre, .curves { font-size: .85rem }
.curves { display: grid; gap: 1.2rem 1.6rem; margin-bottom: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)) }
figure { margin: 0; break-inside: avoid } small, text { color: var(--soft); fill: var(--soft) }
i { display: inline-block; width: 2rem; border-top: 3px solid; vertical-align: middle }
svg { width: 100%; display: block; fill: none; stroke-width: 2; stroke-linecap: round }
text { font-size: 11px } path { stroke: var(--line) } polyline { stroke: currentColor }
.c0 { color: light-dark(#1f6fd0, #6ab7f5) } .c1 { color: light-dark(#c04a00, #ff9e5e) }
.c2 { color: light-dark(#111, #fff) } .c3 { color: light-dark(#8a8f98, #8d96a3) }
@media print { :root { color-scheme: light } nav { display: none } }
"""
Row = dict[str, Any]


@dataclass
class Run:
    """What a run wrote, as far as it can be read."""

    folder: Path
    label: str = ""  # its folder, if the page has several runs
    settings: Row = field(default_factory=dict)
    series: dict[str, dict[int, float]] = field(default_factory=dict)  # metric -> step -> value
    steps: dict[int, list[Row]] = field(default_factory=dict)  # the completions of two steps
    faults: list[str] = field(default_factory=list)  # about missing and torn files

    def read(self, name: str, parse: Callable[[Path], Any], default: Any) -> Any:
        """Return what ``parse`` makes of a file. Without one, note the fault."""
        try:
            return parse(self.folder / name)
        except FileNotFoundError:
            self.faults.append(f"{name} is missing.")
        except Exception as error:  # a torn file may fail in any way
            self.faults.append(f"{name} cannot be read: {first_line(error)}")
        return default

    def change(self, key: str) -> tuple[float, float, float]:
        """Return the means of a metric's first and last quarter, and the noise of their difference.

        The noise is two standard errors. A trend is slow, so neighbours differ by noise alone.
        """
        values = [*self.series.get(key, {}).values()] or [0.0]
        count = max(1, min(len(values) // 4, 20))
        squares = [(b - a) ** 2 for a, b in pairwise(values)] or [0.0]  # twice the variance
        return fmean(values[:count]), fmean(values[-count:]), 2 * (fmean(squares) / count) ** 0.5

    def in_words(self, key: str) -> str:
        """Return how a metric changed."""
        before, after, noise = self.change(key)
        word = "rose" if after > before else "fell"
        word = "no clear change" if abs(after - before) <= noise else word
        return f"{before:.3g} → {after:.3g}, {word}"


def read_run(folder: Path, label: str = "") -> Run:
    """Read a run's folder. Raise RecipeError if there is none."""
    from pyarrow import parquet  # heavy

    if not folder.is_dir():
        raise RecipeError(f"{folder}: no such run directory. Fix: name the output_dir of a run")
    run = Run(folder, label)
    run.settings = run.read("recipe.yaml", lambda path: dict(yaml.safe_load(path.read_bytes())), {})
    record = run.read("run.json", lambda path: dict(json.loads(path.read_bytes())), {})
    if not record.get("finished"):
        run.faults.append("The run has not finished.")
    _read_metrics(run)
    files = [f"completions/{path.name}" for path in sorted(folder.glob("completions/*.parquet"))]
    for file in files[:1] + files[1:][-1:]:  # only two, because each save reads them
        if rows := run.read(file, lambda path: parquet.read_table(path).to_pylist(), []):
            run.steps[rows[0]["step"]] = rows
    return run


def _read_metrics(run: Run) -> None:
    for line in run.read("metrics.jsonl", lambda path: path.read_bytes().splitlines(), ()):
        try:
            entry = json.loads(line)
            step = int(entry.pop("step"))
        except Exception:  # the last line of a run that was killed
            run.faults.append(f"metrics.jsonl: a line cannot be read: {line[:80]!r}")
            continue
        for key, value in entry.items():
            if abs(value) < 1e100:  # NaN is not, and sums of larger numbers overflow
                run.series.setdefault(key, {})[step] = value  # a resumed run repeats some steps


def flags(run: Run) -> list[str]:
    """Return what to look at first, each with what to do about it."""
    found = []
    if (cut := run.change("completions/clipped_ratio")[1]) > 0.2:
        found.append(f"{cut:.0%} of the latest completions were cut. Raise max_completion_length.")
    if (flat := run.change("frac_reward_zero_std")[1]) >= 0.5:
        found.append(
            f"{flat:.0%} of the latest groups had no spread and taught nothing. If the reward is"
            " not near its maximum, use rows that the model solves sometimes."
        )
    if len(run.series.get("reward", ())) < 8:  # too few steps for a trend, or not RL
        return found
    before, after, _ = run.change("entropy")
    if after < before / 4:
        found.append(
            f"Entropy fell from {before:.3g} to {after:.3g}: the model hardly explores any more."
            " Lower learning_rate, or set epsilon_high: 0.28."
        )
    before, after, noise = run.change("reward")
    judge = next((name for name in sorted(ANSWERS) if f"rewards/{name}/mean" in run.series), None)
    wrong, right, _ = run.change(f"rewards/{judge}/mean")
    if judge and after - before > max(0.02, noise) and right - wrong < 0.02:
        found.append(
            f"The reward rose from {before:.3g} to {after:.3g}, but {judge} did not: {wrong:.3g} to"
            f" {right:.3g}. Read the completions with the highest advantage, and lower the weight"
            " of the reward that they score on (reward_weights)."
        )
    return found


def table(columns: dict[str, Row]) -> str:
    """Return an HTML table: for each column its cells by the row's name. All is escaped."""
    lines = ["".join(f"<th>{escape(name)}</th>" for name in ("", *columns))]
    for row in dict.fromkeys(name for cells in columns.values() for name in cells):
        shown = (f"<td>{escape(str(cells.get(row, '–')))}</td>" for cells in columns.values())
        lines.append(f"<th>{escape(row)}</th>{''.join(shown)}")
    return f'<div class="scroll"><table><tr>{"<tr>".join(lines)}</table></div>'


def glance(runs: Sequence[Run], keys: Sequence[str]) -> str:
    """Return whether the runs learned, and why answers scored 0."""
    changes, reasons = {}, {}
    for run in runs:
        changes[str(run.folder)] = {
            TITLES.get(key, key): run.in_words(key) for key in keys if key in run.series
        }
        counts = [Counter(row.get("refused") or "" for row in rows) for rows in run.steps.values()]
        reasons[str(run.folder)] = {
            reason: " → ".join(f"{count[reason]} of {count.total()}" for count in counts)
            for reason, _ in sum(counts, Counter()).most_common()
            if reason
        }
    html = (
        f"{table(changes)}<p><small>Means of the first → the last quarter of the logged steps, at "
        "most 20 each. No clear change: within the noise.</small></p>"
    )
    if any(reasons.values()):
        html += f"<h3>Why answers scored 0: first → last step</h3>{table(reasons)}"
    return html


def evaluation(runs: Sequence[Run]) -> str:
    """Return what ``evaluate`` wrote in the runs' folders, in folders in them, or beside them."""
    html = ""
    paths: dict[Path, None] = {}
    # The last is where our pipelines write.
    for place in ("*/results.md", "results.md", "../results.md", "../evaluation/results.md"):
        for run in runs:
            paths |= dict.fromkeys(path.resolve() for path in sorted(run.folder.glob(place)))
    for path in paths:
        html += f"<h3>{escape('/'.join(path.parts[-2:]))}</h3>"
        for block in path.read_text(encoding="utf-8", errors="replace").strip().split("\n\n"):
            head, *rows = [line.strip("| ").split(" | ") for line in block.splitlines()]
            if block.startswith("|"):  # models become columns, for narrow screens
                html += table(
                    {row[0]: dict(zip(head[1:], row[1:], strict=False)) for row in rows[1:]}
                )
            else:
                html += f"<p>{escape(block)}</p>"
    return html or (
        "<p>None yet: python -m r1_recipes.evaluate RECIPE --model RUN_DIR "
        "--output RUN_DIR/evaluation</p>"
    )


def chart(key: str, runs: Sequence[Run]) -> str:
    """Return a figure of a metric, with a line for each run that logged it."""
    shown = [(number, run) for number, run in enumerate(runs) if key in run.series]
    steps = [step for _, run in shown for step in run.series[key]]
    values = [value for _, run in shown for value in run.series[key].values()]
    left, right, low, high = min(steps), max(steps), min(values), max(values)
    width, height = right - left or 1, high - low or 1
    title = escape(TITLES.get(key, key))
    lines = legend = ""
    for number, run in shown:
        points = [
            f"{60 + 292 * (step - left) / width:.1f},{110 - 98 * (value - low) / height:.1f}"
            for step, value in run.series[key].items()
        ]
        points = points[:: -max(1, len(points) // 400)]  # a line is 400 pixels long
        # A single point is a dot.
        lines += f'<polyline class="c{number % 4}" points="{" ".join(points)} {points[-1]}"/>'
        legend += f'<div><i class="c{number % 4}"></i> {escape(run.label)}{run.in_words(key)}</div>'
    return (
        f"<figure><figcaption><b>{title}</b>{legend}</figcaption>"
        f'<svg viewBox="0 0 360 130" role="img" aria-label="{title}"><path d="M60 8V112H356"/>'
        f'<g text-anchor="end"><text x="54" y="16">{high:.3g}</text><text x="54" y="112">{low:.3g}'
        f'</text><text x="356" y="127">{right}</text></g><text x="60" y="127">step {left}</text>'
        f"{lines}</svg></figure>"
    )


def completions(run: Run) -> str:
    """Return the completions of the first and the last step, the highest advantage first."""
    html = ""
    for step, rows in run.steps.items():
        html += f"<h3>Step {step}: the best and the worst of {len(rows)} completions</h3>"
        # TRL's distillation logs completions without an advantage.
        best_first = sorted(rows, key=lambda row: -(row.get("advantage") or 0))
        for row in [*best_first[:20], *best_first[20:][-20:]]:
            head, body = f"advantage {row.get('advantage') or 0:+.2f}", ""
            for key, value in row.items():
                if isinstance(value, int | float) and key not in ("step", "advantage"):
                    head += f" · {key} {value:.3g}"
                elif key not in ("completion", "turns") and (text := conversation_text(value)):
                    name = escape(TITLES.get(key, key))
                    body += f"<p><small>{name}:</small> {escape(text)}</p>"
            head = escape(f"{head} · {row['refused']}" if row.get("refused") else head)
            said = escape(
                conversation_text(row.get("turns") or row["completion"])
            )  # turns: an agent's calls
            html += f"<details><summary>{head}</summary>{body}<pre>{said}</pre></details>"
    return html or "<p>None were logged. To log them: log_completions: true</p>"


def recipe(runs: Sequence[Run]) -> str:
    """Return all keys of a run, or those in which several differ."""
    first, *others = (run.settings for run in runs)
    keys = [*dict.fromkeys(key for run in runs for key in run.settings)]
    if others:
        keys = [key for key in keys if any(each.get(key) != first.get(key) for each in others)]
    return table(
        {str(run.folder): {key: run.settings.get(key, "–") for key in keys} for run in runs}
    )


def page(folders: Sequence[Path]) -> str:
    """Return the HTML of the page."""
    several = len(folders) > 1
    runs = [read_run(folder, f"{folder}: " if several else "") for folder in folders]
    logged = dict.fromkeys(key for run in runs for key in run.series)
    named = [key for key in logged if "rewards/" in key and key.endswith("/mean")]
    order = dict.fromkeys(["reward", *named, "eval_reward", "eval_loss", *TITLES])
    known = [key for key in order if key in logged]
    curves = "".join(chart(key, runs) for key in known)
    others = "".join(chart(key, runs) for key in logged if key not in order)
    standing = ""
    for run in runs:
        for said in [*flags(run), *run.faults]:
            standing += f'<p class="flag">{escape(run.label + said)}</p>'
    sections = {
        "What stands out": standing or "<p>Nothing.</p>",
        "Did it learn?": glance(runs, known),
        "Held-out evaluation": evaluation(runs),
        "Curves": f'<div class="curves">{curves}</div><details><summary>Other metrics</summary>'
        f'<div class="curves">{others}</div></details>',
    }
    for run in runs:
        sections[f"{run.label}Completions"] = completions(run)
    sections["Recipe: the keys that differ" if several else "Recipe"] = recipe(runs)
    nav = body = ""
    for number, (heading, html) in enumerate(sections.items()):
        nav += f'<a href="#{number}">{escape(heading)}</a> '
        body += f'<section id="{number}"><h2>{escape(heading)}</h2>{html}</section>\n'
    title = escape(", ".join(map(str, folders)))
    # The policy is a second lock behind escape(): nothing on the page can run or load anything.
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1>{title}</h1><nav>{nav}</nav>
{body}</body></html>
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Exit with 2 if a folder is missing."""
    parser = argparse.ArgumentParser("r1-recipes report", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, nargs="+", help="output_dir of a run")
    parser.add_argument("--output", type=Path, help="default: report.html in the first run_dir")
    with reported_errors():
        options = parser.parse_args(argv)
        output = options.output or options.run_dir[0] / REPORT_FILE
        write_whole(output, page(options.run_dir))
        say(str(output))
