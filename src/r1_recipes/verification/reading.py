r"""What a text says: a gold, and an answer as the expressions that all have to equal it.

Four steps: locate (:mod:`~r1_recipes.verification.locate`), normalise (:mod:`~r1_recipes.verification.spelling`), reject for a named reason
(:class:`~r1_recipes.verification.lexicon.Refusal`), compare. Normalising may restyle a text; it never takes off what carries meaning.
Everything here is linear in the length of the text, or reads no more than ``MAX_ANSWER_CHARS`` of it.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace

from r1_recipes.prompts.formats import one_spelling_of_boxes
from r1_recipes.verification.gold import APPROX, EQUALS, PLUS_MINUS, THOUSANDS, Gold, in_its_case, listed, squeezed
from r1_recipes.verification.lexicon import (
    Refusal,
    agrees,
    chosen,
    chosen_letters,
    in_symbols,
    refusals,
    says,
    takes_back,
)
from r1_recipes.verification.locate import ANCHOR, MAX_ANSWER_CHARS, boxes_of
from r1_recipes.verification.moments import moment, same_moment
from r1_recipes.verification.numbers import NUMBER, PRECISION, read_value
from r1_recipes.verification.spelling import clean, typed
from r1_recipes.verification.units import unit_of, without_unit
from r1_recipes.verification.words import (
    NAMED_PAIR,
    TELLING,
    UNKNOWN,
    Condition,
    Part,
    answer_part,
    depths,
    is_expression,
    letters,
    named_part,
    prose,
    split,
    split_condition,
    two_bounds,
    union,
)

_OR = frozenset(("or", "oder", "或"))
_ALTERNATIVES = re.compile(r"\s*,?\s*\b(?:or|oder|ou)\b\s*|或")
_BESIDE = re.compile(r"(.*[\d)}%])\s+\((?:(?:or|=|i\.e\.|that is|about|\\approx)\s*)?([^()]*\d[^()]*)\)", re.DOTALL)
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in|to|sim)(?![A-Za-z])|\\(?:right|left)arrow")
_MEMBER = re.compile(r"\A\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_PAIR = re.compile(r"\\?\{?\s*[(](.*,.*)[)]\s*\\?\}?", re.DOTALL)
_CURVE = re.compile(r"\A\s*[A-Za-z]\w?\s*:\s*(?=[^:]*=)")  # "L: y = 2x + 3"
_IS = re.compile(r"\b([A-Za-z])\s+(?:is|equals)\s+(?=[-\d\\(])")  # "the value of x is 5"
_FUNCTION = re.compile(r"\s*(?P<name>[A-Za-z])\s*\(\s*(?P<of>[A-Za-z])\s*\)\s*=(?P<value>[^=]*)")
_CHOOSE = re.compile(r"C\((\d+),\s*(\d+)\)|(?:\{\}|)\^?_?\{?(\d+)\}?\s*C_?\{?(\d+)\}?|C_\{?(\d+)\}?\^\{?(\d+)\}?")
# Towers of powers and factorials: each would cost a worker its whole time limit, and no plain gold is answered with one.
_TOWER = re.compile(
    r"\^[\s{(]*\d+[\s}]*\^|\^\{?\d{2,}\}?\s*\)+\s*\^\{?\d{2,}|\)\s*\^[^()^]*\)\s*\^[^()^]*\)\s*\^|\^\{?-?\d{5,}|\d{5,}\s*!|![\s)}]*!"
)
# Two numbers with nothing, or nothing known, between them: math-verify adds or joins them, or drops what it cannot read.
_UNSEPARATED = re.compile(r"(?:[\d.]|(?<!matrix)\})\s+[\d.]|\.\.|%\s*[^\s)}]|---|\d['\"]+\d")
_BASE = re.compile(r"\d\s*_\s*(?:\{\s*([^{}]*?)\s*\}|(\w+)|\W)")
_RATIO = re.compile(r"\d\s*:\s*\d")
_MODULO = re.compile(r"\\[bp]?mod(?![A-Za-z])|\.\.\.|…|\\[lc]?dots(?![A-Za-z])")  # math-verify drops both
_STRUCK = re.compile(r"~~|\\(?:cancel|st|sout|xcancel|bcancel)(?![A-Za-z])|¬|\\neg(?![A-Za-z])")
# A prime is a derivative, a foot or a minute: (x^2)', 72''.
_PRIME = re.compile(r"(?:[\d)\]}]|(?<![A-Za-z'])[A-Za-z])(?:'(?![A-Za-z])|[′″])|\^\s*\{?\s*\\prime")
# A star that ends no emphasis, and a sign of a web page.
_LEFT_OVER = re.compile(r"\A[^*]*[\di)]\s*\*\s*\Z|&\w+;")
# Words that turn a quantity: an answer that names one names the gold's.
_WAYS = re.compile(
    r"\b(north|south|east|west|left|right|up|down|upwards?|downwards?|behind|front|before|after|more|less|fewer|loss|profit|gain|increase|decrease|"
    r"clockwise|counterclockwise|inward|outward|above|below)\b"
)
_SAID_AT = re.compile(r"(?!.*\b(?:before|after|until|since|from|till)\b)[^\d]*\b(?:is|was|at|on)\s+(?=\S)", re.IGNORECASE)
_CIRCLED = re.compile(r"(.*?[是为:：]\s*)?([①-⑳][①-⑳、,，和\s]*)")
_UNDONE = re.compile(r"\\(?:sum|prod|i*int|oint|lim|gcd|max|min|det|operatorname)(?![A-Za-z])|\\frac\s*\{\s*d\s*\}\s*\{\s*d")
# A condition that an answer may have beside a gold without one.
_HARMLESS = re.compile(r"N\+?|Z\+?|all|[k-n](?:\\ge[01]|>0)")
_TASK = re.compile(r"\\(?:sum|prod|i*int|oint|lim)(?![A-Za-z])")
_OPENING = re.compile(r"(?i)\A(?:(?:so|thus|hence|therefore),?\s+)?(?:the|my|our)?\s*(?:final|correct)?\s*answer\s*(?:is\b:?|:)\s*")
# Beside a box, and part of what is said: "71 or", "-", "\\frac{1}{"; "or 71", "?", "^2".
_LEADS = re.compile(
    r"(?:[-+/^<>{\d~]|(?<!\\)\(|(?<!\*)\*|(?<![A-Za-z\\])[A-Za-z](?=\\?\Z)|\\(?:ln|log|exp|sin|cos|tan|ne|sqrt|neq|approx)|"
    r"\b(?:or|not|than|minus|negative|guess|half|double|twice|root|of|wrong(?: answer)?(?: is)?|sinh|cosh)\b:?)\s*\$?\s*\Z",
    re.IGNORECASE,
)
_TRAILS = re.compile(
    r"\A(?:\s*\$?\s*(?:,?\s*\d|[-+/^?}_']|\*\s*\d|,?\s*(?:or|million|thousand|dozen|squared|mod|no)\b|\(?(?:is )?(?:wrong|not|incorrect|should|but)\b|"
    r"\\(?:cdot|times|pi|div|pmod|bmod|tag|sqrt|frac)(?![A-Za-z]))|[A-Za-z](?![A-Za-z]))",
    re.IGNORECASE,
)
# Digits of other scripts, signs that are no keyboard's (they would count as prose), control characters and lone surrogates.
_STRANGE = frozenset(("Nd", "No", "Nl", "Cs", "Cc", "Sm", "Pd", "Sk", "So", "Mn", "Me", "Po"))
_USUAL = frozenset("°℃℉✓✔✅，。、：；！？…·•“”‘’「」『』（）《》【】¿¡")
# Letters of no alphabet that stand at a digit: a small x above, a long vowel's mark, a lone letter as a factor.
_AT_DIGIT = re.compile(r"[^\W\d_](?=\s*\d)|(?<=\d)[^\W\d_](?![^\W\d_])")
# An arithmetic task, and not its result, is no answer to a plain number.
_OPERATOR = re.compile(r"\\frac|\\cdot|\\times|\\div|[-+*/^]|[)}]\s*\\left|[)}]\s*\(")
MAX_OPERATIONS = 3


@dataclass(frozen=True)
class Answer:
    """An answer: what has to equal the gold, or why there is nothing."""

    sides: tuple[str, ...] = ()  # each as math-verify shall read it
    rounded: tuple[str, ...] = ()  # decimals behind a sign of approximation
    raw: str | None = None  # the answer as it stands, if that may decide as well
    verdict: bool | None = None  # if it needs no comparison
    refusal: Refusal | None = None  # why there is nothing to compare; with sides: what to call it if one of them differs
    ordered: bool = False  # the parts of a list are compared in their order
    pairs: tuple[tuple[str, str], ...] = ()  # a gold's named parts, each with the answer's of that name


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
        if TELLING.search(beside) if gold.words is None else len(prose(beside)) in (1, 2):
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
    if record := re.fullmatch(r"\s*\{\s*\"(?:final_)?(?:answer|result|value)\"\s*:\s*\"?([^\"{}]*)\"?\s*\}\s*", text):
        text = record[1]  # {"answer": 72}
    if _STRUCK.search(text) and not _STRUCK.search(gold.raw):
        return Answer(refusal=Refusal.STRANGE)
    said = text.rpartition("=")[2] if not gold.relations else text  # of "f'(x) = 2x" the name changes nothing
    if gold.words is None and not _PRIME.search(gold.raw) and (_PRIME.search(said) or _LEFT_OVER.search(text)):
        return Answer(refusal=Refusal.STRANGE)
    if any(char not in gold.raw for char in _unusual(typed(text))):
        return Answer(refusal=Refusal.STRANGE)
    cleaned = clean(text, locale)
    if opening := _OPENING.match(cleaned):
        cleaned = clean(cleaned[opening.end() :].removesuffix("!"))
    return _read_words(text, cleaned, gold, locale) if cleaned else Answer(refusal=Refusal.UNREADABLE)


def _unusual(text: str) -> set[str]:
    """The signs of a text that no keyboard has and that may change a number: marks, symbols, digits of other scripts."""
    if text.isascii() and text.isprintable():
        return set()
    signs = {char for char in text if not (" " <= char <= "~" or char.isspace() or char in _USUAL)}
    found = {char for char in signs if unicodedata.category(char) in _STRANGE}
    found |= {char for char in signs if unicodedata.category(char) == "Lm" and char not in "ーｰ々ゝヽ"}
    return found | {char for char in _AT_DIGIT.findall(text) if unicodedata.category(char) in ("Lm", "Ll", "Lu") and not char.isascii()}


def _read_words(text: str, cleaned: str, gold: Gold, locale: str) -> Answer:
    """Read an answer to a choice, a date or words; what is left goes on as an expression."""
    if gold.letters is not None:
        named = chosen_letters(cleaned)
        return Answer(verdict=named == gold.letters if gold.ordered else "".join(sorted(named)) == gold.letters)
    option = chosen(cleaned) if gold.letter is not None else None
    if gold.letter and re.search(rf"\b(?!{gold.letter})[A-J]\s*=", cleaned):
        return Answer(verdict=False)  # "D = 17" for "(C) 17"
    if option and option[0] == gold.letter and gold.words is None and TELLING.search(option[1]):
        return read_answer(option[1], replace(gold, letter=None), locale)  # "(C) 18" is not "(C) 17"
    if option or (gold.letter is not None and gold.words is not None):
        return Answer(verdict=option is not None and option[0] == gold.letter)
    ways, said_ways = (_WAYS.findall(re.sub(r"\\(?:left|right|above)(?![a-z])", " ", one).casefold()) for one in (gold.raw, text))
    if ways and said_ways and said_ways != ways:
        return Answer(refusal=Refusal.DIFFERENT)
    if gold.unit and (unit := unit_of(text)) and unit != gold.unit:
        return Answer(refusal=Refusal.DIFFERENT)
    if squeezed(cleaned) == gold.plain:
        return Answer(verdict=True)
    if re.fullmatch("[①-⑳]+", gold.plain) and (circled := _CIRCLED.fullmatch(cleaned)) and not refusals(circled[1] or ""):
        return Answer(verdict=sorted(set(re.findall("[①-⑳]", circled[2]))) == sorted(gold.plain))
    if gold.moment is not None:
        said_at = _SAID_AT.match(cleaned)
        when = moment(cleaned)
        if when is None and said_at and not refusals(said_at[0]):
            when = moment(cleaned[said_at.end() :])
        return Answer(verdict=same_moment(gold.moment, when))
    if gold.words is not None and (verdict := agrees(cleaned, gold.words)) is not None:
        return Answer(verdict=verdict)
    cleaned = in_symbols(cleaned) if gold.words is None else cleaned
    if squeezed(cleaned) == gold.plain:
        return Answer(verdict=True)
    if alternatives := _alternatives(text, cleaned, gold, locale):
        return alternatives
    subject, _, said = cleaned.rpartition(" is ") if " is " in cleaned else cleaned.rpartition(" are ")
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
    return _read_expression(text, cleaned, gold)


def _alternatives(text: str, cleaned: str, gold: Gold, locale: str) -> Answer | None:
    """The same value twice, ``\\frac34 or 0.75``, ``0.5 (50%)``: each has to equal the gold. ``None``: the answer is no such text."""
    if gold.words is not None or (gold.several and '"answer"' not in cleaned):
        return None
    beside = _BESIDE.fullmatch(cleaned) if gold.value is not None else None
    said = [beside[1], beside[2]] if beside else _ALTERNATIVES.split(cleaned)
    said = re.split(r"[\s,\"]*\banswer\"\s*:", cleaned) if '"answer"' in cleaned else said  # JSON that goes on behind a text
    if not 1 < len(said) < 4 or not all(re.search(r"\d|\\[A-Za-z]", one) and is_expression(one) for one in said):
        return None
    said = [clean(one) for one in said]
    answers = [_read_expression(one, one, gold) if one else Answer(refusal=Refusal.HEDGE) for one in said]
    if any(answer.refusal or answer.verdict is False or answer.pairs for answer in answers):
        return Answer(refusal=Refusal.HEDGE)
    return Answer(tuple(side for answer in answers for side in answer.sides), refusal=Refusal.HEDGE)


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
    if len(cleaned) > max(300, 4 * len(gold.raw)) or max(depths(cleaned)) > max(10, 2 * max(depths(gold.raw))):
        return Answer(refusal=Refusal.HOSTILE)
    if not gold.variables and _TASK.match(cleaned):  # "\\sum_{k=1}^{10} k = 55"
        tops = [index for index, (char, depth) in enumerate(zip(cleaned, depths(cleaned), strict=False)) if char == "=" and not depth]
        cleaned = cleaned[tops[0] + 1 :].strip() if len(tops) == 1 else cleaned
    if (bounds := _as_intervals(cleaned, gold)) is not None:
        return bounds
    cleaned = two_bounds(cleaned) if _RELATION.search(gold.text or "") or _kind(gold.text or "") else cleaned
    cleaned, condition = split_condition(cleaned)
    if condition and condition.range[:1] in "NZ" and re.search(r"[<>]|\\[lg]e(?![a-z])", cleaned) and not gold.condition:
        return Answer(refusal=Refusal.DIFFERENT)  # fewer numbers than the inequality has
    if condition and (gold.condition.range != condition.range if gold.condition else not _HARMLESS.fullmatch(condition.range)):
        return Answer(refusal=Refusal.DIFFERENT)
    cleaned = _as_gold_says(_IS.sub(r"\1 = ", _CURVE.sub("", cleaned)), condition, gold)
    if not gold.variables and not gold.several:
        cleaned = named_part(cleaned, strict=False).text  # "\\angle A = 60", "x_1 + x_2 = 2"
    bare = without_unit(cleaned, every=not gold.variables)
    if gold.parts:
        return _read_named(bare, gold)
    parts = [answer_part(part, gold.variables) for part in (listed(bare) if gold.several else [bare]) if part.strip()]
    if None in parts:
        return Answer(refusal=Refusal.SEVERAL)
    kept = [part.text for part in parts if part]
    if not parts or not all(kept):
        return Answer(refusal=Refusal.UNREADABLE)
    expression = in_its_case(", ".join(kept), gold.cased)
    expression = _MEMBER.sub("", expression) if not _MEMBER.match(gold.text or "") else expression
    if pair := NAMED_PAIR.fullmatch(expression):
        expression = _in_order_of_names(zip(split(pair[1]), split(pair[2]), strict=False))
    elif (gold_pair := _PAIR.fullmatch(gold.text or "")) and "=" not in (gold.text or "") and "=" in expression:
        named = [named_part(part) for part in split(expression)]
        if all(part.label for part in named) and len(named) == len(split(gold_pair[1])):
            expression = _in_order_of_names((part.label, part.text) for part in named)
    unseparated = THOUSANDS.sub(r"\1", expression)
    if _UNSEPARATED.search(unseparated) and not _UNSEPARATED.search(gold.raw):
        return Answer(refusal=Refusal.SEVERAL)
    if (not gold.several and len(split(unseparated)) > 1) or expression.count("|") % 2:
        return Answer(refusal=Refusal.SEVERAL)
    if refusal := _mismatch(text, expression, gold):
        return Answer(refusal=refusal)
    # As it stands, 1:2:3 is a sixth.
    raw = text if gold.value is None and not APPROX.search(cleaned) and not _RATIO.search(text + " " + gold.raw) else None
    if gold.relations == 1 and (same := _same_left_side(expression, gold.text or "")):
        return Answer((same[1],), pairs=(same,))
    if gold.relations:
        chain = len(EQUALS.findall(expression)) > gold.relations
        return Answer(refusal=Refusal.CHAIN) if chain else Answer((expression,), raw=raw, ordered=gold.ordered)
    return _sides(expression, raw, gold)


def _mismatch(text: str, expression: str, gold: Gold) -> Refusal | None:
    """Why an expression cannot be the gold, whatever its value: another kind, another base, a task in place of its result."""
    target = _MEMBER.sub("", gold.text or gold.raw)
    kinds = {_kind(expression), "(" if _RELATION.search(target) else _kind(target)} - {""}
    if (
        len(kinds) > 1
        or (_MODULO.search(text) and not _MODULO.search(gold.raw))
        or (gold.value and _RELATION.search(expression))
        or (_is_list(gold) and (_RELATION.search(expression) or _kind(expression) == "("))
        or _BASE.findall(expression) != _BASE.findall(gold.text or gold.raw)
    ):
        return Refusal.DIFFERENT
    if _UNDONE.search(expression) and not _UNDONE.search(gold.raw):
        return Refusal.UNEVALUATED
    if _unsimplified(expression):
        return Refusal.UNEVALUATED
    if gold.value is not None and "=" not in expression and len(_OPERATOR.findall(expression.lstrip("-"))) > MAX_OPERATIONS:
        return Refusal.UNEVALUATED
    return None


def _is_list(gold: Gold) -> bool:
    """Whether a gold is a list of values, which no pair and no interval is."""
    text = gold.text or ""
    return gold.several and not gold.parts and not _RELATION.search(text) and (len(split(text)) > 1 or text.lstrip().startswith(r"\{"))


def _in_degrees(side: str, gold: Gold) -> str:
    """An angle in the gold's measure: 60 degrees for pi/3, and pi/3 for 60 degrees."""
    if "\\circ" in side and "\\circ" not in gold.raw and "\\pi" in gold.raw:
        number = re.fullmatch(r"(-?[\d./]+)\s*\^\s*\{?\s*\\circ\s*\}?\s*", side)
        return rf"\frac{{{number[1]}\pi}}{{180}}" if number else r"\emptyset"
    if "\\circ" in gold.raw and "\\circ" not in side and "\\pi" in side:
        return rf"\frac{{180({side})}}{{\pi}}"
    return side


