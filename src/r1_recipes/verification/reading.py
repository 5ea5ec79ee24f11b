r"""What a text says: a gold, and an answer as the expressions that all have to equal it.

An answer is refused for a named reason alone (:class:`~r1_recipes.verification.lexicon.Refusal`); everything else goes to math-verify, as
it stands and as it is read here. Everything here is linear in the length of the text, or reads no more than ``MAX_ANSWER_CHARS`` of it.
"""

import dataclasses
import functools
import itertools
import re
import unicodedata
from dataclasses import dataclass

from r1_recipes.prompts.formats import boxed_spans, one_spelling_of_boxes
from r1_recipes.verification.lexicon import Refusal, chosen, is_date, refusals
from r1_recipes.verification.numbers import NUMBER, PRECISION, Value, read_value
from r1_recipes.verification.spelling import UNIT_LETTERS, UNITS, clean, typed

# A longer answer is wrong unread: golds of MATH, GSM8K and OpenR1-Math are far shorter, and the parsers' time grows faster than the length.
MAX_ANSWER_CHARS = 1000
# A gold of more words without a box or #### is a solution or a proof, of which no part is known to be the gold.
MAX_GOLD_WORDS = 12

ANCHOR = re.compile(r"####|\banswer[\s*_]*(?:is\b|:|：)|答案(?:是|为|:|：)", re.IGNORECASE)
# A sentence after the answer's own: "I hope it is correct." One with a number may take the answer back, and stays.
_AFTERTHOUGHT = re.compile(r"(?<=\S)[.。]\s+[^\d\W][^\d]*\Z")
_CLOSING_LINES = re.compile(r"(?:\s*(?:\$\$|\\\]|\\\)))+\s*\Z")
_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?![\d,])")
_COMMAND = re.compile(r"\\(?:(?:begin|end)\s*\{[a-zA-Z]+\}|[A-Za-z]+|.)", re.DOTALL)
# Letters that no command owns. As a word they may carry an exponent (cm^2).
_LETTERS = re.compile(
    r"(?<![^\W\d_])(?<!\\)(?<!\\begin\{)(?<!\\end\{)([^\W\d_]{2,})(?<!\\)(?:(?:\s*\^\{?[23]\}?|(?<=[A-Za-z])[23])(?![\d.}]))?"
)
# Two letters, or three beside a sign or a digit, are a product of variables unless they are one of these.
_SHORT_WORDS = re.compile(
    f"{UNITS}|am|pm|usd|is|of|to|at|on|by|an|as|it|or|no|so|we|he|she|the|and|yes|odd|"
    "for|are|was|per|all|out|if|up|us|be|do|go|my|me|its|has|had|her|his",
    re.IGNORECASE,
)
_UNIT_POWER = r"(?:\s*\^\s*\{?-?[123]\}?|(?<=[A-Za-z])[23](?!\d))?"
_UNIT_AFTER = r"(?<=[\d}}])\s*(?:{unit}){power}(?:\s*/\s*(?:{every}){power})*(?![\w^(\\{{])\.?"
_PLAIN_UNIT = re.compile(_UNIT_AFTER.format(unit=UNITS, every=f"{UNITS}|{UNIT_LETTERS}", power=_UNIT_POWER))
_QUANTITY = re.compile(rf"([-+]?[\d.,]+)\s+{UNIT_LETTERS}{_UNIT_POWER}")  # "1250 g"
_ANY_UNIT = re.compile(_UNIT_AFTER.format(unit=f"{UNITS}|{UNIT_LETTERS}", every=f"{UNITS}|{UNIT_LETTERS}", power=_UNIT_POWER))
_SEVERAL = re.compile(r"[,;]|\\(?:pm|mp|cup|cap|in|\{)(?![A-Za-z])|\b(?:or|and)\b")
_JOINT = re.compile(r"\s*(?:[,;]\s*)?(?:\b(?:and|or|und|oder|et)\b|\\lor(?![a-z])|[或和、])\s*|\s*;\s*")
_OR = frozenset(("or", "oder", "或"))
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in|to|sim)(?![A-Za-z])|\\(?:right|left)arrow")
_EQUALS = re.compile(r"(?<![<>!])=|\\equiv(?![A-Za-z])")
_APPROX = re.compile(r"\\approx(?![A-Za-z])")
# What may stand left of an equals sign without being a second value: x, x_1, f(2), (x, y), \angle A, total cost.
_UNKNOWN = re.compile(r"\s*(?:[A-Za-z]\w*'?\([^()]*\)|(?=[^\d]*[A-Za-z])[^\d=]+(?:_\{?\d+\}?)?)\s*")
_MEMBER = re.compile(r"\A\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")
# Towers of powers and factorials: each would cost a worker its whole time limit, and no plain gold is answered with one.
_TOWER = re.compile(r"\^[\s{(]*\d+[\s})]*\^|\^\{?-?\d{5,}|\d{5,}\s*!|![\s)}]*!")
# Two numbers with nothing, or nothing known, between them: math-verify adds or joins them, or drops what it cannot read.
_UNSEPARATED = re.compile(r"(?:[\d.]|(?<!matrix)\})\s+[\d.]|\.\.|%\s*[^\s)}]|---|\d['\"]+\d")
_BASE = re.compile(r"\d\s*_\s*\{?\s*(\w+)")
_TELLING = re.compile(r"\d|\\[A-Za-z]")
_OPERATION = re.compile(r"[A-Za-z)}]\s*[-+*/^=<>|]\s*[A-Za-z(\\]")
_RATIO = re.compile(r"\d\s*:\s*\d")
_MODULO = re.compile(r"\\[bp]?mod(?![A-Za-z])|\.\.\.|…|\\[lc]?dots(?![A-Za-z])")  # math-verify drops both
# A time, a date, a telephone number: no arithmetic.
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?:\s*[ap]\.?\s?m\.?)?|\d+(?:-\d+){2,}", re.IGNORECASE)
_OPENING = re.compile(r"(?i)\A(?:(?:so|thus|hence|therefore),?\s+)?(?:the|my|our)?\s*(?:final|correct)?\s*answer\s*(?:is\b:?|:)\s*")
# Beside a box, and part of what is said: "71 or", "-", "\\frac{1}{"; "or 71", "?", "^2".
_LEADS = re.compile(r"(?:[-+/^<>{\d]|(?<!\*)\*|\b(?:or|not|than|minus|negative|guess|half|double|twice)\b:?)\s*\$?\s*\Z", re.IGNORECASE)
_TRAILS = re.compile(r"\A\s*\$?\s*(?:,?\s*\d|[-+/^?}]|\*\s*\d|,?\s*(?:or|million|squared)\b|is (?:wrong|not|incorrect)\b)", re.IGNORECASE)
# Digits of other scripts, signs that are no keyboard's (they would count as prose), control characters and lone surrogates.
_STRANGE = frozenset(("Nd", "No", "Nl", "Cs", "Cc", "Sm", "Pd", "Sk"))


