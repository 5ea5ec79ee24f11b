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
    UNEVALUATED = "a task in place of its result"
    COPIED = "copied out of the question"
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
            r"excluding|besides|but|instead|other than|rather than)\b|n't\b|\bun-(?=\d)|不(?!同)|非|没|错|除",
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
            r"\b(?:squares?(?= (?:of|roots?)\b)|squared|cubed|cubes?(?= (?:of|roots?)\b)|"
            r"(?:square|cube|third|fourth|nth)[ -]?roots?|roots? of|factorial|reciprocal|inverse|opposite|"
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


def chosen_letters(text: str) -> str:
    """The options that an answer names, in its order (``A, B and D``, ``["B", "F"]``), or ``""`` if it says anything else."""
    left = re.sub(r"""\b(?:and|answers?|options?|are|is|the)\b|[选和、,;()\[\]{}"'\s.]|\\""", "", _STYLED.sub(r"\1", text))
    return left if re.fullmatch("[A-J]+", left) and len(set(left)) == len(left) else ""


_YES, _NO = frozenset(("yes", "true", "correct")), frozenset(("no", "false", "incorrect"))
_NEGATION = re.compile(r"\b(?:no|not|none|never|false|cannot|un\w+)\b|n't\b", re.IGNORECASE)
_AFFIRMATION = re.compile(r"\b(?:yes|true)\b", re.IGNORECASE)


def agrees(text: str, gold: str) -> bool | None:
    """Whether an answer to a gold of yes or no begins with that word and says nothing against it; ``None``: the gold is neither."""
    polarity = _YES if gold in ("yes", "true") else _NO if gold in ("no", "false") else None
    if polarity is None:
        return None
    first, sign, rest = re.match(r"\W*(\w*)\s*([.,;:!]?)\s*(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    against = _NEGATION if polarity is _YES else _AFFIRMATION
    clear = not rest.strip(" .!{}") or (bool(sign) and not against.search(rest) and not re.search(r"[?？]|\b(?:or|maybe|but)\b", rest))
    return first.casefold() in polarity and clear


def says(text: str, gold: str) -> bool:
    """Whether a sentence says a gold of words as its last word, or begins with it as its subject: ``It is Monday.``"""
    words = " ".join(re.findall(r"\w+|[.,;:!()]", text)).strip(" .!").casefold()
    name = re.escape(gold)
    before = r"(?:(?:[\w ]+ )?(?:is|are|was|were|it s|it's) )?(?:(?:on|an?|the|student) )?"
    after = r"(?: is (?:the|a|an) \w+| has (?:the|a|an) \w+(?: \w+){0,3})?"
    more = re.sub(rf"(?i){name}", "", re.sub(r"\([^()]*\)", "", text))
    several = re.search(r"\b(?:and|or|than|but|either|neither)\b|[,;/&]", more) or re.search(r"(?<=\w )[A-Z]\w+", more.strip())
    bare = re.sub(r" \(.*\)\Z", "", words)
    return bool(re.fullmatch(before + name + "(?: function| number)?", bare) or (not several and re.fullmatch(name + after, bare)))


NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_PHRASES = {
    r"\mathbb{R}": r"(?:(?:(?:all|the set of(?: all)?)\s*)?real(?: number)?s|\\math(?:bf|bb)\s*\{?R\}?|R|"
    r"-\\infty\s*<\s*[a-z]\s*<\s*\+?\\infty)",
    r"\emptyset": r"(?:the\s+)?empty set|no (?:real )?solutions?|\\\{\s*\\\}",
    r"\infty": r"(?:positive |\+)?infin(?:ity|ite)",
    r"\frac{1}{2}": r"(?:an?|one)?[ -]?half",
}
_IN_SYMBOLS = tuple((re.compile(rf"\s*{pattern}\s*", re.IGNORECASE), symbol) for symbol, pattern in _PHRASES.items())
_COUNTED = re.compile(
    rf"\s*(negative |minus )?({'|'.join(NUMBER_WORDS)})\b"
    r"(?: (?:real|distinct|positive|possible))?(?: (?:solutions?|roots?|values?|ways?|points?|numbers?|integers?))?[ .]*",
    re.IGNORECASE,
)


def in_symbols(text: str) -> str:
    """An answer that is a number or a set in words, in symbols: ``two solutions``, ``all real numbers``, ``negative one half``."""
    sign, rest = ("-", text[9:]) if text.casefold().startswith("negative ") else ("", text)
    for pattern, symbol in _IN_SYMBOLS:
        if pattern.fullmatch(rest):
            return sign + symbol
    if counted := _COUNTED.fullmatch(text):
        return ("-" if counted[1] else "") + str(NUMBER_WORDS.index(counted[2].casefold()))
    return text
