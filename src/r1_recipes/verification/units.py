r"""Units: how they are written after a number, and which one a text names. An answer with another unit than the gold's is wrong."""

import re

# Symbols of two letters or more; a letter alone is a unit only if it is styled or stands apart, or if the gold has no variables.
UNITS = (
    "mm|cm|dm|km|nm|ft|in|yd|mi|kg|mg|lbs?|oz|ms|ns|secs?|mins?|hrs?|m[lL]|c[lL]|gal|k?N|[kM]J|[kM]W|k?Wh|[km]V|mA|[kMG]?Hz|[kM]?Pa|atm|"
    "[kM]?eV|m?mol|k?cal|[kKMGT]B|Nm|rad|mph|kph|km/?h|rpm|dB|erg|cc|[pf]m|ng|bar|knots?"
)
_SPACED = rf"{UNITS}|[munpkMGT](?:mol|eV|[JWVAFTC])|m[NT]"  # a variable's product, 2mV, if there is no space
LETTERS = "[mgshlLNJWVAKCF]"
STYLE = r"\\(?:text|textnormal|textrm|textbf|textit|mathrm|mathbf|mathit|mbox|emph|boldsymbol|bm|underline|rm|bf)"
_EXPONENT = r"(?:\s*\^\s*\{?\s*-?[123]\s*\}?)?"
SPACES = r"(?:\s|~|\\[,;: ])*"
TIMES = r"(?:\s|~|/|·|\\cdot(?![A-Za-z])|\\[,;: ])"
_ATOM = rf"(?:\\mu\s*)?(?:{_SPACED}|{LETTERS}|\\Omega){_EXPONENT}"
UNIT = rf"{_ATOM}(?:{TIMES}+\(?{_ATOM}\)?)*"
STYLED_UNIT = rf"{STYLE}\s*\{{[\s~]*{_ATOM}(?:{TIMES}*{_ATOM})*\.?[\s~]*\}}{_EXPONENT}"
GLUED = "|".join(unit for unit in UNITS.split("|") if unit not in ("k?N", "mg", "in", "cc"))  # written after a number without a space

_END = re.compile(
    rf"(?:(?<=\d)\s+({UNIT})|(?:(?<=[}}%)])|(?<=\\pi))\s+((?:{GLUED})(?:{TIMES}+{_ATOM})*)|"
    rf"(?<=\d)((?:{GLUED})(?:\s*/\s*{UNIT})?))(?<!L\^2)(?<!L\^\{{2\}})\.?\Z"
)
_AFTER = re.compile(
    rf"(?<=[\d}}])(?:\s+{UNIT}|[ms](?=\^|[23])|\s*(?:{GLUED}))"
    rf"(?:\s*\^\s*\{{?-?[123]\}}?|[23](?!\d))?(?:\s*/\s*{UNIT})?(?=\.?\s*(?:\Z|[,;=)]|\\approx|[^\W\d_]{{3,}}|\())\.?"
)
_WORDS = {
    "m": "meters? metres? 米",
    "km": "kilometers? kilometres? 千米 公里",
    "cm": "centimeters? centimetres? 厘米",
    "mm": "millimeters? millimetres? 毫米",
    "mi": "miles?",
    "ft": "foot feet",
    "in": "inch(?:es)?",
    "yd": "yards?",
    "g": "grams? 克",
    "kg": "kilograms? 千克 公斤",
    "mg": "milligrams?",
    "oz": "ounces?",
    "L": "liters? litres? 升",
    "mL": "milliliters? millilitres? 毫升",
    "s": "seconds? sekunden? 秒",
    "min": "minutes? minuten? 分钟",
    "h": "hours? stunden? 小时",
    "d": "days? tagen? 天",
    "wk": "weeks? 周",
    "mo": "months? 个月",
    "yr": "years? 年",
    "$": "dollars? usd",
    "cent": "cents? ¢",
    "€": "euros? eur",
    "¥": "yuan 元 yen",
    "degC": "celsius",
    "degF": "fahrenheit",
    "rad": "radians?",
    "grad": "gradians?",
    "lb": "pounds?",
    "N": "newtons?",
    "J": "joules?",
    "W": "watts?",
    "V": "volts?",
    "A": "amp(?:ere)?s?",
    r"\\Omega": "ohms?",
    "erg": "ergs?",
    "gal": "gallons?",
    "qt": "quarts?",
    "pt": "pints?",
    "t": "tonnes? tons? 吨",
    "knot": "knots?",
    "decade": "decades?",
    "century": "century centuries",
    "dime": "dimes?",
    "nickel": "nickels?",
    "penny": "penny pennies",
    "jiao": "角",
    "fen": "分(?!钟)",
    "Hz": "hertz",
    "Pa": "pascals?",
    "B": "bytes?",
    "C": "coulombs?",
    "mol": "moles?",
    "acre": "acres?",
    "ha": "hectares?",
    "cup": "cups?",
    "tbsp": "tablespoons?",
    "tsp": "teaspoons?",
    "nm": "nanometers? nanometres?",
    "ug": "micrograms? μg",
}
_NAMED = re.compile(
    r"(?<=[\d})%])\s*\(?(?P<power>square|cubic)?\s*(?:degrees?\s+)?(?P<prefix>kilo|mega|giga|deci|centi|milli|micro|nano|pico|nautical )?"
    + "(?:" + "|".join(f"(?P<u{index}>{'|'.join(words.split())})" for index, words in enumerate(_WORDS.values())) + ")"
    r"(?![A-Za-z])(?:\s*(?:per|/)\s*(?P<per>second|minute|hour|day))?",
    re.IGNORECASE,
)  # fmt: skip
_BEFORE = re.compile(r"\A\W*?(?P<sign>\\\$|[€£¥])\s*[\d.]")
_DEGREES = re.compile(r"\\circ\s*\}?\s*(?:\\(?:text|mathrm)\s*\{\s*)?([CF])(?![A-Za-z])")
_ALIASES = {
    "sec": "s",
    "secs": "s",
    "mins": "min",
    "hr": "h",
    "hrs": "h",
    "lbs": "lb",
    "mph": "mi/h",
    "kph": "km/h",
    "kmh": "km/h",
    "l": "L",
    "ml": "mL",
}
_PREFIXES = {
    "kilo": "k",
    "mega": "M",
    "giga": "G",
    "deci": "d",
    "centi": "c",
    "milli": "m",
    "micro": "u",
    "nano": "n",
    "pico": "p",
    "nautical ": "n",
}
_PER = {"second": "s", "minute": "min", "hour": "h", "day": "d"}


