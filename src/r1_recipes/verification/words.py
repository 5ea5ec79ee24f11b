r"""Words and mathematics in one text: which letters are prose, which are algebra, what a number is called, and under which condition it holds.

A gold's letters are algebra unless they stand apart as words; an answer's are read by the letters that its gold has.
"""

import itertools
import re
from dataclasses import dataclass

from r1_recipes.verification.spelling import BIG_UNITS, UNIT, UNITS

_COMMAND = re.compile(r"\\(?:(?:begin|end)\s*\{[a-zA-Z]+\}|[A-Za-z]+|.)", re.DOTALL)
# Letters that no command owns. As a word they may carry an exponent (cm^2).
_LETTERS = re.compile(
    r"(?<![^\W\d_])(?<!\\)(?<!\\begin\{)(?<!\\end\{)([^\W\d_]{2,})(?<!\\)(?:(?:\s*\^\{?[23]\}?|(?<=[A-Za-z])[23])(?![\d.}]))?"
)
# Two letters, or three beside a sign or a digit, are a product of variables unless they are one of these.
_SHORT_WORDS = re.compile(
    f"(?:{UNITS})|(?i:am|pm|usd|is|of|to|at|on|by|an|as|it|or|no|so|we|he|she|the|and|yes|odd|"
    "for|are|was|per|all|out|if|up|us|be|do|go|my|me|its|has|had|her|his)"
)
JOINT = re.compile(r"\s*(?:[,;]\s*)?(?:\b(?:and|or|und|oder|et)\b|\\lor(?![a-z])|[或和、])\s*|\s*;\s*|\s*\n\s*(?=[A-Za-z]\w*\s*=)|(?<=[\d})])\s+(?=[A-Za-z]\s*=)")
TELLING = re.compile(r"\d|\\[A-Za-z]")
_OPERATION = re.compile(r"[A-Za-z)}]\s*[-+*/^=<>|]\s*[A-Za-z(\\]")
_LINK = re.compile(r"\b(?:and|or|then|also|und|oder|et|versus|vs|plus|but)\b|[,;&/|]", re.IGNORECASE)
_UNIT_AT_END = re.compile(rf"(?:(?<=[\d}}%)])\s+{UNIT}|(?<=\d)(?:{BIG_UNITS})(?:\s*/\s*{UNIT})?)\.?\Z")
_UNIT_AFTER = re.compile(rf"(?<=[\d}}])(?:\s+{UNIT}|(?:m|s)(?=\^|[23])|\s*(?:{BIG_UNITS}))(?:(?:\s*\^\s*\{{?-?[123]\}}?|[23](?!\d))?(?:\s*/\s*{UNIT})?)(?![\w^(\\{{])\.?")
# What may stand left of an equals sign without being a second value: x, x_1, f(2), (x, y), \angle A, total cost.
UNKNOWN = re.compile(
    r"\s*(?:[A-Za-z]\w*'?\([^()]*\)|[A-Za-z](?:_(?:\w|\{[^{}]*\}))?\^\{-1\}(?:\([^()]*\))?|(?=[^\d]*[A-Za-z])[^\d=]+(?:_\{?[\d,]+\}?)?)\s*"
)
# For a gold without letters: also sums of unknowns, x_1 + x_2, with digits as indices and exponents alone.
_NAMED = re.compile(r"(?=.*[A-Za-z])(?:[^\d=<>]|[_^]\{?-?\d(?:,\d)*\}?)+")
_SET = r"(?:\\math(?:bb|bf|rm)\s*\{?\s*)?[NZRQ]\s*\}?\s*(?:[_^]\s*\{?\s*[*+]\s*\}?|\+)?"
_KIND = r"(?:(?P<positive>positive|natural)\s+)?(?:(?P<kind>integer|real|number)s?(?:\s+numbers?)?)"
_CONDITION = re.compile(
    rf"(?P<before>(?:\s*[,;]\s*|\s*\(\s*|\s+)(?:(?:for|where|with|when|if)\b\s*|\\forall\s*|(?:all|any|every|some)\s+(?=[^\\]*\\in))*)"
    rf"(?:(?:{_KIND}\s+)?(?P<letter>[A-Za-z])\s*\\in\s*(?P<set>{_SET})|(?P<named>[A-Za-z])\s+(?:is|are)\s+(?:an?\s+|any\s+)*{_KIND.replace('?P<positive>','').replace('?P<kind>','')}"
    rf"|(?P<all>all|any|every)\s+(?:(?:(?:positive|natural|real|non-?negative)\s+)?(?:integers?|numbers?|reals?)?\s*)?(?P<free>[A-Za-z])"
    r"|(?P<bound>[k-n])\s*(?:\\ge|>)\s*[01]|(?P<hole>[A-Za-z])\s*\\ne\s*-?\d+)\s*\)?\s*\Z"
)


