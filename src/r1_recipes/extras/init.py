"""``r1-recipes init my_data.csv``: Write a recipe for your rows and a test of its reward."""

import argparse
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, located
from r1_recipes.common.files import SHIPPED
from r1_recipes.data.load import LoadReport, load_dataset
from r1_recipes.data.mappers import fits
from r1_recipes.data.sources import load_rows
from r1_recipes.prompts import get_response_format
from r1_recipes.recipe.types import GRPORecipeArguments
from r1_recipes.rewards.call import right_answer
from r1_recipes.verification.numbers import read_number
from r1_recipes.verification.reading import choice_of, read_gold, spelled

Settings = dict[str, Any]
Reasoned = tuple[Settings, str]  # Settings, and the reason for them.

_WORDS = yaml.safe_load((SHIPPED / "init_words.yaml").read_text(encoding="utf-8"))
# A number with a decimal comma, or a point, that cannot separate thousands. A unit may follow.
_DECIMALS = [
    re.compile(r"[^\d(\[{\\]{0,4}\d[\d.\s]*,(\d\d?|\d{4,})\D*"),
    re.compile(r"[^\d(\[{\\]{0,4}\d[\d,\s]*\.(\d\d?|\d{4,})\D*"),
]
# Mappers that are told by their columns, and the columns that only they can read.
_SHAPES = {"alpaca": (), "verl": (), "multiple_choice": ("choices", "options")}
_GPU_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
_CPU_MODEL = "embedded:SmolLM2-135M-Instruct"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Exit with 2 if the rows cannot be read or the answer column is unclear."""
    parser = argparse.ArgumentParser(
        "r1-recipes init", description=__doc__.partition(": ")[2], allow_abbrev=False
    )
    add = parser.add_argument
    add("data", help="a CSV, TSV, JSON Lines, JSON or Parquet file, or a folder")
    for role in ("question", "answer", "reasoning"):
        add(f"--{role}", metavar="COLUMN", help=f"its column, if init does not find the {role}")
    add("--method", choices=("grpo", "sft"), help="default: grpo if a rule can score the answers")
    add("--cpu", action="store_true", help="for two CPU cores: a small model and short answers")
    add("--model", help=f"id or folder; default: {_GPU_MODEL}, --cpu: {_CPU_MODEL}")
    add("--output", type=Path, default=Path(), help="folder for the files; default: this one")
    with console.reported_errors():
        words = argv or sys.argv[1:]
        options = parser.parse_args(words, argparse.Namespace(words=words))
        with located(options.data):
            console.say(write(options))


def write(options: argparse.Namespace) -> str:
    """Write the files. Return the findings and the next commands as text."""
    source = load_rows(options.data, "train")
    columns, why = choose_columns(source, options)
    solutions, report = read_answers(options, columns, source)
    reward, answers = choose_reward(solutions)
    # Without that mapper, the target is the assistant's answer.
    worked = "reasoning_column" in columns or columns["mapper"] == "auto"
    if ") {" in columns.get("prompt_template", "") and "choice_match" not in str(reward):
        raise ValueError(
            f"answers must be the letters of the options, got {solutions[0]!r:.60}. Fix: write the "
            "letters; if the columns A, B, … are not options, rename them"
        )
    name = re.sub(r"\W+", "_", Path(options.data).stem).strip("_") or "data"
    method = options.method or ("grpo" if reward else "sft")
    if method == "sft":
        name += "_sft"
        settings, reason = sft_settings(options, columns, reward, worked=worked)
    else:
        settings, reason = grpo_settings(options, reward, worked=worked)
    if options.cpu and reward:  # On a CPU, each token takes long.
        settings = {"system_prompt": "Use <think> then <answer>."} | settings
    last = max(1, min(200, len(source) // 10))
    settings = {
        "model_name_or_path": options.model or (_CPU_MODEL if options.cpu else _GPU_MODEL),
        "dataset_name": options.data,
        "dataset_train_split": f"train[:-{last}]",
        "dataset_test_split": f"train[-{last}:]",
        **columns,
        **settings,
        "output_dir": f"outputs/{name}",
    }
    paths = save(options, name, method, settings, prompts=min(8, len(source) - last))
    return "\n".join(
        [
            f"rows      {len(source) - last} for training; {last} held out for evaluation, from "
            f"the end (if the file is sorted, shuffle it first). {report}",
            f"columns   {why}; left out: {', '.join(map(repr, report.unused)) or 'none'}",
            f"answers   {answers}",
            f"method    {method}: {reason}",
            f"wrote     {', '.join(paths)}",
            "next",
            *next_commands(options, method, settings, paths, judged=bool(reward)),
        ]
    )


def read_answers(
    options: argparse.Namespace, columns: Settings, source: Any
) -> tuple[list[str], LoadReport]:
    """Return the reference answers, and what a run drops and leaves out of these rows."""
    chats = columns["mapper"] == "auto"
    if chats and options.method == "grpo":
        raise ValueError("grpo needs reference answers, got conversations. Fix: --method sft")
    args = GRPORecipeArguments(dataset_name=options.data, reward_funcs=["accuracy"], **columns)
    fmt = get_response_format("think_answer")
    rows, report = load_dataset(args, fmt, "sft" if chats else "grpo", rows=source)
    return [*filter(None, map(right_answer, () if chats else rows["solution"]))], report


def save(
    options: argparse.Namespace, name: str, method: str, settings: Settings, prompts: int
) -> list[str]:
    """Write the recipe and, if its reward compares answers, a test of the reward.

    Return their paths. Raise if one of them exists.
    """
    path = options.output / f"{name}.yaml"
    template = f"init_{method}{'_cpu' * options.cpu}.yaml"
    found = yaml.safe_dump(settings, allow_unicode=True, width=1000, sort_keys=False)
    files = {path: fill(template, found=found, prompts=prompts, completions=8 * min(5, prompts))}
    if rule := _WORDS["rewards"].get(settings.get("reward_funcs", [""])[0]):
        spellings = _WORDS["german"] if "number_locale" in settings else rule["spellings"]
        test = fill("init_test.txt", recipe=repr(str(path)), spellings=[*map(tuple, spellings)])
        files[options.output / f"test_{name}.py"] = test
    options.output.mkdir(parents=True, exist_ok=True)
    for file in files:
        if file.exists():
            raise RecipeError(f"{file}: already exists. Fix: remove it, or --output FOLDER")
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return list(map(str, files))


def fill(template: str, **values: Any) -> str:
    return Template((SHIPPED / template).read_text(encoding="utf-8")).substitute(values)


def next_commands(
    options: argparse.Namespace, method: str, settings: Settings, paths: list[str], *, judged: bool
) -> list[str]:
    """Return the next commands: test, check, train, and what follows the training."""
    recipe, *tests = map(shlex.quote, paths)
    model, trained = map(shlex.quote, (settings["model_name_or_path"], settings["output_dir"]))
    commands = [f"  python {test}" for test in tests]
    for step in ("preflight", f"{method} --smoke", method):
        commands.append(f"  r1-recipes {step} {recipe}")
    if method == "grpo":
        commands.append(f"  r1-recipes evaluate {recipe} --model {model} --model {trained}")
    elif judged and settings.get("system_prompt") != "":
        if not options.cpu:  # GRPO starts from a whole model, with adapters of its own.
            commands.append(f"  r1-recipes adapters {trained}")
            trained += "/merged"
        typed = shlex.join(options.words).replace(" --method sft", "")
        commands.append(f"  r1-recipes init {typed} --method grpo --model {trained}")
    return commands


def choose_columns(source: Any, options: argparse.Namespace) -> Reasoned:
    """Return the settings that name the columns, and the reason for them."""
    names = [n for n in source.column_names if any(cell not in (None, "") for cell in source[n])]
    shapes = ("alpaca",) if options.method == "sft" else _SHAPES  # the others have no target of SFT
    shape = next((mapper for mapper in shapes if fits(mapper, names)), "")
    check_columns([name for name in names if name not in _SHAPES.get(shape, ())])
    flagged = options.question or options.answer or options.reasoning
    chats = [name for name in ("messages", "conversations") if name in names]
    question = options.question or named_column("question", names) or next(iter(chats), None)
    others = [name for name in names if name != question]
    answer = options.answer or named_column("answer", others)
    if shape and not flagged:
        return {"mapper": shape, "keep_columns": []}, f"those of the mapper {shape}"
    if chats and not flagged and not (answer and (question in chats or options.method == "grpo")):
        return {"mapper": "auto"}, f"conversations in {chats[0]!r}"
    if not (question and answer):
        raise ValueError(
            "columns: the names do not show the question and the answer, got "
            f"{', '.join(map(repr, names))}. Fix: --question COLUMN --answer COLUMN; for prompts "
            "without answers: a recipe with a reward of your own"
        )
    columns: Settings = {
        "mapper": "prompt_solution",
        "prompt_column": question,
        "solution_column": answer,
        "keep_columns": [],
    }
    letters = {folded(name): name for name in sorted(names) if re.fullmatch("[a-j]", folded(name))}
    shown = [f"{name.upper()}) {{{letters[name]}}}" for name in sorted(letters) if len(letters) > 1]
    about = [f"{{{name}}}\n" for name in others if folded(name) in _WORDS["context"]]
    if about or shown:
        columns["prompt_template"] = "\n".join([*about, "{question}", *shown])
    worked = options.reasoning or named_column("reasoning", [n for n in others if n != answer])
    return (
        columns | ({"reasoning_column": worked} if worked else {}),
        f"question {question!r}, answer {answer!r}" + f", reasoning {worked!r}" * bool(worked),
    )


def check_columns(names: list[str]) -> None:
    """Raise if init does not support a column."""
    for name in names:
        for pattern, problem in _WORDS["refused"].items():
            if re.fullmatch(pattern, folded(name)):
                raise ValueError(f"columns: {problem}, got {name!r}")


def folded(column: str) -> str:
    """Return a column name in lower case, with single spaces."""
    return re.sub(r"[\W_]+", " ", column.casefold()).strip()


def named_column(role: str, columns: list[str]) -> str | None:
    """Return the column named like this role, or the only one whose name contains such a word."""
    exact = [name for word in _WORDS[role] for name in columns if folded(name) == word]
    similar = [
        name
        for name in columns
        if any(word in folded(name) for word in _WORDS[role])
        and not re.search(r"\b(ids?|idx|index|type)\Z", folded(name))
    ]
    return next(iter(exact), similar[0] if len(similar) == 1 else None)


def choose_reward(solutions: list[str]) -> Reasoned:
    """Return the settings of a reward that can score the answers (or none), and the reason."""
    if not solutions:
        return {}, "in conversations, without a reference answer"
    solutions = [text.replace("{,}", ",") for text in solutions[:: len(solutions) // 1000 + 1]]
    commas, points = (len([*filter(mark.fullmatch, solutions)]) for mark in _DECIMALS)
    locale = {"number_locale": "de"} if commas > points else {}
    kinds = Counter(answer_kind(text, locale.get("number_locale", "en")) for text in solutions)
    found = ", ".join(
        [
            *(f"{count} {kind}" for kind, count in kinds.most_common()),
            f"such as {min(solutions, key=len)!r:.60}",
        ]
    )
    for name, rule in _WORDS["rewards"].items():
        if sum(kinds[kind] for kind in rule["kinds"]) > rule["share"] * len(solutions):
            return {"reward_funcs": [name], **locale}, f"{found}. {rule['why']}"
    return {}, f"{found}. {_WORDS['unjudged']}"


def answer_kind(solution: str, locale: str) -> str:
    """Return what a reference answer is: letters, prose, words, dates, numbers or expressions."""
    if re.fullmatch(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}", solution.strip()):
        return "dates"
    if choice_of(spelled(solution))[0]:
        return "letters"
    parsed = read_gold(solution, locale)
    if parsed and not parsed.words:
        return "numbers" if read_number(parsed.mathematics) else "expressions"
    # Several lines or sentences, or one of more than five words
    long = r"\n|[.!?]\s+\w\w|[。！？]\S|(?:\S+\s+){5}\S+[.。]\Z"
    return "words" if parsed and not re.search(long, solution) else "prose"


def grpo_settings(options: argparse.Namespace, reward: Settings, *, worked: bool) -> Reasoned:
    """Return the settings of the rewards, and the reason for them."""
    why = "a rule can score the answers"
    if not options.model and (worked or options.cpu):
        why += "; train on the worked solutions, or the format, first: --method sft"
    if not reward:
        reward, why = _WORDS["judged"], "a judge model; replace NAME, and set OPENAI_BASE_URL"
    elif not options.cpu:
        return reward | _boxed(options, reward), why
    return reward | {
        "response_format": "think_answer",
        "reward_funcs": [*reward["reward_funcs"], "format", "tag_count"],
        # With 0.5 each, a model unlearned to reason (docs/results.md). Where only the format
        # differs within a group, its weight does not matter: GRPO divides by the spread.
        "reward_weights": [1.0, 0.1, 0.1],
    }, why


def sft_settings(
    options: argparse.Namespace, columns: Settings, reward: Settings, *, worked: bool
) -> Reasoned:
    """Return the settings that choose the target of SFT, and the reason for them."""
    if worked:
        why = "the target is the worked solution, or the answer of the assistant"
        return _boxed(options, reward), why
    if options.cpu and reward and "solution_column" in columns:
        # A small model must learn the format before GRPO can find an answer.
        return {"reasoning_column": columns["solution_column"]}, _WORDS["no_solutions"]
    why = "the target is the unchanged answer"
    why += "; this teaches no format: start GRPO from the original model" * bool(reward)
    whole = {"mapper_config": {"whole": True}} if columns["mapper"] == "prompt_solution" else {}
    return whole | {"system_prompt": ""}, why


def _boxed(options: argparse.Namespace, reward: Settings) -> Settings:
    """Return the format that needs no reward of its own, because models write it by themselves.

    The small model for CPUs learns tags first. Source: docs/results.md, Tags or a box.
    """
    return {"response_format": "boxed"} if reward and not options.cpu else {}
