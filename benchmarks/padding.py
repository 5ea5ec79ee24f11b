"""What padding costs: one optimizer step of a bare TRL trainer and of ours with ``trim_padding``,
on completions of three length distributions.

Run:  python benchmarks/padding.py [--pairs 3] [--completions 16] [--model PATH]

Both trainers take the same prompts, sample with the same settings, and then train on completions
that are cut to the same lengths; they take turns in one process, with the same seed. The step is
timed with and without its generation. After each step the weights of both are compared: one step
of SGD with a rate of 1 moves them by the gradient. Lengths are in tokens of SmolLM2: ``equal`` has
one length, ``gsm8k`` the quantiles of the 7,473 worked solutions of openai/gsm8k's train split, and
``long-tailed`` those of a log-normal distribution (median 60, sigma 1), at most 512.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

GSM8K = (
    *(50, 57, 62, 67, 71, 75, 79, 82, 86, 89, 93, 96, 100, 103, 107, 111),
    *(115, 120, 125, 129, 134, 139, 144, 151, 156, 164, 172, 182, 194, 210, 235, 276),
)
# Questions of that split at four quantiles of their length: 38, 50, 63 and 86 tokens.
PROMPT_TOKENS = (38, 50, 63, 86)


def distributions(count: int) -> dict[str, list[int]]:
    """Lengths of ``count`` completions by distribution, in one seeded order."""
    shares = [(index + 0.5) / count for index in range(count)]
    normal = statistics.NormalDist()
    found = {
        "equal": [124] * count,
        "gsm8k": [GSM8K[int(share * len(GSM8K))] for share in shares],
        "long-tailed": [min(512, round(60 * math.exp(normal.inv_cdf(share)))) for share in shares],
    }
    for lengths in found.values():
        Random(1).shuffle(lengths)
    return found


def spread(completions: list, **columns: Any) -> list[float]:
    """A reward that differs within every group."""
    return [float(index % 3) for index in range(len(completions))]


def timed(base: type, lengths: Sequence[int], seconds: dict[str, float]) -> type:
    """A trainer class that cuts completions to these lengths, and notes where its time goes."""

    class Timed(base):
        def _generate(self, prompts: list) -> tuple:
            began = time.perf_counter()
            prompt_ids, completion_ids, *rest = super()._generate(prompts)
            seconds["generation"] = time.perf_counter() - began
            # What ended early is filled up: it is trained on, not read.
            cut = [
                (ids * (length // len(ids) + 1))[:length]
                for ids, length in zip(completion_ids, lengths, strict=True)
            ]
            return prompt_ids, cut, *rest

        def training_step(self, *args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = super().training_step(*args, **options)
            seconds["step"] = seconds.get("step", 0.0) + time.perf_counter() - began
            return result

    return Timed


def step(
    model: str, lengths: Sequence[int], trims: bool, beta: float
) -> tuple[dict[str, float], Any]:
    """Seconds of one optimizer step, and the weights after it."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from r1_recipes.recipe.types import GRPORecipeArguments
    from r1_recipes.training.trainer import RecipeGRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(model)
    word = tokenizer.encode(" apple")
    rows = [
        {"prompt": [{"role": "user", "content": tokenizer.decode(word * tokens)}]}
        for tokens in PROMPT_TOKENS
    ]
    seconds: dict[str, float] = {}
    ours = {"script": GRPORecipeArguments(reward_funcs=["spread"])} if trims else {}
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=len(lengths) // 2,
            num_generations=len(lengths) // len(rows),
            max_completion_length=max(lengths),
            max_steps=1,
            learning_rate=1.0,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            beta=beta,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=1,
            model_init_kwargs={"dtype": "float32"},
        )
        base = RecipeGRPOTrainer if trims else GRPOTrainer
        trainer = timed(base, lengths, seconds)(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=[spread],
            processing_class=tokenizer,
            **ours,
        )
        trainer.train()
    weights = torch.cat([value.detach().flatten() for value in trainer.model.parameters()])
    return seconds, weights


def run(model: str, pairs: int, completions: int, beta: float = 0.0) -> dict[str, Any]:
    """Both trainers in turn on each distribution: seconds, ratios, and how far gradients differ."""
    found: dict[str, Any] = {}
    for name, lengths in distributions(completions).items():
        times: dict[str, list[dict[str, float]]] = {"trl": [], "ours": []}
        gaps = []
        for pair in range(pairs):
            weights = {}
            for kind in list(times)[:: -1 if pair % 2 else 1]:
                seconds, weights[kind] = step(model, lengths, kind == "ours", beta)
                times[kind].append(seconds)
            gaps.append(float((weights["trl"] - weights["ours"]).abs().max()))
        found[name] = {"lengths": lengths, "seconds": times, "largest_gap": max(gaps)}
        for ratio, part in (("training", "generation"), ("whole", None)):
            both = [
                [one["step"] - (one[part] if part else 0.0) for one in times[kind]]
                for kind in ("ours", "trl")
            ]
            found[name][f"{ratio}_ratios"] = [
                ours / theirs for ours, theirs in zip(*both, strict=True)
            ]
    return {"model": Path(model).name, "completions": completions, "beta": beta, "rows": found}


def table(found: dict[str, Any]) -> str:
    lines = [
        f"One step of {found['model']}, {found['completions']} completions in micro-batches of 2, "
        f"beta {found['beta']:g}: ours with trim_padding over bare TRL",
        "",
        "| lengths | mean and longest | training, x | whole step, x | largest difference of a weight |",
        "|---|---|---|---|---|",
    ]
    for name, row in found["rows"].items():
        training, whole = (
            f"{statistics.median(row[key]):.2f} ({min(row[key]):.2f} to {max(row[key]):.2f})"
            for key in ("training_ratios", "whole_ratios")
        )
        lengths = row["lengths"]
        lines.append(
            f"| {name} | {statistics.mean(lengths):.0f}, {max(lengths)} | {training} | {whole} | "
            f"{row['largest_gap']:.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="pairs of steps (default 3)")
    parser.add_argument("--completions", type=int, default=16, help="a multiple of 8 (default 16)")
    parser.add_argument("--beta", type=float, default=0.0, help="of the KL term (default 0)")
    parser.add_argument("--model", help="checkpoint folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--output", type=Path, help="write all figures to this JSON file")
    options = parser.parse_args()
    if options.model is None:
        from layer_overhead import default_model

        options.model = default_model()
    found = run(options.model, options.pairs, options.completions, options.beta)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1), encoding="utf-8")
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
