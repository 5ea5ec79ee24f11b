"""Is this recipe worth its GPU hours? What a run would do, and why its reward would stay 0, in a
minute and before it starts.

``python -m r1_recipes.preflight recipes/NAME.yaml [--no-model] [--groups N] [--brief] [--key value
…]``
"""

import argparse
import contextlib
import logging
import math
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from textwrap import indent
from unittest import mock

from r1_recipes.common import console, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.extras.preflight import agent, contract, data, disk, memory, signal, template
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Enough, Report
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.runs import run_dir
from r1_recipes.training import start

logger = logging.getLogger(
    "r1_recipes.preflight"
)  # under `python -m` this module is called __main__

_LEVELS = (OK, WARNING, ERROR)
_SECTIONS = ("recipe", "data", "contract", "signal", "fit")
# Libraries that saw these would wait for the other processes.
_SHARDING = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *_SHARDING)


def main(argv: Sequence[str] | None = None) -> None:
    """Examine the recipe of a command line; exit 1: a run would fail or learn nothing, 2: the
    command itself is wrong.
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
    """Return the command's options, and what overrides the recipe."""
    parser = argparse.ArgumentParser(
        prog="python -m r1_recipes.preflight",
        description=__doc__.splitlines()[0],
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe", help="a GRPO or SFT recipe; any key of it can follow as --key value"
    )
    parser.add_argument(
        "--no_model", "--no-model", action="store_true", help="do not sample from the model"
    )
    parser.add_argument("--groups", type=int, default=4, help="groups to sample (default 4)")
    parser.add_argument(
        "--seconds", type=float, default=300, help="time for sampling (default 300)"
    )
    parser.add_argument(
        "--num_processes",
        "--num-processes",
        type=int,
        help="processes that training will have (default: WORLD_SIZE, else 1)",
    )
    parser.add_argument(
        "--price_per_hour",
        type=float,
        help="of the machines, in any currency: what the sampling costs",
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        help="the verdicts alone: a line a check, and what is wrong or was sampled",
    )
    options, overrides = parser.parse_known_args(argv)
    if options.price_per_hour is not None and not 0 <= options.price_per_hour < math.inf:
        parser.error(f"--price_per_hour must be a number from 0 on, got {options.price_per_hour:g}")
    return options, overrides


def examine(options: argparse.Namespace, overrides: Sequence[str]) -> Report:
    """Check a recipe; nothing is written but what libraries cache, and a mistake in the recipe is a
    finding, not an exception.
    """
    from accelerate.utils import parse_flag_from_env

    report, count = Report(), options.num_processes or processes.world_size()
    # Before the launcher's variables are hidden: DeepSpeed and FSDP shard the training state.
    shards = count if any(map(parse_flag_from_env, _SHARDING)) else 1
    with contextlib.suppress(Enough), mock.patch.dict(os.environ):
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
        memory.check_engine(report, recipe, shape, pictures="image" in rows.column_names)
        steps = start.steps_of(recipe.training, len(rows), count)
        disk.check_disk(report, recipe, shape, steps, shards)
        if recipe.method == "sft":
            contract.check_written(report, recipe, rows, tokenizer)
            report_cost(report, recipe, len(rows), count, None)
            return report
        agent.check(report, recipe, tokenizer, rows)
        rewards = contract.load_rewards(report, recipe, fmt, tokenizer)
        with report.refusals("data.tasks"):
            data.check_golds(report, rewards.functions, rows)
        contract.check_rewards(report, fmt, rewards, rows)
        if not options.no_model:
            signal.check(
                report, recipe, fmt, rewards, rows, groups=options.groups, seconds=options.seconds
            )
        report_cost(report, recipe, len(rows), count, options.price_per_hour)
    return report


