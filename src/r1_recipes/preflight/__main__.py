"""Is this recipe worth its GPU hours? What a run would do, and why its reward would stay 0, in a minute and before it starts.

``python -m r1_recipes.preflight recipes/NAME.yaml [--method grpo|sft] [--no-model] [--groups N] [--brief | --json] [--key value …]``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common import console, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.preflight import batch, contract, data, signal, surroundings
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Finding, Report, clip
from r1_recipes.preflight.shape import model_shape

if TYPE_CHECKING:
    from datasets import Dataset

    from r1_recipes.prompts.formats import ResponseFormat
    from r1_recipes.recipe.load import Recipe

logger = logging.getLogger("r1_recipes.preflight")  # under `python -m` this module is called __main__

_SECTIONS = {"recipe": "1 Recipe", "data": "2 Data", "contract": "3 Contract", "signal": "4 Signal", "fit": "5 Fit"}
_MARKS = {OK: "ok", WARNING: "warning", ERROR: "ERROR"}
# What data and models may hold and a terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; see the module's first lines.

    Raises:
        SystemExit: 1 if a run would fail or learn nothing, 2 if the command itself is wrong.
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
                raise RecipeError(f"--{name.replace('_', '-')}: must be over 0, got {value}")
        report = examine(
            [options.recipe, *overrides],
            method=options.method,
            use_model=not options.no_model,
            with_models=options.with_models,
            groups=options.groups,
            seconds=options.seconds,
            processes=options.num_processes,
        )
        console.say(as_json(report) if options.json else as_text(report, brief=options.brief))
    if report.at(ERROR):
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
        processes: that training will have; ``None``: as the launcher's environment says, else one.

    Returns:
        Findings and facts. A mistake in the recipe is a finding, not an exception.
    """
    report = Report()
    method = method or surroundings.guess_method(argv)
    launched = batch.parallelism()
    launched = dataclasses.replace(launched, processes=processes or launched.processes)
    with surroundings.one_process():
        recipe = surroundings.read_recipe(report, argv, method, launched.processes)
        if recipe is None:
            return report
        console.set_up_logging(recipe)
        surroundings.check_surroundings(report, recipe)
        tokenizer, fmt = contract.read_tokenizer(report, recipe)
        shape = None
        with report.refusals("fit.model"):
            shape = model_shape(report, recipe)
        logger.info("reading the data of %s", recipe.path)
        rows = data.load(report, recipe, fmt, tokenizer)
        longest = None
        if rows is not None:
            window = data.window(recipe, shape.window if shape else None)
            longest = _check_rows(report, recipe, fmt, rows, tokenizer, window, with_models=with_models)
        if recipe.method == "grpo":
            batch.check_batch(report, recipe, launched.processes)
        if shape is not None and longest is not None:
            batch.check_memory(report, recipe, shape, longest, launched)
        surroundings.check_versions(report, recipe)
        if use_model and recipe.method == "grpo" and longest is not None:
            logger.info("sampling %d groups of %d from %s", groups, recipe.training.num_generations, recipe.model.model_name_or_path)
            signal.check(report, recipe, fmt, rows, tokenizer, groups=groups, seconds=seconds, with_models=with_models)
    return report


def _check_rows(
    report: Report, recipe: Recipe, fmt: ResponseFormat, rows: Dataset, tokenizer: Any, window: int | None, *, with_models: bool
) -> int | None:
    """Data and contract; returns the tokens of the longest prompt (GRPO) or example (SFT), ``None`` if none can be rendered."""
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
    levels = {level: len(report.at(level)) for level in (ERROR, WARNING, OK)}
    entry = {
        "verdict": next((level for level, count in levels.items() if count), OK),
        "counts": levels,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        **report.facts,
    }
    return json.dumps(entry, indent=1, ensure_ascii=False, default=str)


