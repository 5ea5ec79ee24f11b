"""Read an answer into the expressions that all have to equal the reference answer.

There are four steps: locate (:mod:`~r1_recipes.verification.locate`), normalise
(:mod:`~r1_recipes.verification.spelling`), reject for a reason
(:class:`~r1_recipes.verification.lexicon.Refusal`), compare. Normalising may change the style of a
text but never removes what carries meaning. Every function here takes time linear in the length of
the text, or reads at most ``MAX_ANSWER_CHARS`` of it.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

from r1_recipes.verification.expression import Answer, Refused
from r1_recipes.verification.gold import Gold
from r1_recipes.verification.lexicon import Refusal, chosen, chosen_letters, refusals
from r1_recipes.verification.locate import (
    ANCHOR,
    MAX_ANSWER_CHARS,
    boxes_of,
    one_spelling_of_boxes,
)
from r1_recipes.verification.numbers import NUMBER, PRECISION, read_value
from r1_recipes.verification.signs import typed, with_single_spaces
from r1_recipes.verification.spelling import clean
from r1_recipes.verification.wordings import read_words, ways_of
from r1_recipes.verification.words import TELLING, plain_words, prose

_STRUCK = re.compile(
    r"~~|[\w)}] ~ [\w(\\]|\\(?:cancel|st|sout|xcancel|bcancel)(?![A-Za-z])|¬|\\neg(?![A-Za-z])"
)
# The Japanese mark of a long vowel and a Korean vowel look like a minus sign.
_LONG_VOWEL = re.compile(r"[ーㅡ]\s*[\dA-Za-z(\\]")
# A prime means a derivative, a foot or a minute: (x^2)', 72''.
_PRIME = re.compile(
    r"(?:[\d)\]}]|(?<![A-Za-z'])[A-Za-z])(?:'(?![A-Za-z])|[′″’](?![A-Za-z]))|\^\s*\{?\s*\\prime"
)
_OPENING = re.compile(
    r"(?i)\A(?:[^\d\\]*[,;]\s*)?(?:(?:so|thus|hence|therefore),?\s+)?(?:the|my|our)?\s*(?:final|"
    r"correct)?\s*answer\s*(?:is\b:?|:)\s*"
)
# "Answer:" in languages whose letters are refused beside a number.
_FOREIGN_OPENING = re.compile(
    r"\A\s*(?:Ответ|Đáp (?:số|án)|Resposta|Відповідь)\s*(?:là)?\s*[:：]\s*"
)
_SPACED = re.compile(r"\d,\s+\d{3}(?!\d)")  # 1, 250 is two numbers
# The place of a maximum is not a second value: "4, attained when x = 1".
_ATTAINED = re.compile(
    r"(?<=\d),?\s+(?:which is )?(?:attained|achieved|reached)\s+(?:when|at|for)\s+"
    r"[a-z]\s*=[^=,;]*\Z"
)
_RECORD = re.compile(
    r"\s*\{\s*\"(?:final_)?(?:answer|result|value)\"\s*:\s*\"?([^\"{}]*)\"?\s*\}\s*"
)
_ONLY_A_BOX = re.compile(r"(?s)[\s$]*\\boxed\{.*\}[\s$.]*")
# Text before or after a box that belongs to the answer: "71 or", "-", "\\frac{1}{"; "or 71", "^2".
_LEADS = re.compile(
    r"(?i)(?:[-+/^<>{\d~]|(?<!\\)\(|(?<!\*)\*|(?<![A-Za-z\\])[A-Za-z](?=\\?\Z)|[)!]|"
    r"\\(?!\(|\[|quad|,|;|therefore|text|implies|Rightarrow|boxed|left|end|newline|\s)[A-Za-z]+|"
    r"\b(?:or|not|isn't|than|minus|negative|guess|half|double|twice|root|of|wrong(?: "
    r"answer)?(?: is)?|sinh|cosh)\b:?)\s*\$?\s*\Z"
)
_TRAILS = re.compile(
    r"(?i)\A(?:\s*\$?\s*(?:,?\s*\d|[-+/^?}_'=<>²³]|(?:and|,|;|&)\s+(?:[A-J](?![A-Za-z])|\$?-?\d)|"
    r"\*\s*\d|[.(\[]\d|\\[,;]\s*\d|"
    r",?\s*(?:or|hundred|million|thousand|billion|trillion|dozen|squared|mod|no)\b|"
    r"\.?\s*actually\b|\(?(?:is )?(?:wrong|not|incorrect|should|but)\b|"
    r"\\(?:cdot|times|div|pi|pm|pmod|bmod|tag|sqrt|frac|ne|neq|le|ge|framebox|"
    r"fbox)(?![A-Za-z]))|[A-Za-z](?![A-Za-z])|"
    r"(?-i:[\s$]*(?:[|,;&]|and\b)\s*(?:\\?\(?[$(]*[-\d]|\w+\W*\Z)|"
    r"\W*(?:\\?\w+\s*\{(?:[a-z]+\}\{)?)*\W*\d+\W*\Z|\s*\$*\s+[A-J]\s*\Z))"
)
# Unicode categories of digits of other scripts, of signs that no keyboard has (they would count as
# prose), of control characters and of lone surrogates.
_STRANGE_TEXT = "Nd No Nl Cs Cc Cf Co Lm Sm Pd Sk So Sc Mn Me Po Ps Pe Pi Pf"
_STRANGE = frozenset(_STRANGE_TEXT.split())
_USUAL = frozenset("$€£¥￥₹₽₩¢«»°℃℉✓✔✅，。、：；！？…·•“”‘’「」『』（）《》【】¡ーｰ々ゝヽ")
# Scripts of words that may stand beside an answer.
_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
_WORD = re.compile(r"[^\W\d_]+")


def read_answer(text: str, gold: Gold, locale: str = "en") -> Answer:
    """Read an answer. Return what has to equal the reference answer, the verdict, or the
    refusal.
    """
    if len(text) > MAX_ANSWER_CHARS:
        return Answer(refusal=Refusal.TOO_LONG)
    if gold.value is not None and not gold.left_out and locale == "en":
        may_be_money = not gold.units and not gold.value.percent
        number = text.removeprefix(r"\$") if may_be_money else text
        if NUMBER.fullmatch(number):
            return Answer((number,))  # true of most answers to GSM8K
    try:
        return _read(text, gold, locale)
    except Refused as refused:
        return Answer(refusal=refused.args[0])


def _read(text: str, gold: Gold, locale: str) -> Answer:
    boxes = _unboxed(one_spelling_of_boxes(text), gold)
    if len(boxes) != 1:
        return _read_boxes(boxes, gold, locale)
    text = _FOREIGN_OPENING.sub("", with_single_spaces(_final_part(boxes[0])))
    if _has_strange_signs(text, gold):
        raise Refused(Refusal.STRANGE)
    cleaned = _ATTAINED.sub("", clean(text, locale))
    opening = _OPENING.match(cleaned)
    if opening:
        cleaned = clean(cleaned[opening.end() :].removesuffix("!"))
    if not cleaned:
        raise Refused(Refusal.UNREADABLE)
    if gold.value is not None and _SPACED.search(cleaned) and not _SPACED.search(gold.raw):
        raise Refused(Refusal.SEVERAL)
    if gold.value is not None:  # beside a number, the e of 5e-3 is not Euler's
        cleaned = re.sub(r"\A(-?\d+)e(-\d)\Z", r"\1\\cdot 10^{\2}", cleaned)
    return _read_choice(cleaned, gold) or read_words(text, cleaned, gold)


def _unboxed(text: str, gold: Gold) -> list[str]:
    """Return the contents of a text's boxes, or the text itself if it has none.

    Up to three boxes inside each other are accepted as a mistake. More are refused as hostile.
    """
    boxes = [text]
    for depth in range(3):
        if len(boxes) != 1 or "\\boxed" not in boxes[0]:
            return boxes
        if depth and not _ONLY_A_BOX.fullmatch(boxes[0]):
            raise Refused(Refusal.SEVERAL)  # the outer box has a second answer
        boxes = _boxes(boxes[0], gold)
    if len(boxes) == 1 and "\\boxed" in boxes[0]:
        raise Refused(Refusal.HOSTILE)
    return boxes


def _boxes(text: str, gold: Gold) -> list[str]:
    """Return the contents of a text's boxes, and the text behind "the answer is" beside them."""
    if _is_part_of_more(text):
        raise Refused(Refusal.SEVERAL)
    boxes = boxes_of(text)
    _, *anchored = ANCHOR.split(text)
    if anchored and "\\boxed" not in anchored[-1] and _says_another(anchored[-1], gold):
        boxes.append(anchored[-1])  # "\\boxed{72}. The answer is 71."
    return boxes


