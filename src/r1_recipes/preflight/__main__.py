"""Is this recipe worth its GPU hours? What a run would do, and why its reward would stay 0, in a minute and before it starts.

``python -m r1_recipes.preflight recipes/NAME.yaml [--method grpo|sft] [--no-model] [--groups N] [--brief | --json] [--key value …]``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from r1_recipes.common import console, processes
from r1_recipes.preflight import contract, data, memory, prompt, signal, surroundings
from r1_recipes.preflight.findings import ERROR, OK, WARNING, Report, clip
from r1_recipes.preflight.shape import Shape, model_shape

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger("r1_recipes.preflight")  # under `python -m` this module is called __main__

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
    parser.add_argument("--no-model", action="store_false", dest="use_model", help="do not sample from the model")
    parser.add_argument("--with-models", action="store_true", help="let reward_model (a classifier, or a judge behind a server) score too")
    parser.add_argument("--groups", type=_positive(int), default=4, help="groups to sample (default 4)")
    parser.add_argument("--seconds", type=_positive(float), default=300, help="time for sampling (default 300)")
    many = "processes that training will have (default: WORLD_SIZE, else 1)"
    parser.add_argument("--num-processes", type=_positive(int), dest="processes", metavar="NUM_PROCESSES", help=many)
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


def _positive(kind: type) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not kind(text) > 0:
            raise argparse.ArgumentTypeError(f"must be over 0, got {text}")
        return kind(text)

    return read


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
        argv: the recipe's path, and overrides as ``--key value``.
        method: ``"grpo"`` or ``"sft"``; ``None``: by the recipe's keys.
        use_model: sample from the model, and judge what it says (GRPO).
        with_models: have rewards judge too that need a model or a server of their own.
        processes: that training will have; ``None``: as the launcher's environment says, else one.
    """
    report = Report()
    method = method or surroundings.guess_method(argv)
    launched = memory.parallelism(processes)
    with surroundings.one_process():
        recipe = surroundings.read_recipe(report, argv, method, launched.processes)
        if recipe is None:
            return report
        console.set_up_logging(recipe.training)
        surroundings.check_surroundings(report, recipe)
        tokenizer, fmt = prompt.read_tokenizer(report, recipe)
        shape: Shape | None = None
        with report.refusals("fit.model"):
            shape = model_shape(report, recipe)
        surroundings.check_generation(report, recipe)
        if method == "grpo":
            surroundings.check_batch(report, recipe, launched.processes)
        logger.info("reading the data of %s", recipe.path)
        rows: Dataset | None = data.load(report, recipe, fmt, tokenizer)
        if rows is None:
            return report
        prompt.check_prompt(report, recipe, fmt, rows)
        rewards = None
        if method == "grpo":
            rewards = contract.load_rewards(report, recipe, fmt, tokenizer, with_models=with_models)
            with report.refusals("data.tasks"):
                data.check_golds(report, rewards.functions, rows)
        if tokenizer is None:
            return report
        longest = data.check_lengths(report, recipe, rows, tokenizer, shape.window if shape else None)
        if shape and longest:
            memory.check_memory(report, recipe, shape, longest, launched)
        if rewards is None:
            prompt.check_targets(report, recipe, rows, tokenizer)
            return report
        contract.check_rewards(report, recipe, fmt, rewards, rows)
        if use_model and longest:
            logger.info("sampling %d groups of %d from %s", groups, recipe.training.num_generations, recipe.model.model_name_or_path)
            signal.check(report, recipe, fmt, rewards, rows, groups=groups, seconds=seconds)
    return report


def as_json(report: Report) -> str:
    """Return everything: ``verdict`` (the worst level), counts, ``findings`` and the facts behind them."""
    levels = {level: len(report.at(level)) for level in (ERROR, WARNING, OK)}
    entry = {
        "verdict": next((level for level, count in levels.items() if count), OK),
        "counts": levels,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        **report.facts,
    }
    return json.dumps(entry, indent=1, ensure_ascii=False, default=str)


def as_text(report: Report, *, brief: bool = False) -> str:
    """Return the same for people.

    Args:
        brief: without tables, prompts and completions, and of what is in order only the signal in words.
    """
    lines: list[str] = []
    for number, section in enumerate(("recipe", "data", "contract", "signal", "fit"), start=1):
        title = f"{number} {section.capitalize()}"
        findings = [finding for finding in report.findings if finding.code.startswith(f"{section}.")]
        if not findings:
            continue
        if brief:
            worst = next(level for level in (ERROR, WARNING, OK) if any(finding.level == level for finding in findings))
            lines.append(f"{title:<11}{_MARKS[worst]:<8}{len(findings)} check{'s' if len(findings) > 1 else ''}")
            told = [finding for finding in findings if finding.level != OK or section == "signal"]
            lines += [f"  {_MARKS[finding.level]:<8}{finding.message}" for finding in told]
        else:
            lines += [title, *_details(section, report.facts), *(f"{_MARKS[f.level]:<8}{f.code}: {f.message}" for f in findings), ""]
    return _CONTROL.sub("\ufffd", "\n".join([*lines, _verdict(report)]))


def _verdict(report: Report) -> str:
    errors, doubts = report.at(ERROR), report.at(WARNING)
    counts = f"{len(errors)} error{'s' * (len(errors) != 1)}, {len(doubts)} warning{'s' * (len(doubts) != 1)}"
    if errors:
        return f"Do not start this run: {counts}. First: {errors[0].message}"
    return f"Ready, with doubts: {counts}." if doubts else "Ready: nothing was found that would stop this run from learning."


def _details(section: str, facts: dict[str, Any]) -> list[str]:
    """Prompts, completions and tables of a section."""
    lines: list[str] = []
    if section == "data":
        for number, text in enumerate(facts.get("prompts", ()), start=1):
            lines += [f"Prompt {number}, as the model sees it:", _indented(text)]
    elif section == "contract" and "contract" in facts:
        lines += ["A right answer, as the model would write it:", _indented(facts["contract_example"])]
        lines += ["Mean reward of written completions:", _table(facts["contract"])]
    elif section == "signal" and "signal" in facts:
        found = facts["signal"]
        lines += [f"{found['completions']} completions in {found['groups']} groups:", _table(found["rewards"])]
        for number, example in enumerate(found["examples"], start=1):
            scores = ", ".join(f"{name} {'not judged' if value is None else f'{value:.3g}'}" for name, value in example["scores"].items())
            end = "cut at the limit" if example["finish_reason"] == "length" else "ended by itself"
            lines += [
                f"Completion {number}: {scores}; {example['tokens']} tokens, {end}; gold {example['solution']!r}, read as "
                f"{example['answer']!r}; asked {clip(example['question'])}",
                _indented(example["completion"]),
            ]
    return lines


def _table(rows: dict[str, dict[str, Any]]) -> str:
    from pandas import DataFrame

    return DataFrame.from_dict(rows, orient="index").to_string(float_format="{:.3g}".format, na_rep="")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


if __name__ == "__main__":
    main()
