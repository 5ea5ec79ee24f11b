r"""Where a text states its answer: its boxes, what follows its last "answer is", or its last line.
All is linear in the length.
"""

import re

from r1_recipes.prompts.formats import boxed_spans, one_spelling_of_boxes
from r1_recipes.verification.spelling import clean
from r1_recipes.verification.words import is_expression

# A longer answer is wrong unread: golds of MATH, GSM8K and OpenR1-Math are far shorter, and the
# parsers' time grows faster than the length.
MAX_ANSWER_CHARS = 1000

ANCHOR = re.compile(r"####|\banswer[\s*_]*(?:is\b|:|：)|答案(?:是|为|:|：)", re.IGNORECASE)
# A sentence after the answer's own: "I hope it is correct." One with a number may take the answer
# back, and stays.
_AFTERTHOUGHT = re.compile(r"(?<=\S)[.。]\s+[^\d\W][^\d]*\Z")
_CLOSING_LINES = re.compile(r"(?:\s*(?:\$\$|\\\]|\\\)))+\s*\Z")


def final_answer(text: str) -> str | None:
    r"""Return the final answer of a whole completion, or ``None`` if it commits to none.

    The boxes, if there are any (they are compared with each other); without a box what follows the
    last "answer is", "answer:" or ``####``; else the last line if it is nothing but one expression.
    Linear in the length.
    """
    text = one_spelling_of_boxes(text)
    if "\\boxed" in text:
        boxes = boxes_of(text)
        return (
            boxes[0]
            if len(boxes) == 1 and "\\boxed" not in boxes[0]
            else ", ".join(rf"\boxed{{{box}}}" for box in boxes) or None
        )
    *_, anchor = [None, *ANCHOR.finditer(text)]
    if anchor is not None:
        line = next(
            (line for line in text[anchor.end() :].splitlines() if line.strip(" \t*_:：$\\[]()")),
            "",
        )
        return _AFTERTHOUGHT.sub("", line[:MAX_ANSWER_CHARS]).strip(" \t*_:：") or None
    line = _CLOSING_LINES.sub("", text[-MAX_ANSWER_CHARS:]).rstrip().rpartition("\n")[2]
    cleaned = clean(line)
    return line if cleaned and is_expression(cleaned) else None


def boxes_of(text: str) -> list[str]:
    """Return the different contents of a text's boxes, in order; an empty box is none."""
    contents = (text[start:end].strip() for start, end in boxed_spans(text))
    return [box for box in dict.fromkeys(contents) if clean(box[:MAX_ANSWER_CHARS])]
