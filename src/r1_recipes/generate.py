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
from r1_recipes.generation import get_generator, load_format
from r1_recipes.models.smoke import example_rows
from r1_recipes.recipe.types import GenerateRecipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.store import complete, made_by
from r1_recipes.training import run_folder
from r1_recipes.training.run_folder import Run
from r1_recipes.training.train import start

# With `python -m`, __name__ is "__main__".
logger = logging.getLogger("r1_recipes.generate")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a generation recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    with console.reported_errors():
        run = start(argv, "generate")
        try:
            generate(run)
        except KeyboardInterrupt:
            logger.warning("stopped. The same command resumes from %s", run.output_dir)
            raise SystemExit(130) from None


def generate(run: Run) -> None:
    """Generate the completions that the run folder lacks, and write what ``keep`` selects."""
    recipe: GenerateRecipe = run.recipe
    script, training, dataset = recipe.script, recipe.training, run.output_dir / "dataset"
    # Rows, and what selects among their completions. Evaluation sets are read first: a missing one
    # should not show only after hours of generation.
    tokenizer, fmt = load_format(recipe, script.backend)
    examples = example_rows(script, "generate") if script.smoke else None
    rows, report = load_dataset(script, fmt, "generate", tokenizer=tokenizer, rows=examples)
    logger.info("rows: %s", report)
    rewards = get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
    # A random model's answers pass no rule, so a smoke run keeps everything.
    keep = selection.Keep.parse(None if script.smoke else script.keep)
    held_out = selection.evaluation_sets(keep.decontaminate, script.hub)

    # Completions
    plans = [(training.temperature, training.num_generations)]
    file = run.output_dir / "completions" / "completions.jsonl"
    groups = complete(
        lambda: get_generator(recipe, tokenizer, fmt, script.backend, rows),
        rows,
        plans,
        file,
        made_by(recipe, tokenizer, script.backend, plans),
        training.generation_batch_size,
    )

    # Selection
    if script.tools or script.environment:  # a column of answers would lose their tool calls
        result = f"episodes, with all messages and the environment's rewards: {file}"
    else:
        names = [name.rpartition(":")[2] for name in script.reward_funcs]
        scored_by = dict(zip(names, rewards, strict=True))
        selected = selection.select(
            rows, groups, keep, fmt, scored_by, training.reward_weights, held_out, tokenizer
        )
        table = selection.write(
            selected, fmt, keep.output, dataset, title=recipe.name, settings=recipe.settings
        )
        result = f"{table}\n\ndataset: {dataset}"
    run_folder.note(run.output_dir, finished=True)
    console.say(result)


if __name__ == "__main__":
    main()