@dataclass(frozen=True)
class Gold:
    raw: str  # as it stands
    text: str | None = None  # its expression; None: it was not understood here, math-verify may read ``raw``
    plain: str = ""  # cleaned, without white space: an answer that says the same is right
    several: bool = False
    relations: int = 0
    variables: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()  # words that would refuse an answer, and are the gold's own
    words: str | None = None  # "No solution": a gold that is compared as words
    letter: str | None = None  # "(B)": a gold that is compared as a choice
    value: Value | None = None  # of a number that can be compared without a parser


@dataclass(frozen=True)
class Answer:
    """An answer: what has to equal the gold, or why there is nothing."""

    sides: tuple[str, ...] = ()  # each as math-verify shall read it
    rounded: tuple[str, ...] = ()  # decimals behind a sign of approximation
    raw: str | None = None  # the answer as it stands, if that may decide as well
    verdict: bool | None = None  # if it needs no comparison
    refusal: Refusal | None = None


def final_answer(text: str) -> str | None:
    r"""Return the final answer of a whole completion, or ``None`` if it commits to none.

    The boxes, if there are any (:func:`read_answer` compares them with each other); without a box what follows the last "answer is",
    "answer:" or ``####``; else the last line if it is nothing but one expression. Linear in the length.
    """
    text = one_spelling_of_boxes(text)
    if "\\boxed" in text:
        boxes = boxes_of(text)
        return boxes[0] if len(boxes) == 1 and "\\boxed" not in boxes[0] else ", ".join(rf"\boxed{{{box}}}" for box in boxes) or None
    *_, anchor = [None, *ANCHOR.finditer(text)]
    if anchor is not None:
        line = next((line for line in text[anchor.end() :].splitlines() if line.strip(" \t*_:：$\\[]()")), "")
        return _AFTERTHOUGHT.sub("", line[:MAX_ANSWER_CHARS]).strip(" \t*_:：") or None
    line = _CLOSING_LINES.sub("", text[-MAX_ANSWER_CHARS:]).rstrip().rpartition("\n")[2]
    cleaned = clean(line)
    return line if cleaned and "\0" not in _marked(cleaned) else None


