"""The words that decide what an answer says: hedges, negations, and words that change a number."""

import re
import unicodedata
from enum import StrEnum

from r1_recipes.verification.number_words import COUNTS, FOREIGN_COUNTS


class Refusal(StrEnum):
    """Why an answer gets a reward of 0, as ``log_extra`` shows it."""

    NO_ANSWER = "no answer in the format"
    INSIDE = "answer inside the reasoning, or in blocks that contradict each other or never close"
    TOO_LONG = "too long"
    SEVERAL = "several different answers"
    HEDGE = "hedge"
    QUESTION = "question mark"
    CHANGED = "a word changes the value"
    CHAIN = "chain of equations"
    HOSTILE = "power tower, or far longer or deeper than the reference answer"
    STRANGE = "digits of another script or control characters"
    UNREADABLE = "no expression found"
    DIFFERENT = "differs from the reference answer"
    UNEVALUATED = "a task instead of its result"
    COPIED = "copied out of the question"
    SLOW = "took too long to compare"
    HURRIED = "not judged: other answers of the batch took its time"
    GOLD = "the reference answer is empty, prose or a question"


_NOTHING = "(?!)"  # matches no text
# Refusal, whole words in upper or lower case, and signs or parts of words.
_LEXICON = (
    (Refusal.QUESTION, _NOTHING, "[?？¿]"),
    # alternatives
    (Refusal.HEDGE, r"(?<!\\)(?:or|nor|either|neither|oder|ou|versus|vs)(?!\})", "或|还是"),
    # negation
    (
        Refusal.HEDGE,
        r"not no(?!\.) never non none cannot without wrong incorrect false untrue except "
        r"excluding excluded exclude besides but instead barring "
        r"(?:any|every|no)(?:thing|where)\ssave "
        r"nicht kein\w* weder ohne falsch pas sauf ni sans faux não falso incorrecto nie "
        r"niet inte ikke değil не không "
        r"tranne behalve minder\sdan meer\sdan bukan kaum "
        r"rul(?:e|ed|ing)\sout ignoring\sthe\ssign etc "
        r"such\sas among\sothers and\sso\son for\sexample "
        r"other\sthan rather\sthan apart\sfrom aside\sfrom",
        r"n't\b|\bun-(?=\d)|不(?!同|等式)|非|没|错|除|間違|ではない|아님|नहीं|ليس",
    ),
    # doubt
    (
        Refusal.HEDGE,
        r"maybe perhaps possibly probably might may\sbe could\sbe guess\w* unsure unknown "
        r"depend\w* unless hardly impossible "
        r"mistake fails? extraneous reject(?:ed|s)? discard\w* disregard\w* eliminated invalid "
        r"inadmissible oops mistaken disprov\w* contradict\w* violat\w* counter-?examples? trap "
        r"(?<!no\s)doubt\w* "
        r"spurious refuted unsatisfying misses (?:under|over)estimates? flawed forgetting "
        r"too\s(?:big|small|large|high|low|much|many|little|few) vielleicht "
        r"wohl peut-être quizás tal\svez talvez forse",
        "可能|也许",
    ),
    # condition
    (
        Refusal.HEDGE,
        r"if(?!\.) else otherwise provided sometimes in\s(?:some|certain|most)\scases "
        r"for\s(?:odd|even|prime|composite|positive|negative|large|small)\s[a-z]",
        _NOTHING,
    ),
    # comparison
    (
        Refusal.CHANGED,
        r"(?:less|more|greater|fewer|higher|lower|larger|smaller)\sthan (?<!\\)over under "
        r"above below beneath beyond exceed\w* between bounded\sby dominated\sby "
        r"majori[sz]ed\sby onwards? (?:and|or)\s(?:up|down)wards? "
        r"outside less(?=\s+\d) "
        r"at\s(?:least|most) almost nearly short\sof far\sfrom off\sby asymptotically "
        r"(?<!add\s)(?<!adds\s)(?<!adding\s)up\sto(?=\s+[\d\\]) "
        r"(?:mehr|weniger|größer|kleiner)\sals mindestens höchstens (?:mayor|menor)\sque "
        r"(?:über|unter)(?=\s+\d) "
        r"presque casi quasi knapp bijna nästan prawie fast(?=\s+\d) à\speine al\smenos "
        r"au\s(?:moins|plus) (?:upper|lower)\sbounds? "
        r"(?<=\d\s)(?:max|maximum|minimum|tops) in\sdebt "
        r"e\sto\sthe in\sthe\sred (?<=\d\s)BCE? orders\sof\smagnitude decimal\spoint infinitely "
        r"(?:times|%)\s(?:small|slow|cheap|short|light|low|weak|young|narrow|thinn|few)er "
        r"other\s(?:end|side) "
        r"(?:close|next|adjacent)\sto(?=\s+\d) (?:past|near|preceding|around)(?=\s+\d) "
        r"(?:one|two|three|four|five|six|prime|integer|number)\s(?:after|before)(?=\s+\d) "
        r"up\sto\s(?:an?\s|the\s)?(?:constant|sign|factor) "
        r"and\s(?:then\ssome|a\sbit|change) with\sremainder "
        r"(?:ending|ends|starting|starts|begins|beginning)\s(?:in|with)",
        r"(?<=\d)\s*(?:st|nd|rd|th)\s+(?:prime|root|power|percentile|smallest|largest|fibonacci|"
        r"triangular|even|odd|square|cube|number|digit|letter|derivative)\b|"
        "[多少大小高低]于|比\\s*\\d+[^\\d]*[大小多少高低]|近(?=\\s*\\d)|[最至][多少]|逾|超过|不到|至[少多]|以[上下]|"
        r"(?<=\d)\s*(?:多|余(?![弦切])|几|来[个人]|开外)|[少缺](?=\s*\d)",
    ),
    # operation
    (
        Refusal.CHANGED,
        r"squares?(?=\s(?:of|roots?)\b) squared cubed cubes?(?=\s(?:of|roots?)\b) (?:square|"
        r"cube|third|fourth|nth)[\s-]?roots? roots?\sof "
        r"\w*factorial tetrat\w* (?<!\\)(?:di)?(?:gamma|zeta)(?=\s+\d) "
        r"reciprocal inverse opposite negation complement plus divided multiplied "
        r"modulo minus negative negativ neg subtract "
        r"less\sone "
        r"half halves twice thrice doubl(?:ed?|ing) tripl(?:ed?|ing) treble quadrupl(?:ed?|"
        r"ing) quintupl\w+ sextupl\w+ -?fold "
        r"(?:and|one|two|three|a|-)[\s-](?:third|quarter|fourth|fifth|sixth|eighth|tenth|"
        r"hundredth|thousandth)s? "
        r"(?:third|four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand|\w+illion|"
        r"\w+tie|\w+teen)(?:th)?s(?<=[thd]{2}s) thirds "
        rf"(?:add|plus|times|mod|base|choose|remainder|to)\s(?:{COUNTS}) (?:{COUNTS}|"
        rf"\d+)\stimes(?=\s*\d) add\s\w+\sto "
        r"(?:in|de)creased\sby reduced\sby to\sthe\s(?:power|third|fourth|fifth|sixth|"
        r"seventh|eighth|ninth|tenth) revers\w+ backwards upside\sdown "
        r"recurring repeat(?:ed|ing) periodic inverted negated transposed swapped "
        r"(?:in\s)?(?:duodecimal|ternary|quaternary|quinary) percentiles? "
        r"(?:per\s)?mille promille permil gross couples? pairs\sof (?<=\d\s)score "
        r"milh(?:ão|ões) Mio Mrd triệu nghìn tỷ тысяч\w* миллион\w* "
        r"dozens? tens hundreds? thousands? \w*illi?on\w* lakhs? crores? googol myriad [bm]n "
        r"of\s(?:one|an?|1)\s(?:percent|per\scent|%) odds permille per\sthousand basis\spoints ppm "
        r"octal hex(?:adecimal)? binary successor predecessor digit\ssum "
        rf"point(?=\s(?:zero|{COUNTS})\b) "
        rf"(?<=\d\s)(?:mal|weniger|fois|vezes|volte|por|entre|per)\s(?:{FOREIGN_COUNTS}) "
        r"(?:geteilt|dividiert|multipliziert|multipli[ée]e?|multiplicado|moltiplicato)\s\w+ "
        r"(?<=\d\s)(?:divis[éeo]e?|dividido|gedeeld) умнож\w* раздел\w* плюс "
        r"anderthalb\w* dou[cz]ai?nes? docenas? halb\w* doppelt\w* "
        r"(?:zwei|drei|vier|fünf)(?:mal|fach\w*) \w*fache[ns]? "
        r"\w*wurzel Wurzel hoch\s(?:zwei|drei) Quadrat quadriert Kehrwert Hälfte "
        r"Viertel Drittel Tausend Dutzend Million(?:en)? "
        r"Milliarden mille mil moins menos? negativo demie? medi[oa] "
        r"moitié racine raíz mitad doble cuadrado "
        r"carré opposé opuesto минус",
        r"[倍半减加]|(?<=\d)\s*乘以?[一二两三四五六七八九十]|割る|곱하|나누|根号|[平立]方根|阶乘|ルート|マイナス|마이너스|"
        r"(?<=\d)[\s-]?(?:ish|odd|something)\b|"
        r"\band counting\b|(?<=\d)\s+against\b|"
        r"[一二两三四五六七八九十百千零负負欠](?=\s*[\d\\])|零下|"
        r"(?<=\d)\s*(?:[十拾打零百仟佰만억천折番]|成(?!立))|点(?=[一二三四五六七八九零])|分之|平方(?![米厘分公千])|倒数|相反数",
    ),
)
# These refuse an answer unless the reference answer contains them, too. An example and a near miss
# of each are in tests/core/verification/test_reading.py.
RULES = tuple(
    (refusal, re.compile(rf"(?i)\b(?:{'|'.join(words.split())})\b|{signs}"))
    for refusal, words, signs in _LEXICON
)
# The subject of "… is 72" says that 72 is not the answer: words that retract it, and operations on
# "it" or "the answer". Other subjects are accepted.
TAKES_BACK = re.compile(
    r"(?i)\b(?:not|never|no|wrong|incorrect|false|untrue|maybe|perhaps|possibly|probably|unless|"
    r"impossible)\b|n't\b|"
    r"\b(?:extraneous|rejected|distractor|trap|lure|decoy|tempting|bait|slip|sloppy|careless|"
    r"negligent|discarded|mistake|anything but)\b|"
    r"\b(?:answer|total|result)(?:'s)?\s+(?:squared|cubed|halved|doubled|tripled|reciprocal)\b|"
    r"\b(?:half|twice|double|square|negative|reciprocal|opposite|divided|plus|minus|"
    r"exceeds?)\b.*\b(?:it|that|this|answer|result|what|total)\b|"
    r"\b(?:one|two|three|\d+) (?:more|less|fewer) than\b|"
    r"\b(?:answer|result|it)\b.*\b(?:divided|plus|minus|times|exceeds?)\b"
)


