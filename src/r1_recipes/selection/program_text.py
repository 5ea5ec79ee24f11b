"""Program text in a reasoning, which ``keep: filters: code`` drops."""

from __future__ import annotations

import re

# Longer lines are not searched, which bounds the time whatever the model wrote.
_MAX_LINE = 400
# Not "```x = 3``` is", which is a phrase.
_FENCE = re.compile(r"[ \t]*+(`{3,}+)[ \t]*+([^\s`]*+)[^`]*+$")
# Fences that hold formulas or words.
_NOT_CODE = {"math", "latex", "tex", "katex", "asciimath", "text", "txt", "plaintext", "plain", "markdown", "md"}
# Every one is tried on lines of at most _MAX_LINE characters, which bounds its backtracking.
_NAME = r"[A-Za-z_]\w*"
_CODE_LINE = re.compile(
    rf"""\s*(?:>>>[ ])?(?:
      (?:async[ ])?def[ ]{_NAME}[ ]?\(.*\)[ ]?(?:->[^:]+)?:
    | class[ ]{_NAME}\([\w., =]*\):
    | import[ ]{_NAME}(?:\.\w+)*(?:[ ]as[ ]{_NAME})?(?:,[ ]?{_NAME}(?:\.\w+)*(?:[ ]as[ ]{_NAME})?)*;?
    | from[ ]\.*{_NAME}(?:\.\w+)*[ ]import[ ](?:\*|\(?{_NAME}(?:[ ]as[ ]{_NAME})?(?:,[ ]?{_NAME}(?:[ ]as[ ]{_NAME})?)*\)?)
    | \#[ ]?include[ ]?[<"][\w./]+[>"]
    | (?:print|printf|println|console\.log|System\.out\.print(?:ln|f)?|fmt\.Print(?:ln|f)?)\(.*\);?
    | (?:std::)?cout[ ]?<<.*;
    | for[ ]{_NAME}(?:,[ ]?{_NAME})*[ ]in[ ](?:(?:range|enumerate|zip|sorted|reversed|list|map|filter)\(.*\)|{_NAME}\.\w+(?:\(.*\))?):.*
    | for[ ]?\((?:int|long|size_t|auto|let|var)[ ]{_NAME}[ ]?=[^;]*;[^;]*;[^;]*\)[ ]?\{{?.*
    | int[ ]main[ ]?\([^()]*\)[ ]?\{{?
    | (?:export[ ])?(?:async[ ])?function[ ]{_NAME}[ ]?\([^()]*\)[ ]?\{{.*
    | public[ ](?:static[ ])?[\w<>\[\]]+[ ]{_NAME}\([^()]*\)[ ]?\{{?
    | using[ ]namespace[ ]\w+;
    )\s*(?:(?:\#|//).*)?""",
    re.VERBOSE,
)


def has_code(text: str) -> bool:
    """Whether a text holds program text: a fenced block, or a whole line that can be nothing else.

    Precision comes before recall: what a formula or a sentence might be (``x = 3``, ``f(x):``, ``for n in S:``, LaTeX) does not count.
    A fence counts, closed or not, unless it is marked as formulas or text (``math``, ``latex``, ``text``).
    """
    fence = ""
    for line in text.splitlines():
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not match[2]:
                fence = ""
            continue
        if match:
            if match[2].lower().strip("{}.") not in _NOT_CODE:
                return True
            fence = match[1]
        elif len(line) <= _MAX_LINE and _CODE_LINE.fullmatch(line):
            return True
    return False