def boxes_of(text: str) -> list[str]:
    """Return the different contents of a text's boxes, in order; an empty box is none."""
    contents = (text[start:end].strip() for start, end in boxed_spans(text))
    return [box for box in dict.fromkeys(contents) if clean(box[:MAX_ANSWER_CHARS])]


@functools.lru_cache(16_384)  # Most runs have fewer golds, so that each is read once.
def read_gold(text: str, locale: str = "en") -> Gold | None:
    """Return the gold that ``text`` states, or ``None`` if it is empty, too long, prose or a question."""
    text = one_spelling_of_boxes(text)
    if boxes := boxes_of(text):
        text = ", ".join(boxes)
    elif "####" in text:
        text = text.rpartition("####")[2]
    raw, cleaned = text.strip(), clean(text[: MAX_ANSWER_CHARS + 1], locale)
    if not cleaned or len(text) > MAX_ANSWER_CHARS or len(_prose(cleaned)) > MAX_GOLD_WORDS or text.rstrip().endswith(("?", "？")):
        return None
    gold = functools.partial(Gold, raw=raw, plain=_squeezed(cleaned), excused=frozenset(refusals(cleaned)))
    if choice := re.fullmatch(r"\(?\s*([A-J])\s*\)?", cleaned):
        return gold(letter=choice[1], words=choice[1].casefold())
    option = re.fullmatch(r"\(([A-J])\)\s*(\S.*)", cleaned)  # AMC's "(C) 17": the letter or the value
    if option and (value := read_gold(option[2], locale)) and value.letter is None:
        return dataclasses.replace(value, letter=option[1])
    if _is_wordy(text, cleaned):
        return gold(words=_words(cleaned))
    cleaned = _QUANTITY.sub(r"\1", cleaned) if _QUANTITY.fullmatch(cleaned) else _PLAIN_UNIT.sub(" ", cleaned)
    several = bool(_SEVERAL.search(_THOUSANDS.sub(r"\1", cleaned)))
    expression = _joined(cleaned, None) if several else _without_words(cleaned)
    if not expression:
        return gold(several=several, relations=len(_EQUALS.findall(cleaned)), variables=_letters(cleaned))
    return gold(
        text=_APPROX.split(expression)[0].strip() or expression,
        several=several,
        relations=len(_EQUALS.findall(expression)),
        variables=_letters(expression),
        value=read_value(expression),
    )


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
        if len(boxes) == 1 and (_LEADS.search(text[: text.index("\\boxed")]) or _TRAILS.search(text[text.rindex("}") + 1 :])):
            return Answer(refusal=Refusal.SEVERAL)
        if _TELLING.search(beside) if gold.words is None else len(_prose(beside)) in (1, 2):
            boxes += [] if "\\boxed" in beside else [beside]  # "\\boxed{72}. The answer is 71."
        if len(boxes) != 1:
            return _read_boxes(boxes, gold, locale)
        # What stands beside a box inside a box is a second answer.
        text = boxes[0]
        if "\\boxed" in text and not re.fullmatch(r"[\s$]*\\boxed\{.*\}[\s$.]*", text, re.DOTALL):
            return Answer(refusal=Refusal.SEVERAL)
    if "\\boxed" in text:
        return Answer(refusal=Refusal.HOSTILE)
    text = text.rpartition("####")[2]
    unusual = (char for char in typed(text) if unicodedata.category(char) in _STRANGE and not (" " <= char <= "~" or char.isspace()))
    if any(char not in gold.raw for char in unusual):
        return Answer(refusal=Refusal.STRANGE)
    cleaned = clean(text, locale)
    if opening := _OPENING.match(cleaned):
        cleaned = clean(cleaned[opening.end() :].removesuffix("!"))
    if not cleaned:
        return Answer(refusal=Refusal.UNREADABLE)
    found = chosen(cleaned) if gold.letter is not None else None
    if gold.letter is not None and (found or gold.words is not None):
        return Answer(verdict=found is not None and found[0] == gold.letter)
    if _squeezed(cleaned) == gold.plain:
        return Answer(verdict=True)
    subject, _, said = cleaned.rpartition(" is ") if " is " in cleaned else cleaned.rpartition(" are ")
    # Of "the number of roots is 72" the subject changes nothing.
    for word, refusal in refusals(cleaned if not _TELLING.search(said) or re.search(r"\d|\b(?:not|n't|no)\b", subject) else said).items():
        if word not in gold.excused and not (gold.several and word in _OR):
            return Answer(refusal=refusal)
    if gold.words is not None:
        return Answer(verdict=_words(cleaned) == gold.words)
    if _CLOCK.fullmatch(cleaned) and ":" not in gold.raw:
        return Answer(refusal=Refusal.DIFFERENT)
    return _read_expression(text, cleaned, gold)


