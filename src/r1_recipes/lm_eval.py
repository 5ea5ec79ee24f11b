"""``python -m r1_recipes.lm_eval recipes/benchmarks/NAME.yaml --model PATH [--output DIR] [--key value …]``: the benchmark by lm-eval.

EleutherAI's lm-evaluation-harness gets the recipe's rows, its instruction and the checkpoint's chat template as a task of its own kind,
generates greedily and judges by its own rules. What it finds stands beside the greedy figures of :mod:`r1_recipes.evaluate`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, install_hint
from r1_recipes.evaluate import load_recipe
from r1_recipes.metrics.rows import rows_to_judge
from r1_recipes.models import tokenizer

if TYPE_CHECKING:
    from datasets import Dataset

    from r1_recipes.prompts.formats import ResponseFormat
    from r1_recipes.recipe.load import Recipe

logger = logging.getLogger("r1_recipes.lm_eval")  # under `python -m` this module is called __main__

STRICT, FLEXIBLE = "strict-match", "flexible-extract"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
# As lm-eval's own task gsm8k has it.
_FLEXIBLE_NUMBER = "(-?[$0-9.,]{2,})|(-?[0-9]+)"
# What lm-eval's exact_match does not look at: as in its task gsm8k, and also zeros that change no value (AIME's 025, 72.00).
_IGNORED = [",", "\\$", "\\.0*$", "(?<![\\d.])0+(?=\\d)"]
# The inside of \boxed{}, with braces nested up to three deep.
_BOX = r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*)\}"
_ANY = r"[\s\S]*"


def write_task(rows: Dataset, fmt: ResponseFormat, folder: Path, *, name: str, max_tokens: int, repetition_penalty: float = 1.0) -> Path:
    """Write the benchmark as an lm-eval task.

    Two filters take the answer out of a completion: ``strict-match`` where the format wants it, ``flexible-extract`` the last number or box
    after the reasoning. Numbers are compared by lm-eval's ``exact_match``, other golds by the ``is_equiv`` of its task hendrycks_math.

    Args:
        rows: ``prompt`` and ``solution``.
        fmt: as completions are read with.
        folder: gets ``rows.jsonl``, the task file and, for golds that are no numbers, ``judge.py``.
        name: of the task.
        max_tokens: of a completion.
        repetition_penalty: 1: none. Said always, or the checkpoint's ``generation_config.json`` would say it.

    Returns:
        The task file.

    Raises:
        RecipeError: rows that lm-eval could not judge (no gold, a scorer of their own) or not ask alike (several turns, instructions that
            differ).
    """
    golds = rows["solution"] if "solution" in rows.column_names else [None] * len(rows)
    scorers = rows["scorer"] if "scorer" in rows.column_names else [None] * len(rows)
    if any(scorers) or not all(golds):
        raise RecipeError(f"{name}: lm-eval compares with a gold, and these rows have a scorer of their own, or none")
    instructions, questions = set(), []
    for prompt in rows["prompt"]:
        *before, last = prompt
        if len(before) > 1 or any(message["role"] != "system" for message in before):
            raise RecipeError(f"{name}: a prompt of {len(prompt)} turns; lm-eval's task asks one question, without few_shot")
        instructions.add(before[0]["content"] if before else "")
        questions.append(last["content"])
    if len(instructions) > 1:
        raise RecipeError(f"{name}: {len(instructions)} different instructions; lm-eval's task has one")
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question": question, "solution": gold}) for question, gold in zip(questions, golds, strict=True)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    numbers = all(_NUMBER.fullmatch(gold) for gold in golds)
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str((folder / "rows.jsonl").resolve())}},
        "test_split": "test",
        "output_type": "generate_until",
        "num_fewshot": 0,
        # A Jinja template; the text is meant as it is.
        "description": "{% raw %}" + instructions.pop() + "{% endraw %}",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{solution}}",
        # Without stop words of its own a task stops at an empty line.
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": max_tokens, "repetition_penalty": repetition_penalty},
        "filter_list": _filters(fmt, numbers=numbers),
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    if numbers:
        task["metric_list"][0]["regexes_to_ignore"] = _IGNORED
    text = yaml.safe_dump(task, sort_keys=False, allow_unicode=True)
    if not numbers:
        (folder / "judge.py").write_text("from r1_recipes.lm_eval import process_results\n\n__all__ = ['process_results']\n")
        text += "process_results: !function judge.process_results\n"
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _filters(fmt: ResponseFormat, *, numbers: bool) -> list[dict[str, Any]]:
    reasoned, after = "", ""
    if fmt.reasoning_tags:
        opening, closing = map(re.escape, fmt.reasoning_tags)
        reasoned, after = f"{_ANY}{closing}", f"(?:{_ANY}{closing})?"
        if opening != closing and not fmt.prefill:
            # Without any reasoning an answer may still stand where it should; after reasoning that never ends none does.
            reasoned = f"(?:{reasoned}|(?!{_ANY}{opening}))"
    tagged = ""
    if fmt.answer_tags:
        begin, end = map(re.escape, fmt.answer_tags)
        answer = rf"[\s\S]*?{begin}\s*([\s\S]*?)\s*{end}"
        tagged = rf"|{begin}\s*([\s\S]*?)\s*{end}"
    elif fmt.boxed:
        answer = _ANY + _BOX
    else:
        answer = r"\s*" + re.escape(fmt.layout.rpartition(fmt.reasoning_tags[1])[2].removesuffix("{answer}").strip()) + rf"({_ANY})"
    strict, flexible = [_regex(rf"\A{reasoned}{answer}")], [_regex(rf"\A{after}({_ANY})")]
    if numbers:
        strict.append(_regex(_FLEXIBLE_NUMBER, last=True))
        flexible.append(_regex(_FLEXIBLE_NUMBER, last=True))
    else:
        flexible.append(_regex(_BOX + tagged, last=True))
    return [{"name": STRICT, "filter": [*strict, _FIRST]}, {"name": FLEXIBLE, "filter": [*flexible, _FIRST]}]


_FIRST = {"function": "take_first"}


def _regex(pattern: str, *, last: bool = False) -> dict[str, Any]:
    return {"function": "regex", "regex_pattern": pattern, "group_select": -1 if last else 0}


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, int]:
    """lm-eval's hook for golds that are no numbers: equal as its task hendrycks_math normalizes LaTeX."""
    from lm_eval.tasks.hendrycks_math.utils import is_equiv

    return {"exact_match": int(is_equiv(results[0], doc["solution"]))}


