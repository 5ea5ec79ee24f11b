"""``r1-recipes init my_data.csv``: write a recipe for your rows and a test of its reward.

Nothing is overwritten.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.files import SHIPPED
from r1_recipes.data import get_mapper
from r1_recipes.data.sources import load_rows
from r1_recipes.extras.preflight.findings import evenly_spaced, join_names
from r1_recipes.rewards.call import right_answer, several_golds
from r1_recipes.verification.gold import read_gold
from r1_recipes.verification.lexicon import chosen
from r1_recipes.verification.moments import is_date

Row = dict[str, Any]
Settings = dict[str, Any]
Reasoned = tuple[Settings, str]  # settings, and why

_SAMPLED_ROWS = 1000
_WORDS = yaml.safe_load((SHIPPED / "init_words.yaml").read_text(encoding="utf-8"))
# A number whose mark is not the one between thousands (3,14, 1.234,5, € 9,90). A unit may follow.
_DECIMAL = (
    r"[^\d(\[{{\\]{{0,4}}"
    r"(\d+{mark}(?!\d{{3}}\D*$)|\d{{1,3}}({thousands}\d{{3}})+{mark})\d+\D*"
)
_DECIMAL_COMMA = re.compile(_DECIMAL.format(mark=",", thousands=r"[.\s]"))
_DECIMAL_POINT = re.compile(_DECIMAL.format(mark=r"\.", thousands=r"[,\s]"))
# A number or a sentence names no column: such a file has no header.
_CELL = re.compile(r"^[-+]?\d+([.,]\d+)*%?$|(\s.*\s|\d).*[.?!。？]$|.{80}", re.DOTALL)
_GPU_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
_CPU_MODEL = "embedded:SmolLM2-135M-Instruct"


class _Dumper(yaml.SafeDumper):
    """Writes a list on one line, and what is no plain text in escapes."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