# Words before a value in LaTeX that say that it is not the answer: "the root we must discard is",
# "twice the area is".
DENIES = re.compile(
    r"(?i)\b(?:can(?:not|'t)|could(?: not|n't)) (?:be|obtain|get|find|happen|occur|hold)\b|"
    r"\b(?:must|ha(?:ve|s) to|to)(?: be)? (?:discard|reject|exclude|remove|omit|le(?:ave|ft) out|"
    r"throw|rule)\w*|\b(?:breaks?|fail\w*|violat\w*|discarded|forbidden|excluded|rejected|"
    r"thrown away|left out|ruled out|odds)\b|"
    r"\bwhose \w+\W*\Z|"
    r"\A\W*(?:the )?(?:twice|thrice|half|double|triple|reciprocal|square|cube|(?:co)?sine|tangent|"
    r"logarithm|opposite|complement)\b"
)


def refusals(text: str) -> dict[str, Refusal]:
    """Return the words in a cleaned text that cause a refusal, in lower case, with the reason."""
    found = {}
    for refusal, pattern in RULES:
        for match in pattern.finditer(text):
            found[match[0].casefold()] = refusal
    return found


_CHOICE = re.compile(r"(?s)\(?\s*([A-J])\s*(?:[).:、\]]|\Z)(.*)")
_STYLED = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_CALLED = re.compile(
    r"(?i)\A(?:(?:the )?(?:correct )?(?:answer|option|choice)(?: is\b:?)?:?|"
    r"(?:正确的?)?(?:答案|选项)[是为:：]*|"
    r"故?选(?:项|择)?[:：]?|\[(?=[a-j]\]))\s*|"
    r"\s+is (?:the )?(?:correct|right)(?: (?:answer|option|choice))?\W*\Z"
)
_OTHER_CHOICE = re.compile(
    r"\(\s*[A-Ja-j]\s*\)|\A[A-J]+\s*\Z(?<=[A-J]{2})|\b[b-j]\s*(?:[).,:]|\Z)|[,;]\s*[a-j]\b|"
    r"\b[B-J]\b|选\s*[A-J]|[?？]|"
    r"\bA\s*(?:[.):%]|\Z|(?:is|was|are|looks|seems)\b)|[甲乙丙丁]|假的?|"
    r"'|\b(?:is|are)\W*\Z|"
    r"\b(?:or|and|then|actually|rather|sorry|scratch|changed|unlikely|eliminated|rejected|"
    r"alternatively|as well|the opposite|nope|"
    r"next|previous|wait|(?:ruled|struck|crossed|is|was|it's) (?:out|off))\b|"
    r"(?i:\A\W*(?:too|out|off|crossed|ruled|struck|gone|dismissed|discarded|removed|excluded|"
    r"fails?|"
    r"looks|seems|bad|worse|worst|never|nearly|almost|close|tempting|last)\b)"
)


