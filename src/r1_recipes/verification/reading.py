"""Find and read an answer, its reference answer and its question.

Every sign of an answer has to be accounted for: mathematics by :mod:`.trees`, words beside it by
the few rules here. Anything else makes the answer wrong.
"""

import functools
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from r1_recipes.prompts.formats import boxes, left_open
from r1_recipes.verification.expressions import letters_of
from r1_recipes.verification.numbers import read_number
from r1_recipes.verification.spelling import clean, squeezed
from r1_recipes.verification.trees import NAME, build, split

# A longer answer is wrong without being read.
MAX_ANSWER_CHARS = 1000
ANCHOR = re.compile(r"(?i)####|\b(?:answer|antwort)[\s*_]*(?:is\b|ist\b|:|：)|答案(?:是|为|:|：)")
# "I hope it is correct." A sentence with a number is kept, because it may retract the answer.
_AFTERTHOUGHT = re.compile(r"(?<=\S)[.。]\s+[^\d\W][^\d]*\Z")
_CLOSING_LINES = re.compile(r"(?:\s*(?:\$\$|\\\]|\\\)))+\s*\Z")
MAX_BOXES = 20
MAX_GOLD_WORDS = 12  # a text with more words is a solution or a proof
MAX_TAIL_CHARS = 20_000  # only the end of a longer question, or completion without a box, is read


class Refusal(StrEnum):
    """Why an answer gets a reward of 0, as ``log_extra`` shows it."""

    NO_ANSWER = "no answer in the format"
    TOO_LONG = "too long"
    SEVERAL = "several different answers"
    WORDS = "words that may change the answer"
    UNREADABLE = "no expression found"
    DIFFERENT = "differs from the reference answer"
    COPIED = "copied out of the question"
    SLOW = "took too long"
    GOLD = "the reference answer is empty, prose or a question"


class Refused(Exception):
    """Raised when a text is not one answer. Its argument is the :class:`Refusal`."""