def _represent_list(dumper: yaml.SafeDumper, items: list) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exit with 2 if the rows cannot be read, or no name tells the answer."""
    description = __doc__.partition(": ")[2]
    parser = argparse.ArgumentParser("r1-recipes init", description=description, allow_abbrev=False)
    parser.add_argument("data", help="a CSV, TSV, JSON Lines, JSON or Parquet file, or a folder")
    for role in ("question", "answer", "reasoning"):
        parser.add_argument(
            f"--{role}",
            metavar="COLUMN",
            type=utf8,
            help=f"the column of the {role}, if its name does not say so",
        )
    parser.add_argument(
        "--method",
        choices=("grpo", "sft"),
        help="default: grpo if a rule can judge the answers, else sft",
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="for two CPU cores, not for a GPU: a small model, short answers",
    )
    parser.add_argument("--model", help=f"id or folder; default: {_GPU_MODEL}, --cpu: {_CPU_MODEL}")
    parser.add_argument("--output", type=Path, default=Path(), help="folder; default: this one")
    with console.reported_errors():
        console.say(write(parser.parse_args(argv)))


def utf8(typed: str) -> str:
    """A name as it was typed, also where the locale is C and Python took its bytes for no text."""
    return os.fsencode(typed).decode("utf-8", "replace")


def write(options: argparse.Namespace) -> str:
    """Write the files; return what was found, and which commands come next."""
    if Path(options.data).resolve() == Path.cwd():
        problem = "is the working directory, into which runs write"
        raise RecipeError(f"{options.data}: {problem}. Fix: name the file, or a folder of its own")
    rows = load_rows(options.data, "train")
    try:
        columns, why = choose_columns(rows.column_names, options)
        mapped, skipped = map_rows(columns, rows)
        if not mapped:
            raise ValueError(f"no row can be used: {skipped}")
        fields = [*mapped.values()]
        reward, answers = choose_reward(fields)
        method, settings, how = choose_method(options, columns, reward, fields)
        splits, count, held_out = choose_splits(options.data, [*mapped], len(rows))
    except ValueError as error:
        raise RecipeError(f"{options.data}: {error}") from error
    if options.cpu and reward:  # there each token costs time
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
        "rows": f"{count} to train on; {held_out}",
        "columns": f"{why}; there are {quoted(rows.column_names)}",
        "left out": skipped,
        "answers": answers,
        "doubt": doubts(columns, fields, count),
        "method": f"{method}: {how}",
        "wrote": ", ".join(map(str, files)),
    }
    printed = [f"{title:<10}{line}" for title, line in lines.items() if line]
    commands = next_commands(method, settings, [*files])
    if method == "sft" and reward and "mapper_config" not in settings:
        trained = settings["output_dir"]
        commands.append(f"# then this init again, with --method grpo --model {trained}")
    return "\n".join([*printed, "next", *(f"  {command}" for command in commands)])


def files_for(
    options: argparse.Namespace,
    method: str,
    settings: Settings,
    count: int,
) -> dict[Path, str]:
    """Return the recipe with these settings and, if its reward compares answers, a test of it."""
    name = Path(settings["output_dir"]).name
    path = options.output / f"{name}.yaml"
    template = f"init_{method}_cpu.yaml" if options.cpu else f"init_{method}.yaml"
    found = yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    files = {path: fill(template, found=found, prompts=min(8, count))}
    rule = _WORDS["rewards"].get(settings.get("reward_funcs", [""])[0])
    if rule:
        spellings = _WORDS["german"] if "number_locale" in settings else rule["spellings"]
        test = fill("init_test.txt", recipe=repr(str(path)), spellings=[*map(tuple, spellings)])
        files[options.output / f"test_{name}.py"] = test
    return files


def next_commands(method: str, settings: Settings, files: list[Path]) -> list[str]:
    """Return the commands to type, from the test of the reward to the evaluation."""
    recipe, *tests = (console.typed(str(path)) for path in files)
    commands = [f"python {test}" for test in tests]
    steps = ("preflight", f"{method} --smoke", method)
    commands += [f"r1-recipes {step} {recipe}" for step in steps]
    if method == "grpo":
        model, trained = console.typed(settings["model_name_or_path"]), settings["output_dir"]
        commands.append(f"r1-recipes evaluate {recipe} --model {model} --model {trained}")
    return commands


def fill(template: str, **values: Any) -> str:
    return Template((SHIPPED / template).read_text(encoding="utf-8")).substitute(values)


def save(files: dict[Path, str]) -> None:
    """Write files that are not there yet, into one folder."""
    folder = next(iter(files)).parent
    try:
        existing = [str(path) for path in files if path.is_symlink() or path.exists()]
        if existing:
            fix = "remove it, or --output FOLDER"
            raise RecipeError(f"{join_names(existing)}: there already. Fix: {fix}")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        problem = f"must be a folder to write to, got {error.strerror}"
        raise RecipeError(f"--output: {folder}: {problem}") from error


def map_rows(columns: Settings, rows: Any) -> tuple[dict[int, Row], str]:
    """Return the mapped rows by number, and how many are left out for the most frequent reason."""
    named = {key: value for key, value in columns.items() if key.endswith("_column")}
    mapper = get_mapper(columns["mapper"], rows.column_names, **named)
    mapped, reasons = {}, Counter[str]()
    for index, row in enumerate(rows):
        try:
            mapped[index] = dict(mapper(row))
        except Exception as reason:  # a mapper meets any row here
            reasons[str(reason)] += 1
    return mapped, "".join(f"{count} rows: {reason}" for reason, count in reasons.most_common(1))


def plain(column: str) -> str:
    return re.sub(r"[\W_]+", " ", column.casefold()).strip()


def quoted(columns: Iterable[str]) -> str:
    return join_names([repr(name)[:60] for name in columns])


def choose_columns(names: list[str], options: argparse.Namespace) -> Reasoned:
    """Return the settings that say which column is what, and why."""
    check_columns(names, options)
    question: Any = options.question or named_column("question", names)
    others = [name for name in names if name != question]
    answer: Any = options.answer or named_column("answer", others)
    missing = {"--question COLUMN": question, "--answer COLUMN": answer}
    flags = " ".join(flag for flag, column in missing.items() if not column)
    if flags and "messages" in names:
        return {"mapper": "auto"}, "conversations in 'messages'"
    if not (options.question and options.answer):
        check_header(names if flags else [question, answer])
    if flags:
        problem = "must show which column is the question and which the answer"
        raise ValueError(f"{problem}, got {quoted(names)}. Fix: {flags}")
    columns: Settings = {
        "mapper": "prompt_solution",
        "prompt_column": question,
        "solution_column": answer,
        "keep_columns": [],
    }
    letters = {plain(name): name for name in sorted(names) if re.fullmatch("[a-j]", plain(name))}
    if len(letters) > 1:
        shown = [f"{letter.upper()}) {{{letters[letter]}}}" for letter in sorted(letters)]
        columns["prompt_template"] = "\n".join(["{question}", *shown])
    others = [name for name in others if name != answer]
    worked = options.reasoning or named_column("reasoning", others)
    if worked:
        columns["reasoning_column"] = worked
    return columns, f"question {question!r}, answer {answer!r}"


def check_columns(names: list[str], options: argparse.Namespace) -> None:
    """Refuse flags that name no column, and columns without which the recipe would be wrong."""
    for column in (options.question, options.answer, options.reasoning):
        if column and column not in names:
            raise ValueError(unknown_name("column", column, names))
    for name in names:
        for pattern, problem in _WORDS["refused"].items():
            if re.fullmatch(pattern, plain(name)):
                raise ValueError(f"{problem}, got {name!r}")


def check_header(names: Iterable[str]) -> None:
    """Refuse a file that begins with a row."""
    cells = [name for name in names if _CELL.search(name)]
    if cells:
        problem = f"must begin with the names of the columns, got {quoted(cells)}: this is a row"
        fix = "write a first line such as question,answer"
        flags = "--question COLUMN --answer COLUMN"
        raise ValueError(f"{problem}. Fix: {fix}; if it is a name: {flags}")


def named_column(role: str, columns: list[str]) -> str | None:
    """Return the column whose name is a word for this role, or the only one that holds one."""
    for word in _WORDS[role]:
        for name in columns:
            if plain(name) == word:
                return name
    part = [name for name in columns if any(word in plain(name) for word in _WORDS[role])]
    return part[0] if len(part) == 1 else None


def choose_reward(fields: list[Row]) -> Reasoned:
    """Return the settings of a reward that can judge the answers, if one can, and why."""
    sample = [fields[index] for index in evenly_spaced(len(fields), _SAMPLED_ROWS)]
    golds = [gold for row in sample if (gold := right_answer(row.get("solution")))]
    if not golds:
        return {}, "turns of conversations, without a gold"
    commas = sum(bool(_DECIMAL_COMMA.fullmatch(gold)) for gold in golds)
    points = sum(bool(_DECIMAL_POINT.fullmatch(gold)) for gold in golds)
    locale = {"number_locale": "de"} if commas > points else {}
    kinds = Counter(answer_kind(gold, locale.get("number_locale", "en")) for gold in golds)
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    answers = f"{shown}, such as {min(golds, key=len)!r:.60}; {commas} with a decimal comma"
    for name, rule in _WORDS["rewards"].items():
        if sum(kinds[kind] for kind in rule["kinds"]) > rule["share"] * len(golds):
            return {"reward_funcs": [name], **locale}, f"{answers}: {rule['why']}"
    return {}, f"{answers}: {_WORDS['unjudged']}"


def answer_kind(gold: str, locale: str) -> str:
    if chosen(gold):
        return "letters"
    if is_date(gold):
        return "dates"
    parsed = read_gold(gold, locale)
    if parsed is None:
        return "prose"
    if parsed.words:
        return "words"
    return "numbers" if parsed.value else "expressions"


def doubts(columns: Settings, fields: list[Row], count: int) -> str:
    """Say which questions have two golds, and how many held-out ones are trained on."""
    if "prompt_column" not in columns or "prompt_template" in columns:
        return ""
    questions = [" ".join(row["question"].split()) for row in fields]
    doubt = several_golds(questions, [row["solution"] for row in fields])
    trained = set(questions[:count])
    repeated = sum(question in trained for question in questions[count:])
    if repeated:
        doubt += f"; {repeated} held-out rows ask what a training row asks: remove duplicates"
    return doubt.removeprefix("; ")


def check_options(columns: Settings, reward: Settings, fields: list[Row]) -> None:
    """Refuse answers other than letters: the prompt asks for a letter."""
    if "prompt_template" in columns and reward.get("reward_funcs") != ["choice_match"]:
        problem = f"answers must be the letters of the options, got {fields[0]['solution']!r:.60}"
        fix = "write the letters; or, if these are no options, rename the columns A, B, …"
        raise ValueError(f"{problem}. Fix: {fix}")


def choose_method(
    options: argparse.Namespace,
    columns: Settings,
    reward: Settings,
    fields: list[Row],
) -> tuple[str, Settings, str]:
    """Return the method, what it needs beside the columns, and why."""
    check_options(columns, reward, fields)
    worked = any(row.get("reasoning") or row.get("response") for row in fields)
    if options.method == "sft" or not (options.method or reward):
        return "sft", *sft_settings(columns, worked, cpu=options.cpu, judged=bool(reward))
    if not reward and not any(row.get("solution") for row in fields):
        raise ValueError("must have golds for grpo, got conversations. Fix: --method sft")
    why = "a rule can judge the answers"
    if worked:
        why += "; --method sft learns from their worked solutions first"
    elif options.cpu and not options.model:
        why += "; the small model does not know the format yet: run --cpu --method sft first"
    if not reward:
        reward, why = _WORDS["judged"], "a judge; write its name for NAME, and set OPENAI_BASE_URL"
    functions = [*reward["reward_funcs"], "format", "tag_count"]
    shape = {
        "response_format": "think_answer",
        "reward_funcs": functions,
        "reward_weights": [1.0, 0.5, 0.5],
    }
    return "grpo", reward | shape, why


def sft_settings(columns: Settings, worked: bool, *, cpu: bool, judged: bool) -> Reasoned:
    """Return what SFT learns from, and why."""
    if worked:
        return {}, "there are worked solutions to learn from"
    if cpu and judged:
        # A small model has to learn the format before GRPO finds an answer in it.
        return {"reasoning_column": columns["solution_column"]}, _WORDS["no_solutions"]
    why = "the answers are learnt as they stand"
    if judged:
        why += "; this teaches no format: for GRPO start from the model itself (--method grpo)"
    return {"mapper_config": {"whole": True}, "system_prompt": ""}, why


def choose_splits(data: str, usable: list[int], count: int) -> tuple[Settings, int, str]:
    """Return the settings of the splits, the number of training rows, and what is held out.

    ``usable`` are the numbers of the rows that can be used, of ``count``.
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
        raise ValueError("must have 2 rows at least that can be used, one to hold out, got 1")
    tail = count - usable[-last]
    splits = {"dataset_train_split": f"train[:-{tail}]", "dataset_test_split": f"train[-{tail}:]"}
    why = f"{last} held out, the last ones (shuffle rows that are sorted)"
    return splits, len(usable) - last, why


if __name__ == "__main__":
    main()