def _read_boxes(boxes: list[str], gold: Gold, locale: str) -> Answer:
    """Read several boxes: a list, if the gold is one; else each has to equal the gold."""
    if gold.several:
        listed = ", ".join(boxes)
        return read_answer(listed, gold, locale) if "\\boxed" not in listed else Answer(refusal=Refusal.SEVERAL)
    answers = [read_answer(box, gold, locale) for box in boxes[:4]]
    if not boxes or len(boxes) > 4 or any(answer.refusal or answer.verdict is False for answer in answers):
        return Answer(refusal=Refusal.SEVERAL if boxes else Refusal.NO_ANSWER)
    if all(answer.verdict for answer in answers):
        return Answer(verdict=True)
    sides = tuple(side for answer in answers for side in answer.sides)
    return Answer(sides, tuple(side for answer in answers for side in answer.rounded))


def _read_expression(text: str, cleaned: str, gold: Gold) -> Answer:
    if _TOWER.search(cleaned) and not _TOWER.search(gold.raw):
        return Answer(refusal=Refusal.HOSTILE)
    # Honest answers are about as long and as deep as their gold; the parsers take seconds for the rest.
    if len(cleaned) > max(300, 4 * len(gold.raw)) or max(_depths(cleaned)) > max(10, 2 * max(_depths(gold.raw))):
        return Answer(refusal=Refusal.HOSTILE)
    bare = (_PLAIN_UNIT if gold.variables else _ANY_UNIT).sub(" ", cleaned)
    expression = _joined(bare, gold.variables) if gold.several else _without_words(bare, gold.variables)
    if expression is None:
        return Answer(refusal=Refusal.SEVERAL)
    expression = _MEMBER.sub("", expression) if not _MEMBER.match(gold.text or "") else expression
    if not expression:
        return Answer(refusal=Refusal.UNREADABLE)
    unseparated = _THOUSANDS.sub(r"\1", expression)
    if _UNSEPARATED.search(unseparated) and not _UNSEPARATED.search(gold.raw):
        return Answer(refusal=Refusal.SEVERAL)
    if (not gold.several and len(_split(unseparated)) > 1) or expression.count("|") % 2:
        return Answer(refusal=Refusal.SEVERAL)
    target = _MEMBER.sub("", gold.text or gold.raw)
    kinds = {_kind(expression), "(" if _RELATION.search(target) else _kind(target)} - {""}
    if (
        len(kinds) > 1
        or (_MODULO.search(text) and not _MODULO.search(gold.raw))
        or (gold.value and _RELATION.search(expression))
        or _BASE.findall(expression) != _BASE.findall(gold.text or gold.raw)
    ):
        return Answer(refusal=Refusal.DIFFERENT)
    # As it stands, 1:2:3 is a sixth.
    raw = text if gold.value is None and not _APPROX.search(cleaned) and not _RATIO.search(text + " " + gold.raw) else None
    if gold.relations:
        chain = len(_EQUALS.findall(expression)) > gold.relations
        return Answer(refusal=Refusal.CHAIN) if chain else Answer((expression,), raw=raw)
    sides: list[str] = []
    rounded: list[str] = []
    for part in _split(expression) if gold.several else [expression]:
        exact, *near = [side.strip() for side in _APPROX.split(part)]
        if near and _UNKNOWN.fullmatch(exact):
            exact, *near = near  # "x \\approx 3.46"
        equal = [side.strip() for side in _EQUALS.split(exact)]
        if len(equal) > 1 and _UNKNOWN.fullmatch(equal[0]):
            del equal[0]  # "x = 72"
        # "36 + 36 = 72" says 72 twice; "71 = 72" says two things.
        if not all(equal) or len(equal) > (1 if gold.several else 4) or (gold.several and near):
            return Answer(refusal=Refusal.CHAIN)
        sides += equal
        rounded += near
    return Answer((", ".join(sides),) if gold.several else tuple(sides), tuple(rounded), raw if len(sides) == 1 else None)


def settle(gold: Gold, answer: Answer, precision: int = PRECISION) -> bool | None:
    """Return the verdict if it needs no parser; ``None``: ask a worker."""
    if answer.refusal is not None:
        return False
    if answer.verdict is not None or gold.value is None or answer.rounded:
        return answer.verdict
    equal = [None if (value := read_value(side)) is None else gold.value.equals(value, precision) for side in answer.sides]
    return False if False in equal else None if None in equal else True