@dataclass(frozen=True)
class Part:
    """One part of a text: its expression, and the word or the unknown that names it."""

    text: str
    label: str = ""


def prose(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{2,}", _COMMAND.sub(" ", text))


def letters(text: str) -> frozenset[str]:
    return frozenset(re.findall("[A-Za-z]", _COMMAND.sub(" ", text)))


def plain_words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text)).casefold()


def is_expression(text: str) -> bool:
    """Whether a text has no prose."""
    return "\0" not in _marked(text, None)


def _marked(text: str, variables: frozenset[str] | None) -> str:
    r"""``text`` with ``\0`` for its prose, by the letters that the gold has (``None``: this is the gold; without any, a run is a word)."""

    def mark(match: re.Match[str]) -> str:
        run, before, after = match[1], text[: match.start()], text[match.end(1) :]
        if variables is not None:
            if not variables or len(run) > 3:
                return "\0"
            if variables.issuperset(run):
                return match[0]
            apart = before[-1:] in ("", " ") and after[:1] in ("", " ", ",", ";", ":")
            return "\0" if _SHORT_WORDS.fullmatch(run) or (len(run) == 3 and apart) else match[0]
        if len(run) > 3:
            product = re.match(r"[\^_+*]", after) or re.search(r"[\d})+*^_/-]\Z", before)
            return match[0] if product and len(set(run)) == len(run) and run.islower() else "\0"
        apart = not re.search(r"[^\s,;:(.]\Z", before) and not re.match(r"[^\s,;:).]", after)
        beside = re.search(r"[-+*/^_=<>|{]\s*\Z", before) or re.match(r"\s*[-+*/^_<>|}]", after)
        word = _SHORT_WORDS.fullmatch(run) or (len(run) == 3 and re.search("[aeiouyAEIOUY]", run))
        return "\0" if apart and not beside and word else match[0]

    return re.sub(r"[^\x00-\x7f]+", "\0", _LETTERS.sub(mark, text))


def _telling(piece: str, variables: frozenset[str] | None) -> bool:
    """Whether a piece between words says something mathematical: a digit, a command, an operation."""
    return bool(TELLING.search(piece) or (variables != frozenset() and _OPERATION.search(piece)))


def gold_part(text: str) -> Part | None:
    """A gold's part without the words beside it; ``None``: its words mean more than a name or a unit, so that it is only its own text."""
    marked = _marked(text, None)
    pieces = [piece.strip() for piece in marked.split("\0")]
    if len(pieces) == 1:
        return Part(text.strip())
    telling = [index for index, piece in enumerate(pieces) if _telling(piece, None)]
    if len(telling) != 1 or any(re.search("[A-Za-z]", piece) for index, piece in enumerate(pieces) if index != telling[0]):
        return None
    piece = pieces[telling[0]]
    named = telling[0] > 0 and re.match(r"[=:]", piece) or re.search(r"\b(?:is|are|:)\s*\Z", text[: text.find(piece)] if piece in text else "")
    expression = _stripped(piece)
    if letters(expression) and not named and telling[0] > 0:
        return None  # "any integer greater than e^{200}"
    if expression.count("{") != expression.count("}") or expression.count("(") != expression.count(")"):
        return None
    return Part(expression, plain_words(_COMMAND.sub(" ", text.replace(piece, " "))))