# Any words may stand beside a number, "72 clips in total", except these, which change it.
_CHANGES = re.compile(
    r"(?i)\b(?:not?|nor|never|neither|none|without|except|but|wrong|incorrect|false|minus|negative|"
    r"rejected|extraneous|falsch|"
    r"plus|times|half|halves|thirds?|quarters?|doubled?|twice|thrice|tripled?|squared|cubed|"
    r"(?:square|cube|roots?) of|(?:square|cube) roots?|power|factorial|reciprocal|inverse|opposite|"
    r"hundreds?|thousands?|(?:m|b|tr)illion(?:s|en)?|milliarden?|mio|mrd|tausend|lakhs?|crores?|"
    r"dozens?|(?:less|more|fewer|greater) than|"
    r"(?:fif|six|seven|eigh|nin|ten|hundred|thousand)ths|percent (?:less|more)|"
    r"nicht|kein\w*|ohne|wurzel|über(?=\s*[\d\\(])|mehr als|weniger als|mindestens|höchstens|"
    r"não|m[aá]s de|menos|moins|ra[ií]z|racine|at (?:least|most)|up to|under|"
    r"(?<!left )over(?!\s+[a-z]+\s+[a-z]{3,}|\s*\Z)|"  # but not "over three months"
    r"above|below|between|almost|nearly|maybe|perhaps|guess|if|unless|sinh|cosh|mod|"
    r"point)\b|n't\b|[?？不非没倍半减加负分多少约万亿百]|千(?![米克瓦])|"
    r"根号|平方根|的[平立]方|[大小高低]于|超过|以[上下]|零下"
)
_OPENING = re.compile(
    r"(?i)\A(?:so|thus|hence|therefore)?,?\s*(?:the|my|our)?\s*(?:final|correct)?\s*"
    r"(?:(?:answer|option|choice)s?\b\s*)+(?:(?:is|are)\b:?|:)?\s*|"
    r"\A(?:故?选(?:[项择](?=[是为:：A-J]))?|(?:正确)?答案(?=[是为选:：])(?:选[项择]?)?)[是为]?[:：]?\s*"
)
_LINK = re.compile(r"(?:\b(?:is|are|was|were|equals|get|have|to)|[:=：为是])\s*\Z")
# A run of letters. Two beside a digit are a product: 5ab.
_RUN = re.compile(
    r"(?<![\\A-Za-z])(?<!begin\{)(?<!end\{)"
    r"(?:[A-Za-z]*[À-ɏḀ-ỿ][A-Za-zÀ-ɏḀ-ỿ]*|[A-Za-z]{3,}|(?<![\d})])[A-Za-z]{2}(?![A-Za-z])|"
    r"[^\W\d_A-Za-z]+)"
)
# A word of a reference answer and not a product: it has a vowel and no operation beside it.
_WORD = re.compile(
    r"(?i)(?<![\\a-z\d)}*^_/+-])(?<!begin\{)(?<!end\{)(?=[a-z]*[aeiouy])[a-z]{3,}(?![a-z*^_/+])"
)
# No subtraction; nor 1914-1918, nor 10 - 12.
_DATE = r"\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[-/]\d\d?[-/]\d{4}|[\d.]+\s*-\s*[\d.]+"
_ONLY_WORDS = re.compile(
    rf"(?i:no|yes|true|false|none|.*\d\s*[ap]\.?\s?m\b.*)|[A-Z]{{2,5}}|{_DATE}"  # 4 p.m.
)
_GLUED = (  # units that may follow a number without a space; 2mg may be a product
    r"(?:[mcdk]m|ft|yd|mi|kg|lbs?|oz|ms|secs?|mins?|hrs?|hours?|m[lL]|mph|kph|rpm|[kM]?Hz|[km]?Pa|"
    r"[kM][JWV])(?![A-Za-z])"
)
_UNIT = (
    rf"(?:{_GLUED}|(?:[mgshlLNJWVACFK]|\\Omega|\\mu)(?![A-Za-z])|[\u4e00-\u9fff]+|"
    r"(?:[mnpuk][gmAVWNFHMs]|[kKMGT]B|[dc]L|eV|dB|hp|cc|Bq|Gy|Sv|W[bh]|cd|ha|yr|wk)(?![A-Za-z])|"
    r"(?!(?:and|or|to|if|for|where)\b)[A-Za-z]{3,})(?:\s*\^\s*\{?-?[123]\}?|[23](?!\d))?"
)
_WITH_UNIT = re.compile(
    r"([^A-Za-z]*(?:\\(?:frac|sqrt|pi|cdot|times|infty)[^A-Za-z]*)*"
    r"(?:[\d}]|(?<=\\pi)(?=\s+(?:[cdkm]m|kg|ft|yd|rad|[A-Za-z]{4,}))))"
    rf"(?:\s+|(?={_GLUED}|[\u4e00-\u9fff]))"
    rf"({_UNIT}(?:(?:\s*(?:/|-|\\cdot)\s*|\s+)(?:(?:per|of|in)\s+)?{_UNIT})*)"
)
_JOINT = re.compile(r"\s*[,;]?\s*(?:\b(?:and|or)\b|\\lor(?![a-z])|[或和、])\s*")
# It says what a letter stands for: k \in \mathbb{Z}, for all x.
_CONDITION = re.compile(
    r"[\s,(]*(?:where|for|with)?\s*\b[kmn]\s*(?:is an integer|\\in\s*(?:\\math\w+)?\s*\{?[NZR]\}?"
    r"(?:[_^]\{?[+*]\}?)?)\)?\s*\Z|\s*,?\s*\(?for (?:all|any|every)[a-z ]+\)?\Z"
)
# Another option, and not a letter of the option's own text: vitamin D, E. coli, Washington, D.C.
_BOTH = re.compile(r"(?i)\b(?:both|all of|n?either)\s+[A-J](?:,? (?:and |n?or )?[A-J]\b)+")
_OTHER = re.compile(
    r"\b[A-J]\)|(?:\b[A-J][.:]\s.*){2}|\A[A-J]\b\W*(?:(?:and|or)?\W*[A-J]\b|[A-Z]|\Z)|"
    r"(?i:\A\W*(?:and|or|not)\b\W*[a-j]\b|\banswer is\b)|"
    r"(?:(?<![A-Z])[,;:/，；、。.]\s*|\b(?i:and|or|und|oder|no|not|is|it|be|ist|actually) |"
    r"[或是选和]\s*)[A-J]\b(?!-|\.[A-Z])"
)
_ORDER = re.compile(
    r"(?i)\b(?:(?:a|de)scending|(?:in|de)creasing|numerical|chronological|alphabetical) order\b|"
    r"\border(?:ed)? from\b|\bin order (?:from|of)\b|从[小大低高]到[大小高低]|"
    r"\bfrom (?:the )?(?:least|small|low|short|light|great|large|high|long|big)\w* to\b"
)
_OPERATION = re.compile(
    r"[+*/^=!]|[\w)}]\s*-|\\(?:frac|cdot|times|div|int|sum|prod|lim|sqrt|begin|binom)"
)
_NUMERALS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
# Words and signs that stand for one symbol. "there are" may stand before them.
_SPELLINGS = {
    symbol: re.compile(rf"(?i)(?:there (?:is|are) |it has )?(?:{pattern})")
    for symbol, pattern in {
        r"\mathbb{R}": r"(?:(?:the set of )?all )?real(?: number)?s?|"
        r"\(-\\infty\s*,\s*\+?\s*\\infty\s*\)|-\\infty\s*<\s*[a-z]\s*<\s*\+?\\infty",
        r"\emptyset": r"(?:the )?empty set|no (?:real )?solutions?|\\\{\s*\\\}",
        **{str(digit): rf"{word}(?: [a-z]+s)?" for digit, word in enumerate(_NUMERALS)},
    }.items()
}


