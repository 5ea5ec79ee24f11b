"""Words beside an expression: which words may stand there, and which change its meaning."""

import re

# Words that may stand beside algebra. Any other word could change it: "the derivative of", "abcd".
_BESIDE_ALGEBRA_TEXT = """
a an the and or so thus hence therefore then is are be equals equal to of for in as by it that
this we get have find obtain answer final result solution solutions only simplified form
expression equation function polynomial formula line curve circle parabola ellipse plane graph
general value values domain range interval set inequality system root roots identity matrix vector
sequence term explicit closed inequalities required desired total area volume length distance
probability slope intercept slope-intercept standard with where when if all any every each integer
integers positive natural real reals number numbers nonnegative non-negative constant constants
arbitrary some let be must satisfies satisfy given can written simplifies reduces factors expands
becomes yields gives which also true holds und oder ist et ou est variable variables minimum
maximum perimeter radius parallel perpendicular through passing point points tangent axis
directrix unique possible simply namely exactly limit sum product difference
"""
BESIDE_ALGEBRA = frozenset(_BESIDE_ALGEBRA_TEXT.split())
# These words may also stand beside a value without letters.
_BESIDE_VALUES_TEXT = """
approximately about around roughly altogether unit units square cubic degrees radians ordered pair
pairs triple coordinates vertex vertices center centre foci focus respectively product products
has have had was were will would equals evaluates comes out yes at on increasing decreasing
converges diverges ratio
"""
BESIDE_VALUES = frozenset(_BESIDE_VALUES_TEXT.split())
# Chinese words that may stand beside an expression.
CHINESE = re.compile("[\u4e00-\u9fff]+")
_BESIDE_IN_CHINESE_TEXT = """
的 解 解集 解为 为 是 得 即 即为 故 所以 因此 因为 则 于是 从而 与 和 或 且
及 由 可知 可得 得到 求得 解得 答案 结果 最终 最后 综上 所述 上述 其中 整数 实数
自然数 正整数 正实数 有理数 任意 全体 所有 常数 方程 方程组 原方程 直线 曲线 圆
抛物线 椭圆 双曲线 准线 渐近线 切线方程 标准 参数 函数 表达式 关系式 解析式 通项
公式 化简 化简后 集合 取值 取值范围 范围 区间 定义域 值域 面积 体积 长度 概率 等于
当 时 满足 等 该 此 点 向量 坐标 数列 不等式 原式 最小值 最大值 导数
"""
BESIDE_IN_CHINESE = re.compile(f"(?:{'|'.join(_BESIDE_IN_CHINESE_TEXT.split())})+")


# Words that exclude some values of an expression: "even", "prime".
_RESTRICTS = re.compile(
    r"(?i)\b(?:even|odd|primes?|integers?|(?:ir)?rationals?|composite|square-?free|open|closed|"
    r"positive|"
    r"negative|non-?negative|naturals?|inclusive|exclusive|punctured|subsets?|supersets?|"
    r"complement\w*)\b|(?<![为是])(?<!任意)(?:[正负]?整数|[正负]数|自然数|有理数|无理数|[质奇偶]数)"
)
# Matches "72/total", but not "72/hour".
DIVIDED = re.compile(
    r"[\d})]\s*/\s*(?!(?:hours?|minutes?|seconds?|days?|weeks?|months?|years?|person|each|"
    r"item|pound|gallon|mile)\b)[A-Za-z]{4,}"
)
SELECTS = re.compile(r"(?i)\b(?:divisible by|(?:ending|ends?|starting|starts?) (?:in|with))\s*\Z")
# In "sinh(72)" and "multiples of 72" the word acts on the number. "A total of 72" only names it.
ACTS = re.compile(
    r"(?i)[^\W\d_]{2,}(?:\(|\\begin)\Z|(?<!\\)\b(?:sinh|cosh|tanh|coth|sech|csch|arc\w+|erfc?|"
    r"floor|ceil\w*|gcd|lcm|root|cbrt|conj\w*|abs|fib|sgn|det|adj|tr|"
    r"rank|trace|transpose|gradient|roots|zeros|(?:co)?sine|(?:co)?tangent|secant|logarithm|"
    r"integral|(?:anti)?derivative|primitive|modulus|absolute|powerset|rotated|reflected|"
    r"shifted|negatives|endpoints|interior|boundary|closure)\b[^=]*\Z|"
    r"\b(?!(?:total|value|area|length|distance|probability|speed|velocity|cost|amount|volume|"
    r"height|number|answer|result|profit|average|mean|rate|time|"
    r"price|set|ratio|maximum|minimum|perimeter|radius|count|score|age|weight|mass|force|"
    r"domain|range|interval|slope|equation|form|width|angle|measure|temperature)"
    r"\s+of\b)\w+\s+of\s*\(?\Z|"
    r"\b(?:with|of)\s+(?:an?\s+|the\s+)?(?:diagonal|area|radius|diameter|side|base|height|"
    r"perimeter|volume|circumference|length|width|hypotenuse|legs?)(?:\s+of)?\s*\Z|"
    r"\b(?!(?:equals?|simplif\w+|reduc\w+|evaluat\w+|comes?|amounts?|leads?|round\w*|belongs?|"
    r"converges?|diverges?|approach\w*|tends?|up|sums?|corresponds?|falls?|rises?|"
    r"drop\w*|grow\w*|\w+creas\w+|goes|"
    r"close|next|according|due|changes?|turns?|fell|rose|went|closest|nearest|want|need|have|has)"
    r"\s+to)[^\W\d_]+\s+to\s*\Z|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty|\w+teen|hundred|times|order)"
    r"\s*\Z"
)