def _final_part(text: str) -> str:
    """Return the text behind ``####``, or the value of ``{"answer": 72}``."""
    before, _, text = text.rpartition("####")
    if _LEADS.search(before):
        raise Refused(Refusal.SEVERAL)
    record = _RECORD.fullmatch(text)
    return record[1] if record else text


def _has_strange_signs(text: str, gold: Gold) -> bool:
    """Return whether a text is struck out or has primes or rare signs, unless the reference answer
    has them.
    """
    for signs in (_STRUCK, _LONG_VOWEL):
        if signs.search(text) and not signs.search(gold.raw):
            return True
    # The prime in the name of "f'(x) = 2x" changes nothing.
    value = text if gold.relations else text.rpartition("=")[2]
    if gold.words is None and not _PRIME.search(gold.raw) and _PRIME.search(value):
        return True
    return not _unusual(typed(text)).issubset(gold.raw)


def _read_choice(cleaned: str, gold: Gold) -> Answer | None:
    """Read an answer to a choice, also to one whose reference answer has the option's text: ``(C)
    17``.
    """
    if gold.letters is not None:
        named = chosen_letters(cleaned)
        if not gold.ordered:
            named = "".join(sorted(named))
        return Answer(verdict=named == gold.letters)
    if gold.letter is None:
        return None
    option = chosen(cleaned)
    has_text = gold.words != gold.letter.casefold()
    others = rf"\b(?!{gold.letter})[B-J](?![A-Za-z'])|\(A\)|\bA\s*="
    if has_text and re.search(others, cleaned):
        return Answer(verdict=False)  # "D = 17" and "17, choice (D)" do not answer "(C) 17"
    if option is None:
        return Answer(verdict=False) if gold.words is not None else None
    letter, text = option
    if letter == gold.letter and gold.words is None and re.search(r"\w", text):
        return read_answer(text, replace(gold, letter=None))  # "(C) 18" is not "(C) 17"
    # (C) Tuesday is not (C) Monday
    same_text = not has_text or plain_words(text) in ("", gold.words)
    return Answer(verdict=letter == gold.letter and same_text)


