"""Is this recipe worth its GPU hours? What a run would do, and why its reward would stay 0, in a minute and before it starts.

``python -m r1_recipes.preflight recipes/NAME.yaml [--method grpo|sft] [--no-model] [--groups N] [--brief | --json] [--key value …]``
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any
from unittest import mock

from r1_recipes.common import console, processes
from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.common.messages import clip
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.preflight import contract, data, memory, signal
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Enough, Finding, Report
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.recipe.text import read_yaml
from r1_recipes.runs import run_dir
from r1_recipes.training import checks, trackers

logger = logging.getLogger("r1_recipes.preflight")  # under `python -m` this module is called __main__

_SECTIONS = ("recipe", "data", "contract", "signal", "fit")
# What data and models may hold and a terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Libraries that saw these would wait for the other processes.
_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")


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
    launched = memory.parallelism(processes)
    with contextlib.suppress(Enough), mock.patch.dict(os.environ):
        for name in _LAUNCHER:
            os.environ.pop(name, None)
        recipe = read_recipe(report, argv, method or guess_method(argv), launched.processes)
        console.set_up_logging(recipe.training)
        check_surroundings(report, recipe, launched.processes)
        tokenizer, fmt = contract.read_tokenizer(report, recipe)
        shape = memory.model_shape(report, recipe)
        logger.info("reading the data of %s", recipe.path)
        rows = data.load(report, recipe, fmt, tokenizer)
        contract.check_prompt(report, recipe, fmt, rows)
        if recipe.method == "grpo":
            rewards = contract.load_rewards(report, recipe, fmt, tokenizer, with_models=with_models)
            with report.refusals("data.tasks"):
                data.check_golds(report, rewards.functions, rows)
        longest = data.check_lengths(report, recipe, rows, tokenizer, shape.window)
        memory.check_memory(report, recipe, shape, longest, launched)
        if recipe.method == "sft":
            contract.check_targets(report, recipe, rows, tokenizer)
            return report
        contract.check_rewards(report, fmt, rewards, rows)
        if use_model:
            logger.info("sampling %d groups of %d from %s", groups, recipe.training.num_generations, recipe.model.model_name_or_path)
            signal.check(report, recipe, fmt, rewards, rows, groups=groups, seconds=seconds)
    return report


def guess_method(argv: Sequence[str]) -> str:
    """Return ``"grpo"`` if the recipe or the command line names rewards, or the file cannot be read; else ``"sft"``."""
    try:
        named = {*read_yaml(Path(argv[0])), *(word.partition("=")[0].removeprefix("--") for word in argv)}
    except RecipeError:
        return "grpo"
    return "grpo" if "reward_funcs" in named else "sft"


def read_recipe(report: Report, argv: Sequence[str], method: str, processes: int) -> Recipe:
    """Read the recipe as its run will, with the batches of so many processes."""
    from transformers import TrainingArguments

    with report.refusals("recipe.unusable", essential=True), mock.patch.object(TrainingArguments, "world_size", processes):
        recipe = load_recipe(argv, method, checks.check_files, smoke_overrides, processes)
    report.add(OK, "recipe.read", f"{recipe.path} is a {method} recipe of {len(recipe.settings)} keys, and all of them are known")
    for warning in dict.fromkeys(recipe.warnings):
        report.add(WARNING, "recipe.translated", warning)
    report.facts["recipe"] = {"path": str(recipe.path), "method": method, "settings": recipe.settings}
    return recipe


def check_surroundings(report: Report, recipe: Recipe, processes: int) -> None:
    """Check what rewards need of the machine, trackers, the run directory, sampling, and vLLM if the recipe uses it."""
    with report.refusals("recipe.needs"):
        checks.check_rewards(recipe)
    with report.refusals("recipe.tracker"):
        trackers.check_trackers(recipe)
    with report.refusals("recipe.output_dir"):
        run_dir.check(recipe, Path(recipe.training.output_dir))
    with report.refusals("fit.vllm"):
        checks.check_generation_backend(recipe)
        if getattr(recipe.training, "use_vllm", False):
            check_vllm(report)
    if recipe.method == "grpo":  # reading the recipe refuses a batch that groups do not fill
        batch, group = recipe.training.generation_batch_size, recipe.training.num_generations
        report.add(OK, "fit.batch", f"{batch} completions a batch over {processes} processes are {batch // group} groups of {group}")


def check_vllm(report: Report) -> None:
    """Report what TRL warns of the installed vLLM."""
    from trl.import_utils import is_vllm_available

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        is_vllm_available()
    for warning in (warning for warning in caught if warning.category is UserWarning):
        report.add(ERROR, "fit.vllm", f"{warning.message} Install the tested one: {install_hint('vllm')}")


def _worst(findings: Sequence[Finding]) -> str:
    return next((level for level in (ERROR, WARNING) if any(finding.level == level for finding in findings)), OK)


def as_json(report: Report) -> str:
    """Return everything: ``verdict`` (the worst level), ``findings`` and the facts behind them."""
    findings = [dataclasses.asdict(finding) for finding in report.findings]
    return json.dumps({"verdict": _worst(report.findings), "findings": findings, **report.facts}, indent=1, ensure_ascii=False, default=str)


def as_text(report: Report, *, brief: bool = False) -> str:
    """Return the same for people; ``brief``: without facts, and of what is in order only the signal."""
    lines: list[str] = []
    for number, section in enumerate(_SECTIONS, start=1):
        findings = [finding for finding in report.findings if finding.code.startswith(f"{section}.")]
        if findings:
            lines.append(f"{number} {section.capitalize():<9}{_mark(_worst(findings))}{len(findings)} check{'s' * (len(findings) > 1)}")
            lines += () if brief else _details(section, report.facts)
            shown = [found for found in findings if not brief or found.level != OK or section == "signal"]
            lines += [f"  {_mark(found.level)}{found.code}: {found.message}" for found in shown]
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


def _details(section: str, facts: dict[str, Any]) -> Iterator[str]:
    """Yield prompts, completions and tables of a section."""
    if section == "data":
        for number, text in enumerate(facts.get("prompts", ()), start=1):
            yield from (f"Prompt {number}, as the model sees it:", indent(text, "    "))
    elif section == "contract" and "contract" in facts:
        yield from ("A right answer, as the model would write it:", indent(facts["contract_example"], "    "))
        yield from ("Mean reward of written completions:", _table(facts["contract"]))
    elif section == "signal" and "signal" in facts:
        found = facts["signal"]
        yield from (f"{found['completions']} completions in {found['groups']} groups:", _table(found["rewards"]))
        for number, example in enumerate(found["examples"], start=1):
            scores = ", ".join(f"{name} {'not judged' if value is None else f'{value:.3g}'}" for name, value in example["scores"].items())
            yield (
                f"Completion {number}: {scores}; {example['tokens']} tokens, finish_reason {example['finish_reason']}; gold "
                f"{example['solution']!r}, read as {example['answer']!r}; asked {clip(example['question'], 80)!r}"
            )
            yield indent(example["completion"], "    ")


def _table(rows: dict[str, dict[str, Any]]) -> str:
    from pandas import DataFrame

    return DataFrame.from_dict(rows, orient="index").to_string(float_format="{:.3g}".format, na_rep="")


if __name__ == "__main__":
    main()
