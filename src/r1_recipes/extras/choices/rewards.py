"""Rewards for answers in words or option letters, with an optional judge model."""

import re
import unicodedata
from typing import Any

from r1_recipes.common.errors import require
from r1_recipes.common.messages import completion_texts, last_user_text
from r1_recipes.extras import judges
from r1_recipes.prompts import ResponseFormat, boxed_spans
from r1_recipes.rewards.answers import judged
from r1_recipes.rewards.types import THINK_ANSWER, Column, Log, Values, ignore
from r1_recipes.verification.reading import ANCHOR, choice_of, spelled

# A number keeps its sign, its decimal point, and a slash, colon or comparison sign beside it. A
# word keeps a sign at its end: HER2+ is not HER2-. A hyphen after a letter is not a sign: Type-2 is
# Type 2.
_TOKEN = re.compile(
    r"(?:(?<!\w)-|\+)?(?:\d+(?:[.,]\d+)*|(?<![\w.])\.\d+)%?(?![^\W\d_])|"
    r"(?<=\d)\s*[/:]\s*(?=\d)|[<>≤≥≠±↑↓=^]|[^\W_]+(?:[-+](?!\w))?"
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_POWER = re.compile(r"(?<=\d)(?=[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻])")  # 10⁵ is not 105; Ca²⁺ is Ca2+
# An article comes before a word. A capital A that is not at the beginning is a letter: hepatitis A
# virus.
_ARTICLE = re.compile(r"(?:\A\W*(?i:an?|the)|\b(?:an?|[Tt]he))\s+(?=\w)")
# The rules reject a longer answer. A judge reads the beginning of it.
_MAX_CHARS = 4000


def candidates(answer: str) -> list[str]:
    """Return the parts of an answer that may be the final answer.

    These are the whole answer, the text after the last "answer is" on its line, and the content of
    the only box.
    """
    texts = [answer]
    anchors = list(ANCHOR.finditer(answer))
    if anchors:
        lines = answer[anchors[-1].end() :].splitlines()
        texts.append(next((line for line in lines if line.strip(" \t*_:：")), ""))
    boxes = {answer[start:end] for start, end in boxed_spans(answer)}
    if len(boxes) != 1:
        return texts
    if anchors and words(*boxes) != words(texts[1].replace("\\boxed", "")):
        return [answer]  # "\\boxed{Paris}. The answer is London"
    return [*texts, *boxes]


def words(text: str) -> list[str]:
    """Return the words and numbers of a text in the form that is compared.

    Case, character width, articles, punctuation and emphasis do not count.
    """
    plain = unicodedata.normalize("NFKC", _POWER.sub("^", text)).replace("*", "").replace("`", "")
    plain = _ARTICLE.sub("", plain)
    plain = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), plain)
    tokens = [token[0].strip() for token in _TOKEN.finditer(plain.casefold())]
    return [f"0{token}" if token.startswith(".") else token for token in tokens]


def choice(text: str) -> tuple[str, list[str]] | None:
    """Return the option letter (A to J) that a text begins with, and the words after it.

    Return ``None`` if there is no letter, or several.
    """
    letters, rest = choice_of(spelled(text))
    return (letters, words(rest)) if len(letters) == 1 else None


_LATEX_COMMAND = re.compile(r"\\[a-zA-Z]+")
_QUESTION_OR_FACTORIAL = re.compile(r"[?？]|\d\s*!|!\s*\d")


def _same_words(answer: str | None, solution: str) -> bool:
    """Return whether a candidate of the answer has the same words as the reference answer."""
    if answer is None or len(answer) > _MAX_CHARS:
        return False
    if _QUESTION_OR_FACTORIAL.search(answer) and not _QUESTION_OR_FACTORIAL.search(solution):
        return False
    return words(solution) in map(words, candidates(answer))


def _same_choice(answer: str | None, solution: str) -> bool:
    """Return whether the answer is the letter of the reference answer, without different words.

    ``E. coli`` is not ``E. histolytica``.
    """
    reference = choice(solution)
    if reference is None or answer is None or len(answer) > _MAX_CHARS:
        return False
    letter, text = reference
    choices = [option for option in map(choice, candidates(answer)) if option is not None]
    if {option[0] for option in choices} != {letter}:
        return False
    return not text or any(option[1] in ([], text) for option in choices)


def _units(text: str) -> set[str]:
    plain = _LATEX_COMMAND.sub(" ", unicodedata.normalize("NFKC", text))
    return set(re.findall(r"[^\W\d_]+|%", plain.casefold()))


