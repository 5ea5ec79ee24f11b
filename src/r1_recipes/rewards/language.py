"""Language consistency: is the reasoning in the language that it should be in? lingua's models load
at the first text (0.2 s, 35 MB).
"""

import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import regex
from lingua import IsoCode639_1, Language, LanguageDetector, LanguageDetectorBuilder

from r1_recipes.common.errors import RecipeError, unknown_name
from r1_recipes.common.messages import KANA, completion_texts, last_user_text
from r1_recipes.rewards.registry import Column, Reward, Values, register_reward

logger = logging.getLogger(__name__)

# Few and large languages per script, since each further one costs the detector accuracy on short
# sentences.
_SHARED_SCRIPTS = {
    "Latin": ["en", "fr", "de", "es", "pt", "it", "nl", "sv", "pl", "cs", "ro", "tr", "id", "vi"],
    "Cyrillic": ["ru", "uk", "bg"],
    "Arabic": ["ar", "fa", "ur"],
    "Devanagari": ["hi", "mr"],
}
_OWN_SCRIPTS = {
    "zh": "Han",
    "ja": "Kana",
    "ko": "Hangul",
    "th": "Thai",
    "el": "Greek",
    "he": "Hebrew",
    "hy": "Armenian",
    "ka": "Georgian",
}
_OWN_SCRIPTS |= {"bn": "Bengali", "ta": "Tamil", "te": "Telugu"}
LANGUAGES = {
    code: script for script, codes in _SHARED_SCRIPTS.items() for code in codes
} | _OWN_SCRIPTS  # ISO 639-1 code -> script
_RUNS = {
    **{
        script: rf"\p{{{script}}}[\p{{{script}}}\p{{M}}]*"
        for script in LANGUAGES.values()
        if script != "Kana"
    },
    # Digits and underscores end a run: "Nous1" is a word with a digit glued on, "2x", "5km" and
    # "x_1" are variables and units.
    "Latin": r"\p{Latin}[\p{Latin}\p{M}]*(?:['’]\p{Latin}[\p{Latin}\p{M}]*)*",
    "Kana": rf"[{KANA}][{KANA}\p{{M}}]*",
    "other": r"\p{L}+",
}
_WORD = regex.compile("|".join(f"(?P<{script}>{run})" for script, run in _RUNS.items()))
_CHARACTERS_PER_WORD = {
    "Han": 2,
    "Kana": 2,
    "Thai": 4,
}  # about as much text as one word of a spaced script
_VARIABLE_SCRIPTS = {"Latin", "Greek", "Cyrillic"}
# x; the triangle ABC; and what mathematics writes in letters.
_VARIABLE = re.compile(
    r".|[A-Z]{1,3}|(?i:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|lg|"
    r"exp|lim|max|min|sup|inf|gcd|lcm|mod"
    r"|det|dim|ker|deg|arg|sqrt|frac|cdot|times|pi|mm|cm|dm|km|mg|kg|ml|kw|kj|hz)",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r"[.!?;:。！？；：\n]+")
# Maths and addresses belong to no language. What never closes hides nothing; each alternative takes
# time in proportion to the text.
_NO_LANGUAGE = re.compile(
    r"\$\$.*?\$\$"
    r"|\\\[(?:(?!\\\[).)*?\\\]|\\\((?:(?!\\\().)*?\\\)"
    r"|\\begin\{(?:(?!\\begin\{).)*?\\end\{[^{}\n]{0,40}\}"
    r"|https?://[!-~]+|www\.[!-~]+"
    # Pandoc's rule for inline maths, which leaves "$2 each, so $18" alone.
    r"|\$(?=[^\s$])[^$\n]*(?<=[^\s$])\$(?!\d)"
    r"|\\[A-Za-z]+\*?(?:\{[^{}\n]*\})*",
    re.DOTALL,
)