# "The slope of 2x" and "parallel to y = 2x" are not the expression that follows the words.
_ACTS_ON_ALGEBRA = re.compile(
    r"(?i)(?:\b(?!(?:equation|expression|form|value|formula|graph|solution|roots?|function|set|"
    r"line|curve)\s)\w+\s+of|(?<!equal )\bto|through|"
    r"\bof\s+(?:an?\s+)?(?:radius|diameter|side|base|height|width|length|edge))"
    r"\s*(?:the\s+)?\Z"
)
# A property: "the area of the curve x^2", "y = 2x tangent". "The area is x^2" only names it.
_PROPERTY = re.compile(
    r"(?is:(?:\b(?:minimum|maximum|minima|maxima|perpendicular|parallel|tangents?|slope|domain|"
    r"range|"
    r"perimeter|area|volume|length|distance|probability|intercept|radius|axis|directrix|through|"
    r"passing|derivative|limit|sum|product|difference|integral)\b|取值范围|定义域|值域|面积|体积|长度|概率|准线|渐近线|"
    r"最[大小]值|导数)"
    r"(?!.*(?:\b(?:is|are|be|equals?|becomes|of the form|as)\b|[:=：为是得])))"
)
_PROPERTY_BEHIND = re.compile(
    rf"(?is)\A(?!.*\b(?:is|are|for|where|with|if|form)\b).*(?:{_PROPERTY.pattern}|\b(?:roots?|"
    rf"zeros)\b)"
)


def changes(text: str, pieces: list[str], piece: str, variables: frozenset[str]) -> bool:
    """Return whether the words beside an expression change its meaning."""
    before, _, behind = text.partition(piece)
    if _acts_on(before, piece, variables) or _names_another(before, behind, piece):
        return True
    if _loses_a_sign(text, pieces, piece):
        return True
    is_dash = before.strip() and piece.startswith("- ")
    is_hyphen = before[-1:].isalpha() and piece.startswith("-")
    if is_dash or is_hyphen:
        return True  # "Total - 72", "Total-72"
    many = variables or re.search(r"[<>]|\\[lg]e(?![a-z])|\A\\?[\[({]|\\mathbb", piece)
    if many and _RESTRICTS.search(text.replace(piece, " ")):
        return True
    if not variables:
        return False
    if re.search(r"[-/]\Z", piece):
        return True  # "x^2-area"
    return bool(_PROPERTY.search(before) or _PROPERTY_BEHIND.search(behind))


# Before several values or a whole object, such words name something else: "the mean of 2, 4, 6".
_OF_SEVERAL = re.compile(
    r"(?i)\b(?!(?:values?|solutions?|interval|range|domain|pairs?|"
    r"points?)\s+of\b)(?:power\s+)?\w+\s+of"
    r"\s*(?:the\s+)?\Z"
)
_SEVERAL_VALUES = re.compile(r"\A(?:[\[({]|\\[{(\[]|\\(?:begin|langle|left)(?![a-z]))|,(?!\d{3})")
_NEARBY = re.compile(
    r"(?i)\b(?:after|before|past|near|beyond|off|from|besides?)\s*(?:the\s+\w+:?)?\s*\Z"
)


def acts_on_list(text: str) -> bool:
    """Return whether the words before a list name something else: "the mean of 2, 4, 6"."""
    head = re.split(r"[\d\\(\[{]", text, maxsplit=1)[0]
    return _OF_SEVERAL.search(head) is not None


def _names_another(before: str, behind: str, piece: str) -> bool:
    r"""Return whether an expression is mentioned only to name something else: "the next integer
    after 2\sqrt{5}", "the mean of 2, 4, 6".
    """
    if _NEARBY.search(before) and not behind.strip(" .!$"):
        return True
    return bool(_SEVERAL_VALUES.search(piece) and _OF_SEVERAL.search(before))


def _acts_on(before: str, piece: str, variables: frozenset[str]) -> bool:
    """Return whether the words before an expression change it: "the slope of 2x", "sinh(72)"."""
    if variables and _ACTS_ON_ALGEBRA.search(before):
        return True
    opening = re.match(r"\(|\\begin", piece)
    called = before + opening[0] if opening else before
    acts = ACTS.search(before) or ACTS.search(called)
    if acts is None:
        return False
    return not re.search(r"\b(?:is|are)\b", before[acts.start() :])


def _loses_a_sign(text: str, pieces: list[str], piece: str) -> bool:
    """Return whether a sign would be removed together with the words: "72 eggs - x", "x^2 - area".

    The slash of "miles/hour" and a dash do not count.
    """
    if re.search(r"\A[+*/^<>]|\s[-+]\Z|[*^<>]\Z", piece) or DIVIDED.search(text):
        return True
    if re.search(r"\s[-/]\s+[^\W\d]|\A\s*/", text.replace(piece, "")):
        return True
    introduced = re.search(r"\b(?:is|are)\s*\Z", text.partition(piece)[0])
    start = pieces.index(piece) if introduced and piece in pieces else 0
    currency = pieces[:2] == ["-", piece]
    for beside in pieces[start:]:
        words = beside[1:] if currency else beside
        if beside not in (piece, "-", "/") and re.search(r"[-+*/^<>=!~]", words):
            return True
    return False
