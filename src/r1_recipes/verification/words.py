"""Separate words and mathematics in a text: which letters are prose and which are algebra, and what
names a number.

Letters of a reference answer are algebra unless they stand apart as words. Letters of an answer are
read by the variables of its reference answer.
"""

import re
from dataclasses import dataclass

from r1_recipes.verification.beside import (
    ACTS,
    BESIDE_ALGEBRA,
    BESIDE_IN_CHINESE,
    BESIDE_VALUES,
    CHINESE,
    DIVIDED,
    SELECTS,
    changes,
)
from r1_recipes.verification.units import UNITS, is_unit

_COMMAND = re.compile(r"(?s)\\(?:(?:begin|end)\s*\{[a-zA-Z]+\}|[A-Za-z]+|.)")
# Letters outside commands. A word may have an exponent (cm^2).
_LETTERS = re.compile(
    r"(?<![^\W\d_])(?<!\\)(?<!\\begin\{)(?<!\\end\{)([^\W\d_]{2,})(?<!\\)(?:(?:\s*\^\{?[23]\}?|"
    r"(?<=[A-Za-z])[23])(?![\d.}]))?"
)
# Two letters, or three letters beside a sign or a digit, are a product of variables unless they are
# one of these words.
_SHORT_WORDS = re.compile(
    f"(?:{UNITS})|(?i:am|pm|usd|is|of|to|at|on|by|an|as|it|or|no|so|we|he|she|the|and|yes|odd|"
    "for|are|was|per|all|out|if|up|us|be|do|go|my|me|its|has|had|her|his)"
)
NAMED_PAIR = re.compile(r"(?s)\(([^()=]*,[^()=]*)\)\s*=\s*\((.*)\)")
# Words of three letters that may stand beside algebra. Other letters are products there.
_THREE_LETTERS = re.compile(
    "(?i)the|and|sum|set|ans|get|got|can|let|our|you|via|one|two|six|ten|not|but|who|how|new|big|"
    "any|all|for|has|are|was|its|use"
)
# Separators of a list besides the comma. The last two separate "x = 1 y = 2", on two lines or on
# one line.
JOINT = re.compile(
    r"\s*(?:[,;]\s*)?(?:\b(?:and|or|und|oder|et)\b|\\lor(?![a-z])|[或和、])\s*|\s*;\s*|"
    r"\s*\n\s*(?=[A-Za-z]\w*\s*=)|(?<=[\d})])\s+(?=[A-Za-z]\s*=)"
)
TELLING = re.compile(r"\d|\\[A-Za-z]")
# A piece between words is mathematical if it has a digit, a command or an operation.
_MATHEMATICAL = re.compile(rf"{TELLING.pattern}|[A-Za-z)}}]\s*[-+*/^=<>|]\s*[A-Za-z(\\]")
_LINK = re.compile(r"(?i)\b(?:and|or|then|also|und|oder|et|versus|vs|plus|but)\b|[,;&/|]")
# A left side of an equation that is a name and not a second value: x, x_1, f(2), (x, y), \angle A,
# total cost.
UNKNOWN = re.compile(
    r"\s*(?!\s*-)(?![^=]*(?:\\(?:ln|log|sqrt|sin|cos|tan|exp|ne|pm|int)(?![a-z])|[|!~/]|"
    r"\\frac(?!\s*\{\s*d)|\be\s*\^|\bd[a-z]\b))(?:[A-Za-z]\w*'?\([^()]*\)|[A-Za-z](?:_(?:\w|"
    r"\{[^{}]*\}))?\^\{-1\}(?:\([^()]*\))?|(?=[^\d]*[A-Za-z])(?:[^\d=]|"
    r"_\{77\w*\})+(?:_\{?[\d,]+\}?)?)\s*"
)
# A name for a reference answer without letters. It may be a sum of unknowns, x_1 + x_2, with digits
# only as indices and exponents.
_NAMED = re.compile(
    r"(?=.*[A-Za-z])(?!\s*[-~])(?:[^\d=<>!~']|(?:(?<=\\sin)|(?<=\\cos)|"
    r"(?<=\\tan))\s*\(?\s*\d(?=\s*\\?[A-Za-z])|[_^]\{?-?\d(?:,\d)*\}?)+(?<![-+/*!~:])"
)


@dataclass(frozen=True)
class Part:
    """One part of a text: its expression, and the word or the unknown that names it."""

    text: str
    label: str = ""