def chosen(text: str) -> tuple[str, str] | None:
    """Return the letter of the option that a text begins with, A to J, and the text behind it.
    Return ``None`` if there is no option, or several.
    """
    if re.search(r"[A-Ja-j]'+\W*\Z", text) and not re.match(r"\W*'", text):
        return None  # B' is another event
    plain = _STYLED.sub(r"\1", unicodedata.normalize("NFKC", text))
    option = re.sub(r"[*_`$]+", "", plain).strip(" \t\r\n'\"。")
    option = _CALLED.sub("", option)
    if re.fullmatch(r"\(?[a-j]\)?", option):
        option = option.upper()
    match = _CHOICE.match(option)
    if match is None:
        return None
    letter, rest = match.groups()
    if _OTHER_CHOICE.search(rest) or Refusal.HEDGE in refusals(rest).values():
        return None
    # "B. C" and "B) A, D" are several letters and not an option with its text.
    if rest.strip() and not re.sub(r"\b[A-J]\b|\W", "", rest):
        return None
    return letter, rest


def chosen_letters(text: str) -> str:
    """Return the options that an answer names, in its order (``A, B and D``, ``["B", "F"]``).
    Return ``""`` if it says anything else.
    """
    if re.search(r"(?<!')\b[A-J]'", text):
        return ""  # B' is another event
    left = re.sub(
        r"""正确的?选项[是为]?|\b(?:and|answers?|options?|are|is|the)\b|[选和、,;()\[\]{}"'\s.]|\\(?=[{}])""",
        "",
        _STYLED.sub(r"\1", text),
    )
    if re.fullmatch("[A-J]+", left) and len(set(left)) == len(left):
        return left
    return ""