def without_unit(text: str, every: bool = False) -> str:
    """A text without the unit of its number: at the end alone, where nothing but the unit has letters; ``every``: wherever one follows."""
    if every:
        return _AFTER.sub(" ", text)
    bare = _END.sub("", text)
    return text if bare == text or re.search(r"(?<![\\A-Za-z])[A-Za-z]", bare) else bare.strip()


def unit_of(text: str) -> str | None:
    """The unit of a text's number, by its factors and in one spelling (``km1 h-1``), or ``None``: apples are no unit."""
    text = text.strip(" $.")
    if temperature := _DEGREES.search(text.replace("°", r"\circ ").replace("℃", r"\circ C").replace("℉", r"\circ F")):
        return f"deg{temperature[1]}"
    plain = (
        re.sub(rf"{STYLE}\s*\{{([^{{}}]*)\}}", r" \1", text).replace("~", " ").replace("·", r"\cdot ").replace("²", "^2").replace("³", "^3")
    )
    plain = re.sub(r"\\[,;: ]|\s+", " ", plain).strip(" $.")
    if re.search(r"\\circ\s*\}?\s*\Z|\d\s*degrees?\Z|°\Z", plain):
        return "deg"
    if found := _END.search(plain):
        return _factors(found[1] or found[2] or found[3])
    if named := _NAMED.search(plain):
        symbol = next(symbol for index, symbol in enumerate(_WORDS) if named[f"u{index}"])
        power = {"square": "^2", "cubic": "^3"}.get((named["power"] or "").casefold(), "")
        return _factors(
            _PREFIXES.get((named["prefix"] or "").casefold(), "")
            + symbol
            + power
            + (f"/{_PER[named['per'].casefold()]}" if named["per"] else "")
        )
    sign = _BEFORE.match(plain)
    return sign["sign"].strip("\\") + "1" if sign else None


def _factors(unit: str) -> str:
    """A unit's factors with their exponents, in one order: m/s is m s^-1, N m is N·m."""
    powers: dict[str, int] = {}
    below = 1
    unit = re.sub(r"[A-Za-z]+", lambda word: _ALIASES.get(word[0], word[0]), re.sub(r"\\cdot(?![A-Za-z])", " ", unit))
    for slash, symbol, exponent in re.findall(r"(/)?\s*\(?((?:\\mu\s*)?\\?[A-Za-z$€¥]+)\s*\^?\s*\{?\s*(-?[123])?\s*\}?\)?", unit):
        below = -1 if slash else below
        powers[symbol] = powers.get(symbol, 0) + int(exponent or 1) * below
    return " ".join(f"{symbol}{power}" for symbol, power in sorted(powers.items()))
