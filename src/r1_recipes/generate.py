"""Generate completions for a dataset, and select from them a new dataset.

``python -m r1_recipes.generate recipes/NAME.yaml [--key value …]``

First, every row's completions are written to ``output_dir/completions``. After an interruption, the
same command resumes. Then the recipe's ``keep`` rules select completions (rejection sampling),
which become ``output_dir/dataset``.
"""

import logging
from collections.abc import Sequence

from r1_recipes.common import console
from r1_recipes.data.load import load_dataset
from r1_recipes.extras import selection
from r1_recipes.generation import complete, load_format
from r1_recipes.models.smoke import smoke_rows
from r1_recipes.recipe.types import Recipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.training import run_folder
from r1_recipes.training.train import start

# With `python -m`, __name__ is "__main__".
logger = logging.getLogger("r1_recipes.generate")


@console.reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    """Run a recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    run = start(argv, "generate")
    recipe: Recipe = run.recipe
    script, training, dataset = recipe.script, recipe.training, run.output_dir / "dataset"
    # Rows, and what selects among their completions. Evaluation sets are read first: a missing one
    # should not show only after hours of generation.
    tokenizer, fmt = load_format(recipe, script.backend)
    examples = smoke_rows(script, "generate") if script.smoke else None
    rows, report = load_dataset(script, fmt, "generate", tokenizer=tokenizer, rows=examples)
    logger.info("rows: %s", report)
    rewards = get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
    # A random model's answers pass no rule, so a smoke run keeps everything.
    keep = selection.Keep.parse(None if script.smoke else script.keep)
    held_out = selection.evaluation_sets(keep.decontaminate, script.hub)

    # Completions
    plans = [(training.temperature, training.num_generations)]
    file = run.output_dir / "completions" / "completions.jsonl"
    groups = complete(recipe, tokenizer, fmt, script.backend, rows, plans, file)

    # Selection
    if script.tools or script.environment:  # a column of answers would lose their tool calls
        result = f"episodes, with all messages and the environment's rewards: {file}"
    else:
        scored_by = {
            name.rpartition(":")[2]: reward
            for name, reward in zip(script.reward_funcs, rewards, strict=True)
        }
        selected = selection.select(
            rows, groups, keep, fmt, scored_by, training.reward_weights, held_out, tokenizer
        )
        table = selection.write(
            selected, fmt, keep.output, dataset, title=recipe.path.stem, settings=recipe.settings
        )
        result = f"{table}\n\ndataset: {dataset}"
    run_folder.note(run.output_dir, finished=True)
    console.say(result)


if __name__ == "__main__":
    main()