def _as_intervals(cleaned: str, gold: Gold) -> Answer | None:
    """Bounds joined by "or" against a union of intervals, either way round; ``None``: it is not about these."""
    own = union(clean(gold.raw))
    if own and re.search(r"\band\b|\\land(?![a-z])|且", cleaned) and re.search(r"[<>]|\\[lg]e(?![a-z])", cleaned):
        return Answer(refusal=Refusal.DIFFERENT)
    if not gold.text or ("\\cup" in gold.text) == ("\\cup" in cleaned):
        return None
    said = _MEMBER.sub("", cleaned) if "\\cup" in cleaned else union(cleaned)
    own = gold.text if "\\cup" in gold.text else own
    return Answer((said,), pairs=((_MEMBER.sub("", own), said),)) if own and said else None


def _same_left_side(expression: str, gold: str) -> tuple[str, str] | None:
    """The right sides of a gold ``I_{max} = …`` and of an answer that names the same, or nothing."""
    (left, sign, right), (name, equals, said) = gold.partition("="), expression.partition("=")
    if (
        not (sign and UNKNOWN.fullmatch(left))
        or "=" in right
        or "=" in said
        or _RELATION.search(gold + expression)
        or PLUS_MINUS.search(gold + expression)
    ):
        return None
    if equals and squeezed(name) == "-" + squeezed(left):
        return right.strip(), rf"-({said.strip()})"
    if equals and squeezed(name) == squeezed(left):
        return right.strip(), said.strip()
    return (right.strip(), expression) if not equals else None