def prose(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{2,}", _COMMAND.sub(" ", text))


_GREEK_TEXT = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi
chi psi omega
"""
GREEK = _GREEK_TEXT.split()
_GREEK = re.compile(rf"(?i)\\(?:var)?({'|'.join(GREEK)})(?![A-Za-z])")


def letters(text: str) -> frozenset[str]:
    r"""Return the letters that are variables, including Greek letters (``\pi`` is a number)."""
    latin = re.findall("[A-Za-z]", _COMMAND.sub(" ", text))
    greek = {rf"\{name}" for name in _GREEK.findall(text)}
    return frozenset(latin).union(greek)


def plain_words(text: str) -> str:
    return " ".join(re.findall(r"\w+|(?<=\d):(?=\d)", text)).casefold()  # keep the colon of "9:30"


def is_expression(text: str) -> bool:
    """Return whether a text has no prose."""
    return len(_pieces(text, None)) == 1


def _pieces(text: str, variables: frozenset[str] | None) -> list[str]:
    """Return the pieces of a text between its prose. Letters in ``variables`` are algebra;
    ``None`` means that the text is itself the reference answer. If ``variables`` is empty, a run of
    letters is a word.
    """

    sentence = any(len(run[0]) > 3 for run in _LETTERS.finditer(text))

    def mark(match: re.Match[str]) -> str:
        if variables is None:
            is_word = _is_word_of_gold(match, sentence)
        else:
            is_word = _is_word(match, variables)
        return "\0" if is_word else match[0]

    marked = re.sub(r"[^\x00-\x7f]+", "\0", _LETTERS.sub(mark, text))
    return [piece.strip() for piece in marked.split("\0")]


def _is_word_of_gold(match: re.Match[str], sentence: bool) -> bool:
    """Return whether letters of a reference answer are a word. In a sentence short words count."""
    run = match[1]
    text = match.string
    before = text[: match.start()]
    after = text[match.end(1) :]
    if len(run) > 3:
        product = re.match(r"[\^_+*]", after) or re.search(r"[\d})+*^_/-]\Z", before)
        algebra = run.islower() or re.match("(?:sin|cos|tan|cot|ln|log)[A-Z]", run)  # abcd, cosA
        return not (product and algebra and len(set(run)) == len(run))
    alone = len(run) == 3 and run == text.strip()
    if not (sentence or alone) or re.search("[A-Z]", run[1:]):
        return False
    has_vowel = re.search("[aeiouAEIOU]", run)
    word = _SHORT_WORDS.fullmatch(run) or (len(run) == 3 and has_vowel)
    joined_before = re.search(r"(?:[^\s,;:(.]|[-+*/^_=<>|{]\s*)\Z", before)
    joined_after = re.match(r"[^\s,;:).]|\s*[-+*/^_<>|}]", after)
    return bool(word and not joined_before and not joined_after)


def _is_word(match: re.Match[str], variables: frozenset[str]) -> bool:
    """Return whether letters of an answer are a word."""
    run = match[1]
    is_behind_number = re.search(r"[\d})]\Z", match.string[: match.start()])
    if variables.issuperset(run):
        return False
    if variables and is_behind_number and (len(run) < 4 or run.isascii()):
        return False
    is_ordinal = not variables and re.fullmatch("st|nd|rd|th", run)
    if len(run) > 3 or is_ordinal or _SHORT_WORDS.fullmatch(run):
        return True
    # xy and mgh are products for every reference answer; "eggs" and "Ann" are words.
    if not re.search("[aeiouAEIOU]", run) or (len(run) == 2 and run.isascii()):
        return False
    if variables:
        return _THREE_LETTERS.fullmatch(run) is not None
    return not is_behind_number


def strange_words(text: str, variables: frozenset[str], label: str = "") -> list[str]:
    """Return the words of an answer that may change the algebra beside them, because no list has
    them.
    """
    runs = [run for run in _LETTERS.finditer(text) if not variables.issuperset(run[1])]
    behind = {run[1] for run in runs if re.search(r"[\d})]\s*\Z", text[: run.start()])}
    units = {word for word in behind if re.fullmatch(UNITS, word)}
    words = [run[1] for run in runs if run[1] not in units]
    known = BESIDE_ALGEBRA.union(label.casefold().split())
    if not variables:
        # AB and PQR are names of points.
        words = [word for word in words if not (is_unit(word) or re.fullmatch("[A-Z]{2,4}", word))]
        known |= BESIDE_VALUES
    strange = [run for run in CHINESE.findall(text) if not BESIDE_IN_CHINESE.fullmatch(run)]
    for word in words:
        is_known = word.isascii() and word.casefold() in known
        if not is_known and not CHINESE.search(word):
            strange.append(word)
    return strange


def gold_part(text: str) -> Part | None:
    """Return a part of a reference answer without the words beside it. Return ``None`` if the words
    are more than a name or a unit, so that only the same text is right.
    """
    pieces = _pieces(text, None)
    if len(pieces) == 1:
        return Part(text.strip())
    telling = [piece for piece in pieces if _MATHEMATICAL.search(piece)]
    if len(telling) != 1:
        return None
    piece = telling[0]
    if any(letters(other) for other in pieces if other != piece):
        return None
    before = text.partition(piece)[0]
    if ACTS.search(before) or SELECTS.search(before):
        return None  # for example multiples of 4
    expression = _stripped(piece)
    # In "any integer greater than e^{200}" the words belong to the answer. "Area = " and "the
    # length is" only name it.
    named = re.match("[=:]", piece) or re.search(r"(?:\b(?:is|are)|[:=])\s*\Z", before)
    unnamed = before.strip() and not named
    if unnamed and (letters(expression) or re.match(r"\+|-\s", piece)):
        return None
    # A sign at the end belongs to text that would be removed.
    if re.search(r"\A[*/^]|[-+*^=<>]\Z", piece) or DIVIDED.search(text):
        return None
    torn_braces = expression.count("{") != expression.count("}")
    torn_brackets = expression.count("(") != expression.count(")")
    if torn_braces or torn_brackets or re.fullmatch(r"\\[A-Za-z]+", expression):
        return None
    return Part(expression, plain_words(_COMMAND.sub(" ", text.replace(piece, " "))))


def answer_part(text: str, variables: frozenset[str]) -> Part | None:
    """Return the only mathematical piece of an answer's part, with ``""`` as its text if there is
    none. Return ``None`` if there are several, or if the words beside it change it.
    """
    pieces = _pieces(text, variables)
    if len(pieces) == 1:
        return Part(text.strip())
    telling = _telling_pieces(text, pieces, variables)
    if telling is None or len(telling) > 1:
        return None
    if not telling:
        return Part("")
    piece = telling[0]
    if changes(text, pieces, piece, variables):
        return None
    words = plain_words(_COMMAND.sub(" ", text.replace(piece, " ")))
    if pieces[:2] == ["-", piece]:
        piece = "-" + piece  # "-USD 72"
    if piece.count("{") != piece.count("}"):
        return Part("")
    # "The answer is 72!" has no factorial, but "n!" has, and so has "72!" before other words.
    if not variables and text.rstrip().endswith("!"):
        piece = piece.removesuffix("!").rstrip()
    return Part(_stripped(piece), words)


def _telling_pieces(text: str, pieces: list[str], variables: frozenset[str]) -> list[str] | None:
    """Return the mathematical pieces, or ``None`` if a letter beside them is mathematical, too.

    A single letter counts as mathematical: "x and y", "a then x". An article before its word does
    not.
    """
    if not variables:
        return [piece for piece in pieces if TELLING.search(piece)]
    telling = [piece for piece in pieces if _MATHEMATICAL.search(piece)]
    alone = [piece for piece in _LINK.split(text) if re.fullmatch(r"[\s(]*[A-Za-z][\s).]*", piece)]
    others = [piece for piece in pieces if re.fullmatch(r"\W*(?![aAI])[A-Za-z]\W*", piece)]
    if len(alone) + len(telling) > 1 or (telling and others):
        return None
    if telling:
        return telling
    named = [piece for piece in pieces if variables.intersection(re.findall("[A-Za-z]", piece))]
    return named + [piece for piece in others if piece not in named]


def _stripped(piece: str) -> str:
    """Return a piece without signs that belong to the words: the slash of km/h, the hyphen of
    10-year, an article, a comma, the equals sign of "Total = 72".
    """
    piece = re.sub(r"\A[aA]\s+(?=[-\d$\\])", "", piece)
    piece = piece.lstrip("= \t\r\n").strip(" \t\r\n,:;")
    return piece.removesuffix("/").removesuffix("-").strip()


def named_part(text: str, strict: bool = True) -> Part:
    """Return ``x = 5`` as 5 with the name ``x``. With ``strict``, the name must be one unknown."""
    left, _, right = text.partition("=")
    name = UNKNOWN if strict else _NAMED
    if "=" in right or not right.strip() or left.endswith(("<", ">", "!")):
        return Part(text)
    if not name.fullmatch(left):
        return Part(text)
    return Part(right.strip(), re.sub(r"[\s{}\\]", "", left))
