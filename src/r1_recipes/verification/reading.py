r"""What a text says: a gold, and an answer as the expressions that all have to equal it.

Four steps: locate (:mod:`~r1_recipes.verification.locate`), normalise
(:mod:`~r1_recipes.verification.spelling`), reject for a named reason
(:class:`~r1_recipes.verification.lexicon.Refusal`), compare. Normalising may restyle a text; it
never takes off what carries meaning. Everything here is linear in the length of the text, or reads
no more than ``MAX_ANSWER_CHARS`` of it.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

from r1_recipes.prompts.formats import one_spelling_of_boxes
from r1_recipes.verification.expression import Answer, read_expression
from r1_recipes.verification.gold import Gold, squeezed
from r1_recipes.verification.lexicon import (
    Refusal,
    agrees,
    chosen,
    chosen_letters,
    in_symbols,
    refusals,
    says,
    spelled_numbers,
    takes_back,
)
from r1_recipes.verification.locate import ANCHOR, MAX_ANSWER_CHARS, boxes_of
from r1_recipes.verification.moments import moment, same_moment
from r1_recipes.verification.numbers import NUMBER, PRECISION, read_value
from r1_recipes.verification.spelling import clean, typed
from r1_recipes.verification.units import names_another, same_units, units_of
from r1_recipes.verification.words import (
    TELLING,
    is_expression,
    plain_words,
    prose,
)

_OR = frozenset(("or", "oder", "或"))
_ALTERNATIVES = re.compile(r"\s*,?\s*\b(?:or|oder|ou)\b\s*|或")
_BESIDE = re.compile(
    r"(.*[\d)}%])\s+\((?:(?:or|=|i\.e\.|that is|about|\\approx)\s*)?([^()]*\d[^()]*)\)", re.DOTALL
)
_STRUCK = re.compile(
    r"~~|[\w)}] ~ [\w(\\]|\\(?:cancel|st|sout|xcancel|bcancel)(?![A-Za-z])|¬|\\neg(?![A-Za-z])"
)
# A prime is a derivative, a foot or a minute: (x^2)', 72''.
_PRIME = re.compile(r"(?:[\d)\]}]|(?<![A-Za-z'])[A-Za-z])(?:'(?![A-Za-z])|[′″])|\^\s*\{?\s*\\prime")
# A star that ends no emphasis, and a sign of a web page.
_LEFT_OVER = re.compile(r"\A[^*]*[\w)}]\s*\*\s*\Z|&\w+;")
# Words that turn a quantity: an answer that names one names the gold's.
_WAYS = re.compile(
    r"(\b(?:(?:north|south)(?:east|west)|upstream|downstream|attractive|repulsive|forward|"
    r"backward|higher|lower|early|late|surplus|deficit|"
    r"towards?|away|uphill|downhill|into|out|horizontal|vertical|older|younger|ahead|heavier|"
    r"lighter|won|lost|"
    r"north|south|east|west|left|right|up|down|upwards?|downwards?|behind|front|before|after|"
    r"more|less|fewer|loss|profit|gain|increase|decrease|"
    r"clockwise|counterclockwise|inward|outward|above|below|taller|shorter|longer|wider|"
    r"narrower|ago|"
    r"hence|from now|faster|slower|warmer|colder|hotter|cooler|upstairs|downstairs|overpaid|"
    r"underpaid|owed|owned)\b|"
    r"[东南西北左右](?=\d|面|方|边|走|移)|盈利|亏损|上升|下降|增加|减少|前进|后退)"
)
_SAID_AT = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:it|that|this|(?:the|my|our|his|her|"
    r"their)\s+(?:[a-z]+\s+){1,2}|today)\s*"
    r"(?:(?:will|would|is|was|'s|falls|starts|begins|ends|arrives|leaves|be)\s+)+(?:(?:at|"
    r"on)\s+)?(?=\S)",
    re.IGNORECASE,
)
_CIRCLED = re.compile(r"(.*?[是为:：]\s*)?([①-⑳][①-⑳、,，和\s]*)")
_OPENING = re.compile(
    r"(?i)\A(?:(?:so|thus|hence|therefore),?\s+)?(?:the|my|our)?\s*(?:final|"
    r"correct)?\s*answer\s*(?:is\b:?|:)\s*"
)
# Beside a box, and part of what is said: "71 or", "-", "\\frac{1}{"; "or 71", "?", "^2".
_SPELLED = re.compile(
    r"\b(?:thir|four|fif|six|seven|eigh|nine)teen\b|\b(?:twen|thir|for|fif|six|seven|eigh|"
    r"nine)ty(?:[\s-](?:one|two|three|four|five|six|seven|eight|nine))?\b",
    re.I,
)
_LEADS = re.compile(
    r"(?:[-+/^<>{\d~]|(?<!\\)\(|(?<!\*)\*|(?<![A-Za-z\\])[A-Za-z](?=\\?\Z)|[)!]|"
    r"\\(?!\(|\[|quad|,|;|therefore|text|implies|Rightarrow|boxed|left|end|newline|\s)[A-Za-z]+|"
    r"\b(?:or|not|isn't|than|minus|negative|guess|half|double|twice|root|of|wrong(?: "
    r"answer)?(?: is)?|sinh|cosh)\b:?)\s*\$?\s*\Z",
    re.IGNORECASE,
)
_TRAILS = re.compile(
    r"\A(?:\s*\$?\s*(?:,?\s*\d|[-+/^?}_'=<>²³]|(?:and|,|;|&)\s+(?:[A-J](?![A-Za-z])|\$?-?\d)|"
    r"\*\s*\d|[.(\[]\d|\\[,;]\s*\d|"
    r",?\s*(?:or|hundred|million|thousand|billion|trillion|dozen|squared|mod|no)\b|"
    r"\.?\s*actually\b|\(?(?:is )?(?:wrong|not|incorrect|should|but)\b|"
    r"\\(?:cdot|times|div|pi|pm|pmod|bmod|tag|sqrt|frac|ne|neq|le|ge|framebox|"
    r"fbox)(?![A-Za-z]))|[A-Za-z](?![A-Za-z]))",
    re.IGNORECASE,
)
# Digits of other scripts, signs that are no keyboard's (they would count as prose), control
# characters and lone surrogates.
_STRANGE = frozenset(
    ("Nd", "No", "Nl", "Cs", "Cc", "Cf", "Co", "Lm", "Sm", "Pd", "Sk", "So", "Mn", "Me", "Po")
)
_USUAL = frozenset("°℃℉✓✔✅，。、：；！？…·•“”‘’「」『』（）《》【】¡ーｰ々ゝヽ")
# Scripts in which words stand beside an answer; of Latin, with accents, a word has three letters.
_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
_WORD = re.compile(r"[^\W\d_]+")


def read_answer(text: str, gold: Gold, locale: str = "en") -> Answer:
    if len(text) > MAX_ANSWER_CHARS:
        return Answer(refusal=Refusal.TOO_LONG)
    if gold.value is not None and locale == "en" and NUMBER.fullmatch(text):
        return Answer((text,))  # most answers to GSM8K
    text = one_spelling_of_boxes(text)
    for _ in range(3):  # A box in a box is a slip; more is a trap.
        if "\\boxed" not in text:
            break
        boxes = boxes_of(text)
        *_, beside = ["", *ANCHOR.split(text)[1:]]
        if _is_part_of_more(text):
            return Answer(refusal=Refusal.SEVERAL)
        if "\\boxed" not in beside and _says_another(beside, gold):
            boxes.append(beside)  # "\\boxed{72}. The answer is 71."
        if len(boxes) != 1:
            return _read_boxes(boxes, gold, locale)
        # What stands beside a box inside a box is a second answer.
        text = boxes[0]
        if "\\boxed" in text and not re.fullmatch(r"[\s$]*\\boxed\{.*\}[\s$.]*", text, re.DOTALL):
            return Answer(refusal=Refusal.SEVERAL)
    if "\\boxed" in text:
        return Answer(refusal=Refusal.HOSTILE)
    before, _, text = text.rpartition("####")
    if _LEADS.search(before):
        return Answer(refusal=Refusal.SEVERAL)
    if record := re.fullmatch(
        r"\s*\{\s*\"(?:final_)?(?:answer|result|value)\"\s*:\s*\"?([^\"{}]*)\"?\s*\}\s*", text
    ):
        text = record[1]  # {"answer": 72}
    if _STRUCK.search(text) and not _STRUCK.search(gold.raw):
        return Answer(refusal=Refusal.STRANGE)
    said = (
        text.rpartition("=")[2] if not gold.relations else text
    )  # of "f'(x) = 2x" the name changes nothing
    if gold.words is None and not _PRIME.search(gold.raw) and _PRIME.search(said):
        return Answer(refusal=Refusal.STRANGE)
    if any(char not in gold.raw for char in _unusual(typed(text))):
        return Answer(refusal=Refusal.STRANGE)
    cleaned = clean(text, locale)
    if opening := _OPENING.match(cleaned):
        cleaned = clean(cleaned[opening.end() :].removesuffix("!"))
    return (
        _read_words(text, cleaned, gold, locale) if cleaned else Answer(refusal=Refusal.UNREADABLE)
    )


def _is_part_of_more(text: str) -> bool:
    """Whether a box is a piece of what is said: -\\boxed{72}, \\boxed{72} + 1, \\boxed{B} and C."""
    before, after = typed(text[: text.index("\\boxed")]), typed(text.rpartition("}")[2])
    word_before, word_after = (
        re.search(r"([A-Za-z]+):?\s*\$*\Z", before),
        re.match(r"\W*([A-Za-z]+)", after),
    )
    words = [word[1] for word in (word_before, word_after) if word]
    return (
        _LEADS.search(before) is not None
        or _TRAILS.search(after) is not None
        or re.match(
            r"[\s$]*(?:[|,;&]|and\b)\s*(?:\\?\(?[$(]*[-\d]|\w+\W*\Z)|"
            r"\W*(?:\\?\w+\s*\{(?:[a-z]+\}\{)?)*\W*\d+\W*\Z",
            after,
        )
        is not None
        or re.search(r"(?:\A|\s)[A-J]\s+\$*\Z", before) is not None  # "A \\boxed{B}"
        or re.match(r"\s*\$*\s+[A-J]\s*\Z", after) is not None
        or bool(refusals(" ".join(words)))
        or bool(_ways(" ".join(words[:1] if word_before else [])))
    )


def _says_another(beside: str, gold: Gold) -> bool:
    """Whether what stands behind "the answer is", beside a box, may be another answer."""
    if gold.letter or gold.letters:
        return re.match(r"\W*[A-J](?![A-Za-z])", beside) is not None
    return TELLING.search(beside) is not None if gold.words is None else 0 < len(prose(beside)) < 5


def _unusual(text: str) -> set[str]:
    """The signs of a text that no keyboard has and that may change a number: marks, symbols, digits
    of other scripts.
    """
    if text.isascii() and text.isprintable():
        return set()
    signs = {char for char in text if not (" " <= char <= "~" or char.isspace() or char in _USUAL)}
    words = {
        char
        for word in _WORD.findall(text)
        if len(word) > 2 and not word.isascii()
        for char in word
    }
    return {
        char
        for char in signs
        if unicodedata.category(char) in _STRANGE
        or (char.isalpha() and not _is_written(char, words))
    }


def _is_written(char: str, words: set[str]) -> bool:
    """Whether a letter is one that words beside an answer are written in: Chinese, Japanese,
    Korean; with an accent, in a Latin word.
    """
    name = unicodedata.name(char, "")
    return name.startswith(_SCRIPTS) or (name.startswith("LATIN") and char in words)


def _ways(text: str) -> list[str]:
    """The directions and the like that a text names."""
    return _WAYS.findall(re.sub(r"\\(?:left|right|above)(?![a-z])", " ", text).casefold())


def _read_words(text: str, cleaned: str, gold: Gold, locale: str) -> Answer:
    """Read an answer to a choice, a date or words; what is left goes on as an expression."""
    if gold.letters is not None:
        named = chosen_letters(cleaned)
        return Answer(
            verdict=named == gold.letters
            if gold.ordered
            else "".join(sorted(named)) == gold.letters
        )
    option = chosen(cleaned) if gold.letter is not None else None
    if (
        gold.letter
        and gold.words != gold.letter.casefold()
        and re.search(rf"\b(?!{gold.letter})[B-J](?![A-Za-z'])|\(A\)|\bA\s*=", cleaned)
    ):
        return Answer(verdict=False)  # "D = 17", "17, choice (D)" for "(C) 17"
    if option and option[0] == gold.letter and gold.words is None and re.search(r"\w", option[1]):
        return read_answer(
            option[1], replace(gold, letter=None), locale
        )  # "(C) 18" is not "(C) 17"
    if (
        option
        and gold.words is not None
        and gold.words != (gold.letter or "").casefold()
        and plain_words(option[1])
    ):
        return Answer(
            verdict=option[0] == gold.letter and plain_words(option[1]) == gold.words
        )  # (C) Tuesday is not (C) Monday
    if option or (gold.letter is not None and gold.words is not None):
        return Answer(verdict=option is not None and option[0] == gold.letter)
    if (
        gold.left_out
        and (ways := _ways(gold.raw))
        and (said_ways := _ways(text))
        and said_ways != ways
    ):
        return Answer(refusal=Refusal.DIFFERENT)
    spelled = spelled_numbers(cleaned) if gold.value is not None else set()
    if spelled and spelled != {gold.value.number}:  # type: ignore[union-attr]
        return Answer(refusal=Refusal.SEVERAL)
    units = units_of(text) if gold.units or "%" in gold.raw else ()
    if units and "%" in gold.raw and "%" not in text:
        return Answer(refusal=Refusal.DIFFERENT)  # 10 ohms for 10 %
    if units and gold.units and not same_units(gold.units, units):
        return Answer(refusal=Refusal.DIFFERENT)
    if (
        gold.units
        and not units
        and (names_another(cleaned, gold.raw) or moment(cleaned) is not None)
    ):
        return Answer(refusal=Refusal.DIFFERENT)
    if (
        re.search(r"\d\s*:\s*\d+\s*:", text) and not re.search(r":|\bto\b", gold.raw)
    ) or _LEFT_OVER.search(text):
        return Answer(refusal=Refusal.DIFFERENT)  # a ratio is no triple
    if squeezed(cleaned) == gold.plain:
        return Answer(verdict=True)
    if (
        re.fullmatch("[①-⑳]+", gold.plain)
        and (circled := _CIRCLED.fullmatch(cleaned))
        and not refusals(circled[1] or "")
    ):
        return Answer(verdict=sorted(set(re.findall("[①-⑳]", circled[2]))) == sorted(gold.plain))
    if gold.moment is not None:
        said_at = _SAID_AT.match(cleaned)
        when = moment(cleaned)
        if when is None and said_at and not refusals(said_at[0]):
            when = moment(cleaned[said_at.end() :])
        return Answer(verdict=same_moment(gold.moment, when))
    if gold.words is not None and (verdict := agrees(cleaned, gold.words)) is not None:
        return Answer(verdict=verdict)
    cleaned = (
        in_symbols(cleaned) if gold.words is None and not re.search(r"\d", cleaned) else cleaned
    )
    if squeezed(cleaned) == gold.plain:
        return Answer(verdict=True)
    if alternatives := _alternatives(cleaned, gold):
        return alternatives
    subject, _, said = (
        cleaned.rpartition(" is ") if " is " in cleaned else cleaned.rpartition(" are ")
    )
    # Of "the number of roots is 72" the subject changes nothing.
    if takes_back(subject) and TELLING.search(said) and gold.words is None:
        return Answer(refusal=Refusal.HEDGE)
    whole = not TELLING.search(said) or re.search(r"\d", subject)
    for word, refusal in refusals(cleaned if whole else said).items():
        if word not in gold.excused and not (gold.several and word in _OR):
            return Answer(refusal=refusal)
    if gold.words is not None:
        return Answer(verdict=not gold.only_text and says(cleaned, gold.words))
    if moment(cleaned) is not None and ":" in cleaned and ":" not in gold.raw:
        return Answer(refusal=Refusal.DIFFERENT)  # 9:30 is not 9/30
    return read_expression(text, cleaned, gold)


def _alternatives(cleaned: str, gold: Gold) -> Answer | None:
    """The same value twice, ``\\frac34 or 0.75``, ``0.5 (50%)``: each has to equal the gold.
    ``None``: the answer is no such text.
    """
    if gold.words is not None or (gold.several and '"answer"' not in cleaned):
        return None
    beside = _BESIDE.fullmatch(cleaned) if gold.value is not None else None
    said = [beside[1], beside[2]] if beside else _ALTERNATIVES.split(cleaned)
    said = (
        re.split(r"[\s,\"]*\banswer\"\s*:", cleaned) if '"answer"' in cleaned else said
    )  # JSON that goes on behind a text
    if not 1 < len(said) < 4 or not all(
        re.search(r"\d|\\[A-Za-z]", one) and is_expression(one) for one in said
    ):
        return None
    said = [clean(one) for one in said]
    answers = [
        read_expression(one, one, gold) if one else Answer(refusal=Refusal.HEDGE) for one in said
    ]
    if any(answer.refusal or answer.verdict is False or answer.pairs for answer in answers):
        return Answer(refusal=Refusal.HEDGE)
    return Answer(tuple(side for answer in answers for side in answer.sides), refusal=Refusal.HEDGE)


def _read_boxes(boxes: list[str], gold: Gold, locale: str) -> Answer:
    """Read several boxes: a list, if the gold is one; else each has to equal the gold."""
    if gold.several:
        listed = ", ".join(boxes)
        return (
            read_answer(listed, gold, locale)
            if "\\boxed" not in listed
            else Answer(refusal=Refusal.SEVERAL)
        )
    answers = [read_answer(box, gold, locale) for box in boxes[:4]]
    if (
        not boxes
        or len(boxes) > 4
        or any(answer.refusal or answer.verdict is False for answer in answers)
    ):
        return Answer(refusal=Refusal.SEVERAL if boxes else Refusal.NO_ANSWER)
    if all(answer.verdict for answer in answers):
        return Answer(verdict=True)
    sides = tuple(side for answer in answers for side in answer.sides)
    return Answer(sides, tuple(side for answer in answers for side in answer.rounded))


def settle(gold: Gold, answer: Answer, precision: int = PRECISION) -> bool | None:
    """Return the verdict if it needs no parser; ``None``: ask a worker."""
    if answer.refusal is not None and not answer.sides:
        return False
    if answer.verdict is not None or gold.value is None or answer.rounded or answer.pairs:
        return answer.verdict
    equal = [
        None if (value := read_value(side)) is None else gold.value.equals(value, precision)
        for side in answer.sides
    ]
    return False if False in equal else None if None in equal else True