def _unsimplified(expression: str) -> bool:
    """Whether a sum has three terms or more that could be added at once: ``a+1+a-2+a+3+a-4``, ``76-(…)+13-2``."""
    level = depths(expression)
    marked = "".join("\0" if char in "+-" and not depth else char for char, depth in zip(expression, level, strict=False))
    terms = [term.strip() for term in marked.split("\0") if term.strip()]
    numbers = [term for term in terms if re.fullmatch(r"[\d.\s]+|\((?:[-\d.\s+*/]|\\cdot|\\times)+\)", term)]
    return len(numbers) > 2 or any(terms.count(term) > 2 for term in terms)


def _sides(expression: str, raw: str | None, gold: Gold) -> Answer:
    """What has to equal the gold: each side of a chain of equations, behind a name; a list as one."""
    sides: list[str] = []
    rounded: list[str] = []
    for part in split(expression) if gold.several else [expression]:
        exact, *near = [side.strip() for side in APPROX.split(part)]
        if near and exact != "e" and (UNKNOWN.fullmatch(exact) or not exact):
            exact, *near = near  # "x \\approx 3.46"
        equal = [side.strip() for side in EQUALS.split(exact)]
        if len(equal) > 1 and re.fullmatch(r"\s*[A-Za-z]\s*", equal[0]) and equal[0].strip() in gold.variables:
            return Answer(refusal=Refusal.CHAIN)  # "x = 2x"
        if len(equal) > 1 and (
            UNKNOWN.fullmatch(equal[0]) or (len(equal) == 2 and not gold.variables and named_part(exact, strict=False).label)
        ):
            del equal[0]  # "x = 72"
        equal = [_in_degrees(side, gold) for side in equal]
        # "36 + 36 = 72" says 72 twice; "71 = 72" says two things.
        if not all(equal) or len(equal) > (1 if gold.several else 4) or (gold.several and near):
            return Answer(refusal=Refusal.CHAIN)
        sides += equal
        rounded += near
    listed = (", ".join(sides),) if gold.several else tuple(sides)
    return Answer(listed, tuple(rounded), raw if len(sides) == 1 else None, ordered=gold.ordered)


