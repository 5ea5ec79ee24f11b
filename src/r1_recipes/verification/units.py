"""Units: how they are written after a number, and which units a text names. An answer with a
different unit from the reference answer is wrong.
"""

import re

from r1_recipes.verification.signs import table

# Symbols of two letters or more. A single letter is a unit only if it is styled or separate, or if
# the reference answer has no variables.
UNITS = (
    "mm|cm|dm|km|nm|ft|in|yd|mi|kg|mg|lbs?|oz|ms|ns|secs?|mins?|hrs?|m[lL]|c[lL]|gal|k?N|"
    "[kM]J|[kM]W|k?Wh|[km]V|m?Ah|mA|[kMG]?Hz|[khM]?Pa|atm|"
    "[kM]?eV|m?mol|k?cal|[kKMGT]B|Nm|rad|mph|kph|km/?h|rpm|dB|erg|cc|[pf]m|ng|bar|knots?"
)
# Without a space, 2mV is a product of variables.
_SPACED = rf"{UNITS}|[munpkMGT](?:mol|eV|[JWVAFTC])|m[NT]"
LETTERS = "[mgshlLNJWVAKCF]"
STYLE = (
    r"\\(?:text|textnormal|textrm|textbf|textit|mathrm|mathbf|mathit|mbox|emph|boldsymbol|bm|"
    r"underline|rm|bf)"
)
_EXPONENT = r"(?:\s*\^\s*\{?\s*-?[123]\s*\}?)?"
TIMES = r"(?:\s|~|/|·|\\cdot(?![A-Za-z])|\\[,;: ])"
_ATOM = rf"(?:\\mu\s*)?(?:{_SPACED}|{LETTERS}|[mkMG]?\\Omega){_EXPONENT}"
UNIT = rf"{_ATOM}(?:{TIMES}+\(?{_ATOM}\)?)*"
STYLED_UNIT = rf"{STYLE}\s*\{{[\s~]*{_ATOM}(?:{TIMES}*{_ATOM})*\.?[\s~]*\}}{_EXPONENT}"
GLUED = "|".join(
    unit for unit in UNITS.split("|") if unit not in ("k?N", "mg", "in", "cc")
)  # written after a number without a space