def run_task(task: Path, model: Any, model_args: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """lm-eval's results for one task file, each row's completion and verdicts under ``samples``.

    Args:
        task: from :func:`write_task`.
        model: name of a kind of model (``"hf"``, ``"vllm"``), or an ``lm_eval.api.model.LM``.
        model_args: of that kind.
        **options: of ``lm_eval.simple_evaluate``.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(task.parent), include_defaults=False)
    options = {"apply_chat_template": True, "log_samples": True, **options}
    return lm_eval.simple_evaluate(model=model, model_args=model_args, tasks=[task.stem], task_manager=manager, **options)


def verdicts(results: dict[str, Any], task: str, which: str) -> list[bool]:
    """Row by row, what one filter (``STRICT`` or ``FLEXIBLE``) and lm-eval's comparison found."""
    samples = [sample for sample in results["samples"][task] if sample["filter"] == which]
    return [bool(sample["exact_match"]) for sample in sorted(samples, key=lambda sample: sample["doc_id"])]


def evaluate_checkpoint(recipe: Recipe, model: str, folder: Path, *, backend: str) -> dict[str, Any]:
    """Write the task below ``folder`` and run it with the checkpoint.

    Raises:
        RecipeError: as :func:`write_task`, the model cannot be found, or its window has no room for an answer.
    """
    recipe.model.model_name_or_path = model
    rows, _ = rows_to_judge(recipe)
    tokenizer, fmt = tokenizer.load_tokenizer(recipe)
    # With the template that evaluation uses: a recipe may bring one, or a prefill.
    tokenizer.save_pretrained(folder / "tokenizer")
    longest = max(
        len(
            tokenizer(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True), add_special_tokens=False)[
                "input_ids"
            ]
        )
        for prompt in rows["prompt"]
    )
    limit = _room(recipe, longest)
    task = write_task(rows, fmt, folder, name=f"r1_{recipe.name}", max_tokens=limit, repetition_penalty=recipe.training.repetition_penalty)
    kind, arguments = _model_arguments(recipe, folder / "tokenizer", backend, longest + limit)
    device = "cpu" if recipe.training.use_cpu else None
    return run_task(task, kind, arguments, batch_size="auto" if kind == "vllm" else recipe.training.generation_batch_size, device=device)


