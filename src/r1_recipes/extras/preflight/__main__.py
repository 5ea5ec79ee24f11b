"""Check in about a minute whether a recipe can learn anything and whether it fits.

``python -m r1_recipes.preflight recipes/NAME.yaml [--no-model] [--groups N] [--brief] [--key value
…]``
"""

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from r1_recipes.common import console, processes
from r1_recipes.common.yaml_text import read_yaml
from r1_recipes.extras.preflight import contract, data, fit, signal, template
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, AbortChecks, Report
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.training.train import check_machine, check_rewards

# A recipe or command line with any of these keys is for GRPO.
_GRPO_KEYS = ("reward_funcs", "environment", "num_generations")
# With these variables set, libraries would wait for other processes.
_SHARDING = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
_LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *_SHARDING)


def main(argv: Sequence[str] | None = None) -> None:
    """Check the recipe of a command line.

    Exit with 1 if a run would fail or learn nothing, with 2 if the command is wrong.
    """
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
    count = "number of training processes (default: WORLD_SIZE, else 1)"
    add("--num_processes", "--num-processes", type=int, help=count)
    add("--brief", action="store_true", help="print rows, signal and what needs attention")
    with console.reported_errors():
        options, overrides = parser.parse_known_args(argv)
        if not processes.is_main_process():
            return
        report = examine(options, overrides)
        errors = [finding for finding in report.findings if finding.level == ERROR]
        warnings = [finding for finding in report.findings if finding.level == WARNING]
        verdict = f"Do not start this run. First: {errors[0].message}" if errors else "Ready."
        console.say(f"{len(errors)} error(s), {len(warnings)} warning(s). {verdict}")
    if errors:
        raise SystemExit(1)


def examine(options: argparse.Namespace, overrides: Sequence[str]) -> Report:
    """Print the findings about a recipe, and return them.

    A mistake in the recipe becomes a finding instead of an exception. Only the caches of libraries
    are written.
    """
    from accelerate.utils import parse_flag_from_env

    report = Report(options.brief)
    count = options.num_processes or processes.world_size()
    # DeepSpeed and FSDP shard the training state. Read this before hiding the launcher's variables.
    shards = count if any(map(parse_flag_from_env, _SHARDING)) else 1
    with contextlib.suppress(AbortChecks), mock.patch.dict(os.environ):
        for name in _LAUNCHER:
            os.environ.pop(name, None)
        recipe = read_recipe(report, [options.recipe, *overrides], count)
        console.set_up_logging(recipe.training)
        with report.refusals("recipe.needs"):
            check_rewards(recipe)
        with report.refusals("fit.precision"):
            check_machine(recipe)
        tokenizer, fmt = template.read_tokenizer(report, recipe)
        rows = data.load(report, recipe, fmt, tokenizer)
        shape = fit.model_shape(report, recipe)
        data.check_lengths(report, recipe, rows, tokenizer, shape.window)
        contract.check_prompt(report, recipe, fmt, rows)
        if recipe.method == "sft":
            contract.check_written(report, recipe, rows, tokenizer)
        else:
            rewards = contract.load_rewards(report, recipe, fmt, tokenizer)
            with report.refusals("data.tasks"):
                locale = recipe.reward_params.get("number_locale", "en")
                data.check_golds(report, rewards.functions, rows, locale)
            contract.check_rewards(report, fmt, rewards, rows)
            if not options.no_model:
                signal.check(report, recipe, fmt, rewards, rows, options.groups, options.seconds)
        steps = fit.check_cost(report, recipe, len(rows), count)
        fit.check_memory(report, recipe, shape, shards)
        fit.check_disk(report, recipe, shape, steps, shards)
    return report


def read_recipe(report: Report, argv: Sequence[str], processes: int) -> Recipe:
    """Return the recipe as a run with this number of processes would read it.

    A recipe with rewards, an environment or ``num_generations`` is a GRPO recipe, any other an SFT
    recipe.
    """
    with report.refusals("recipe.unusable", essential=True):
        settings = read_yaml(Path(argv[0]))
        if settings.get("mapper") in ("preference", "safe_rlhf"):
            raise ValueError(f"{argv[0]}: preflight cannot check a reward model's recipe")
        keys = {word.partition("=")[0].removeprefix("--") for word in argv}.union(settings)
        method = "sft" if keys.isdisjoint(_GRPO_KEYS) else "grpo"
        recipe = load_recipe(argv, method, smoke_overrides, processes)
    found = f"a {method} recipe with {len(recipe.settings)} keys, all of them known"
    report.add(OK, "recipe.read", f"{recipe.path} is {found}")
    for warning in dict.fromkeys(recipe.warnings):
        report.add(WARNING, "recipe.translated", warning)
    return recipe


if __name__ == "__main__":
    main()
