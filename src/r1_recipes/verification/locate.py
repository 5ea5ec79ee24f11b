"""Find where a text states its answer: in its boxes, after "answer is", or in its last line."""

import re

from r1_recipes.prompts.formats import boxed_spans
from r1_recipes.verification.spelling import clean

# A longer answer is wrong without being read.
MAX_ANSWER_CHARS = 1000
ANCHOR = re.compile(r"(?i)####|\banswer[\s*_]*(?:is\b|:|：)|答案(?:是|为|:|：)")
# "I hope it is correct." A sentence with a number is kept, because it may retract the answer.
_AFTERTHOUGHT = re.compile(r"(?<=\S)[.。]\s+[^\d\W][^\d]*\Z")
_CLOSING_LINES = re.compile(r"(?:\s*(?:\$\$|\\\]|\\\)))+\s*\Z")


_OTHER_BOX = re.compile(r"\\(?:boxed\s|fbox)")


def one_spelling_of_boxes(text: str) -> str:
    r"""Write ``\boxed {72}``, ``\fbox{72}`` and ``\boxed 2`` in a text as ``\boxed{…}``.

    Return the text.
    """
    if not _OTHER_BOX.search(text):
        return text
    text = re.sub(r"\\(?:boxed\s+|fbox\s*)\{", r"\\boxed{", text)
    return re.sub(r"\\boxed\s+([^\s{}\\])", r"\\boxed{\1}", text)


def final_answer(text: str) -> str | None:
    """Return the final answer of a whole completion, ``None`` if it commits to none.

    The answer is in the boxes, which are compared with each other. Without a box, the answer
    follows the last "answer is", "answer:" or ``####``. Otherwise the answer is the last line, if
    the line has no words.
    """
    text = one_spelling_of_boxes(text)
    if "\\boxed" in text:
        boxes = boxes_of(text)
        if len(boxes) == 1 and "\\boxed" not in boxes[0]:
            return boxes[0]
        return ", ".join(rf"\boxed{{{box}}}" for box in boxes) or None
    anchors = list(ANCHOR.finditer(text))
    if anchors:
        for line in text[anchors[-1].end() :].splitlines():
            if line.strip(" \t*_:：$\\[]()"):
                answer = _AFTERTHOUGHT.sub("", line[:MAX_ANSWER_CHARS])
                return answer.strip(" \t*_:：") or None
        return None
    end = _CLOSING_LINES.sub("", text[-MAX_ANSWER_CHARS:])
    line = end.rstrip().rpartition("\n")[2]
    words = re.search(r"(?<![\\A-Za-z])[^\W\d_]{3,}", clean(line))
    return None if words or not clean(line) else line


def boxes_of(text: str) -> list[str]:
    """Return the distinct contents of a text's boxes, in order. Empty boxes are ignored."""
    contents = (text[start:end].strip() for start, end in boxed_spans(text))
    return [box for box in dict.fromkeys(contents) if clean(box[:MAX_ANSWER_CHARS])]
