"""Read what a question says about its answer: whether a list has an order, and whether an
expression already stands in the question.
"""

import functools
import re

from r1_recipes.verification.gold import Gold
from r1_recipes.verification.numbers import read_value
from r1_recipes.verification.spelling import clean

MAX_QUESTION_CHARS = 20_000  # only the end of a longer question is read
_ORDER = re.compile(
    r"(?i)\b(?:ascending|descending|increasing|decreasing|numerical|chronological|alphabetical) "
    r"order\b|"
    r"\border(?:ed)? from\b|\bin order (?:from|of)\b|"
    r"\bfrom (?:the )?(?:least|smallest|lowest|shortest|lightest|greatest|largest|highest|"
    r"longest|biggest) to\b|从[小大低高]到[大小高低]"
)
_OPERATION = re.compile(
    r"[+*/^=]|[\w)}]\s*-|\\(?:[dt]?frac|cdot|times|div|int|sum|prod|lim|sqrt|begin|binom)|!"
)
_INDEXED = re.compile(r"(?<![A-Za-z\\])[xyz]_(?=\{?\d)")
# The question asks for the value that it gives in another form: 3/4 as a decimal.
_OTHER_FORM = re.compile(
    r"(?i)decimal|percent|radian|simpl|rationali|mixed|improper|小数|百分|弧度|化简|带分数"
)
_ASKED = re.compile(r"(?i)(?:whatis|compute|evaluate|calculate|find|divide|valueof|计算|求):?\Z")
_ROOT = re.compile(r"-?(?:\\frac|\\sqrt|[\d/])+")


@functools.lru_cache(4096)
def asks_for_order(question: str, gold: str = "") -> bool:
    """Return whether a question asks for a list in an order, or itself names the unknowns x_1, x_2
    of the reference answer. Its parts are then compared one by one.
    """
    question = question[-MAX_QUESTION_CHARS:]
    name = _INDEXED.search(gold)
    return bool(_ORDER.search(question) or (name and name[0] in question))


def is_copied(answer: str, gold: Gold | None, question: str) -> bool:
    """Return whether an answer with an operation stands in the question unchanged, and is not the
    text of the reference answer, an option, or a value that needs no calculation.
    """
    if not question or len(answer) <= 2 or gold is None or gold.words is not None:
        return False
    spelled = _spelled(answer)
    if not _OPERATION.search(spelled) or spelled == _spelled(gold.raw):
        return False
    before, copy, _ = _spelled(question[-MAX_QUESTION_CHARS:]).partition(spelled)
    if not copy or _OTHER_FORM.search(question) or _ASKED.search(before):
        return bool(copy)
    bare = spelled.removesuffix(r"^\circ")
    value = read_value(bare)
    is_reduced = value is not None and str(value.number) == bare  # 120 degrees, 3/4, but not 48/2
    is_given = before.endswith("=") and _ROOT.fullmatch(spelled) is not None
    return not (is_reduced or (is_given and gold.value is None))


@functools.lru_cache(4096)
def _spelled(text: str) -> str:
    """Return a text without white space, styling, and the name or the letter of an option in front,
    so that a copy is found if its dollar signs or brackets differ.
    """
    text = clean(re.sub(r"(?s)\\boxed\s*\{(.*)\}", r"\1", text))
    text = text.replace(r"\cdot", "*").replace(r"\times", "*")
    text = re.sub(r"(?<!\d)\\frac\{(\w+)\}\{(\w+)\}", r"\1/\2", text)
    text = re.sub(r"[\s{}$]|\\[,;: ]", "", text)
    return re.sub(r"\A(?:[A-Za-z](?:\([a-z]\))?=|\(?[A-J][).:])", "", text)