@dataclass(frozen=True)
class Gold:
    """A reference answer: a choice, words, or mathematics."""

    raw: str
    plain: str  # in one spelling, without white space: an answer with the same text is right
    letters: str = ""  # of a choice: "B", "ABD"
    words: str = ""  # if it is words
    mathematics: str = ""  # if it is mathematics
    variables: frozenset[str] = frozenset()
    is_list: bool = False


def final_answer(text: str) -> str | None:
    """Return the final answer of a whole completion, ``None`` if it commits to none. It is in the
    boxes, behind the last "answer is" or ``####``, or in a last line without words.
    """
    found = [] if left_open(text) else boxes_of(text)
    if len(found) == 1 and "\\boxed" not in found[0]:
        return found[0]
    if found or "\\boxed" in text:
        return ", ".join(rf"\boxed{{{box}}}" for box in found) or None
    text = text[-MAX_TAIL_CHARS:]
    *before, behind = ANCHOR.split(text)
    if before:
        line = next((line for line in behind.splitlines() if line.strip(" \t*_:：$\\[]()")), "")
        return _AFTERTHOUGHT.sub("", line[:MAX_ANSWER_CHARS]).strip(" \t*_:：") or None
    end = _CLOSING_LINES.sub("", text[-MAX_ANSWER_CHARS:])
    line = end.rstrip().rpartition("\n")[2]
    words = re.search(r"(?<![\\A-Za-z])[^\W\d_]{3,}", clean(line))
    # A formula that never closes was cut: \[32 + 22
    is_cut = any(text.rfind(f"\\{a}") > text.rfind(f"\\{b}") for a, b in ("[]", "()"))
    return None if words or is_cut or not clean(line) else line


def reference_answer(text: str) -> str:
    r"""Return the reference answer in a text, which may be a whole worked solution.

    It is the last ``\boxed{…}``, or what follows the last ``####`` or "answer is" (MetaMathQA has
    both), or all of the text.
    """
    text = text.rpartition("</think>")[2]
    return next(filter(None, boxes(text)[::-1]), "") or ANCHOR.split(text)[-1].strip(" \n\t*_:：")


def boxes_of(text: str) -> list[str]:
    """Return the distinct contents of a text's first boxes, in order, without empty ones."""
    distinct = list(dict.fromkeys(boxes(text)))[:MAX_BOXES]
    return [box for box in distinct if clean(box[:MAX_ANSWER_CHARS])]


@functools.lru_cache(16_384)
def read_gold(text: str, locale: str = "en") -> Gold | None:
    """Read the reference answer in a text. Return ``None`` if it is empty, too long, prose or a
    question.
    """
    text = reference_answer(text)
    if len(text) > MAX_ANSWER_CHARS or text.endswith(("?", "？")):
        return None
    cleaned = spelled(text, locale)
    if not cleaned or len(_RUN.findall(cleaned)) > MAX_GOLD_WORDS:
        return None
    if read_number(cleaned):
        return Gold(text, cleaned, mathematics=cleaned)
    # (C) 17, or C. 17, but not A) 12, B) 15
    option = re.fullmatch(r"(?!..+\b[A-J][).:])\(?([A-E])(?:\)|\.(?=\s))\s*(\S.*)", cleaned)
    if option:
        value = read_gold(option[2], locale)
        return value and replace(value, letters=option[1], plain=squeezed(cleaned))
    letters, rest = choice_of(cleaned)
    gold = Gold(text, squeezed(cleaned), letters="" if rest else letters)
    return gold if gold.letters else _mathematics(cleaned, gold)


