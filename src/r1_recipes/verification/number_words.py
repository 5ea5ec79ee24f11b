"""Numbers and sets in words: which a text spells out, and an answer in words as symbols."""

import re

_NUMBER_TEXT = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = _NUMBER_TEXT.split()
COUNTS = "|".join(NUMBER_WORDS[1:])
# In German, French, Spanish, Portuguese and Italian.
FOREIGN_COUNTS = (
    "eine?[ns]?|zwei|drei|vier|fünf|zehn|une?|deux|trois|quatre|cinq|dix|uno|dos|tres|cuatro|cinco|"
    "diez|um|dois|três|quatro|dez|due|tre|quattro|cinque|dieci"
)
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_TEENS = "thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_UNITS = "|".join(NUMBER_WORDS[1:10])
_SPELLED = re.compile(rf"\b(?:({_TENS})(?:[\s-]({_UNITS}))?|({_TEENS}))\b")


# A number in words directly before another number: "five, so 72", "eleven 72".
_BEFORE_A_NUMBER = re.compile(
    rf"\b({COUNTS}),?\s+(?:(?:so|thus|hence|therefore|then),?\s+)?(?=-?[\d\\$])"
)


def spelled_numbers(text: str) -> set[int]:
    """Return the numbers from 13 to 99 that a text spells out, and lower ones before a number."""
    text = text.casefold()
    numbers = {NUMBER_WORDS.index(word) for word in _BEFORE_A_NUMBER.findall(text)}
    for tens, unit, teen in _SPELLED.findall(text):
        if teen:
            number = 13 + _TEENS.split("|").index(teen)
        else:
            number = 20 + 10 * _TENS.split("|").index(tens)
        if unit:
            number += NUMBER_WORDS.index(unit)
        numbers.add(number)
    return numbers


_PHRASES = {
    r"\mathbb{R}": r"(?:(?:(?:all|the set of(?: all)?)\s*)?real(?: number)?s|\\math(?:bf|"
    r"bb)\s*\{?(?-i:R)\}?|(?-i:R)|"
    r"-\\infty\s*<\s*[a-z]\s*<\s*\+?\\infty)",
    r"\emptyset": r"(?:the\s+)?empty set|(?:there (?:is|are|exists?) )?no (?:real )?solutions?|"
    r"\\\{\s*\\\}",
    r"\nexists": r"(?:it |(?:the )?limit )?does(?: not|n't) exist|DNE",
    r"\infty": r"(?:positive |\+)?infin(?:ity|ite)",
    r"\frac{1}{2}": r"(?:(?:an?|one)[ -])?half",
}
_IN_SYMBOLS = tuple(
    (re.compile(rf"\s*(?:{pattern})\s*", re.IGNORECASE), symbol)
    for symbol, pattern in _PHRASES.items()
)
_COUNTED = re.compile(
    rf"\s*(negative |minus )?({'|'.join(NUMBER_WORDS)})\b"
    r"(?: (?:real|distinct|positive|possible))?(?: (?:solutions?|roots?|values?|ways?|"
    r"points?|numbers?|integers?))?[ .]*"
)


def in_symbols(text: str) -> str:
    """Return a number or a set in words as symbols: ``two solutions``, ``all real numbers``,
    ``negative one half``. Return any other text unchanged.
    """
    # Not IGNORECASE: it takes the Turkish letters \u0130 and \u0131 for an i.
    is_negative = text.casefold().startswith("negative ")
    for pattern, symbol in _IN_SYMBOLS:
        if pattern.fullmatch(text[len("negative ") :] if is_negative else text):
            return f"-{symbol}" if is_negative else symbol
    counted = _COUNTED.fullmatch(text.casefold())
    if counted is None:
        return text
    number = NUMBER_WORDS.index(counted[2])
    return f"-{number}" if counted[1] else str(number)
