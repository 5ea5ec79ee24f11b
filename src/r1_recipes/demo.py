"""``make demo``: R1's story in miniature on two CPU cores, from nothing but the package registry.

The raw model cannot do the sums in the asked format; a cold-start SFT teaches the shape; GRPO with rule rewards teaches the sums. Run
again after an interruption, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from r1_recipes import runtime
from r1_recipes.embedded import smollm2_checkpoint
from r1_recipes.errors import RecipeError
from r1_recipes.evaluate import BATCH_SIZE, Scores, difference_line, evaluate_model, held_out_rows, markdown_table

logger = logging.getLogger(__name__)

SFT_RECIPE = "cpu_cold_start.yaml"
GRPO_RECIPE = "cpu_grpo.yaml"
LABELS = {"raw": "the raw model", "cold_start": "after the cold start (SFT)", "grpo": "after GRPO"}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the whole story; see ``--help``.

    Raises:
        SystemExit: 2 where something needed is missing, 130 where it was stopped.
    """
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/demo"), help="where the runs go (default outputs/demo)")
    parser.add_argument("--problems", type=int, default=200, help="held-out problems to judge, at most 400 (default 200, for time)")
    parser.add_argument("--num_samples", type=int, default=1, help="sampled answers a problem (default 1, for time)")
    parser.add_argument("--seed", type=int, default=1, help="of training and sampling (default 1)")
    parser.add_argument("--model_name_or_path", help="another checkpoint to start from; default: the embedded SmolLM2-135M-Instruct")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("r1_recipes").setLevel(logging.INFO)
    with runtime.reported_errors():
        try:
            run_demo(options.output_dir, options.problems, options.num_samples, options.seed, options.model_name_or_path)
        except KeyboardInterrupt:
            sys.stderr.write("\nstopped; `make demo` goes on from here\n")
            raise SystemExit(130) from None