def spelled(text: str, locale: str = "en") -> str:
    """Return a text in one spelling, without "the answer is", or the symbol that it stands for."""
    text = _OPENING.sub("", clean(text, locale))
    symbols = (symbol for symbol, pattern in _SPELLINGS.items() if pattern.fullmatch(text))
    return next(symbols, text)


def _mathematics(cleaned: str, gold: Gold) -> Gold:
    """Read mathematics. If words stand in it, only the same text is right."""
    main = _CONDITION.sub("", cleaned)
    parts = [_exact(part) for part in split(_JOINT.sub(", ", main)) if part]
    values = list(map(_without_unit, parts))
    units = {part[len(value) :] for part, value in zip(parts, values, strict=True)} - {""}
    text = ", ".join(values)
    left, _, right = text.rpartition("=")
    value = right if NAME.fullmatch(left.strip()) or left.replace(" ", "").isalpha() else text
    has_words = not text.isascii() or _WORD.search(value) or _ONLY_WORDS.fullmatch(text)
    if has_words or len(units) > 1 or _ONLY_WORDS.fullmatch(main) or not re.search(r"[\w\\]", text):
        return replace(gold, words=_key(cleaned))
    letters = re.findall("[A-Za-z]", re.sub(r"\\[A-Za-z]+|\{pmatrix\}", " ", value))
    is_list = build(value)[0] in ("list", "union", "()", "{}", "[]", "(]", "[)")
    return replace(gold, mathematics=text, variables=frozenset(letters), is_list=is_list)


def _exact(text: str) -> str:
    r"""Return the exact side of ``2\sqrt{3} \approx 3.46``, and an equation of ``x \approx 3``."""
    left, _, right = text.partition(r"\approx")
    if right and "=" not in left and letters_of(left.strip()) != []:
        text = f"{left}={right}"
    near = re.search(r"\s*\\approx(?![a-z])([^=]*)\Z", text)
    return text[: near.start()] if near and not _CHANGES.search(near[1]) else text


def _without_unit(text: str) -> str:
    """Return a number, or an equation of one, without its unit; any other text unchanged."""
    left, equals, right = text.rpartition("=")
    found = _WITH_UNIT.fullmatch(right.strip())
    if found is None or not re.search(r"\d", found[1]) or _CHANGES.search(found[2]):
        return text
    return left + equals + found[1].strip().removesuffix("-")


def read_answer(text: str, gold: Gold, locale: str = "en") -> bool | str:
    """Return a verdict, or the mathematics that :func:`.trees.same` compares with the reference
    answer's. Raise :class:`Refused` if the text is not one answer.
    """
    values = boxes_of(text) or [text.rpartition("####")[2]]
    # The values of a list may stand in one box each. Otherwise each box has to be right.
    cleaned = spelled((", " if gold.is_list else " = ").join(values), locale)
    if not cleaned or "\\boxed" in cleaned:
        raise Refused(Refusal.UNREADABLE)
    if gold.mathematics and read_number(cleaned):
        return cleaned
    if squeezed(cleaned) == gold.plain:
        return True
    if gold.letters:
        chosen, cleaned = choice_of(cleaned)
        if chosen and not (chosen == gold.letters and (gold.mathematics or gold.words) and cleaned):
            return chosen == gold.letters
    if not gold.mathematics:
        return bool(gold.words) and _says(cleaned, gold.words)
    cleaned = _CONDITION.sub("", cleaned)
    if gold.is_list:
        parts = split(_JOINT.sub(", ", _behind_lead(cleaned, gold) or cleaned))
        return ", ".join(_value(part, gold) for part in parts if part)
    return _value(re.sub(r"\s*,?\s+or\s+", " = ", cleaned), gold)  # each value has to be right


