"""Is this recipe worth its GPU hours? What a run would do, and why its reward would stay 0, in a minute and before it starts.

``python -m r1_recipes.preflight recipes/NAME.yaml [--method grpo|sft] [--no-model] [--groups N] [--brief | --json] [--key value …]``
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import re
from collections.abc import Sequence
from textwrap import indent
from typing import Any

from r1_recipes.common import console, processes
from r1_recipes.preflight import contract, data, memory, prompt, signal, surroundings
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Enough, Finding, Report, clip

logger = logging.getLogger("r1_recipes.preflight")  # under `python -m` this module is called __main__

# What data and models may hold and a terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def main(argv: Sequence[str] | None = None) -> None:
    """Examine the recipe of a command line; exit 1: a run would fail or learn nothing, 2: the command itself is wrong."""
    parser = argparse.ArgumentParser(prog="python -m r1_recipes.preflight", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("recipe", help="a GRPO or SFT recipe; any key of it can follow as --key value")
    parser.add_argument("--method", choices=("grpo", "sft"), help="default: grpo where the recipe has reward_funcs")
    parser.add_argument("--no-model", action="store_false", dest="use_model", help="do not sample from the model")
    parser.add_argument("--with-models", action="store_true", help="let reward_model (a classifier, or a judge behind a server) score too")
    parser.add_argument("--groups", type=int, default=4, help="groups to sample (default 4)")
    parser.add_argument("--seconds", type=float, default=300, help="time for sampling (default 300)")
    many = "processes that training will have (default: WORLD_SIZE, else 1)"
    parser.add_argument("--num-processes", type=int, dest="processes", metavar="NUM_PROCESSES", help=many)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--brief", action="store_true", help="the verdicts alone: a line a check, and what is wrong or was sampled")
    form.add_argument("--json", action="store_true", help="everything as one JSON object on stdout")
    known, overrides = parser.parse_known_args(argv)
    if not processes.is_main_process():
        return
    options = vars(known)
    path, brief, as_object = options.pop("recipe"), options.pop("brief"), options.pop("json")
    with console.reported_errors():
        report = examine([path, *overrides], **options)
        console.say(as_json(report) if as_object else as_text(report, brief=brief))
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
    """Check a recipe; nothing is written but what libraries cache, and a mistake in the recipe is a finding, not an exception.

    Args:
        argv: the recipe's path, and overrides as ``--key value``; the others are the options of the command.
    """
    report = Report()
    method = method or surroundings.guess_method(argv)
    launched = memory.parallelism(processes)
    with contextlib.suppress(Enough), surroundings.one_process():
        recipe = surroundings.read_recipe(report, argv, method, launched.processes)
        console.set_up_logging(recipe.training)
        surroundings.check_surroundings(report, recipe, launched.processes)
        tokenizer, fmt = prompt.read_tokenizer(report, recipe)
        shape = memory.model_shape(report, recipe)
        logger.info("reading the data of %s", recipe.path)
        rows = data.load(report, recipe, fmt, tokenizer)
        prompt.check_prompt(report, recipe, fmt, rows)
        if method == "grpo":
            rewards = contract.load_rewards(report, recipe, fmt, tokenizer, with_models=with_models)
            with report.refusals("data.tasks"):
                data.check_golds(report, rewards.functions, rows)
        longest = data.check_lengths(report, recipe, rows, tokenizer, shape.window)
        memory.check_memory(report, recipe, shape, longest, launched)
        if method == "sft":
            prompt.check_targets(report, recipe, rows, tokenizer)
            return report
        contract.check_rewards(report, recipe, fmt, rewards, rows)
        if use_model:
            logger.info("sampling %d groups of %d from %s", groups, recipe.training.num_generations, recipe.model.model_name_or_path)
            signal.check(report, recipe, fmt, rewards, rows, groups=groups, seconds=seconds)
    return report


def _worst(findings: Sequence[Finding]) -> str:
    return next((level for level in (ERROR, WARNING) if any(finding.level == level for finding in findings)), OK)


def as_json(report: Report) -> str:
    """Return everything: ``verdict`` (the worst level), counts, ``findings`` and the facts behind them."""
    entry = {
        "verdict": _worst(report.findings),
        "counts": {level: len(report.at(level)) for level in (ERROR, WARNING, OK)},
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        **report.facts,
    }
    return json.dumps(entry, indent=1, ensure_ascii=False, default=str)


def as_text(report: Report, *, brief: bool = False) -> str:
    """Return the same for people; ``brief``: without facts, and of what is in order only the signal in words."""
    lines: list[str] = []
    for number, section in enumerate(("recipe", "data", "contract", "signal", "fit"), start=1):
        title = f"{number} {section.capitalize()}"
        findings = [finding for finding in report.findings if finding.code.startswith(f"{section}.")]
        if findings and brief:
            lines.append(f"{title:<11}{_mark(_worst(findings))}{len(findings)} check{'s' * (len(findings) > 1)}")
            lines += [f"  {_mark(found.level)}{found.message}" for found in findings if found.level != OK or section == "signal"]
        elif findings:
            lines += [title, *_details(section, report.facts)]
            lines += [f"{_mark(found.level)}{found.code}: {found.message}" for found in findings]
            lines.append("")
    errors, doubts = report.at(ERROR), report.at(WARNING)
    counts = f"{len(errors)} error{'s' * (len(errors) != 1)}, {len(doubts)} warning{'s' * (len(doubts) != 1)}"
    if errors:
        lines.append(f"Do not start this run: {counts}. First: {errors[0].message}")
    elif doubts:
        lines.append(f"Ready, with doubts: {counts}.")
    else:
        lines.append("Ready: nothing was found that would stop this run from learning.")
    return _CONTROL.sub("\ufffd", "\n".join(lines))


def _mark(level: str) -> str:
    return f"{'ERROR' if level == ERROR else level:<8}"


def _details(section: str, facts: dict[str, Any]) -> list[str]:
    """Prompts, completions and tables of a section."""
    lines: list[str] = []
    if section == "data":
        for number, text in enumerate(facts.get("prompts", ()), start=1):
            lines += [f"Prompt {number}, as the model sees it:", indent(text, "    ")]
    elif section == "contract" and "contract" in facts:
        lines += ["A right answer, as the model would write it:", indent(facts["contract_example"], "    ")]
        lines += ["Mean reward of written completions:", _table(facts["contract"])]
    elif section == "signal" and "signal" in facts:
        found = facts["signal"]
        lines += [f"{found['completions']} completions in {found['groups']} groups:", _table(found["rewards"])]
        for number, example in enumerate(found["examples"], start=1):
            scores = ", ".join(f"{name} {'not judged' if value is None else f'{value:.3g}'}" for name, value in example["scores"].items())
            lines += [
                f"Completion {number}: {scores}; {example['tokens']} tokens, finish_reason {example['finish_reason']}; gold "
                f"{example['solution']!r}, read as {example['answer']!r}; asked {clip(example['question'])}",
                indent(example["completion"], "    "),
            ]
    return lines


def _table(rows: dict[str, dict[str, Any]]) -> str:
    from pandas import DataFrame

    return DataFrame.from_dict(rows, orient="index").to_string(float_format="{:.3g}".format, na_rep="")


if __name__ == "__main__":
    main()
