"""Words that decide what an answer says: those that hedge, that negate, and that make a number another one.

Each rule has an example that it hits and a near miss that it must not hit; the tests run over the table.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
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
    GOLD = "gold is empty, prose or a question"


@dataclass(frozen=True)
class Rule:
    """A pattern that refuses an answer, unless the gold says the same."""

    name: str
    refusal: Refusal
    pattern: re.Pattern[str]
    hits: tuple[str, ...]
    misses: tuple[str, ...]


def _rule(name: str, refusal: Refusal, pattern: str, hits: str, misses: str) -> Rule:
    return Rule(name, refusal, re.compile(pattern, re.IGNORECASE), tuple(hits.split(" | ")), tuple(misses.split(" | ")))


RULES = (
    _rule("question mark", Refusal.QUESTION, "[?？]", "72? | 72？", "72!"),
    _rule(
        "alternatives",
        Refusal.HEDGE,
        r"(?<!\\)\b(?:or|nor|either|neither|oder|ou|versus|vs)\b(?!\})|或|还是",
        "71 or 72 | 71 oder 72 | 71或72",
        "ordinary 72 | 72 pours",
    ),
    _rule(
        "negation",
        Refusal.HEDGE,
        r"\b(?:not|no(?!\.)|never|non|cannot|nicht|kein\w*|weder|pas|sauf|ni|without|ohne|sans|wrong|incorrect|false|untrue|except|"
        r"excluding|besides|but|instead|other than|rather than)\b|n't\b|\bun-(?=\d)|不|非|没|错|除",
        "not 72 | anything but 72 | 72 is wrong | isn't 72 | 非72",
        "No. 72 | notes: 72 | 72 buttons",
    ),
    _rule(
        "doubt",
        Refusal.HEDGE,
        r"\b(?:maybe|perhaps|possibly|probably|might|may be|could be|guess\w*|unsure|unknown|depend\w*|unless|vielleicht)\b|可能|也许",
        "maybe 72 | 72 I guess",
        "in May 72",
    ),
    _rule(
        "comparison",
        Refusal.CHANGED,
        r"\b(?:(?:less|more|greater|fewer|higher|lower|larger|smaller) than|(?<!\\)over|under|above|below|beyond|exceed\w*|between)\b|"
        r"[多少大小高低]于|超过|不到|至[少多]|以[上下]|\b(?:mehr|weniger|größer|kleiner) als\b|\b(?:mindestens|höchstens)\b",
        "less than 72 | over 72",
        "72 more | leftover 72",
    ),
    _rule(
        "operation",
        Refusal.CHANGED,
        r"\b(?:squares?(?= (?:of|roots?)\b)|squared|cubed|cubes?(?= (?:of|roots?)\b)|roots?|factorial|reciprocal|inverse|opposite|negation|"
        r"complement|plus|divided|multiplied|modulo|half|halves|halb\w*|twice|thrice|doubl(?:ed?|ing)|doppelt\w*|tripl(?:ed?|ing)|treble|"
        r"quadrupl(?:ed?|ing)|(?:and|one|two|three|a|-)[ -](?:third|quarter|fourth|fifth|sixth|eighth|tenth|hundredth|thousandth)s?|-?fold|"
        r"minus|negative|neg|less one|(?:add|plus|times|mod|base|choose|remainder|to) (?:one|two|three|four|five|ten)|"
        r"(?:thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|hundredths)|Wurzel|hoch zwei|Hälfte|Viertel|Drittel|"
        r"point(?= (?:zero|one|two|three|four|five|six|seven|eight|nine)\b)|to the power)\b|[倍半减加]|"
        r"分之|平方(?![米厘分公千])|倒数|相反数",
        "72 and a half | double 72 | 72 squared | 72 and one third | half of 72 | 72倍",
        "72 doubloons | 72 square feet | 72 points | 72 quarters | third: 72",
    ),
)


def refusals(text: str) -> dict[str, Refusal]:
    """Return what the rules find in a cleaned text: each word in lower case, and why it refuses."""
    return {found[0].casefold(): rule.refusal for rule in RULES for found in rule.pattern.finditer(text)}


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
