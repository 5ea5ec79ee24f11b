"""Answers in words or option letters: rewards, a judge, and the mapper of questions."""

import re
import unicodedata
from string import ascii_uppercase
from typing import Any

import regex

from r1_recipes.common.messages import completion_texts
from r1_recipes.data.mappers import MappedRow, SkipRow, register_mapper
from r1_recipes.data.mappers import text as cell
from r1_recipes.data.messages import parsed
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards.answers import THINK_ANSWER, Column, Log, Values, ignore, judged
from r1_recipes.verification.reading import choice_of, final_answer, spelled

# A number keeps its sign, its decimal point, and a slash, colon or comparison sign beside it. A
# word keeps a sign at its end: HER2+ is not HER2-, and C# is not C. A hyphen after a letter is not
# a sign: Type-2 is Type 2. The module regex counts vowel signs of Thai and Hindi as letters.
_TOKEN = regex.compile(
    r"(?:(?<!\w)-|\+)?(?:\d+(?:[.,]\d+)*|(?<![\w.])\.\d+)%?(?![^\W\d_])|"
    r"(?<=\d)\s*[/:]\s*(?=\d)|[<>≤≥≠±↑↓=^]|[^\W_]+(?:[-+#](?!\w))?"
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_POWER = re.compile(r"(?<=\d)(?=[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻])")  # 10⁵ is not 105; Ca²⁺ is Ca2+
# An article comes before a word. A capital A that is not at the beginning is a letter: hepatitis A
# virus.
_ARTICLE = re.compile(r"(?:\A\W*(?i:an?|the)|\b(?:an?|[Tt]he))\s+(?=\w)")


def candidates(answer: str) -> list[str]:
    """Return an answer, and the final answer that it names in a box or after "answer is".

    Return ``[]`` for more characters than the rules can read in bounded time.
    """
    return [answer, final_answer(answer) or answer] if len(answer) <= 4000 else []


def words(text: str) -> list[str]:
    """Return the words and numbers of a text in the form that is compared.

    Case, character width, articles, punctuation and emphasis do not count.
    """
    # Models write H2O as \text{H}_2\text{O} in a box, and **H2O** beside it.
    plain = re.sub(r"\\(?:text|mathrm|ce)\b|[{}$_*`]", "", _POWER.sub("^", text))
    plain = _ARTICLE.sub("", unicodedata.normalize("NFKC", plain))
    plain = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), plain)
    return [token[0].strip() for token in _TOKEN.finditer(plain.casefold())]


def choice(text: str) -> tuple[str, list[str]]:
    """Return the option letter (A to J) that a text begins with, and the words after it.

    Return no letter if there is none, or several.
    """
    letters, rest = choice_of(spelled(text))
    return (letters, words(rest)) if len(letters) == 1 else ("", [])


_NO_UNITS = {
    "yes", "no", "true", "false", "and", "or", "about", "approx", "ca", "x", "pi", "π",
}  # fmt: skip
_LATEX_COMMAND = re.compile(r"\\[a-zA-Z]+")


def _same_words(answer: str, solution: str) -> bool:
    """Return whether a candidate of the answer has the same words as the reference answer."""
    return words(solution) in map(words, candidates(answer))


def _same_choice(answer: str, solution: str) -> bool:
    """Return whether the answer is the letter of the reference answer, without different words.

    ``E. coli`` is not ``E. histolytica``.
    """
    letter, name = choice(solution)
    named = {each: rest for each, rest in map(choice, candidates(answer)) if each}
    return named.keys() == {letter} and (not name or named[letter] in ([], name))


def _units(text: str) -> set[str]:
    plain = unicodedata.normalize("NFKC", _LATEX_COMMAND.sub(" ", text)).casefold()
    value = re.sub("percent|prozent", "%", plain.rpartition("=")[2])  # F = 12 N
    return set(re.findall(r"[^\W\d_]+|%", value)) - _NO_UNITS


def _read(
    name: str, fmt: ResponseFormat, completions: Column, solution: Column, log_extra: Log
) -> tuple[list[str], list[str]]:
    """Return the answers and the reference answers, "" for none, and log both."""
    answers = [fmt.parse(text).answer or "" for text in completion_texts(completions)]
    golds = ["" if gold is None else str(gold).strip() for gold in solution]
    log_extra(f"{name}_answer", answers)
    log_extra(f"{name}_solution", golds)
    return answers, golds


def exact_match(
    completions: Column,
    solution: Column,
    log_extra: Log = ignore,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    **columns: Any,
) -> Values:
    """Return 1.0 if the answer is the reference answer in ``solution`` and nothing else, else 0.0.

    Range: {0, 1}. Return ``None`` without a reference answer. Words and numbers are compared, with
    their order and signs (``-``, ``<``, ``↑``). Case, punctuation, articles and Markdown do not
    count. In a sentence, the text after "answer is" or in a box is compared too. An answer with two
    names is wrong.
    """
    read = zip(*_read("exact_match", fmt, completions, solution, log_extra), strict=True)
    return [float(_same_words(answer, gold)) if words(gold) else None for answer, gold in read]


def choice_match(
    completions: Column,
    solution: Column,
    log_extra: Log = ignore,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    **columns: Any,
) -> Values:
    """Return 1.0 if the answer is the option letter in ``solution``, else 0.0.

    Range: {0, 1}. Return ``None`` if the reference answer is not a letter from A to J. ``B``,
    ``(B)``, ``B. pancreas`` and ``The answer is B`` are the same choice. Two letters are wrong. If
    the reference answer has words (``B. pancreas``), a letter with different words is wrong.
    Source: open-r1-multimodal.
    """
    read = zip(*_read("choice_match", fmt, completions, solution, log_extra), strict=True)
    return [float(_same_choice(answer, gold)) if choice(gold)[0] else None for answer, gold in read]


