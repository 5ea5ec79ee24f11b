"""Read an answer in words: a date, yes or no, a name, or a number with words and units beside it.

:func:`read_words` tries one step after the other, and the first step that returns an answer
decides. An answer that no step decides is read as an expression.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from fractions import Fraction

from r1_recipes.verification.expression import Answer, Refused, in_digits, read_expression
from r1_recipes.verification.gold import Gold, squeezed
from r1_recipes.verification.lexicon import DENIES, TAKES_BACK, Refusal, agrees, refusals, says
from r1_recipes.verification.moments import moment, same_moment
from r1_recipes.verification.number_words import in_symbols, spelled_numbers
from r1_recipes.verification.spelling import clean
from r1_recipes.verification.units import (
    STYLE,
    STYLED_UNIT,
    changes_unit,
    is_unit,
    names_another,
    units_of,
)
from r1_recipes.verification.words import TELLING, is_expression

_OR = {"or", "oder", "或"}
_ALTERNATIVES = re.compile(r"\s*,?\s*\b(?:or|oder|ou)\b\s*|或")
_BESIDE = re.compile(
    r"(?s)(.*[\d)}%])\s+\((?:(?:or|=|i\.e\.|that is|about|\\approx)\s*)?([^()]*\d[^()]*)\)"
)
# A star that does not end an emphasis, and an HTML entity.
_LEFT_OVER = re.compile(r"\A[^*]*[\w)}\]]\s*\*+\s*\Z|&\w+;")
# Words that give a quantity a direction. An answer with such words must have those of the reference
# answer.
_WAYS = re.compile(
    r"(\b(?:(?:north|south)(?:east|west)|upstream|downstream|attractive|repulsive|forward|"
    r"backward|higher|lower|early|late|surplus|deficit|"
    r"towards?|away|uphill|downhill|into|out|horizontal|vertical|older|younger|ahead|heavier|"
    r"lighter|won|lost|"
    r"north|south|east|west|left|right|up|down|upwards?|downwards?|behind|front|before|after|"
    r"more|less|fewer|loss|profit|gain|increase|decrease|"
    r"clockwise|counterclockwise|inward|outward|above|below|taller|shorter|longer|wider|"
    r"narrower|ago|"
    r"hence|from now|in(?=\s\d+\s(?:second|minute|hour|day|week|month|year)s?\W*\Z)|"
    r"faster|slower|warmer|colder|hotter|cooler|upstairs|downstairs|overpaid|"
    r"underpaid|owed|owned)\b|"
    r"[东南西北]偏[东南西北]|[东西]经|[南北]纬|[仰俯]角|[上下]午|[顺逆]时针|"
    r"[东南西北左右](?=\d|面|方|边|走|移)|盈利|亏损|上升|下降|增加|减少|前进|后退)"
)
_SAID_AT = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore),?\s+)?(?:it|that|this|(?:the|my|our|his|her|"
    r"their)\s+(?:[a-z]+\s+){1,2}|today)\s*"
    r"(?:(?:will|would|is|was|'s|falls|starts|begins|ends|arrives|leaves|be|finished|held|"
    r"due)\s+)+(?:(?:at|"
    r"on)\s+)?(?=\S)"
)
_ANOTHER_DAY = re.compile(
    r"(?i)\b(?:after|before|next|previous|following|preceding|prior|last|eve|tomorrow|yesterday)\b"
)
_CIRCLED = re.compile(r"(.*?[是为:：]\s*)?([①-⑳][①-⑳、,，和\s]*)")


def read_words(text: str, cleaned: str, gold: Gold) -> Answer:
    """Read an answer that is not a choice, from its original and its cleaned text."""
    if _has_other_words(text, cleaned, gold) or _is_sum_of_units(text):
        raise Refused(Refusal.DIFFERENT)
    _check_spelled_numbers(cleaned, gold)
    if _has_other_units(text, cleaned, gold) or _has_other_form(text, gold):
        raise Refused(Refusal.DIFFERENT)
    decided = _same_text(cleaned, gold) or _circled(cleaned, gold) or _date_or_time(cleaned, gold)
    if decided:
        return decided
    if _is_same_symbol(cleaned, gold) or _are_same_amounts(text, gold):
        return Answer(verdict=True)
    if gold.words is None:
        return _read_mathematics(text, cleaned, gold)
    verdict = agrees(cleaned, gold.words)
    if verdict is None:
        _check_words(cleaned, gold)
        verdict = not gold.only_text and says(cleaned, gold.words)
    return Answer(verdict=verdict)


def _read_mathematics(text: str, cleaned: str, gold: Gold) -> Answer:
    if not re.search(r"\d", cleaned):
        cleaned = in_symbols(cleaned)
    decided = _same_text(cleaned, gold) or _alternatives(cleaned, gold)
    if decided:
        return decided
    _check_words(cleaned, gold)
    if moment(cleaned) is not None and ":" in cleaned and ":" not in gold.raw:
        raise Refused(Refusal.DIFFERENT)  # math-verify would read 9:30 as 9/30
    expression = None if gold.value is not None else _said_to_be(cleaned, gold)
    if expression:
        return read_expression(expression, expression, gold)
    return read_expression(text, cleaned, gold)


_SAID_TO_BE = re.compile(
    r"(?s)([^\d=<>]*?)"
    r"(?:\b(?:is|are|equals|est|ist|es|é|è|(?:holds|true|valid|defined)\s+(?:for|"
    r"when)(?:\s+all)?)\b"
    r"(?:\s+equal\s+to\b)?|[为是：:])\s*([^:：为是]*?)[\s.。]*"
)


def _said_to_be(cleaned: str, gold: Gold) -> str | None:
    """Return the expression at the end of a sentence: "the sum of the first n odd numbers is n^2".
    The subject may be anything without a number and without words against the value.
    """
    found = _SAID_TO_BE.fullmatch(cleaned)
    if found is None:
        return None
    subject, value = found.groups()
    if _OPENS.search(subject) or not re.search(r"[^\W\d_]{2}", subject):
        return None
    if TAKES_BACK.search(subject) or refusals(subject).keys() - gold.excused:
        return None
    tells = gold.variables or TELLING.search(value)
    return value if tells and is_expression(value) else None


# These words start a condition, or join several things.
_OPENS = re.compile(
    r"\b(?:where|if|when|for|with|whenever|and|then|derivative|root)\b|[,;，；]|其中|当|\\"
)


def _has_other_words(text: str, cleaned: str, gold: Gold) -> bool:
    """Return whether the words beside the number differ from those of the reference answer: 5 km
    south for 5 km north, "decreases by 5" for "increases by 5", 5 psi for 5 torr.
    """
    if not gold.left_out:
        return False
    if _ORDINAL.search(cleaned) and not _ORDINAL.search(gold.raw):
        return True  # the 7th day does not answer 7 days
    dozen = _MULTIPLIES.match(gold.left_out)
    if dozen and dozen[0] not in cleaned.casefold():
        return True
    rates = set(_RATE.findall(gold.raw.casefold()))
    other_rates = set(_RATE.findall(cleaned.casefold()))
    # Per month for per annum, falls by for falls to.
    if _differ(ways_of(gold.raw), ways_of(text)) or _differ(rates, other_rates):
        return True
    labels = _labels_of_reference(gold.raw)
    if labels[1] and not gold.units and units_of(cleaned):
        return True  # 5 km/h for 5 workers
    for wanted, given in zip(labels, _labels(cleaned), strict=True):
        if wanted and given and not (_are_among(wanted, given) or _are_among(given, wanted)):
            return True
    return False


def _differ(wanted: Collection[str], given: Collection[str]) -> bool:
    return bool(wanted and given and wanted != given)


def _are_among(some: set[str], all_of_them: set[str]) -> bool:
    """Return whether each word is one of the others. A Chinese word may also be the end of one."""
    for word in some:
        is_end = not word.isascii() and any(other.endswith(word) for other in all_of_them)
        if word not in all_of_them and not is_end:
            return False
    return True


_RATE = re.compile(
    r"\b(?:per|each|every|a)\s+([a-z]+)|\b(in total|in all|altogether)\b|"
    r"\b(every|for|to|by)(?=\W*\d)|(每\S)|(共)"
)
_ORDINAL = re.compile(r"\d\s*(?:st|nd|rd|th)\b|第\s*\d|\d\.\s*[A-Z][a-z]")
_MULTIPLIES = re.compile("dozen|gross|score|hundred|thousand")
# The words before the mathematics, the mathematics, and the words behind it.
_BETWEEN_WORDS = re.compile(r"(?s)([^\d\\(\[{]*)((?:.*[\d})\]])?\s*(?:\\?%)?)([^\d})\]]*)")
_NO_LABEL_TEXT = """
a an the in of to is are was were be by for on at and so thus hence therefore answer final result it
there that this which i we he she they has have had get gets exactly approximately about around
only just total altogether all each per 了 的 是 为 个 约 共 答案 一共 总共 所以 点 时
"""
_NO_LABEL = frozenset(_NO_LABEL_TEXT.split())


def _labels(text: str) -> tuple[set[str], set[str]]:
    """Return the words before a text's mathematics and three words behind it, as stems without
    units. Return no words if there are words inside the mathematics.
    """
    parts = _BETWEEN_WORDS.fullmatch(text)
    if parts is None or not parts[2] or not is_expression(parts[2]):
        return set(), set()
    before = re.split(r"[.;!?,，。]|[:：](?=.*\w)", parts[1])[-1]
    behind = re.split(r"[.;:!?,，。：(]", parts[3])[0]
    return _stems(_NAMES.findall(before)), _stems(_NAMES.findall(behind)[:3])


_NAMES = re.compile(r"(?i)[a-zà-ÿ]{2,}|[\u4e00-\u9fff]+")


@functools.lru_cache(4096)
def _labels_of_reference(text: str) -> tuple[set[str], set[str]]:
    return _labels(clean(text))


def _stems(words: list[str]) -> set[str]:
    stems = set()
    for word in words:
        word = word.casefold().strip("了的是为个约共")
        if word and word not in _NO_LABEL and not is_unit(word):
            stems.add(re.sub(r"(?<=\w{3})(?:ing|ed|es|er|ly|[sdre])\Z", "", word))
    return stems


def _is_sum_of_units(text: str) -> bool:
    """Return whether a text is like 5 km + 3 m, which would be 8 without its units."""
    units = set(re.findall(STYLED_UNIT, text))
    plus = re.search(r"\}\s*(?:[-+*]|\\(?:times|cdot))\s*\d", text)
    return len(units) > 1 and plus is not None


_TO_AN_INTEGER = re.compile(
    r"\b(?:rounded|truncated|taken)\s+to\s+(?:the\s+|an?\s+)?(?:nearest\s+|next\s+)?(?:integer|"
    r"whole)"
)


def _check_spelled_numbers(cleaned: str, gold: Gold) -> None:
    """Refuse a spelled number that differs from the reference answer: "thirteen, so 72"."""
    if gold.value is None:
        return
    if spelled_numbers(cleaned).difference([gold.value.number]):
        raise Refused(Refusal.SEVERAL)
    if gold.value.number % 1 and _TO_AN_INTEGER.search(cleaned):
        raise Refused(Refusal.CHANGED)


_AMOUNT = re.compile(r"(?<!\d)(\d+(?:\.\d+)?)\s*([A-Za-z]+|\^?\s*\{?\s*\\circ|['′])")


@functools.lru_cache(4096)
def _amounts(text: str) -> dict[object, Fraction]:
    """Return the numbers of a text by unit: 1 h 45 min."""
    plain = re.sub(rf"{STYLE}\s*\{{([^{{}}]*)\}}", r" \1 ", text.replace("°", r"\circ "))
    amounts: dict[object, Fraction] = {}
    for number, unit in _AMOUNT.findall(plain):
        name = units_of(f"1 {unit}") or re.sub(r"\W", "", unit) or unit
        amounts[name] = Fraction(number)
    return amounts


def _has_other_units(text: str, cleaned: str, gold: Gold) -> bool:
    """Return whether an answer has a different unit or is a different thing: 72 m for 72 km, 72
    weekends.
    """
    if "‰" in gold.raw and "%" in text:
        return True
    if "%" in gold.raw and "%" not in cleaned and (units_of(text) or _labels(cleaned)[1]):
        return True  # 10 ohms and 10 people do not answer 10 %
    if not gold.units:
        return False
    units = units_of(text)
    if units and len(units) == len(gold.units) and units != gold.units:
        return True
    if units and set(units) != set(gold.units):
        return True
    if not units and (names_another(cleaned, gold.raw) or moment(cleaned) is not None):
        return True
    return changes_unit(cleaned, gold.raw)


def _has_other_form(text: str, gold: Gold) -> bool:
    """Return whether an answer is 45 h 1 min for 1 h 45 min, a ratio of three numbers where the
    reference answer has no ratio, or has signs at its end.
    """
    if _LEFT_OVER.search(text):
        return True
    if re.search(r"\d\s*:\s*\d+\s*:", text) and not re.search(r":|\bto\b", gold.raw):
        return True
    wanted = _amounts(gold.raw)
    if len(wanted) < 2:
        return False
    given = _amounts(text)
    return wanted.keys() == given.keys() and wanted != given


def _same_text(cleaned: str, gold: Gold) -> Answer | None:
    return Answer(verdict=True) if squeezed(cleaned) == gold.plain else None


def _is_same_symbol(cleaned: str, gold: Gold) -> bool:
    """Return whether an answer says a reference answer in words otherwise: DNE, no solution."""
    if gold.words is None:
        return False
    symbol = in_symbols(gold.plain)
    return symbol[:1] == "\\" and in_symbols(cleaned) == symbol


def _are_same_amounts(text: str, gold: Gold) -> bool:
    """Return whether an answer is 3 h and 30 min for 3 hours 30 minutes, and nothing else."""
    wanted = _amounts(gold.raw)
    if len(wanted) < 2 or wanted != _amounts(text):
        return False
    pairs = rf"(?:{_AMOUNT.pattern}[\s,]*(?:and\b\s*)?){{{len(wanted)}}}\.?"
    return all(re.fullmatch(pairs, each.strip()) for each in (gold.raw, text))


def _circled(cleaned: str, gold: Gold) -> Answer | None:
    """Read ``正确的是 ①③`` if the reference answer consists of such numbers."""
    circled = _CIRCLED.fullmatch(cleaned)
    if circled is None or not re.fullmatch("[①-⑳]+", gold.plain) or refusals(circled[1] or ""):
        return None
    named = re.findall("[①-⑳]", circled[2])
    if list(gold.plain) == sorted(gold.plain):  # an order counts only in 将步骤排列 ②③①
        named = sorted(set(named))
    return Answer(verdict=named == list(gold.plain))


def _date_or_time(cleaned: str, gold: Gold) -> Answer | None:
    """Read ``It starts at 8:30`` if the reference answer is a date or a time."""
    if gold.moment is None:
        return None
    when = moment(cleaned)
    introduced = _SAID_AT.match(cleaned)
    if when is None and introduced:
        opening = introduced[0]
        another = refusals(opening) or _ANOTHER_DAY.search(opening)
        when = None if another else moment(cleaned.removeprefix(opening))
    return Answer(verdict=same_moment(gold.moment, when))


_IS = re.compile(r" (?:is|are|gives|yields|leads to) ")


def _check_words(cleaned: str, gold: Gold) -> None:
    """Refuse words that hedge, negate or change the value, unless the reference answer has them.

    The subject of "the number of roots is 72" is not checked for words that change the value.
    """
    links = list(_IS.finditer(cleaned))
    subject = ""
    predicate = cleaned
    if links:
        subject = cleaned[: links[-1].start()]
        predicate = cleaned[links[-1].end() :]
    tells = TELLING.search(predicate)
    against = TAKES_BACK.search(subject) or (not in_digits(gold) and DENIES.search(subject))
    if against and tells and gold.words is None:
        raise Refused(Refusal.HEDGE)
    read = predicate if tells and not re.search(r"\d", subject) else cleaned
    for word, refusal in refusals(read).items():
        if word not in gold.excused and not (gold.several and word in _OR):
            raise Refused(refusal)


def ways_of(text: str) -> list[str]:
    """Return the directions and similar words that a text names."""
    text = re.sub(r"\b(?:ends?|ended|adds?|goes)\s+up\b", " ", text)
    text = text.replace("早上", "上午").replace("晚上", "下午").replace("凌晨", "上午")
    return _WAYS.findall(re.sub(r"\\(?:left|right|above)(?![a-z])", " ", text).casefold())


def _alternatives(cleaned: str, gold: Gold) -> Answer | None:
    r"""Read an answer that states its value twice: ``\frac34 or 0.75``, ``0.5 (50%)``. Each value
    must equal the reference answer. Return ``None`` for any other text.
    """
    is_json = '"answer"' in cleaned  # JSON behind a text
    if gold.several and not is_json:
        return None
    beside = None if gold.value is None else _BESIDE.fullmatch(cleaned)
    if is_json:
        values = re.split(r"[\s,\"]*\banswer\"\s*:", cleaned)
    elif beside:
        values = [beside[1], beside[2]]
    else:
        values = _ALTERNATIVES.split(cleaned)
    if not 1 < len(values) < 4:
        return None
    if not all(TELLING.search(value) and is_expression(value) for value in values):
        return None
    values = [clean(value) for value in values]
    answers = [read_expression(value, value, gold) for value in values if value]
    failed = any(answer.refusal or answer.verdict is False or answer.pairs for answer in answers)
    if failed or not all(values):
        return Answer(refusal=Refusal.HEDGE)
    sides = [side for answer in answers for side in answer.sides]
    return Answer(tuple(sides), refusal=Refusal.HEDGE)
