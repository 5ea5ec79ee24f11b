"""``python -m r1_recipes.generate recipes/NAME.yaml [--key value …]``: completions for a dataset, and of them a new dataset.

First every row's completions are written to shards, by Transformers, vLLM or an OpenAI-compatible server; killed at any moment, the same
command goes on. Then the recipe's ``keep`` rules select (rejection sampling), and what is left becomes ``output_dir/dataset``.

Started as several processes (``torchrun --nproc-per-node N -m r1_recipes.generate …``), each completes every Nth row on its own device.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from r1_recipes.common import console, processes
from r1_recipes.common.errors import RecipeError
from r1_recipes.completions.backends import get_backend, load_format
from r1_recipes.completions.store import ShardStore, row_digest
from r1_recipes.completions.types import Completion, Request
from r1_recipes.data.load import load_dataset
from r1_recipes.models.smoke import example_rows
from r1_recipes.prompts.formats import ResponseFormat
from r1_recipes.rewards import get_reward_funcs
from r1_recipes.runs import run_dir
from r1_recipes.runs.run_dir import Run
from r1_recipes.selection.rules import KeepRules
from r1_recipes.selection.select import Selection, check_rules
from r1_recipes.selection.write import write_dataset
from r1_recipes.training.start import start

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger("r1_recipes.generate")  # under `python -m` this module is called __main__

SHARDS = "completions"
DATASET = "dataset"


def main(argv: Sequence[str] | None = None) -> None:
    """Run a generation recipe; exit with status 2 if it cannot be used, 130 if the run was stopped."""
    with console.reported_errors():
        run = start(argv, "generate")
        processes.connect(use_cpu=run.recipe.training.use_cpu)
        with ShardStore(run.output_dir / SHARDS) as store:
            try:
                fmt, rows = generate(run, store)
                processes.wait()
                if processes.is_main_process():
                    store.reload()
                    store.check_whole(rows)
                    select_and_write(run, store, fmt)
            except KeyboardInterrupt:
                logger.warning("stopped with %d rows stored; the same command goes on from there", len(store))
                raise SystemExit(130) from None


def generate(run: Run, store: ShardStore) -> tuple[ResponseFormat, int]:
    """Write the completions that ``store`` does not hold yet; return the backend's response format and the number of rows."""
    from tqdm.auto import tqdm

    recipe = run.recipe
    script, training = recipe.script, recipe.training
    tokenizer, fmt = load_format(recipe, script.backend)
    examples = example_rows(script, "generate") if script.smoke else None
    rows, report = load_dataset(script, fmt, "generate", tokenizer=tokenizer, rows=examples)
    logger.info("rows: %s", report)
    pending = _pending(rows, store, retry_failed=script.retry_failed)
    logger.info("%d of %d rows are stored; %d to go", len(rows) - len(pending), len(rows), len(pending))
    if not pending:
        return fmt, len(rows)
    pending = processes.share(pending)
    # A missing package, address or evaluation set should not show after hours of generation.
    rules, _ = _rules(run, fmt)
    check_rules(rules, hub=script.hub)
    backend = get_backend(recipe, tokenizer, script.backend)
    run_dir.claim(run)
    processes.wait()  # a row that another process has stored already would make this start look like one that goes on
    began, tokens = time.monotonic(), 0
    with tqdm(total=len(pending), desc="generating", unit="row", smoothing=0.05, disable=not processes.is_main_process()) as bar:

        def store_row(index: int, completions: list[Completion], error: str | None) -> None:
            nonlocal tokens
            row = rows[index]
            record = {"index": index, "digest": row_digest(row["prompt"], row.get("solution"))}
            record |= {"question": row.pop("question"), "prompt": row.pop("prompt"), "columns": row}
            store.append({**record, "completions": [dataclasses.asdict(c) for c in completions], "error": error})
            tokens += sum(completion.tokens for completion in completions)
            bar.set_postfix_str(f"{tokens / (time.monotonic() - began):.0f} tokens/s", refresh=False)
            bar.update()

        requests = [Request(index, rows[index]["prompt"]) for index in pending]
        backend.run(requests, store_row, [(training.temperature, training.num_generations)])
    return fmt, len(rows)


def _pending(rows: Dataset, store: ShardStore, *, retry_failed: bool) -> list[int]:
    """Indices of the rows that have no record yet; records of other prompts or golds than today's are an error."""
    remedy = "choose another --output_dir, or remove this one"
    beyond = [index for index in store.digests if index >= len(rows)]
    if beyond:
        raise RecipeError(f"{store.folder}: holds row {beyond[0]}, and today's data has {len(rows)} rows; {remedy}")
    pending = []
    solutions = rows["solution"] if "solution" in rows.column_names else [None] * len(rows)
    for index, (prompt, solution) in enumerate(zip(rows["prompt"], solutions, strict=True)):
        stored = store.digests.get(index)
        if stored is None or (retry_failed and index in store.failed):
            pending.append(index)
        elif stored != row_digest(prompt, solution):
            raise RecipeError(
                f"{store.folder}: row {index} was generated from another prompt or gold than the recipe gives it today (data, format or "
                f"prompt changed); {remedy}"
            )
    return pending


def select_and_write(run: Run, store: ShardStore, fmt: ResponseFormat) -> None:
    """Select among the stored completions by the recipe's ``keep`` rules, write the dataset, and say what became of all of them."""
    recipe, folder = run.recipe, run.output_dir / DATASET
    if store.failed:
        first = next(record["error"] for record in store if record["error"])
        logger.warning("%d rows failed for good (--retry_failed true asks again); the first: %s", len(store.failed), first)
    if folder.is_dir() and run_dir.is_finished(run.output_dir) and not run_dir.changed_settings(recipe, run.output_dir):
        console.say(f"already done: {folder}")
        return
    run_dir.claim(run)
    rules, rewards = _rules(run, fmt)
    selection = Selection(store, rules, fmt, rewards, recipe.training.reward_weights, hub=recipe.script.hub)
    write_dataset(selection, folder, recipe_settings=recipe.settings, title=recipe.name)
    run_dir.mark_finished(run.output_dir)
    console.say(f"{selection.report.table()}\n\ndataset: {folder}")


def _rules(run: Run, fmt: ResponseFormat) -> tuple[KeepRules, list[Callable]]:
    script = run.recipe.script
    # A random model's answers pass no rule; a smoke run shows that the rules can be read, and writes everything.
    rules = KeepRules.parse(None if script.smoke else script.keep)
    return rules, get_reward_funcs(script.reward_funcs, fmt, **run.recipe.reward_params)


if __name__ == "__main__":
    main()