def _read_named(bare: str, gold: Gold) -> Answer:
    """Read an answer to a list whose parts have names: by name, or without any names in the gold's order."""
    if pair := NAMED_PAIR.fullmatch(bare):
        named = [Part(value.strip(), name.strip()) for name, value in zip(split(pair[1]), split(pair[2]), strict=False)]
    else:
        inside = _PAIR.fullmatch(bare)
        pieces = split(inside[1]) if inside and len(split(bare)) == 1 else listed(bare)
        found = [answer_part(piece, gold.variables) for piece in pieces if piece.strip()]
        if None in found or not all(part.text for part in found if part):
            return Answer(refusal=Refusal.SEVERAL)
        named = [part if part.label and "=" not in part.text else named_part(part.text) for part in found if part]
    if len(named) != len(gold.parts) or any("=" in part.text for part in named):
        return Answer(refusal=Refusal.DIFFERENT)
    if any(part.label for part in named):
        by_name = [[part for part in named if _same_name(part.label, own.label)] for own in gold.parts]
        if any(len(found) != 1 for found in by_name):
            return Answer(refusal=Refusal.DIFFERENT)
        named = [found[0] for found in by_name]
    return Answer(
        tuple(part.text for part in named), pairs=tuple((own.text, part.text) for own, part in zip(gold.parts, named, strict=True))
    )


