"""Check in about a minute whether a recipe can learn anything and whether it fits.

``python -m r1_recipes.preflight recipes/NAME.yaml [--no-model] [--groups N] [--brief] [--key value
…]``
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from r1_recipes.common import console, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.common.files import read_yaml
from r1_recipes.extras.preflight import data, fit, rewards
from r1_recipes.extras.preflight.findings import ERROR, OK, WARNING, Report, evenly_spaced
from r1_recipes.models.load import check_targets, load_tokenizer, train_template
from r1_recipes.models.smoke import smoke_overrides
from r1_recipes.prompts import ResponseFormat
from r1_recipes.recipe import Recipe, load_recipe
from r1_recipes.scoring import reward_functions
from r1_recipes.training.train import check_machine, check_rewards

# A recipe or command line with any of these keys is for GRPO, any other for SFT.
_GRPO_KEYS = ("reward_funcs", "environment", "num_generations")
_SAMPLE = 32  # rows on which prompt and rewards are tried
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
    parser.add_argument("recipe", help="a GRPO or SFT recipe; override any key with --key value")
    parser.add_argument(
        "--no_model", "--no-model", action="store_true", help="do not sample from the model"
    )
    parser.add_argument("--groups", type=int, default=4, help="groups to sample (default 4)")
    parser.add_argument(
        "--num_processes",
        "--num-processes",
        type=int,
        help="number of training processes (default: WORLD_SIZE, else 1)",
    )
    parser.add_argument(
        "--brief", action="store_true", help="print rows, signal and what needs attention"
    )
    with console.reported_errors():
        options, overrides = parser.parse_known_args(argv)
        if processes.rank():
            return
        report = Report(options.brief)
        # What a run refuses, too: nothing more can be checked.
        with report.refusals("recipe.unusable"):
            examine(report, options, overrides)
        errors = [message for level, _, message in report.findings if level == ERROR]
        warnings = [message for level, _, message in report.findings if level == WARNING]
        verdict = f"Do not start this run. First: {errors[0]}" if errors else "Ready."
        console.say(f"{len(errors)} error(s), {len(warnings)} warning(s). {verdict}")
    if errors:
        raise SystemExit(1)


def examine(report: Report, options: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Print the findings about a recipe, those first that take the least time.

    Only the caches of libraries are written.
    """
    from accelerate.utils import parse_flag_from_env

    count = options.num_processes or processes.world_size()
    # DeepSpeed and FSDP shard the training state. Read this before hiding the launcher's variables.
    shards = count if any(map(parse_flag_from_env, _SHARDING)) else 1
    with mock.patch.dict(os.environ):
        for name in _LAUNCHER:
            os.environ.pop(name, None)
        recipe = read_recipe([options.recipe, *overrides], count)
        keys = len(recipe.settings)
        report.add(OK, "recipe.read", f"{recipe.path}: {recipe.method}, {keys} known keys")
        for warning in dict.fromkeys(recipe.warnings):
            report.add(WARNING, "recipe.translated", warning)
        console.set_up_logging()
        with report.refusals("recipe.needs"):
            check_rewards(recipe)
        with report.refusals("fit.precision"):
            check_machine(recipe)
        tokenizer, fmt = load_tokenizer(recipe)
        rows = data.load(report, recipe, fmt, tokenizer)
        model = fit.build_model(recipe)
        data.check_lengths(
            report,
            recipe,
            rows,
            tokenizer,
            window=getattr(model.config.get_text_config(), "max_position_embeddings", None),
        )
        state = fit.training_state(recipe, model, shards)
        fit.check_memory(report, recipe, state, shards)
        if recipe.method == "sft":
            if recipe.training.assistant_only_loss:  # as in sft.py
                train_template(tokenizer)
            check_targets(recipe, tokenizer, rows)
        else:
            examine_rewards(report, recipe, fmt, tokenizer, rows, options)


def read_recipe(argv: Sequence[str], count: int) -> Recipe:
    """Return the recipe as a run with this number of processes would read it."""
    settings = read_yaml(Path(argv[0]))
    keys = {word.partition("=")[0].removeprefix("--") for word in argv}.union(settings)
    if "teacher_model_name_or_path" in keys:
        raise RecipeError(f"{argv[0]}: preflight reads recipes of grpo and sft. Fix: --smoke")
    return load_recipe(
        argv, "sft" if keys.isdisjoint(_GRPO_KEYS) else "grpo", smoke_overrides, count
    )


def examine_rewards(
    report: Report,
    recipe: Recipe,
    fmt: ResponseFormat,
    tokenizer: Any,
    rows: Any,
    options: argparse.Namespace,
) -> None:
    """Try the rewards on reference answers, on answers written by hand and on sampled ones.

    Those that need another model are left out.
    """
    sample = [rows[index] for index in evenly_spaced(len(rows), _SAMPLE)]
    if recipe.script.reward_funcs:  # Otherwise only the environment scores.
        data.check_prompt(report, fmt, sample)
    data.check_turn(report, recipe, tokenizer, fmt)
    functions, names = reward_functions(recipe, fmt), recipe.script.reward_funcs
    weights = dict(zip(names, recipe.training.reward_weights or [1.0] * len(names), strict=True))
    data.check_golds(report, functions, rows, recipe.reward_params.get("number_locale", "en"))
    rewards.check_written(report, fmt, tokenizer, functions, weights, sample)
    # Rewards of other models are not called here, and a text model sees no pictures.
    if (
        not options.no_model
        and (functions or recipe.script.environment)
        and "image" not in rows.column_names
    ):
        rewards.check_sampled(report, recipe, fmt, tokenizer, weights, rows, options.groups)


if __name__ == "__main__":
    main()
