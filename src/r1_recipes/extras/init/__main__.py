"""``r1-recipes init my_data.csv``: Write a recipe for your rows and a test of its reward."""

import argparse
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.files import SHIPPED
from r1_recipes.data import SkipRow, get_mapper
from r1_recipes.data.load import Row as ReadRow
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.preflight.findings import join_names, sampled
from r1_recipes.rewards.call import right_answer
from r1_recipes.verification.numbers import read_number
from r1_recipes.verification.reading import choice_of, read_gold, spelled

Row = dict[str, Any]
Settings = dict[str, Any]
Reasoned = tuple[Settings, str]  # Settings, and the reason for them.

_SAMPLED_ROWS = 1000
_WORDS = yaml.safe_load((SHIPPED / "init_words.yaml").read_text(encoding="utf-8"))
# A number with a decimal mark that cannot separate thousands (3,14, 1.234,5). A unit may follow.
_DECIMAL = (
    r"[^\d(\[{{\\]{{0,4}}"
    r"(\d+{mark}(?!\d{{3}}\D*$)|\d{{1,3}}({thousands}\d{{3}})+{mark})\d+\D*"
)
_DECIMAL_COMMA = re.compile(_DECIMAL.format(mark=",", thousands=r"[.\s]"))
_DECIMAL_POINT = re.compile(_DECIMAL.format(mark=r"\.", thousands=r"[,\s]"))
# A number or a sentence is not a column name, so the file has no header.
_CELL = re.compile(r"^[-+]?\d+([.,]\d+)*%?$|(\s.*\s|\d).*[.?!。？]$|.{80}", re.DOTALL)
_GPU_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
_CPU_MODEL = "embedded:SmolLM2-135M-Instruct"


class _Dumper(yaml.SafeDumper):
    """Writes a list on one line, and unprintable characters as escapes."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, True)
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Exit with 2 if the rows cannot be read or the answer column is unclear."""
    description = __doc__.partition(": ")[2]
    parser = argparse.ArgumentParser("r1-recipes init", description=description, allow_abbrev=False)
    parser.add_argument("data", help="a CSV, TSV, JSON Lines, JSON or Parquet file, or a folder")
    for role in ("question", "answer", "reasoning"):
        parser.add_argument(
            f"--{role}",
            metavar="COLUMN",
            type=utf8,
            help=f"the column of the {role}, if init does not find it by its name",
        )
    methods = "default: grpo if a rule can score the answers, else sft"
    parser.add_argument("--method", choices=("grpo", "sft"), help=methods)
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="for two CPU cores instead of a GPU: a small model and short answers",
    )
    parser.add_argument("--model", help=f"id or folder; default: {_GPU_MODEL}, --cpu: {_CPU_MODEL}")
    where = "folder for the files; default: the working directory"
    parser.add_argument("--output", type=Path, default=Path(), help=where)
    words = argv or sys.argv[1:]
    with console.reported_errors():
        console.say(write(parser.parse_args(words, argparse.Namespace(words=words))))


def utf8(typed: str) -> str:
    """Return a name as it was typed. With the locale C, Python does not decode it as UTF-8."""
    return os.fsencode(typed).decode("utf-8", "replace")