def _is_part_of_more(text: str) -> bool:
    r"""Return whether a box is only a part of the answer: -\boxed{72}, \boxed{72} + 1, \boxed{B}
    and C.
    """
    before = typed(text[: text.index("\\boxed")])
    after = typed(text.rpartition("}")[2])
    if _LEADS.search(before) or _TRAILS.search(after):
        return True
    if re.search(r"(?:\A|\s)[A-J]\s+\$*\Z", before):
        return True  # "A \\boxed{B}"
    words = re.findall(r"([A-Za-z]+):?\s*\$*\Z", before)
    if words and ways_of(words[0]):
        return True
    words += re.findall(r"\A\W*([A-Za-z]+)", after)
    return bool(refusals(" ".join(words)))


def _says_another(beside: str, gold: Gold) -> bool:
    """Return whether the text behind "the answer is", beside a box, may be a different answer."""
    if gold.letter or gold.letters:
        return re.match(r"\W*[A-J](?![A-Za-z])", beside) is not None
    if gold.words is None:
        return TELLING.search(beside) is not None
    return 0 < len(prose(beside)) < 5


def _unusual(text: str) -> set[str]:
    """Return the signs of a text that no keyboard has and that may change a number: marks, symbols,
    digits of other scripts.
    """
    if text.isascii() and text.isprintable():
        return set()
    words = set()
    for word in _WORD.findall(text):
        if not word.isascii() and (len(word) > 2 or word in "éèà"):
            words.update(word)
    unusual = set()
    for char in set(text) - _USUAL:
        if " " <= char <= "~" or char.isspace():
            continue
        is_foreign = char.isalpha() and not _is_written(char, words)
        if is_foreign or unicodedata.category(char) in _STRANGE:
            unusual.add(char)
    return unusual


def _is_written(char: str, words: set[str]) -> bool:
    """Return whether a letter belongs to words that may stand beside an answer: Chinese, Japanese,
    Korean, or a Latin word with accents.
    """
    name = unicodedata.name(char, "")
    return name.startswith(_SCRIPTS) or (name.startswith("LATIN") and char in words)


def _read_boxes(boxes: list[str], gold: Gold, locale: str) -> Answer:
    """Read an answer with several boxes. They form a list if the reference answer is a list;
    otherwise each must equal it.
    """
    if not boxes:
        raise Refused(Refusal.NO_ANSWER)
    if gold.several:
        if any("\\boxed" in box for box in boxes):
            raise Refused(Refusal.SEVERAL)
        return read_answer(", ".join(boxes), gold, locale)
    if len(boxes) > 4:
        raise Refused(Refusal.SEVERAL)
    answers = [read_answer(box, gold, locale) for box in boxes]
    if any(answer.refusal or answer.verdict is False for answer in answers):
        raise Refused(Refusal.SEVERAL)
    if all(answer.verdict for answer in answers):
        return Answer(verdict=True)
    sides = tuple(side for answer in answers for side in answer.sides)
    rounded = tuple(side for answer in answers for side in answer.rounded)
    return Answer(sides, rounded)


def settle(gold: Gold, answer: Answer, precision: int = PRECISION) -> bool | None:
    """Return the verdict if it needs no parser, or ``None`` if a worker has to compare."""
    if answer.refusal is not None and not answer.sides:
        return False
    if answer.verdict is not None or gold.value is None or answer.rounded or answer.pairs:
        return answer.verdict
    equal = []
    for side in answer.sides:
        value = read_value(side)
        equal.append(None if value is None else gold.value.equals(value, precision))
    if False in equal:
        return False
    return None if None in equal else True