# What is said within maths: text set in it, five words in a row, letters that mathematics has not.
_SAID = regex.compile(
    r"\\(?:text[a-z]*|mbox|hbox|emph)\s*\{[\s{]*([^{}]*)"
    r"|((?<![\p{L}\p{M}\\])(?:[\p{L}\p{M}]++[\s,.;:!?'’~]++){4,}[\p{L}\p{M}]++)"
    r"|((?:[^\P{L}\p{Latin}\p{Greek}\p{Cyrillic}\p{Common}]\p{M}*)+)"
)

# On GSM8K's sentences the detector's first choice is wrong for 1 of 2 with 1 or 2 words, 1 of 6
# with 5 words and 1 of 60 from 12 up.
_MIN_WORDS = 5
# A sentence is foreign if the detector gives the target less than this. 1,500 worked solutions of
# GSM8K score 0.996 for English (0.955 by the detector's first choice), and 0.06 to 0.14 for French,
# German or Spanish.
_FOREIGN_BELOW = 0.005
# The detector takes about 0.1 ms per sentence: of a long text about this many, evenly spread, stand
# for all.
_MAX_CHUNKS = 200
_MAX_CHUNK_WORDS = 60


@register_reward("language_consistency")
class LanguageConsistencyReward(Reward):
    """Share of the reasoning that is in the target language.

    Range: 0..1, in words; two Han or kana characters, or four Thai ones, count as a word. The
    target is the row's ``language`` column, else ``language_consistency_target``, else the language
    of the prompt's last user message. ``None`` if the column holds a language that is not
    supported, or the prompt has too few words to tell.

    Maths (in ``$…$`` and the like), LaTeX, numbers, single letters, addresses and tags do not
    count; a reasoning that holds nothing else scores 1.0. Code counts, and so does what is said
    within maths: ``\\text{…}``, five words in a row, Chinese. Without a reasoning block, what
    stands in its place is judged; without words there, the score is 0.0. Fewer than 5 words in a
    script that several languages share count as the target. Source: DeepSeek-R1 (arXiv:2501.12948,
    section 2.3.2).
    """

    judges = "style"

    language_consistency_target: str | None = None

    def __post_init__(self) -> None:
        target = self.language_consistency_target
        if target is not None and language_code(target) is None:
            raise RecipeError(unknown_name("language_consistency_target", target, LANGUAGES))

    def __call__(
        self,
        completions: Column,
        prompts: Column | None = None,
        language: Column | None = None,
        **columns: Any,
    ) -> Values:
        texts = completion_texts(completions)
        rows = zip(
            texts, prompts or [""] * len(texts), language or [None] * len(texts), strict=True
        )
        return [
            self._score(text, self._target(prompt, row_language))
            for text, prompt, row_language in rows
        ]

    def _target(self, prompt: Any, row_language: str | None) -> str | None:
        if isinstance(row_language, str) and row_language.strip():
            return _column_language(row_language)
        if self.language_consistency_target is not None:
            return language_code(self.language_consistency_target)
        return _text_language(last_user_text(prompt))

    def _score(self, text: str, target: str | None) -> float | None:
        if target is None:
            return None
        fmt, reasoning = self.response_format, self.response_format.parse(text).reasoning
        if reasoning is not None:
            share = _share(reasoning, target)
            return 1.0 if share is None else share
        text = fmt.full_text(text)
        if fmt.reasoning_tags:
            opening, closing = fmt.reasoning_tags
            text = text.replace(opening, " ", 1).partition(closing)[0]
        if fmt.answer_tags:
            text = text.partition(fmt.answer_tags[0])[0]
        return _share(text, target) or 0.0


def language_code(name: str) -> str | None:
    """The key of :data:`LANGUAGES` for a code with or without region (``zh-CN``) or an English
    name; ``None`` if there is none.
    """
    code = re.split("[-_]", name.strip().lower(), maxsplit=1)[0]
    if code not in LANGUAGES:
        with contextlib.suppress(ValueError):
            code = Language.from_str(name.strip()).iso_code_639_1.name.lower()
    return code if code in LANGUAGES else None


@cache  # warns once
def _column_language(name: str) -> str | None:
    if (code := language_code(name)) is None:
        logger.warning(
            "%s Such rows get no language_consistency reward.",
            unknown_name("value in column 'language'", name, LANGUAGES),
        )
    return code