def write(options: argparse.Namespace) -> str:
    """Write the files. Return the findings and the next commands as text."""
    if Path(options.data).resolve() == Path.cwd():
        problem = "is the working directory, where runs write their output"
        raise RecipeError(f"{options.data}: {problem}. Fix: name the file, or another folder")
    rows = load_rows(options.data, "train")
    try:
        columns, why = choose_columns(rows.column_names, options)
        mapped, skipped, unread = map_rows(columns, rows)
        if not mapped:
            raise ValueError(f"all rows would be dropped: {skipped}")
        fields = [*mapped.values()]
        reward, answers = choose_reward(fields)
        if not any(row.get("reasoning") for row in fields):  # a column that is empty
            columns.pop("reasoning_column", None)
        method, settings, reason = choose_method(options, columns, reward, fields)
        splits, count, held_out = choose_splits(options.data, [*mapped], len(rows))
    except ValueError as error:
        raise RecipeError(f"{options.data}: {error}") from error
    if options.cpu and reward:  # On a CPU, each token takes long.
        settings = {"system_prompt": "Use <think> then <answer>."} | settings
    name = re.sub(r"\W+", "_", Path(options.data).stem).strip("_") or "data"
    settings = {
        "model_name_or_path": options.model or (_CPU_MODEL if options.cpu else _GPU_MODEL),
        "dataset_name": options.data,
        **splits,
        **columns,
        **settings,
        "output_dir": f"outputs/{name}_sft" if method == "sft" else f"outputs/{name}",
    }
    files = files_for(options, method, settings, count)
    save(files)
    lines = {
        "rows": f"{count} for training; {held_out}",
        "columns": f"{why}; left out: {quoted(unread) or 'none'}",
        "left out": skipped,
        "answers": answers,
        "method": f"{method}: {reason}",
        "wrote": ", ".join(map(str, files)),
    }
    printed = [f"{title:<10}{line}" for title, line in lines.items() if line]
    commands = next_commands(method, settings, [*files])
    if method == "sft" and reward and "mapper_config" not in settings:
        typed = shlex.join(options.words).replace(" --method sft", "")
        commands.append(f"r1-recipes init {typed} --method grpo --model {settings['output_dir']}")
    return "\n".join([*printed, "next", *(f"  {command}" for command in commands)])


def files_for(
    options: argparse.Namespace,
    method: str,
    settings: Settings,
    count: int,
) -> dict[Path, str]:
    """Return the recipe and, if its reward compares answers, a test of the reward."""
    name = Path(settings["output_dir"]).name
    path = options.output / f"{name}.yaml"
    template = f"init_{method}_cpu.yaml" if options.cpu else f"init_{method}.yaml"
    text = yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    files = {path: fill(template, found=text, prompts=min(8, count))}
    if rule := _WORDS["rewards"].get(settings.get("reward_funcs", [""])[0]):
        spellings = _WORDS["german"] if "number_locale" in settings else rule["spellings"]
        test = fill("init_test.txt", recipe=repr(str(path)), spellings=[*map(tuple, spellings)])
        files[options.output / f"test_{name}.py"] = test
    return files


def next_commands(method: str, settings: Settings, files: list[Path]) -> list[str]:
    """Return the next commands, from the test of the reward to the evaluation."""
    recipe, *tests = (shlex.quote(str(path)) for path in files)
    commands = [f"python {test}" for test in tests]
    for step in ("preflight", f"{method} --smoke", method):
        commands.append(f"r1-recipes {step} {recipe}")
    if method == "grpo":
        model, trained = map(shlex.quote, (settings["model_name_or_path"], settings["output_dir"]))
        commands.append(f"r1-recipes evaluate {recipe} --model {model} --model {trained}")
    return commands


def fill(template: str, **values: Any) -> str:
    """Return a shipped template with its placeholders filled in."""
    return Template((SHIPPED / template).read_text(encoding="utf-8")).substitute(values)


def save(files: dict[Path, str]) -> None:
    """Write new files into a folder. Raise if a file exists."""
    folder = next(iter(files)).parent
    try:
        existing = [str(path) for path in files if path.is_symlink() or path.exists()]
        if existing:
            fix = "remove the file, or write to another folder with --output FOLDER"
            raise RecipeError(f"{join_names(existing)}: already exists. Fix: {fix}")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        problem = f"cannot write to this folder: {error.strerror}"
        raise RecipeError(f"--output: {folder}: {problem}. Fix: another folder") from error


def map_rows(columns: Settings, rows: Any) -> tuple[dict[int, Row], str, list[str]]:
    """Return the mapped rows by index, the reasons for dropped rows, and the columns left out."""
    named = {key: value for key, value in columns.items() if key.endswith("_column")}
    mapper = get_mapper(columns["mapper"], rows.column_names, **named)
    mapped, reasons = {}, Counter[str]()
    read = set(re.findall(r"{(.*?)}", columns.get("prompt_template", "")))
    for index, row in enumerate(rows):
        try:
            made = mapper(ReadRow(row, read))
            if "solution_column" in columns and not made["solution"]:
                raise SkipRow(f"column {columns['solution_column']!r} is empty")
            mapped[index] = made
        except SkipRow as reason:
            reasons[str(reason)] += 1
    skipped = "; ".join(f"{count} rows: {reason}" for reason, count in reasons.most_common())
    return mapped, skipped, [name for name in rows.column_names if name not in read]