def _is_wordy(text: str, cleaned: str) -> bool:
    """Whether a gold is words, a date or the time of a clock, and no mathematics."""
    if _CLOCK.fullmatch(cleaned) or is_date(cleaned) or is_date(text):
        return True
    if re.search(r"\d|\\|[-+*/^=<>|]\s|\$[^$]*[=<>]", cleaned):
        return False
    styled = bool(re.search(r"\\(?:text|mathrm|mbox)", text)) and re.fullmatch(r"[A-Za-z][A-Za-z\s'-]+", cleaned)
    return bool(styled) or "\0" in _marked(cleaned)


def _prose(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{2,}", _COMMAND.sub(" ", text))


def _squeezed(text: str) -> str:
    """Without white space, but between two letters or digits: 7 2 is not 72."""
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", re.sub(r"(?<!\w) | (?!\w)", "", " ".join(text.split())))


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+|(?<=\d):(?=\d)", text)).casefold()  # 9:30 is not 9/30


def _letters(text: str) -> frozenset[str]:
    return frozenset(re.findall("[A-Za-z]", _COMMAND.sub(" ", text)))


def _marked(text: str, variables: frozenset[str] | None = None) -> str:
    r"""``text`` with ``\0`` for its prose, by the letters that the gold has (``None``: this is the gold; without any, a run is a word)."""

    def mark(match: re.Match[str]) -> str:
        run = match[1]
        if variables is not None and (not variables or len(run) > 3):
            return "\0"
        if variables and variables.issuperset(run):
            return match[0]
        if len(run) > 3 or _SHORT_WORDS.fullmatch(run):
            return "\0"
        before, after = text[max(0, match.start() - 1) : match.start()], text[match.end(1) : match.end(1) + 1]
        return "\0" if len(run) == 3 and before in ("", " ") and after in ("", " ", ",", ";", ":") else match[0]

    return re.sub(r"[^\x00-\x7f]+", "\0", _LETTERS.sub(mark, text))


def _without_words(text: str, variables: frozenset[str] | None = None) -> str | None:
    """The one piece of ``text`` that says something mathematical; ``""``: there is none; ``None``: there are several."""
    pieces = [piece.strip() for piece in _marked(text, variables).split("\0")]
    if len(pieces) == 1:
        return text.strip()
    telling = [piece for piece in pieces if _TELLING.search(piece) or (variables != frozenset() and _OPERATION.search(piece))]
    if not telling and variables:  # "so the answer is x"
        telling = [piece for piece in pieces if set(re.findall("[A-Za-z]", piece)) & variables]
    if len(telling) != 1:
        return None if telling else ""
    piece = ("-" if pieces[:2] == ["-", telling[0]] else "") + telling[0]  # "-USD 72"
    if piece.count("{") != piece.count("}"):
        return ""
    if variables is not None:
        piece = piece.removesuffix("!").rstrip()  # "The answer is 72!"
    # The slash of km/h, the hyphen of 10-year, the comma and colon of a sentence and the sign of "Total = 72" belong to the word.
    return piece.lstrip("= \t\r\n").strip(" \t\r\n,:;").removesuffix("/").removesuffix("-").strip()


def _joined(text: str, variables: frozenset[str] | None) -> str | None:
    """The parts of a list, each without its words, behind commas; ``None``: one of them says several things, ``""``: or nothing."""
    parts = [_without_words(part, variables) for part in _split(_JOINT.sub(", ", text)) if part.strip()]
    if None in parts:
        return None
    kept = [part for part in parts if part]
    return ", ".join(kept) if len(kept) == len(parts) else ""


def _kind(text: str) -> str:
    r"""``{`` of a whole set, ``(`` of a whole tuple or interval, else ``""``: math-verify compares ``\{1,2\}`` with ``(1,2)``."""
    found = re.fullmatch(r"\s*(\\\{|[(\[]).*,.*(\\\}|[)\]])\s*", text, re.DOTALL)
    return "" if not found or (min(_depths(text)[1:-1], default=0) < 1 and found[1] != r"\{") else found[1][-1].replace("[", "(")


def _depths(text: str) -> list[int]:
    """Bracket depth before each character, and at the end."""
    return list(itertools.accumulate(((char in "([{") - (char in ")]}") for char in text), initial=0))


def _split(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    commas = [index for index, (char, depth) in enumerate(zip(text, _depths(text), strict=False)) if char == "," and depth == 0]
    return [text[start + 1 : end] for start, end in itertools.pairwise([-1, *commas, len(text)])]