def _other_unit(answer: str | None, solution: str) -> bool:
    """Return whether the answer has words, but not every unit of the reference answer."""
    if answer is None:  # The format `boxed` may find an answer in the whole text.
        return False
    answer_units = _units(candidates(answer)[-1])
    return bool(answer_units) and not _units(solution) <= answer_units


def _read(
    name: str, fmt: ResponseFormat, completions: Column, solution: Column, log_extra: Log
) -> tuple[list[str | None], list[str]]:
    """Return the answers and the reference answers, and log both."""
    answers = [fmt.parse(text).answer for text in completion_texts(completions)]
    golds = ["" if gold is None else str(gold).strip() for gold in solution]
    log_extra(f"{name}_answer", [answer or "" for answer in answers])
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
    return [float(_same_choice(answer, gold)) if choice(gold) else None for answer, gold in read]


def answer_match(
    completions: Column,
    solution: Column,
    prompts: Column = (),
    log_extra: Log = ignore,
    log_metric: Log = ignore,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    number_locale: str = "en",
    match_judge: str = "",
    match_judge_prompt: str = "",
    **columns: Any,
) -> Values:
    """Return 1.0 if a rule accepts the answer, else a judge's score.

    Range: 0..1 ({0, 1} without a judge). The rules are those of ``choice_match``, ``accuracy`` and
    ``exact_match``; the reference answer decides which apply. Without a judge, other answers score
    0.0. Return ``None`` if there is no reference answer, or if the judge gave no score.

    ``match_judge`` is ``openai:NAME``, a model behind an OpenAI-compatible server
    (``OPENAI_BASE_URL``). It reads only answers that the rules do not accept. It gets
    ``match_judge_prompt``, with ``{question}``, ``{solution}`` and ``{answer}``. The last line of
    its reply must be ``Score: x`` with a number from 0 to 1. Metrics: ``answer_match/asked`` (the
    rows of a batch that it reads) and ``…/unscored``. The completions table has ``matched_by``. If
    all requests of a batch fail, the reward raises an error.

    Source: HuatuoGPT-o1 (arXiv:2412.18925). Its verifier is only a model. Here rules come first,
    because a completion cannot persuade them.
    """
    answers, golds = _read("answer_match", fmt, completions, solution, log_extra)
    _, verdicts = judged(completions, fmt, number_locale, golds, prompts)
    rules = [
        _rule(answer, gold, verdict.right)
        for answer, gold, verdict in zip(answers, golds, verdicts, strict=True)
    ]
    scores: Values = [
        float(rule != "") if words(gold) else None for rule, gold in zip(rules, golds, strict=True)
    ]
    if match_judge:
        asked = {}
        for row, answer in enumerate(answers):
            if answer and scores[row] == 0.0:
                question = last_user_text(prompts[row]) if prompts else ""
                slots = {
                    "question": question,
                    "solution": golds[row],
                    "answer": answer[:_MAX_CHARS],
                }
                asked[row] = judges.fill(match_judge_prompt, slots)
        opinions = judges.ask(match_judge, [*asked.values()], 0.0, 1.0)
        for row, opinion in zip(asked, opinions, strict=True):
            scores[row] = opinion
            rules[row] = "judge" if opinion else ""
        log_metric("answer_match/asked", float(len(asked)))
        log_metric("answer_match/unscored", float(opinions.count(None)))
    log_extra("matched_by", rules)
    return scores


def _check_judge(*, match_judge: str = "", match_judge_prompt: str = "") -> None:
    if match_judge:
        has_slots = all(slot in match_judge_prompt for slot in ("{solution}", "{answer}"))
        allowed = "a text with {solution} and {answer} that asks for a line 'Score: x'"
        require(has_slots, "match_judge_prompt", allowed, match_judge_prompt)
        named = match_judge.removeprefix(judges.SERVED) not in ("", match_judge)
        require(named, "match_judge", "openai:NAME", match_judge)
        judges.ChatServer(match_judge).check()


answer_match.check_start = _check_judge  # type: ignore[attr-defined]


def _rule(answer: str | None, solution: str, equal: bool | None) -> str:
    """Return the rule that accepts the answer, or "". ``equal`` is the verdict of mathematics."""
    if _same_choice(answer, solution):
        return "choice"
    # Words alone would ignore brackets and signs of mathematics: [1,2] is not (1,2).
    has_word = re.search(r"[^\W\d_]{2,}", _LATEX_COMMAND.sub(" ", solution))
    if has_word and _same_words(answer, solution):
        return "words"
    if equal and not _other_unit(answer, solution):
        return "mathematics"
    return ""
