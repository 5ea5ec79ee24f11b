"""Read what a question says about its answer: whether a list has an order, and whether an
expression already stands in the question.
"""

import functools
import re

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
    r"[+*/^=]|[\w)}]\s*-|\\(?:[dt]?frac|cdot|times|div|int|sum|prod|lim|sqrt|begin|"
    r"binom)(?![A-Za-z])|!"
)


@functools.lru_cache(4096)
def asks_for_order(question: str) -> bool:
    """Return whether a question asks for a list in an order. Its parts are then compared one by
    one.
    """
    return _ORDER.search(question[-MAX_QUESTION_CHARS:]) is not None


def is_copied(answer: str, gold: str, question: str) -> bool:
    """Return whether an answer with an operation stands in the question unchanged, and is not the
    text of the reference answer.
    """
    if not question or not _OPERATION.search(answer):
        return False
    spelled = _spelled(answer)
    if len(spelled) <= 2 or spelled == _spelled(gold):
        return False
    return spelled in _spelled(question[-MAX_QUESTION_CHARS:])


@functools.lru_cache(4096)
def _spelled(text: str) -> str:
    """Return a text without white space and styling, so that a copy is found if its dollar signs or
    brackets differ.
    """
    text = clean(re.sub(r"(?s)\\boxed\s*\{(.*)\}", r"\1", text))
    text = text.replace(r"\cdot", "*").replace(r"\times", "*")
    text = re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r"\1/\2", text)
    text = re.sub(r"[\s{}$]|\\[,;: ]", "", text)
    return re.sub(r"\A[A-Za-z](?:\([a-z]\))?=", "", text)