def _sentences(text: str) -> list[list[tuple[str, str]]]:
    """The words that count in each sentence, with their scripts."""
    sentences = []
    spoken = _NO_LANGUAGE.sub(
        lambda span: f" {' '.join(said[said.lastindex] for said in _SAID.finditer(span[0]))} ", text
    )
    for sentence in _SENTENCE_END.split(spoken):
        words = [(str(match.lastgroup), match[0]) for match in _WORD.finditer(sentence)]
        sentences.append(
            [
                (script, word)
                for script, word in words
                if script not in _VARIABLE_SCRIPTS or not _VARIABLE.fullmatch(word)
            ]
        )
    return sentences


def _script_sizes(words: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Words in each script of one sentence; the Han characters of a Japanese sentence are
    Japanese.
    """
    sizes: dict[str, float] = defaultdict(float)
    for script, word in words:
        sizes[script] += len(word) / _CHARACTERS_PER_WORD.get(script, len(word))
    # Japanese prose is about half kana; a lone kana in Chinese is a name or a quotation.
    if sizes["Kana"] * 5 >= sizes["Han"]:
        sizes["Kana"] += sizes.pop("Han")
    return sizes


def _share(text: str, target: str) -> float | None:
    """Share of ``text`` in ``target``; ``None`` if nothing counts."""
    script, sentences = LANGUAGES[target], _sentences(text)
    sizes = [_script_sizes(words) for words in sentences]
    total = sum(sum(size.values()) for size in sizes)
    if not total:
        return None
    # "計算結果" alone may be either language; six characters of Japanese hold a kana.
    inside = sum(
        size[script] + (size["Han"] if target == "ja" and size["Han"] < 3 else 0.0)
        for size in sizes
    )
    if script in _SHARED_SCRIPTS:
        inside *= 1.0 - _foreign_share(
            [[word for one, word in words if one == script] for words in sentences], target
        )
    return min(1.0, inside / total)


def _foreign_share(sentences: Sequence[list[str]], target: str) -> float:
    """Share of the words that stand in sentences of another language than ``target``. Short
    sentences are put together.
    """
    chunks: list[list[str]] = [[]]
    for words in sorted(sentences, key=lambda words: len(words) < _MIN_WORDS):
        if len(chunks[-1]) >= _MIN_WORDS:
            chunks.append([])
        chunks[-1] = chunks[-1] + words
    chunks = [words for words in chunks if len(words) >= _MIN_WORDS]
    size = foreign = 0
    for words in chunks[:: len(chunks) // _MAX_CHUNKS + 1]:
        known = _confidences(words)
        size += len(words)
        # Words that fit none of its languages leave every one at 0.
        if any(known.values()) and known[target] < _FOREIGN_BELOW:
            foreign += len(words)
    return foreign / size if size else 0.0


def _text_language(text: str) -> str | None:
    """The language most of ``text`` is in; ``None`` if there are too few words to tell."""
    words = [word for sentence in _sentences(text) for _, word in sentence]
    best, confidence = next(iter(_confidences(words).items()))
    return best if confidence > 0.5 and (best in _OWN_SCRIPTS or len(words) >= _MIN_WORDS) else None


def _confidences(words: Sequence[str]) -> dict[str, float]:
    """How sure the detector is of each language, the likeliest first."""
    # Words past a sentence's length, and letters past a word's, are hostile input or a list;
    # neither needs to be read in full.
    values = _detector().compute_language_confidence_values(
        " ".join(word[:40] for word in words[:_MAX_CHUNK_WORDS])
    )
    return {value.language.iso_code_639_1.name.lower(): value.value for value in values}


@cache
def _detector() -> LanguageDetector:
    # The full mode takes 380 MB and 3 s to load and twice the time per text, for a mean of 0.9997
    # where this one has 0.996.
    return (
        LanguageDetectorBuilder.from_iso_codes_639_1(*map(IsoCode639_1.from_str, LANGUAGES))
        .with_low_accuracy_mode()
        .build()
    )
