"""Read dates and times of day into numbers, so that ``May 5`` equals ``5th May`` and not ``June
5``.
"""

import re
import unicodedata

_NAMES = """
january jan januar jänner janvier enero gennaio
february feb februar février febrero febbraio
march mar märz mär mars marzo
april apr avril abril aprile
may mai mayo maggio
june jun juni juin junio giugno
july jul juli juillet julio luglio
august aug août agosto
september sept sep septembre septiembre settembre
october oct oktober okt octobre octubre ottobre
november nov novembre noviembre
december dec dezember dez décembre diciembre dicembre
"""
_MONTH = {
    name: number
    for number, names in enumerate(_NAMES.strip().splitlines(), 1)
    for name in names.split()
}
_MONTHS = "|".join(sorted(_MONTH, key=len, reverse=True))
_DAY, _OF = r"(?P<day>\d{1,2})(?:\.|st|nd|rd|th|er|º)?", r"(?:(?:of|de|di)\s+)?"
_YEAR = rf"(?:,?\s*{_OF}(?P<year>\d{{4}}))?"
_BEFORE = r"(?:(?:on|am|the|den|le|el|il)\s+)*"
_WRITTEN = (
    rf"{_BEFORE}{_DAY}\s*{_OF}(?P<month>{_MONTHS})\.?{_YEAR}",
    rf"{_BEFORE}(?P<month>{_MONTHS})\.?\s+{_DAY}{_YEAR}",
    rf"{_BEFORE}(?P<month>{_MONTHS})\.?,?\s+{_OF}(?P<year>\d{{4}})",
    r"(?P<year>\d{4})([-./])(?P<month>\d{1,2})\2(?P<day>\d{1,2})",
    r"(?:(?P<year>\d{4})年)?(?P<month>\d{1,2})月(?:(?P<day>\d{1,2})[日号])?",
)
_DATES = tuple(re.compile(pattern) for pattern in _WRITTEN)
# Which number is the month depends on the country, so such a date is compared as text.
_AMBIGUOUS = re.compile(
    r"(?:am\s+)?\d{1,2}\.\s?\d{1,2}\.\s?(?:\d{4}|\d{2})|\d{1,2}/\d{1,2}/\d{4}|\d+(?:-\d+){2,}"
)
_CLOCK = re.compile(
    r"(?:at\s+)?(?P<hour>\d{1,2})(?::\s?(?P<minute>\d{2}))?\s*"
    r"(?P<half>(?P<am>a\.?\s?m\.?|in the morning)|p\.?\s?m\.?|in the afternoon|"
    r"(?P<evening>in the evening)|(?P<noon>noon))?(?(minute)|(?<=[.mngo]))"
)


def is_date(text: str) -> bool:
    """Return whether a text is nothing but a date, in digits or with a month's name: 2. März 2024,
    May 5, 02.03.2024, 3/2/2024.
    """
    return moment(text) is not None and _CLOCK.fullmatch(text.strip().casefold()) is None


def moment(text: str) -> tuple[object, ...] | None:
    """Return what a date or a time of day says, or ``None`` if a text is neither.

    A date is (year, month, day), with ``None`` for what is missing. It is (its text,) if the order
    of its numbers differs between countries. A time is (minutes since midnight, whether morning or
    afternoon is known).
    """
    # Not IGNORECASE: it takes the Turkish letters \u0130 and \u0131 for an i.
    text = unicodedata.normalize("NFKC", text.strip()).casefold()
    for pattern in _DATES:
        if date := pattern.fullmatch(text):
            named = date.groupdict()
            month, day = named["month"], named.get("day")
            month_number = _MONTH.get(month) or int(month)
            return (named.get("year"), month_number, int(day) if day else None)
    if _AMBIGUOUS.fullmatch(text):
        return (re.sub(r"\s", "", text),)
    clock = _CLOCK.fullmatch(text)
    return _time_of_day(clock) if clock else None


def _time_of_day(clock: re.Match[str]) -> tuple[int, bool] | None:
    """Return what a time of day says, or ``None`` if there is no such time."""
    hour, minute = int(clock["hour"]), int(clock["minute"] or 0)
    if hour > 24 or minute > 59:
        return None
    if clock["am"] and hour > 12:
        return None
    if (clock["noon"] and hour != 12) or (clock["evening"] and hour == 12):
        return None
    known = bool(clock["half"]) and hour <= 12
    if known:
        hour %= 12
        if not clock["am"]:
            hour += 12
    return (60 * hour + minute, known)


def same_moment(gold: tuple[object, ...], answer: tuple[object, ...] | None) -> bool:
    """Return whether an answer says the date or time of the reference answer. A reference answer
    without am or pm accepts both, and 16:30 is 4:30 p.m.
    """
    if answer is None or len(gold) != len(answer):
        return False
    if len(gold) != 2 or gold[1] == answer[1]:
        return gold == answer
    minutes, given = int(str(gold[0])), int(str(answer[0]))
    if minutes == given:
        return True
    # "3:00 PM" answers 3:00.
    return bool(answer[1]) and 60 <= minutes < 780 and minutes % 720 == given % 720