def answer_part(text: str, variables: frozenset[str]) -> Part | None:
    """The one piece of an answer's part that says something mathematical; its text is ``""``: there is none; ``None``: there are several."""
    pieces = [piece.strip() for piece in _marked(text, variables).split("\0")]
    if len(pieces) == 1:
        return Part(text.strip())
    telling = [piece for piece in pieces if _telling(piece, variables)]
    if variables:
        # A letter alone says something, too: "x and y", "a then x"; an article before its word does not.
        alone = [piece for piece in _LINK.split(text) if re.fullmatch(r"[\s(]*[A-Za-z][\s).]*", piece)]
        others = [piece for piece in pieces if re.fullmatch(r"\W*[A-Za-z]\W*", piece) and not re.fullmatch(r"\W*[aAI]\W*", piece)]
        if len(alone) + len(telling) > 1 or (telling and others):
            return None
        if not telling:
            telling = [piece for piece in pieces if set(re.findall("[A-Za-z]", piece)) & variables]
            telling += [piece for piece in others if piece not in telling]
    if len(telling) != 1:
        return None if telling else Part("")
    piece = ("-" if pieces[:2] == ["-", telling[0]] else "") + telling[0]  # "-USD 72"
    if piece.count("{") != piece.count("}"):
        return Part("")
    # The answer is 72!
    return Part(_stripped(piece.removesuffix("!").rstrip()), plain_words(_COMMAND.sub(" ", text.replace(telling[0], " "))))


def _stripped(piece: str) -> str:
    """Without the slash of km/h, the hyphen of 10-year, the article of "a 20% rise", the comma and colon of a sentence and the sign of "Total = 72"."""
    piece = re.sub(r"\A[aA]\s+(?=[-\d$\\])", "", piece)
    return piece.lstrip("= \t\r\n").strip(" \t\r\n,:;").removesuffix("/").removesuffix("-").strip()


def without_unit(text: str, every: bool = False) -> str:
    """A text without the unit of its number: at the end alone, where nothing but the unit has letters; ``every``: wherever one follows."""
    if every:
        return _UNIT_AFTER.sub(" ", text)
    bare = _UNIT_AT_END.sub("", text)
    return text if bare == text or letters(bare) else bare.strip()


_ALIASES = {"sec": "s", "secs": "s", "mins": "min", "hr": "h", "hrs": "h", "lbs": "lb", "mph": "mi/h", "kph": "km/h", "kmh": "km/h"}


def unit_of(text: str) -> str | None:
    """The symbol of the unit that a number ends with, in one spelling; words (apples, hours) are none."""
    text = re.sub(r"\\(?:text|mathrm|mbox|textrm|rm)\s*\{([^{}]*)\}", r" \1", text.strip(" $.")).replace("~", " ")
    found = _UNIT_AT_END.search(re.sub(r"\\[,;: ]|\s+", " ", text).strip(" $."))
    unit = re.sub(r"[\s{}()^]|\\cdot", "", found[0]) if found else None
    return _ALIASES.get(unit, unit) if unit else None


def named_part(text: str, strict: bool = True) -> Part:
    """``x = 5`` as 5 with the name ``x``; with ``strict``, a name is one unknown."""
    left, sign, right = text.partition("=")
    known = (UNKNOWN if strict else _NAMED).fullmatch(left) if sign and "=" not in right and left[-1:] not in "<>!" else None
    return Part(right.strip(), re.sub(r"[\s{}\\]", "", left)) if known and right.strip() else Part(text)


@dataclass(frozen=True)
class Condition:
    """What a letter ranges over: ``k \\in \\mathbb{Z}``."""

    letter: str
    range: str


def split_condition(text: str) -> tuple[str, Condition | None]:
    """A text, and the condition on one of its letters that it ends with."""
    found = _CONDITION.search(text)
    if found is None or not (main := text[: found.start()].strip(" ,;")):
        return text, None
    letter = found["letter"] or found["named"] or found["free"] or found["bound"] or found["hole"]
    if letter not in letters(main) or ((found["bound"] or found["hole"]) and re.search(r"[<>]|\\[lg]e(?![a-z])", main)):
        return text, None
    if (found["bound"] or found["hole"]) and not found["before"].strip():
        return text, None
    if found["letter"] or found["named"]:
        name = re.sub(r"\\math(?:bb|bf|rm)|[\s{}_^\\]", "", found["set"] or "") or found[0]
        kind = "R" if "real" in name else "N+" if re.search("positive|natural", name) else "Z" if "integer" in name else name.replace("*", "+")
        return main, Condition(letter, kind)
    return main, Condition(letter, "")


def depths(text: str) -> list[int]:
    """Bracket depth before each character, and at the end."""
    return list(itertools.accumulate(((char in "([{") - (char in ")]}") for char in text), initial=0))


def split(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    commas = [index for index, (char, depth) in enumerate(zip(text, depths(text), strict=False)) if char == "," and depth == 0]
    return [text[start + 1 : end] for start, end in itertools.pairwise([-1, *commas, len(text)])]
