"""``r1-recipes init my_data.csv``: look at rows, and write a recipe for them and a test of its reward. Nothing is overwritten."""

import argparse
import ast
import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml

from r1_recipes.common import console
from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.files import SHIPPED
from r1_recipes.data import get_mapper
from r1_recipes.data.sources import load_rows
from r1_recipes.preflight.findings import listed, spread
from r1_recipes.rewards.call import right_answer, several_golds
from r1_recipes.verification.gold import read_gold
from r1_recipes.verification.lexicon import chosen
from r1_recipes.verification.moments import is_date

Row = dict[str, Any]

_LOOKED_AT = 1000  # rows, evenly spread
_WORDS = yaml.safe_load((SHIPPED / "init_words.yaml").read_text(encoding="utf-8"))
# A number whose comma is no thousands separator (3,14, 1.234,5, 1 234,5, € 9,90), and the same of the point. What follows may be a unit.
_COMMA, _POINT = (
    re.compile(rf"[^\d(\[{{\\]{{0,4}}(\d+{a}(?!\d{{3}}\D*$)|\d{{1,3}}({b}\d{{3}})+{a})\d+\D*")
    for a, b in ((",", r"[.\s]"), (r"\.", r"[,\s]"))
)


# A number or a sentence names no column: such a file has no header.
_ROW = re.compile(r"^[-+]?\d+([.,]\d+)*%?$|(\s.*\s|\d).*[.?!。？]$|.{80}", re.DOTALL)
_MODELS = {False: "Qwen/Qwen2.5-1.5B-Instruct", True: "embedded:SmolLM2-135M-Instruct"}  # on a CPU


_ALL = "all weights are trained: no config.json here says how many layers the model has. unfrozen_parameters would name the upper ones"


class _Dumper(yaml.SafeDumper):
    """Writes a list on one line, and what is no plain text in escapes."""