def folded(column: str) -> str:
    """Return a column name in lower case, with single spaces."""
    return re.sub(r"[\W_]+", " ", column.casefold()).strip()


def quoted(columns: Iterable[str]) -> str:
    """Return the quoted names of columns."""
    return join_names([repr(name)[:60] for name in columns])


def choose_columns(names: list[str], options: argparse.Namespace) -> Reasoned:
    """Return the settings that name the columns, and the reason for them."""
    check_columns(names, options)
    flagged = options.question or options.answer
    if not flagged and {"instruction", "query"} & {*names} and {"output", "response"} & {*names}:
        return {"mapper": "alpaca", "keep_columns": []}, "Alpaca's, or the same by other names"
    chats: list[Any] = [name for name in ("messages", "conversations") if name in names]
    question: Any = options.question or named_column("question", names) or (chats or [None])[0]
    others = [name for name in names if name != question]
    answer: Any = options.answer or named_column("answer", others)
    if chats and not flagged and (not answer or question not in chats):
        return {"mapper": "auto"}, f"conversations in {chats[0]!r}"
    missing = {"--question COLUMN": question, "--answer COLUMN": answer}
    flags = " ".join(flag for flag, column in missing.items() if not column)
    if not (options.question and options.answer):
        check_header(names if flags else [question, answer])
    if flags:
        problem = "the names do not show the question and the answer"
        other = "; for prompts without answers: a recipe with a reward of your own" * bool(question)
        raise ValueError(f"columns: {problem}, got {quoted(names)}. Fix: {flags}{other}")
    columns: Settings = {
        "mapper": "prompt_solution",
        "prompt_column": question,
        "solution_column": answer,
        "keep_columns": [],
    }
    letters = {folded(name): name for name in sorted(names) if re.fullmatch("[a-j]", folded(name))}
    if len(letters) > 1:
        shown = [f"{letter.upper()}) {{{letters[letter]}}}" for letter in sorted(letters)]
        columns["prompt_template"] = "\n".join(["{question}", *shown])
    others = [name for name in others if name != answer]
    worked = options.reasoning or named_column("reasoning", others)
    if worked:
        columns["reasoning_column"] = worked
    return columns, f"question {question!r}, answer {answer!r}"


def check_columns(names: list[str], options: argparse.Namespace) -> None:
    """Raise if a flag names a missing column, or if init does not support a column."""
    for column in (options.question, options.answer, options.reasoning):
        if column and column not in names:
            raise ValueError(unknown_name("column", column, names))
    for name in names:
        for pattern, problem in _WORDS["refused"].items():
            if re.fullmatch(pattern, folded(name)):
                raise ValueError(f"columns: {problem}, got {name!r}")


def check_header(names: Iterable[str]) -> None:
    """Raise if the first line of the file is a row instead of the column names."""
    cells = [name for name in names if _CELL.search(name)]
    if cells:
        problem = f"must have column names, but the first line is a row: {quoted(cells)}"
        fix = "write a first line such as question,answer"
        flags = "--question COLUMN --answer COLUMN"
        raise ValueError(f"columns: {problem}. Fix: {fix}; if these are names: {flags}")


def named_column(role: str, columns: list[str]) -> str | None:
    """Return the column named like this role, or the only one whose name contains such a word."""
    for word in _WORDS[role]:
        for name in columns:
            if folded(name) == word:
                return name
    similar = [name for name in columns if any(word in folded(name) for word in _WORDS[role])]
    return similar[0] if len(similar) == 1 else None


def choose_reward(fields: list[Row]) -> Reasoned:
    """Return the settings of a reward that can score the answers (or none), and the reason."""
    sample = sampled(fields, _SAMPLED_ROWS)
    solutions = [text for row in sample if (text := right_answer(row.get("solution")))]
    if not solutions:
        return {}, "messages of conversations, without a reference answer"
    commas = sum(bool(_DECIMAL_COMMA.fullmatch(text)) for text in solutions)
    points = sum(bool(_DECIMAL_POINT.fullmatch(text)) for text in solutions)
    locale = {"number_locale": "de"} if commas > points else {}
    kinds = Counter(answer_kind(text, locale.get("number_locale", "en")) for text in solutions)
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    answers = f"{shown}, such as {min(solutions, key=len)!r:.60}"
    answers += f"; {commas} have a decimal comma" * bool(commas)
    for name, rule in _WORDS["rewards"].items():
        if sum(kinds[kind] for kind in rule["kinds"]) > rule["share"] * len(solutions):
            return {"reward_funcs": [name], **locale}, f"{answers}. {rule['why']}"
    return {}, f"{answers}. {_WORDS['unjudged']}"


