"""Generate completions for a dataset, and select from them a new dataset.

``python -m r1_recipes.generate recipes/NAME.yaml [--key value …]``

First, every row's completions are written to shards. After an interruption, the same command
resumes. Then the recipe's ``keep`` rules select completions (rejection sampling), which become
``output_dir/dataset``. With several processes (``torchrun --nproc-per-node N -m
r1_recipes.generate …``), each completes every Nth row on its own device.
"""

import logging
from collections.abc import Sequence
from typing import Any

from r1_recipes.common import console, processes
from r1_recipes.completions import get_backend, load_format
from r1_recipes.completions.store import ShardStore, row_digests
from r1_recipes.completions.types import Backend, Completion, Request
from r1_recipes.data.load import load_dataset
from r1_recipes.extras import selection
from r1_recipes.models.smoke import example_rows
from r1_recipes.recipe.types import GenerateRecipe
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.training import run_folder
from r1_recipes.training.run_folder import Run
from r1_recipes.training.train import start

# With `python -m`, __name__ is "__main__".
logger = logging.getLogger("r1_recipes.generate")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a generation recipe. Exit with 2 if it cannot be used, with 130 if it was interrupted."""
    with console.reported_errors():
        run = start(argv, "generate")
        processes.connect(use_cpu=run.recipe.training.use_cpu)
        folder = run.output_dir / "completions"
        with ShardStore(folder) as store:
            try:
                generate(run, store)
            except KeyboardInterrupt:
                logger.warning(
                    "stopped with %d rows stored. The same command resumes from there", len(store)
                )
                raise SystemExit(130) from None


def generate(run: Run, store: ShardStore) -> None:
    """Generate the completions that ``store`` lacks.

    On the main process, write the dataset that the ``keep`` rules select.
    """
    recipe: GenerateRecipe = run.recipe
    script = recipe.script
    tokenizer, fmt = load_format(recipe, script.backend)
    examples = example_rows(script, "generate") if script.smoke else None
    rows, report = load_dataset(script, fmt, "generate", tokenizer=tokenizer, rows=examples)
    logger.info("rows: %s", report)
    digests = row_digests(rows)
    store.check_rows(digests)
    again = store.failed if script.retry_failed else set()
    pending = [index for index in range(len(rows)) if index in again or index not in store.digests]
    logger.info(
        "%d of %d rows are stored, %d remain", len(rows) - len(pending), len(rows), len(pending)
    )
    dataset = run.output_dir / "dataset"
    rewards = get_reward_funcs(script.reward_funcs, fmt, **recipe.reward_params)
    # A random model's answers pass no rule, so a smoke run keeps everything. Evaluation sets are
    # read first: a missing one should not show only after hours of generation.
    keep = selection.Keep.parse(None if script.smoke else script.keep)
    held_out = selection.evaluation_sets(keep.decontaminate, script.hub)
    if pending:
        backend = get_backend(recipe, tokenizer, script.backend, rows)
        # Wait: a row that a faster process stores would make this start look like a resumed one.
        processes.wait()
        share = pending[processes.rank() :: processes.world_size()]
        _complete(backend, share, rows, digests, store, recipe.training)
        processes.wait()
    if not processes.is_main_process():
        return
    store.reload()
    store.check_complete(len(rows))
    if store.failed:
        first = next(record["error"] for record in store if record["error"])
        logger.warning(
            "%d rows failed (--retry_failed true tries them again). The first error: %s",
            len(store.failed),
            first,
        )
    if script.tools or script.environment:  # a column of answers would lose their tool calls
        result = f"episodes, with all messages and the environment's rewards: {store.folder}"
    else:
        weights = recipe.training.reward_weights
        groups = selection.select(store, keep, fmt, rewards, weights, held_out)
        table = selection.write(
            groups, fmt, keep.output, dataset, title=recipe.name, settings=recipe.settings
        )
        result = f"{table}\n\ndataset: {dataset}"
    run_folder.mark_finished(run.output_dir)
    console.say(result)


def _complete(
    backend: Backend,
    pending: list[int],
    rows: Any,
    digests: list[str],
    store: ShardStore,
    training: Any,
) -> None:
    copies = training.num_generations
    at_once = max(1, training.generation_batch_size // copies)
    with console.progress(len(pending), "rows", at_once) as count:

        def store_row(index: int, completions: list[Completion], error: str | None) -> None:
            row = rows[index]
            store.append(
                {
                    "index": index,
                    "digest": digests[index],
                    "question": row.pop("question"),
                    "prompt": row.pop("prompt"),
                    "columns": row,
                    "completions": [vars(completion) for completion in completions],
                    "error": error,
                }
            )
            count(1)

        requests = [Request(index, rows[index]["prompt"]) for index in pending]
        backend.run(requests, store_row, [(training.temperature, copies)])


if __name__ == "__main__":
    main()
