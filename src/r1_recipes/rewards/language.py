"""The reward for language consistency: is the reasoning in the expected language?

lingua and its models load with the first text (0.2 s, 35 MB): a run without this reward needs
neither.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import regex

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.messages import KANA, completion_texts, last_user_text
from r1_recipes.prompts import ResponseFormat
from r1_recipes.rewards.answers import THINK_ANSWER, Column, Values, reward

logger = logging.getLogger(__name__)

# Languages by script. Only a few large ones: each further language makes the detector less accurate
# on short sentences.
_SCRIPTS = {
    "Latin": "en fr de es pt it nl sv pl cs ro tr id vi",
    "Cyrillic": "ru uk bg",
    "Arabic": "ar fa ur",
    "Devanagari": "hi mr",
    "Han": "zh",
    "Kana": "ja",
    "Hangul": "ko",
    "Thai": "th",
    "Greek": "el",
    "Hebrew": "he",
    "Armenian": "hy",
    "Georgian": "ka",
    "Bengali": "bn",
    "Tamil": "ta",
    "Telugu": "te",
}
_SHARED_SCRIPTS = [script for script, codes in _SCRIPTS.items() if " " in codes]
# ISO 639-1 code -> script
LANGUAGES = {code: script for script, codes in _SCRIPTS.items() for code in codes.split()}
_RUNS = {script: rf"\p{{{script}}}[\p{{{script}}}\p{{M}}]*" for script in _SCRIPTS} | {
    # Digits and underscores end a run: "Nous1" is a word with a digit glued on, "2x", "5km" and
    # "x_1" are variables and units.
    "Latin": r"\p{Latin}[\p{Latin}\p{M}]*(?:['’]\p{Latin}[\p{Latin}\p{M}]*)*",
    "Kana": rf"[{KANA}][{KANA}\p{{M}}]*",
    "other": r"\p{L}+",
}
_WORD = regex.compile("|".join(f"(?P<{script}>{run})" for script, run in _RUNS.items()))
# About as much text as one word of a spaced script.
_CHARACTERS_PER_WORD = {"Han": 2, "Kana": 2, "Thai": 4}
_VARIABLE_SCRIPTS = {"Latin", "Greek", "Cyrillic"}
# Variables (x), triangles (ABC), and functions and units of mathematics.
_VARIABLE = re.compile(
    r".|[A-Z]{1,3}|(?i:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|lg|"
    r"exp|lim|max|min|sup|inf|gcd|lcm|mod"
    r"|det|dim|ker|deg|arg|sqrt|frac|cdot|times|pi|mm|cm|dm|km|mg|kg|ml|kw|kj|hz)",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r"[.!?;:。！？；：\n]+")
# Maths and addresses have no language. An unclosed delimiter hides nothing. Each alternative is
# linear in the length of the text.
_NO_LANGUAGE = re.compile(
    r"\$\$.*?\$\$"
    r"|\\\[(?:(?!\\\[).)*?\\\]|\\\((?:(?!\\\().)*?\\\)"
    r"|\\begin\{(?:(?!\\begin\{).)*?\\end\{[^{}\n]{0,40}\}"
    r"|https?://[!-~]+|www\.[!-~]+"
    # The rule of Pandoc for inline maths, which does not match "$2 each, so $18".
    r"|\$(?=[^\s$])[^$\n]*(?<=[^\s$])\$(?!\d)"
    r"|\\[A-Za-z]+\*?(?:\{[^{}\n]*\})*",
    re.DOTALL,
)

# On sentences of GSM8K, the detector's first choice is wrong for 1 of 2 with 1 or 2 words, for 1 of
# 6 with 5 words, and for 1 of 60 with 12 words or more.
_MIN_WORDS = 5
# A sentence is foreign if the detector's confidence in the target language is below this. With this
# limit, 1,500 worked solutions of GSM8K score 0.996 for English (0.955 by the detector's first
# choice), and 0.06 to 0.14 for French, German or Spanish.
_FOREIGN_BELOW = 0.005
# The detector takes about 0.1 ms for so many words. A longer sentence is a list.
_MAX_WORDS = 60


@reward
def language_consistency(
    completions: Column,
    prompts: Column | None = None,
    language: Column | None = None,
    *,
    fmt: ResponseFormat = THINK_ANSWER,
    language_consistency_target: str | None = None,
    **columns: Any,
) -> Values:
    """Return the share of the reasoning that is in the target language.

    Range: 0..1, in words; two Han or kana characters, or four Thai characters, count as a word. The
    target is the row's ``language`` column, else ``language_consistency_target``, else the language
    of the prompt's last user message. Return ``None`` if the column holds an unsupported language,
    or if the prompt has too few words to detect its language.

    Maths (such as ``$…$``), LaTeX, numbers, single letters, addresses and tags do not count. A
    reasoning without any other words scores 1.0. Code counts. Without a reasoning block, the whole
    text counts; if it has no words, the score is 0.0. Fewer than 5 words in a script that several
    languages share count as the target language. Source: DeepSeek-R1 (arXiv:2501.12948, section
    2.3.2).
    """
    if language_consistency_target and language_code(language_consistency_target) is None:
        raise RecipeError(
            unknown_name("language_consistency_target", language_consistency_target, LANGUAGES)
        )
    texts = completion_texts(completions)
    nothing = [None] * len(texts)
    scores: Values = []
    for text, prompt, name in zip(texts, prompts or nothing, language or nothing, strict=True):
        named = str(name or "").strip() or language_consistency_target
        target = language_code(named) if named else _text_language(last_user_text(prompt))
        scores.append(None if target is None else _score(fmt, text, target))
    return scores


def _score(fmt: ResponseFormat, text: str, target: str) -> float:
    reasoning = fmt.parse(text).reasoning
    if reasoning is not None:
        return _share(reasoning, target, of_nothing=1.0)
    return _share(fmt.full_text(text), target, of_nothing=0.0)


@cache  # Warns once per name.
def language_code(name: str) -> str | None:
    """Return the key of :data:`LANGUAGES` for a language code, such as ``zh-CN``.

    Warn and return ``None`` if the language is not supported.
    """
    code = re.split("[-_]", name.strip().lower(), maxsplit=1)[0]
    if code in LANGUAGES:
        return code
    logger.warning("language_consistency: %s", unknown_name("language", name, LANGUAGES))
    return None


def _sentences(text: str) -> list[list[tuple[str, str]]]:
    """Return the words of each sentence with their scripts, without the variables of formulas."""
    sentences = []
    for sentence in _SENTENCE_END.split(_NO_LANGUAGE.sub(" ", text)):
        words = []
        for word in _WORD.finditer(sentence):
            if word.lastgroup not in _VARIABLE_SCRIPTS or not _VARIABLE.fullmatch(word[0]):
                words.append((str(word.lastgroup), word[0]))
        sentences.append(words)
    return sentences


def _share(text: str, target: str, of_nothing: float) -> float:
    """Return the share of a text in the target language, ``of_nothing`` if it has no words."""
    script = LANGUAGES[target]
    sentences = _sentences(text)
    total = inside = 0.0
    for words in sentences:
        sizes: dict[str, float] = defaultdict(float)
        for name, word in words:
            sizes[name] += len(word) / _CHARACTERS_PER_WORD.get(name, len(word))
        # Japanese prose is about half kana, so the Han characters beside them are Japanese. A few
        # kana in Chinese are a name or a quotation.
        if sizes["Kana"] * 5 >= sizes["Han"]:
            sizes["Kana"] += sizes.pop("Han")
        total += sum(sizes.values())
        inside += sizes[script]
        # "計算結果" alone may be Chinese or Japanese. Japanese of six characters contains kana.
        if target == "ja" and sizes["Han"] < 3:
            inside += sizes["Han"]
    if not total:
        return of_nothing
    if script in _SHARED_SCRIPTS:
        written = [[word for name, word in words if name == script] for words in sentences]
        inside *= 1.0 - _foreign_share(written, target)
    return min(1.0, inside / total)


def _foreign_share(sentences: Sequence[list[str]], target: str) -> float:
    """Return the share of words in sentences of a language other than ``target``.

    Short sentences are joined first.
    """
    chunks: list[list[str]] = [[]]
    for words in sorted(sentences, key=lambda words: len(words) < _MIN_WORDS):
        if len(chunks[-1]) >= _MIN_WORDS:
            chunks.append([])
        chunks[-1] = chunks[-1] + words
    chunks = [words for words in chunks if len(words) >= _MIN_WORDS]
    # Words that fit none of the languages have a confidence of 0 in all of them.
    foreign = sum(
        len(words)
        for words, found in zip(chunks, map(_confidences, chunks), strict=True)
        if any(found.values()) and found[target] < _FOREIGN_BELOW
    )
    return foreign / (sum(map(len, chunks)) or 1)


def _text_language(text: str) -> str | None:
    """Return the language of a text, or ``None`` if it has too few words to detect it."""
    words = [word for sentence in _sentences(text) for _, word in sentence]
    best, confidence = next(iter(_confidences(words).items()))
    enough = LANGUAGES[best] not in _SHARED_SCRIPTS or len(words) >= _MIN_WORDS
    return best if enough and confidence > 0.5 else None


def _confidences(words: Sequence[str]) -> dict[str, float]:
    """Return the detector's confidence in each language, the likeliest first."""
    text = " ".join(word[:40] for word in words[:_MAX_WORDS])
    values = _detector().compute_language_confidence_values(text)
    return {value.language.iso_code_639_1.name.lower(): value.value for value in values}


@cache
def _detector() -> Any:
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    # The mode with high accuracy takes 380 MB, 3 s to load and twice the time per text. Its mean is
    # 0.9997 instead of 0.996.
    codes = map(IsoCode639_1.from_str, LANGUAGES)
    return LanguageDetectorBuilder.from_iso_codes_639_1(*codes).with_low_accuracy_mode().build()
