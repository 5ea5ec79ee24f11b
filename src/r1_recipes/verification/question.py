"""What the question says about its answer: that a list has an order, and that an expression stands
there already.
"""

import functools
import re

from r1_recipes.verification.spelling import clean

MAX_QUESTION_CHARS = 20_000  # read of a question, from its end
_ORDER = re.compile(
    r"\b(?:ascending|descending|increasing|decreasing|numerical|chronological|alphabetical) "
    r"order\b|"
    r"\border(?:ed)? from\b|\bin order (?:from|of)\b|"
    r"\bfrom (?:the )?(?:least|smallest|lowest|shortest|lightest|greatest|largest|highest|"
    r"longest|biggest) to\b|从[小大低高]到[大小高低]",
    re.IGNORECASE,
)
_OPERATION = re.compile(
    r"[+*/^=]|[\w)}]\s*-|\\(?:[dt]?frac|cdot|times|div|int|sum|prod|lim|sqrt|begin|"
    r"binom)(?![A-Za-z])|!"
)


@functools.lru_cache(4096)
def asks_for_order(question: str) -> bool:
    """Whether a question asks for a list in an order, so that its parts are compared one by one."""
    return _ORDER.search(question[-MAX_QUESTION_CHARS:]) is not None


def is_copied(answer: str, gold: str, question: str) -> bool:
    """Whether an answer with an operation stands in the question as it is, and the gold does not
    say the same.
    """
    if not question or not _OPERATION.search(answer):
        return False
    said = _spelled(answer)
    return (
        len(said) > 2
        and said != _spelled(gold)
        and said in _spelled(question[-MAX_QUESTION_CHARS:])
    )


@functools.lru_cache(4096)
def _spelled(text: str) -> str:
    """One spelling without white space and styling, so that a copy is found in other dollars and
    brackets.
    """
    boxed = re.sub(r"\\boxed\s*\{(.*)\}", r"\1", text, flags=re.DOTALL)
    spelled = re.sub(
        r"\\frac\{(\w+)\}\{(\w+)\}",
        r"\1/\2",
        clean(boxed).replace(r"\cdot", "*").replace(r"\times", "*"),
    )
    return re.sub(r"\A[A-Za-z](?:\([a-z]\))?=", "", re.sub(r"[\s{}$]|\\[,;: ]", "", spelled))