_END = re.compile(
    rf"(?:(?<=\d)\s+({UNIT})|(?:(?<=[}}%)])|(?<=\\pi))\s+((?:{GLUED})(?:{TIMES}+{_ATOM})*)|"
    rf"(?<=\d)((?:{GLUED})(?:\s*/\s*{UNIT})?))(?<!L\^2)(?<!L\^\{{2\}})\.?\Z"
)
_AFTER = re.compile(
    rf"(?<=[\d}}])(?:\s+{UNIT}|[ms](?=\^|[23])|\s*(?:{GLUED}))"
    rf"(?:\s*\^\s*\{{?-?[123]\}}?|[23](?!\d))?(?:\s*/\s*{UNIT})?(?=\.?\s*(?:\Z|[,;=)]|"
    rf"\\approx|[^\W\d_]{{3,}}|\())\.?"
)
# A symbol and its words, as patterns.
_WORDS_TEXT = r"""
m meters? metres? metros? mètres? 米
km kilometers? kilometres? 千米 公里
cm centimeters? centimetres? 厘米
mm millimeters? millimetres? 毫米
mi miles?
ft foot feet
in inch(?:es)?
yd yards?
g grams? 克
kg kilograms? 千克 公斤
mg milligrams?
oz ounces?
L liters? litres? 升
mL milliliters? millilitres? 毫升
s seconds? sekunden? secondes? segundos? secondi 秒
min minutes? minuten? minutos? minuti 分钟
h hours? stunden? heures? horas? ore 小时
d days? tagen? jours? días? giorni 天
wk weeks? 周
mo months? 个月
jin (?<!公)斤
li (?<![公海])里
ly light[\s-]?years? 光年
yr years? 年
$ dollars? usd 美元
cent cents? ¢
€ euros? eur 欧元
¥ yuan (?<![公美欧日港])元
JPY yen 円 日元
degC celsius
degF fahrenheit
rad radians?
grad gradians?
lb pounds?
N newtons?
J joules?
W watts?
V volts?
A amp(?:ere)?s?
\Omega ohms?
erg ergs?
gal gallons?
qt quarts?
pt pints?
t tonnes? tons? 吨
knot knots?
decade decades?
century century centuries
dime dimes?
nickel nickels?
penny penny pennies
jiao 角
fen 分(?!钟)
Hz hertz
Pa pascals?
B bytes?
C coulombs?
mol moles?
acre acres?
ha hectares?
cup cups?
tbsp tablespoons?
tsp teaspoons?
nm nanometers? nanometres?
ug micrograms?
angstrom å [aå]ngstr[oö]ms?
"""
_WORDS = [line.split() for line in _WORDS_TEXT.strip().splitlines()]
_SYMBOL_OF_GROUP = {f"u{index}": words[0] for index, words in enumerate(_WORDS)}
_NAMED_WORDS = "|".join(
    f"(?P<u{index}>{'|'.join(words[1:])})" for index, words in enumerate(_WORDS)
)
_PREFIXES = table(
    """
kilo=k mega=M giga=G tera=T peta=P exa=E hecto=h deci=d centi=c milli=m micro=u nano=n pico=p
femto=f atto=a nautical=n
"""
)
_CHINESE_PREFIXES = table("毫=m 微=u 百=h 厘=c 千=k 兆=M 纳=n 皮=p")
_WORD = (
    r"(?P<power>square[ -]|cubic[ -]|sq\.? ?|平方|立方)?"
    rf"(?:(?P<prefix>{'|'.join(_PREFIXES)})[ -]?|(?P<zh>[{''.join(_CHINESE_PREFIXES)}]))?"
    rf"(?:{_NAMED_WORDS})"
)
# Text that joins the words of one unit: watt hours, metres per second, miles/hour.
_LINK = re.compile(r"[\s\-]*(?P<per>per|/|a(?=\s)|each|every|每)?[\s\-]*", re.IGNORECASE)
_UNIT_WORD = re.compile(rf"(?<![A-Za-z]){_WORD}(?![A-Za-z])", re.IGNORECASE)
_SYMBOL = re.compile(
    rf"(?:(?<=\d)|(?<=\d[)}}%])|(?<=[)}}%])|(?<=\\pi))\s*(?P<per>/|per )?\s*(?!in\s|A\s|a\s)"
    rf"(?:(?<=\s)(?P<spaced>{UNIT})|"
    rf"(?P<glued>(?:{GLUED})(?:\s*\^?[23](?!\d))?(?:\s*/\s*{UNIT})?))(?![A-Za-z])"
    r"(?<!L\^2)(?<!L\^\{2\})(?=\.?\s*(?:\Z|[,;)=]|\\approx|(?:[^\W\d_]{2,}[\s.]*)+\Z))"
)
_CURRENCY = table("€=€ £=£ ¥=¥ ￥=¥ ₹=₹ ₽=₽ ₩=₩ ¢=cent")
_DEGREES = re.compile(r"\\circ\s*\}?\s*(?:\\(?:text|mathrm)\s*\{\s*)?([CF])(?![A-Za-z])")
_ALIASES = table("sec=s secs=s mins=min hr=h hrs=h lbs=lb mph=mi/h kph=km/h kmh=km/h l=L ml=mL")
_DOLLARS = re.compile(r"\A\W*?\\\$|\A-?\$\s*[\d.,]+(?!.*\$)|[\d.]\\\$")
# Signs of units as symbols or LaTeX, replaced in this order.
_SPELLINGS = {
    "·": r"\cdot ",
    "μ": r"\mu ",
    "µ": r"\mu ",
    "²": "^2",
    "³": "^3",
    "⁻¹": "^{-1}",
    "⁻²": "^{-2}",
    r"\(": "",
    r"\)": "",
    r"\%": "%",
}


def without_unit(text: str, every: bool = False) -> str:
    """Return a text without the unit of its number. Only a unit at the end is removed, if nothing
    else has letters; with ``every``, all units are removed.
    """
    if every:
        return _AFTER.sub(" ", text)
    bare = _END.sub("", text)
    if bare == text or re.search(r"(?<![\\A-Za-z])[A-Za-z]", bare):
        return text
    return bare.strip()


def is_unit(word: str) -> bool:
    """Return whether a word by itself is a unit."""
    return bool(_UNIT_WORD.fullmatch(word) or re.fullmatch(UNITS, word))


def units_of(text: str) -> tuple[str, ...]:
    """Return the units that a text names, in order. Each is spelled by its factors, such as ``km1
    h-1``. Apples are not a unit.
    """
    text = text.strip(" .。")
    degrees = text.replace("°", r"\circ ").replace("℃", r"\circ C").replace("℉", r"\circ F")
    if temperature := _DEGREES.search(degrees):
        return (f"deg{temperature[1]}",)
    plain = re.sub(rf"{STYLE}\s*\{{([^{{}}]*)\}}", r" \1 ", text)
    for sign, spelling in _SPELLINGS.items():
        plain = plain.replace(sign, spelling)
    plain = re.sub(r"[$*`~]|\\[,;: !]|\s+", " ", plain)
    plain = re.sub(r"(?<=\d)(?:\.\s|\s?\(|-(?=[A-Za-z]))|(?<=\d)\s*[个個]", " ", plain)
    plain = " ".join(plain.split()).strip(" .")
    plain = re.sub(r"(?<=\d) (?=/)|\bin (?=[a-z]{3})", "", plain)
    if re.search(r"\\circ\s*\}?\s*\Z|\d\s*degrees?\Z|°\Z", plain):
        return ("deg",)
    units = [f"{_CURRENCY[sign]}1" for sign in text if sign in _CURRENCY]
    for symbol in _SYMBOL.finditer(plain):
        unit = symbol["spaced"] or symbol["glued"]
        units.append(_factors(f"/{unit}" if symbol["per"] else unit))
    words = _words_of(plain)
    if not words and _DOLLARS.search(text):
        units.insert(0, "$1")
    return tuple(dict.fromkeys(units + words))