def as_text(report: Report, *, brief: bool = False) -> str:
    """The same for people.

    Args:
        brief: without tables, prompts and completions, and of what is in order only the signal in words.
    """
    lines: list[str] = []
    for section, title in _SECTIONS.items():
        findings = [finding for finding in report.findings if finding.code.startswith(f"{section}.")]
        if brief:
            lines += _brief(title, findings)
            continue
        shown = [*_FACTS[section](report.facts), *(f"{_MARKS[f.level]:<8}{f.code}: {f.message}" for f in findings)]
        if shown:
            lines += [title, *shown, ""]
    return _CONTROL.sub("\ufffd", "\n".join([*lines, _verdict(report)]))


def _brief(title: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    worst = next(level for level in (ERROR, WARNING, OK) if any(finding.level == level for finding in findings))
    told = [finding for finding in findings if finding.level != OK or finding.code.startswith("signal.")]
    head = f"{title:<11}{_MARKS[worst]:<8}{len(findings)} check{'s' * (len(findings) > 1)}"
    return [head, *(f"  {_MARKS[finding.level]:<8}{finding.message}" for finding in told)]


def _verdict(report: Report) -> str:
    errors, doubts = report.at(ERROR), report.at(WARNING)
    counts = f"{len(errors)} error{'s' * (len(errors) != 1)}, {len(doubts)} warning{'s' * (len(doubts) != 1)}"
    if errors:
        return f"Do not start this run: {counts}. First: {errors[0].message}"
    return f"Ready, with doubts: {counts}." if doubts else "Ready: nothing was found that would stop this run from learning."


def _recipe_facts(facts: dict[str, Any]) -> list[str]:
    changed = facts["recipe"]["changed_defaults"] if "recipe" in facts else []
    return [f"  {entry['key']}: {clip(str(entry['value']), 200)[1:-1]} (default {entry['default']})" for entry in changed]


def _data_facts(facts: dict[str, Any]) -> list[str]:
    dropped = facts.get("data", {}).get("dropped", [])
    lines = [f"  {entry['count']} rows dropped: {entry['reason']} (first: row {entry['first_index']})" for entry in dropped]
    for number, prompt in enumerate(facts.get("prompts", ()), start=1):
        lines += [f"Prompt {number}, as the model sees it:", _indented(prompt)]
    return lines


def _contract_facts(facts: dict[str, Any]) -> list[str]:
    if "contract" not in facts:
        return []
    example = ["A right answer, as the model would write it:", _indented(facts["contract_example"])]
    return [*example, "Mean reward of written completions:", _table(facts["contract"])]


def _signal_facts(facts: dict[str, Any]) -> list[str]:
    if "signal" not in facts:
        return []
    found = facts["signal"]
    lines = [f"{found['completions']} completions in {found['groups']} groups:", _table(found["rewards"])]
    for number, example in enumerate(found["examples"], start=1):
        scores = ", ".join(f"{name} {'not judged' if value is None else f'{value:.3g}'}" for name, value in example["scores"].items())
        end = "cut at the limit" if example["finish_reason"] == "length" else "ended by itself"
        head = f"Completion {number}: {scores}; {example['tokens']} tokens, {end}; gold {example['solution']!r}, read as "
        lines += [f"{head}{example['answer']!r}; asked {clip(example['question'])}", _indented(example["completion"])]
    return lines


def _fit_facts(facts: dict[str, Any]) -> list[str]:
    return [f"{facts['model']['parameters']:,} parameters, {facts['model']['trainable']:,} of them trained"] if "model" in facts else []


_FACTS = {"recipe": _recipe_facts, "data": _data_facts, "contract": _contract_facts, "signal": _signal_facts, "fit": _fit_facts}


def _table(rows: dict[str, dict[str, Any]]) -> str:
    from pandas import DataFrame

    return DataFrame.from_dict(rows, orient="index").to_string(float_format="{:.3g}".format, na_rep="")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


if __name__ == "__main__":
    main()