def run_demo(output_dir: Path, problems: int, num_samples: int, seed: int, model: str | None = None) -> dict[str, Scores]:
    """Train both stages, judge all three models on the same held-out problems, and print the table.

    Args:
        output_dir: holds one folder a stage, ``results.md`` and ``results.json``.
        problems: held-out problems to judge.
        num_samples: sampled completions a problem, at the training temperature.
        seed: of training and sampling.
        model: start from this checkpoint; ``None``: the embedded one.

    Returns:
        Scores by stage.

    Raises:
        RecipeError: the recipes are not where they should be, or a stage cannot start.
        SystemExit: a stage ended with an error, whose status is passed on.
    """
    recipes = _recipes_folder()
    begin = time.monotonic()
    _heading("The model")
    raw = model or str(smollm2_checkpoint())
    judged = {"problems": problems, "num_samples": num_samples, "seed": seed}
    scores = {"raw": _judge("raw", raw, recipes, output_dir, judged)}
    stages = (("cold_start", "sft", SFT_RECIPE, raw), ("grpo", "grpo", GRPO_RECIPE, str(output_dir / "cold_start")))
    for stage, method, recipe, start in stages:
        _heading(
            {
                "sft": "Cold start: SFT on a few hundred sums, half of them only estimated",
                "grpo": "GRPO: accuracy and format, nothing else",
            }[method]
        )
        _train(method, recipes / recipe, start, output_dir / stage, seed)
        scores[stage] = _judge(stage, str(output_dir / stage), recipes, output_dir, judged)
    minutes = (time.monotonic() - begin) / 60
    lines = [
        markdown_table(list(scores.values()), [LABELS[stage] for stage in scores]),
        "",
        difference_line(scores["cold_start"], scores["grpo"], "GRPO over the cold start"),
        f"Judged on {len(scores['grpo'].greedy)} held-out problems, {num_samples} sampled answers each; in brackets: 95 % intervals.",
        f"Seed {seed}. The cold start was spoiled on purpose: half of its examples estimate; GRPO found out that working it out pays.",
    ]
    (output_dir / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (output_dir / "results.json").write_text(json.dumps({k: asdict(s) for k, s in scores.items()}, indent=1), encoding="utf-8")
    _heading(f"Done in {minutes:.0f} minutes")
    example = scores["grpo"].examples[0]
    runtime.say("\n".join([*lines, "", f"One answer after GRPO, to {example['question']!r}:", example["completion"], ""]))
    files = {"cold start": output_dir / "cold_start", "GRPO": output_dir / "grpo", "this table": output_dir / "results.md"}
    runtime.say("\n".join(f"{name + ':':<12}{path}" for name, path in files.items()))
    runtime.say(f"curves:     {output_dir / 'grpo' / runtime.METRICS_FILE}    completions: {output_dir / 'grpo' / 'completions'}")
    return scores


def _recipes_folder() -> Path:
    for folder in (Path("recipes"), Path(__file__).resolve().parents[2] / "recipes"):
        if (folder / GRPO_RECIPE).is_file():
            return folder
    raise RecipeError(f"recipes/{GRPO_RECIPE} is not here; run the demo from a clone of the repository")


def _heading(text: str) -> None:
    runtime.say(f"\n=== {text}")


def _train(method: str, recipe: Path, model: str, output_dir: Path, seed: int) -> None:
    if runtime.is_finished(output_dir, model_name_or_path=model, seed=seed):
        _check_fresh(recipe, method, model, output_dir, seed)
        runtime.say(f"already trained: {output_dir}")
        return
    command = [sys.executable, "-m", f"r1_recipes.{method}", str(recipe), "--model_name_or_path", model]
    command += ["--output_dir", str(output_dir), "--seed", str(seed)]
    # A process of its own gives the memory back, and is what a user would type. Ctrl-C reaches it from the terminal, too; it saves a
    # checkpoint and ends by itself, so this one only waits.
    process = subprocess.Popen(command, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"})
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    if status == 130:
        raise KeyboardInterrupt
    if status:
        raise SystemExit(status)


def _check_fresh(recipe: Path, method: str, model: str, output_dir: Path, seed: int) -> None:
    """Refuse a finished stage that today's recipe, or today's model before it, would not have made."""
    from r1_recipes.recipe import load, read_yaml

    argv = [str(recipe), "--model_name_or_path", model, "--output_dir", str(output_dir), "--seed", str(seed)]
    settings = load(argv, method).settings
    kept = read_yaml(output_dir / runtime.RECIPE_FILE)
    changed = sorted(key for key in {*settings, *kept} if settings.get(key) != kept.get(key))
    start, made = Path(model) / "model.safetensors", output_dir / "model.safetensors"
    if not changed and start.is_file() and start.stat().st_mtime_ns > made.stat().st_mtime_ns:
        changed = [f"the model in {model}"]
    if changed:
        raise RecipeError(f"{output_dir} was trained before {', '.join(changed)} changed; remove {output_dir.parent} to start afresh")


def _judge(stage: str, model: str, recipes: Path, output_dir: Path, judged: dict[str, int]) -> Scores:
    """Scores of one model, remembered beside the runs so that a second call need not repeat them."""
    path = output_dir / f"scores_{stage}.json"
    weights = Path(model) / "model.safetensors"
    # A model that was trained again has other weights under the same name.
    judged = {**judged, "weights_saved": weights.stat().st_mtime_ns if weights.is_file() else 0}
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["judged"] == judged and kept["scores"]["model"] == model:
            return Scores(**kept["scores"])
    from r1_recipes.recipe import load

    recipe = load([str(recipes / GRPO_RECIPE), "--model_name_or_path", model], "grpo")
    recipe.script.max_eval_samples = judged["problems"]
    rows = held_out_rows(recipe)
    settings = {"num_samples": judged["num_samples"], "batch_size": BATCH_SIZE, "seed": judged["seed"]}
    scores = evaluate_model(model, rows, recipe, **settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"judged": judged, "scores": asdict(scores)}), encoding="utf-8")
    runtime.say(f"{LABELS[stage]}: greedy {sum(scores.greedy) / len(rows):.1%}, sampled {sum(scores.sampled) / len(rows):.1%} right")
    return scores


if __name__ == "__main__":
    main()