_YES = {"yes", "true", "correct"}
_NO = {"no", "false", "incorrect"}
_IT_IS = re.compile(r"(?i)(?:the|this|that) (?:statement|claim|assertion|proposition) is\s+")
_AGAINST_YES = re.compile(
    r"(?i)\b(?:no|not|none|never|false|cannot|un\w+|wrong|incorrect|nope|nah|nein|neither|non|"
    r"dis\w+|doubt\w*|nil|"
    r"falsch|nicht|keine?|faux|pas|falso|incorrecto|fails?|falsehood|lies?|opposite|contrary|"
    r"reverse|negative)\b|n't\b"
)
_AGAINST_NO = re.compile(
    r"(?i)\b(?:yes|true|correct|right|sure|yeah|yep|ja|oui|affirmative|sometimes|holds?|valid|so|"
    r"wahr|richtig|vraie?|verdad\w*|correcto|vero|agree|indeed)\b"
)
_IT_DOES = re.compile(r"(?i)(?:it|this|that|he|she|they|we) (?:\w+s|are|do|can|will|have)")
_OPEN = re.compile(
    r"(?i)[?？]|\b(?:or|maybe|but|if|only|perhaps|possibly|probably|depend\w*|guess|hardly|unless|"
    r"although|though|provided|whenever|sometimes|half|part|as long as|otherwise|"
    r"wait|scratch|sorry)\b"
)