def choice_of(text: str) -> tuple[str, str]:
    """Return the letters of the options that a spelled text names (``B``, ``ABD``, ``A, B and D``),
    and the text behind them. Return no letters if the text does not say clearly which.
    """
    letters = re.sub(r"\band\b|[\s,、和()\"'\[\]]", "", text)
    if re.fullmatch("[A-J]+", letters) and list(letters) == sorted(set(letters)):
        return letters, ""
    found = re.match(r"\(?\s*([A-J])\s*(?:\)|[.:、]|(?<=\s)-\s)\s*(.*)", text)
    if found and not _OTHER.search(_BOTH.sub(" ", found[2])):
        return found[1], found[2]
    return "", text


def _key(text: str) -> str:
    """Return what counts of words: letters, digits, signs of mathematics, and the points and commas
    between digits, in lower case.
    """
    return re.sub(r"(?!(?<=\d)[.,]\s*\d)[^\w:/+^<>=|\\*-]", "", text.casefold())


def _says(text: str, gold: str) -> bool:
    """Return whether an answer in words says the reference answer: ``It is Monday``."""
    for agreeing, against in (("yes|true", "no|not|false"), ("no|false", "yes|true")):
        if gold in agreeing.split("|"):
            rest = rf"[.,;:](?!.*\b(?:{against}|or|but|if|maybe)\b).*"
            return bool(re.fullmatch(rf"(?is)(?:{agreeing})(?:{rest})?", text))
    lead = re.match(r"(?is)(.*?)(?:\b(?:is|are|was|on)\s(?:\s*(?:the|an?|on|in)\s)?|[是为])", text)
    is_led = lead and _key(text[lead.end() :]) == gold and not _CHANGES.search(lead[1])
    return bool(is_led) or gold in (_key(text), _key(re.sub(r"(?i)\A(?:the|an?)\s+", "", text)))


def _behind_lead(text: str, gold: Gold) -> str | None:
    """Return the text behind words, ``the solutions are``, ``None`` if words stand elsewhere."""
    words = [run.end() for run in _RUN.finditer(text) if not gold.variables.issuperset(run[0])]
    lead, rest = text[: max(words, default=0)], text[max(words, default=0) :].strip()
    is_linked = not words or _LINK.search(lead) or rest[:1] in (":", "=")
    if not is_linked or _CHANGES.search(lead) or re.search(r"\d", lead):
        return None
    return rest.lstrip(" :=")


def _value(text: str, gold: Gold) -> str:
    """Return one value of an answer without the words beside it."""
    text = _exact(text)
    text = text if gold.variables else _without_unit(text)
    bare = _behind_lead(text, gold)
    if bare == text:
        return text
    known = gold.raw.casefold()
    changes = [word[0] for word in _CHANGES.finditer(text) if word[0].casefold() not in known]
    if changes or (gold.variables and bare is None):
        raise Refused(Refusal.WORDS)
    if bare is None:  # Exactly one piece between the words has to be mathematics.
        pieces = [piece.strip(" .,:;=") for piece in _RUN.split(text)]
        telling = [piece for piece in pieces if re.search(r"\d|\\\w|\\{|[-+*^=<>]\s*[\w(]", piece)]
        if len(telling) != 1:
            raise Refused(Refusal.SEVERAL if telling else Refusal.UNREADABLE)
        bare = telling[0].removesuffix("!") if text.endswith("!") else telling[0].rstrip("/- ")
    return bare if gold.variables else _without_unit(bare)


@functools.lru_cache(4096)
def asks_for_order(question: str) -> bool:
    """Return whether a question asks for a list in an order."""
    return _ORDER.search(question[-MAX_TAIL_CHARS:]) is not None


def is_copied(answer: str | None, reference: str | None, question: str) -> bool:
    """Return whether an answer with an operation, and no result of it, stands in the question."""
    gold = None if (answer or "").isalnum() else read_gold(reference or "")
    text = _bare(answer or "")
    if gold is None or gold.letters or gold.words or len(text) < 3 or not _OPERATION.search(text):
        return False
    number = read_number(text)
    is_result = text == _bare(gold.raw) or str(number and number.value) == text
    return not is_result and text in _bare(question[-MAX_TAIL_CHARS:])


@functools.lru_cache(4096)
def _bare(text: str) -> str:
    """Return a text without white space, styling, brackets of groups, and a name in front."""
    text = clean(re.sub(r"(?s)\\boxed\s*\{(.*)\}", r"\1", text))
    text = re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r"\1/\2", text.replace(r"\times", r"\cdot"))
    return re.sub(r"\A[A-Za-z](?:\([a-z]\))?=", "", re.sub(r"[\s{}]", "", text))
