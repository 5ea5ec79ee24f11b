"""Words that decide what an answer says: those that hedge, that negate, and that make a number another one."""

import re
import unicodedata
from enum import StrEnum


class Refusal(StrEnum):
    """Why an answer was not paid, as ``log_extra`` shows it."""

    NO_ANSWER = "no answer in the format"
    INSIDE = "answer inside the reasoning, or in blocks that contradict each other or never close"
    TOO_LONG = "too long"
    SEVERAL = "several different answers"
    HEDGE = "hedge"
    QUESTION = "question mark"
    CHANGED = "a word changes the value"
    CHAIN = "chain of equations"
    HOSTILE = "power tower, or longer or deeper than the gold's kind"
    STRANGE = "digits of another script or control characters"
    UNREADABLE = "no expression found"
    DIFFERENT = "differs from the gold"
    SLOW = "took too long to compare"
    HURRIED = "not judged: other answers of the batch took its time"
    GOLD = "gold is empty, prose or a question"


# What refuses an answer unless the gold says the same; tests/verification/test_reading.py has an example and a near miss of each.
RULES = tuple(
    (refusal, re.compile(pattern, re.IGNORECASE))
    for refusal, pattern in (
        (Refusal.QUESTION, "[?？]"),
        # alternatives
        (Refusal.HEDGE, r"(?<!\\)\b(?:or|nor|either|neither|oder|ou|versus|vs)\b(?!\})|或|还是"),
        # negation
        (
            Refusal.HEDGE,
            r"\b(?:not|no(?!\.)|never|non|cannot|nicht|kein\w*|weder|pas|sauf|ni|without|ohne|sans|wrong|incorrect|false|untrue|except|"
            r"excluding|besides|but|instead|other than|rather than)\b|n't\b|\bun-(?=\d)|不|非|没|错|除",
        ),
        # doubt
        (
            Refusal.HEDGE,
            r"\b(?:maybe|perhaps|possibly|probably|might|may be|could be|guess\w*|unsure|unknown|depend\w*|unless|vielleicht)\b|可能|也许",
        ),
        # comparison
        (
            Refusal.CHANGED,
            r"\b(?:(?:less|more|greater|fewer|higher|lower|larger|smaller) than|(?<!\\)over|under|above|below|beyond|exceed\w*|between)\b|"
            r"[多少大小高低]于|超过|不到|至[少多]|以[上下]|\b(?:mehr|weniger|größer|kleiner) als\b|\b(?:mindestens|höchstens)\b",
        ),
        # operation
        (
            Refusal.CHANGED,
            r"\b(?:squares?(?= (?:of|roots?)\b)|squared|cubed|cubes?(?= (?:of|roots?)\b)|roots?|factorial|reciprocal|inverse|opposite|"
            r"negation|complement|plus|divided|multiplied|modulo|half|halves|halb\w*|twice|thrice|doubl(?:ed?|ing)|doppelt\w*|"
            r"tripl(?:ed?|ing)|treble|quadrupl(?:ed?|ing)|(?:and|one|two|three|a|-)[ -](?:third|quarter|fourth|fifth|sixth|eighth|tenth|"
            r"hundredth|thousandth)s?|-?fold|minus|negative|neg|less one|"
            r"(?:add|plus|times|mod|base|choose|remainder|to) (?:one|two|three|four|five|ten)|"
            r"(?:thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|hundredths)|Wurzel|hoch zwei|Hälfte|Viertel|Drittel|"
            r"point(?= (?:zero|one|two|three|four|five|six|seven|eight|nine)\b)|to the power)\b|[倍半减加]|"
            r"分之|平方(?![米厘分公千])|倒数|相反数",
        ),
    )
)


def refusals(text: str) -> dict[str, Refusal]:
    """Return what the rules find in a cleaned text: each word in lower case, and why it refuses."""
    return {found[0].casefold(): refusal for refusal, pattern in RULES for found in pattern.finditer(text)}


_CHOICE = re.compile(r"\(?\s*([A-J])\s*(?:[).:、\]]|\Z)(?P<rest>.*)", re.DOTALL)
_STYLED = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_CALLED = re.compile(
    r"(?i)\A(?:(?:the )?(?:correct )?(?:answer|option|choice)(?: is\b:?)?:?|(?:正确)?答案[是为:：]*|故?选(?:项|择)?|\[(?=[a-j]\]))\s*"
)
_OTHER_CHOICE = re.compile(
    r"\(\s*[A-J]\s*\)|\b[B-J]\s*[).?]|(?i:\b(?:or|and|oder|not|is|no|actually)\b)\W*(?:[A-J]\b|\Z)|"
    r"\A\W*(?:wrong|no|is not|not)\b|选\s*[A-J]|[?？]"
)


def chosen(text: str) -> tuple[str, str] | None:
    """Return the one option's letter, A to J, that a text begins with, and what follows it; ``None`` if there is none, or two."""
    called = re.sub(r"[*_`$]+", "", _STYLED.sub(r"\1", unicodedata.normalize("NFKC", text))).strip(" \t\r\n'\"。")
    called = _CALLED.sub("", called)
    match = _CHOICE.match(called.upper() if re.fullmatch(r"\(?[a-j]\)?", called) else called)
    if match is None or _OTHER_CHOICE.search(match["rest"]):
        return None
    # "B. C" and "B) A, D" are several letters, and no text of an option.
    return None if match["rest"].strip() and not re.sub(r"\b[A-J]\b|\W", "", match["rest"]) else (match[1], match["rest"])


_MONTHS = (
    "january|february|march|april|may|june|july|august|september|october|november|december|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|"
    "januar|jänner|februar|märz|mai|juni|juli|oktober|dezember|mär|okt|dez|"
    "janvier|février|mars|avril|juin|juillet|août|septembre|octobre|novembre|décembre|"
    "enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre|"
    "gennaio|febbraio|aprile|maggio|giugno|luglio|settembre|ottobre|dicembre"
)
_DAY, _OF = r"\d{1,2}(?:\.|st|nd|rd|th|er|º)?", r"(?:(?:of|de|di)\s+)?"
_DATE = re.compile(
    rf"(?:(?:on|am|the|den|le|el|il)\s+)*{_DAY}\s*{_OF}(?:{_MONTHS})\.?(?:,?\s*{_OF}\d{{4}})?|"
    rf"(?:{_MONTHS})\.?\s+{_DAY}(?:,?\s*\d{{4}})?|(?:{_MONTHS})\.?,?\s+{_OF}\d{{4}}|"
    r"(?:am\s+)?\d{1,2}\.\s?\d{1,2}\.\s?(?:\d{4}|\d{2})|\d{1,2}/\d{1,2}/\d{4}|\d{4}([-./])\d{1,2}\1\d{1,2}|"
    r"(?:\d{4}年)?\d{1,2}月(?:\d{1,2}[日号])?",
    re.IGNORECASE,
)


def is_date(text: str) -> bool:
    """Whether a text is a date and nothing else, of digits or with a month's name: 2. März 2024, May 5, 02.03.2024, 3/2/2024."""
    return _DATE.fullmatch(unicodedata.normalize("NFKC", text.strip())) is not None
