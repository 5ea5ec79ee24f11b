"""Is this recipe worth its GPU hours? What a run would do, and why its reward would stay 0, in a minute and before it starts.

``python -m r1_recipes.preflight recipes/NAME.yaml [--method grpo|sft] [--no-model] [--groups N] [--brief | --json] [--key value …]``
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import logging
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common import console, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.preflight_checks import contract, data, fit, resolve, signal
from r1_recipes.preflight_checks.findings import ERROR, OK, WARNING, Finding, Report, clip

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.console import Console

    from r1_recipes.prompts.formats import ResponseFormat
    from r1_recipes.recipe.load import Recipe

logger = logging.getLogger("r1_recipes.preflight")  # under `python -m` this module is called __main__

_SECTIONS = {
    "recipe": "1 Recipe",
    "data": "2 Data",
    "contract": "3 Contract",
    "signal": "4 Signal",
    "fit": "5 Fit",
}
_MARKS = {OK: ("ok", "green"), WARNING: ("warning", "yellow"), ERROR: ("ERROR", "bold red")}
_PIPED_WIDTH = 140


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; see the module's first lines.

    Raises:
        SystemExit: 1 where a run would fail or learn nothing, 2 where the command itself is wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m r1_recipes.preflight", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("recipe", help="a GRPO or SFT recipe; any key of it can follow as --key value")
    parser.add_argument("--method", choices=("grpo", "sft"), help="default: grpo where the recipe has reward_funcs")
    parser.add_argument("--no-model", action="store_true", help="do not sample from the model")
    parser.add_argument("--with-models", action="store_true", help="let reward_model (a classifier, or a judge behind a server) score too")
    parser.add_argument("--groups", type=int, default=4, help="groups to sample (default 4)")
    parser.add_argument("--seconds", type=float, default=300, help="time for sampling (default 300)")
    parser.add_argument("--num-processes", type=int, help="processes that training will have (default: WORLD_SIZE, else 1)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--brief", action="store_true", help="the verdicts alone: a line a check, and what is wrong or was sampled")
    form.add_argument("--json", action="store_true", help="everything as one JSON object on stdout")
    options, overrides = parser.parse_known_args(argv)
    if not processes.is_main_process():
        return
    with console.reported_errors():
        for name in ("groups", "seconds", "num_processes"):
            if (value := getattr(options, name)) is not None and value <= 0:
                raise RecipeError(f"--{name.replace('_', '-')}: found {value}; over 0")
        report = examine(
            [options.recipe, *overrides],
            method=options.method or resolve.guess_method([options.recipe, *overrides]),
            use_model=not options.no_model,
            with_models=options.with_models,
            groups=options.groups,
            seconds=options.seconds,
            processes=options.num_processes,
        )
        console.say(as_json(report) if options.json else as_text(report, brief=options.brief))
    if report.count(ERROR):
        raise SystemExit(1)


def examine(
    argv: Sequence[str],
    *,
    method: str | None = None,
    use_model: bool = True,
    with_models: bool = False,
    groups: int = 4,
    seconds: float = 300,
    processes: int | None = None,
) -> Report:
    """Check a recipe; nothing is written but what libraries cache.

    Args:
        argv: the recipe's path, and overrides as ``--key value``.
        method: ``"grpo"`` or ``"sft"``; ``None``: by the recipe's keys.
        use_model: sample from the model, and judge what it says (GRPO).
        with_models: have rewards judge too that need a model or a server of their own.
        groups: how many groups to sample.
        seconds: limit of the sampling.
        processes: that training will have; ``None``: as the launcher's environment says, else one.

    Returns:
        Findings and facts. A mistake in the recipe is a finding, not an exception.
    """
    report = Report()
    spread = fit.parallelism()
    with resolve.one_process() as announced:
        processes = processes or announced
        recipe = resolve.read_recipe(report, argv, method or resolve.guess_method(argv))
        if recipe is None:
            return report
        console.set_up_logging(recipe)
        resolve.check_surroundings(report, recipe)
        loaded = contract.load_tokenizer(report, recipe)
        tokenizer, fmt = loaded or (None, data.plain_format(recipe))
        if tokenizer is not None:
            contract.check_template(report, recipe, tokenizer, fmt)
        shape = None
        with report.refusals("fit.model"):
            shape = fit.model_shape(report, recipe)
        logger.info("reading the data of %s", recipe.path)
        rows = data.load(report, recipe, fmt, tokenizer)
        longest = None
        if rows is not None:
            longest = _check_rows(report, recipe, fmt, rows, tokenizer, fit.window(recipe, shape), with_models=with_models)
        if recipe.method == "grpo":
            fit.check_batch(report, recipe, processes)
        if shape is not None and longest is not None:
            fit.check_memory(report, recipe, shape, longest, dataclasses.replace(spread, processes=processes))
        fit.check_versions(report, recipe)
        if use_model and recipe.method == "grpo" and longest is not None:
            logger.info("sampling %d groups of %d from %s", groups, recipe.training.num_generations, recipe.model.model_name_or_path)
            signal.check(report, recipe, fmt, rows, tokenizer, groups=groups, seconds=seconds, with_models=with_models)
    return report


def _check_rows(
    report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset, tokenizer: Any, window: int | None, *, with_models: bool
) -> int | None:
    """Data and contract; returns the tokens of the longest prompt (GRPO) or example (SFT), ``None`` where none can be rendered."""
    contract.check_prompt(report, recipe, fmt, rows)
    if recipe.method == "grpo":
        with report.refusals("data.tasks"):
            data.check_golds(report, recipe, rows)
    if tokenizer is None:
        return None
    longest = data.check_prompts(report, recipe, rows, tokenizer, window)
    if recipe.method == "sft":
        contract.check_targets(report, recipe, rows, tokenizer)
        return data.check_example_lengths(report, recipe, rows, tokenizer)
    contract.check_rewards(report, recipe, fmt, rows, tokenizer, with_models=with_models)
    return longest


def as_json(report: Report) -> str:
    """Everything: ``verdict`` (the worst level), counts, ``findings`` and the facts behind them."""
    levels = {level: report.count(level) for level in (ERROR, WARNING, OK)}
    entry = {
        "verdict": next((level for level, count in levels.items() if count), OK),
        "counts": levels,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        **report.facts,
    }
    return json.dumps(entry, indent=1, ensure_ascii=False, default=str)


def as_text(report: Report, *, brief: bool = False) -> str:
    """The same for people: tables in a terminal, plain text where it is piped.

    Args:
        brief: without tables, prompts and completions, and of what is in order only the signal in words.
    """
    from rich.console import Console
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=None if terminal else _PIPED_WIDTH, highlight=False, soft_wrap=False
    )
    for section, title in _SECTIONS.items():
        findings = [finding for finding in report.findings if finding.section == section]
        if brief:
            _print_brief(console, title, findings)
            continue
        extras = _EXTRAS[section](report.facts)
        if findings or extras:
            console.print(_plain(title, "bold underline"))
            for extra in extras:
                # Lines of prompts and completions stay whole; a terminal wraps them itself.
                console.print(extra, soft_wrap=isinstance(extra, Text))
            for finding in findings:
                _print_finding(console, finding)
            console.print()
    _print_verdict(console, report)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).rstrip()


def _print_finding(console: Console, finding: Finding) -> None:
    from rich.text import Text

    mark, style = _MARKS[finding.level]
    console.print(Text.assemble((f"{mark:<8}", style), (f"{finding.code}: ", "dim"), _plain(finding.message)), soft_wrap=True)


def _print_brief(console: Console, title: str, findings: Sequence[Finding]) -> None:
    from rich.text import Text

    if not findings:
        return
    worst = next(level for level in (ERROR, WARNING, OK) if any(finding.level == level for finding in findings))
    mark, style = _MARKS[worst]
    count = f"{len(findings)} check{'s' * (len(findings) > 1)}"
    console.print(Text.assemble((f"{title:<11}", "bold"), (f"{mark:<8}", style), (count, "dim")))
    for finding in findings:
        if finding.level != OK or finding.section == "signal":
            mark, style = _MARKS[finding.level]
            console.print(Text.assemble(("  " + f"{mark:<8}", style), _plain(finding.message)), soft_wrap=True)


def _print_verdict(console: Console, report: Report) -> None:
    errors, doubts = report.count(ERROR), report.count(WARNING)
    counts = f"{errors} error{'s' * (errors != 1)}, {doubts} warning{'s' * (doubts != 1)}"
    if errors:
        first = next(finding for finding in report.findings if finding.level == ERROR)
        verdict = _plain(f"Do not start this run: {counts}. First: {first.message}", "bold red")
    elif doubts:
        verdict = _plain(f"Ready, with doubts: {counts}.", "yellow")
    else:
        verdict = _plain("Ready: nothing was found that would stop this run from learning.", "green")
    console.print(verdict, soft_wrap=True)


def _table(*columns: str, title: str | None = None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(*columns, title=title, box=box.SIMPLE_HEAD, title_justify="left", show_edge=False, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    return table


def _recipe_extras(facts: dict[str, Any]) -> list[Any]:
    if "recipe" not in facts:
        return []
    changed = facts["recipe"]["changed_defaults"]
    table = _table("key", "default", "this recipe", title=f"{len(changed)} keys differ from their defaults")
    for entry in changed:
        # Transformers reads step counts as floats.
        table.add_row(*(_plain(f"{value:g}" if isinstance(value, float) else str(value)) for value in entry.values()))
    return [table]


def _data_extras(facts: dict[str, Any]) -> list[Any]:
    extras: list[Any] = []
    if facts.get("data", {}).get("dropped"):
        table = _table("rows dropped", "why", "first row")
        for entry in facts["data"]["dropped"]:
            table.add_row(str(entry["count"]), _plain(entry["reason"]), str(entry["first_index"]))
        extras.append(table)
    if "prompt_tokens" in facts:
        tokens = facts["prompt_tokens"]
        table = _table(*tokens, title="Prompt lengths, tokens")
        table.add_row(*map(str, tokens.values()))
        extras.append(table)
    for number, prompt in enumerate(facts.get("prompts", ()), start=1):
        extras += [_plain(f"Prompt {number}, as the model sees it:", "bold"), _indented(prompt)]
    return extras


def _contract_extras(facts: dict[str, Any]) -> list[Any]:
    if "contract" not in facts:
        return []
    table = _table("reward", "right answer", "wrong answer", "no shape", title="Mean reward of written completions")
    for name, values in facts["contract"].items():
        table.add_row(_plain(name), *(_number(value) for value in values.values()))
    return [_plain("A right answer, as the model would write it:", "bold"), _indented(facts["contract_example"]), table]


def _signal_extras(facts: dict[str, Any]) -> list[Any]:
    if "signal" not in facts:
        return []
    signal_facts = facts["signal"]
    size = f"{signal_facts['completions']} completions in {signal_facts['groups']} groups"
    table = _table("reward", "mean", "std", "groups with spread", "all 0", "all 1", title=size)
    for name, values in signal_facts["rewards"].items():
        shares = (values[key] for key in ("groups_with_spread", "groups_all_zero", "groups_all_one"))
        table.add_row(_plain(name), _number(values["mean"]), _number(values["std"]), *("" if s is None else f"{s:.0%}" for s in shares))
    extras: list[Any] = [table]
    for number, example in enumerate(signal_facts["examples"], start=1):
        scores = ", ".join(f"{name} {_number(value) or 'not judged'}" for name, value in example["scores"].items())
        end = "cut at the limit" if example["finish_reason"] == "length" else "ended by itself"
        head = f"Completion {number}: {scores}; {example['tokens']} tokens, {end}; gold {example['solution']!r}, read as "
        extras += [_plain(f"{head}{example['answer']!r}; asked {clip(example['question'])}", "bold"), _indented(example["completion"])]
    return extras


def _fit_extras(facts: dict[str, Any]) -> list[Any]:
    if "model" not in facts:
        return []
    return [_plain(f"{facts['model']['parameters']:,} parameters, {facts['model']['trainable']:,} of them trained")]


_EXTRAS = {"recipe": _recipe_extras, "data": _data_extras, "contract": _contract_extras, "signal": _signal_extras, "fit": _fit_extras}


def _plain(text: str, style: str = "") -> Any:
    """Text as it is: brackets of data and models are no markup, and control characters do not reach the terminal."""
    from rich.text import Text

    return Text("".join("\ufffd" if unicodedata.category(char) == "Cc" and char not in "\n\t" else char for char in text), style=style)


def _indented(text: str) -> Any:
    return _plain("\n".join(f"    {line}" for line in text.split("\n")))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