def read_recipe(report: Report, argv: Sequence[str], processes: int) -> Recipe:
    """Read the recipe as its run will, with the batches of so many processes: for GRPO if it names
    rewards, else for SFT.
    """
    from transformers import TrainingArguments

    with (
        report.refusals("recipe.unusable", essential=True),
        mock.patch.object(TrainingArguments, "world_size", processes),
    ):
        own = read_yaml(Path(argv[0]))
        named = {*own, *(word.partition("=")[0].removeprefix("--") for word in argv)}
        if own.get("mapper") in ("preference", "safe_rlhf"):
            raise RecipeError(
                f"{argv[0]}: a recipe for python -m r1_recipes.reward, which preflight does "
                f"not know"
            )
        method = "grpo" if {"reward_funcs", "environment", "num_generations"} & named else "sft"
        recipe = load_recipe(argv, method, start.check_files, smoke_overrides, processes)
    report.add(
        OK,
        "recipe.read",
        f"{recipe.path} is a {method} recipe of {len(recipe.settings)} keys, and all of them "
        f"are known",
    )
    for warning in dict.fromkeys(recipe.warnings):
        report.add(WARNING, "recipe.translated", warning)
    return recipe


def check_surroundings(report: Report, recipe: Recipe, processes: int) -> None:
    """Check what rewards need of the machine, trackers, the run directory, sampling, and vLLM if
    the recipe uses it.
    """
    for code, check in (
        ("recipe.needs", start.check_rewards),
        ("recipe.tracker", start.check_trackers),
        (
            "recipe.output_dir",
            lambda recipe: run_dir.check(recipe, Path(recipe.training.output_dir)),
        ),
        ("fit.vllm", start.check_generation_backend),
        ("fit.precision", start.check_precision),
    ):
        with report.refusals(code):
            check(recipe)
    if recipe.method == "grpo":  # reading the recipe refuses a batch that groups do not fill
        batch, group = recipe.training.generation_batch_size, recipe.training.num_generations
        report.add(
            OK,
            "fit.batch",
            f"{batch} completions a batch over {processes} processes are {batch // group} "
            f"groups of {group}",
        )


def report_cost(
    report: Report, recipe: Recipe, rows: int, processes: int, price: float | None
) -> None:
    """Report steps, completions and tokens, and at the pace of the groups that were sampled the
    time; ``price``: of an hour.
    """
    if getattr(recipe.training, "packing", False) and recipe.training.max_steps < 1:
        return  # nobody knows yet how many rows will make one
    prompts, said = start.plan(
        recipe.training, start.steps_of(recipe.training, rows, processes), processes
    )
    if report.seconds:
        time = timedelta(seconds=round(median(report.seconds) * prompts / processes))
        said += (
            f"; to sample them takes about {time} (h:mm:ss) at {median(report.seconds):.2g} s a "
            f"group, one at a time"
        )
        if price is not None:
            said += f", and costs {time.total_seconds() / 3600 * price:,.2f} at {price:g} an hour"
        said += "; larger batches and vLLM are faster, and training on them comes on top"
    report.add(OK, "fit.cost", said)


def as_text(report: Report, *, brief: bool = False) -> str:
    """Return everything; ``brief``: without details, and of what is in order only the signal."""
    lines: list[str] = []
    for number, section in enumerate(_SECTIONS, start=1):
        if findings := [
            finding for finding in report.findings if finding.code.startswith(f"{section}.")
        ]:
            worst = max((found.level for found in findings), key=_LEVELS.index)
            lines.append(
                f"{number} {section.capitalize():<9}{worst:<8}{len(findings)} "
                f"check{'s' * (len(findings) > 1)}"
            )
            for title, content in () if brief else report.details.get(section, ()):
                text = (
                    content
                    if isinstance(content, str)
                    else content.to_string(float_format="{:.3g}".format, na_rep="")
                )
                lines += [title, indent(text, "    ")]
            shown = [
                found for found in findings if not brief or found.level != OK or section == "signal"
            ]
            lines += [f"  {found.level:<8}{found.code}: {found.message}" for found in shown]
    errors, doubts = report.at(ERROR), report.at(WARNING)
    counts = (
        f"{len(errors)} error{'s' * (len(errors) != 1)}, {len(doubts)} "
        f"warning{'s' * (len(doubts) != 1)}"
    )
    if errors:
        lines.append(f"Do not start this run: {counts}. First: {errors[0].message}")
    elif doubts:
        lines.append(f"Ready, with doubts: {counts}.")
    else:
        lines.append("Ready: nothing was found that would stop this run from learning.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
