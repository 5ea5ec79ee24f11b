"""Check in about a minute whether a recipe can learn anything and whether it fits.

``python -m r1_recipes.preflight recipes/NAME.yaml [--no-model] [--groups N] [--brief] [--key value
…]``
"""

import argparse
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from textwrap import indent
from unittest import mock

from r1_recipes.common import console, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.extras.preflight import contract, data, disk, memory, signal, template
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, AbortChecks, Finding, Report
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.runs import run_dir
from r1_recipes.training import start

# With `python -m`, __name__ is "__main__".
logger = logging.getLogger("r1_recipes.preflight")

_LEVELS = (OK, WARNING, ERROR)
_SECTIONS = ("recipe", "data", "contract", "signal", "fit")
# A recipe or command line with any of these keys is for GRPO.
_GRPO_KEYS = ("reward_funcs", "environment", "num_generations")
# With these variables set, libraries would wait for other processes.
_SHARDING = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *_SHARDING)


def main(argv: Sequence[str] | None = None) -> None:
    """Check the recipe of a command line.

    Exit with 1 if a run would fail or learn nothing, with 2 if the command is wrong.
    """
    with console.reported_errors():
        options, overrides = parse(argv)
        if not processes.is_main_process():
            return
        report = examine(options, overrides)
        console.say(as_text(report, brief=options.brief))
    if report.at(ERROR):
        raise SystemExit(1)


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of the command, and the overrides of the recipe."""
    parser = argparse.ArgumentParser(
        prog="python -m r1_recipes.preflight",
        description=__doc__.splitlines()[0],
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("recipe", help="a GRPO or SFT recipe; override any key with --key value")
    add("--no_model", "--no-model", action="store_true", help="do not sample from the model")
    add("--groups", type=int, default=4, help="groups to sample (default 4)")
    add("--seconds", type=float, default=300, help="time limit for sampling (default 300)")
    add(
        "--num_processes",
        "--num-processes",
        type=int,
        help="number of training processes (default: WORLD_SIZE, else 1)",
    )
    add(
        "--brief",
        action="store_true",
        help="print a line per check, and only findings that need attention or concern the signal",
    )
    return parser.parse_known_args(argv)


def examine(options: argparse.Namespace, overrides: Sequence[str]) -> Report:
    """Return the findings about a recipe.

    A mistake in the recipe becomes a finding instead of an exception. Only the caches of libraries
    are written.
    """
    from accelerate.utils import parse_flag_from_env

    report = Report()
    count = options.num_processes or processes.world_size()
    # DeepSpeed and FSDP shard the training state. Read this before hiding the launcher's variables.
    shards = count if any(map(parse_flag_from_env, _SHARDING)) else 1
    with contextlib.suppress(AbortChecks), mock.patch.dict(os.environ):
        for name in _LAUNCHER:
            os.environ.pop(name, None)
        recipe = read_recipe(report, [options.recipe, *overrides], count)
        console.set_up_logging(recipe.training)
        check_surroundings(report, recipe, count)
        tokenizer, fmt = template.read_tokenizer(report, recipe)
        shape = memory.model_shape(report, recipe)
        logger.info("reading the data of %s", recipe.path)
        rows = data.load(report, recipe, fmt, tokenizer)
        contract.check_prompt(report, recipe, fmt, rows)
        data.check_lengths(report, recipe, rows, tokenizer, shape.window)
        memory.check_memory(report, recipe, shape, shards)
        steps = start.steps_of(recipe.training, len(rows), count)
        disk.check_disk(report, recipe, shape, steps, shards)
        if recipe.method == "sft":
            contract.check_written(report, recipe, rows, tokenizer)
        else:
            rewards = contract.load_rewards(report, recipe, fmt, tokenizer)
            with report.refusals("data.tasks"):
                data.check_golds(report, rewards.functions, rows)
            contract.check_rewards(report, fmt, rewards, rows)
            if not options.no_model:
                signal.check(report, recipe, fmt, rewards, rows, options.groups, options.seconds)
        report_cost(report, recipe, len(rows), count)
    return report


def read_recipe(report: Report, argv: Sequence[str], processes: int) -> Recipe:
    """Return the recipe as a run with this number of processes would read it.

    A recipe with rewards, an environment or ``num_generations`` is a GRPO recipe, any other an SFT
    recipe.
    """
    with report.refusals("recipe.unusable", essential=True):
        settings = read_yaml(Path(argv[0]))
        if settings.get("mapper") in ("preference", "safe_rlhf"):
            raise RecipeError(
                f"{argv[0]}: is for python -m r1_recipes.reward, which preflight cannot check"
            )
        keys = {word.partition("=")[0].removeprefix("--") for word in argv}.union(settings)
        method = "sft" if keys.isdisjoint(_GRPO_KEYS) else "grpo"
        recipe = load_recipe(argv, method, smoke_overrides, processes)
    count = len(recipe.settings)
    message = f"{recipe.path} is a {method} recipe with {count} keys, all of them known"
    report.add(OK, "recipe.read", message)
    for warning in dict.fromkeys(recipe.warnings):
        report.add(WARNING, "recipe.translated", warning)
    return recipe


def check_surroundings(report: Report, recipe: Recipe, processes: int) -> None:
    """Check the packages of rewards and trackers, the run folder, the backend and the precision."""
    with report.refusals("recipe.needs"):
        start.check_rewards(recipe)
    with report.refusals("recipe.tracker"):
        start.check_trackers(recipe)
    with report.refusals("recipe.output_dir"):
        run_dir.check(recipe, Path(recipe.training.output_dir))
    with report.refusals("fit.vllm"):
        start.check_generation_backend(recipe)
    with report.refusals("fit.precision"):
        start.check_precision(recipe)
    if recipe.method == "grpo":  # load_recipe refuses any other batch.
        batch, group = recipe.training.generation_batch_size, recipe.training.num_generations
        message = (
            f"{batch} completions per batch over {processes} processes are {batch // group} "
            f"groups of {group}"
        )
        report.add(OK, "fit.batch", message)


def report_cost(report: Report, recipe: Recipe, rows: int, processes: int) -> None:
    """Report the numbers of steps, completions and tokens, and the time that sampling takes.

    The time is an estimate from the sampled groups.
    """
    if getattr(recipe.training, "packing", False) and recipe.training.max_steps < 1:
        return  # The number of packed rows is not known before packing.
    steps = start.steps_of(recipe.training, rows, processes)
    prompts, message = start.plan(recipe.training, steps, processes)
    if report.seconds:
        seconds = median(report.seconds)
        time = timedelta(seconds=round(seconds * prompts / processes))
        message += (
            f"; sampling them takes about {time} (h:mm:ss) at {seconds:.2g} s per group, one group "
            f"at a time"
        )
        message += ". This does not include training; larger batches and vLLM are faster"
    report.add(OK, "fit.cost", message)


def as_text(report: Report, *, brief: bool = False) -> str:
    """Return the report as text.

    Three rows come first: nothing shows a fault of the data sooner. ``brief`` leaves out the other
    details, and all findings that are ok except those about the signal.
    """
    lines = [*_details(report, "rows")]
    for number, section in enumerate(_SECTIONS, start=1):
        findings = [found for found in report.findings if found.code.startswith(f"{section}.")]
        if not findings:
            continue
        worst = max((finding.level for finding in findings), key=_LEVELS.index)
        checks = _counted(findings, "check")
        lines.append(f"{number} {section.capitalize():<9}{worst:<8}{checks}")
        if not brief:
            lines += _details(report, section)
        for finding in findings:
            if not brief or finding.level != OK or section == "signal":
                lines.append(f"  {finding.level:<8}{finding.code}: {finding.message}")
    errors, warnings = report.at(ERROR), report.at(WARNING)
    counts = f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}"
    if errors:
        lines.append(f"Do not start this run: {counts}. First: {errors[0].message}")
    elif warnings:
        lines.append(f"Ready, with warnings: {counts}.")
    else:
        lines.append("Ready: no check found a problem.")
    return "\n".join(lines)


def _counted(findings: Sequence[Finding], noun: str) -> str:
    count = len(findings)
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _details(report: Report, section: str) -> Iterator[str]:
    for title, content in report.details.get(section, ()):
        text = content
        if not isinstance(text, str):
            text = text.to_string(float_format="{:.3g}".format, na_rep="")
        yield title
        yield indent(shorten(text), "    ")


def shorten(text: str, most: int = 2000) -> str:
    """Return a text without its middle, if it has more than ``most`` characters."""
    left_out = len(text) - most
    if left_out <= 0:
        return text
    return f"{text[: most // 2]}\n[… {left_out} characters …]\n{text[-most // 2 :]}"


if __name__ == "__main__":
    main()