def _same_name(one: str, other: str) -> bool:
    """Whether two names are the same, or one has the words of the other: "boys", "the boys"."""
    words = set(one.split()), set(other.split())
    return bool(words[0] and words[1]) and (words[0] <= words[1] or words[1] <= words[0])


def _as_gold_says(cleaned: str, condition: Condition | None, gold: Gold) -> str:
    """The answer with the gold's name for a function or a parameter: ``f(x) = x`` for ``f(n) = n``, ``n\\pi`` for ``k\\pi``."""
    if gold.condition and condition and gold.condition.letter != condition.letter and gold.condition.letter not in letters(cleaned):
        cleaned = _renamed(cleaned, condition.letter, gold.condition.letter)
    own, found = _FUNCTION.fullmatch(gold.text or ""), _FUNCTION.fullmatch(cleaned)
    if own and found and own["name"] == found["name"] and own["of"] != found["of"] and own["of"] not in letters(found["value"]):
        return f"{own['name']}({own['of']})={_renamed(found['value'], found['of'], own['of'])}"
    left = re.match(r"\s*([a-z])\s*=", gold.text or "")
    if found and left and found["of"] in gold.variables - {left[1]} and found["name"] in ("f", left[1]):
        return f"{left[1]}={found['value']}"  # y = 2x + 3, as f(x)
    if "\\binom" in (gold.text or ""):
        cleaned = _CHOOSE.sub(lambda match: r"\binom{{{}}}{{{}}}".format(*[digits for digits in match.groups() if digits]), cleaned)
    return cleaned