def answer_match(
    completions: Column,
    solution: Column,
    prompts: Column = (),
    log_extra: Log = ignore,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    number_locale: str = "en",
    **columns: Any,
) -> Values:
    """Return 1.0 if a rule accepts the answer, else 0.0.

    Range: {0, 1}. Return ``None`` without a reference answer. The rules are those of
    ``choice_match``, ``accuracy`` and ``exact_match``; the reference answer decides which apply.
    The completions table has the rule in ``matched_by``. For other wordings, an entry of
    ``reward_models`` can ask a model, which a completion can persuade.
    """
    answers, golds = _read("answer_match", fmt, completions, solution, log_extra)
    _, verdicts = judged(completions, fmt, number_locale, golds, prompts)
    rules = [
        _rule(answer, gold, verdict.right)
        for answer, gold, verdict in zip(answers, golds, verdicts, strict=True)
    ]
    log_extra("matched_by", rules)
    pairs = zip(rules, golds, strict=True)
    return [float(rule != "") if words(gold) else None for rule, gold in pairs]


def _rule(answer: str, solution: str, equal: bool | None) -> str:
    """Return the rule that accepts the answer, or "". ``equal`` is the verdict of mathematics."""
    if _same_choice(answer, solution):
        return "choice"
    # Words alone would ignore brackets and signs of mathematics: [1,2] is not (1,2).
    has_word = re.search(r"[^\W\d_][^\W_]", _LATEX_COMMAND.sub(" ", solution))
    if has_word and _same_words(answer, solution):
        return "words"
    # Mathematics ignores units: an answer with words must have every unit of the reference answer.
    units = _units(final_answer(answer) or answer)
    return "mathematics" if equal and (not units or _units(solution) <= units) else ""


LETTERS = ascii_uppercase[:10]  # those that the reward choice_match reads
_COLUMNS = ("question|question_stem", "choices|options|opa", "answerKey|answer_idx|cop|answer")


@register_mapper("multiple_choice", *_COLUMNS)
def multiple_choice(
    row: dict[str, Any],
    question_column: str = "question",
    options_column: str = "choices",
    answer_column: str = "answerKey",
    option_columns: tuple[str, ...] = ("opa", "opb", "opc", "opd"),
    answer_is: str = "label",
    first: int | None = None,
) -> MappedRow:
    """Map a question with two to ten options. The reference answer is a letter, for choice_match.

    The question ends with a line per option: ``A) …``. Reads ARC, CommonsenseQA, MMLU, MMLU-Pro,
    MedQA-USMLE, MedMCQA, RACE and the like. A column ``article``, ``passage`` or ``context``
    precedes the question. The options are a list, a dictionary by letter, a dictionary of ``text``
    and ``label``, or have a column each.

    Args:
        row: The row.
        question_column: The question.
        options_column: The options.
        answer_column: The right option.
        option_columns: The columns of the options, if each has its own.
        answer_is: What the answer names: the ``label`` of an option, or its ``text``.
        first: The position of the first option, 0 (MMLU, MedMCQA) or 1, if the answer is a
            position.
    """
    answer = cell(row, _first(row, answer_column, *_COLUMNS[2].split("|")))
    # The hub's MMLU has classes, A to D; other copies have their numbers.
    names, texts = _options(
        row, options_column, option_columns, first if answer.isdecimal() else None
    )
    named = answer if answer_is == "text" else answer.strip("().: ")
    if answer_is == "text":
        names = texts
    found = [n for n, name in enumerate(names) if name.casefold() == named.casefold()]
    if len(found) != 1:
        raise SkipRow(
            f"the answer {answer!r:.40} names {len(found)} of the options. Fix: mapper_config: "
            "answer_is: text, or first: 0 (or 1) for a position"
        )
    right = found[0]
    lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, texts, strict=False)]
    solution = lines[right]
    if choice(solution) != (LETTERS[right], words(texts[right])):
        solution = LETTERS[right]  # "B) D" would name two options
    context = cell(row, _first(row, "article", "passage", "context"), needed=False)
    lines.insert(0, cell(row, _first(row, question_column, "question_stem")))
    question = "\n".join([f"{context}\n", *lines] if context else lines)
    return {"question": question, "solution": solution}


def _options(
    row: dict[str, Any], column: str, columns: tuple[str, ...], first: int | None
) -> tuple[list[str], list[str]]:
    """Return the labels and the texts of a row's options, in order. Positions count empty ones."""
    options = row.get(_first(row, column, "options"))
    options = parsed(options) if isinstance(options, str) else options  # a cell of a CSV file
    if options is None:
        options = [row.get(name) for name in columns]
    if isinstance(options, list) and all(isinstance(x, dict) and len(x) == 2 for x in options):
        options = dict(one.values() for one in options)  # {"key": "A", "value": …}
    elif isinstance(options, list):
        options = dict(zip(ascii_uppercase, options, strict=False))
    elif isinstance(options, dict) and "text" in options:
        options = dict(zip(options["label"], options["text"], strict=True))
    if not isinstance(options, dict):
        raise SkipRow("options that are neither a list nor a dictionary")
    # A column of a Parquet file has every letter of any row.
    texts = [cell(options, label, needed=False) for label in options]
    labels = options if first is None else range(first, first + len(texts))
    given = {str(label): option for label, option in zip(labels, texts, strict=True) if option}
    if not 2 <= len(given) <= len(LETTERS):
        raise SkipRow(f"not two to {len(LETTERS)} options with a text")
    return list(given), list(given.values())


def _first(row: dict[str, Any], *columns: str) -> str:
    """Return the first of these columns in which a row has something, or the first one."""
    return next((column for column in columns if row.get(column) is not None), columns[0])