# Words that may follow the number: "72 in total", "72 (approximately)". Any other word names a
# different thing.
_NO_THING_TEXT = """
in of to is are was as at by for on or and the total all altogether exactly approximately about
around only each left per so thus which therefore because since when where if with from degrees
degree units unit right east west north south up down more long wide tall high old away apart
later ago upward downward 左右 的 个 是
"""
_NO_THING = frozenset(_NO_THING_TEXT.split())


def names_another(cleaned: str, gold: str) -> bool:
    """Return whether an answer without a known unit has a word behind its number that the reference
    answer does not have: 72 weekends.
    """
    behind = re.search(r"\d[\s)}]*([^\W\d_]+|%)", cleaned)
    if behind is None or behind[1] in gold:
        return False
    word = behind[1]
    if re.fullmatch("%|st|nd|rd|th", word):
        return True
    is_word = len(word) > 2 or not word.isascii()
    return is_word and word.casefold() not in _NO_THING


_TOKEN = re.compile(
    r"(?P<word>[^\W\d_]+)|\s+|\^?\s*\{?-?[123]\}?(?!\d)|[²³/·]|"
    r"\\(?:cdot|mu|Omega|circ|[,;: ])|[{}~$.]"
)


def changes_unit(cleaned: str, gold: str) -> bool:
    """Return whether a word beside an answer's unit makes another one of it, or another thing: 5
    electron volts, 15 arc minutes, 12 m deeper, \\$45 off.
    """
    number = re.search(r"\d(?:[\d.,]*\d)?", cleaned)
    if number is None:
        return False
    rest, known = cleaned[number.end() :], gold.casefold()
    while token := _TOKEN.match(rest):
        rest = rest[token.end() :]
        word = (token["word"] or "").casefold().lstrip("个個")
        unit = _UNIT_WORD.match(word)
        while unit and not word.isascii():
            word = word[unit.end() :]  # 元优惠券
            unit = _UNIT_WORD.match(word)
        if word and not is_unit(token["word"]) and not _is_of_unit(word, known):
            return True
        if word in _NO_THING and word not in ("per", "degrees", "degree"):
            return False  # what follows is a sentence
    return rest.startswith(("%", "⁻", "⁺")) and rest[0] not in gold


_OF_UNIT_TEXT = "square sq cubic nautical n am pm and hr hrs text"
_OF_UNIT = _NO_THING.union(_OF_UNIT_TEXT.split())


def _is_of_unit(word: str, gold: str) -> bool:
    if word in _OF_UNIT or word in gold:
        return True
    return bool(re.fullmatch(UNIT, word) or re.fullmatch(LETTERS, word, re.IGNORECASE))


def _words_of(plain: str) -> list[str]:
    """Return the units that are written in words. The words of one product or quotient are one
    unit: watt hours, metres per second per second.
    """
    groups: list[str] = []
    end = 0
    for word in _UNIT_WORD.finditer(plain):
        gap = plain[end : word.start()]
        end = word.end()
        per = re.search(r"(?:\bper|/|每)\s*\Z", plain[: word.start()], re.IGNORECASE)
        unit = _symbol_of(word)
        if per:
            unit = f"/{unit}"
        if groups and _LINK.fullmatch(gap) and (gap or per):
            groups[-1] += f" {unit}"
        else:
            groups.append(unit)
    return [_factors(group) for group in groups]


def _symbol_of(word: re.Match[str]) -> str:
    """Return the symbol of a unit in words, with its prefix and its power: ``km^2``."""
    symbol = _SYMBOL_OF_GROUP[str(word.lastgroup)]
    if word["prefix"]:
        symbol = _PREFIXES.get(word["prefix"].casefold(), "") + symbol
    if word["zh"]:
        symbol = _CHINESE_PREFIXES[word["zh"]] + symbol
    power = word["power"]
    if not power:
        return symbol
    is_cubic = power.casefold().startswith(("cubic", "立方"))
    return symbol + ("^3" if is_cubic else "^2")


_FACTOR = re.compile(
    r"(/)?\s*\(?((?:\\mu\s*)?(?:[mkMG]\\Omega|\\?[A-Za-z$€¥£]+))\s*\^?\s*\{?\s*"
    r"(-?[123])?\s*\}?\)?"
)


def _factors(unit: str) -> str:
    """Return a unit's factors with their exponents in one order: m/s is m s^-1, N m is N·m."""
    powers: dict[str, int] = {}
    sign = 1
    unit = re.sub(r"\\cdot(?![A-Za-z])", " ", unit)
    unit = re.sub(r"\\mu(?![A-Za-z])\s*", "u", unit)
    unit = re.sub(r"[A-Za-z]+", lambda word: _ALIASES.get(word[0], word[0]), unit)
    for slash, symbol, exponent in _FACTOR.findall(unit):
        if slash:
            sign = -1
        powers[symbol] = powers.get(symbol, 0) + sign * int(exponent or 1)
    return " ".join(f"{symbol}{power}" for symbol, power in sorted(powers.items()))