def _renamed(text: str, letter: str, new: str) -> str:
    return re.sub(rf"(\\[A-Za-z]+)|{letter}", lambda match: match[1] or new, text)


def _in_order_of_names(named: object) -> str:
    """Named values as the pair that math-verify reads, in the order of the alphabet."""
    return f"({', '.join(value.strip() for _, value in sorted((str(name).strip(), value) for name, value in named))})"  # type: ignore[attr-defined]


def settle(gold: Gold, answer: Answer, precision: int = PRECISION) -> bool | None:
    """Return the verdict if it needs no parser; ``None``: ask a worker."""
    if answer.refusal is not None and not answer.sides:
        return False
    if answer.verdict is not None or gold.value is None or answer.rounded or answer.pairs:
        return answer.verdict
    equal = [None if (value := read_value(side)) is None else gold.value.equals(value, precision) for side in answer.sides]
    return False if False in equal else None if None in equal else True


def _kind(text: str) -> str:
    r"""``{`` of a whole set, ``(`` of a whole tuple or interval, else ``""``: math-verify compares ``\{1,2\}`` with ``(1,2)``."""
    found = re.fullmatch(r"\s*(\\\{|[(\[]).*,.*(\\\}|[)\]])\s*", text, re.DOTALL)
    return "" if not found or (min(depths(text)[1:-1], default=0) < 1 and found[1] != r"\{") else found[1][-1].replace("[", "(")