def answer_kind(solution: str, locale: str) -> str:
    """Return what a reference answer is: letters, prose, words, numbers or expressions."""
    if choice_of(spelled(solution))[0]:
        return "letters"
    parsed = read_gold(solution, locale)
    if parsed is None:
        return "prose"
    if parsed.words:
        return "words"
    return "numbers" if read_number(parsed.mathematics) else "expressions"


def check_options(columns: Settings, reward: Settings, fields: list[Row]) -> None:
    """Raise if the prompt lists options, but the answers are not letters."""
    if "prompt_template" in columns and reward.get("reward_funcs") != ["choice_match"]:
        problem = f"answers must be the letters of the options, got {fields[0]['solution']!r:.60}"
        fix = "write the letters; if the columns A, B, … are not options, rename them"
        raise ValueError(f"{problem}. Fix: {fix}")


def choose_method(
    options: argparse.Namespace,
    columns: Settings,
    reward: Settings,
    fields: list[Row],
) -> tuple[str, Settings, str]:
    """Return the method, its settings in addition to the columns, and the reason for the method."""
    check_options(columns, reward, fields)
    worked = any(row.get("reasoning") or row.get("response") for row in fields)
    if options.method == "sft" or not (options.method or reward):
        return "sft", *sft_settings(columns, worked, cpu=options.cpu, judged=bool(reward))
    if not reward and not any(row.get("solution") for row in fields):
        raise ValueError("grpo needs reference answers, got conversations. Fix: --method sft")
    why = "a rule can score the answers"
    if worked and not options.model:
        why += "; to train on the worked solutions first, use --method sft"
    elif options.cpu and not options.model:
        why += "; the small model does not know the format yet, so run --cpu --method sft first"
    if not reward:
        reward, why = _WORDS["judged"], "a judge model; replace NAME, and set OPENAI_BASE_URL"
    functions = [*reward["reward_funcs"], "format", "tag_count"]
    format_settings = {
        "response_format": "think_answer",
        "reward_funcs": functions,
        # With 0.5 each, a model unlearned to reason (docs/results.md). Where only the format
        # differs within a group, its weight does not matter: GRPO divides by the spread.
        "reward_weights": [1.0, 0.1, 0.1],
    }
    return "grpo", reward | format_settings, why


def sft_settings(columns: Settings, worked: bool, *, cpu: bool, judged: bool) -> Reasoned:
    """Return the settings that choose the target of SFT, and the reason for them."""
    if worked:
        target = "worked solution" if "solution_column" in columns else "answer of the assistant"
        return {}, f"the target is the {target}"
    if cpu and judged:
        # A small model must learn the format before GRPO can find an answer.
        return {"reasoning_column": columns["solution_column"]}, _WORDS["no_solutions"]
    why = "the target is the unchanged answer"
    if judged:
        why += "; this teaches no format, so start GRPO from the original model (--method grpo)"
    return {"mapper_config": {"whole": True}, "system_prompt": ""}, why


def choose_splits(data: str, usable: list[int], count: int) -> tuple[Settings, int, str]:
    """Return the settings of the splits, the number of training rows, and a description.

    ``usable`` are the indices of the rows that can be used, out of ``count`` rows.
    """
    for split in ("test", "validation") if Path(data).expanduser().is_dir() else ():
        try:
            held_out = len(load_rows(data, split))
            why = f"{held_out} held out, the split {split}"
            return {"dataset_test_split": split}, len(usable), why
        except RecipeError as error:
            if "is not in" not in str(error):
                raise
    last = max(1, min(200, len(usable) // 10))
    if last == len(usable):
        raise ValueError("must have at least 2 usable rows, because init holds out a row, got 1")
    tail = count - usable[-last]
    splits = {"dataset_train_split": f"train[:-{tail}]", "dataset_test_split": f"train[-{tail}:]"}
    why = f"{last} held out for evaluation, from the end (if the file is sorted, shuffle it first)"
    return splits, len(usable) - last, why


if __name__ == "__main__":
    main()