_Dumper.add_representer(str, lambda to, text: to.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"'))
_Dumper.add_representer(list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exit with 2 if the rows cannot be read, or question and answer cannot be told apart."""
    parser = argparse.ArgumentParser(prog="r1-recipes init", description=__doc__.partition(": ")[2], allow_abbrev=False)
    parser.add_argument("data", help="a CSV, TSV, JSON Lines, JSON or Parquet file, or a folder of them")
    for role in ("question", "answer"):
        parser.add_argument(f"--{role}", metavar="COLUMN", help=f"the {role}'s column, if it cannot be told")
    parser.add_argument("--method", choices=("grpo", "sft"), help="default: grpo if a rule can judge the answers, else sft")
    parser.add_argument("--cpu", action="store_true", help="for two CPU cores, not for a GPU: a small model, short answers")
    parser.add_argument("--model", help=f"id or folder (default: {_MODELS[False]}; --cpu: {_MODELS[True]})")
    parser.add_argument("--output", type=Path, default=Path(), help="folder for the files (default: this one)")
    with console.reported_errors():
        console.say(write(parser.parse_args(argv)))


def write(options: argparse.Namespace) -> str:
    """Write the files; return what was found, and which commands come next."""
    if Path(options.data).resolve() == Path.cwd():
        raise RecipeError(f"{options.data}: is the working directory, into which runs write. Fix: name the file, or a folder of its own")
    rows = load_rows(options.data, "train")
    sample = [rows[index] for index in spread(len(rows), _LOOKED_AT)]
    skipped = Counter[str]()
    try:
        columns, why = _columns(rows.column_names, sample, options.question, options.answer)
        fields = [mapped for _, mapped in _mapped(columns, sample, skipped)]
        if not fields:
            raise ValueError(f"no row can be used: {skipped.most_common(1)[0][0]}")
        judged, golds = _judged(fields)
        method, keys, how = _method(options, columns, judged, fields)
        skipped.clear()
        usable = {row: (mapped.get("question"), mapped.get("solution")) for row, mapped in _mapped(columns, rows, skipped)}
        splits, count, held_out = _splits(options.data, columns, [*usable], len(rows))
        doubt = ""
        if "prompt_column" in columns and "prompt_template" not in columns:
            asked = [" ".join(str(question).split()) for question, _ in usable.values()]
            held_out += _repeated(asked, count)
            doubt = several_golds(asked, [gold for _, gold in usable.values()])
    except ValueError as error:
        raise RecipeError(f"{options.data}: {error}") from error
    name = (re.sub(r"\W+", "_", Path(options.data).stem).strip("_") or "data") + "_sft" * (method == "sft")
    recipe, test = (options.output / file for file in (f"{name}.yaml", f"test_{name}.py"))
    model = options.model or _MODELS[options.cpu]
    short = {"system_prompt": "Use <think> then <answer>."} if options.cpu and judged else {}  # there each token costs time
    own = {"model_name_or_path": model, "dataset_name": options.data, **splits, **short, **keys, "output_dir": f"outputs/{name}"}
    found = yaml.dump(own, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    unfrozen = _unfrozen(model, 3 if method == "grpo" else 2)
    files = {recipe: _text(f"init_{method}{'_cpu' * options.cpu}.yaml", found=found, prompts=min(8, count), unfrozen=unfrozen)}
    rule = _WORDS["rewards"].get(judged.get("reward_funcs", [""])[0])
    if method == "grpo" and rule and not fields[0].get("scorer"):
        spellings = [*map(tuple, _WORDS["german"] if "number_locale" in judged else rule[3])]
        files[test] = _text("init_test.txt", recipe=repr(str(recipe)), spellings=spellings)
    try:
        if there := [str(path) for path in files if path.is_symlink() or path.exists()]:
            raise RecipeError(f"{listed(there)}: there already. Fix: remove it, or --output FOLDER")
        options.output.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"--output: {options.output}: must be a folder to write {name}.yaml to, got {error.strerror}") from error
    commands = [f"r1-recipes {command} {console.typed(str(recipe))}" for command in ("preflight", f"{method} --smoke", method, "evaluate")]
    trained = console.typed(f"outputs/{name}")
    commands[-1] += f" --model {console.typed(model)} --model {trained}"
    if method == "sft":
        # GRPO starts from a model that writes its format; one that learnt the answers as they stand does not.
        given = [(key, getattr(options, key)) for key in ("question", "answer", "output")]
        flags = "".join(f" --{key} {console.typed(str(value))}" for key, value in given if value not in (None, Path()))
        again = f"init {console.typed(options.data)} --method grpo --model {trained}{flags}{' --cpu' * options.cpu}"
        commands[-1:] = [f"r1-recipes {again}   # once that is trained"] if judged and "mapper_config" not in keys else []
    if test in files:
        commands.insert(0, f"python {console.typed(str(test))}")
    lines = {
        "rows": f"{count} to train on; {held_out}",
        "columns": f"{why}; there are {_listed(rows.column_names)}",
        "left out": ", ".join(f"{number} of {len(rows)}: {reason}" for reason, number in skipped.most_common(1)),
        "answers": golds,
        "doubt": doubt,
        "method": f"{method}: {how}",
        "layers": _ALL if options.cpu and _ALL in unfrozen else "",
        "machine": "" if options.cpu else "one GPU; for two CPU cores: --cpu",
        "wrote": ", ".join(map(str, files)),
    }
    said = [f"{title:<10}{line}" for title, line in lines.items() if line]
    return "\n".join([*said, "next", *(f"  {command}" for command in commands)])


def _columns(columns: list[str], sample: list[Row], question: str | None, answer: str | None) -> tuple[dict[str, Any], str]:
    """Keys that say which column is what, and why."""
    if strange := [name for name in (question, answer) if name and name not in columns]:
        raise ValueError(unknown_name("column", strange[0], columns))
    if not answer and "verification_info" not in columns and (tests := [name for name in columns if _plain(name) in _WORDS["tests"]]):
        raise ValueError(f"tests of programs must be a column verification_info (docs/code_reward.md), got {_listed(tests)}")
    left = Counter[str]()
    with contextlib.suppress(RecipeError):
        mapper = get_mapper("auto", columns).name
        # gsm8k takes every comma for one of thousands.
        german = mapper == "gsm8k" and any(_COMMA.fullmatch(right_answer(row["answer"]) or "") for row in sample)
        fields = [mapped for _, mapped in _mapped({"mapper": mapper}, sample, left)]
        letters = sum(bool(chosen(right_answer(row.get("solution")) or "")) for row in fields)
        unasked = mapper in ("math", "simplerl", "reasoning_columns") and 2 * letters > len(fields) and _options(columns, sample)
        if not (question or answer or german or unasked) and 2 * len(fields) > len(sample):
            return {"mapper": mapper}, f"those of mapper {mapper}"
    spare = [name for name in columns if _plain(name) not in _WORDS["neither"]]
    options = _options([name for name in spare if name not in (question, answer)], sample)
    spare = [name for name in spare if name not in options]
    why = "flags" if question and answer else "names"
    question = question or _named(spare, "question", answer)
    answer = answer or _named(spare, "answer", question)
    rest = [name for name in spare if name not in (question, answer) and any(row[name] is not None for row in sample)]
    if bool(question) != bool(answer) and len(rest) == 1:
        question, answer, why = question or rest[0], answer or rest[0], "there is no other"
    elif not (question or answer) and len(rest) == 2:
        size = {name: sum(len(str(row[name])) for row in sample) for name in rest}
        if max(size.values()) > 3 * min(size.values()):
            (question, answer), why = sorted(rest, key=lambda name: -size[name]), "the question is much longer"
    names = [question, answer] if question and answer else columns
    if rows := [name for name in names if why != "flags" and _ROW.search(name)]:
        fix = "write a first line such as question,answer; if it is a name: --question COLUMN --answer COLUMN"
        raise ValueError(f"must begin with the names of the columns, got {_listed(rows)}, which reads like a row. Fix: {fix}")
    if not (question and answer):
        reason = "".join(f" ({text})" for text, _ in left.most_common(1))
        flags = " ".join(f"--{role} COLUMN" for role, name in (("question", question), ("answer", answer)) if not name)
        raise ValueError(f"must show which column is the question and which the answer, got {_listed(columns)}{reason}. Fix: {flags}")
    keys: dict[str, Any] = {"mapper": "prompt_solution", "prompt_column": question, "solution_column": answer, "keep_columns": []}
    told = f"question {question!r}, answer {answer!r} ({why})"
    if worked := _named(spare, "reasoning", question, answer):
        keys["reasoning_column"], told = worked, f"{told}, worked solution {worked!r}"
    if options:
        keys["prompt_template"] = "{question}\n" + (asked := _asked(options, sample, answer))
        told += f", options {_listed(options)}: {asked.splitlines()[-1]!r}"
    return keys, told


def _plain(column: str) -> str:
    return re.sub(r"[\W_]+", " ", column.casefold()).strip()


def _listed(columns: list[str]) -> str:
    return listed([repr(name)[:60] for name in columns])


def _named(columns: list[str], role: str, *taken: str | None) -> str | None:
    """The column whose name is a word for this role, or the only one whose name holds one."""
    plain = {name: _plain(name) for name in columns if name not in taken}
    whole = [name for word in _WORDS[role] for name in plain if plain[name] == word]
    part = [name for name in plain if any(word in plain[name] for word in _WORDS[role])]
    return whole[0] if whole else part[0] if len(part) == 1 else None


def _options(columns: list[str], sample: list[Row]) -> list[str]:
    """The column that lists a question's options, or those whose names differ in the last letter (A, B, …) or number."""
    groups: dict[str, dict[str, str]] = {}
    for name in columns:
        if _plain(name) in _WORDS["options"] and _items(sample[0][name]):
            return [name]
        if match := re.fullmatch(r"([^{}\n]*?)[\s_.-]*\(?([A-J]|\d)\)?", name, re.IGNORECASE):
            groups.setdefault(match[1].casefold(), {})[match[2].upper()] = name
    known = ("ABCDEFGHIJ", "123456789", "0123456789")
    runs = [group for group in groups.values() if len(group) > 1 and any(row.startswith("".join(sorted(group))) for row in known)]
    return [runs[0][mark] for mark in sorted(runs[0])] if runs else []


def _items(cell: Any) -> Any:
    """The options in a cell that is a list, or the text of one, as pandas writes it; ``()``: it is none."""
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        cell = ast.literal_eval(cell) if isinstance(cell, str) else cell
    return cell if isinstance(cell, list | tuple | dict) else ()


def _asked(options: list[str], sample: list[Row], answer: str) -> str:
    """The options as the prompt shows them: by letter or number, as the answers are, or as they stand."""
    sample = [row for row in sample if row[answer] is not None and str(row[answer]).strip()]
    golds = [str(row[answer]).strip() for row in sample]
    if len(options) == 1:
        texts = [_items(row[options[0]]) for row in sample]
        first = any(gold == str(len(shown)) for gold, shown in zip(golds, texts, strict=True))  # else as Python counts
    else:
        texts = [[row[name] for name in options] for row in sample]
        first = "0" not in golds and not options[0].rstrip(")").endswith("0")
    numbers = [str(number + first) for number in range(10)]
    verbatim = 2 * sum(gold in map(str, shown) for gold, shown in zip(golds, texts, strict=True)) > len(golds)
    lettered, numbered = (10 * sum(kept) > 9 * len(golds) for kept in (map(bool, map(chosen, golds)), map(numbers.__contains__, golds)))
    marks = list("ABCDEFGHIJ") if lettered else numbers if numbered and not verbatim else []
    if len(options) > 1:
        return "\n".join(f"{f'{mark})' if marks else '-'} {{{name}}}" for mark, name in zip(marks or numbers, options, strict=False))
    said = f"\nAnswer with {marks[0]} for the first of these, {marks[1]} for the second, and so on." if marks else ""
    return f"{{{options[0]}}}{said}"


def _mapped(keys: dict[str, Any], rows: Sequence[Row], skipped: Counter[str]) -> Iterator[tuple[int, Row]]:
    """Yield what the mapper makes of the rows that it takes, by number; count in ``skipped`` why it leaves out others."""
    columns = {key: value for key, value in keys.items() if key.endswith("_column")}
    mapper = get_mapper(keys["mapper"], rows[0], **columns)
    for index, row in enumerate(rows):
        try:
            yield index, dict(mapper(row))
        except Exception as reason:  # a mapper meets any row here
            skipped[str(reason)] += 1


def _judged(fields: list[Row]) -> tuple[dict[str, Any], str]:
    """The keys of a reward that can judge these golds (none: no rule can), and what the golds are."""
    if any(key in row for row in fields for key in ("rejected", "image")):
        raise ValueError("must hold questions and answers, got pairs or pictures. Fix: a recipe of r1-recipes recipes")
    if any("verification_info" in row or row.get("scorer") for row in fields):
        name = "code" if "verification_info" in fields[0] else "accuracy"
        return {"reward_funcs": [name]}, f"programs with test cases, or puzzles with a checker of their own: reward {name}"
    golds = [gold for row in fields if (gold := right_answer(row.get("solution")))]
    commas, points = (sum(bool(pattern.fullmatch(gold)) for gold in golds) for pattern in (_COMMA, _POINT))
    german = {"number_locale": "de"} if commas > points else {}
    kinds, such = Counter[str](), dict[str, str]()
    for gold in sorted(golds, key=len):
        kinds[kind := _kind(gold, german.get("number_locale", "en"))] += 1
        such.setdefault(kind, gold[:60])
    told = f"{len(golds)} looked at: {', '.join(f'{count} {kind} ({such[kind]!r})' for kind, count in kinds.most_common())}"
    if commas:
        told += f", {commas} with a decimal comma and {points} with a decimal point"
    elif thousands := sum(bool(re.fullmatch(r"[-+]?\d{1,3}(\.\d{3})+\D*", gold)) for gold in golds):
        told += f", {thousands} like 1.250, read as 1.25 (number_locale: de reads 1250)"
    for name, (share, wanted, why, _) in _WORDS["rewards"].items():
        if sum(kinds[kind] for kind in wanted) > share * len(golds):
            return {"reward_funcs": [name], **(german if name != "choice_match" else {})}, f"{told}: {why}"
    return {}, f"{told}: {_WORDS['unjudged']}" if golds else "turns of conversations, without a gold"


def _kind(gold: str, locale: str) -> str:
    if chosen(gold):
        return "letters"
    if is_date(gold):
        return "dates"
    known = read_gold(gold, locale)
    return "prose" if known is None else "words" if known.words else "numbers" if known.value else "expressions"


def _method(
    options: argparse.Namespace, keys: dict[str, Any], judged: dict[str, Any], fields: list[Row]
) -> tuple[str, dict[str, Any], str]:
    """The method, all keys of the data with those of its rewards or targets, and why."""
    worked = 2 * sum(bool(row.get("reasoning") or row.get("response")) for row in fields) > len(fields)
    method = options.method or ("grpo" if judged else "sft")
    if method == "sft" and worked:
        return method, keys | {"mapper": keys["mapper"].replace("conversations", "auto")}, "there are worked solutions to learn from"
    if method == "sft" and options.cpu and judged and keys["mapper"] in ("prompt_solution", "math"):
        # A small model has to learn the format before GRPO finds an answer in it.
        answer = keys.get("solution_column", "answer")
        return (
            method,
            keys | {"reasoning_column": answer},
            f"{_WORDS['no_solutions']}, so each answer stands in its place too: {_WORDS['shape']}",
        )
    if method == "sft" and keys["mapper"] != "prompt_solution":
        raise ValueError("must have a column of worked solutions (reasoning) for sft, got answers alone. Fix: add it, or --method grpo")
    if method == "sft":
        how = "the answers are learnt as they stand"
        how += "; for GRPO start from the model itself (--method grpo), since this teaches no format" if judged else ""
        return method, keys | {"mapper_config": {"whole": True}, "system_prompt": ""}, how
    if not judged and not any(row.get("solution") for row in fields):
        raise ValueError("must have golds for grpo, got conversations. Fix: --method sft")
    how = "a rule can judge the answers"
    if worked:
        how += "; --method sft learns from their worked solutions first"
    elif options.cpu and not options.model and judged:
        how += "; the small model does not know the format yet: run --cpu --method sft first"
    if not judged:
        judged, how = _WORDS["judged"], "a judge; write its name for NAME, and set OPENAI_BASE_URL"
    shape = {"response_format": "think_answer", "reward_funcs": [*judged["reward_funcs"], "format", "tag_count"]}
    return method, keys | judged | shape | {"reward_weights": [1.0, 0.5, 0.5]}, how


def _splits(data: str, columns: dict[str, Any], usable: list[int], count: int) -> tuple[dict[str, str], int, str]:
    """The keys of the splits, the usable rows to train on, and those held out; ``usable`` are numbers of the ``count`` training rows."""
    for split in ("test", "validation") if Path(data).expanduser().is_dir() else ():
        try:
            found = len([*_mapped(columns, load_rows(data, split), Counter())])
            return {"dataset_test_split": split}, len(usable), f"{found} held out, the split {split}"
        except RecipeError as error:
            if "is not in" not in str(error):
                raise
    last = max(1, min(200, len(usable) // 10))
    if last == len(usable):
        raise ValueError("must have 2 rows at least that can be used, one of them to hold out, got 1")
    told, tail = f"{last} held out, the last ones (shuffle rows that are sorted)", count - usable[-last]
    return {"dataset_train_split": f"train[:-{tail}]", "dataset_test_split": f"train[-{tail}:]"}, len(usable) - last, told


def _repeated(asked: Sequence[str], count: int) -> str:
    """How many of the rows after the first ``count`` ask what one of these asks."""
    trained = set(asked[:count])
    twice = sum(question in trained for question in asked[count:])
    return f"; {twice} of them ask what a training row asks: remove duplicates" if twice else ""


def _unfrozen(model: str, part: int) -> str:
    """The key that leaves the upper third (``part`` 3) or half of a model's layers to be trained, if it is known how many there are."""
    layers = 30 if model == _MODELS[True] else 0
    with contextlib.suppress(OSError, ValueError, KeyError):
        layers = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    upper = "|".join(map(str, range(layers - layers // part, layers)))
    return f"# Of {layers} layers\nunfrozen_parameters: ['layers\\.({upper})\\.', 'model\\.norm\\.']" if layers else f"# {_ALL}"


def _text(template: str, **values: Any) -> str:
    return Template((SHIPPED / template).read_text(encoding="utf-8")).substitute(values)


if __name__ == "__main__":
    main()