def agrees(text: str, gold: str) -> bool | None:
    """Return whether an answer begins with the yes or no of the reference answer and says nothing
    against it. Return ``None`` if the reference answer is neither.
    """
    if re.match(r"\s*[-!~^/+]", text):
        return False if gold in _YES | _NO else None
    says_yes = gold in ("yes", "true")
    if not says_yes and gold not in ("no", "false"):
        return None
    text = _IT_IS.sub("", text, count=1)
    first, sign, rest = re.findall(r"(?s)\A\W*(\w*)\s*([.,;:!]?)\s*(.*)", text)[0]
    if first.casefold() not in (_YES if says_yes else _NO):
        return False
    rest = rest.strip(" .!{}")
    if not rest:
        return True
    against = _AGAINST_YES if says_yes else _AGAINST_NO
    if not sign or against.search(rest) or _OPEN.search(rest):
        return False
    # One or two words behind it are not an explanation: "yes, nonsense". But "yes, it does" is.
    if says_yes and _IT_DOES.fullmatch(rest):
        return True
    return len(rest.split()) > 2


_SUBJECT = (
    r"(?:(?:so|thus|hence|therefore),? )?(?:(?:(?:january|february|march|april|may|june|july|"
    r"august|september|"
    r"october|november|december|student|person|day|figure|case|option|team|player|number) \d+\w*|"
    r"it|this|that|he|she|they|[a-z]|(?:the|my) (?:final |correct )?answer|"
    r"(?:the|this) (?:student|person|day|function|shape|curve|graph|conic|figure|name|winner|"
    r"month|colou?r|word|city|"
    r"country|equation|lines?|series|thief|one)"
    r"(?: of (?:the )?\w+)?)? ?(?:is|are|was|were|'s|represents|describes|falls on|lands on) "
    r"|it will be |the (?:student|person|runner|driver|player|team|city|country) with the "
    r"(?:greatest|highest|largest|best|fastest|lowest|smallest|least) (?:[a-z]+ ){1,2}is "
    r")?(?:(?:on|an?|the|student) )?"
)
_SUBJECT_IN_CHINESE = (
    r"(?:(?:那天|今天|这天|三角形\s*[A-Za-z]{3}\s*|该?(?:说法|命题|结论)|它|这)\s*是\s*)?"
)

_GREATEST = (
    r"(?: function| number| (?:is|has|are|have) the (?:greatest|largest|highest|fastest|"
    r"biggest|best)"
    r"(?: (?:average|total|number|speed|score|value|rate|amount|height|weight|age|share|time|"
    r"area|volume)){0,2})?"
)


def says(text: str, gold: str) -> bool:
    """Return whether a sentence says that "it", or the greatest, is a reference answer in words:
    ``It is Monday.``, ``Bob is the fastest``.
    """
    sign = re.search(r"[!~^/+<>=]|(?:^|[\s(])-|-(?:\s|\Z)", text.rstrip("!"))
    if sign and not re.search(r"[-!~^/+<>=]", gold):
        return False  # a sign at a word may negate it
    sentence = re.sub(r"[\"*_$]", "", text).strip(" .!").casefold()
    name = re.escape(gold)
    if re.fullmatch(rf"{_SUBJECT_IN_CHINESE}{name}的?[。]?", sentence):
        return True
    plain = " ".join(re.findall(r"'s\b|[\w,]+", sentence))
    return re.fullmatch(_SUBJECT + name + _GREATEST, plain) is not None