def _room(recipe: Recipe, longest: int) -> int:
    """Tokens for a completion: lm-eval cuts prompts to make room for it, where evaluation cuts the completion."""
    from transformers import AutoConfig

    model = recipe.model
    config = AutoConfig.from_pretrained(
        _base(model.model_name_or_path), revision=model.model_revision, trust_remote_code=recipe.training.trust_remote_code
    )
    window = getattr(config.get_text_config(), "max_position_embeddings", None)
    wanted = recipe.training.max_completion_length
    if window is None or longest + wanted <= window:
        return wanted
    if window <= longest:
        raise RecipeError(
            f"{model.model_name_or_path}: its window of {window} tokens has no room for an answer; the longest prompt has {longest}"
        )
    logger.warning("completions have %d tokens at most, not %d: window %d, longest prompt %d", window - longest, wanted, window, longest)
    return window - longest


def _base(model: str) -> str:
    """The model that an adapter's folder belongs to; any other model itself."""
    adapter = Path(model) / "adapter_config.json"
    return json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"] if adapter.is_file() else model


def _model_arguments(recipe: Recipe, tokenizer: Path, backend: str, longest: int) -> tuple[str, dict[str, Any]]:
    name, training = recipe.model.model_name_or_path, recipe.training
    arguments = {
        "pretrained": _base(name),
        "tokenizer": str(tokenizer),
        "revision": recipe.model.model_revision,
        "dtype": recipe.model.dtype or "auto",
        "trust_remote_code": training.trust_remote_code,
        # The chat template writes it where there is one.
        "add_bos_token": False,
    }
    adapter = {} if _base(name) == name else {"lora_local_path" if backend == "vllm" else "peft": name}
    if backend == "vllm":
        names = {
            "tensor_parallel_size": training.vllm_tensor_parallel_size,
            "gpu_memory_utilization": training.vllm_gpu_memory_utilization,
            "max_model_len": training.vllm_max_model_length,
        }
        return "vllm", arguments | adapter | names
    return "hf", arguments | adapter | {"max_length": longest}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; see the module's first lines.

    Raises:
        SystemExit: 2 where lm-eval, the recipe, its data or the model cannot be used.
    """
    parser = argparse.ArgumentParser(prog="python -m r1_recipes.lm_eval", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("recipe", help="a benchmark, or a GRPO recipe")
    parser.add_argument("--model", help="path or id (default: the recipe's own)")
    parser.add_argument("--backend", choices=("transformers", "vllm"), help="who generates (default: the benchmark's, else transformers)")
    parser.add_argument("--output", type=Path, help="folder of the task and its results (default: outputs/lm_eval/RECIPE/MODEL)")
    options, overrides = parser.parse_known_args(argv)
    with console.reported_errors():
        if importlib.util.find_spec("lm_eval") is None:
            raise RecipeError(f"lm-eval is not installed; {install_hint('lm-eval')}")
        recipe = load_recipe([options.recipe, *overrides])
        console.set_up_logging(recipe)
        model = options.model or recipe.model.model_name_or_path
        if model is None:
            raise RecipeError(f"--model: missing; {options.recipe} names none: a checkpoint's folder, or a hub id")
        folder = options.output or Path("outputs") / "lm_eval" / recipe.name / Path(model).name
        results = evaluate_checkpoint(recipe, model, folder, backend=options.backend or getattr(recipe.script, "backend", "transformers"))
        samples = results.pop("samples")
        for name, content in (("results.json", results), ("samples.json", samples)):
            (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
        from lm_eval.utils import make_table

        console.say(f"{make_table(results)}\n{folder / 'results.json'}, and every completion in samples.json")


if __name__ == "__main__":
    main()
